"""Gradient-boosted trees on features that compare each example's signal with those of reference models.

They learn membership from pseudo-targets, reference models in the target's place. Trees memorise, so they never score
the models that they learned from, and each half of the examples is scored by trees that were fitted to the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals, references_for
from safexplain.audit.attacks.likelihood import LabelLikelihoodRatio, LikelihoodRatio, centred, transformed
from safexplain.errors import ConfigurationError, InputError

Array = NDArray[np.float64]

DIGITS = 9  # decimals of a feature; with more, rounding would separate values that are mathematically equal


@dataclass(frozen=True)
class Boosted:
    """Histogram gradient boosting (scikit-learn) on reference features of one signal or of several.

    Features of a number: its centred value (on the scale of `LikelihoodRatio`), the means of models with and without
    the example, the distances from both in standard deviations, and `LikelihoodRatio`; of a label: the shares of models
    with and without the example that gave the same one, and `LabelLikelihoodRatio`. Few and small trees find as much as
    many (docs/evidence/attack_table.md). They grow in one thread, as several are much slower on a busy machine.

    Raises:
        ConfigurationError: a value out of range.
    """

    trees: int = 40
    leaves: int = 8  # most leaves of a tree
    rate: float = 0.15  # learning rate
    models: int = 8  # most reference models that play the target
    labels: int = 0  # number of leading columns that are class indices
    seed: int = 0  # chooses the models that play the target, and the halves of the examples

    def __post_init__(self) -> None:
        for name, low in (("trees", 1), ("leaves", 2), ("models", 2), ("labels", 0), ("seed", 0)):
            check_whole(name, getattr(self, name), low)
        check_number("rate", self.rate, above=0)

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
        k = target.shape[1]
        if not self.labels <= k:
            raise ConfigurationError(f"labels: expected at most {k}, the columns of the signal; got {self.labels}")
        columns: list[Array] = []
        for j in range(self.labels):
            same = shadows[:, :, j] == target[:, j]
            columns += [(same & side).sum(0) / np.maximum(side.sum(0), 1) for side in (membership, ~membership)]
            columns.append(LabelLikelihoodRatio()(target[:, j], shadows[:, :, j], membership))
        for j in range(self.labels, k):
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
    first, spread = values[0].copy(), values.std(0)
    unit = float(np.median(spread[spread > 0])) if spread.any() else 1.0
    values, t = (a / unit for a in centred(values, t))
    first = first / unit
    means, distances = [], []
    floor = 1e-9 * float(values.var(0).mean()) or 1.0
    for side in (membership, ~membership):
        count = np.maximum(side.sum(0), 1)
        mean = (values * side).sum(0) / count
        variance = (np.square(values - mean) * side).sum(0) / np.maximum(count - 1, 1) + floor
        means.append(mean)
        distances.append((t - mean) / np.sqrt(variance))
    return [t - (means[0] + means[1]) / 2, *(first + mean for mean in means), *distances, ratio]
