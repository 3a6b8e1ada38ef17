"""Cheapest recourse of one query as a mixed-integer program, with a proof or the bound left by a time limit.

The cost of a change is bounded from below by straight lines. A square is bounded by tangents, and by secants between
neighbouring steps, added at each solution until the gap closes (outer approximation: Duran and Grossmann 1986). Where
the number of changes is limited, a line's value at no change is multiplied by a binary for whether the feature changes
(perspective cuts: Frangioni and Gentile 2006).
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeWarning, milp
from scipy.sparse import csr_array

from safexplain.recourse.constraints import Constraints, Mask, Rule
from safexplain.recourse.cost import Cost
from safexplain.recourse.solution import Floats

GAP = 1e-8
"""Relative gap at which HiGHS may stop; the gap of answers is wider (`CLOSE`)."""
SHORTEST = 0.02
"""Minimum seconds for HiGHS, which checks its clock only occasionally."""

COST = 1e3
"""Cost of the radius in the program, so that HiGHS's tolerances are relatively small."""
SNAP = 1e-9
"""Share of a column's range within which a value counts as an end of the range, or as no change."""
CLOSE = 1e-6
"""Share by which the cost of a proven answer, to the power, may exceed the bound."""
SCORE = 1e3
"""Rise of the score required in the program: HiGHS's tolerance of 1e-6 is a share of 1e-9 of it."""
ROUNDS = 200
"""Largest number of programs for one query; each is refined at the previous solution."""
WIDER = 16.0
"""Factor by which the radius grows while no answer is found."""
WIDEST = 1e15
"""Largest radius, relative to the first one."""

