"""A classifier of whole attribution maps, trained on those of reference models.

DeepLeak (arXiv 2601.03429, section IV-A) trains a network on the maps of one shadow model. Here it learns from all
reference models, weighs an example's maps with and without it equally, so that knowing the example by its map is of no
use, and keeps the epoch that does best on reference models it was not trained on.
PyTorch is loaded only to train: attacking signals without maps needs none.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import check_number, whole_number
from safexplain.audit.attacks.base import Bools, Floats, check_device, check_signals, device_of
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import roc

if TYPE_CHECKING:
    from torch import Tensor, nn

    from safexplain.audit.attacks.learned.classifier import Standardisation


def eligible(
    membership: Bools, rows: ArrayLike | None, out_of_distribution: Bools | None, as_non_members: bool
) -> Bools:
    """(m, n) bool: maps that may be trained on.

    Args:
        membership: (m, n) bool.
        rows: indices of the examples allowed; None: all.
        out_of_distribution: (n,) bool, examples of another source.
        as_non_members: those are the only non-members; otherwise they are left out.

    Raises:
        InputError: rows are not indices, or the examples of another source are missing or were trained on.
    """
    _, n = membership.shape
    allowed = np.zeros(n, dtype=bool)
    chosen = np.arange(n) if rows is None else np.asarray(rows)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or ((chosen < 0) | (chosen >= n)).any():
        raise InputError(f"rows must be indices of examples in 0 .. {n - 1}, got {chosen.dtype} {chosen.shape}")
    allowed[chosen] = True
    if out_of_distribution is None:
        if as_non_members:
            raise InputError("non_members='out-of-distribution' needs out_of_distribution, (n,) bool: which they are")
        return np.broadcast_to(allowed, membership.shape)
    other = np.asarray(out_of_distribution)
    if other.dtype != np.bool_ or other.shape != (n,):
        raise InputError(f"out_of_distribution must be bool of shape ({n},), got {other.dtype} {other.shape}")
    if not as_non_members:
        return np.broadcast_to(allowed & ~other, membership.shape)
    if not (other & allowed).any():
        raise InputError("no example that may be trained on is out of distribution; add such examples, or allow them")
    if membership[:, other].any():
        raise InputError("reference models were trained on examples marked out of distribution; unmark these")
    mixed: Bools = (membership | other) & allowed
    return mixed


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """(reference model, example) pairs, and whether the model was trained on the example; arrays of one length."""

    model: NDArray[np.int64]
    example: NDArray[np.int64]
    member: Bools

    @classmethod
    def draw(
        cls, usable: Bools, membership: Bools, models: NDArray[np.int64], most: int, rng: np.random.Generator
    ) -> TrainingPairs:
        """At most `most` usable pairs of the given models.

        Raises:
            InputError: no members or no non-members among them.
        """
        place, example = np.nonzero(usable[models])
        if len(place) > most:
            kept = np.sort(rng.choice(len(place), most, replace=False, shuffle=False))
            place, example = place[kept], example[kept]
        model = models[place]
        member = membership[model, example]
        if member.all() or not member.any():
            raise InputError(
                f"{int(member.sum())} members and {int((~member).sum())} non-members among what may be trained on with"
                f" {len(models)} reference models; both are needed: allow more rows or train more reference models"
            )
        return cls(model, example, member)

    def weights(self) -> NDArray[np.float32]:
        """Weights: an example's maps with and without it weigh the same, and so do all members and others."""
        own, other = (np.bincount(self.example[side], minlength=self.example.max() + 1) for side in self._sides())
        with_it, without = own[self.example], other[self.example]
        same = np.where(self.member, with_it, without)
        weight = np.where((with_it > 0) & (without > 0), (with_it + without) / np.maximum(2 * same, 1), 1.0)
        for side in self._sides():
            weight[side] *= len(weight) / 2 / weight[side].sum()
        return weight.astype(np.float32)

    def _sides(self) -> tuple[Bools, Bools]:
        return self.member, ~self.member


