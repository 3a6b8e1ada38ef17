"""How probable each verdict is for a leak of a given size, and what a sample can decide. NumPy and SciPy only.

One attack leaks, with a binormal receiver operating characteristic through (fpr, tpr), the others guess: at the
threshold t(k) of `thresholds` its true false-positive rate P has the distribution Beta(k, n0 - k + 1), and the members
found there are Bin(n1, tpr(P)) for the leaking attack, Bin(n1, P) for those that guess. Whether a verdict follows
depends on these counts alone, so its probability is one integral over P for the one and a beta-binomial tail for the
others. From the same tails follow the best certificate that a sample could give (`could_certify`), and how many more
examples would decide (`needed`).

For the claim "excess", whose bounds are those of `stats.paired`: the counts that are expected of two attacks with
binormal curves (`expected_pairs`) give the distances of the bounds from the difference found, which is about normal;
hence the probability of each verdict (`excess_power`), what an audit that was run would have decided (`seen_power`),
and how many more examples would decide (`needed_excess`; `needed_area` for the claim "auc").

`best_certifiable` is the best certificate under each claim, before anything is run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats as distributions
from scipy.optimize import brentq

from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats.paired import PairedCounts, difference_bounds, rank_at, window_ranks
from safexplain.verdict.stats.paired_auc import PairedAuc, area_bounds
from safexplain.verdict.thresholds import lower_bound, ranks_of, upper_bound

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
    """Probability of each verdict, when no control fails and there are reference models.

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
        raise ConfigurationError(
            f'power: expected a policy with the claim "whole", got "{policy.claim}"; replace the claim'
        )
    if min(members, non_members, attacks) < 1:
        raise InputError(f"power needs members, non-members and attacks, got {members}, {non_members}, {attacks}")
    rates = np.asarray(tpr, dtype=np.float64)
    if not ((rates > 0) & (rates < 1)).all():
        raise InputError(f"power: a true-positive rate lies in (0, 1), got {tpr!r:.80}")
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
    rank = ranks_of(replace(policy, claim="whole"), non_members, 1).upper_bound_rank
    if rank is None:
        return 1.0
    found = distributions.betabinom.ppf(POWER, members, rank, non_members - rank + 1)
    return upper_bound(int(found), members, policy.risk / 2)


