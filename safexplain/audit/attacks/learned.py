"""A classifier of whole attribution maps, trained on those of reference models."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import check_number, whole_number
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import roc

if TYPE_CHECKING:
    from torch import Tensor, nn

    from safexplain.audit.attacks.map_classifier import Standardisation

BATCH, WEIGHT_DECAY, DROPOUT = 256, 1e-2, 0.3  # maps per step of AdamW, its weight decay, and the dropout rate
HELD_OUT = 0.2  # share of the reference models (at least one) that are held out to choose the epoch by AUC
PATIENCE = 5  # epochs without improvement after which training stops


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """(reference model, example) pairs, and whether the model was trained on the example; arrays of one length."""

    model: NDArray[np.int64]
    example: NDArray[np.int64]
    member: Bools

    @classmethod
    def draw(cls, membership: Bools, models: NDArray[np.int64], most: int, rng: np.random.Generator) -> TrainingPairs:
        """At most `most` pairs of the given models; InputError: no members or no non-members among them."""
        place, example = np.divmod(np.arange(len(models) * membership.shape[1]), membership.shape[1])
        if len(place) > most:
            drawn = np.sort(rng.choice(len(place), most, replace=False, shuffle=False))
            place, example = place[drawn], example[drawn]
        model = models[place]
        member = membership[model, example]
        if member.all() or not member.any():
            raise InputError(
                f"expected members and non-members among the training examples of {len(models)} reference models, got"
                f" {int(member.sum())} and {int((~member).sum())}; allow more examples or train more reference models"
            )
        return cls(model, example, member)

    def weights(self) -> NDArray[np.float32]:
        """Weights by which an example's maps with and without it count equally, as do all members and non-members."""
        sides = (self.member, ~self.member)
        with_it, without = (
            np.bincount(self.example[side], minlength=self.example.max() + 1)[self.example] for side in sides
        )
        same = np.where(self.member, with_it, without)
        weight = np.where((with_it > 0) & (without > 0), (with_it + without) / np.maximum(2 * same, 1), 1.0)
        for side in sides:
            weight[side] *= len(weight) / 2 / weight[side].sum()
        return weight.astype(np.float32)


@dataclass(frozen=True, eq=False)
class FittedLearned:
    """A trained classifier of maps."""

    network: nn.Module  # in eval mode
    standardise: Standardisation  # of the scalars
    features: int  # entries of a map
    epoch: int  # the best one

    def scores(self, maps: Floats) -> NDArray[np.float64]:
        """(n,) logits of (n, d) maps; InputError: another d than in training, or values that are not finite."""
        maps = np.asarray(maps)
        if maps.ndim != 2 or maps.shape[1] != self.features or not np.isfinite(maps).all():
            raise InputError(f"expected finite maps (n, {self.features}), got {maps.shape}")
        from safexplain.audit.attacks.map_classifier import logits_of, unit_maps_of

        unit, scalars = unit_maps_of(maps, self.standardise.mean.device, (np.arange(len(maps)),))
        return logits_of(self.network, unit, self.standardise(scalars))


