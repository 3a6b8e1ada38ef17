"""One of several scores of every run, chosen together with its threshold on runs that then do not count.

Where it is not known beforehand what an attack has to look at, it can look at several things. The best of them on all
runs would be no attack that was fixed before it was counted; the best on some runs is, for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.verdict.stats.bound_methods import BoundMethod
from safexplain.verdict.stats.lower_bounds import CHOOSING, STRICTER, checked_method
from safexplain.verdict.stats.roc import upper_limits
from safexplain.verdict.stats.tradeoff import Family

__all__ = ["ScoreChoice", "choose_score"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ScoreChoice:
    """What was chosen, and the runs that did not choose it.

    Args:
        score: number of the score.
        negative: whether it says D where it is low.
        threshold: at and above which a run is taken for D.
        d: (n,) scores of the runs on D that count, higher on D.
        d_prime: (m,) scores of the runs on D' that count.
    """

    score: int
    negative: bool
    threshold: float
    d: Array
    d_prime: Array


def choose_score(
    d: Array,
    d_prime: Array,
    delta: float,
    method: BoundMethod = "pld",
    *,
    confidence: float = 0.95,
    seed: int = 0,
    **family: Any,
) -> ScoreChoice:
    """The score, its sign and its threshold with the highest bound on a random 30 % of the runs on each.

    Of those that tell these runs apart without an error, it is the one with the widest gap between D and D', in
    shares of its range. Thresholds lie in the middle between two scores.

    Args:
        d: (n, s) scores of runs on D; may be infinite, not NaN.
        d_prime: (m, s) scores of runs on D'.
        delta: of the bound.
        method: of the bound.
        confidence: of the bound.
        seed: of the random part.
        family: of `Family`.

    Raises:
        InputError: shapes that do not fit, too few runs, or as `bound_epsilon`.
    """
    if d.ndim != 2 or d_prime.ndim != 2 or d.shape[1] != d_prime.shape[1] or min(len(d), len(d_prime)) < 2:
        raise InputError(f"expected scores (runs, s) of 2 runs or more on each, got {d.shape} and {d_prime.shape}")
    chosen, claimed = checked_method(method, delta, confidence), Family(**family)
    rng = np.random.default_rng(seed)
    d, d_prime = rng.permutation(d), rng.permutation(d_prime)
    n, m = (max(1, round(CHOOSING * len(part))) for part in (d, d_prime))
    strict = 1 - STRICTER * (1 - confidence)
    limits = upper_limits(n, strict), upper_limits(m, strict)
    best, found = (-np.inf, -np.inf), (0, False, 0.0)
    for score in range(d.shape[1]):
        for negative in (False, True):
            sign = -1.0 if negative else 1.0
            high, low = np.sort(sign * d[:n, score]), np.sort(sign * d_prime[:m, score])
            at = np.unique(np.concatenate([high, low]))
            false_negatives, false_positives = np.searchsorted(high, at), m - np.searchsorted(low, at)
            merit = chosen.merit(limits[1][false_positives], limits[0][false_negatives], delta, claimed)
            equal = np.flatnonzero(merit == merit.max())
            here = int(equal[equal.size // 2])
            merits = float(merit[here]), _gap(high, low)
            if merits > best:
                best, found = merits, (score, negative, _between(at, here))
    score, negative, threshold = found
    sign = -1.0 if negative else 1.0
    return ScoreChoice(score, negative, threshold, sign * d[n:, score], sign * d_prime[m:, score])


def _gap(high: Array, low: Array) -> float:
    """Between the lowest score on D and the highest on D', over the range of both; not above 0 where they overlap."""
    if high[0] <= low[-1]:
        return 0.0
    if np.isinf(high[0]) or np.isinf(low[-1]):
        return 1.0
    return float((high[0] - low[-1]) / (max(high[-1], low[-1]) - min(high[0], low[0])))


def _between(at: Array, here: int) -> float:
    """In the middle between the score and the next lower one; beside minus infinity, beyond all others."""
    below, above = (at[here - 1], at[here]) if here else (at[0], at[0])
    if np.isfinite(below) and np.isfinite(above):
        return float((below + above) / 2)
    finite = at[np.isfinite(at)]
    if not here or not finite.size:
        return float(above) if not here else 0.0
    margin = 1.0 + float(finite[-1] - finite[0])
    return float(above - margin if np.isinf(below) else below + margin)
