"""Above which scores members are counted, so that bounds hold with the threshold's own uncertainty.

NumPy and SciPy only. Let t(k) be the k-th highest of n0 independent non-member scores without ties. The true
false-positive rate at t(k) has the distribution Beta(k, n0 - k + 1) whatever the scores are (the probability integral
transform and order statistics: David & Nagaraja, Order Statistics, 3rd ed., section 2.1), hence

    P(true rate at t(k) <  fpr) = P(Bin(n0, fpr) >= k)      small for a high rank k: the threshold of an upper bound,
    P(true rate at t(k) >= fpr) = P(Bin(n0, fpr) <  k)      small for a low one: the threshold of a lower bound.

An upper bound of the true-positive rate counts the members above the first, which is loose enough, a lower bound those
above the second, which is strict enough; each count gets a one-sided Clopper-Pearson limit, and the two risks add up.
Ties are broken at random, which an attacker may do too: it makes the receiver operating characteristic of a score with
ties the straight line between its points.

**Groups.** Examples of one person, or near-copies, are not independent; groups are. Each group is one unit a side: an
example weighs 1 / (examples of its group on its side), the count above a threshold is the sum of the shares of each
group that stand above it, and n0 and n1 are numbers of groups. What is bounded is the mean over groups of the share of
a group that is found. Where each group is one example, nothing changes. Otherwise the count S at a fixed threshold is
a sum of independent shares in [0, 1] instead of zeros and ones. It is below the binomial count B of the same mean in
convex order (Hoeffding, Annals of Mathematical Statistics 27, 1956, theorem 3): E f(S) <= E f(B) for each convex f. So
it has no larger variance, and its tails are at most e times those of B, log-concave between whole numbers (Bentkus,
Annals of Probability 32, 2004, theorem 1.2). That factor is not reached: the two ends that matter are shares that are
all 0 or 1, as of copies with equal scores, where S is binomial and all limits are exact, and shares that are alike,
where S hardly varies. Ranks are chosen on the safe side of a step: with N the weighted non-members above the true
threshold t, the threshold of an upper bound is above t only if N >= rank, that of a lower bound below t only if N <=
rank - 1 (`found_above`). Members and non-members of one group may depend on each other: the risks of threshold and
count add up whatever they do. Error rates at sizes of 1 to 50 are measured: docs/statistics.md.
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

    None where there is no such rank, because there are too few non-members: every score then counts as found.
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

    Returns:
        The rank, and the share of it that an attacker with a budget of `fpr` may use: 1, or, where even the highest
        non-member score is not surely strict enough, fpr / (upper limit of the rate there). Accepting only that share
        of the examples above the threshold, at random, keeps to the budget.
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
    """(n,) bool: who is a member, from the highest score to the lowest, ties in random order.

    Raises:
        InputError: shapes differ, NaN scores, or one of the two groups is empty.
    """
    s, m = checked(scores, member)
    return m[by_score(s, seed)]


def by_score(scores: NDArray[np.float64], seed: int = 0) -> NDArray[np.int64]:
    """(n,) indices from the highest score to the lowest, ties in random order."""
    among_ties = np.random.default_rng([seed, 0x71E5]).random(len(scores))
    order: NDArray[np.int64] = np.lexsort((among_ties, -scores))
    return order


def weights_of(member: NDArray[np.bool_], groups: NDArray[np.integer[Any]] | None) -> NDArray[np.float64]:
    """(s,) weight of each example: 1 / (examples of its group on its side), so that each group counts once a side.

    Raises:
        InputError: shapes differ.
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
    """How many independent units (groups) the examples of one side are: the sum of their weights."""
    return round(float(weights.sum()))


def found_above(
    order: NDArray[np.bool_], rank: int | None, weights: NDArray[np.float64] | None = None, *, strict: bool = False
) -> float:
    """Weighted members above the threshold of a rank among the non-members; all of them for None.

    `order` (s,) says who is a member, from the highest score to the lowest, and `weights` (s,) how much each weighs.
    Without weights this is the number of members above the rank-th highest non-member. With weights the threshold is
    the first non-member with which the weights from the highest on add up to `rank`: the one for an upper bound; or,
    `strict`, with which they are above rank - 1: the one for a lower bound. Where all weights are 1 they are the same.
    """
    if weights is None:
        return int(order.sum()) if rank is None else int(np.flatnonzero(~order)[rank - 1]) - (rank - 1)
    if rank is None:
        return float(weights[order].sum())
    outside = np.cumsum(np.where(order, 0.0, weights))
    slack = ROUNDING * outside[-1]
    at = np.searchsorted(outside, rank - 1 + slack, side="right") if strict else np.searchsorted(outside, rank - slack)
    return float(weights[:at][order[:at]].sum())


ROUNDING = 1e-9
"""Relative error of sums of weights."""


def upper_bound(found: float, members: int, risk: float) -> float:
    """One-sided Clopper-Pearson limit: the true rate is above it with a probability of at most `risk`.

    Members found are counted in units, so that it need not be a whole number (see the module).
    """
    return clopper_pearson(found, members, 1 - 2 * risk)[1]


def lower_bound(found: float, members: int, risk: float) -> float:
    """The same, with the true rate below it."""
    return clopper_pearson(found, members, 1 - 2 * risk)[0]