@dataclass(frozen=True)
class Learned:
    """Binary classifier "was this example in the training set of the explained model?" on the whole map.

    DeepLeak (arXiv 2601.03429, section IV-A) trains a network on the maps of one shadow model; here it learns from all
    reference models. An example's maps of models trained with and without it have equal weight, so that recognising the
    example does not help, and the epoch that does best on held-out reference models is kept.

    Args:
        shape: (c, h, w) of maps that are images, for a small convolutional network; None: a dense one.
        epochs: at most; training also stops after `PATIENCE` epochs without improvement.
        lr: of AdamW.
        seed: of the initial weights, the order and the choice of reference models and maps.
        most_examples: most maps to train on, drawn from all reference models; a quarter as many choose the epoch.
        device: "auto" takes a CUDA device if there is one.

    Raises:
        ConfigurationError: a value out of range.
    """

    shape: tuple[int, ...] | None = None
    epochs: int = 20
    lr: float = 2e-3
    seed: int = 0
    most_examples: int = 32_768
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise ConfigurationError(f"shape: expected (channels, height, width) or None, got {self.shape!r}")
        whole_number("epochs", self.epochs, 1)
        whole_number("most_examples", self.most_examples, 8)
        check_number("lr", self.lr, above=0)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """(n,) logits of (n, d) maps, by a classifier of those of m >= 2 models (m, n, d); raises as `fit`."""
        target, shadows, membership = check_signals(target, shadows, membership)
        return self.fit(shadows, membership).scores(target)

    def fit(
        self, maps: Floats, membership: Bools, models: ArrayLike | None = None, examples: ArrayLike | None = None
    ) -> FittedLearned:
        """Train on (m, n, d) maps of reference models with (m, n) membership; on disk, only the drawn ones are read.

        `models` are indices of at least 2 reference models, `examples` of the training examples (None: all).
        InputError: wrong shapes, no members or no non-members to learn from, or training diverged.
        """
        if maps.ndim != 3 or 0 in maps.shape or len(maps) < 2:
            raise InputError(f"expected maps (m, n, d) of m >= 2 reference models, got {maps.shape}; train more")
        if self.shape is not None and np.prod(self.shape) != maps.shape[2]:
            raise InputError(f"shape: expected that of a map of {maps.shape[2]} numbers, got {self.shape}")
        import torch

        from safexplain.audit.attacks.map_classifier import Standardisation, unit_maps_of

        model, example = (
            np.arange(size) if at is None else np.asarray(at)
            for size, at in zip(membership.shape, (models, examples), strict=True)
        )
        member = membership[np.ix_(model, example)]
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(len(model))
        watching = min(max(1, round(HELD_OUT * len(model))), len(model) - 1)
        train = TrainingPairs.draw(member, order[watching:], self.most_examples, rng)
        watch = TrainingPairs.draw(member, order[:watching], self.most_examples // 4, rng)
        where = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        device = torch.device(where)
        unit, scalars = unit_maps_of(maps, device, (model[train.model], example[train.example]))
        standardise = Standardisation.of(scalars)
        held, held_scalars = unit_maps_of(maps, device, (model[watch.model], example[watch.example]))
        network, epoch = self._trained(
            (unit, standardise(scalars), *(torch.from_numpy(a).to(device) for a in (train.member, train.weights()))),
            (held, standardise(held_scalars)),
            watch.member,
        )
        return FittedLearned(network, standardise, maps.shape[2], epoch)

    def _trained(
        self, train: tuple[Tensor, ...], watch: tuple[Tensor, Tensor], watch_member: Bools
    ) -> tuple[nn.Module, int]:
        """The network of the best epoch on the held-out reference models, and that epoch."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        from safexplain.audit.attacks.map_classifier import MapClassifier, logits_of

        maps, scalars, member, weight = train
        label, device = member.float(), maps.device
        best, best_epoch, best_auc = None, 0, -1.0
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            torch.default_generator.manual_seed(self.seed)
            network = MapClassifier(maps.shape[1], self.shape, DROPOUT).to(device)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(self.seed)
            optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=WEIGHT_DECAY)
            for epoch in range(1, self.epochs + 1):
                network.train()
                for index in torch.split(torch.randperm(len(label), device=device), BATCH):
                    logits = network(maps[index], scalars[index])
                    loss = binary_cross_entropy_with_logits(logits, label[index], weight[index])
                    optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimizer.step()
                logits = logits_of(network.eval(), *watch)
                if not np.isfinite(logits).all():
                    raise InputError(f"the classifier of maps diverged in epoch {epoch}; lower its lr ({self.lr})")
                auc = roc(logits, watch_member).auc
                if auc > best_auc:
                    best, best_epoch, best_auc = copy.deepcopy(network), epoch, auc
                elif epoch - best_epoch >= PATIENCE:
                    break
        assert best is not None
        return best.requires_grad_(False), best_epoch
