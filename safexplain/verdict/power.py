"""What a sample can decide, before an audit and after an inconclusive one. NumPy and SciPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats.paired import PairedCounts, count_pairs, difference_bounds, rank_at, window_ranks
from safexplain.verdict.thresholds import by_score, upper_bound, upper_bound_rank

POWER = 0.9  # probability of reaching a verdict that counts as enough
LARGEST = 1000.0  # multiple of the present sample
MOST_A_SIDE = 20_000  # largest default number of members, and of non-members, that are scored
TYPICAL_BASE = 2.0  # assumed true-positive rate of labels alone over the false-positive rate

ROUGH = 1.25
"""Bounds of attacks that find just what labels find are at most this many times those on a smooth curve, in 90 %."""


def best_certifiable(policy: Policy, members: int, non_members: int, attacks: int = 1) -> float:
    """Smallest limit of the policy's claim, in (0, 1], that would be certified in 90 % of audits if nothing leaks.

    Under the claim "whole", a `max_tpr`, all attacks guess: members found above a rank have a beta-binomial
    distribution. Under "excess", a `max_excess`, they find just what the labels find, on a binormal curve with twice as
    many members as guessing finds.

    Args:
        policy: its claim, false-positive rate and confidence are used.
        members: units that will be scored.
        non_members: likewise.
        attacks: number of judged attacks, all of which must pass; their failure probabilities add up.

    Raises:
        InputError: a size below 1.
    """
    if min(members, non_members, attacks) < 1:
        raise InputError(
            f"best_certifiable: expected at least 1 of members, non-members and attacks, got {members},"
            f" {non_members}, {attacks}"
        )
    if policy.claim == "whole":
        rank = upper_bound_rank(non_members, policy.fpr, policy.risk / 2)
        if rank is None:
            return 1.0
        likely = 1 - (1 - POWER) / attacks
        most = distributions.betabinom.ppf(likely, members, rank, non_members - rank + 1)
        return upper_bound(int(most), members, policy.risk / 2)
    fpr, base = policy.fpr, min(TYPICAL_BASE * policy.fpr, 0.5)
    at = np.array(window_ranks(non_members, fpr)) * (fpr / rank_at(non_members, fpr))
    shift = distributions.norm.isf(fpr) - distributions.norm.isf(base)
    curve = distributions.norm.sf(distributions.norm.isf(np.clip(at, 0.0, 1.0)) - shift)
    window = tuple((members * curve).tolist())  # members above each rank that is kept, on a binormal curve
    counts = PairedCounts(0.0, 0.0, 0.0, 0.0, window, window)
    up = difference_bounds(counts, members, non_members, fpr, policy.risk, policy.risk)[1]
    return min(ROUGH * up, 1.0)


def examples_needed(policy: Policy) -> int:
    """Default number of scored examples, half of them members: 1,200 under the default policy.

    The fewest (in hundreds a side, at least 500) that would certify a limit half as far above guessing as the policy's.
    """
    none = policy.fpr if policy.claim == "whole" else 0.0
    for side in range(500, MOST_A_SIDE, 100):
        if best_certifiable(policy, side, side) - none <= (policy.limit - none) / 2:
            return 2 * side
    return 2 * MOST_A_SIDE


@cache
def leak_power(policy: Policy, members: int, non_members: int, *, heavy_tails: bool = False) -> float:
    """Share of 100 simulated audits (20 for more than 5,000 units a side) that prove a leak of 3 `max_excess`.

    Scores, shifted for members, are normal or t-distributed (3 degrees of freedom), and independent of the labels'.
    """
    rng, fpr = np.random.default_rng(0), policy.fpr
    member = np.arange(members + non_members) < members
    kind = distributions.t(3) if heavy_tails else distributions.norm
    base, proven = TYPICAL_BASE * fpr, 0
    by_labels = distributions.norm.isf(fpr) - distributions.norm.isf(base)
    by_attack = kind.isf(fpr) - kind.isf(min(base + 3 * policy.limit, 0.99))
    audits = 100 if max(members, non_members) <= 5000 else 20
    for audit in range(audits):
        labels = rng.normal(size=len(member)) + member * by_labels
        scores = kind.rvs(size=len(member), random_state=rng) + member * by_attack
        counts = count_pairs(by_score(scores, audit), by_score(labels, audit), member, fpr)
        proven += difference_bounds(counts, members, non_members, fpr, policy.risk / 2, policy.risk)[0] > policy.limit
    return proven / audits


class AttackBounds(NamedTuple):
    """An attack's estimate, its bounds, and the risk of the lower one."""

    estimate: float
    low: float
    high: float
    risk: float


@dataclass(frozen=True)
class SampleSize:
    """A sample that would probably decide, and the verdict."""

    members: int
    non_members: int
    verdict: Literal["certified", "leak"]


def sample_needed(
    found: Sequence[AttackBounds], limit: float, risk: float, members: int, non_members: int
) -> SampleSize | None:
    """The smallest sample, in the present proportions, that would probably decide if the estimates are true.

    Widths of intervals fall with the square root of the size. A leak needs one attack that proves it with a probability
    of 90 %, a certificate each attack below the limit. `risk` is that of each upper bound. None: no sample of up to
    1,000 times the present size would decide.
    """
    leaks, passes = [], []
    for one in found:
        estimate = max(one.estimate, 0.0)
        over = estimate - limit
        if over > 0:
            leaks.append(_times((one.estimate - one.low) / over, one.risk))
        passes.append(_times((one.high - one.estimate) / -over, risk) if over < 0 else LARGEST + 1)
    leak, passed = min(leaks, default=LARGEST + 1), max(passes)
    times = max(min(leak, passed), 1.0)
    if times > LARGEST:
        return None
    verdict: Literal["certified", "leak"] = "leak" if leak < passed else "certified"
    return SampleSize(round(members * times), round(non_members * times), verdict)


def _times(distance: float, risk: float) -> float:
    """Growth of the sample that brings a bound past the limit."""
    more = 1 + distributions.norm.ppf(POWER) / distributions.norm.isf(risk)
    return float((distance * more) ** 2)