@dataclass(frozen=True, eq=False)
class FittedLearned:
    """A trained classifier of maps.

    Args:
        network: in eval mode.
        standardise: of the scalars.
        features: entries of a map.
        epoch: the one that was kept.
        auc: on the held-out reference models; optimistic, since the epoch was chosen by it.
    """

    network: nn.Module
    standardise: Standardisation
    features: int
    epoch: int
    auc: float

    def scores(self, maps: Floats) -> NDArray[np.float64]:
        """(n,) logits of (n, d) maps; higher says "member".

        Raises:
            InputError: another number of features than trained on, or values that are not finite.
        """
        maps = np.asarray(maps)
        if maps.ndim != 2 or maps.shape[1] != self.features or not np.isfinite(maps).all():
            raise InputError(f"expected finite maps (n, {self.features}), got shape {maps.shape}")
        from safexplain.audit.attacks.learned.classifier import logits_of, unit_maps_of

        unit, scalars = unit_maps_of(maps, self.standardise.mean.device, (np.arange(len(maps)),))
        return logits_of(self.network, unit, self.standardise(scalars))


@dataclass(frozen=True)
class Learned:
    """Binary classifier "was this example in the training set of the model that was explained?" on the whole map.

    Args:
        shape: (c, h, w) of maps that are images, for a small convolutional network; None: a dense one.
        epochs: at most; training also stops after `patience` epochs without a better one.
        batch_size: maps a step.
        lr: of AdamW.
        weight_decay: of AdamW.
        dropout: of the hidden vectors.
        seed: of the initial weights, the order and the choice of reference models and maps.
        held_out: share of the reference models (at least one) that only choose the epoch, by the AUC on them.
        patience: see `epochs`.
        most_examples: most maps to train on, drawn from all reference models and held in single precision; a quarter as
            many choose the epoch.
        non_members: "in-distribution": examples the reference model was not trained on; "out-of-distribution":
            examples of another source, that no model was trained on, as DeepLeak's attacker has them.
        device: "auto" takes a CUDA device when there is one.

    Raises:
        ConfigurationError: a value out of range.
    """

    shape: tuple[int, ...] | None = None
    epochs: int = 20
    batch_size: int = 256
    lr: float = 2e-3
    weight_decay: float = 1e-2
    dropout: float = 0.3
    seed: int = 0
    held_out: float = 0.2
    patience: int = 5
    most_examples: int = 32_768
    non_members: Literal["in-distribution", "out-of-distribution"] = "in-distribution"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.shape is not None and (len(self.shape) != 3 or min(self.shape) < 1):
            raise ConfigurationError(f"shape is (channels, height, width) or None, got {self.shape!r}")
        for name, low in (("epochs", 1), ("batch_size", 1), ("patience", 1), ("most_examples", 8)):
            whole_number(name, getattr(self, name), low)
        check_number("lr", self.lr, above=0)
        check_number("weight_decay", self.weight_decay, minimum=0)
        if not 0 <= self.dropout < 1 or not 0 < self.held_out < 1:
            raise ConfigurationError(f"dropout lies in [0, 1), held_out in (0, 1); got {self.dropout}, {self.held_out}")
        if self.non_members not in ("in-distribution", "out-of-distribution"):
            raise ConfigurationError(f"non_members is in- or out-of-distribution, got {self.non_members!r}")
        check_device(self.device)

    def __call__(
        self,
        target: Floats,
        shadows: Floats,
        membership: Bools,
        *,
        rows: ArrayLike | None = None,
        out_of_distribution: Bools | None = None,
    ) -> NDArray[np.float64]:
        """Score every example; higher says "member". The target's own membership is not used.

        Args:
            target: (n, d) maps of the target model.
            shadows: (m, n, d) maps of m >= 2 reference models.
            membership: (m, n) bool.
            rows: see `fit`.
            out_of_distribution: see `fit`.

        Returns:
            (n,) logits.

        Raises:
            InputError: as `fit`.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        return self.fit(shadows, membership, rows, out_of_distribution).scores(target)

    def fit(
        self,
        shadows: Floats,
        membership: Bools,
        rows: ArrayLike | None = None,
        out_of_distribution: Bools | None = None,
    ) -> FittedLearned:
        """Train on the maps of reference models.

        Args:
            shadows: (m, n, d) maps of m >= 2 reference models.
            membership: (m, n) bool.
            rows: indices of the examples that may be trained on; None: all.
            out_of_distribution: (n,) bool, examples of another source that no model was trained on. They are the
                non-members for non_members="out-of-distribution", and are not trained on otherwise.

        Raises:
            InputError: shapes disagree, values are not finite, fewer than 2 reference models, no members or no
                non-members among what may be trained on, or training diverged.
        """
        shadows, membership = np.asarray(shadows), np.asarray(membership)
        if shadows.ndim != 3 or len(shadows) < 2 or 0 in shadows.shape:
            raise InputError(f"expected maps (m, n, d) of m >= 2 reference models, got {shadows.shape}; train more")
        check_signals(shadows[0], shadows, membership)
        m = len(shadows)
        return self.fitted(
            shadows, membership, rows, out_of_distribution, (np.arange(m), np.arange(membership.shape[1]))
        )

    def fitted(
        self,
        values: Floats,
        membership: Bools,
        rows: ArrayLike | None,
        out_of_distribution: Bools | None,
        places: tuple[NDArray[np.int64], NDArray[np.int64]],
    ) -> FittedLearned:
        """`fit` on some models and examples of maps that are finite, and may be on disk: only what is drawn is read.

        Args:
            values: (models, examples, d) maps.
            membership: (m, n) bool, of the models and examples named by `places`.
            rows: see `fit`, among these examples.
            out_of_distribution: likewise.
            places: (m,) models and (n,) examples, as `values` counts them.
        """
        import torch

        from safexplain.audit.attacks.learned.classifier import Standardisation, unit_maps_of

        (models, examples), d, m = places, values.shape[2], len(membership)
        if self.shape is not None and np.prod(self.shape) != d:
            raise InputError(f"maps have {d} numbers, which is not shape {self.shape}; pass the shape of one map")
        usable = eligible(membership, rows, out_of_distribution, self.non_members == "out-of-distribution")
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(m)
        watching = min(max(1, round(self.held_out * m)), m - 1)
        train = TrainingPairs.draw(usable, membership, order[watching:], self.most_examples, rng)
        watch = TrainingPairs.draw(usable, membership, order[:watching], self.most_examples // 4, rng)
        device = device_of(self.device)
        maps, scalars = unit_maps_of(values, device, (models[train.model], examples[train.example]))
        standardise = Standardisation.of(scalars)
        held_maps, held_scalars = unit_maps_of(values, device, (models[watch.model], examples[watch.example]))
        network, epoch, auc = self._trained(
            (maps, standardise(scalars), *(torch.from_numpy(a).to(device) for a in (train.member, train.weights()))),
            (held_maps, standardise(held_scalars)),
            watch.member,
        )
        return FittedLearned(network, standardise, d, epoch, auc)

    def _trained(
        self, train: tuple[Tensor, ...], watch: tuple[Tensor, Tensor], watch_member: Bools
    ) -> tuple[nn.Module, int, float]:
        """The network of the best epoch, that epoch, and its AUC on the held-out reference models."""
        import torch
        from torch.nn.functional import binary_cross_entropy_with_logits

        from safexplain.audit.attacks.learned.classifier import MapClassifier, logits_of

        maps, scalars, member, weight = train
        label, device = member.float(), maps.device
        best, best_epoch, best_auc = None, 0, -1.0
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            torch.default_generator.manual_seed(self.seed)
            network = MapClassifier(maps.shape[1], self.shape, self.dropout).to(device)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(self.seed)
            optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=self.weight_decay)
            for epoch in range(1, self.epochs + 1):
                network.train()
                for index in torch.split(torch.randperm(len(label), device=device), self.batch_size):
                    logits = network(maps[index], scalars[index])
                    loss = binary_cross_entropy_with_logits(logits, label[index], weight[index])
                    optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss)
                    optimizer.step()
                logits = logits_of(network.eval(), *watch)
                if not np.isfinite(logits).all():
                    raise InputError(f"the attack's training diverged in epoch {epoch}; lower lr ({self.lr})")
                auc = roc(logits, watch_member).auc
                if auc > best_auc:
                    best, best_epoch, best_auc = copy.deepcopy(network), epoch, auc
                elif epoch - best_epoch >= self.patience:
                    break
        assert best is not None
        return best.requires_grad_(False), best_epoch, best_auc
