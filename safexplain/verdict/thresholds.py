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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson


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


@dataclass(frozen=True)
class Ranks:
    """Ranks among the non-members that every attack of a judgement uses, and the risk of each kind of error."""

    upper_bound_rank: int | None
    lower_bound_rank: int
    lower_bound_share: float
    upper_risk: float
    lower_risk: float


def ranks_of(policy: Policy, non_members: int, attacks: int) -> Ranks:
    """Where thresholds lie, from the policy and the sizes alone: nobody can choose them after a look at the scores."""
    upper, lower = policy.risk, policy.risk / max(attacks, 1)
    parts = 4 if policy.claim == "excess" else 2
    for_upper = upper_bound_rank(non_members, policy.fpr, upper / parts)
    return Ranks(for_upper, *lower_bound_rank(non_members, policy.fpr, lower / parts), upper, lower)


def ranked(scores: NDArray[np.float64], member: NDArray[np.bool_], seed: int = 0) -> NDArray[np.bool_]:
    """(n,) bool: who is a member, from the highest score to the lowest, ties in random order.

    Raises:
        InputError: shapes differ, NaN scores, or one of the two groups is empty.
    """
    s, m = np.asarray(scores, dtype=np.float64), np.asarray(member)
    if s.ndim != 1 or s.shape != m.shape or m.dtype != np.bool_:
        raise InputError(f"expected scores (n,) and bool membership (n,), got {s.shape} and {m.dtype} {m.shape}")
    if np.isnan(s).any():
        raise InputError(f"{int(np.isnan(s).sum())} of {s.size} scores are NaN; an attack must score every example")
    if m.all() or not m.any():
        raise InputError(f"need members and non-members, got {int(m.sum())} and {int((~m).sum())}")
    return m[by_score(s, seed)]


def by_score(scores: NDArray[np.float64], seed: int = 0) -> NDArray[np.int64]:
    """(n,) indices from the highest score to the lowest, ties in random order."""
    among_ties = np.random.default_rng([seed, 0x71E5]).random(len(scores))
    order: NDArray[np.int64] = np.lexsort((among_ties, -scores))
    return order


def found_above(order: NDArray[np.bool_], rank: int | None) -> int:
    """Members above the rank-th highest non-member; all of them for None."""
    if rank is None:
        return int(order.sum())
    return int(np.flatnonzero(~order)[rank - 1]) - (rank - 1)


def upper_bound(found: int, members: int, risk: float) -> float:
    """One-sided Clopper-Pearson limit: the true rate is above it with a probability of at most `risk`."""
    return clopper_pearson(found, members, 1 - 2 * risk)[1]


def lower_bound(found: int, members: int, risk: float) -> float:
    """One-sided Clopper-Pearson limit: the true rate is below it with a probability of at most `risk`."""
    return clopper_pearson(found, members, 1 - 2 * risk)[0]
