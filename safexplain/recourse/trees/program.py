"""The cheapest change of one query that a forest decides favourably, by a mixed-integer program.

Each split of a column has a binary that says on which side the row lies, in the order of the splits; a column's cost is
linear in these whatever the cost is, as each cell has its own. Each leaf has a share, one in each tree; the leaves on
one side of a split add up to at most the binary of that side, tree by tree and split by split (Misic 2020, Optimization
of tree ensembles, Operations Research 68, equations 2c and 2d, here of all splits of a tree at a threshold at once).

What a quick search finds (`search`) first takes away the cells and leaves that only dearer rows reach: few are left.
Columns that rules link keep a continuous change beside their cells (`safexplain.recourse.program.moves`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.program.moves import CLOSE, COST, Answer, Moves, Query
from safexplain.recourse.result import Floats
from safexplain.recourse.trees.cells import Cells, Leaves
from safexplain.recourse.trees.forest import Forest
from safexplain.recourse.trees.search import EXPONENTS, Search
from safexplain.recourse.trees.tree import Ints

ROUNDS = 500
"""Programs solved for one query at most; each forbids what the last one took for an answer and was none."""
SCORE = 1e2
"""Size of the largest value of a leaf in the program."""


def solve_forest(forest: Forest, query: Query, target: float, time_limit: float) -> Answer:
    """The cheapest change of one query, whose score is too low.

    Args:
        forest: the model.
        query: what may change, and at what cost.
        target: score to reach.
        time_limit: seconds.
    """
    step = query.step.copy()
    codes = list(forest.ensemble.categorical)
    step[codes] = np.where(step[codes] > 0, step[codes], 1.0)
    return _ForestSearch(forest, replace(query, step=step), target, time.monotonic() + time_limit).run()


@dataclass(eq=False)
class _ForestSearch:
    """The way to one query's answer."""

    forest: Forest
    query: Query
    target: float
    deadline: float

    def __post_init__(self) -> None:
        outputs = len(self.forest.ensemble.base)
        share = float(self.forest.ensemble.scores(np.ones((1, outputs)))[0, 0])
        self.needed = self.target / share
        """Lead over each other class, as the trees add up to it."""
        rules = self.query.rules
        self.linked = np.isin(np.arange(len(self.query.x)), [column for pair in rules.linked for column in pair])
        self.linked &= ~self.query.grouped
        self.best: Floats | None = None
        self.paid = np.inf

    def run(self) -> Answer:
        """The answer."""
        cells = Cells.of(Leaves.of(self.forest), self.query)
        if cells.empty:
            return Answer(None, np.inf, np.inf)
        self._search(cells)
        if self.best is not None:
            cells = cells.within(self.paid * (1 + CLOSE))
        return self._solve(cells)

    def _search(self, cells: Cells) -> None:
        """Look for a good answer quickly."""
        search = Search(cells, self.needed, self.query.rules.most_changes)
        for exponent in EXPONENTS:
            if time.monotonic() > self.deadline:
                break
            found = search.found(exponent)
            if found is not None:
                self._offer(search.row(*found))

    def _offer(self, row: Floats) -> bool:
        """Keep a row (d,) if it is an answer and the best so far; whether it is an answer."""
        row = self.query.projected(row)
        if not self.query.kept(row) or not self._reached(row):
            return False
        if (paid := self.query.paid(row)) < self.paid:
            self.best, self.paid = row, paid
        return True

    def _reached(self, row: Floats) -> bool:
        if self.forest.score(row[None])[0] < self.target:
            return False
        return self.target < 0 or bool(self.forest.decide(row[None])[0])

    def _radius(self, cells: Cells) -> float:
        """What no answer that is looked for costs more than."""
        if self.best is not None:
            return self.paid
        total = sum(float(cost.max()) for cost in cells.cost)
        total += sum(float(self.query.prices(group)[admissible].max()) for group, admissible in self.query.groups)
        return max(total * (16.0 if self.linked.any() else 1.0), float(np.finfo(np.float64).tiny) * 1e50)

    def _solve(self, cells: Cells) -> Answer:
        """Programs, until one proves the best answer or time is up."""
        radius = self._radius(cells)
        inner = self.query.narrowed(radius)
        x = self.query.x
        inner = replace(
            inner,
            low=np.where(self.linked | inner.grouped, inner.low, x),
            high=np.where(self.linked | inner.grouped, inner.high, x),
            step=np.where(self.linked, inner.step, 0.0),
        )
        curves = [
            inner.curve(at) if self.linked[at] and inner.low[at] < inner.high[at] else None for at in range(len(x))
        ]
        bound, forbidden = 0.0, list[NDArray[np.bool_]]()
        for _ in range(ROUNDS):
            if cells.empty:
                return Answer(self.best, self.paid, self.paid)
            program = _ForestProgram(cells, Moves(inner, curves, radius), self.linked, self.needed, radius)
            for together in forbidden:
                program.forbid(together)
            if self.best is not None:
                program.limit(self.paid * (1 - CLOSE / 2))
            solved = program.moves.program.solve(self.deadline - time.monotonic())
            if solved.infeasible:
                bound = self.paid if self.best is not None or not self.linked.any() else radius
                break
            bound = max(bound, min(solved.bound * radius / COST + program.paid, self.paid))
            if solved.values is None:
                break
            row, cell, moved = program.read(solved.values)
            good = self._offer(row)
            if self.paid <= bound * (1 + CLOSE) or time.monotonic() > self.deadline:
                break
            new = program.moves.refine(moved) if self.linked.any() else False
            if not good:
                leaves = cells.leaves
                inside = ((leaves.low <= cell) & (cell <= leaves.high)).all(axis=1)
                if self._reached(row) and not new:
                    break
                forbidden.append(inside)
            elif not new:
                break
        return Answer(self.best, self.paid, min(bound, self.paid))


