"""Likelihood-ratio attacks: is what the target released more like models that saw the example, or those that did not?

    score = log p(signal | trained with the example) - log p(signal | trained without it)

The Gaussian form is LiRA (Carlini et al., arXiv 2112.03570, section IV) applied to a number or a vector computed from
the explanation, as in L1-, L2- and VAR-LRT (Huang et al., "Explaining the Model, Protecting Your Data", Algorithm 1).
For labels the densities are counts; for few reference models and signals on a common scale, one ratio of densities is
learned over all examples together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals, references_for
from safexplain.audit.attacks.likelihood.leave_one_out import ratios_of_vectors
from safexplain.audit.attacks.likelihood.moments import Transform, check_transform, transformed, two_sided
from safexplain.errors import ConfigurationError, InputError

Array = NDArray[np.float64]

SHRINK = 16.0
"""Observations that the variances of examples with a like centre are worth beside those of the example itself."""

STRATA, FEWEST_A_STRATUM = 10, 50
"""Groups of examples with a like centre, at most, and examples in each, at least."""


@dataclass(frozen=True)
class GlobalVariance:
    """One variance for all: the ranking is that of (t - mu_out)^2 - (t - mu_in)^2, as in the released VAR/L1/L2-LRT.

    Args:
        separate: one variance for all examples under each hypothesis instead. Models vary less on what they were
            trained on, so this finds more where one signal is as widely spread on most examples, such as log losses.
    """

    separate: bool = False


@dataclass(frozen=True)
class LikelihoodRatio:
    """Gaussian likelihood ratio per example, its means and variances estimated from the reference models.

    Few references hardly tell how far an example's mean moves when a model is trained on it. So what one example
    shows is shrunk towards what examples with a like centre show (empirical Bayes: Efron & Morris, 1973). These are
    cut into ten strata by the mean of all their references. In each, with gap_i = mu_in - mu_out, pooled variances
    p_in and p_out of the two sides (their ratio says how much less models vary on what they were trained on), and SS_i
    the squared deviations from either mean divided by its side's p,

        u_i = (SS_i + 16) / (dof_i + 16),    v_in = u_i p_in,    v_out = u_i p_out,
        e_i = v_in / k_in + v_out / k_out,    tau = max(0, mean (gap_i - G)^2 - mean e_i),    G = mean gap_i,
        g_i = G + tau / (tau + e_i) (gap_i - G),

    and the means are the likeliest two that lie g_i apart. At 8 references this finds what separate averages find at
    16 or more (docs/statistics.md, "References"). For vectors the log ratios of the features are added up (a diagonal
    Gaussian), with plain means and one variance a feature for both sides, shrunk towards its mean over examples: there
    are many gaps, and shrinking each was measured to find nothing more.

    Args:
        transform: "log" fits the Gaussians to the logarithm (norms and losses are closer to log-normal; zeros are
            raised to half of the smallest positive value); "identity" to the signal itself; "auto" takes the
            logarithm of one-number signals that are never negative.
        variance: `GlobalVariance` for one-number signals: plain means and one variance for all, as published. None: as
            above.
    """

    transform: Transform = "auto"
    variance: GlobalVariance | None = None

    def __post_init__(self) -> None:
        check_transform(self.transform)
        if not isinstance(self.variance, GlobalVariance | None):
            raise ConfigurationError(f"variance is GlobalVariance() or None, got {self.variance!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """Score every example; higher says "member".

        Args:
            target: (n,) or (n, d) signal of the target model.
            shadows: (m, n) or (m, n, d) signals of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log likelihood ratios; 0 where no reference model was trained with, or none without, the example.

        Raises:
            InputError: shapes disagree, values are not finite, no example has references on both sides, the
                logarithm of a negative signal was asked for, or one variance for all features of a vector.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim == 1:
            return self._of_numbers(target, shadows, membership)
        self._check_vector()
        m = len(membership)
        values: Floats = np.concatenate([shadows, target[None]])
        scores: Array = ratios_of_vectors(values, membership, np.arange(m), [m], [np.arange(m)])[0]
        return scores

    def _check_vector(self) -> None:
        if self.transform == "log":
            raise InputError("the logarithm is for one-number signals, not for vectors")
        if self.variance is not None:
            raise InputError("GlobalVariance is for one-number signals, not for vectors")

    def _of_numbers(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """(n,) log ratios of one number an example."""
        usable = two_sided(membership)
        t, x = (np.asarray(a, dtype=np.float64) for a in transformed(self.transform, target, shadows))
        largest = max(float(np.abs(t).max()), float(np.abs(x[:, usable]).max())) or 1.0  # its squares are finite
        t, x = t / largest, np.where(usable, x, 0.0) / largest
        sides = np.stack([membership, ~membership])
        count = np.maximum(sides.sum(1), 1).astype(np.float64)
        mean = np.where(sides, x, 0.0).sum(1) / count
        ss = np.where(sides, np.square(x - mean[:, None]), 0.0).sum(1)
        dof = (count - 1) * usable
        floor = 1e-9 * float(ss.sum() / max(dof.sum(), 1.0)) or 1.0
        if self.variance is None:
            mean, variance = _shrunk(mean, ss, count, dof, usable, floor)
        else:
            total, free = (a.sum(1) if self.variance.separate else a.sum() for a in (ss, dof))
            variance = np.broadcast_to(total / np.maximum(free, 1.0) + floor, (2,))[:, None]
        log_p = _log_normal(t, mean, variance)
        scores: Array = np.where(usable, log_p[0] - log_p[1], 0.0)
        return scores


def _shrunk(mean: Array, ss: Array, count: Array, dof: Array, usable: Bools, floor: float) -> tuple[Array, Array]:
    """(2, n) means and variances with and without each example, shrunk as `LikelihoodRatio` says."""
    level = (mean * count).sum(0) / count.sum(0)
    strata = min(STRATA, max(1, int(usable.sum()) // FEWEST_A_STRATUM))
    cuts = np.quantile(level[usable], np.arange(1, strata) / strata)
    stratum = np.searchsorted(cuts, level, side="right")

    def summed(a: Array) -> Array:
        """Over the usable examples of each stratum."""
        return np.asarray(np.bincount(stratum, np.where(usable, a, 0.0), strata), dtype=np.float64)

    number, free = np.maximum(summed(np.ones_like(level)), 1), np.stack([summed(d) for d in dof])
    deviations = np.stack([summed(s) for s in ss])
    alone = deviations / np.maximum(free, 1.0)
    both = deviations.sum(0) / np.maximum(free.sum(0), 1.0)
    pooled = (np.where((free > 0).all(0), alone, both) + floor)[:, stratum]
    scale = ((ss / pooled).sum(0) + SHRINK) / (dof.sum(0) + SHRINK)
    variance = scale * pooled
    error = variance / count
    gap = mean[0] - mean[1]
    centre = (summed(gap) / number)[stratum]
    spread = np.maximum(summed(np.square(gap - centre)) - summed(error.sum(0)), 0.0) / number
    weight = spread[stratum] / (spread[stratum] + error.sum(0))
    gap = centre + weight * (gap - centre)
    without = (mean[1] * error[0] + (mean[0] - gap) * error[1]) / error.sum(0)
    return np.stack([without + gap, without]), variance


def likelihood_ratios(
    attack: LikelihoodRatio,
    values: Floats,
    membership: Bools,
    references: NDArray[np.int64],
    reads: Sequence[int],
    view: Callable[[Floats], Floats] | None = None,
    tick: Callable[[float], object] | None = None,
) -> Array:
    """Scores of what each of `reads` released, with the references that `references_for` leaves it.

    Args:
        attack: of any transform and variance.
        values: (m, n) or (m, n, d) finite signals of all models, or maps on disk.
        membership: (m, n) bool.
        references: indices of the reference models.
        reads: indices of the models to score.
        view: see `ratios_of_vectors`.
        tick: likewise.

    Returns:
        (len(reads), n) log likelihood ratios, 0 where the models left have no example on one of the sides.

    Raises:
        InputError: as the attack.
    """
    others = [references_for(read, references, membership) for read in reads]
    if values.ndim == 3:
        attack._check_vector()
        return ratios_of_vectors(values, membership[references], references, reads, others, view, tick)
    return np.stack([attack(values[r], values[o], membership[o]) for r, o in zip(reads, others, strict=True)])


@dataclass(frozen=True)
class LabelLikelihoodRatio:
    """Likelihood ratio of a released class label: the counts of each label among models with and without the example.

    Probabilities are smoothed towards the label's share among all reference models on the example, which has the
    weight of `smoothing` models; what survives every hardening of an explanation is seen here, since the label is
    released anyway.

    Args:
        smoothing: positive pseudo-count.
    """

    smoothing: float = 1.0

    def __post_init__(self) -> None:
        check_number("smoothing", self.smoothing, above=0)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) class indices released by the target model.
            shadows: (m, n) class indices of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log likelihood ratios.

        Raises:
            InputError: shapes disagree or labels are not one number per example.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"labels are one number per example, got shape {target.shape}")
        same = shadows == target
        inside, n = membership.sum(0), len(membership)
        prior = self.smoothing * (same.sum(0) + 1) / (n + 2)
        p_in = ((same & membership).sum(0) + prior) / (inside + self.smoothing)
        p_out = ((same & ~membership).sum(0) + prior) / (n - inside + self.smoothing)
        out: NDArray[np.float64] = np.log(p_in / p_out)
        return out


def _log_normal(
    value: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]
) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        distance = np.minimum((value - mean) ** 2 / variance, 1e290)  # finite, and so are sums and differences
    out: NDArray[np.float64] = -0.5 * (np.log(variance) + distance)
    return out


