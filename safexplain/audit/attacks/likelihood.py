"""Likelihood-ratio attacks: is what the target released more like models that saw the example, or those that did not?

    score = log p(signal | trained with the example) - log p(signal | trained without it)

The Gaussian form is LiRA (Carlini et al., arXiv 2112.03570, section IV) applied to a number or a vector computed from
the explanation, as in L1-, L2- and VAR-LRT (Huang et al., "Explaining the Model, Protecting Your Data", Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import ConfigurationError, InputError

Transform = Literal["auto", "log", "identity"]

CHUNK = 1 << 22
"""Numbers of the reference signals held in double precision at a time."""


def _check_shrink(shrink: float) -> None:
    if not 0 <= shrink < np.inf:
        raise ConfigurationError(f"shrink must be >= 0 and finite, got {shrink!r}")


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
        _check_shrink(self.shrink)


@dataclass(frozen=True)
class SeparateVariance:
    """One variance per example and hypothesis, each shrunk towards its own mean over examples (online LiRA)."""

    shrink: float = 8.0

    def __post_init__(self) -> None:
        _check_shrink(self.shrink)


@dataclass(frozen=True)
class GlobalVariance:
    """One variance for all: the ranking is that of (t - mu_out)^2 - (t - mu_in)^2, as in the released VAR/L1/L2-LRT."""


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
        if self.transform not in ("auto", "log", "identity"):
            raise ConfigurationError(f"transform is auto, log or identity, got {self.transform!r}")
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
        inside = membership.sum(0)
        usable = (inside > 0) & (inside < len(membership))
        if not usable.any():
            raise InputError("no example has reference models both with and without it; train more reference models")
        if target.ndim == 1:
            target, shadows = target[:, None], shadows[:, :, None]
            target, shadows = self._transformed(target, shadows)
        elif self.transform == "log":
            raise InputError("the logarithm is for one-number signals, not for vectors")
        moments = _Moments.of(shadows, membership)
        pooled_in, pooled_out, pooled, floor = moments.pooled(usable)
        scores = np.zeros(len(target))
        for part in _parts(len(target), target.shape[1]):
            t = np.asarray(target[part], dtype=np.float64)
            m = moments[part]
            match self.variance:
                case SharedVariance(shrink):
                    v_in = v_out = _shrunk(m.ss_in + m.ss_out, m.dof_in + m.dof_out, shrink, pooled) + floor
                case SeparateVariance(shrink):
                    v_in = _shrunk(m.ss_in, m.dof_in, shrink, pooled_in) + floor
                    v_out = _shrunk(m.ss_out, m.dof_out, shrink, pooled_out) + floor
                case GlobalVariance():
                    v_in = v_out = pooled + floor
            scores[part] = (_log_normal(t, m.mean_in, v_in) - _log_normal(t, m.mean_out, v_out)).sum(1)
        scores[~usable] = 0.0
        return scores

    def _transformed(self, target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
        lowest = min(target.min(), shadows.min())
        if self.transform == "log" and lowest < 0:
            raise InputError(f"the signal has negative values (down to {lowest:g}); use transform='identity'")
        if self.transform == "identity" or lowest < 0:
            return target, shadows
        target, shadows = target.astype(np.float64), shadows.astype(np.float64)
        smallest = min((float(a[a > 0].min()) for a in (target, shadows) if (a > 0).any()), default=1.0)
        floor = max(smallest / 2, 5e-324)
        return np.log(np.maximum(target, floor)), np.log(np.maximum(shadows, floor))


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
        if not 0 < self.smoothing < np.inf:
            raise ConfigurationError(f"smoothing must be > 0, got {self.smoothing!r}")

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


@dataclass(frozen=True)
class _Moments:
    """Means and squared deviations of the reference signals with (in) and without (out) each example: (n, d) arrays."""

    mean_in: NDArray[np.float64]
    mean_out: NDArray[np.float64]
    ss_in: NDArray[np.float64]
    ss_out: NDArray[np.float64]
    dof_in: NDArray[np.float64]
    dof_out: NDArray[np.float64]

    @classmethod
    def of(cls, shadows: Floats, membership: Bools) -> _Moments:
        m, n, d = shadows.shape
        count = membership.sum(0, dtype=np.float64)[:, None]
        means = [np.empty((n, d)), np.empty((n, d))]
        squares = [np.empty((n, d)), np.empty((n, d))]
        for part in _parts(n, d * m):
            values = np.asarray(shadows[:, part], dtype=np.float64)
            for side, chosen in enumerate((membership[:, part], ~membership[:, part])):
                weight = chosen.astype(np.float64)
                number = np.maximum(weight.sum(0), 1)[:, None]
                mean = np.einsum("mn,mnd->nd", weight, values) / number
                means[side][part] = mean
                squares[side][part] = np.einsum("mn,mnd->nd", weight, (values - mean) ** 2)
        return cls(means[0], means[1], squares[0], squares[1], np.maximum(count - 1, 0), np.maximum(m - count - 1, 0))

    def __getitem__(self, part: slice) -> _Moments:
        return _Moments(
            self.mean_in[part],
            self.mean_out[part],
            self.ss_in[part],
            self.ss_out[part],
            self.dof_in[part],
            self.dof_out[part],
        )

    def pooled(self, usable: Bools) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
        """Variances over all usable examples, (1, d): among in-models, among out-models, and both together.

        Last comes a number to add to every variance, small beside the mean of the features, so that a feature which
        never changes decides nothing.
        """
        ss_in, ss_out = self.ss_in[usable].sum(0), self.ss_out[usable].sum(0)
        dof_in, dof_out = self.dof_in[usable].sum(), self.dof_out[usable].sum()
        pairs = ((ss_in, dof_in), (ss_out, dof_out), (ss_in + ss_out, dof_in + dof_out))
        a, b, c = ((ss / max(dof, 1.0))[None] for ss, dof in pairs)
        return a, b, c, 1e-9 * float(c.mean()) or 1.0


def _shrunk(
    ss: NDArray[np.float64], dof: NDArray[np.float64], shrink: float, pooled: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Variances of (n, d) from squared deviations and a prior; the pooled one where nothing else is known."""
    weight = dof + shrink
    return np.where(weight > 0, (ss + shrink * pooled) / np.where(weight > 0, weight, 1.0), pooled)


def _log_normal(
    value: NDArray[np.float64], mean: NDArray[np.float64], variance: NDArray[np.float64]
) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        distance = np.minimum((value - mean) ** 2 / variance, 1e290)  # finite, and so are sums and differences
    out: NDArray[np.float64] = -0.5 * (np.log(variance) + distance)
    return out


def _parts(n: int, width: int) -> Iterator[slice]:
    step = max(1, CHUNK // max(width, 1))
    return (slice(start, start + step) for start in range(0, n, step))
