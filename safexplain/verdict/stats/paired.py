"""How much more one attack finds than another on the same examples, at one false-positive rate.

NumPy and SciPy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as distributions

from safexplain.errors import InputError

Floats = NDArray[np.float64]

STEPS = 20
"""Most ranks that are kept below, and above, the one of the threshold."""

WINDOW_RISK = 1e-5
"""The true threshold's rank lies outside of the ranks that are kept with this probability, on either side."""

NARROW = 1e-9
"""Sums of weights closer to each other than this are equal."""


@dataclass(frozen=True)
class PairedCounts:
    """What two attacks find on the same examples, each above its k-th highest non-member. All in units (groups).

    Args:
        only: members that the attack finds and the baseline does not.
        missed: members that the baseline finds and the attack does not.
        non_member_only, non_member_missed: the same of the non-members, the k-th included.
        attack_window: members that the attack finds above each of the ranks `window_ranks`.
        baseline_window: those that the baseline finds.
    """

    only: float
    missed: float
    non_member_only: float
    non_member_missed: float
    attack_window: tuple[float, ...]
    baseline_window: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "only": self.only,
            "missed": self.missed,
            "non_member_only": self.non_member_only,
            "non_member_missed": self.non_member_missed,
            "attack_window": list(self.attack_window),
            "baseline_window": list(self.baseline_window),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PairedCounts:
        """Read what `to_dict` wrote.

        Raises:
            InputError: a count is no finite number of at least 0, or the windows are no increasing lists of one length.
            KeyError, TypeError: a field is missing, or there are none.
        """
        names = ("only", "missed", "non_member_only", "non_member_missed")
        counts = [_real(name, content[name]) for name in names]
        windows = [tuple(_real(n, x) for x in content[n]) for n in ("attack_window", "baseline_window")]
        return cls(counts[0], counts[1], counts[2], counts[3], windows[0], windows[1])

    def check(self, members: int, non_members: int, fpr: float) -> None:
        """Refuse counts that no examples have.

        Raises:
            InputError: they cannot be of so many members and non-members at this rate.
        """
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


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise InputError(f"not the outcome of an audit: {name} is a count, got {value!r:.60}")
    return float(value)


def rank_at(non_members: int, fpr: float) -> int:
    """Rank of the threshold of both attacks: the one nearest fpr (n0 + 1), where the mean true rate is `fpr`."""
    return min(max(round(fpr * (non_members + 1)), 1), non_members)


@lru_cache(maxsize=256)
def window_ranks(non_members: int, fpr: float) -> tuple[int, ...]:
    """Ranks between which the true threshold surely lies, increasing, at most 41, with `rank_at` among them.

    Rank 0 means a threshold above every score, rank n0 + 1 one below every score.
    """
    k = rank_at(non_members, fpr)
    low = int(distributions.binom.ppf(WINDOW_RISK, non_members, fpr))
    high = int(distributions.binom.isf(WINDOW_RISK, non_members, fpr)) + 1
    below = np.linspace(min(low, k), k, STEPS + 1)
    above = np.linspace(k, max(min(high, non_members + 1), k), STEPS + 1)
    return tuple(int(x) for x in np.unique(np.round(np.concatenate([below, above]))))


def count_pairs(
    order: NDArray[np.int64],
    base_order: NDArray[np.int64],
    member: NDArray[np.bool_],
    fpr: float,
    weights: Floats | None = None,
) -> PairedCounts:
    """Count what an attack and the baseline find on the same examples.

    Args:
        order: (s,) indices of the examples from the attack's highest score to its lowest, `thresholds.by_score`.
        base_order: (s,) the same of the baseline, ties broken by the same random numbers.
        member: (s,) bool.
        fpr: the false-positive rate at which they are compared.
        weights: (s,) of each example, `thresholds.weights_of`; None: 1 each.

    Raises:
        InputError: shapes differ, or there are no members or no non-members.
    """
    if not order.shape == base_order.shape == member.shape or member.ndim != 1:
        raise InputError(f"expected (s,) arrays, got {order.shape}, {base_order.shape} and {member.shape}")
    if member.all() or not member.any():
        raise InputError(f"need members and non-members, got {int(member.sum())} and {int((~member).sum())}")
    w = np.ones(len(member)) if weights is None else np.asarray(weights, dtype=np.float64)
    non_members = round(float(w[~member].sum()))
    ranks = window_ranks(non_members, fpr)
    centre = ranks.index(rank_at(non_members, fpr))
    found, windows = [], []
    for by_score in (order, base_order):
        outside = np.cumsum(np.where(member[by_score], 0.0, w[by_score]))
        ends = np.searchsorted(outside, np.asarray(ranks) - NARROW * non_members)  # of the non-member of each rank
        inside = np.concatenate([[0.0], np.cumsum(np.where(member[by_score], w[by_score], 0.0))])
        window = inside[ends]
        windows.append(tuple(float(x) for x in window))
        accepted = np.zeros(len(member), dtype=bool)
        accepted[by_score[: ends[centre] + 1]] = True
        found.append(accepted)
    only, missed = found[0] & ~found[1], found[1] & ~found[0]
    return PairedCounts(
        float(w[only & member].sum()),
        float(w[missed & member].sum()),
        float(w[only & ~member].sum()),
        float(w[missed & ~member].sum()),
        windows[0],
        windows[1],
    )


def difference_bounds(
    counts: PairedCounts, members: int, non_members: int, fpr: float, low_risk: float, high_risk: float
) -> tuple[float, float]:
    """Lower and upper bound of the difference of the two true-positive rates at exactly this false-positive rate.

    Args:
        counts: of the two attacks on the same examples.
        members: units (groups) scored.
        non_members: units (groups) scored.
        fpr: the false-positive rate at which they were counted.
        low_risk: largest probability that the true difference is below the lower bound.
        high_risk: largest probability that it is above the upper bound.
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

    First version: each of the two thresholds and of the two counts has a quarter of the risk.
    """
    ranks = np.asarray(window_ranks(non_members, fpr))
    strict = int(distributions.binom.ppf(risk / 4, non_members, fpr))
    loose = int(distributions.binom.isf(risk / 4, non_members, fpr)) + 1
    own = attack_window[..., max(int(np.searchsorted(ranks, strict, side="right")) - 1, 0)]
    other = baseline_window[..., min(int(np.searchsorted(ranks, loose)), len(ranks) - 1)]
    low = np.where(own > 0, special.betaincinv(np.maximum(own, 1e-9), members - own + 1, risk / 4), 0.0)
    full = other >= members
    high = np.where(full, 1.0, special.betaincinv(other + 1, np.where(full, 1.0, members - other), 1 - risk / 4))
    bound: Floats = np.maximum(low - high, -1.0)
    return bound
