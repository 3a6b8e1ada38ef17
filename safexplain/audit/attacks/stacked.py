"""Several scores as one: a logistic regression over log ratios, fitted on reference models in the target's place.

Whoever audits knows whom each reference model was trained on. So every reference model can play the target, with the
others as its references, and how much weight each log ratio deserves is learned from these pseudo-targets. The first
score is what is known anyway (the baseline, such as the label's): unless the others add to it on pseudo-targets that
the weights were not fitted on, the result is the first score itself, so that nothing is lost by asking more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, check_whole
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import InputError
from safexplain.verdict.stats import roc

Array = NDArray[np.float64]

SURE = 2.0
"""Standard errors by which the held-out gain must exceed zero."""

STEPS = 50
"""Newton steps, at most."""


@dataclass(frozen=True)
class Stacked:
    """Logistic regression over log ratios that returns the first of them unless the others add to it.

    Every column is centred at its median, divided by its spread and compressed beyond three spreads (arsinh), so that
    one overconfident ratio of thousands of features does not swamp the others. Whether the others add is decided by
    cross-validation over pseudo-targets: the held-out log likelihood must exceed that of the first column alone by
    `SURE` standard errors, and the true-positive rate by one.

    Args:
        fpr: false-positive rate at which the two are compared.
        penalty: of the squared weights, as a share of the number of observations.
        folds: of the cross-validation, at most; one pseudo-target a fold where there are fewer.

    Raises:
        ConfigurationError: a value out of range.
    """

    fpr: float = 0.01
    penalty: float = 1e-4
    folds: int = 4

    def __post_init__(self) -> None:
        check_number("fpr", self.fpr, above=0, below=1)
        check_number("penalty", self.penalty, minimum=0)
        check_whole("folds", self.folds, 2)

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> Array:
        """Score every example; higher says "member".

        Args:
            target: (n, k) log ratios of the target model, the first column the baseline.
            shadows: (p, n, k) the same of p >= 2 reference models, each scored as if it were the target.
            membership: (p, n) bool.

        Returns:
            (n,) log odds, or the first column as it is.

        Raises:
            InputError: shapes disagree, values are not finite, or fewer than 2 pseudo-targets.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        return self.fit(shadows, membership).scores(target)

    def fit(self, shadows: Floats, membership: Bools, *, always: bool = False) -> FittedStack:
        """Weights from the (p, n, k) log ratios of pseudo-targets and their (p, n) membership.

        Args:
            shadows: log ratios.
            membership: of the pseudo-targets.
            always: use all columns, whether they are seen to add to the first or not.

        Raises:
            InputError: as the call.
        """
        if shadows.ndim != 3 or shadows.shape[:2] != membership.shape or len(shadows) < 2 or shadows.shape[2] < 1:
            raise InputError(f"expected log ratios (p, n, k) of p >= 2 pseudo-targets, got {shadows.shape}")
        scale = _Scale.of(shadows)
        x, y = scale(shadows), membership
        if x.shape[2] < 2 or y.all() or not y.any() or not (always or self._adds(x, y)):
            return FittedStack(scale, None)
        return FittedStack(scale, self._weights(x, y))

    def _adds(self, x: Array, y: Bools) -> bool:
        """Whether held-out pseudo-targets are told better by all columns than by the first."""
        fold = np.arange(len(x)) % min(self.folds, len(x))
        gain, found = np.zeros(y.shape), np.zeros((len(x), 2))
        for f in range(fold.max() + 1):
            fit, test = fold != f, fold == f
            if y[fit].all() or not y[fit].any():
                return False
            odds = [_odds(x[test][..., :k], self._weights(x[fit][..., :k], y[fit])) for k in (x.shape[2], 1)]
            sign = np.where(y[test], 1.0, -1.0)
            gain[test] = np.logaddexp(0, -sign * odds[1]) - np.logaddexp(0, -sign * odds[0])
            odds[1] = x[test][..., 0]
            for at, pair in zip(np.flatnonzero(test), zip(*odds, strict=True), strict=True):
                if y[at].any() and not y[at].all():
                    found[at] = [_tpr(o, y[at], self.fpr) for o in pair]
        each = gain.mean(1)
        error = max(float(each.std(ddof=1)) / np.sqrt(len(each)), float(gain.std()) / np.sqrt(gain.size))
        more = found[:, 0] - found[:, 1]
        return bool(each.mean() > SURE * error and more.mean() > more.std(ddof=1) / np.sqrt(len(more)))

    def _weights(self, x: Array, y: Bools) -> Array:
        """(k + 1,) weights and intercept of the penalised logistic regression, by Newton's method."""
        flat, label = x.reshape(-1, x.shape[2]), y.ravel().astype(np.float64)
        design = np.concatenate([flat, np.ones((len(flat), 1))], axis=1)
        ridge = self.penalty * len(flat) * np.append(np.ones(flat.shape[1]), 0.0)
        w = np.zeros(design.shape[1])

        def cost(w: Array) -> float:
            odds = design @ w
            return float((np.logaddexp(0, odds) - label * odds).sum() + 0.5 * (ridge * w * w).sum())

        now = cost(w)
        for _ in range(STEPS):
            p = 1 / (1 + np.exp(-np.clip(design @ w, -500, 500)))
            slope = design.T @ (p - label) + ridge * w
            curve = (design * (p * (1 - p))[:, None]).T @ design + np.diag(ridge + 1e-9 * len(flat))
            step, share = np.linalg.solve(curve, slope), 1.0
            while share > 1e-6 and (then := cost(w - share * step)) > now:
                share /= 2
            if share <= 1e-6:
                break
            w, gained, now = w - share * step, now - then, then
            if gained < 1e-9 * len(flat):
                break
        return w


@dataclass(frozen=True, eq=False)
class _Scale:
    """Centre and spread of every column."""

    centre: Array
    spread: Array

    @classmethod
    def of(cls, x: Floats) -> _Scale:
        """Of (..., k) log ratios: the median and the middle 90 %, or the deviation of what hardly ever differs."""
        flat = x.reshape(-1, x.shape[-1])
        low, centre, high = np.quantile(flat, (0.05, 0.5, 0.95), axis=0)
        spread = (high - low) / 3.29
        spread = np.where(spread > 0, spread, flat.std(axis=0))
        return cls(centre, np.where(spread > 0, spread, np.inf))

    def __call__(self, x: Floats) -> Array:
        out: Array = 3 * np.arcsinh((x - self.centre) / self.spread / 3)
        return out


@dataclass(frozen=True, eq=False)
class FittedStack:
    """What pseudo-targets said about several log ratios.

    Args:
        scale: of the columns.
        weights: (k + 1,), the intercept last; None: nothing adds to the first column.
    """

    scale: _Scale
    weights: Array | None

    @property
    def adds(self) -> bool:
        """Whether more than the first column is used."""
        return self.weights is not None

    def scores(self, target: Floats) -> Array:
        """(n,) log odds of (n, k) log ratios, or their first column."""
        if self.weights is None:
            return np.array(target[:, 0], dtype=np.float64)
        return _odds(self.scale(target), self.weights)


def _odds(x: Array, weights: Array) -> Array:
    out: Array = x @ weights[:-1] + weights[-1]
    return out


def _tpr(scores: Array, member: Bools, fpr: float) -> float:
    """Share of the members found, ties broken at random."""
    curve = roc(scores, member)
    return float(np.interp(fpr, curve.fpr, curve.tpr))
