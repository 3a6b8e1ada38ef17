"""Whole numbers and categories: the cheapest choice whose gains reach a goal, by listing the choices that may be it.

1. Lagrangian relaxation (`safexplain.recourse.linear.lagrangian`), for all queries at once: the multiplier where
   relaxed gains pass the goal, and with it a lower bound on the cost.
2. Lists, query by query (dynamic programming by dominance: Horowitz and Sahni 1974; Pisinger 1997 keeps them to what
   the bound leaves open): item by item, all choices for the items so far, but for those that gain no more than one that
   costs no more, and those whose bound is above a cap. The integer column with most steps left comes last, together
   with the continuous columns: what they cost is convex in its count, so that the counts beside the continuous optimum
   are all that can be best.

The cap starts a little above the lower bound and rises until a choice is found below it, which then is optimal; it
falls where lists grow longer than `STATES`. A query for which no cap does is left to an integer program.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Mask
from safexplain.recourse.found import Floats
from safexplain.recourse.linear.lagrangian import Ints, Items, multiplier
from safexplain.recourse.linear.water_filling import WaterFilling

STATES, TRIED = 50_000, 2_000_000
"""Choices of one query that are kept at a time, and that are looked at."""
LEAST, FIRST, MOST = 1e-8, 3e-2, 1e15
"""Caps tried, by how much they are above the lower bound, as shares of it."""
TIE = 1e-14
"""Share of the goal by which gains that count as equal may differ."""


def solve(items: Items, enough: Floats, goal: Floats) -> tuple[Floats, list[Ints], Mask]:
    """Cheapest choice of each query.

    Args:
        items: what can be chosen; rooms of continuous columns finite, and more than the goal where limits allow.
        enough: (n,) gain at which choices need nothing added; at most the goal (they differ by rounding).
        goal: (n,) gain that choices and continuous columns together must reach otherwise.

    Returns:
        Steps (n, i), and the category (n,) of each group; and (n,) bool, whether no choice is cheaper, or none reaches
        the goal. Nothing changes where none does, and where that is open.
    """
    total = items.total
    level = multiplier(items, np.minimum(goal, (1 - 1e-12) * total))
    bound = items.least(level).sum(axis=1) + level * goal
    values, proven = np.zeros((len(goal), len(items.gain) + len(items.step))), np.ones(len(goal), dtype=bool)
    for group, cost in enumerate(items.cost):
        values[:, group] = cost.argmin(axis=1)  # what stays costs nothing
    for at in np.flatnonzero((total >= enough) & (total > 0)).tolist():
        lists = _Lists(items.take(np.array([at])), float(enough[at]), float(goal[at]), float(level[at]))
        found = lists.cheapest(float(bound[at]))
        if found is None:
            proven[at] = False
        else:
            values[at] = found
    picks = [values[:, group].astype(np.intp) for group in range(len(items.gain))]
    return values[:, len(items.gain) :], picks, proven


def missing(gain: Floats, enough: Floats | float, goal: Floats | float, most: Floats) -> Floats:
    """What continuous columns, which can add `most`, must add to a gain; all of it where only rounding is missing."""
    rest = np.where(gain >= enough, 0.0, goal - gain)
    return np.where((rest > most) & (enough - gain <= most), most, rest)


class _Lists:
    """The choices of one query that may be the cheapest.

    Args:
        items: of this query alone.
        enough: gain at which choices need nothing added.
        goal: gain that choices and continuous columns together must reach otherwise.
        level: multiplier of the Lagrangian bound.
    """

    def __init__(self, items: Items, enough: float, goal: float, level: float) -> None:
        self.items, self.enough, self.goal, self.level = items, enough, goal, level
        self.least: Floats = items.least(np.array([level]))[0]

    def cheapest(self, bound: float) -> Floats | None:
        """(g + i,) the category of each group and the steps of each column; None: the lists grow too long."""
        gap, empty, long = FIRST * bound, LEAST * bound, np.inf
        while long > 1.5 * empty and empty < MOST * bound:
            found, complete = self._below(bound, gap)
            if found is not None:
                return found
            empty, long = (gap, long) if complete else (empty, gap)
            gap = min(10 * empty, math.sqrt(empty * long))
        return None

    def _below(self, bound: float, gap: float) -> tuple[Floats | None, bool]:
        """The cheapest choice whose cost is at most `gap` above the bound, and whether all of these were listed."""
        items, groups = self.items, len(self.items.gain)
        fewest, greatest = (counts[0] for counts in items.near(np.array([self.level]), np.array([gap])))
        last = int((greatest - fewest).argmax()) if len(fewest) else None
        options: list[tuple[int, Floats, Floats, Floats]] = []
        for group, (gain, cost) in enumerate(zip(items.gain, items.cost, strict=True)):
            open_ = np.flatnonzero(cost[0] - self.level * gain[0] - self.least[group] <= gap * (1 + 1e-9))
            options.append((group, open_.astype(np.float64), gain[0, open_], cost[0, open_]))
        for column in range(len(fewest)):
            if column == last:
                continue
            if greatest[column] - fewest[column] > STATES:
                return None, False
            counts = np.arange(fewest[column], greatest[column] + 1)
            price = (items.unit[column] * counts) ** items.slack.power
            options.append((groups + column, counts, counts * items.step[column], price))
        gain, cost, rest = np.zeros(1), np.zeros(1), float(self.least.sum())
        trail: list[tuple[int, NDArray[np.intp], Floats]] = []
        for item, values, gains, costs in sorted(options, key=lambda option: len(option[1])):
            rest -= self.least[item]
            if len(gain) * len(values) > TRIED:
                return None, False
            gain = np.minimum(gain[:, None] + gains, self.goal).ravel()
            cost = (cost[:, None] + costs).ravel()
            relaxed = cost + self.level * (self.enough - gain) + rest
            kept = np.flatnonzero(relaxed <= bound + gap * (1 + 1e-9))
            kept = kept[_undominated(cost[kept], gain[kept], TIE * self.goal)]
            if not len(kept) or len(kept) > STATES:
                return None, not len(kept)
            gain, cost = gain[kept], cost[kept]
            trail.append((item, kept // len(values), values[kept % len(values)]))
        state, count, paid = self._completed(last, gain, cost)
        if not paid <= bound + gap:
            return None, True
        chosen = np.zeros(groups + len(fewest))
        if last is not None:
            chosen[groups + last] = count
        for item, parents, values in reversed(trail):
            chosen[item], state = values[state], parents[state]
        return chosen, True

    def _completed(self, column: int | None, gain: Floats, cost: Floats) -> tuple[int, float, float]:
        """The state (s,) that is cheapest once continuous columns and one integer column complete it, the count of the
        latter, and what that costs."""
        slack, counts = self.items.slack, np.zeros((1, len(gain)))
        if column is not None:
            step, unit, most = self.items.step[column], self.items.unit[column], self.items.most[0, column]
            rooms, rates = np.append([most * step], slack.room), np.append([(unit / step) ** slack.power], slack.rate)
            both = WaterFilling.of(np.broadcast_to(rooms, (len(gain), len(rooms))), rates, slack.power)
            below = np.floor(both.gains(self.enough - gain)[:, 0] / step)
            counts = np.clip(below + np.array([[-1.0], [0.0], [1.0]]), 0.0, most)
            gain, cost = gain + counts * step, cost + (unit * counts) ** slack.power
        rest = missing(gain.reshape(1, -1), self.enough, self.goal, slack.total)
        paid = cost.ravel() + slack.cost(rest)[0]
        best = int(paid.argmin())
        return best % counts.shape[1], float(counts.flat[best]), float(paid[best])


def _undominated(cost: Floats, gain: Floats, tie: float) -> NDArray[np.intp]:
    """The states that gain more than all that cost no more, in the order of their costs."""
    order = np.lexsort((-gain, cost))
    best = np.maximum.accumulate(gain[order])
    more = np.append(np.ones(min(1, len(order)), dtype=bool), gain[order][1:] > best[:-1] + tie)
    return np.asarray(order[more])