_OUTPUT = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Keep lines of HiGHS off standard output, some of which no option suppresses."""
    with _OUTPUT, tempfile.TemporaryFile() as held:
        try:
            sys.stdout.flush()
            output = os.dup(1)
        except (AttributeError, OSError, ValueError):  # no standard output, or a closed one
            yield
            return
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(output, 1)
            held.seek(0)
            for line in held:
                if not line.startswith(b"Highs"):
                    os.write(output, line)
            os.close(output)


@dataclass
class Program:
    """min cost.v, lower <= A v <= upper, low <= v <= high, some of v whole; grows by variables and rows.

    HiGHS tolerates violations of rows by 1e-6, so that important rows should have numbers of about a thousand.
    """

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    _ends: list[tuple[float, float]] = field(default_factory=list)
    _whole: list[bool] = field(default_factory=list)
    _columns: list[Sequence[int] | NDArray[np.intp]] = field(default_factory=list)
    _entries: list[Sequence[float] | Floats] = field(default_factory=list)

    def variable(self, low: float, high: float, *, cost: float = 0.0, whole: bool = False) -> int:
        """Add a variable; its number."""
        self._ends.append((low, high))
        self.cost.append(cost)
        self._whole.append(whole)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        """Add a variable that is 0 or 1; its number."""
        return self.variable(0.0, 1.0, cost=cost, whole=True)

    def row(
        self,
        columns: Sequence[int] | NDArray[np.intp],
        entries: Sequence[float] | Floats,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """Add a row; its number."""
        self._columns.append(columns)
        self._entries.append(entries)
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.lower) - 1

    def solve(self, time_limit: float) -> tuple[Floats | None, float]:
        """The best solution (n,) found in so many seconds, if any, and a lower bound on the cost, infinite if there is
        certainly none; nothing is printed."""
        columns = np.concatenate([np.asarray(row, dtype=np.int32) for row in self._columns])
        starts = np.cumsum([0, *map(len, self._columns)], dtype=np.int32)
        shape = len(self.lower), len(self.cost)
        matrix = csr_array((np.concatenate([np.asarray(row, float) for row in self._entries]), columns, starts), shape)
        with _silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            found = milp(
                np.array(self.cost),
                integrality=np.array(self._whole, dtype=np.uint8),
                bounds=Bounds(*np.array(self._ends).T),
                constraints=LinearConstraint(matrix, np.array(self.lower), np.array(self.upper)),
                options={"time_limit": max(time_limit, SHORTEST), "mip_rel_gap": GAP},
            )
        if found.status == 2:
            return None, np.inf
        bound = found.mip_dual_bound if any(self._whole) else (found.fun if found.status == 0 else None)
        return found.x, -np.inf if bound is None or np.isnan(bound) else float(bound)


@dataclass
class Query:
    """One query (d,) with limits, which may be infinite; `groups`: columns (k,) of each one-hot group, and bool (k,) of
    allowed categories."""

    x: Floats
    low: Floats
    high: Floats
    groups: tuple[tuple[NDArray[np.intp], Mask], ...]
    cost: Cost
    rules: Constraints
    frozen: Mask

    @classmethod
    def of(cls, x: Floats, w: Floats, cost: Cost, rules: Constraints, frozen: Mask) -> Query:
        """One query (d,) whose columns may only change so that w.x rises, or as a rule requires."""
        low, high = (side[0] for side in rules.bounds(x[None], frozen[None]))
        groups = tuple((group, rules.admissible(group, low[None], high[None])[0]) for group in rules.groups)
        follows = rules.grouped | np.isin(np.arange(len(x)), [then for _, then in rules.linked])
        low, high = np.where((w < 0) | rules.grouped, low, x), np.where((w > 0) | follows, high, x)
        return cls(x, low, high, groups, cost, rules, frozen)

    def paid(self, row: Floats) -> float:
        """Cost of changing the query to a row (d,), to the power, which adds up over columns."""
        return float(self.cost.parts(row - self.x).sum())

    def kept(self, row: Floats) -> bool:
        """Whether a row (d,) satisfies the constraints."""
        return bool(self.rules.satisfied(self.x[None], row[None], self.frozen[None])[0])

    def projected(self, row: Floats) -> Floats:
        """The row (d,) with its rules repaired, if possible."""
        if not self.rules.rules:
            return row
        moved: Floats = self.rules.project(self.x[None], row[None], self.frozen[None])[0]
        return moved

    def narrowed(self, radius: float) -> Query:
        """The query with limits at which the change of a single column costs the radius."""
        grid = np.where(self.rules.grid > 0, self.rules.grid, 1.0)
        sides = []
        for unit in self.cost.units(len(self.x)):
            with np.errstate(over="ignore"):
                far = radius ** (1 / self.cost.power) / unit * (1 + 1e-9)
            sides.append(np.where(self.rules.grid > 0, np.floor(far / grid) * grid, far))
        up, down = sides
        return replace(self, low=np.maximum(self.low, self.x - down), high=np.minimum(self.high, self.x + up))


@dataclass
class Change:
    """A program with the variables of a query's change, whose limits are finite; an answer costs at most the radius."""

    query: Query
    radius: float
    program: Program = field(init=False, default_factory=Program)
    _variable: NDArray[np.intp] = field(init=False)
    """(d,) the variable of each column; -1: it does not change."""
    _size: Floats = field(init=False)
    """(d,) one unit of the variable, in units of the column."""
    _fixed: Floats = field(init=False)
    """(d,) constant part of the change: a category's binary is its value, and the change counts from the query."""
    _above: dict[int, int] = field(init=False, default_factory=dict)
    """Variable of the cost, for columns whose cost is bounded by lines."""
    _lines: dict[int, list[tuple[float, float]]] = field(init=False, default_factory=dict)
    """Slope and value at no change of these lines."""
    _changes: dict[int, int] = field(init=False, default_factory=dict)
    """Binaries for whether columns change."""
    _rises: dict[int, int] = field(init=False, default_factory=dict)
    """Binaries for whether columns rise."""

    def __post_init__(self) -> None:
        query, program, d = self.query, self.program, len(self.query.x)
        rises, falls, grouped = query.high - query.x, query.x - query.low, query.rules.grouped
        self._variable = np.full(d, -1)
        self._fixed = np.where(grouped, -query.x, 0.0)
        grid = query.rules.grid
        self._size = np.where(grouped, 1.0, np.where(grid > 0, grid, np.maximum(rises, falls)))
        for column in np.flatnonzero(~grouped & (np.maximum(rises, falls) > 0)).tolist():
            least, most = -falls[column] / self._size[column], rises[column] / self._size[column]
            if grid[column]:
                least, most = np.ceil(least - 1e-9), np.floor(most + 1e-9)
            self._variable[column] = program.variable(least, most, whole=bool(grid[column]))
        for group, open_ in query.groups:
            self._categories(group, open_)
        if query.rules.most_changes is not None:
            self._limit_changes(query.rules.most_changes)
        for column in np.flatnonzero(~grouped & (self._variable >= 0)).tolist():
            self._priced(column)
        for rule, (when, then) in zip(query.rules.rules, query.rules.linked, strict=True):
            self._link(rule, when, then)

    def _categories(self, group: NDArray[np.intp], open_: Mask) -> None:
        delta = np.zeros((len(group), len(self.query.x)))
        delta[:, group] = np.eye(len(group)) - self.query.x[group]
        prices = self.query.cost.parts(delta).sum(axis=1) * (COST / self.radius)
        self._variable[group] = [self.program.binary(price) for price in prices.tolist()]
        self.program.row(self._variable[group], np.ones(len(group)), 1.0, 1.0)
        self.program.row(self._variable[group][~open_], np.ones((~open_).sum()), 0.0, 0.0)

    def _limit_changes(self, most: int) -> None:
        query, counted, entries = self.query, [], []
        for column in np.flatnonzero(~query.rules.grouped & (self._variable >= 0)).tolist():
            at, changes = int(self._variable[column]), self.program.binary()
            for end, sides in ((query.high, (-np.inf, 0.0)), (query.low, (0.0, np.inf))):
                far = float(end[column] - query.x[column]) / self._size[column]
                self.program.row((at, changes), (1.0, -far), *sides)
            self._changes[column] = changes
            counted.append(changes)
            entries.append(1.0)
        for group, _ in query.groups:  # each counts as a change unless the binary of its current category is 1
            counted.append(int(self._variable[group[query.x[group].argmax()]]))
            entries.append(-1.0)
        self.program.row(counted, entries, -np.inf, float(most - len(query.groups)))

    def _priced(self, column: int) -> None:
        query, at = self.query, int(self._variable[column])
        rise, fall = (float(unit[column]) for unit in query.cost.units(len(query.x)))
        low, high = float(query.low[column] - query.x[column]), float(query.high[column] - query.x[column])
        if query.cost.power == 1 and (low == 0 or high == 0):
            self.program.cost[at] += (rise if high > 0 else -fall) * self._size[column] * (COST / self.radius)
            return
        self._above[column], self._lines[column] = self.program.variable(0.0, np.inf, cost=1.0), []
        if query.cost.power == 1:
            self._line(column, rise, 0.0)
            self._line(column, -fall, 0.0)
            return
        for share in (1.0, 0.5, 0.25, 0.125):
            for end in {low, high} - {0.0}:
                self._touch(column, share * end)

    def _line(self, column: int, slope: float, value: float) -> None:
        """Bound the cost of a column's change from below by slope * change + value (the value only if it changes)."""
        self._lines[column].append((slope, value))
        price, above, at = COST / self.radius, self._above[column], int(self._variable[column])
        entries = (1.0, -slope * self._size[column] * price)
        if column in self._changes:
            self.program.row((above, at, self._changes[column]), (*entries, -value * price), 0.0)
        else:
            self.program.row((above, at), entries, value * price)

    def _touch(self, column: int, change: float) -> None:
        """Make the bound on the cost of a column exact at this change, by a tangent or by secants next to a step."""
        rise, fall = (float(unit[column]) for unit in self.query.cost.units(len(self.query.x)))

        def cost(change: float) -> float:
            return float(((rise if change > 0 else fall) * change) ** 2)

        if any(slope * change + value >= cost(change) * (1 - 1e-12) for slope, value in self._lines[column]):
            return
        step = float(self.query.rules.grid[column])
        if not step:
            self._line(column, 2 * (rise if change > 0 else fall) ** 2 * change, -cost(change))
            return
        middle = float(np.rint(change / step) * step)
        for left in (middle - step, middle):
            slope = (cost(left + step) - cost(left)) / step
            self._line(column, slope, cost(left) - slope * left)

    def _link(self, rule: Rule, when: int, then: int) -> None:
        query, program = self.query, self.program
        rise = float(query.high[when] - query.x[when])
        if rise <= 0 or (query.rules.grouped[when] and query.x[when]):
            return
        least, most = float(query.low[then] - query.x[then]), float(query.high[then] - query.x[then])
        scale = COST / max(abs(least), abs(most), rule.per_unit * rise + rule.at_least)
        risen, raised = int(self._variable[when]), (int(self._variable[then]), self._size[then] * scale)
        columns, entries = ((raised[0],), (raised[1],)) if raised[0] >= 0 else ((), ())
        if query.rules.grouped[when]:
            needed = rule.per_unit + rule.at_least
            program.row((*columns, risen), (*entries, (least - needed) * scale), least * scale)
            return
        if least == 0 and not rule.at_least:
            program.row((*columns, risen), (*entries, -rule.per_unit * self._size[when] * scale), 0.0)
            return
        if when not in self._rises:
            self._rises[when] = program.binary()
        share, rises = program.variable(0.0, np.inf), self._rises[when]
        program.row((share, risen), (1.0, -self._size[when] / rise), 0.0)
        program.row((share, rises), (1.0, -1.0), -np.inf, 0.0)
        entries = (*entries, -rule.per_unit * rise * scale, (least - rule.at_least) * scale)
        program.row((*columns, share, rises), entries, least * scale)

    def row(self, weights: Floats, lower: float, scale: float) -> int:
        """Require weights (d,) times the change to be at least `lower`, multiplied by the scale; the row's number."""
        used = np.flatnonzero((weights != 0) & (self._variable >= 0))
        entries = (weights * self._size)[used] * scale
        return self.program.row(self._variable[used], entries, (lower - float(weights @ self._fixed)) * scale)

    def read(self, values: Floats) -> tuple[Floats, Mask]:
        """The row (d,) of a solution, rounded to steps where required, and (d,) bool, its continuous columns."""
        query, grid = self.query, self.query.rules.grid
        row, there = query.x.copy(), ~query.rules.grouped & (self._variable >= 0)
        free = there & (grid == 0)
        amount = values[self._variable]
        row[there] += (self._size * np.where(grid > 0, np.rint(amount), amount))[there]
        for end in (query.low, query.high, query.x):
            row = np.where(free & (np.abs(row - end) <= SNAP * self._size), end, row)
        for column, binary in self._changes.items():
            row[column] = row[column] if values[binary] > 0.5 else query.x[column]
        for column, binary in self._rises.items():
            row[column] = row[column] if values[binary] > 0.5 else min(row[column], query.x[column])
        row = np.clip(row, query.low, query.high)
        for group, _ in query.groups:
            row[group] = np.arange(len(group)) == amount[group].argmax()
        return query.projected(row), free

    def refine(self, row: Floats) -> bool:
        """Make the bound on the cost exact at a row (d,); whether this added a line."""
        before = len(self.program.lower)
        for column in self._above if self.query.cost.power == 2 else ():
            self._touch(column, float(row[column] - self.query.x[column]))
        return len(self.program.lower) > before