def best_certifiable(policy: Policy, members: int, non_members: int, attacks: int = 1) -> float:
    """Smallest limit of the policy's claim that would be certified with a probability of 90 % if nothing leaks.

    What a sample of this size can reach at best, before anything is measured: `max_tpr` under the claim "whole",
    `max_excess` under "excess", `max_auc_excess` under "auc". The policy's own limit does not matter; a limit below
    this is out of reach, and one above it is reached only where explanations indeed add about nothing.

    Under "whole" all attacks guess, and this is exact for one of them. Under the others they find just what the labels
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
        rank = ranks_of(policy, non_members, 1).upper_bound_rank
        if rank is None:
            return 1.0
        likely = 1 - (1 - POWER) / attacks
        most = distributions.betabinom.ppf(likely, members, rank, non_members - rank + 1)
        return upper_bound(int(most), members, policy.risk / 2)
    if policy.claim == "auc":
        return area_bounds(PairedAuc(0.5, 0.5, 0.0, 0.0), members, non_members, policy.risk, policy.risk)[1]
    base = min(TYPICAL_BASE * policy.fpr, 0.5)
    counts = expected_pairs(members, non_members, policy.fpr, base, base, 0.0)
    up = difference_bounds(counts, members, non_members, policy.fpr, policy.risk, policy.risk)[1]
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


MOST_A_SIDE = 20_000
"""Members, and non-members, beyond which no more are scored unless somebody says so."""

TYPICAL_BASE = 2.0
"""Members that labels find, in false-positive rates, where nothing is known of them yet."""

ROUGH = 1.25
"""Bounds of attacks that find just what labels find are this much higher, nine of ten times, than on a smooth curve."""


def needed(policy: Policy, orders: list[NDArray[np.bool_]]) -> Needed | None:
    """The smallest sample, in the present proportions, that would decide if what was found is what is true.

    A verdict counts as reachable where some attack proves a leak, or where all together stay below the limit (their
    probabilities of failing added up), with a probability of 90 %. The share found is taken as Beta-distributed, with
    the variance of the count and that of the threshold's false-positive rate, which moves it along the curve.

    Args:
        policy: the claim "whole" is assumed.
        orders: for each judged attack, who is a member from the highest score to the lowest (`thresholds.ranked`).

    Returns:
        None if no sample of up to 1,000 times the present size would: the rate found is too close to the limit.
    """
    policy = replace(policy, claim="whole")
    curves = [_Curve(order) for order in orders]
    members, non_members = curves[0].members, curves[0].non_members
    for factor in np.geomspace(1.0, LARGEST, 139):
        n1, n0 = round(members * factor), round(non_members * factor)
        r = ranks_of(policy, n0, len(curves))
        proves, allowed = critical_counts(policy, n1, n0, len(curves))
        if any(c.exceeds(proves - 1, r.lower_bound_rank, n1, n0) >= POWER for c in curves):
            return Needed(n1, n0, "leak")
        rank = r.upper_bound_rank
        if rank is not None and sum(c.exceeds(allowed, rank, n1, n0) for c in curves) <= 1 - POWER:
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


# ------------------------------------------------------------------------------------------- the claim "excess"


def needed_excess(
    policy: Policy, pairs: Sequence[tuple[PairedCounts, float]], members: int, non_members: int
) -> Needed | None:
    """`needed` for the claim "excess": the smallest sample that would decide if what was found is what is true.

    What an attack finds less than the baseline is taken as nothing added: nobody is to count on it.

    Args:
        policy: with the claim "excess".
        pairs: of each judged attack the counts, and the risk of its lower bound.
        members: units that were scored.
        non_members: units that were scored.

    Returns:
        None if no sample of up to 1,000 times the present size would.
    """
    fpr, least = policy.fpr, 0.5 / members
    rates = []
    for counts, risk in pairs:
        base = min(max(_base(counts, non_members, fpr) / members, least), 1 - 2 * least)
        tpr = min(base + max((counts.only - counts.missed) / members, 0.0), 1 - least)
        apart = (counts.only + counts.missed) / members
        apart = min(max(apart, tpr - base), tpr + base - 2 * tpr * base)
        rates.append((tpr, base, apart, risk))

    def bounds(n1: int, n0: int) -> Iterator[tuple[float, float, float, float]]:
        for tpr, base, apart, risk in rates:
            counts = expected_pairs(n1, n0, fpr, tpr, base, apart)
            low, high = difference_bounds(counts, n1, n0, fpr, risk, policy.risk)
            excess = tpr - base
            yield excess, excess - WIDER * (excess - low), excess + WIDER * (high - excess), risk

    return _smallest(policy, bounds, members, non_members)


def needed_area(
    policy: Policy, areas: Sequence[tuple[PairedAuc, float]], members: int, non_members: int
) -> Needed | None:
    """`needed` for the claim "auc".

    Args:
        policy: with the claim "auc".
        areas: of each judged attack, and the risk of its lower bound.
        members: units that were scored.
        non_members: units that were scored.
    """

    def bounds(n1: int, n0: int) -> Iterator[tuple[float, float, float, float]]:
        for found, risk in areas:
            yield found.difference, *area_bounds(found, n1, n0, risk, policy.risk), risk

    return _smallest(policy, bounds, members, non_members)


def _smallest(
    policy: Policy,
    bounds: Callable[[int, int], Iterator[tuple[float, float, float, float]]],
    members: int,
    non_members: int,
) -> Needed | None:
    """The smallest sample in which one attack proves a leak, or all stay below the limit, with a probability of 90 %.

    Args:
        policy: whose limit counts.
        bounds: sizes -> of each attack what is found, its bounds, and the risk of the lower one.
        members: of the present sample.
        non_members: of the present sample.
    """
    sizes = [(round(members * f), round(non_members * f)) for f in np.geomspace(1.0, LARGEST, 139)]

    def outcome(n1: int, n0: int) -> Literal["certified", "leak"] | None:
        fails = 0.0
        for found, low, high, risk in bounds(n1, n0):
            down = max(found - low, 1e-12) / distributions.norm.isf(risk)
            up = max(high - found, 1e-12) / distributions.norm.isf(policy.risk)
            if distributions.norm.sf((policy.limit - low) / down) >= POWER:
                return "leak"
            fails += float(distributions.norm.sf((policy.limit - high) / up))
        return "certified" if fails <= 1 - POWER else None

    at = bisect_left(sizes, True, key=lambda size: outcome(*size) is not None)
    if at == len(sizes):
        return None
    verdict = outcome(*sizes[at])
    assert verdict is not None
    return Needed(*sizes[at], verdict)


@dataclass(frozen=True)
class Seen:
    """What an audit would have decided with a probability of 90 %.

    Args:
        proves: smallest true excess that would have been proven a leak; 1 if none.
        certifies: largest true excess that would have been certified; below 0 if not even an attack that adds nothing.
    """

    proves: float
    certifies: float


def seen_power(
    counts: PairedCounts, members: int, non_members: int, fpr: float, limit: float, low_risk: float, high_risk: float
) -> Seen:
    """What this audit would have decided about other excesses, by the curves and the discordance that it found.

    Args:
        counts: of an attack and the baseline.
        members: units scored.
        non_members: units scored.
        fpr: at which they were counted.
        limit: largest tolerated excess.
        low_risk: of the lower bound.
        high_risk: of the upper bound.
    """
    sizes = members, non_members, fpr, low_risk, high_risk

    def proves(excess: float) -> float:
        low, _ = difference_bounds(_with_excess(counts, excess, members, non_members, fpr), *sizes)
        return low - _more(excess - low, low_risk) - limit

    def passes(excess: float) -> float:
        _, high = difference_bounds(_with_excess(counts, excess, members, non_members, fpr), *sizes)
        return limit - high - _more(high - excess, high_risk)

    largest = 1 - _base(counts, non_members, fpr) / members
    proven = 1.0 if proves(largest) < 0 else _crossing(proves, limit, largest)
    smallest = -_base(counts, non_members, fpr) / members
    return Seen(proven, smallest if passes(smallest) < 0 else _crossing(passes, smallest, limit))


def excess_power(
    policy: Policy, members: int, non_members: int, excess: float, base_tpr: float, discordant: float, attacks: int = 1
) -> Power:
    """Probability of each verdict about one attack, when no control fails.

    Args:
        policy: with the claim "excess".
        members: units scored.
        non_members: units scored.
        excess: true difference of what attack and baseline find at the policy's false-positive rate.
        base_tpr: what the baseline finds there.
        discordant: share of the members that exactly one of the two finds there, at least the excess.
        attacks: judged, for the risk of the lower bound.

    Raises:
        ConfigurationError: the policy's claim is "whole".
        InputError: rates that no two attacks have.
    """
    if policy.claim != "excess":
        raise ConfigurationError('excess_power: expected a policy with the claim "excess"; `power` is for "whole"')
    counts = expected_pairs(members, non_members, policy.fpr, base_tpr + excess, base_tpr, discordant)
    low_risk, limit = policy.risk / attacks, policy.limit
    low, high = difference_bounds(counts, members, non_members, policy.fpr, low_risk, policy.risk)
    down, up = WIDER * (excess - low), WIDER * (high - excess)
    low, high = excess - down, excess + up
    leak = distributions.norm.cdf((low - limit) / (down / distributions.norm.isf(low_risk)))
    certified = distributions.norm.cdf((limit - high) / (up / distributions.norm.isf(policy.risk)))
    return Power(np.asarray(leak), np.asarray(certified))


def expected_pairs(
    members: int, non_members: int, fpr: float, tpr: float, base_tpr: float, discordant: float
) -> PairedCounts:
    """Counts of two attacks whose scores are bivariate normal, if everything is as expected.

    Args:
        members: units scored.
        non_members: units scored.
        fpr: at which they are counted.
        tpr: share of the members that the attack finds there, in (0, 1).
        base_tpr: that the baseline finds.
        discordant: share of the members that exactly one of them finds.

    Raises:
        InputError: a rate outside of (0, 1), or discordance that no positive correlation gives.
    """
    if not (0 < tpr < 1 and 0 < base_tpr < 1):
        raise InputError(f"expected rates in (0, 1), got {tpr!r:.20} and {base_tpr!r:.20}")
    both = (tpr + base_tpr - discordant) / 2
    if not tpr * base_tpr - 1e-12 <= both <= min(tpr, base_tpr) + 1e-12:
        raise InputError(
            f"expected a discordance between {abs(tpr - base_tpr):.3g} (one attack finds all that the other does) and"
            f" {tpr + base_tpr - 2 * tpr * base_tpr:.3g} (independent attacks), got {discordant:.3g}"
        )
    apart = _apart(fpr, tpr, base_tpr, both) * non_members
    windows = [_binormal_window(members, non_members, fpr, rate) for rate in (tpr, base_tpr)]
    only, missed = max(tpr - both, 0.0), max(base_tpr - both, 0.0)
    return PairedCounts(members * only, members * missed, apart, apart, windows[0], windows[1])


@lru_cache(maxsize=4096)
def _apart(fpr: float, tpr: float, base_tpr: float, both: float) -> float:
    """Share of the non-members above one threshold and not the other, where both find this share of the members."""
    found = [_both_above(r, tpr, base_tpr) - both for r in (0.0, CORRELATED)]
    r = 0.0 if found[0] >= 0 else CORRELATED
    if found[0] < 0 < found[1]:
        r = float(brentq(lambda x: _both_above(x, tpr, base_tpr) - both, 0.0, CORRELATED))
    if both >= min(tpr, base_tpr) - 1e-12 and found[1] <= 0:
        return 0.0
    return max(fpr - _both_above(r, fpr, fpr), 0.0)


WIDER = 1.15
"""Bounds of audits are further away from what is found than those of expected counts, since their curves are rough."""

CORRELATED = 0.99999
"""Scores correlated more than this are the same."""


def _both_above(correlation: float, first: float, second: float) -> float:
    """Probability that two normal scores are among their highest `first` and `second` shares."""
    u = (np.arange(4000) + 0.5) / 4000 * first
    rest = (1 - correlation**2) ** 0.5
    inside = (correlation * distributions.norm.isf(u) - distributions.norm.isf(second)) / rest
    return float(distributions.norm.cdf(inside).mean() * first)


def _more(spread: float, risk: float) -> float:
    """What must be added to a one-sided limit's distance for a probability of 90 % to be on the right side of it."""
    return float(spread * distributions.norm.ppf(POWER) / distributions.norm.isf(risk))


