"""The Lagrangian relaxation of a separable knapsack, many queries at once.

Each integer column (k steps towards its better side) and each one-hot group (its categories) is an item whose choice
has a gain in score and a cost; continuous columns fill up what is missing (`WaterFilling`). For a multiplier m every
item alone minimises cost - m gain (Everett 1963; with one choice a group, Sinha and Zoltners 1979). The sum of these
minima plus m goal is a lower bound on the cost of every choice that reaches the goal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.found import Floats
from safexplain.recourse.linear.water_filling import WaterFilling

Ints = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Items:
    """Choices of n queries.

    Args:
        step: (i,) gain of one step of each integer column.
        unit: (i,) cost of one step.
        most: (n, i) greatest number of steps.
        gain: one (n, k) array for each group, gain of each category over the query's own.
        cost: one (n, k) array for each group, cost to the power; infinite for categories that are ruled out.
        slack: what the continuous columns can add.
    """

    step: Floats
    unit: Floats
    most: Floats
    gain: tuple[Floats, ...]
    cost: tuple[Floats, ...]
    slack: WaterFilling

    def take(self, rows: Ints) -> Items:
        """The items of some queries."""
        gain, cost = (tuple(array[rows] for array in arrays) for arrays in (self.gain, self.cost))
        slack = WaterFilling.of(self.slack.room[rows], self.slack.rate, self.slack.power)
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
        price: Floats = (self.unit * steps) ** self.slack.power
        return price

    def relaxed(self, level: Floats) -> tuple[Floats, list[Ints]]:
        """Each item's own best choice at multiplier `level` (n,): steps (n, i), and a category (n,) for each group."""
        worth = level[:, None] * self.step
        if self.slack.power == 1:
            steps = np.where(worth > self.unit, self.most, 0.0)
        else:
            steps = np.clip(np.rint(worth / (2 * self.unit**2)), 0.0, self.most)
        picks = [(cost - level[:, None] * gain).argmin(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        return steps, picks

    def slack_gains(self, level: Floats) -> Floats:
        """(n, c) what the continuous columns gain when each alone minimises its cost - level gain."""
        rate, room = self.slack.rate, self.slack.room
        if self.slack.power == 1:
            return np.where(level[:, None] > rate, room, 0.0)
        return np.minimum(level[:, None] / (2 * rate), room)

    def least(self, level: Floats) -> Floats:
        """(n, g + i + 1) least cost - level gain of each group, each integer column, and the continuous columns."""
        worth, steps, alone = level[:, None], self.relaxed(level)[0], self.slack_gains(level)
        groups = [(cost - worth * gain).min(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        whole = self.step_cost(steps) - worth * self.step * steps
        free = (self.slack.rate * alone**self.slack.power - worth * alone).sum(axis=1)
        return np.column_stack([*groups, whole, free])

    def near(self, level: Floats, gap: Floats) -> tuple[Floats, Floats]:
        """Least and greatest step counts, (n, i) each, whose cost - level gain is within `gap` (n,) of its least.

        It is convex in the count. Any other count is in no choice cheaper than the Lagrangian bound plus the gap.
        """
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
        """(n,) gain of the relaxed choice, with the continuous columns; it rises with the level."""
        total: Floats = self.gained(*self.relaxed(level)) + self.slack_gains(level).sum(axis=1)
        return total


def multiplier(items: Items, goal: Floats) -> Floats:
    """(n,) the multiplier, to 1e-11 of it, where the relaxed gain reaches the goal; by bisection of its logarithm.

    Args:
        items: what can be chosen.
        goal: (n,) positive, a little below `items.total` at most.
    """
    low, high = np.full_like(goal, -1000.0), np.full_like(goal, 1000.0)
    for _ in range(48):
        middle = (low + high) / 2
        short = items.relaxed_gain(np.exp2(middle)) < goal
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    level: Floats = np.exp2(high)
    return level