@dataclass
class Answer:
    """The cheapest row (d,) found, if any, its cost (else infinite), and a lower bound on all costs, to the power."""

    row: Floats | None
    paid: float
    bound: float

    @property
    def proven(self) -> bool:
        """Whether no row is cheaper, up to a share of `CLOSE`, or whether certainly no row exists."""
        return self.paid == self.bound or self.paid <= self.bound * (1 + CLOSE)


def cheapest(
    w: Floats,
    bias: float,
    target: float,
    x: Floats,
    cost: Cost,
    rules: Constraints,
    frozen: Mask,
    least: float,
    time_limit: float,
) -> Answer:
    """The cheapest row found that brings w.x + bias of one unfavourable query (d,) to the target, by programs within a
    growing radius of costs; `least` is a known lower bound on the cost, to the power."""
    query, deadline = Query.of(x, w, cost, rules, frozen), time.monotonic() + time_limit
    search = _Search(w, bias, target, query, deadline)
    guess = max(least, search.unlimited())
    radius = first = 4 * max(guess, float(np.finfo(np.float64).tiny) * 1e50)
    while True:
        near = query.narrowed(radius)
        answer = search.within(near, radius)
        if answer.paid <= radius * (1 + CLOSE):
            return answer
        if bool(((near.low == query.low) & (near.high == query.high)).all()):
            return answer
        if time.monotonic() > deadline or radius > first * WIDEST:
            return Answer(answer.row, answer.paid, min(answer.bound, radius))
        radius *= WIDER
        if answer.row is not None:
            radius = max(radius, answer.paid * (1 + CLOSE))


