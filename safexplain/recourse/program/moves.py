"""The variables of one query's change, what they cost and what the constraints make of them.

A column's change is S v with a variable v of size one, or a whole number of steps; a column whose cost is not convex
also has binaries that choose a piece of its range. A one-hot group has a binary for each category. Binaries that say
whether a feature changes at all are there only where their number is limited.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.program.curves import Curve, Polyline, Square
from safexplain.recourse.program.mixed_integer import Program
from safexplain.recourse.result import Floats

COST = 1e3
"""What the dearest answer that is looked for costs in the program, so that HiGHS's tolerances are small beside it."""
SNAP = 1e-9
"""Share of a column's range within which a value is taken for the end of the range, or for no change."""


@dataclass(frozen=True, eq=False)
class Query:
    """What one query (d,) may become, and at what cost.

    Args:
        x: (d,) the query.
        low: (d,) least values, may be infinite.
        high: (d,) greatest values.
        step: (d,) distance of the values that are possible, counted from x; 0: all are.
        groups: one-hot groups: columns (k,) and which categories are open (k,).
        cost: what changes cost.
        rules: the constraints; None: none.
    """

    x: Floats
    low: Floats
    high: Floats
    step: Floats
    groups: tuple[tuple[NDArray[np.intp], NDArray[np.bool_]], ...]
    cost: Cost
    rules: Constraints | None

    @classmethod
    def of(
        cls,
        x: Floats,
        cost: Cost,
        rules: Constraints | None,
        frozen: NDArray[np.bool_] | None,
        within: tuple[Floats, Floats] | None,
    ) -> Query:
        """One query (d,) with what it must not change (d,) and its own box, two (d,)."""
        d = len(x)
        if rules is None:
            low, high = np.full(d, -np.inf), np.full(d, np.inf)
            if frozen is not None:
                low, high = np.where(frozen, x, low), np.where(frozen, x, high)
        else:
            low, high = (side[0] for side in rules.bounds(x[None], None if frozen is None else frozen[None]))
        if within is not None:
            low, high = np.maximum(low, within[0]), np.minimum(high, within[1])
        step = np.zeros(d) if rules is None else np.where(rules.whole, 1.0, 0.0)
        groups = tuple((group, rules.admissible(group, low[None], high[None])[0]) for group in rules.groups) if rules else ()
        return cls(x, low, high, step, groups, cost, rules)

    @property
    def grouped(self) -> NDArray[np.bool_]:
        """(d,) bool, columns of one-hot groups."""
        member = np.zeros(len(self.x), dtype=bool)
        for group, _ in self.groups:
            member[group] = True
        return member

    @property
    def empty(self) -> bool:
        """Whether no value of some column, or no category, is left."""
        lonely = any(not admissible.any() for _, admissible in self.groups)
        return lonely or bool((self.low > self.high)[~self.grouped].any())

    def paid(self, change: Floats) -> float:
        """What a change (d,) costs, to the power: what adds up over the columns."""
        return float(self.cost.parts(change).sum())

    def prices(self, group: NDArray[np.intp]) -> Floats:
        """(k,) what each category of a group costs, to the power."""
        delta = np.zeros((len(group), len(self.x)))
        delta[:, group] = np.eye(len(group)) - self.x[group]
        priced: Floats = self.cost.parts(delta).sum(axis=1)
        return priced

    def narrowed(self, radius: float) -> Query:
        """The same with limits beyond which a single column's change alone would cost more than the radius."""
        unit = self.cost.weights(len(self.x))
        with np.errstate(over="ignore"):
            reach = radius ** (1 / self.cost.power) / unit * (1 + 1e-9)
        reach = np.where(self.step > 0, np.floor(reach / np.where(self.step > 0, self.step, 1)) * self.step, reach)
        low, high = np.maximum(self.low, self.x - reach), np.minimum(self.high, self.x + reach)
        member = self.grouped
        return replace(self, low=np.where(member, self.low, low), high=np.where(member, self.high, high))

    def curve(self, column: int) -> Curve:
        """What a change of a column costs between its limits, which are finite."""
        low, high = float(self.low[column] - self.x[column]), float(self.high[column] - self.x[column])
        unit = float(self.cost.weights(len(self.x))[column])
        if self.cost.power == 2:
            return Square(unit, float(self.step[column]), low, high)
        at = np.unique([low, min(max(0.0, low), high), high])
        return Polyline(at, unit * np.abs(at))


@dataclass(frozen=True, eq=False)
class Part:
    """A share of a column's change: factor * the variable."""

    variables: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(eq=False)
