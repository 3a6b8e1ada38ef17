"""Several scores as one: a logistic regression over log ratios, fitted on reference models in the target's place.

The first score is the baseline, such as the label's: unless the others add to it on held-out pseudo-targets, the result
is the first score itself, so that reading more never finds less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from safexplain._validate import check_number
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import InputError
from safexplain.verdict.stats import roc

Array = NDArray[np.float64]

SURE = 2.0  # standard errors by which the held-out gain must exceed zero
PENALTY = 1e-4  # penalty of the squared weights, as a share of the number of observations
FOLDS = 4  # folds of the cross-validation, at most; each has at least one pseudo-target


@dataclass(frozen=True)
class Stacked:
    """Logistic regression over log ratios that returns the first of them unless the others add to it.

    Every column is centred at its median, divided by its spread and compressed beyond three spreads (arsinh), so that
    one overconfident ratio of thousands of features does not swamp the others. Whether the others add is decided by
    cross-validation over pseudo-targets: the held-out Brier score must be better than that of the first column alone
    by `SURE` standard errors, and the true-positive rate by one.

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
        """Weights from pseudo-targets' (p, n, k) log ratios and (p, n) membership; `always` uses all columns.

        Raises:
            InputError: shapes disagree, or fewer than 2 pseudo-targets.
        """
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
        """Whether all columns predict held-out pseudo-targets better than the first alone."""
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
    """True-positive rate, with ties broken at random."""
    curve = roc(scores, member)
    return float(np.interp(fpr, curve.fpr, curve.tpr))
