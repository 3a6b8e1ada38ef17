"""What a sample can decide: the best certificate it could give, and how many more examples would decide.

NumPy and SciPy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.verdict.evidence import ranks_of
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import critical_counts
from safexplain.verdict.thresholds import upper_bound

POWER = 0.9
"""Probability with which a verdict is called reachable."""

LARGEST = 1000.0
"""Samples more than this many times as large are not worth naming."""


@dataclass(frozen=True)
class Needed:
    """A sample that would probably decide.

    Args:
        members, non_members: in the certification split.
        verdict: what it would probably be, if the rates found so far are the true ones.
    """

    members: int
    non_members: int
    verdict: Literal["certified", "leak"]


def could_certify(policy: Policy, members: int, non_members: int) -> float:
    """Smallest `max_tpr` that one attack which only guesses stays below with a probability of 90 % in this sample.

    Members found by guessing above a rank have a beta-binomial distribution. The verdict needs every judged attack
    to stay below, so it is harder to get than this.
    """
    rank = ranks_of(_whole(policy), non_members, 1).loose
    if rank is None:
        return 1.0
    found = distributions.betabinom.ppf(POWER, members, rank, non_members - rank + 1)
    return upper_bound(int(found), members, policy.risk / 2)


def needed(policy: Policy, orders: list[NDArray[np.bool_]]) -> Needed | None:
    """The smallest sample, in the present proportions, that would decide if what was found is what is true.

    A verdict counts as reachable where some attack proves a leak, or where all together stay below the limit (their
    probabilities of failing added up), with a probability of 90 %. The share found is taken as Beta-distributed, with
    the variance of the count and that of the threshold's false-positive rate, which moves it along the curve.

    Args:
        policy: the claim "whole" is assumed.
        orders: for each judged attack, who is a member from the highest score to the lowest (`bounds.ranked`).

    Returns:
        None if no sample of up to 1,000 times the present size would: the rate found is too close to the limit.
    """
    policy = _whole(policy)
    curves = [_Curve(order) for order in orders]
    members, non_members = curves[0].members, curves[0].non_members
    for factor in np.geomspace(1.0, LARGEST, 139):
        n1, n0 = round(members * factor), round(non_members * factor)
        r = ranks_of(policy, n0, len(curves))
        proves, allowed = critical_counts(policy, n1, n0, len(curves))
        if any(c.exceeds(proves - 1, r.tight, n1, n0) >= POWER for c in curves):
            return Needed(n1, n0, "leak")
        if r.loose is not None and sum(c.exceeds(allowed, r.loose, n1, n0) for c in curves) <= 1 - POWER:
            return Needed(n1, n0, "certified")
    return None


class _Curve:
    """True-positive rate at any false-positive rate: straight lines between the non-members."""

    def __init__(self, order: NDArray[np.bool_]) -> None:
        self.members, self.non_members = int(order.sum()), int((~order).sum())
        above = np.cumsum(order)[~order]
        self._fpr = np.concatenate([[0.0], np.arange(1, self.non_members + 1) / (self.non_members + 1), [1.0]])
        self._tpr = np.concatenate([[0.0], above / self.members, [1.0]])

    def at(self, fpr: float) -> float:
        return float(np.interp(fpr, self._fpr, self._tpr))

    def exceeds(self, count: int, rank: int, members: int, non_members: int) -> float:
        """Probability of finding more than `count` members above the rank-th highest non-member of another sample."""
        at = rank / (non_members + 1)
        spread = np.sqrt(at * (1 - at) / (non_members + 2))  # of Beta(rank, non_members - rank + 1)
        rate, along = self.at(at), (self.at(at + spread) - self.at(at - spread)) / 2
        if not 0 < rate < 1:
            return float(members * rate > count)
        weight = max(rate * (1 - rate) / (rate * (1 - rate) / members + along**2) - 1, 1e-3)
        return float(distributions.beta.sf((count + 0.5) / members, rate * weight, (1 - rate) * weight))


def _whole(policy: Policy) -> Policy:
    from dataclasses import replace

    return policy if policy.claim == "whole" else replace(policy, claim="whole")
