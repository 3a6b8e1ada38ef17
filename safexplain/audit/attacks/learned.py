"""Attacks that learn membership from reference models in the target's place (pseudo-targets)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from safexplain._validate import check_number, whole_number
from safexplain.audit.attacks.base import Bools, Floats, check_signals, references_for
from safexplain.audit.attacks.likelihood import LabelLikelihoodRatio, LikelihoodRatio, centred, transformed
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
        """By which an example's maps with and without it count equally, as do all members and non-members."""
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

    DeepLeak (arXiv 2601.03429, section IV-A) on the maps of all reference models. An example's maps of models trained
    with and without it have equal weight, so that recognising the example does not help, and the epoch that does best
    on held-out reference models is kept.

    Args:
        shape: (c, h, w) of maps that are images, for a small convolutional network; None: a dense one.
        epochs: at most; training also stops after `PATIENCE` epochs without improvement.
        lr: of AdamW.
        seed: of the initial weights, the order and the choice of reference models and maps.
        most_examples: most maps to train on; a quarter as many choose the epoch.
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
                    optimizer.zero_grad()
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


Array = NDArray[np.float64]

DIGITS = 9  # decimals of a feature; with more, rounding would separate values that are mathematically equal


@dataclass(frozen=True)
class Boosted:
    """Histogram gradient boosting (scikit-learn) on reference features of one signal or of several.

    Features of a number: its centred value (on the scale of `LikelihoodRatio`), the means of models with and without
    the example, the distances from both in standard deviations, and `LikelihoodRatio`; of a label: the shares of models
    with and without the example that gave the same one, and `LabelLikelihoodRatio`.
    """

    trees: int = 40
    leaves: int = 8  # most leaves of a tree
    rate: float = 0.15  # learning rate
    models: int = 8  # most reference models that play the target
    labels: int = 0  # number of leading columns that are class indices
    seed: int = 0  # chooses the models that play the target, and the halves of the examples

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log odds of (n,) or (n, k) signals, from trees of m >= 4 reference models (m, n[, k]), (m, n)."""
        target, shadows, membership = check_signals(target, shadows, membership)
        return self.fit(shadows, membership).scores(target, shadows, membership)

    def fit(self, shadows: Floats, membership: Bools, players: Sequence[int] | None = None) -> FittedBoosted:
        """Trees from reference models (m, n) or (m, n, k) in the target's place: `models` of the `players`, or of all.

        Raises:
            InputError: fewer than 4 reference models, or no members or no non-members in one of the halves.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        m, n = membership.shape
        if m < 4 or n < 4:
            raise InputError(f"Boosted: expected at least 4 reference models and 4 examples, got {m} and {n}")
        rng = np.random.default_rng([self.seed, 0xB005])
        drawn = rng.permutation(m if players is None else players)[: self.models].tolist()
        half = np.zeros(n, dtype=bool)
        half[rng.permutation(n)[: n // 2]] = True
        others = [references_for(j, range(m), membership) for j in drawn]
        x = np.stack([self.features(shadows[j], shadows[o], membership[o]) for j, o in zip(drawn, others, strict=True)])
        y = membership[drawn]
        trees = []
        for side in (half, ~half):
            if y[:, side].all() or not y[:, side].any():
                raise InputError("the pseudo-targets have no members or no non-members in one half; give more examples")
            grown = HistGradientBoostingClassifier(
                max_iter=self.trees,
                max_leaf_nodes=self.leaves,
                learning_rate=self.rate,
                early_stopping=False,
                random_state=self.seed,
            )
            with threadpool_limits(1):
                trees.append(grown.fit(x[:, side].reshape(-1, x.shape[2]), y[:, side].ravel()))
        return FittedBoosted(self, half, (trees[0], trees[1]))

    def features(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float32]:
        """(n, features) inputs of the trees."""
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
        columns: list[Array] = []
        for j in range(self.labels):
            same = shadows[:, :, j] == target[:, j]
            columns += [(same & side).sum(0) / np.maximum(side.sum(0), 1) for side in (membership, ~membership)]
            columns.append(LabelLikelihoodRatio()(target[:, j], shadows[:, :, j], membership))
        for j in range(self.labels, target.shape[1]):
            columns += _of_number(target[:, j], shadows[:, :, j], membership)
        return np.stack(columns, axis=1).round(DIGITS).astype(np.float32)


@dataclass(frozen=True, eq=False)
class FittedBoosted:
    """Trees for both halves of the examples."""

    attack: Boosted  # computes the features
    half: Bools  # (n,) the examples that the first of the two was fitted to
    trees: tuple[Any, Any]

    def scores(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log odds, of each example from the trees that were fitted to the other half."""
        from threadpoolctl import threadpool_limits

        x = self.attack.features(target, shadows, membership)
        out = np.empty(len(x))
        with threadpool_limits(1):
            for side, trees in ((~self.half, self.trees[0]), (self.half, self.trees[1])):
                out[side] = trees.decision_function(x[side])
        return out


def _of_number(target: Floats, shadows: Floats, membership: Bools) -> list[Array]:
    """Columns (n,) about one number an example, see `Boosted`, in units of the median example's deviation."""
    ratio = LikelihoodRatio()(target, shadows, membership)
    t, values = (np.asarray(a, dtype=np.float64) for a in transformed("auto", target, shadows))
    spread = values.std(0)
    unit = float(np.median(spread[spread > 0])) if spread.any() else 1.0
    first = values[0] / unit
    values, t = (a / unit for a in centred(values, t))
    means, distances = [], []
    floor = 1e-9 * float(values.var(0).mean()) or 1.0
    for side in (membership, ~membership):
        count = np.maximum(side.sum(0), 1)
        mean = (values * side).sum(0) / count
        variance = (np.square(values - mean) * side).sum(0) / np.maximum(count - 1, 1) + floor
        means.append(mean)
        distances.append((t - mean) / np.sqrt(variance))
    return [t - (means[0] + means[1]) / 2, *(first + mean for mean in means), *distances, ratio]


SURE = 2.0  # standard errors by which the held-out gain must exceed zero
PENALTY = 1e-4  # penalty of the squared weights, as a share of the number of observations
FOLDS = 4  # folds of the cross-validation, at most; each has at least one pseudo-target


@dataclass(frozen=True)
class Stacked:
    """Logistic regression over log ratios that returns the first, the baseline, unless the others add to it.

    Every column is centred at its median, divided by its spread and compressed beyond three spreads (arsinh), against
    overconfident ratios. The others must add in a cross-validation over pseudo-targets: `SURE` standard errors to the
    Brier score of the first alone, and one to its true-positive rate.

    Args:
        fpr: false-positive rate at which true-positive rates are compared.

    Raises:
        ConfigurationError: a value out of range.
    """

    fpr: float = 0.01

    def __post_init__(self) -> None:
        check_number("fpr", self.fpr, above=0, below=1)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log odds of (n, k) log ratios, or their first column; fitted on those (p, n, k) of pseudo-targets."""
        target, shadows, membership = check_signals(target, shadows, membership)
        return self.fit(shadows, membership).scores(target)

    def fit(self, shadows: Floats, membership: Bools, *, always: bool = False) -> FittedStack:
        """Weights from the (p, n, k) log ratios and (p, n) membership of p >= 2 pseudo-targets; `always` uses all."""
        if shadows.ndim != 3 or shadows.shape[:2] != membership.shape or len(shadows) < 2 or shadows.shape[2] < 1:
            raise InputError(f"expected log ratios (p, n, k) of p >= 2 pseudo-targets, got {shadows.shape}")
        flat = shadows.reshape(-1, shadows.shape[2])
        low, centre, high = np.quantile(flat, (0.05, 0.5, 0.95), axis=0)
        spread = (high - low) / 3.29
        spread = np.where(spread > 0, spread, flat.std(axis=0))  # for nearly constant columns
        scaled = FittedStack(centre, np.where(spread > 0, spread, np.inf), None)
        x, y = scaled.scale(shadows), membership
        if x.shape[2] < 2 or y.all() or not y.any() or not (always or self._adds(x, y)):
            return scaled
        return FittedStack(scaled.centre, scaled.spread, _weights(x, y))

    def _adds(self, x: Array, y: Bools) -> bool:
        fold = np.arange(len(x)) % min(FOLDS, len(x))
        gain, found = np.zeros(y.shape), np.zeros((len(x), 2))
        for f in range(fold.max() + 1):
            fit, test = fold != f, fold == f
            if y[fit].all() or not y[fit].any():
                return False
            odds = [_odds(x[test][..., :k], _weights(x[fit][..., :k], y[fit])) for k in (x.shape[2], 1)]
            wrong = [expit(np.where(y[test], -o, o)) for o in odds]
            gain[test] = wrong[1] ** 2 - wrong[0] ** 2
            odds[1] = x[test][..., 0]
            for at, pair in zip(np.flatnonzero(test), zip(*odds, strict=True), strict=True):
                if y[at].any() and not y[at].all():
                    found[at] = [_tpr(o, y[at], self.fpr) for o in pair]
        each = gain.mean(1)
        error = max(float(each.std(ddof=1)) / np.sqrt(len(each)), float(gain.std()) / np.sqrt(gain.size))
        more = found[:, 0] - found[:, 1]
        return bool(each.mean() > SURE * error and more.mean() > more.std(ddof=1) / np.sqrt(len(more)))


@dataclass(frozen=True, eq=False)
class FittedStack:
    """Scale and weights of several log ratios, fitted to pseudo-targets."""

    centre: Array  # (k,) median of each column
    spread: Array  # (k,)
    weights: Array | None  # (k + 1,), the intercept last; None: nothing adds to the first column

    @property
    def adds(self) -> bool:
        """Whether more than the first column is used."""
        return self.weights is not None

    def scale(self, x: Floats) -> Array:
        """(..., k) scaled log ratios."""
        out: Array = 3 * np.arcsinh((x - self.centre) / self.spread / 3)
        return out

    def scores(self, target: Floats) -> Array:
        """(n,) log odds of (n, k) log ratios, or their first column."""
        if self.weights is None:
            return np.array(target[:, 0], dtype=np.float64)
        return _odds(self.scale(target), self.weights)


def _weights(x: Array, y: Bools) -> Array:
    """(k + 1,) weights and intercept of the penalised logistic regression of (p, n, k) columns."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=1 / (PENALTY * y.size), solver="newton-cholesky", tol=1e-8)
    fitted.fit(x.reshape(-1, x.shape[2]), y.ravel())
    return np.append(fitted.coef_[0], fitted.intercept_)


def _odds(x: Array, weights: Array) -> Array:
    out: Array = x @ weights[:-1] + weights[-1]
    return out


def _tpr(scores: Array, member: Bools, fpr: float) -> float:
    curve = roc(scores, member)
    return float(np.interp(fpr, curve.fpr, curve.tpr))
