"""Which features an answer may change, where their number is limited: the sets that can hold the cheapest answer.

For a multiplier m every feature alone minimises cost - m gain (`safexplain.recourse.linear.lagrangian`). Let r be what
it saves by that, at least 0. An answer that changes the features S costs at least m goal - sum of r over S; the k
features of largest r give the bound of all answers. Once an answer is known, only sets whose r add up to more than
m goal less its cost can hold a cheaper one. They are few, as a rule, and each leaves a problem without the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Mask
from safexplain.recourse.found import Floats
from safexplain.recourse.linear.lagrangian import Items, bracket

SETS = 500
"""Sets of features tried for one query; where more could hold the cheapest answer, an integer program is faster."""
FIRST = 6
"""Sets tried first, as what they cost rules others out."""


@dataclass(frozen=True, eq=False)
class Savings:
    """What n queries can save by each of f features.

    Args:
        saved: (n, f) r, in the order of `Items`: groups, columns with steps, continuous columns.
        most: how many features may change, less than f.
        worth: (n,) m goal.
        possible: (n,) bool, whether so few features can reach the goal at all.
    """

    saved: Floats
    most: int
    worth: Floats
    possible: Mask

    @classmethod
    def of(cls, items: Items, enough: Floats, most: int) -> Savings:
        """At the multiplier where the best `most` features gain `enough` (n,)."""
        greatest = np.hstack(
            [
                *(
                    np.where(np.isfinite(cost), gain, 0.0).max(axis=1, keepdims=True)
                    for gain, cost in zip(items.gain, items.cost, strict=True)
                ),
                items.most * items.step,
                items.slack.room,
            ]
        )
        possible: Mask = _largest(greatest, most).sum(axis=1) >= enough
        low, high = bracket(items, np.minimum(enough, (1 - 1e-12) * items.total))
        for _ in range(200):
            short = possible & (_gained(items, high, most) < enough)
            if not short.any():
                break
            low, high = np.where(short, high, low), np.where(short, 8 * high, high)
        for _ in range(40):
            middle = (low + high) / 2
            short = _gained(items, middle, most) < enough
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        saved = -_each(items, high)[0]
        return cls(np.maximum(saved, 0.0), most, high * enough, possible)

    @property
    def bound(self) -> Floats:
        """(n,) no answer costs less, to the power."""
        return np.asarray(np.maximum(self.worth - _largest(self.saved, self.most).sum(axis=1), 0.0))

    def first(self, query: int) -> list[tuple[int, ...]]:
        """The set of largest savings of a query, and those with one other feature of large savings."""
        order = np.argsort(-self.saved[query], kind="stable").tolist()
        best, following = order[: self.most], order[self.most : self.most + FIRST - 1]
        return [tuple(sorted(best)), *(tuple(sorted([*best[:-1], other])) for other in following)]

    def better(self, query: int, paid: float) -> list[tuple[int, ...]] | None:
        """Sets that may hold an answer of a query that costs less than this, to the power; None: too many."""
        saved = self.saved[query]
        order = np.argsort(-saved, kind="stable")
        ordered = saved[order]
        needed = self.worth[query] - paid
        spare = float(ordered[: self.most].sum() - needed)
        if spare < 0:
            return []
        fixed = [at for at in range(self.most) if ordered[at] - ordered[self.most] > spare]
        open_ = [at for at in range(len(ordered)) if at not in fixed and ordered[self.most - 1] - ordered[at] <= spare]
        missing = self.most - len(fixed)
        if comb(len(open_), missing) > 40 * SETS:
            return None
        held = float(ordered[fixed].sum())
        sets = [chosen for chosen in combinations(open_, missing) if held + ordered[list(chosen)].sum() >= needed]
        if len(sets) > SETS:
            return None
        return [tuple(sorted(order[[*fixed, *chosen]].tolist())) for chosen in sets]


def _largest(values: Floats, count: int) -> Floats:
    """(n, count) the largest values of each query."""
    largest: Floats = -np.sort(-values, axis=1)[:, :count]
    return largest


def _each(items: Items, level: Floats) -> tuple[Floats, Floats]:
    """(n, f) least cost - level gain of each feature, and its gain there."""
    steps, picks = items.relaxed(level)
    alone, row = items.slack_gains(level), np.arange(len(level))
    gains = [gain[row, pick] for gain, pick in zip(items.gain, picks, strict=True)]
    costs = [cost[row, pick] for cost, pick in zip(items.cost, picks, strict=True)]
    gain = np.column_stack([*gains, steps * items.step, alone])
    cost = np.column_stack([*costs, items.step_cost(steps), items.slack.rate * alone**items.slack.power])
    return cost - level[:, None] * gain, gain


def _gained(items: Items, level: Floats, most: int) -> Floats:
    """(n,) gain of the features that save most."""
    least, gain = _each(items, level)
    best: NDArray[np.intp] = np.argsort(least, axis=1, kind="stable")[:, :most]
    return np.asarray(np.take_along_axis(gain, best, axis=1).sum(axis=1))