FEWEST_A_BIN = 50
"""Reference values in a bin, at least."""


@dataclass(frozen=True)
class PooledDensityRatio:
    """How often do members' signals lie here, and how often non-members'? Counted over all references and examples.

    The reference values are cut into bins of equal numbers; a bin's log ratio is that of the shares of all members' and
    of all non-members' values in it, each with one added; between the middles of bins it is interpolated. Nothing is
    estimated of one example alone, so that a few references are enough, and the ratio may rise and fall: interpolating
    models put members into a narrow band of margins, with non-members on both sides of it.

    Args:
        bins: at most, see `FEWEST_A_BIN`.
    """

    bins: int = 200

    def __post_init__(self) -> None:
        check_whole("bins", self.bins, 2)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) signal of the target model.
            shadows: (m, n) signals of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log ratios.

        Raises:
            InputError: shapes disagree, values are not finite, or the references have no members or only members.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"PooledDensityRatio needs one number per example, got shape {target.shape}")
        if membership.all() or not membership.any():
            raise InputError("the reference models have no members or only members; both are needed")
        order = np.argsort(shadows, axis=None)
        values, member = shadows.ravel()[order].astype(np.float64), membership.ravel()[order]
        parts = max(2, min(self.bins, len(values) // FEWEST_A_BIN))
        cuts = np.linspace(0, len(values), parts + 1).astype(np.int64)[:-1]
        cuts = np.unique(np.searchsorted(values, values[cuts]))  # equal values share a bin
        inside = np.add.reduceat(member.astype(np.int64), cuts) + 1
        outside = np.diff(np.append(cuts, len(values))) + 2 - inside
        ratio = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
        middle = values[(cuts + np.append(cuts[1:], len(values))) // 2]
        return np.asarray(np.interp(np.asarray(target, dtype=np.float64), middle, ratio))
