"""Likelihood-ratio attacks: is what the target released more like models that saw the example, or those that did not?

    score = log p(signal | trained with the example) - log p(signal | trained without it)

The Gaussian form is LiRA (Carlini et al., arXiv 2112.03570, section IV) applied to a number or a vector computed from
the explanation, as in L1-, L2- and VAR-LRT (Huang et al., "Explaining the Model, Protecting Your Data", Algorithm 1).
For labels the densities are counts; for few reference models and signals on a common scale, one ratio of densities is
learned over all examples together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood.moments import (
    Moments,
    Transform,
    check_transform,
    parts,
    shrunk,
    transformed,
    two_sided,
)
from safexplain.errors import ConfigurationError, InputError


@dataclass(frozen=True)
class SharedVariance:
    """One variance per example (and feature) for both hypotheses, shrunk towards the mean over examples.

    v_i = (SS_i + shrink * v) / (dof_i + shrink), with SS_i the squared deviations from the in- and the out-mean, v the
    pooled variance: the posterior mean form of an inverse-gamma prior worth `shrink` observations. With about 16
    reference models on each side, unshrunk per-example variances cost most of the power at low false-positive
    rates; the result changes little between 2 and 16.
    """

    shrink: float = 8.0

    def __post_init__(self) -> None:
        check_number("shrink", self.shrink, minimum=0)


@dataclass(frozen=True)
class SeparateVariance:
    """One variance per example and hypothesis, each shrunk towards its own mean over examples (online LiRA)."""

    shrink: float = 8.0

    def __post_init__(self) -> None:
        check_number("shrink", self.shrink, minimum=0)


@dataclass(frozen=True)
class GlobalVariance:
    """One variance for all: the ranking is that of (t - mu_out)^2 - (t - mu_in)^2, as in the released VAR/L1/L2-LRT.

    Args:
        separate: one variance for all examples under each hypothesis instead. Models vary less on what they were
            trained on, so this finds more where one signal is as widely spread on most examples, such as log losses.
    """

    separate: bool = False


Variance = SharedVariance | SeparateVariance | GlobalVariance


@dataclass(frozen=True)
class LikelihoodRatio:
    """Gaussian likelihood ratio per example, its means and variances estimated from the reference models.

    For vectors the log ratios of the features are added up (a diagonal Gaussian).

    Args:
        transform: "log" fits the Gaussians to the logarithm (norms and losses are closer to log-normal; zeros are
            raised to half of the smallest positive value); "identity" to the signal itself; "auto" takes the
            logarithm of one-number signals that are never negative.
        variance: see the three classes.
    """

    transform: Transform = "auto"
    variance: Variance = SharedVariance()

    def __post_init__(self) -> None:
        check_transform(self.transform)
        if not isinstance(self.variance, SharedVariance | SeparateVariance | GlobalVariance):
            raise ConfigurationError(f"variance is Shared-, Separate- or GlobalVariance(), got {self.variance!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) or (n, d) signal of the target model.
            shadows: (m, n) or (m, n, d) signals of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log likelihood ratios; 0 where no reference model was trained with, or none without, the example.

        Raises:
            InputError: shapes disagree, values are not finite, no example has references on both sides, or the
                logarithm of a negative signal was asked for.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        usable = two_sided(membership)
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
            target, shadows = transformed(self.transform, target, shadows)
        elif self.transform == "log":
            raise InputError("the logarithm is for one-number signals, not for vectors")
        moments = Moments.of(shadows, membership)
        pooled_in, pooled_out, pooled, floor = moments.pooled(usable)
        scores = np.zeros(len(target))
        for part in parts(len(target), target.shape[1]):
            t = np.asarray(target[part], dtype=np.float64)
            m = moments[part]
            match self.variance:
                case SharedVariance(shrink):
                    v_in = v_out = shrunk(m.ss_in + m.ss_out, m.dof_in + m.dof_out, shrink, pooled) + floor
                case SeparateVariance(shrink):
                    v_in = shrunk(m.ss_in, m.dof_in, shrink, pooled_in) + floor
                    v_out = shrunk(m.ss_out, m.dof_out, shrink, pooled_out) + floor
                case GlobalVariance(separate):
                    v_in, v_out = (pooled_in + floor, pooled_out + floor) if separate else (pooled + floor,) * 2
            scores[part] = (_log_normal(t, m.mean_in, v_in) - _log_normal(t, m.mean_out, v_out)).sum(1)
        scores[~usable] = 0.0
        return scores


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
