"""Columns cut at the splits of a forest, and leaves as boxes of cells.

Between two neighbouring splits of its column nothing that the trees see changes, so the cheapest change lies, in each
column, at the value of some cell that is nearest to the query, whatever the cost, as long as it adds up over columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.recourse.program.moves import Query
from safexplain.recourse.result import Floats
from safexplain.recourse.trees.forest import Forest
from safexplain.recourse.trees.tree import LEAF, Ints, Tree

MOST_LEAVES = 5_000_000
"""Paths to leaves, of sets of categories and states above all, beyond which a forest is refused."""


@dataclass(frozen=True, eq=False)
class Leaves:
    """The l leaves of a forest.

    Args:
        thresholds: of each column, rising; cell i holds the values above threshold i - 1 and up to threshold i.
        low: (l, d) first cell of each leaf in each column.
        high: (l, d) last cell.
        tree: (l,) number of its tree.
        value: (l, r) what it adds to the lead over each other class.
        base: (r,) what these start from.
        trees: how many trees there are.
    """

    thresholds: tuple[Floats, ...]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    tree: Ints
    value: Floats
    base: Floats
    trees: int

    @classmethod
    def of(cls, forest: Forest) -> Leaves:
        """All leaves that some row reaches."""
        if forest not in _KNOWN:
            _KNOWN[forest] = cls._of(forest)
        return _KNOWN[forest]

    @classmethod
    def _of(cls, forest: Forest) -> Leaves:
        trees, d = forest.ensemble.trees, forest.width
        column = np.concatenate([tree.column for tree in trees])
        threshold = np.concatenate([tree.threshold for tree in trees])
        cuts = tuple(np.unique(threshold[(column == at) & np.isfinite(threshold)]) for at in range(d))
        weights = forest.weights
        parts = []
        for number, tree in enumerate(trees):
            low, high, leaf = _paths(tree, cuts)
            parts.append((low, high, np.full(len(leaf), number), tree.value[leaf].astype(np.float64) @ weights.T))
            if sum(len(part[0]) for part in parts) > MOST_LEAVES:
                raise InputError(
                    f"model: its trees have more than {MOST_LEAVES:,} ways to their leaves; train fewer or shallower"
                    " trees, or encode categories in fewer columns"
                )
        base = forest.ensemble.base.astype(np.float64) @ weights.T
        low, high, tree_, value = (np.concatenate([part[at] for part in parts]) for at in range(4))
        return cls(cuts, low, high, tree_.astype(np.intp), value, base, len(trees))

    def take(self, which: NDArray[np.bool_]) -> Leaves:
        """Some of them."""
        return replace(self, low=self.low[which], high=self.high[which], tree=self.tree[which], value=self.value[which])


_KNOWN: WeakKeyDictionary[Forest, Leaves] = WeakKeyDictionary()


def _paths(tree: Tree, cuts: tuple[Floats, ...]) -> tuple[NDArray[np.int32], NDArray[np.int32], Ints]:
    """First and last cells (l, d) on each possible way to a leaf, and the leaf (l,); level by level."""
    d = len(cuts)
    at = np.zeros(tree.column.shape, dtype=np.intp)  # number of each split's threshold
    for column in range(d):
        own = tree.column == column
        at[own] = np.searchsorted(cuts[column], tree.threshold[own], side="left")
    last = np.array([len(each) for each in cuts], dtype=np.int32)
    node = np.zeros(1, dtype=np.intp)
    low, high = np.zeros((1, d), dtype=np.int32), last[None].copy()
    found: list[tuple[NDArray[np.int32], NDArray[np.int32], Ints]] = []
    while len(node):
        done = tree.column[node] == LEAF
        found.append((low[done], high[done], node[done]))
        node, low, high = node[~done], low[~done], high[~done]
        rows, column = np.arange(len(node)), tree.column[node]
        cut = at[node]
        never = tree.threshold[node] == -np.inf
        left_high, right_low = high.copy(), low.copy()
        left_high[rows, column] = np.where(never, -1, np.minimum(high[rows, column], cut))
        right_low[rows, column] = np.where(never, low[rows, column], np.maximum(low[rows, column], cut + 1))
        goes_left = left_high[rows, column] >= low[rows, column]
        goes_right = right_low[rows, column] <= high[rows, column]
        node = np.concatenate([tree.left[node][goes_left], tree.right[node][goes_right]])
        low = np.concatenate([low[goes_left], right_low[goes_right]])
        high = np.concatenate([left_high[goes_left], high[goes_right]])
    return (
        np.concatenate([part[0] for part in found]),
        np.concatenate([part[1] for part in found]),
        np.concatenate([part[2] for part in found]),
    )


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells that a query's answer may lie in; neighbours that no leaf tells apart are one.

    Args:
        leaves: those that it may reach; their cells are numbered as here, their thresholds are not.
        query: of which the cells are.
        point: of each column, (m,) the value of each cell that is nearest to the query.
        cost: of each column, (m,) what that costs, to the power; 0 in one-hot groups, whose categories cost.
        low: of each column, (m,) least allowed value of each cell.
        high: of each column, (m,) greatest one.
    """

    leaves: Leaves
    query: Query
    point: tuple[Floats, ...]
    cost: tuple[Floats, ...]
    low: tuple[Floats, ...]
    high: tuple[Floats, ...]

    @classmethod
    def of(cls, leaves: Leaves, query: Query) -> Cells:
        """All cells between the query's limits."""
        member = query.grouped
        point, cost, lows, highs = list[Floats](), list[Floats](), list[Floats](), list[Floats]()
        for column, cuts in enumerate(leaves.thresholds):
            low, high = np.append(-np.inf, np.nextafter(cuts, np.inf)), np.append(cuts, np.inf)
            if member[column]:
                zero, one = (int(np.searchsorted(cuts, value)) for value in (0.0, 1.0))
                points = np.zeros(len(low))
                points[one] = 1.0
                possible = np.isin(np.arange(len(low)), (zero, one))
                low, high = points.copy(), points.copy()
                low[zero] = 0.0
                prices = np.zeros(len(low))
            else:
                low, high = np.maximum(query.low[column], low), np.minimum(query.high[column], high)
                points, possible = _nearest(float(query.x[column]), low, high, float(query.step[column]))
                rows = np.tile(query.x, (len(points), 1))
                rows[:, column] = points
                start = np.broadcast_to(query.x, rows.shape)
                prices = query.cost.parts(rows - start, start)[:, column]
            point.append(points)
            cost.append(np.where(possible, prices, np.inf))
            lows.append(low)
            highs.append(high)
        return cls(leaves, query, tuple(point), tuple(cost), tuple(lows), tuple(highs))._merged()

    def within(self, radius: float) -> Cells:
        """Without the cells and leaves that no row within the radius reaches."""
        found = replace(self, cost=tuple(np.where(cost <= radius, cost, np.inf) for cost in self.cost))
        leaves, least = found.leaves, found._of_groups()
        for column, cost in enumerate(found.cost):
            least += _least(cost, leaves.low[:, column], leaves.high[:, column])
        return replace(found, leaves=leaves.take(least <= radius))._merged()

    def _merged(self) -> Cells:
        leaves = self.leaves
        low, high = leaves.low.copy(), leaves.high.copy()
        allowed = [np.flatnonzero(np.isfinite(cost)) for cost in self.cost]
        for column, cells in enumerate(allowed):
            low[:, column] = np.searchsorted(cells, low[:, column], side="left")
            high[:, column] = np.searchsorted(cells, high[:, column], side="right") - 1
        leaves = replace(leaves, low=low, high=high).take((low <= high).all(axis=1))
        low, high = leaves.low, leaves.high
        point, cost, lows, highs = list[Floats](), list[Floats](), list[Floats](), list[Floats]()
        for column, cells in enumerate(allowed):
            ends = np.union1d(high[:, column] + 1, low[:, column])
            starts = np.union1d([0], ends[(ends > 0) & (ends < len(cells))]).astype(np.intp)[: len(cells)]
            low[:, column] = np.searchsorted(starts, low[:, column], side="left")
            high[:, column] = np.searchsorted(starts, high[:, column], side="right") - 1
            merged = list(zip(starts, np.append(starts[1:], len(cells))[: len(starts)], strict=True))
            best = [cells[a:b][self.cost[column][cells[a:b]].argmin()] for a, b in merged]
            point.append(self.point[column][best])
            cost.append(self.cost[column][best])
            lows.append(self.low[column][cells[starts]])
            highs.append(self.high[column][[cells[b - 1] for _, b in merged]])
        return Cells(leaves, self.query, tuple(point), tuple(cost), tuple(lows), tuple(highs))

    @property
    def empty(self) -> bool:
        """Whether some tree has no leaf left, or some column no cell."""
        return not all(map(len, self.cost)) or len(np.unique(self.leaves.tree)) < self.trees

    @property
    def trees(self) -> int:
        """Number of trees."""
        return self.leaves.trees

    def _of_groups(self) -> Floats:
        """(l,) what the cheapest category of each one-hot group costs that a leaf allows."""
        leaves, total = self.leaves, np.zeros(len(self.leaves.low))
        for group, admissible in self.query.groups:
            best = np.full(len(total), np.inf)
            for at, price in enumerate(self.query.prices(group)):
                if not admissible[at]:
                    continue
                inside = np.ones(len(total), dtype=bool)
                for column, cell in zip(group.tolist(), self.category(group, at).tolist(), strict=True):
                    inside &= (leaves.low[:, column] <= cell) & (cell <= leaves.high[:, column])
                best = np.where(inside, np.minimum(best, price), best)
            total += best
        return total

    def category(self, group: Ints, at: int) -> Ints:
        """(k,) cells of a group's columns where one of its categories holds."""
        return np.array(
            [np.searchsorted(self.high[column], float(own == at)) for own, column in enumerate(group.tolist())],
            dtype=np.intp,
        )

    def row(self, cell: Ints) -> Floats:
        """(d,) the cheapest row in these cells (d,), but for one-hot groups."""
        return np.array([points[at] for points, at in zip(self.point, cell, strict=True)])


