"""What a change of one column costs, bounded from below by straight lines on pieces of its range.

A convex cost needs one piece: a cost made of straight lines is their maximum, and a square is bounded by tangents (by
secants between neighbouring whole numbers, where only these are possible), which are added where a solution lies. A
cost that is not convex is cut in pieces, of which a solution chooses one; on each, the lower convex hull bounds it.
Both are exact where they were refined, so that solving and refining again and again closes the gap (outer
approximation: Duran and Grossmann 1986; pieces with the perspective of their lines: Croxton, Gendron and Magnanti 2003,
the multiple choice model).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from safexplain.recourse.found import Floats

PIECES = 12
"""Pieces of a cost that is not convex, to begin with."""
Line = tuple[float, float]
"""Slope and value at a change of 0."""


@dataclass(eq=False)
class Piece:
    """A part of a column's range of changes, with lines below its cost there."""

    low: float
    high: float
    lines: list[Line]


@dataclass(eq=False)
class Square:
    """(unit * change)^2 on a range.

    Args:
        rise: unit of changes upwards.
        fall: unit of changes downwards.
        step: distance of the changes that are possible; 0: all are.
        low: least change.
        high: greatest change.
    """

    rise: float
    fall: float
    step: float
    low: float
    high: float
    pieces: list[Piece] = field(init=False)

    def __post_init__(self) -> None:
        self.pieces = [Piece(self.low, self.high, [])]
        for change in sorted({self.low, self.high, (self.low + self.high) / 2, min(max(0.0, self.low), self.high)}):
            self.refine(change)

    def cost(self, change: float) -> float:
        """Of one change."""
        return float(((self.rise if change > 0 else self.fall) * change) ** 2)

    def refine(self, change: float) -> bool:
        """Make the lines exact at a change; whether there is a new one."""
        lines = self.pieces[0].lines
        if _exact(lines, change, self.cost(change)):
            return False
        if self.step:
            below = float(np.floor(change / self.step + 1e-9) * self.step)
            new = [self._secant(below - self.step, below), self._secant(below, below + self.step)]
        else:
            slope = 2 * (self.rise if change > 0 else self.fall) ** 2 * change
            new = [(slope, -self.cost(change))]
        new = [line for line in new if line not in lines]
        lines += new
        return bool(new)

    def _secant(self, left: float, right: float) -> Line:
        slope = (self.cost(right) - self.cost(left)) / (right - left)
        return slope, self.cost(left) - slope * left


@dataclass(eq=False)
class Polyline:
    """A cost made of straight lines between points.

    Args:
        at: (k,) changes, rising, from the least to the greatest.
        costs: (k,) there.
    """

    at: Floats
    costs: Floats
    pieces: list[Piece] = field(init=False)

    def __post_init__(self) -> None:
        if len(self.at) > PIECES + 1 and not self._convex(0, len(self.at) - 1):
            origin = int(np.searchsorted(self.at, 0.0))
            ends = {*np.linspace(0, len(self.at) - 1, PIECES + 1).astype(int).tolist(), min(origin, len(self.at) - 1)}
        else:
            ends = {0, len(self.at) - 1} if self._convex(0, len(self.at) - 1) else set(range(len(self.at)))
        self._cut(sorted(ends))

    def cost(self, change: float) -> float:
        """Of one change."""
        return float(np.interp(change, self.at, self.costs))

    def refine(self, change: float) -> bool:
        """Make the lines exact around a change; whether the pieces are others now."""
        after = min(max(int(np.searchsorted(self.at, change)), 1), len(self.at) - 1)
        ends = {int(np.searchsorted(self.at, piece.low)) for piece in self.pieces} | {len(self.at) - 1}
        inside = next((piece for piece in self.pieces if piece.low <= change <= piece.high), self.pieces[0])
        if {after - 1, after} <= ends or _exact(inside.lines, change, self.cost(change)):
            return False
        self._cut(sorted(ends | {after - 1, after}))
        return True

    def _convex(self, first: int, last: int) -> bool:
        slopes = np.diff(self.costs[first : last + 1]) / np.diff(self.at[first : last + 1])
        return bool((np.diff(slopes) >= -1e-12 * np.abs(slopes).max(initial=0.0)).all())

    def _cut(self, ends: list[int]) -> None:
        if len(ends) < 2:
            value = float(self.costs[0])
            self.pieces = [Piece(float(self.at[0]), float(self.at[0]), [(0.0, value)])]
            return
        self.pieces = [
            Piece(float(self.at[a]), float(self.at[b]), _hull(self.at[a : b + 1], self.costs[a : b + 1]))
            for a, b in pairwise(ends)
        ]


Curve = Square | Polyline


def _exact(lines: list[Line], change: float, cost: float) -> bool:
    """Whether the lines reach the cost of a change."""
    return any(slope * change + value >= cost * (1 - 1e-12) for slope, value in lines)


def _hull(at: Floats, costs: Floats) -> list[Line]:
    """Lines of the lower convex hull of points (Andrew's monotone chain)."""
    kept: list[tuple[float, float]] = []
    for x, y in zip(at.tolist(), costs.tolist(), strict=True):
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            kept.pop()
        kept.append((x, y))
    lines = []
    for (x0, y0), (x1, y1) in pairwise(kept):
        slope = (y1 - y0) / (x1 - x0)
        lines.append((slope, y0 - slope * x0))
    return lines