def _base(counts: PairedCounts, non_members: int, fpr: float) -> float:
    return counts.baseline_window[window_ranks(non_members, fpr).index(rank_at(non_members, fpr))]


def _with_excess(counts: PairedCounts, excess: float, members: int, non_members: int, fpr: float) -> PairedCounts:
    """The counts of an attack with another excess, on a binormal curve, what it misses unchanged if possible."""
    found = _base(counts, non_members, fpr) + excess * members
    only = max(excess * members + counts.missed, 0.0)
    window = _binormal_window(members, non_members, fpr, found / members)
    return replace(counts, only=only, missed=only - excess * members, attack_window=window)


def _binormal_window(members: int, non_members: int, fpr: float, tpr: float) -> tuple[float, ...]:
    """Members expected above each of the ranks that are kept; at the threshold's rank exactly what is wanted there."""
    at = np.array(window_ranks(non_members, fpr)) * (fpr / rank_at(non_members, fpr))
    shift = distributions.norm.isf(fpr) - distributions.norm.isf(np.clip(tpr, 1e-9, 1 - 1e-9))
    curve = distributions.norm.sf(distributions.norm.isf(np.clip(at, 0.0, 1.0)) - shift)
    return tuple(float(x) for x in members * curve)


def _crossing(of: Callable[[float], float], low: float, high: float) -> float:
    """Where a function changes its sign, to a tenth of a thousandth."""
    rising = of(high) > 0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (low, middle) if (of(middle) > 0) == rising else (middle, high)
    return (low + high) / 2
