"""Cheapest way to raise a linear score by changing continuous columns within limits.

A change of column j by t raises the score by at most |w_j| t, up to its room R_j = |w_j| (distance to the limit), and
costs c_j t. With gains g_j = |w_j| t_j the problem is: min sum cost_j(g_j) subject to sum g_j >= goal, 0 <= g_j <= R_j.

    L1: cost_j = (c_j / |w_j|) g_j; columns fill in order of their rate c_j / |w_j|.
    L2: squared cost_j = g_j^2 / s_j with speed s_j = (w_j / c_j)^2. The Karush-Kuhn-Tucker conditions give
        g_j = min(level s_j, R_j) at one level (water filling: Boyd and Vandenberghe 2004, example 5.2). Columns fill up
        in order of R_j / s_j; between two such points the total is linear in the level, so the level is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.found import Floats


@dataclass(frozen=True, eq=False)
class WaterFilling:
    """Rooms of n queries in the order in which their columns fill; (n, d) arrays but for those said otherwise.

    Attributes:
        power: 1 or 2, which power of the cost adds up over columns.
        room: gain at which each column is full, in the columns' own order.
        rate: (d,) what fills first: c/|w| for L1, its square for L2.
        before: gain of the columns filled earlier.
        reach: total gain when this column is full.
        spent: cost, to the power, of the columns filled earlier.
        slope: L1: rate of this column; L2: 1 / (sum of the speeds of this column and the later ones).
    """

    power: int
    room: Floats
    rate: Floats
    before: Floats
    reach: Floats
    spent: Floats
    slope: Floats

    @classmethod
    def of(cls, room: Floats, rate: Floats, power: int) -> WaterFilling:
        """Sort the columns.

        Args:
            room: (n, d) gains at the limits, at least 0, may be infinite.
            rate: (d,) (c/|w|)^power, positive and finite.
            power: 1 for L1, 2 for L2.
        """
        if power == 1:
            order = np.broadcast_to(np.argsort(rate, kind="stable"), room.shape)
        else:
            order = np.argsort(room * rate, axis=1, kind="stable")
        rooms, rates = np.take_along_axis(room, order, axis=1), rate[order]
        before = _exclusive(rooms)
        full = rates * rooms**power
        if power == 1:
            reach, slope = before + rooms, rates
        else:
            slope = 1.0 / np.cumsum((1.0 / rates)[:, ::-1], axis=1)[:, ::-1]
            reach = before + rooms * rates / slope
        return cls(power, room, rate, before, reach, _exclusive(full), slope)

    @property
    def total(self) -> Floats:
        """(n,) greatest gain, as `cost` adds it up."""
        return self.reach[:, -1] if self.room.shape[1] else np.zeros(len(self.room))

    def cost(self, goal: Floats) -> Floats:
        """(n, k) least cost, to the power, of k gains (n, k) of each query; infinite where out of reach."""
        goal = np.maximum(goal, 0.0)
        if not self.room.shape[1]:
            return np.where(goal > 0, np.inf, 0.0)
        at, missing = self._piece(goal)
        spent, slope = np.take_along_axis(self.spent, at, axis=1), np.take_along_axis(self.slope, at, axis=1)
        above = goal - np.take_along_axis(self.before, at, axis=1)
        return np.where(missing, np.inf, spent + slope * above**self.power)

    def _piece(self, goal: Floats) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """(n, k) which column fills up next at each goal (n, k), and whether none does; 0 there."""
        at = np.zeros(goal.shape, dtype=np.intp)
        for column in range(self.reach.shape[1]):
            at += self.reach[:, column, None] < goal
        missing: NDArray[np.bool_] = at == self.reach.shape[1]
        at[missing] = 0
        return at, missing

    def gains(self, goal: Floats) -> Floats:
        """(n, d) gain of each column, in the columns' own order, for goals (n,); all full if out of reach."""
        goal = np.maximum(goal, 0.0)
        if not self.room.shape[1]:
            return self.room
        at, missing = (found[:, 0] for found in self._piece(goal[:, None]))
        row = np.arange(len(goal))
        if self.power == 1:
            order = np.argsort(self.rate, kind="stable")
            taken = np.empty_like(self.room)
            taken[:, order] = np.clip(goal[:, None] - self.before, 0.0, self.room[:, order])
        else:
            level = (goal - self.before[row, at]) * self.slope[row, at]
            taken = np.minimum(level[:, None] / self.rate, self.room)
        return np.where(missing[:, None], self.room, taken)


def _exclusive(values: Floats) -> Floats:
    """Sums of the earlier columns; infinite only from an infinite column on."""
    sums = np.zeros_like(values)
    np.cumsum(values[:, :-1], axis=1, out=sums[:, 1:])
    return sums
