"""What a sample can decide, before an audit and after an inconclusive one. NumPy and SciPy only.

`best_certifiable` is the smallest limit that a sample would certify if nothing leaks: under the claim "whole", members
found by guessing above a rank have a beta-binomial distribution; under "excess", the attack finds exactly what the
labels find, on a binormal curve. From it follows how many examples are scored where nobody says how many
(`examples_needed`). `needed` is the sample that would decide an inconclusive audit, and `shown` how often one of the
present size proves a leak.
"""

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

POWER = 0.9
"""Probability with which a verdict is called reachable."""

LARGEST = 1000.0
"""Samples more than this many times as large are not worth naming."""

MOST_A_SIDE = 20_000
"""Members, and non-members, beyond which no more are scored unless somebody says so."""

TYPICAL_BASE = 2.0
"""Members that labels find, in false-positive rates, where nothing is known of them yet."""

ROUGH = 1.25
"""Bounds of attacks that find just what labels find are this much higher, nine of ten times, than on a smooth curve."""


def best_certifiable(policy: Policy, members: int, non_members: int, attacks: int = 1) -> float:
    """Smallest limit of the policy's claim that would be certified with a probability of 90 % if nothing leaks.

    What a sample of this size can reach at best, before anything is measured: `max_tpr` under the claim "whole",
    `max_excess` under "excess". The policy's own limit does not matter; a limit below this is out of reach, and one
    above it is reached only where explanations indeed add about nothing.

    Under "whole" all attacks guess, and this is exact for one of them. Under "excess" they find just what the labels
    find, as the attacks of a whole suite do where explanations add nothing: then they fall back on the labels. These
    are taken to find twice as many members as guessing does (`TYPICAL_BASE`).

    Args:
        policy: its claim, false-positive rate and confidence.
        members: units that will be scored: without those set aside for choosing and training.
        non_members: units that will be scored.
        attacks: judged, all of which must pass; under "whole" their probabilities of failing are added up.

    Returns:
        In (0, 1]; 1.0 where nothing can be certified.

    Raises:
        InputError: a size below 1.
    """
    if min(members, non_members, attacks) < 1:
        raise InputError(
            f"best_certifiable: expected members, non-members and attacks from 1 on, got {members}, {non_members},"
            f" {attacks}"
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
    """Examples, half of them members, that are scored where nobody says how many.

    The fewest (in hundreds a side, at least 500) by which a limit half as far above guessing as the policy's would be
    certified if nothing leaks (`best_certifiable`): 1,200 by default.
    """
    none = policy.fpr if policy.claim == "whole" else 0.0
    for side in range(500, MOST_A_SIDE, 100):
        if best_certifiable(policy, side, side) - none <= (policy.limit - none) / 2:
            return 2 * side
    return 2 * MOST_A_SIDE


@cache
def shown(policy: Policy, members: int, non_members: int, *, heavy_tails: bool = False) -> float:
    """Share of audits that prove a leak of three times the policy's `max_excess`, of 100 that are simulated (of more
    than 5,000 units a side, 20).

    Of one attack, whose scores know nothing of the labels', of so many units. Scores of members and non-members differ
    by a shift; they are normal, or have Student's t distribution with 3 degrees of freedom. Labels find twice as many
    members as guessing does (`TYPICAL_BASE`).
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


class Found(NamedTuple):
    """What one judged attack found: the estimate, its bounds, and the risk of the lower one."""

    estimate: float
    low: float
    high: float
    risk: float


@dataclass(frozen=True)
class Needed:
    """A sample (in the certification split) that would probably decide, and how, if what was found is what is true."""

    members: int
    non_members: int
    verdict: Literal["certified", "leak"]


def needed(found: Sequence[Found], limit: float, risk: float, members: int, non_members: int) -> Needed | None:
    """The smallest sample, in the present proportions, that would decide if what was found is what is true.

    Distances of bounds fall with the square root of the size; those of rare events fall faster, so that fewer examples
    may do. One attack that proves a leak with a probability of 90 % is enough, a certificate needs each of them below
    the limit with that probability. What an attack finds less than the baseline counts as nothing.
    `risk` is that of each upper bound. None if no sample of up to 1,000 times the present size would.
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
    return Needed(round(members * times), round(non_members * times), verdict)


def _times(distance: float, risk: float) -> float:
    """How many times as many examples bring a bound at this distance, in units of that of the limit, beyond it."""
    more = 1 + distributions.norm.ppf(POWER) / distributions.norm.isf(risk)
    return float((distance * more) ** 2)
