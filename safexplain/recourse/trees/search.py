"""A good answer quickly: greedy steps from cell to cell, each judged by the whole forest, and then savings.

A step changes one column to another cell, or a one-hot group to another category. The score after every possible step
is known at once: a leaf counts for it if the row lies in all of the leaf's ranges but, at most, that column's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from safexplain.recourse.result import Floats
from safexplain.recourse.trees.cells import Cells
from safexplain.recourse.trees.tree import Ints

EXPONENTS = (1.0, 0.5, 2.0, 0.25)
"""How much a step's cost counts against its gain, start by start."""
_STEPS = 60
_STUCK = 3
"""Times that pairs of steps are tried on the way, where no single step helps."""
_PAIRS = 20
"""First steps that are looked beyond where no single step helps."""
State = tuple[Ints, list[int]]
"""Cells (d,), and the category of each one-hot group."""
_ROUNDING = 1e-9
"""Share of the values' size by which a sum may miss the target and count, before it is looked at exactly."""


@dataclass(eq=False)
class Search:
    """Greedy search among the cells of one query.

    Args:
        cells: where answers may lie.
        target: least lead over each other class.
        most: greatest number of changed features; None: no limit.
    """

    cells: Cells
    target: float
    most: int | None = None

    def __post_init__(self) -> None:
        cells = self.cells
        self.sizes = np.array([len(cost) for cost in cells.cost])
        self.first = np.concatenate([[0], np.cumsum(self.sizes)])
        self.column = np.repeat(np.arange(len(self.sizes)), self.sizes)
        self.price = np.concatenate(cells.cost)
        self.member = cells.query.grouped
        self.categories = [
            (group, at, cells.category(group, at), price)
            for group, admissible in cells.query.groups
            for at, price in enumerate(cells.query.prices(group))
            if admissible[at]
        ]
        self.start = np.array([int(cost.argmin()) for cost in cells.cost])
        self.own: list[int] = []
        for number, (group, admissible) in enumerate(cells.query.groups):
            prices = np.where(admissible, cells.query.prices(group), np.inf)
            self.own.append(int(prices.argmin()))
            self.start[group] = cells.category(group, self.own[number])
        self.slack = _ROUNDING * float(np.abs(cells.leaves.value).max(initial=1.0))

    def lead(self, cell: Ints) -> float:
        """Least lead of a row's cells (d,), less the target."""
        leaves = self.cells.leaves
        inside = ((leaves.low <= cell) & (cell <= leaves.high)).all(axis=1)
        return float((leaves.value[inside].sum(axis=0) + leaves.base).min()) - self.target

    def steps(self, cell: Ints) -> Floats:
        """(s,) lead, less the target, after changing one column to each cell, all columns' cells in a row."""
        leaves, d = self.cells.leaves, len(cell)
        out = (cell < leaves.low) | (leaves.high < cell)
        count = out.sum(axis=1)
        near = np.flatnonzero(count <= 1)
        outputs = leaves.value.shape[1]
        add = np.zeros((self.first[-1] + d, outputs))
        at = np.where(count[near] == 1, out[near].argmax(axis=1), -1)
        where = self.first[:-1] + np.arange(d)  # each column has one place more, where its last cell's leaves end
        alone = near[at >= 0]
        columns = at[at >= 0]
        np.add.at(add, where[columns] + leaves.low[alone, columns], leaves.value[alone])
        np.subtract.at(add, where[columns] + leaves.high[alone, columns] + 1, leaves.value[alone])
        active = near[at < 0]
        flat_low = (where + leaves.low[active]).ravel()
        flat_high = (where + leaves.high[active] + 1).ravel()
        value = np.repeat(leaves.value[active], d, axis=0)
        np.add.at(add, flat_low, value)
        np.subtract.at(add, flat_high, value)
        total = np.cumsum(add, axis=0)
        keep = np.delete(np.arange(len(add)), where + self.sizes)
        # sums run over all columns: what earlier ones added has gone again at their ends
        lead: Floats = (total[keep] + leaves.base).min(axis=1) - self.target
        return lead

    def found(self, exponent: float, state: State | None = None, banned: int = -1, pairs: int = _STUCK) -> State | None:
        """A state that reaches the target, by greedy steps and then savings; None: the steps did not get there.

        Args:
            exponent: how much a step's cost counts.
            state: where to start; None: at the query, as far as its limits allow.
            banned: column that no step changes; -1: none.
            pairs: how often two steps are looked ahead where no single one helps.
        """
        cell, chosen = (self.start.copy(), list(self.own)) if state is None else (state[0].copy(), list(state[1]))
        lead = self.lead(cell)
        for _ in range(_STEPS):
            if lead >= -self.slack:
                return self._saved(cell, chosen)
            leads, prices = self._moves(cell, chosen, banned)
            gain = np.minimum(leads, 0.0) - lead
            if not (gain > self.slack).any():
                pair = self._pair(cell, chosen, leads, lead) if pairs else None
                if pair is None:
                    return None
                pairs -= 1
                lead = leads[pair]
                self._do(pair, cell, chosen)
                continue
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                rate = np.where(gain > self.slack, gain / np.maximum(prices, 1e-300) ** exponent, -np.inf)
            best = int(rate.argmax())
            lead = leads[best]
            self._do(best, cell, chosen)
        return None

    def _pair(self, cell: Ints, chosen: list[int], leads: Floats, lead: float) -> int | None:
        """The first of two steps that together raise the lead, where no single one does."""
        best, most = None, lead + self.slack
        for move in np.argsort(-leads, kind="stable")[:_PAIRS].tolist():
            if leads[move] == -np.inf:
                break
            tried, categories = cell.copy(), list(chosen)
            self._do(move, tried, categories)
            reached = float(self._moves(tried, categories)[0].max(initial=-np.inf))
            if reached > most:
                best, most = move, reached
        return best

    def better(self, state: State) -> Iterator[State]:
        """Other states that reach the target: one change is taken back, in part or whole, and made up for."""
        cell, _ = state
        for column in np.flatnonzero((cell != self.start) & ~self.member).tolist():
            for back in (self.start[column], (self.start[column] + cell[column]) // 2):
                if back == cell[column]:
                    continue
                tried = cell.copy()
                tried[column] = back
                found = self.found(1.0, (tried, state[1]), column, 0)
                if found is not None:
                    yield found

    def _moves(self, cell: Ints, chosen: list[int], banned: int = -1) -> tuple[Floats, Floats]:
        """Leads after every step and what they cost besides, columns' steps first, then categories."""
        leads = np.where(self.member[self.column] | (self.column == banned), -np.inf, self.steps(cell))
        now = np.where(self.member, 0.0, self.price[self.first[:-1] + cell])
        prices = self.price - now[self.column]
        if self.most is not None:
            moved = (cell != self.start) & ~self.member
            full = int(moved.sum()) + sum(a != b for a, b in zip(chosen, self.own, strict=True)) >= self.most
            if full:
                back = np.arange(self.first[-1]) == self.first[:-1][self.column] + self.start[self.column]
                leads = np.where(moved[self.column] | back, leads, -np.inf)
        else:
            full, moved = False, np.zeros(0)
        more, dearer = [], []
        groups = self.cells.query.groups
        for group, at, cells, price in self.categories:
            number = next(n for n, (own, _) in enumerate(groups) if own is group)
            tried = cell.copy()
            tried[group] = cells
            closed = chosen[number] == at or (full and chosen[number] == self.own[number])
            more.append(-np.inf if closed else self.lead(tried))
            dearer.append(price - self.cells.query.prices(group)[chosen[number]])
        return np.append(leads, more), np.append(prices, dearer)

    def _do(self, move: int, cell: Ints, chosen: list[int]) -> None:
        if move < self.first[-1]:
            column = self.column[move]
            cell[column] = move - self.first[column]
            return
        group, at, cells, _ = self.categories[move - int(self.first[-1])]
        number = next(n for n, (own, _) in enumerate(self.cells.query.groups) if own is group)
        cell[group], chosen[number] = cells, at

    def _saved(self, cell: Ints, chosen: list[int]) -> State:
        """Cheaper cells that still reach the target, one step after the other, as long as one saves."""
        for _ in range(_STEPS):
            leads, prices = self._moves(cell, chosen)
            saves = np.where(leads >= -self.slack, prices, 0.0)
            best = int(saves.argmin())
            if saves[best] >= 0:
                break
            self._do(best, cell, chosen)
        return cell, chosen

    def row(self, cell: Ints, chosen: list[int]) -> Floats:
        """(d,) of cells (d,) and categories."""
        row = self.cells.row(cell)
        for (group, _), at in zip(self.cells.query.groups, chosen, strict=True):
            row[group] = np.arange(len(group)) == at
        return row

    def state(self, row: Floats) -> State:
        """Of a row (d,) among the cells."""
        high = self.cells.high
        cell = np.array([int(np.searchsorted(ends, value)) for ends, value in zip(high, row, strict=True)])
        cell = np.minimum(cell, self.sizes - 1)
        return cell, [int(row[group].argmax()) for group, _ in self.cells.query.groups]