class _ForestProgram:
    """One program.

    Args:
        cells: where answers may lie.
        moves: variables of the columns that rules link, and of one-hot groups.
        linked: (d,) bool, the former.
        needed: least lead over each other class.
        radius: what no answer costs more than.
    """

    def __init__(self, cells: Cells, moves: Moves, linked: NDArray[np.bool_], needed: float, radius: float) -> None:
        self.cells, self.moves, self.linked = cells, moves, linked
        self.paid = moves.paid
        self.program = moves.program
        self.radius = radius
        self.beyond: list[Ints] = []
        """Of each column, binaries of its splits: 1 where the row lies beyond."""
        for column in range(len(cells.cost)):
            self.beyond.append(self._column(column))
        self.leaf = self.program.shares(len(cells.leaves.tree))
        self._trees()
        self._score(needed)
        most = cells.query.rules.most_changes
        if most is not None:
            self._limit_changes(most)

    def _column(self, column: int) -> Ints:
        cells, program, query = self.cells, self.program, self.cells.query
        cost = cells.cost[column]
        if query.grouped[column]:
            if len(cost) < 2:
                return np.empty(0, dtype=np.intp)
            return np.array([*self.moves.change[column].variables], dtype=np.intp)
        linked = self.linked[column]
        if not linked:
            self.paid += float(cost[0])
        beyond = program.binaries(np.zeros(len(cost) - 1) if linked else np.diff(cost) * (COST / self.radius))
        if len(beyond) > 1:
            count = len(beyond) - 1
            rows = np.repeat(np.arange(count), 2)
            entries = np.tile([1.0, -1.0], count)
            program.rows(count, rows, np.column_stack([beyond[:-1], beyond[1:]]).ravel(), entries, 0.0)
        if linked and len(beyond):
            change, fixed = self.moves.change[column], self.moves.fixed[column] + query.x[column]
            inner = self.moves.query
            size = max(self.moves.size(column), float(np.finfo(np.float64).tiny))
            for side, ends in ((1.0, cells.low[column]), (-1.0, cells.high[column])):
                ends = np.clip(ends, inner.low[column], inner.high[column])
                factors = [*change.scaled(side / size), *(-side * np.diff(ends) / size)]
                program.row([*change.variables, *beyond], factors, side * (float(ends[0]) - fixed) / size)
        return beyond

    def _trees(self) -> None:
        """Shares of leaves add up to 1 in each tree, and to no more than each side's binary on that side."""
        leaves, program = self.cells.leaves, self.program
        order = np.argsort(leaves.tree, kind="stable")
        starts = np.searchsorted(leaves.tree[order], np.arange(leaves.trees + 1))
        program.rows(leaves.trees, leaves.tree, self.leaf, np.ones(len(self.leaf)), 1.0, 1.0)
        for tree in range(leaves.trees):
            own = order[starts[tree] : starts[tree + 1]]
            for column, beyond in enumerate(self.beyond):
                if not len(beyond):
                    continue
                low, high = leaves.low[own, column], leaves.high[own, column]
                used = np.union1d(low - 1, high)
                used = used[(used >= 0) & (used < len(beyond))]
                if not len(used):
                    continue
                for inside, sign in ((low > used[:, None], -1.0), (high <= used[:, None], 1.0)):
                    rows, which = inside.nonzero()
                    rows = np.concatenate([rows, np.arange(len(used))])
                    columns = np.concatenate([self.leaf[own[which]], beyond[used]])
                    entries = np.concatenate([np.ones(len(which)), np.full(len(used), sign)])
                    program.rows(len(used), rows, columns, entries, -np.inf, 0.0 if sign < 0 else 1.0)

    def _score(self, needed: float) -> None:
        leaves = self.cells.leaves
        size = float(np.abs(leaves.value).max(initial=0.0)) or 1.0
        for value, base in zip(leaves.value.T, leaves.base, strict=True):
            self.program.row(self.leaf, value * (SCORE / size), (needed - float(base)) * SCORE / size)

    def _limit_changes(self, most: int) -> None:
        cells, query = self.cells, self.cells.query
        counted, entries = list[int](), list[float]()
        for column, beyond in enumerate(self.beyond):
            if query.grouped[column] or self.linked[column]:
                continue
            most -= 1
            own = np.flatnonzero(cells.point[column] == query.x[column])
            if not len(own):
                continue
            if own[0] == 0:
                most += 1
            else:
                counted.append(int(beyond[own[0] - 1]))
                entries.append(-1.0)
            if own[0] < len(beyond):
                counted.append(int(beyond[own[0]]))
                entries.append(1.0)
        self.moves.limit_changes(most, counted, entries)

    def limit(self, paid: float) -> None:
        """Let the answer cost no more."""
        price = COST / self.radius
        self.program.limit_cost((paid - self.paid) * price)

    def forbid(self, leaves: NDArray[np.bool_]) -> None:
        """Rule out that all of these leaves, one in each tree, are reached at once."""
        chosen = self.leaf[leaves]
        self.program.row(chosen, np.ones(len(chosen)), -np.inf, len(chosen) - 1.0)

    def read(self, values: Floats) -> tuple[Floats, Ints, Floats]:
        """The row (d,) of a solution, its cells (d,), and the row as far as the moves know it."""
        cells, query = self.cells, self.cells.query
        cell = np.array([int((values[beyond] > 0.5).sum()) for beyond in self.beyond], dtype=np.intp)
        moved, _ = self.moves.read(values)
        own = cells.row(cell)
        row = np.where(query.grouped, moved, own)
        for column in np.flatnonzero(self.linked):
            row[column] = np.clip(moved[column], cells.low[column][cell[column]], cells.high[column][cell[column]])
            if query.step[column]:
                row[column] = moved[column]
        return row, cell, moved
