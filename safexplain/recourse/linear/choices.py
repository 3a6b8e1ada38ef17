"""The cheapest change of columns that raises a linear score to a goal, for many queries at once.

Whole numbers and categories are a knapsack: each integer column (k steps towards its better side) and each one-hot
group (its categories) is an item whose choice has a gain in score and a cost; continuous columns provide the rest.

1. The Lagrangian relaxation, for all queries at once. For a multiplier m, each item minimises cost - m gain (Everett
   1963; with one choice per group, Sinha and Zoltners 1979). The sum of the minima plus m goal is a lower bound.
2. Lists, query by query (dynamic programming by dominance: Horowitz and Sahni 1974; Pisinger 1997 restricts them by the
   bound): all choices of the items so far, except those that another choice dominates or whose bound is above a cap.
   The integer column with the most steps comes last, with the continuous columns: their cost is convex in its count, so
   that only the counts next to the continuous optimum can be best.

The cap starts slightly above the bound and rises until a choice below it is found, which then is optimal; it falls if
lists grow longer than `STATES`. A query without a suitable cap goes to an integer program.

Continuous columns (`Slack`) have gains g_j = |w_j| t_j up to a room R_j: min sum cost_j(g_j), sum g_j >= goal.

    L1: cost_j = (c_j / |w_j|) g_j; columns fill in order of their rate c_j / |w_j|.
    L2: squared cost_j = g_j^2 / s_j with speed s_j = (w_j / c_j)^2. The Karush-Kuhn-Tucker conditions give
        g_j = min(level s_j, R_j) at one level (water filling: Boyd and Vandenberghe 2004, example 5.2). Columns fill
        in order of R_j / s_j; between two such points the total is linear in the level, so that the level is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Mask
from safexplain.recourse.solution import Floats

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Items:
    """Choices of n queries: gain and cost of one step of each of i integer columns, and the greatest number of steps;
    for each group, gain of each category over the query's own, and cost to the power, infinite for excluded ones."""

    step: Floats  # (i,)
    unit: Floats  # (i,)
    most: Floats  # (n, i)
    gain: tuple[Floats, ...]  # (n, k) each
    cost: tuple[Floats, ...]  # (n, k) each
    slack: Slack

    def take(self, rows: Ints) -> Items:
        """Items of some queries."""
        gain, cost = (tuple(array[rows] for array in arrays) for arrays in (self.gain, self.cost))
        slack = replace(self.slack, room=self.slack.room[rows])
        return replace(self, most=self.most[rows], gain=gain, cost=cost, slack=slack)

    @property
    def total(self) -> Floats:
        """(n,) greatest gain."""
        best = (self.most * self.step).sum(axis=1) + self.slack.total
        for gain, cost in zip(self.gain, self.cost, strict=True):
            best = best + np.where(np.isfinite(cost), gain, 0.0).max(axis=1)
        return np.asarray(best)

    def step_cost(self, steps: Floats) -> Floats:
        """Cost, to the power, of steps (..., i)."""
        return np.asarray((self.unit * steps) ** self.slack.power)

    def relaxed(self, level: Floats) -> tuple[Floats, list[Ints]]:
        """Best choice of each item at multiplier `level` (n,): steps (n, i), and a category (n,) for each group."""
        worth = level[:, None] * self.step
        if self.slack.power == 1:
            steps = np.where(worth > self.unit, self.most, 0.0)
        else:
            steps = np.clip(np.rint(worth / (2 * self.unit**2)), 0.0, self.most)
        picks = [(cost - level[:, None] * gain).argmin(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        return steps, picks

    def slack_gains(self, level: Floats) -> Floats:
        """(n, c) gains of the continuous columns when each minimises its cost - level gain."""
        rate, room = self.slack.rate, self.slack.room
        if self.slack.power == 1:
            return np.where(level[:, None] > rate, room, 0.0)
        return np.minimum(level[:, None] / (2 * rate), room)

    def least(self, level: Floats) -> Floats:
        """(n, g + i + 1) least cost - level gain of each group, each integer column, and the continuous columns."""
        worth, steps, gains = level[:, None], self.relaxed(level)[0], self.slack_gains(level)
        groups = [(cost - worth * gain).min(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        whole = self.step_cost(steps) - worth * self.step * steps
        free = (self.slack.rate * gains**self.slack.power - worth * gains).sum(axis=1)
        return np.column_stack([*groups, whole, free])

    def near(self, level: Floats, gap: Floats) -> tuple[Floats, Floats]:
        """Least and greatest step counts, (n, i) each, whose cost - level gain, convex in the count, is within `gap`
        (n,) of its minimum: no choice with another count costs less than the Lagrangian bound plus the gap."""
        steps, gap = self.relaxed(level)[0], np.maximum(gap, 0.0)[:, None]
        if self.slack.power == 1:
            middle, radius = steps, gap / np.abs(self.unit - level[:, None] * self.step)
        else:
            middle = level[:, None] * self.step / (2 * self.unit**2)
            radius = np.sqrt(gap / self.unit**2 + (steps - middle) ** 2)
        radius = np.where(np.isnan(radius), np.inf, radius) * (1 + 1e-9) + 1e-9
        return np.clip(np.ceil(middle - radius), 0.0, self.most), np.clip(np.floor(middle + radius), 0.0, self.most)

    def gained(self, steps: Floats, picks: list[Ints]) -> Floats:
        """(n,) gain of a choice, without the continuous columns."""
        total = (steps * self.step).sum(axis=1)
        for gain, pick in zip(self.gain, picks, strict=True):
            total = total + gain[np.arange(len(gain)), pick]
        return np.asarray(total)

    def relaxed_gain(self, level: Floats) -> Floats:
        """(n,) gain of the relaxed choice, continuous columns included; it increases with the level."""
        return np.asarray(self.gained(*self.relaxed(level)) + self.slack_gains(level).sum(axis=1))


def multiplier(items: Items, goal: Floats) -> Floats:
    """(n,) multipliers at which the relaxed gain reaches the goal (n,), positive and below `items.total`, to a relative
    1e-11, by bisection of the logarithm."""
    low, high = np.full_like(goal, -1000.0), np.full_like(goal, 1000.0)
    for _ in range(48):
        middle = (low + high) / 2
        short = items.relaxed_gain(np.exp2(middle)) < goal
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    level: Floats = np.exp2(high)
    return level


# --- whole numbers and categories -----------------------------------------------------------------------------------

STATES, TRIED = 50_000, 2_000_000
"""Largest number of choices of one query that are stored, and that are examined, at a time."""
LEAST, FIRST, MOST = 1e-8, 3e-2, 1e15
"""Smallest, first and largest cap, as excess over the lower bound relative to it."""
TIE = 1e-14
"""Share of the goal up to which different gains count as equal."""


def solve(items: Items, enough: Floats, goal: Floats) -> tuple[Floats, list[Ints], Mask]:
    """Cheapest choice of each query, to gain the `goal` (n,) together with continuous columns; at a gain of `enough`
    (n,), which is less by rounding, choices need no continuous change.

    Returns:
        Steps (n, i); the category (n,) of each group; and (n,) bool, whether certainly no choice is cheaper, or none
        reaches the goal. Nothing changes where none does, or where this is uncertain.
    """
    total = items.total
    level = multiplier(items, np.minimum(goal, (1 - 1e-12) * total))
    bound = items.least(level).sum(axis=1) + level * goal
    values, proven = np.zeros((len(goal), len(items.gain) + len(items.step))), np.ones(len(goal), dtype=bool)
    for group, cost in enumerate(items.cost):
        values[:, group] = cost.argmin(axis=1)  # the query's own category costs nothing
    for at in np.flatnonzero((total >= enough) & (total > 0)).tolist():
        lists = _ChoiceLists(items.take(np.array([at])), float(enough[at]), float(goal[at]), float(level[at]))
        found = lists.cheapest(float(bound[at]))
        if found is None:
            proven[at] = False
        else:
            values[at] = found
    picks = [values[:, group].astype(np.intp) for group in range(len(items.gain))]
    return values[:, len(items.gain) :], picks, proven


def missing(gain: Floats, enough: Floats | float, goal: Floats | float, most: Floats) -> Floats:
    """Gain that continuous columns must add; all that they can (`most`) if only rounding errors are missing."""
    rest = np.where(gain >= enough, 0.0, goal - gain)
    return np.where((rest > most) & (enough - gain <= most), most, rest)


class _ChoiceLists:
    """The choices of one query that may be the cheapest; `level` is the multiplier of the Lagrangian bound."""

    def __init__(self, items: Items, enough: float, goal: float, level: float) -> None:
        self.items, self.enough, self.goal, self.level = items, enough, goal, level
        self.least: Floats = items.least(np.array([level]))[0]

    def cheapest(self, bound: float) -> Floats | None:
        """(g + i,) the category of each group and the steps of each column; None: the lists grew too long."""
        gap, empty, long = FIRST * bound, LEAST * bound, np.inf
        while long > 1.5 * empty and empty < MOST * bound:
            found, complete = self._below(bound, gap)
            if found is not None:
                return found
            empty, long = (gap, long) if complete else (empty, gap)
            gap = min(10 * empty, math.sqrt(empty * long))
        return None

    def _below(self, bound: float, gap: float) -> tuple[Floats | None, bool]:
        """The cheapest choice that costs at most `gap` more than the bound, and whether all of these were listed."""
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
        """The cheapest state (s,) after completion by continuous columns and one integer column, the steps of the
        latter, and the cost."""
        slack, counts = self.items.slack, np.zeros((1, len(gain)))
        if column is not None:
            step, unit, most = self.items.step[column], self.items.unit[column], self.items.most[0, column]
            rooms, rates = np.append([most * step], slack.room), np.append([(unit / step) ** slack.power], slack.rate)
            both = Slack(np.broadcast_to(rooms, (len(gain), len(rooms))), rates, slack.power)
            below = np.floor(both.gains(self.enough - gain)[:, 0] / step)
            counts = np.clip(below + np.array([[-1.0], [0.0], [1.0]]), 0.0, most)
            gain, cost = gain + counts * step, cost + (unit * counts) ** slack.power
        rest = missing(gain.ravel(), self.enough, self.goal, slack.total)
        each = replace(slack, room=np.broadcast_to(slack.room, (len(rest), slack.room.shape[1])))
        paid = cost.ravel() + each.cost(rest)
        best = int(paid.argmin())
        return best % counts.shape[1], float(counts.flat[best]), float(paid[best])


def _undominated(cost: Floats, gain: Floats, tie: float) -> NDArray[np.intp]:
    """States that gain more than all states of no higher cost, in order of cost."""
    order = np.lexsort((-gain, cost))
    best = np.maximum.accumulate(gain[order])
    more = np.append(np.ones(min(1, len(order)), dtype=bool), gain[order][1:] > best[:-1] + tie)
    return np.asarray(order[more])


# --- continuous columns -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Slack:
    """Continuous columns of n queries: gains (n, d) at their limits, at least 0, perhaps infinite, and positive finite
    costs (d,) of a unit of gain, to the power (1 or 2) that adds up over columns."""

    room: Floats
    rate: Floats
    power: int

    @property
    def total(self) -> Floats:
        """(n,) greatest gain."""
        return np.asarray(self.room.sum(axis=1))

    def cost(self, goal: Floats) -> Floats:
        """(n,) least cost, to the power, of gains (n,); infinite where out of reach."""
        paid = (self.rate * self.gains(goal) ** self.power).sum(axis=1)
        return np.where(goal > self.total, np.inf, paid)

    def gains(self, goal: Floats) -> Floats:
        """(n, d) gain of each column for goals (n,); all are full if out of reach."""
        goal = np.maximum(goal, 0.0)[:, None]
        full_at = np.broadcast_to(self.rate, self.room.shape) if self.power == 1 else self.room * self.rate
        order = np.argsort(full_at, axis=1, kind="stable")
        rooms, rates = np.take_along_axis(self.room, order, axis=1), self.rate[order]
        before = np.zeros_like(rooms)  # infinite only after an infinite room
        np.cumsum(rooms[:, :-1], axis=1, out=before[:, 1:])
        if self.power == 1 or not self.room.size:
            taken = np.empty_like(rooms)
            np.put_along_axis(taken, order, np.clip(goal - before, 0.0, rooms), axis=1)
            return taken
        slope = 1.0 / np.cumsum((1.0 / rates)[:, ::-1], axis=1)[:, ::-1]  # 1 / (speeds of this and the later columns)
        short = before + rooms * rates / slope < goal
        at = np.minimum(short.sum(axis=1, keepdims=True), rooms.shape[1] - 1)  # the column that is filling
        level = (goal - np.take_along_axis(before, at, axis=1)) * np.take_along_axis(slope, at, axis=1)
        return np.where(short.all(axis=1, keepdims=True), self.room, np.minimum(level / self.rate, self.room))