def _least(cost: Floats, low: NDArray[np.int32], high: NDArray[np.int32]) -> Floats:
    """(l,) least cost in each range of cells, or less; costs fall towards one cell and rise after it."""
    if not len(cost):
        return np.full(len(low), np.inf)
    best = int(cost.argmin())
    after, before = np.minimum.accumulate(cost[::-1])[::-1], np.minimum.accumulate(cost)
    return np.asarray(np.where(low > best, after[low], np.where(high < best, before[high], cost[best])))


def _nearest(x: float, low: Floats, high: Floats, step: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Values (m,) in the limits (m,) that are nearest to x, and whether there are any."""
    if not step:
        return np.clip(x, low, np.maximum(low, high)), low <= high
    with np.errstate(invalid="ignore", over="ignore"):
        count = np.clip(0.0, np.ceil((low - x) / step - 1e-9), np.inf)
        count = np.where(low > x, count, -np.clip(0.0, np.ceil((x - high) / step - 1e-9), np.inf))
        points = x + count * step
    # rounding may have put a value just outside of its cell
    for shift in (np.sign(low - points), np.sign(high - points)):
        wrong = ((points < low) & (shift > 0)) | ((points > high) & (shift < 0))
        points = np.where(wrong, x + (count + shift) * step, points)
    possible = (low <= points) & (points <= high) & np.isfinite(points)
    return np.where(possible, points, x), possible
