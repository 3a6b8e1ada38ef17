"""How much more one attack finds than another on the same examples: bounds on TPR_A(fpr) - TPR_B(fpr)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as distributions
from scipy.optimize import brentq

from safexplain.errors import InputError

Floats = NDArray[np.float64]

STEPS = 20  # most stored ranks on either side of the threshold's
WINDOW_RISK = 1e-6  # probability that the true threshold's rank lies outside them, on either side
NARROW = 1e-9  # sums of weights closer to each other than this are equal


@dataclass(frozen=True)
class PairedCounts:
    """Findings of two attacks, each above its k-th highest non-member, in units (groups)."""

    only: float  # members that only the attack finds
    missed: float  # members that only the baseline finds
    non_member_only: float  # the same for the non-members, the k-th included
    non_member_missed: float
    attack_window: tuple[float, ...]  # found by the attack above each of `window_ranks`
    baseline_window: tuple[float, ...]  # by the baseline

    def check(self, members: int, non_members: int, fpr: float) -> None:
        """Raise `InputError` if the counts are impossible."""
        ranks, k = window_ranks(non_members, fpr), rank_at(non_members, fpr)
        at = ranks.index(k)
        a, b = self.attack_window, self.baseline_window
        good = len(a) == len(b) == len(ranks)
        if good:
            for w in (a, b):
                good &= all(x <= y + NARROW * members for x, y in pairwise(w))
                good &= w[0] >= 0 and w[-1] <= members * (1 + NARROW)
            good &= min(self.only, self.missed, self.non_member_only, self.non_member_missed) >= 0
            good &= abs((self.only - self.missed) - (a[at] - b[at])) <= 1e-6 * members
            good &= self.only <= a[at] + 1e-6 * members and self.missed <= b[at] + 1e-6 * members
            good &= max(self.non_member_only, self.non_member_missed) <= k + 1
        if not good:
            raise InputError(f"paired counts are impossible for {members} members and {non_members} non-members")


def rank_at(non_members: int, fpr: float) -> int:
    """Rank of both thresholds, where the mean true rate is nearest `fpr`."""
    return min(max(round(fpr * (non_members + 1)), 1), non_members)


@lru_cache(maxsize=256)
def window_ranks(non_members: int, fpr: float) -> tuple[int, ...]:
    """At most 41 increasing ranks around `rank_at`, between which the true threshold almost certainly lies.

    Rank 0 means a threshold above every score, rank n0 + 1 one below every score.
    """
    k = rank_at(non_members, fpr)
    low = int(distributions.binom.ppf(WINDOW_RISK, non_members, fpr))
    high = int(distributions.binom.isf(WINDOW_RISK, non_members, fpr)) + 1
    below, above = np.linspace(low, k, STEPS + 1), np.linspace(k, high, STEPS + 1)
    return tuple(int(x) for x in np.unique(np.round(np.concatenate([below, above]))))


def count_pairs(
    order: NDArray[np.int64],
    base_order: NDArray[np.int64],
    member: NDArray[np.bool_],
    fpr: float,
    weights: Floats | None = None,
) -> PairedCounts:
    """Count the members found by an attack and the baseline on the same (s,) examples, at one false-positive rate.

    Orders come from `thresholds.by_score` with one seed, `weights` from `thresholds.weights_of`, or are 1.
    """
    if not order.shape == base_order.shape == member.shape or member.ndim != 1:
        raise InputError(f"expected (s,) arrays, got {order.shape}, {base_order.shape} and {member.shape}")
    if member.all() or not member.any():
        raise InputError(f"expected members and non-members, got {int(member.sum())} and {int((~member).sum())}")
    w = np.ones(len(member)) if weights is None else np.asarray(weights, dtype=np.float64)
    non_members = round(float(w[~member].sum()))
    ranks = window_ranks(non_members, fpr)
    centre = ranks.index(rank_at(non_members, fpr))
    found, windows = [], []
    for by_score in (order, base_order):
        outside = np.cumsum(np.where(member[by_score], 0.0, w[by_score]))
        ends = np.searchsorted(outside, np.asarray(ranks) - NARROW * non_members)  # of the non-member of each rank
        inside = np.concatenate([[0.0], np.cumsum(np.where(member[by_score], w[by_score], 0.0))])
        windows.append(tuple(inside[ends].tolist()))
        accepted = np.zeros(len(member), dtype=bool)
        accepted[by_score[: ends[centre] + 1]] = True
        found.append(accepted)
    only, missed = found[0] & ~found[1], found[1] & ~found[0]
    counts = [float(w[which & side].sum()) for side in (member, ~member) for which in (only, missed)]
    return PairedCounts(counts[0], counts[1], counts[2], counts[3], windows[0], windows[1])


def difference_bounds(
    counts: PairedCounts, members: int, non_members: int, fpr: float, low_risk: float, high_risk: float
) -> tuple[float, float]:
    """Lower and upper bound of the difference of the two true-positive rates at exactly this false-positive rate.

    The true difference is below the lower bound with a probability of at most `low_risk`, and above the upper bound
    with at most `high_risk` (measured error rates: docs/statistics.md).
    """
    c = counts
    only, missed = np.array([c.only, c.missed]), np.array([c.missed, c.only])  # for the upper bound they change places
    theirs, ours = np.asarray(c.non_member_only), np.asarray(c.non_member_missed)
    windows = np.array([c.attack_window, c.baseline_window])
    low = lower_limits(only[0], missed[0], theirs, ours, windows[0], windows[1], members, non_members, fpr, low_risk)
    high = -lower_limits(only[1], missed[1], ours, theirs, windows[1], windows[0], members, non_members, fpr, high_risk)
    return float(low), float(high)


def lower_limits(
    only: Floats,
    missed: Floats,
    non_member_only: Floats,
    non_member_missed: Floats,
    attack_window: Floats,
    baseline_window: Floats,
    members: int,
    non_members: int,
    fpr: float,
    risk: float,
) -> Floats:
    """(...,) lower bounds from (...,) counts and (..., window) counts; `difference_bounds` for many at once.

    Three errors are added as squares (MOVER: Zou & Donner, Statistics in Medicine 27, 2008): `counts`, exact limits of
    the discordant members; `together`, the change of the difference between extreme ranks of the true threshold; and
    thresholds that move apart, discordant non-members times slopes s. The last two are the delta method for the
    variance [(sA - sB)^2 fpr (1 - fpr) + 2 sA sB p10] / n0, with half of the share of discordant non-members p10. It
    fails at jumps of a curve (`_uneven`, then `_worst_near`) and with very few non-members (`_four_bounds`).
    """
    f = _frame(non_members, fpr, risk)
    if f.strict < 1:  # implied by loose > non_members, as fpr < 1 / 2
        return _four_bounds(attack_window, baseline_window, members, non_members, fpr, risk)
    own, other, difference = attack_window @ f.at, baseline_window @ f.at, attack_window - baseline_window
    counts = members * _count_spread(only / members, missed / members, members, risk)
    apart = -special.ndtri(risk) * np.sqrt(non_member_only + non_member_missed + 1)
    found = own - other + difference @ (f.after - f.before) / (2 * f.steps) * (fpr * (non_members + 1) - f.rank)
    slopes = (own - attack_window @ f.before) / f.steps, (baseline_window @ f.after - other) / f.steps
    noise = np.sqrt(counts**2 + ((slopes[0] + slopes[1]) / 2 * apart) ** 2)
    elsewhere = np.minimum(difference @ f.at_strict, difference @ f.at_loose)
    together = np.maximum(own - other - elsewhere, 0.0)
    low = found - np.maximum(noise, together + _NOISE_SHARE * noise)
    uneven = _uneven(attack_window[..., f.near], baseline_window[..., f.near], f.ranks[f.near])
    if uneven.any():
        reach = float(f.rank - f.strict), float(f.loose - f.rank)
        worst = _worst_near(attack_window, baseline_window, f.ranks - f.rank, reach, apart, counts, _radius(risk))
        low = np.where(uneven, np.minimum(low, worst), low)
    bound: Floats = np.maximum(low / members, -1.0)
    return bound


@dataclass(frozen=True)
class _Frame:
    """The part of the bounds that depends only on the sizes.

    `at` to `at_loose` are (window,) weights that interpolate counts: at the rank, `steps` before and after it, and at
    `strict` and `loose`.
    """

    ranks: Floats  # (window,) `window_ranks`
    rank: int  # of the thresholds
    strict: int  # the true false-positive rate is above fpr with at most the risk
    loose: int  # likewise, below
    steps: int  # standard deviation of the true threshold's rank, over which slopes are measured
    at: Floats
    before: Floats
    after: Floats
    at_strict: Floats
    at_loose: Floats
    near: slice  # ranks at which a jump would matter


@lru_cache(maxsize=256)
def _frame(non_members: int, fpr: float, risk: float) -> _Frame:
    ranks, k = np.array(window_ranks(non_members, fpr), dtype=np.float64), rank_at(non_members, fpr)
    strict = int(distributions.binom.ppf(risk, non_members, fpr))
    loose = int(distributions.binom.isf(risk, non_members, fpr)) + 1
    steps = round(float(np.sqrt(k * (1 - fpr))))
    unit = np.eye(len(ranks))

    def at(rank: float) -> Floats:
        return np.array([np.interp(rank, ranks, row) for row in unit])

    low, high = k - _NEAR * (k - strict) - 1, k + _NEAR * (loose - k) + 1
    near = slice(int(np.searchsorted(ranks, low)), int(np.searchsorted(ranks, high, side="right")))
    weights = at(k), at(k - steps), at(k + steps), at(strict), at(loose)
    return _Frame(ranks, k, strict, loose, steps, *weights, near)


def _count_spread(only: Floats, missed: Floats, members: int, risk: float) -> Floats:
    """Distance of the lower limit of a difference of dependent shares: MOVER with exact limits."""
    down = only - _limit(only * members, members, risk)
    up = 1 - _limit(members * (1 - missed), members, risk) - missed
    odds = np.sqrt(only * missed / np.maximum((1 - only) * (1 - missed), 1e-12))  # minus their correlation
    spread: Floats = np.sqrt(down**2 + up**2 + 2 * odds * down * up)
    return spread


def _limit(found: Floats, of: int, risk: float) -> Floats:
    """Lower Clopper-Pearson limit of (...,) shares."""
    some = np.clip(found, 1e-9, of)
    return np.where(found > 1e-9, special.betaincinv(some, of - some + 1, risk), 0.0)


def _four_bounds(
    attack_window: Floats, baseline_window: Floats, members: int, non_members: int, fpr: float, risk: float
) -> Floats:
    """Each of the two thresholds and of the two shares found has a quarter of the risk; valid for any sizes.

    Because even the highest non-member may not be strict enough, the attack accepts a random share of those above it
    (`thresholds.lower_bound_rank`).
    """
    f, share = _frame(non_members, fpr, risk / 4), fpr / float(-np.expm1(np.log(risk / 4) / non_members))
    own = attack_window[..., int(np.searchsorted(f.ranks, 1))]
    other = baseline_window[..., min(int(np.searchsorted(f.ranks, f.loose)), len(f.ranks) - 1)]
    other = other if f.loose <= non_members else np.full_like(other, members)
    bound: Floats = share * _limit(own, members, risk / 4) - 1 + _limit(members - other, members, risk / 4)
    return bound


_NOISE_SHARE = 0.5  # added to `together`: about the root of squares, except for small changes, which are noise
_NEAR = 1.35  # distance from the rank within which curves must be even, over the true threshold's largest
_NEIGHBOURS = 7  # steps on either side to compare with
_ALARM = 0.03  # probability that an even curve counts as uneven
_BEND = 0.7  # assumed power of the rank by which curves rise
_JUMP = 7.0  # multiple of the neighbouring steps at which one of the difference is a jump


def _uneven(attack: Floats, baseline: Floats, ranks: Floats) -> NDArray[np.bool_]:
    """(...,) whether one of the curves, or their difference, has a jump among these ranks.

    On a straight curve, the share of members between two ranks has a beta distribution, so their number is
    beta-binomial, approximated by a beta distribution of equal variance.
    """
    gaps = np.diff(ranks**_BEND)
    gaps *= (ranks[-1] - ranks[0]) / gaps.sum()  # lengths of the steps of an even curve
    distance = np.abs(np.subtract.outer(np.arange(len(gaps)), np.arange(len(gaps))))
    neighbours = ((distance > 0) & (distance <= _NEIGHBOURS)).astype(np.float64)
    others = neighbours @ gaps
    steps = np.diff(np.stack([attack, baseline]), axis=-1)
    total = np.maximum(steps + steps @ neighbours, 1e-9)
    size = np.maximum(total * (gaps + others + 1) / (gaps + others + total) - 1, 1e-3)
    share = np.maximum((steps - 0.5) / total, 0.0)
    tail = special.betainc(size * others / (gaps + others), size * gaps / (gaps + others), 1 - share)
    apart = steps[0] - steps[1]
    usual = (apart**2 / gaps) @ neighbours / neighbours.sum(0) * gaps
    jumps = (tail < _ALARM / (2 * len(gaps))).any((0, -1)) | (np.abs(apart) > _JUMP * np.sqrt(usual + 1)).any(-1)
    return np.asarray(jumps)


@lru_cache(maxsize=64)
def _radius(risk: float) -> float:
    """Factor of the distance if thresholds and shares with a smaller difference form a cone: from its corner, the
    distance has a chi-bar-squared distribution."""

    def beyond(square: float) -> float:
        return float(np.dot([0.5, 0.25], distributions.chi2.sf(square, [1, 2]))) - risk

    z = float(distributions.norm.isf(risk))
    return float(np.sqrt(brentq(beyond, z * z, z * z + 40))) / z


def _worst_near(
    attack: Floats,
    baseline: Floats,
    offsets: Floats,
    reach: tuple[float, float],
    apart: Floats,
    counts: Floats,
    radius: float,
) -> Floats:
    """(...,) smallest difference for thresholds and shares near the ones found, for any curves.

    Between two stored ranks, the count at the one further away is used.
    """
    own = np.concatenate([attack[..., :1], attack[..., :-1]], axis=-1)
    other = np.concatenate([baseline[..., 1:], baseline[..., -1:]], axis=-1)
    middle = np.add.outer(offsets, offsets) / 2
    split = np.subtract.outer(offsets, offsets)
    together = (middle / np.where(middle < 0, reach[0], reach[1])) ** 2
    far = together + (split / apart[..., None, None]) ** 2
    left = counts[..., None, None] * np.sqrt(np.maximum(radius**2 - far, 0.0))
    value = own[..., :, None] - other[..., None, :] - left
    worst: Floats = np.where(far <= radius**2, value, np.inf).min((-2, -1))
    return worst
