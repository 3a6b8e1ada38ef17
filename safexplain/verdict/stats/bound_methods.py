"""The ways from error rates to a lower bound on epsilon, and how well thresholds do under each.

| method | takes the mechanism to be | a bound with the stated confidence |
|---|---|---|
| pld | the sampled Gaussian of the stated rate, steps and sampling, with unknown noise | yes |
| gdp | exactly mu-GDP | only for a full batch; too high with few steps or a small rate |
| clopper-pearson | anything | yes, but far below the truth |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.stats.roc import check_counts, clopper_pearson
from safexplain.verdict.stats.tradeoff import Family, TradeOff, gaussian_distance, gaussian_epsilon, smallest_refuted

Array = NDArray[np.float64]

BoundMethod = Literal["pld", "gdp", "clopper-pearson"]

COARSE = 0.03
"""Relative distance in epsilon at which thresholds are compared."""


@dataclass(frozen=True)
class ErrorCounts:
    """Errors of an attack at a threshold that was fixed without them."""

    false_positives: int  # runs on D' that were taken for D
    negatives: int
    false_negatives: int  # runs on D that were taken for D'
    positives: int
    confidence: float = 0.95  # of the bound; each rate is limited with half of what is left

    def __post_init__(self) -> None:
        check_counts(self.false_positives, self.negatives)
        check_counts(self.false_negatives, self.positives)

    @property
    def fpr(self) -> float:
        """Upper Clopper-Pearson limit of the false-positive rate."""
        return clopper_pearson(self.false_positives, self.negatives, self.confidence)[1]

    @property
    def fnr(self) -> float:
        """Upper Clopper-Pearson limit of the false-negative rate."""
        return clopper_pearson(self.false_negatives, self.positives, self.confidence)[1]


@dataclass(frozen=True)
class Method:
    """One row of the table."""

    bound: Callable[[ErrorCounts, float, Family], float]  # on epsilon, at least 0, from errors at a delta
    merit: Callable[[Array, Array, float, Family], Array]  # (k,) larger for better limits of both rates
    needs_delta: bool = False  # delta must be above 0


def pld_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    """Largest epsilon of the family that the errors refute."""
    if family.is_gaussian:
        return gdp_bound(errors, delta, family)
    fpr, fnr = errors.fpr, errors.fnr
    if fpr + fnr >= 1:
        return 0.0
    return smallest_refuted(family, delta, lambda curve: bool(curve(fpr) > fnr))[0]


def pld_merit(fpr: Array, fnr: Array, delta: float, family: Family) -> Array:
    """How far rates are below the curve of the smallest noise multiplier that any of them refutes."""
    distance = gaussian_distance(fpr, fnr)
    if family.is_gaussian:
        return distance

    def refutes(curve: TradeOff) -> bool:
        return bool((curve(fpr) > fnr).any())

    _, curve = smallest_refuted(family, delta, refutes, COARSE)
    return distance if curve is None else curve(fpr) - fnr


def gdp_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    """Epsilon of the Gaussian mechanism on which an attack can have just these error rates."""
    return gaussian_epsilon(float(gaussian_distance(errors.fpr, errors.fnr)), delta)


def gdp_merit(fpr: Array, fnr: Array, delta: float, family: Family) -> Array:
    """The mu of these rates."""
    return gaussian_distance(fpr, fnr)


def direct_bound(errors: ErrorCounts, delta: float, family: Family) -> float:
    """From FPR + e^eps FNR >= 1 - delta and its mirror image (Kairouz, Oh and Viswanath, arXiv 1311.0776, Thm 2.1)."""
    merit = direct_merit(np.array([errors.fpr]), np.array([errors.fnr]), delta, family)
    return max(0.0, math.log(max(float(merit[0]), 1.0)))


def direct_merit(fpr: Array, fnr: Array, delta: float, family: Family) -> Array:
    """The larger of both likelihood ratios."""
    return np.maximum((1 - delta - fnr) / fpr, (1 - delta - fpr) / fnr)


METHODS: dict[str, Method] = {
    "pld": Method(pld_bound, pld_merit, needs_delta=True),
    "gdp": Method(gdp_bound, gdp_merit, needs_delta=True),
    "clopper-pearson": Method(direct_bound, direct_merit),
}
