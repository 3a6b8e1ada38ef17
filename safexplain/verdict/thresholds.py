"""Thresholds above which members are counted, so that bounds include the threshold's own uncertainty.

At the k-th highest of n0 independent non-member scores without ties, the true false-positive rate has the distribution
Beta(k, n0 - k + 1) (David & Nagaraja, Order Statistics, 3rd ed., section 2.1).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.roc import checked


@lru_cache(maxsize=1024)
def upper_bound_rank(non_members: int, fpr: float, risk: float) -> int | None:
    """Lowest rank at which the true false-positive rate is below `fpr` with a probability of at most `risk`.

    None: there are too few non-members for any, and every member counts as found.
    """
    if distributions.binom.sf(non_members - 1, non_members, fpr) > risk:
        return None
    rank = max(1, int(distributions.binom.isf(risk, non_members, fpr)))
    while distributions.binom.sf(rank - 1, non_members, fpr) > risk:
        rank += 1
    while rank > 1 and distributions.binom.sf(rank - 2, non_members, fpr) <= risk:
        rank -= 1
    return rank


@lru_cache(maxsize=1024)
def lower_bound_rank(non_members: int, fpr: float, risk: float) -> tuple[int, float]:
    """Highest rank at which the true false-positive rate is above `fpr` with a probability of at most `risk`.

    With it comes the random share of the examples above it that an attacker accepts to keep to `fpr`: 1, or fpr /
    (upper limit of the rate) if even the highest non-member score may not be strict enough.
    """
    rank = int(distributions.binom.ppf(risk, non_members, fpr))
    while rank < non_members and distributions.binom.cdf(rank, non_members, fpr) <= risk:
        rank += 1
    while rank > 0 and distributions.binom.cdf(rank - 1, non_members, fpr) > risk:
        rank -= 1
    if rank >= 1:
        return rank, 1.0
    return 1, fpr / float(-np.expm1(np.log(risk) / non_members))


def ranked(scores: NDArray[np.float64], member: NDArray[np.bool_], seed: int = 0) -> NDArray[np.bool_]:
    """(n,) bool membership in the order of `by_score`; raises as `checked`."""
    s, m = checked(scores, member)
    return m[by_score(s, seed)]


def by_score(scores: NDArray[np.float64], seed: int = 0) -> NDArray[np.int64]:
    """(n,) indices from the highest score to the lowest, ties in random order."""
    among_ties = np.random.default_rng([seed, 0x71E5]).random(len(scores))
    order: NDArray[np.int64] = np.lexsort((among_ties, -scores))
    return order


def weights_of(member: NDArray[np.bool_], groups: NDArray[np.integer[Any]] | None) -> NDArray[np.float64]:
    """(s,) weight of each example: 1 / (examples of its group on its side), so that each group counts once a side.

    A count is then a sum of independent shares in [0, 1], below the binomial count of the same mean in convex order
    (Hoeffding, Annals of Mathematical Statistics 27, 1956, theorem 3), with tails at most e times as large (Bentkus,
    Annals of Probability 32, 2004, theorem 1.2).
    """
    if groups is None:
        return np.ones(len(member))
    if np.shape(groups) != member.shape:
        raise InputError(f"expected a group for each of {len(member)} examples, got groups of shape {np.shape(groups)}")
    _, which = np.unique(groups, return_inverse=True)
    unit = 2 * which.reshape(-1) + member
    weights: NDArray[np.float64] = 1.0 / np.bincount(unit)[unit]
    return weights


def units_of(weights: NDArray[np.float64]) -> int:
    """Number of independent units of one side."""
    return round(float(weights.sum()))


def found_above(
    order: NDArray[np.bool_], rank: int | None, weights: NDArray[np.float64] | None = None, *, strict: bool = False
) -> float:
    """Weighted members above the threshold of a rank among the non-members; all members for None.

    `order` (s,) is membership from the highest score to the lowest, with (s,) `weights`. The threshold is the first
    non-member at which the cumulative weight from the top reaches `rank` (for upper bounds) or, if `strict`, exceeds
    rank - 1 (for lower bounds): with weights of 1, the rank-th highest.
    """
    if weights is None:
        return int(order.sum()) if rank is None else int(np.flatnonzero(~order)[rank - 1]) - (rank - 1)
    if rank is None:
        return float(weights[order].sum())
    outside = np.cumsum(np.where(order, 0.0, weights))
    slack = ROUNDING * outside[-1]
    at = np.searchsorted(outside, rank - 1 + slack, side="right") if strict else np.searchsorted(outside, rank - slack)
    return float(weights[:at][order[:at]].sum())


ROUNDING = 1e-9  # relative error of sums of weights


def upper_bound(found: float, members: int, risk: float) -> float:
    """One-sided Clopper-Pearson limit: the true rate is above it with a probability of at most `risk`."""
    return clopper_pearson(found, members, 1 - 2 * risk)[1]


def lower_bound(found: float, members: int, risk: float) -> float:
    """One-sided Clopper-Pearson limit: the true rate is below it with a probability of at most `risk`."""
    return clopper_pearson(found, members, 1 - 2 * risk)[0]
