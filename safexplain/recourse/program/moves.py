"""The variables of one query's change, what they cost and what the constraints make of them.

A column's change is S v with a variable v of size one, or a whole number of steps; a column whose cost is not convex
also has binaries that choose a piece of its range. A one-hot group has a binary for each category. Binaries that say
whether a feature changes at all are there only where their number is limited.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L2, Cost, Percentile
from safexplain.recourse.found import Floats
from safexplain.recourse.program.curves import Curve, Polyline, Square
from safexplain.recourse.program.mixed_integer import Program

COST = 1e3
"""What the dearest answer that is looked for costs in the program, so that HiGHS's tolerances are small beside it."""
CLOSE = 1e-6
"""Share by which an answer may be dearer, to the power of the cost, than the bound that proves it."""
SNAP = 1e-9
"""Share of a column's range within which a value is taken for the end of the range, or for no change."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What was found for one query.

    Args:
        row: (d,) the cheapest row found; None: none was.
        paid: its cost, to the power; infinite without a row.
        bound: no row costs less, to the power.
    """

    row: Floats | None
    paid: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no cheaper row exists, but for a share of `CLOSE`, or that none does."""
        return self.paid == self.bound or self.paid <= self.bound * (1 + CLOSE)


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
        rules: the constraints.
    """

    x: Floats
    low: Floats
    high: Floats
    step: Floats
    groups: tuple[tuple[NDArray[np.intp], NDArray[np.bool_]], ...]
    cost: Cost
    rules: Constraints

    @classmethod
    def of(
        cls,
        x: Floats,
        cost: Cost,
        rules: Constraints,
        frozen: NDArray[np.bool_] | None,
        within: tuple[Floats, Floats] | None,
    ) -> Query:
        """One query (d,) with what it must not change (d,) and its own box, two (d,)."""
        held = None if frozen is None else frozen[None]
        box = None if within is None else (within[0][None], within[1][None])
        low, high = (side[0] for side in rules.bounds(x[None], held, box))
        groups = tuple((group, rules.admissible(group, low[None], high[None])[0]) for group in rules.groups)
        return cls(x, low, high, rules.grid, groups, cost, rules)

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

    def paid(self, row: Floats) -> float:
        """What changing the query to a row (d,) costs, to the power: what adds up over the columns."""
        return float(self.cost.parts((row - self.x)[None], self.x[None]).sum())

    def parts(self, row: Floats) -> Floats:
        """(d,) what each column of a row (d,) adds to that."""
        added: Floats = self.cost.parts((row - self.x)[None], self.x[None])[0]
        return added

    def prices(self, group: NDArray[np.intp]) -> Floats:
        """(k,) what each category of a group costs, to the power."""
        delta = np.zeros((len(group), len(self.x)))
        delta[:, group] = np.eye(len(group)) - self.x[group]
        priced: Floats = self.cost.parts(delta, np.broadcast_to(self.x, delta.shape)).sum(axis=1)
        return priced

    def kept(self, row: Floats) -> bool:
        """Whether a row (d,) keeps limits and constraints."""
        inside = bool(((self.low <= row) & (row <= self.high))[~self.grouped].all())
        return inside and bool(self.rules.satisfied(self.x[None], row[None], within=self._box)[0])

    def projected(self, row: Floats) -> Floats:
        """The row (d,) with its rules kept, as far as that takes little."""
        if not self.rules.rules:
            return row
        moved: Floats = self.rules.project(self.x[None], row[None], within=self._box)[0]
        return moved

    @property
    def _box(self) -> tuple[Floats, Floats]:
        member = self.grouped
        return np.where(member, -np.inf, self.low)[None], np.where(member, np.inf, self.high)[None]

    def narrowed(self, radius: float) -> Query:
        """The same with limits beyond which a single column's change alone would cost more than the radius."""
        d, member = len(self.x), self.grouped
        if isinstance(self.cost, Percentile):
            reach = [
                (0.0, 0.0) if member[column] else self._overtaken(self.cost, column, radius) for column in range(d)
            ]
            down, up = np.array(reach).T
        else:
            rise, fall = self.cost.units(d)
            with np.errstate(over="ignore"):
                up, down = (radius ** (1 / self.cost.power) / unit * (1 + 1e-9) for unit in (rise, fall))
        some = self.step > 0
        steps = np.where(some, self.step, 1.0)
        up, down = (np.where(some, np.floor(side / steps) * steps, side) for side in (up, down))
        low, high = np.maximum(self.low, self.x - down), np.minimum(self.high, self.x + up)
        return replace(self, low=np.where(member, self.low, low), high=np.where(member, self.high, high))

    def _overtaken(self, cost: Percentile, column: int, radius: float) -> tuple[float, float]:
        """How far a column may fall and rise at this cost."""
        reach = []
        x = float(self.x[column])
        for sign, limit in ((-1.0, self.low[column]), (1.0, self.high[column])):
            far = abs(float(limit) - x)
            if not np.isfinite(far):
                far = max(abs(x), 1.0)
                while abs(cost.share(column, np.array(x + sign * far)) - cost.share(column, np.array(x))) < radius:
                    far *= 2.0
            points, costs = cost.curve(column, x, min(x, x + sign * far), max(x, x + sign * far))
            away, order = np.abs(points - x), np.argsort(np.abs(points - x))
            reach.append(float(np.interp(radius, costs[order], away[order])) * (1 + 1e-9))
        return reach[0], reach[1]

    def curve(self, column: int) -> Curve:
        """What a change of a column costs between its limits, which are finite."""
        x, low, high = float(self.x[column]), float(self.low[column]), float(self.high[column])
        if isinstance(self.cost, L2):
            rise, fall = (float(unit[column]) for unit in self.cost.units(len(self.x)))
            return Square(rise, fall, float(self.step[column]), low - x, high - x)
        points, costs = self.cost.curve(column, x, low, high)
        return Polyline(points - x, costs)


