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
NEARLY = 1.1
"""Share of the widest radius from which on that is taken at once."""
GROWTH = 1.35
"""By how much the radius grows, to the power of the cost."""
BISECTIONS = 8
"""Of the cost below which no answer can be, before any program is solved."""
LOWEST = 1e-4
"""Share of the widest radius where the bisection begins."""
SEARCHED = 0.1
"""Share of the time for the quick search, and for the bisection."""
IMPROVED = 2
"""Rounds of improvements of what it found."""
LEAVES_A_SECOND = 3000
"""Leaves for which a program is still put together, for each second that is left."""
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
        """The answer.

        Programs look within a radius of costs that grows until there is an answer: small ones are solved in no time,
        and one without a solution proves that no answer is as cheap.
        """
        everything = Cells.of(Leaves.of(self.forest), self.query)
        if everything.empty or not self._possible(everything):
            return Answer(None, np.inf, np.inf)
        cells = self._search(everything)
        if self.paid <= 0:  # too small a change to cost anything: LightGBM's splits at 1e-35
            return Answer(self.best, 0.0, 0.0)
        top = self._radius(cells)
        bound = self._least(cells, top)
        radius, growth = bound, GROWTH**self.query.cost.power
        while True:
            radius = max(radius * growth, top * LOWEST)
            top = self._radius(cells)
            if radius * NEARLY > top:
                radius = top
            near = cells.within(radius * (1 + CLOSE))
            solved = None if near.empty else self._solve(near, radius, radius == top)
            bound = max(bound, radius if solved is None else solved)
            if self.paid <= bound * (1 + CLOSE):
                return Answer(self.best, self.paid, self.paid)
            if radius == top:
                return Answer(self.best, self.paid, bound)
            if time.monotonic() > self.deadline:
                return Answer(self.best, self.paid, bound)

    def _possible(self, cells: Cells) -> bool:
        """Whether each class might be beaten if each tree's best leaf among the cells could be had."""
        leaves = cells.leaves
        best = np.full((leaves.trees, leaves.value.shape[1]), -np.inf)
        np.maximum.at(best, leaves.tree, leaves.value)
        slack = 1e-9 * float(np.abs(best).sum()) if np.isfinite(best).all() else 0.0
        return bool((best.sum(axis=0) + leaves.base + slack >= self.needed).all())

    def _least(self, cells: Cells, top: float) -> float:
        """A cost below which no answer lies, by bisection with `_possible`."""
        low, high, until = top * LOWEST, top, time.monotonic() + SEARCHED * (self.deadline - time.monotonic())
        near = cells.within(low)
        if not near.empty and self._possible(near):
            return 0.0
        for _ in range(BISECTIONS):
            middle = np.sqrt(low * high)
            near = cells.within(middle)
            if near.empty or not self._possible(near):
                low = float(middle)
            else:
                high = float(middle)
            if time.monotonic() > until:
                break
        return float(low)

    def _search(self, cells: Cells) -> Cells:
        """Look for a good answer quickly; the cells that cheaper ones may lie in."""
        most = self.query.rules.most_changes
        until = time.monotonic() + SEARCHED * (self.deadline - time.monotonic())
        search = Search(cells, self.needed, most)
        for exponent in EXPONENTS:
            if time.monotonic() > until:
                return cells if self.best is None else cells.within(self.paid * (1 + CLOSE))
            found = search.found(exponent)
            if found is not None:
                self._offer(search.row(*found))
        if self.best is None:
            return cells
        for _ in range(IMPROVED):
            cells, paid = cells.within(self.paid * (1 + CLOSE)), self.paid
            search = Search(cells, self.needed, most)
            state = search.state(self.best)
            for found in search.better(state):
                self._offer(search.row(*found))
                if time.monotonic() > until:
                    break
            if self.paid >= paid or time.monotonic() > until:
                break
        return cells.within(self.paid * (1 + CLOSE))

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

    def _solve(self, cells: Cells, radius: float, widest: bool) -> float:
        """Programs, until one proves the best answer within a radius or time is up; no answer costs less than this.

        Args:
            cells: where answers of the radius may lie.
            radius: what no answer that is looked for costs more than.
            widest: whether that is true of all answers; then infinity is possible.
        """
        inner = self.query.narrowed(radius)
        same = (inner.low == self.query.low) & (inner.high == self.query.high)
        none = np.inf if widest and same[self.linked].all() else radius
        if (inner.low > inner.high)[self.linked].any():
            return radius
        x = self.query.x
        inner = replace(
            inner,
            low=np.where(self.linked | inner.grouped, inner.low, x),
            high=np.where(self.linked | inner.grouped, inner.high, x),
            step=np.where(self.linked, inner.step, 0.0),
        )
        moving = self.linked & (inner.low < inner.high)
        curves = [inner.curve(at) if moves else None for at, moves in enumerate(moving.tolist())]
        bound, forbidden = 0.0, list[NDArray[np.bool_]]()
        for _ in range(ROUNDS):
            left = self.deadline - time.monotonic()
            if left <= 0 or len(cells.leaves.tree) > LEAVES_A_SECOND * left:
                break
            program = _ForestProgram(cells, Moves(inner, curves, radius), self.linked, self.needed, radius)
            for together in forbidden:
                program.forbid(together)
            most = min(self.paid * (1 - CLOSE / 2), radius)
            if most < np.inf and not (widest and self.best is None):
                program.limit(most)
            # with its presolve, HiGHS has called programs with linked columns infeasible that were not
            solved = program.moves.program.solve(self.deadline - time.monotonic(), presolve=not self.linked.any())
            if solved.infeasible:
                return self.paid if self.paid <= radius else none
            bound = max(bound, min(solved.bound * radius / COST + program.paid, radius))
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
        return bound


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
            step = float(query.step[column])
            size = step or max(self.moves.size(column), float(np.finfo(np.float64).tiny))
            for side, ends in ((1.0, cells.low[column]), (-1.0, cells.high[column])):
                ends = np.clip(ends, inner.low[column], inner.high[column]) - fixed
                ends = side * ends / size
                if step:  # whole numbers of steps
                    ends = np.ceil(ends - 1e-9)
                factors = [*change.scaled(side / size), *-np.diff(ends)]
                program.row([*change.variables, *beyond], factors, float(ends[0]))
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
