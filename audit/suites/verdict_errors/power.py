"""How probable each verdict is under the claim "whole", for a leak of a given size.

One attack leaks, with a binormal receiver operating characteristic through (fpr, tpr), the others guess: at the
threshold t(k) of `safexplain.verdict.thresholds` its true false-positive rate P has the distribution
Beta(k, n0 - k + 1), and the members found there are Bin(n1, tpr(P)) for the leaking attack, Bin(n1, P) for those that
guess. Whether a verdict follows depends on these counts alone, so its probability is one integral over P for the one
and a beta-binomial tail for the others.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from safexplain.verdict.policy import Policy
from safexplain.verdict.thresholds import lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

Floats = NDArray[np.float64]

NODES = np.linspace(-8.0, 8.0, 641)
"""Normal quantiles at which the integral over the threshold's rate is summed (trapezoids, which are exact enough for a
smooth function that vanishes at both ends)."""


@dataclass(frozen=True)
class Ranks:
    """Ranks among the non-members that every attack of a judgement uses, and the risk of each kind of error."""

    upper_bound_rank: int | None
    lower_bound_rank: int
    lower_bound_share: float
    upper_risk: float
    lower_risk: float


def ranks_of(policy: Policy, non_members: int, attacks: int) -> Ranks:
    """Where thresholds lie, from the policy and the sizes alone; attacks share the risk of lower bounds equally."""
    upper, lower = policy.risk, policy.risk / max(attacks, 1)
    for_upper = upper_bound_rank(non_members, policy.fpr, upper / 2)
    return Ranks(for_upper, *lower_bound_rank(non_members, policy.fpr, lower / 2), upper, lower)


@dataclass(frozen=True, eq=False)
class Power:
    """Probability that a leak is proven, and that the release is certified, of the shape of `tpr`."""

    leak: Floats
    certified: Floats


def power(policy: Policy, members: int, non_members: int, attacks: int, tpr: ArrayLike) -> Power:
    """Probability of each verdict, when no control fails and there are reference models; all attacks but one guess.

    The true share of the members that this one finds at the policy's false-positive rate is `tpr`, in (0, 1), of any
    shape; the policy's own fpr means that it guesses, too.
    """
    rates = np.asarray(tpr, dtype=np.float64)
    r = ranks_of(policy, non_members, attacks)
    proves, allowed = critical_counts(policy, members, non_members, attacks)
    unproven = found_above_threshold(policy, members, non_members, r.lower_bound_rank, rates, proves - 1)
    unproven *= _guessing(members, non_members, r.lower_bound_rank, proves - 1) ** (attacks - 1)
    if allowed < 0 or r.upper_bound_rank is None:
        return Power(1 - unproven, np.zeros_like(rates))
    passed = found_above_threshold(policy, members, non_members, r.upper_bound_rank, rates, allowed)
    return Power(1 - unproven, passed * _guessing(members, non_members, r.upper_bound_rank, allowed) ** (attacks - 1))


def critical_counts(policy: Policy, members: int, non_members: int, attacks: int) -> tuple[int, int]:
    """Fewest members above the lower bound's threshold that prove a leak, most above the upper bound's to certify.

    Returns:
        The two counts; members + 1 where no count proves a leak, -1 where none is certified.
    """
    r, counts = ranks_of(policy, non_members, attacks), range(members + 1)

    def proves(count: int) -> bool:
        return lower_bound(count, members, r.lower_risk / 2) * r.lower_bound_share > policy.limit

    def too_many(count: int) -> bool:
        return r.upper_bound_rank is None or upper_bound(count, members, r.upper_risk / 2) > policy.limit

    return bisect_left(counts, True, key=proves), bisect_left(counts, True, key=too_many) - 1


def found_above_threshold(policy: Policy, members: int, non_members: int, rank: int, tpr: Floats, most: int) -> Floats:
    """Probability that at most `most` members stand above the rank-th highest non-member."""
    at = distributions.beta.ppf(distributions.norm.cdf(NODES), rank, non_members - rank + 1)
    shift = distributions.norm.ppf(tpr) - distributions.norm.ppf(policy.fpr)
    with np.errstate(divide="ignore"):
        rate = distributions.norm.cdf(distributions.norm.ppf(at) + shift[..., None])
    weight = distributions.norm.pdf(NODES) * (NODES[1] - NODES[0])
    summed: Floats = np.asarray((distributions.binom.cdf(most, members, rate) * weight).sum(-1))
    return np.clip(summed, 0.0, 1.0)


def _guessing(members: int, non_members: int, rank: int, most: int) -> float:
    return float(distributions.betabinom.cdf(most, members, rank, non_members - rank + 1))