@dataclass
class _Search:
    w: Floats
    bias: float
    target: float
    query: Query
    deadline: float

    def __post_init__(self) -> None:
        w, query = self.w, self.query
        size = float(np.abs(query.x) @ np.abs(w)) + abs(self.bias) + abs(self.target)
        size += sum(float(np.abs(w[group]).max()) for group, _ in query.groups)
        self.need = self.target - self.bias - float(w @ query.x)
        self.slack = 8 * (len(w) + 8) * float(np.finfo(np.float64).eps) * size
        """Bound on the rounding error of a score near the target."""
        with np.errstate(over="ignore", divide="ignore"):
            rate = np.where(w > 0, *query.cost.units(len(w))) / np.abs(w)
            self.rate: Floats = np.asarray(rate**query.cost.power, dtype=np.float64)
        """(d,) what a gain of one in the score costs each column, to the power."""

    def unlimited(self) -> float:
        if self.query.cost.power == 1:
            return float(self.rate.min()) * self.need
        with np.errstate(divide="ignore"):
            return self.need**2 / float((1 / self.rate).sum())

    def within(self, query: Query, radius: float) -> Answer:
        best, paid, bound, margin = None, np.inf, -np.inf, 0.0
        change, size = Change(query, radius), max(self.need, self.slack)
        if not change.program.cost:
            return Answer(None, np.inf, np.inf)  # nothing can change
        score = change.row(self.w, self.need, SCORE / size)
        enough = change.program.lower[score]
        for _ in range(ROUNDS):
            change.program.lower[score] = enough + margin * SCORE
            values, least = change.program.solve(self.deadline - time.monotonic())
            if not margin:
                bound = max(bound, least * radius / COST)
            if values is None:
                break
            row, free = change.read(values)
            finished = self._finished(query, row, free)
            if finished is not None and query.paid(finished) < paid:
                best, paid = finished, query.paid(finished)
            if paid <= bound * (1 + CLOSE) or time.monotonic() > self.deadline:
                break
            new = change.refine(row)
            new |= finished is not None and change.refine(finished)
            if not new:
                if best is not None or margin:
                    break
                margin = 4e-6  # HiGHS used its tolerance: by the model's own score, its solution falls short
        return Answer(best, paid, bound)

    def _finished(self, query: Query, row: Floats, free: Mask) -> Floats | None:
        """The row (d,) with its continuous columns (d,) adjusted to reach the target; None: that fails."""
        w, limit = self.w, np.where(self.w > 0, query.high, query.low)
        usable = free & np.isfinite(self.rate) & (self.rate > 0)
        if query.rules.most_changes is not None:
            usable &= row != query.x
        if usable.any() and not query.rules.rules:
            row = np.where(usable, query.x, row)
            room = np.abs(w * (limit - query.x))[None, usable]
            gains = Slack(room, self.rate[usable], query.cost.power).gains(np.array([self._short(row)]))[0]
            row[usable] += np.sign(w[usable]) * gains / np.abs(w[usable])
            row = np.where(usable, np.clip(row, query.low, query.high), row)
        order = np.flatnonzero(usable)
        for column in order[np.lexsort((self.rate[order], row[order] == query.x[order]))].tolist():
            if self._short(row) <= -self.slack / 2:
                break
            moved = row.copy()
            moved[column] += (self._short(row) + self.slack) / w[column]
            moved[column] = np.clip(moved[column], query.low[column], query.high[column])
            moved = query.projected(moved)
            if query.kept(moved) and moved @ w > row @ w:
                row = moved
        return row if self._reached(row) and query.kept(row) else None

    def _short(self, row: Floats) -> float:
        return self.target - self.bias - float(row @ self.w)

    def _reached(self, row: Floats) -> bool:
        terms = row * self.w
        sums = (row @ self.w, (row[None] @ self.w)[0], terms.sum(), terms[::-1].sum())
        return all(bool(total + self.bias >= self.target) for total in sums) and bool(np.isfinite(row).all())


# --- continuous columns ----------------------------------------------------------------------------------------


@dataclass
class Slack:
    """Continuous columns of n queries, whose gains g_j add up to a goal at least cost: gains R_j (n, d) at their
    limits, perhaps infinite, and costs (d,) of a unit of gain, to the power that adds up over columns.

    Power 1: columns fill in order of their rate. Power 2: the cost is g_j^2 / s_j with speed s_j = 1 / rate, and by the
    Karush-Kuhn-Tucker conditions g_j = min(level s_j, R_j) at one level (water filling: Boyd and Vandenberghe 2004,
    example 5.2). Columns fill in order of R_j / s_j; between two such points the total is linear in the level.
    """

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
