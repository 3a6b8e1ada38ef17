"""How probable each verdict is for a leak of a given size. NumPy and SciPy only.

One attack leaks, with a binormal receiver operating characteristic through (fpr, tpr), the others guess: at the
threshold t(k) of `bounds` its true false-positive rate P has the distribution Beta(k, n0 - k + 1), and the members
found there are Bin(n1, tpr(P)) for the leaking attack, Bin(n1, P) for those that guess. Whether a verdict follows
depends on these counts alone, so its probability is one integral over P for the one and a beta-binomial tail for the
others.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions

from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.evidence import ranks_of
from safexplain.verdict.policy import Policy
from safexplain.verdict.thresholds import lower_bound, upper_bound

Floats = NDArray[np.float64]

NODES = np.linspace(-8.0, 8.0, 641)
"""Normal quantiles at which the integral over the threshold's rate is summed (trapezoids, which are exact enough for a
smooth function that vanishes at both ends)."""


@dataclass(frozen=True, eq=False)
class Power:
    """Probabilities of the verdicts; what is missing to 1 is inconclusive.

    Args:
        leak: that a leak is proven, of the shape of `tpr`.
        certified: that the release is certified, of the shape of `tpr`.
    """

    leak: Floats
    certified: Floats


def power(policy: Policy, members: int, non_members: int, attacks: int, tpr: ArrayLike) -> Power:
    """Probability of each verdict, when no control fires and there are reference models.

    Args:
        policy: with the claim "whole".
        members: scored, each once.
        non_members: scored, each once.
        attacks: judged; all but one of them guess, independently of each other.
        tpr: true share of the members that the remaining one finds at the policy's false-positive rate, in (0, 1), of
            any shape. The policy's own fpr means that it guesses, too.

    Raises:
        ConfigurationError: the policy's claim is "excess".
        InputError: a size below 1, or a tpr outside of (0, 1).
    """
    if policy.claim != "whole":
        raise ConfigurationError('power: expected a policy with the claim "whole", got "excess"; replace the claim')
    if min(members, non_members, attacks) < 1:
        raise InputError(f"power needs members, non-members and attacks, got {members}, {non_members}, {attacks}")
    rates = np.asarray(tpr, dtype=np.float64)
    if not ((rates > 0) & (rates < 1)).all():
        raise InputError(f"power: a true-positive rate lies in (0, 1), got {tpr!r:.80}")
    r = ranks_of(policy, non_members, attacks)
    proves, allowed = critical_counts(policy, members, non_members, attacks)
    quiet = found_above_threshold(policy, members, non_members, r.tight, rates, proves - 1)
    quiet *= _guessing(members, non_members, r.tight, proves - 1) ** (attacks - 1)
    if allowed < 0 or r.loose is None:
        return Power(1 - quiet, np.zeros_like(rates))
    passed = found_above_threshold(policy, members, non_members, r.loose, rates, allowed)
    return Power(1 - quiet, passed * _guessing(members, non_members, r.loose, allowed) ** (attacks - 1))


def critical_counts(policy: Policy, members: int, non_members: int, attacks: int) -> tuple[int, int]:
    """Fewest members above the tight threshold that prove a leak, and most above the loose one that are certified.

    Returns:
        The two counts; members + 1 where no count proves a leak, -1 where none is certified.
    """
    r, counts = ranks_of(policy, non_members, attacks), range(members + 1)

    def proves(count: int) -> bool:
        return lower_bound(count, members, r.lower_risk / 2) * r.tight_share > policy.limit

    def too_many(count: int) -> bool:
        return r.loose is None or upper_bound(count, members, r.upper_risk / 2) > policy.limit

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