@dataclass(frozen=True, eq=False)
class Part:
    """A share of a column's change: factor * the variable."""

    variables: tuple[int, ...]
    factors: tuple[float, ...]

    def scaled(self, factor: float) -> tuple[float, ...]:
        """The factors times another."""
        return tuple(own * factor for own in self.factors)


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
    _changed: dict[int, int] = field(init=False, default_factory=dict)
    _risen: dict[int, int] = field(init=False, default_factory=dict)

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
        for rule, (when, then) in zip(query.rules.rules, query.rules.linked, strict=True):
            self._link(rule, when, then)

    def limit_changes(self, most: int, counted: list[int], entries: list[float]) -> None:
        """Let at most so many features change, a one-hot group as one.

        Args:
            most: how many.
            counted: variables that say of further features whether they change, with the entries.
            entries: theirs.
        """
        query = self.query
        for column, part in enumerate(self.change):
            if query.grouped[column]:
                continue
            low, high = (float(side[column] - query.x[column]) for side in (query.low, query.high))
            if low > 0 or high < 0:
                most -= 1
            elif part.variables:
                (binary,) = self.program.binaries([0.0]).tolist()
                self._changed[column] = binary
                self.program.row(
                    (*part.variables, binary),
                    (*part.scaled(1 / self.size(column)), -high / self.size(column)),
                    -np.inf,
                    0.0,
                )
                self.program.row(
                    (*part.variables, binary), (*part.scaled(1 / self.size(column)), -low / self.size(column)), 0.0
                )
                counted.append(binary)
                entries.append(1.0)
        for (group, admissible), binaries in zip(query.groups, self.category, strict=True):
            own = int(query.x[group].argmax())
            if admissible[own]:
                counted.append(int(binaries[own]))
                entries.append(-1.0)
            most -= 1
        # each group is one change, which the binary of its own category gives back
        self.program.row(counted, entries, -np.inf, float(most))

    def _link(self, rule: Rule, when: int, then: int) -> None:
        """Let `then` rise as the rule asks where `when` rises."""
        query, program = self.query, self.program
        rise = float(query.high[when] - query.x[when])
        if rise <= 0:
            return
        least, most = (float(side[then] - query.x[then]) for side in (query.low, query.high))
        size = max(abs(least), abs(most), rule.per_unit * rise + rule.at_least)
        part, raised = self.change[then], self.change[when]
        scale = COST / size
        if query.grouped[when]:
            needed, fall = rule.per_unit + rule.at_least, min(least, 0.0)
            entries = (*part.scaled(scale), (fall - needed) * scale)
            program.row((*part.variables, *raised.variables), entries, (fall - self.fixed[then]) * scale)
            return
        if least >= 0 and not rule.at_least:
            entries = (*part.scaled(scale), *raised.scaled(-rule.per_unit * scale))
            lower = (rule.per_unit * self.fixed[when] - self.fixed[then]) * scale
            program.row((*part.variables, *raised.variables), entries, lower)
            return
        if when not in self._risen:
            (self._risen[when],) = program.binaries([0.0]).tolist()
        above, risen = program.variable(0.0, 1.0), self._risen[when]
        program.row((above, *raised.variables), (1.0, *raised.scaled(-1 / rise)), float(self.fixed[when]) / rise)
        program.row((above, risen), (1.0, -1.0), -np.inf, 0.0)
        fall = min(least, 0.0)
        entries = (*part.scaled(scale), -rule.per_unit * rise * scale, (fall - rule.at_least) * scale)
        program.row((*part.variables, above, risen), entries, (fall - self.fixed[then]) * scale)

    def size(self, column: int) -> float:
        """Greatest change of a column."""
        query = self.query
        return float(max(abs(query.low[column] - query.x[column]), abs(query.high[column] - query.x[column])))

    def _column(self, column: int) -> Part:
        curve, query, program = self.curves[column], self.query, self.program
        low, high = float(query.low[column] - query.x[column]), float(query.high[column] - query.x[column])
        if curve is None:
            if not query.grouped[column]:
                self.fixed[column] = low
                self.paid += query.paid(query.x + np.eye(len(query.x))[column] * low)
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

    def _lines(self, lines: list[tuple[float, float]], at: int, size: float, binary: int | None, price: float) -> None:
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
            row[column] = query.x[column] + change
            for end in (query.low[column], query.high[column], query.x[column]):
                if (
                    abs(row[column] - end) <= SNAP * self.size(column)
                    and query.low[column] <= end <= query.high[column]
                ):
                    row[column] = end
        for column, binary in self._changed.items():
            if values[binary] < 0.5:
                row[column] = query.x[column]
        for column, binary in self._risen.items():
            if values[binary] < 0.5:
                row[column] = min(row[column], query.x[column])
        for (group, _), binaries in zip(query.groups, self.category, strict=True):
            row[group] = np.arange(len(group)) == values[binaries].argmax()
        row = np.where(query.grouped, row, np.clip(row, query.low, query.high))
        return query.projected(row), free

    def refine(self, row: Floats) -> bool:
        """Make the bounds of the costs exact at a row (d,); whether anything is new."""
        new = False
        for curve, change in zip(self.curves, row - self.query.x, strict=True):
            if curve is not None:
                new |= curve.refine(float(change))
        return new