class Moves:
    """A program with the variables of a query's change.

    Args:
        query: what may change, with finite limits.
        curves: what each column costs; None: it has one value, or is in a group.
        radius: greatest cost that is looked for.
    """

    query: Query
    curves: list[Curve | None]
    radius: float
    program: Program = field(init=False, default_factory=Program)
    change: list[Part] = field(init=False)
    """Of each column; (x may still lie outside of its limits: `fixed` is added)."""
    fixed: Floats = field(init=False)
    category: list[NDArray[np.intp]] = field(init=False)
    """Binaries of each group's categories."""
    paid: float = field(init=False, default=0.0)
    """What every solution costs, on top of the program's own cost."""
    _counts: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        query = self.query
        self.fixed = np.zeros(len(query.x))
        self.change = [self._column(column) for column in range(len(query.x))]
        self.category = []
        for group, admissible in query.groups:
            prices = query.prices(group)
            binaries = self.program.binaries(prices * (COST / self.radius))
            self.program.row(binaries, np.ones(len(group)), 1.0, 1.0)
            closed = binaries[~admissible]
            if len(closed):
                self.program.row(closed, np.ones(len(closed)), 0.0, 0.0)
            self.category.append(binaries)
            for column, binary in zip(group.tolist(), binaries.tolist(), strict=True):
                self.change[column] = Part((binary,), (1.0,))
                self.fixed[column] = -query.x[column]

    def _column(self, column: int) -> Part:
        curve, query, program = self.curves[column], self.query, self.program
        low, high = float(query.low[column] - query.x[column]), float(query.high[column] - query.x[column])
        if curve is None:
            if not query.grouped[column]:
                self.fixed[column] = low
                self.paid += query.paid(np.eye(len(query.x))[column] * low)
            return Part((), ())
        step = float(query.step[column])
        size = step or max(abs(low), abs(high))
        price = COST / self.radius
        count = -1
        if step:
            count = program.variable(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9), whole=True)
            self._counts[column] = count
        if len(curve.pieces) == 1:
            at = count if step else program.variable(low / size, high / size)
            self._lines(curve.pieces[0].lines, at, size, None, price)
            return Part((at,), (size,))
        chosen = program.binaries(np.zeros(len(curve.pieces)))
        program.row(chosen, np.ones(len(chosen)), 1.0, 1.0)
        shares = []
        for piece, binary in zip(curve.pieces, chosen.tolist(), strict=True):
            low_, high_ = piece.low / size, piece.high / size
            share = program.variable(min(low_, 0.0), max(high_, 0.0))
            program.row((share, binary), (1.0, -low_), 0.0)
            program.row((share, binary), (1.0, -high_), -np.inf, 0.0)
            self._lines(piece.lines, share, size, binary, price)
            shares.append(share)
        if step:
            program.row((*shares, count), (*np.ones(len(shares)), -1.0), 0.0, 0.0)
        return Part(tuple(shares), (size,) * len(shares))

    def _lines(
        self, lines: list[tuple[float, float]], at: int, size: float, binary: int | None, price: float
    ) -> None:
        """Let the cost be above the lines at a variable; of a piece, only where its binary is 1."""
        program = self.program
        if len(lines) == 1:
            slope, value = lines[0]
            program.charge(at, slope * size * price)
            if binary is None:
                self.paid += value
            else:
                program.charge(binary, value * price)
            return
        above = program.variable(0.0, np.inf, cost=1.0)
        for slope, value in lines:
            if binary is None:
                program.row((above, at), (1.0, -slope * size * price), value * price)
            else:
                program.row((above, at, binary), (1.0, -slope * size * price, -value * price), 0.0)

    def row(self, weights: Floats, lower: float, scale: float) -> None:
        """Let weights (d,) times the change be at least as much, all multiplied by the scale."""
        variables: list[int] = []
        factors: list[float] = []
        for column in np.flatnonzero(weights).tolist():
            part = self.change[column]
            variables += part.variables
            factors += [float(weights[column]) * factor * scale for factor in part.factors]
        self.program.row(variables, factors, (lower - float(weights @ self.fixed)) * scale)

    def read(self, values: Floats) -> tuple[Floats, NDArray[np.bool_]]:
        """What a solution means: the row (d,), whole where it has to be, and which columns are continuous in it."""
        query = self.query
        row, free = query.x + self.fixed, np.zeros(len(query.x), dtype=bool)
        for column, part in enumerate(self.change):
            if not part.variables or query.grouped[column]:
                continue
            if column in self._counts:
                row[column] = query.x[column] + query.step[column] * np.rint(values[self._counts[column]])
                continue
            free[column] = True
            change = float(values[list(part.variables)] @ np.array(part.factors))
            ends = query.low[column], query.high[column], query.x[column]
            size = max(abs(end - query.x[column]) for end in ends)
            row[column] = query.x[column] + change
            for end in ends:
                if abs(row[column] - end) <= SNAP * size and query.low[column] <= end <= query.high[column]:
                    row[column] = end
        for (group, _), binaries in zip(query.groups, self.category, strict=True):
            row[group] = np.arange(len(group)) == values[binaries].argmax()
        return np.where(query.grouped, row, np.clip(row, query.low, query.high)), free

    def refine(self, row: Floats) -> bool:
        """Make the bounds of the costs exact at a row (d,); whether anything is new."""
        new = False
        for curve, change in zip(self.curves, row - self.query.x, strict=True):
            if curve is not None:
                new |= curve.refine(float(change))
        return new
