"""The cheapest change of each query by a mixed-integer program, with a proof or the bound that a time limit left."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._progress import shown
from safexplain._validate import check_number, real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, L2, Cost, Percentile, check_cost, for_columns
from safexplain.recourse.feature_names import check_columns
from safexplain.recourse.found import Floats, Found, as_rows
from safexplain.recourse.linear.water_filling import WaterFilling
from safexplain.recourse.program.moves import CLOSE, COST, Answer, Moves, Query

SCORE = 1e3
"""What the score has to rise by, in the program: HiGHS's tolerance of 1e-6 is a 1e-9 share of it."""
ROUNDS = 200
"""Programs solved for one query at most; each is refined where the last one's solution lies."""
WIDER = 16.0
"""How much dearer answers are looked for when none was found."""
WIDEST = 1e12
"""Times the first guess, beyond which no dearer answers are looked for."""


def solve_program(
    model: Linear,
    x: ArrayLike,
    *,
    target: float = 0.0,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: ArrayLike | None = None,
    within: tuple[ArrayLike, ArrayLike] | None = None,
    time_limit: float = 10.0,
) -> Found:
    """Cheapest change of each query that brings a model's score to the target, one program a query.

    Args:
        model: `Linear(weights, bias)` or `Forest.of(model)`.
        x: (n, d) or (d,) queries.
        target: score to reach; queries at or above it are favourable and stay.
        cost: what a change costs.
        constraints: what may change; None: everything.
        frozen: (n, d) bool, columns that a query must not change besides.
        within: lower and upper limits, (n, d) each, of each query's own answer.
        time_limit: seconds for each query.

    Returns:
        Answers that keep every constraint exactly and reach the target by the model's own score. `proven` where the
        distance is within 1e-6 of a proven bound, and where it is proven that there is no answer. A query whose time is
        up has the best answer found.

    Raises:
        InputError: not finite numbers, wrong shapes, columns in another order, or queries that break the constraints.
        ConfigurationError: not a cost or constraints, or for another number of columns.
    """
    check_cost(cost)
    check_constraints(constraints)
    check_number("time_limit", time_limit, above=0.0)
    check_number("target", target)
    if not isinstance(model, Linear):
        raise ConfigurationTypeError(f"model: expected Linear(weights, bias) or Forest.of(model), got {model!r}")
    rows = as_rows(x, model.width)
    if constraints is not None:
        if constraints.width != model.width:
            raise ConfigurationError(
                f"constraints: for {constraints.width} columns, but the model has {model.width}; both must be about the"
                " same table"
            )
        check_columns(constraints.features, x)
    rules = Constraints(model.width) if constraints is None else constraints
    cost = for_columns(cost, rules.features, model.width)
    held = None if frozen is None else _like(np.asarray(frozen, dtype=bool), rows, "frozen")
    rules.check(rows, held)
    box = None if within is None else [_like(real_numbers(side, "within"), rows, "within") for side in within]
    score = model.score(rows)
    if not np.isfinite(score).all():
        raise InputError("x: the scores overflow float64; use smaller units")
    favourable = score >= target
    counterfactual, valid, proven = rows.copy(), favourable.copy(), favourable.copy()
    todo = np.flatnonzero(~favourable)
    with shown(quiet=len(todo) < 2, stream=sys.stderr) as progress:
        for done, at in enumerate(todo.tolist()):
            progress("recourse by integer program", done, len(todo))
            sides = None if box is None else (box[0][at], box[1][at])
            query = Query.of(rows[at], cost, rules, None if held is None else held[at], sides)
            if query.empty:
                answer = Answer(None, np.inf, np.inf)
            else:
                answer = _LinearSearch(model, query, at, target, time.monotonic() + time_limit).run()
            proven[at] = answer.proven
            if answer.row is not None:
                counterfactual[at], valid[at] = answer.row, True
        progress("recourse by integer program", len(todo), len(todo))
    distance = cost.distance(counterfactual - rows, rows)
    return Found(
        rows, counterfactual, valid, distance, score, favourable, np.zeros(len(rows), dtype=bool), proven=proven
    )


def _like(given: NDArray[Any], rows: Floats, what: str) -> NDArray[Any]:
    try:
        return np.broadcast_to(given, rows.shape)
    except ValueError:
        raise InputError(f"{what}: expected shape {rows.shape}, as the queries, got {given.shape}") from None


@dataclass(frozen=True, eq=False)
class Linear:
    """The score w.x + b.

    Args:
        weights: (d,) w.
        bias: b, one number or (n,), one a query.
    """

    weights: Floats
    bias: Floats | float = 0.0

    @property
    def width(self) -> int:
        """Number of columns d."""
        return len(self.weights)

    def score(self, rows: Floats) -> Floats:
        """(n,) scores of rows (n, d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            scores: Floats = rows @ self.weights + self.bias
        return scores

    def reached(self, row: Floats, at: int, target: float) -> bool:
        """Whether a row (d,) that answers query `at` reaches the target, in several orders of adding."""
        bias = _entry(self.bias, at)
        terms = row * self.weights
        ways = (row @ self.weights, (row[None] @ self.weights)[0], terms.sum(), terms[::-1].sum())
        return all(bool(way + bias >= target) for way in ways) and bool(np.isfinite(row).all())


def _entry(bias: Floats | float, at: int) -> float:
    return float(np.asarray(bias)[at] if np.ndim(bias) else bias)


@dataclass(eq=False)
class _LinearSearch:
    """The programs of one query, each with the bounds of costs as the last one's solution refined them."""

    model: Linear
    query: Query
    at: int
    target: float
    deadline: float

    def __post_init__(self) -> None:
        w, query = self.model.weights, self.query
        self.bias = _entry(self.model.bias, self.at)
        size = (
            np.abs(query.x) @ np.abs(w)
            + abs(self.bias)
            + abs(self.target)
            + sum(float(np.abs(w[group]).max()) for group, _ in query.groups)
        )
        self.slack = 8 * (len(w) + 8) * float(np.finfo(np.float64).eps) * float(size)
        """Bound on the rounding error of a score near the target."""

    def run(self) -> Answer:
        """The answer; programs look for one within a radius of costs, which grows until there is one."""
        guess = self._guess()
        if guess is None:
            return Answer(None, np.inf, np.inf)
        radius = first = guess
        while True:
            near = self.query.narrowed(radius)
            answer = Answer(None, np.inf, np.inf) if near.empty else self._within(near, radius)
            if answer.paid <= radius * (1 + CLOSE):
                return answer
            whole = bool(((near.low == self.query.low) & (near.high == self.query.high)).all())
            if whole:
                return answer
            if time.monotonic() > self.deadline or radius > first * WIDEST:
                return Answer(answer.row, answer.paid, min(answer.bound, radius))
            radius = max(radius * WIDER, answer.paid * (1 + CLOSE) if answer.row is not None else 0.0)

    def _guess(self) -> float | None:
        """About what an answer costs, to the power, by filling cheap columns first; None: the score is out of reach."""
        w, query = self.model.weights, self.query
        member = query.grouped
        row = np.where(member, query.x, np.clip(query.x, query.low, query.high))
        gain, price = np.zeros(0), np.zeros(0)
        limit = np.where(w > 0, query.high, query.low)
        need = self.target - self.bias - float(row @ w)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            room = np.where((w == 0) | member, 0.0, np.abs(w) * np.abs(limit - row))
            used = np.minimum(room, max(need, 0.0))
            steps = np.where(query.step > 0, query.step, 1)
            moved = np.where(w == 0, 0.0, used / np.abs(w))
            moved = np.where(query.step > 0, np.ceil(moved / steps) * steps, moved)
            moved = np.where(np.isfinite(moved), moved, 0.0)
            gain, price = room[~member], query.parts(row + np.where(member, 0.0, np.sign(w) * moved))[~member]
        for group, admissible in query.groups:
            own = int(query.x[group].argmax())
            gains = np.where(admissible, w[group] - w[group[own]], -np.inf)
            best = int(gains.argmax())
            gain, price = np.append(gain, gains[best]), np.append(price, query.prices(group)[best])
        if gain.sum() + self.slack < need:
            return None
        spent, got = query.paid(row), 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(gain > 0, price / gain, np.inf)
        for item in np.argsort(rate, kind="stable").tolist():
            if got >= need or not np.isfinite(rate[item]):
                break
            got, spent = got + gain[item], spent + price[item]
        return max(spent * (1 + CLOSE), float(np.finfo(np.float64).tiny) * 1e50)

    def _within(self, query: Query, radius: float) -> Answer:
        """The cheapest row of a query with finite limits."""
        moving = (query.low < query.high) & ~query.grouped
        curves = [query.curve(column) if moves else None for column, moves in enumerate(moving.tolist())]
        best, paid, bound, margin = None, np.inf, -np.inf, 0.0
        for _ in range(ROUNDS):
            moves = Moves(query, curves, radius)
            need = self.target - self.bias - float(self.model.weights @ query.x)
            size = max(need, self.slack)
            if query.rules.most_changes is not None:
                moves.limit_changes(query.rules.most_changes, [], [])
            moves.row(self.model.weights, need + margin * size, SCORE / size)
            solved = moves.program.solve(self.deadline - time.monotonic())
            if not margin:
                bound = max(bound, solved.bound * radius / COST + moves.paid)
            if solved.values is None:
                break
            row, free = moves.read(solved.values)
            finished = self._finished(query, row, free)
            if finished is not None and query.paid(finished) < paid:
                best, paid = finished, query.paid(finished)
            if paid <= bound * (1 + CLOSE) or time.monotonic() > self.deadline:
                break
            new = moves.refine(row)
            new |= finished is not None and moves.refine(finished)
            if not new:
                if best is not None or margin:
                    break
                margin = 4e-6  # HiGHS took up its tolerance: what it found falls short by the model's own score
        return Answer(best, paid, bound)

    def _rates(self, query: Query) -> Floats:
        """(d,) what a gain of one in the score costs each column, to the power; of percentiles, the nearest ones."""
        w = self.model.weights
        if isinstance(query.cost, Percentile):
            ahead = np.where(w > 0, 1.0, -1.0) * np.where(
                np.isfinite(query.high - query.low), query.high - query.low, 1.0
            )
            unit = query.parts(query.x + ahead / 100) / np.abs(np.where(ahead != 0, ahead / 100, 1.0))
        else:
            unit = np.where(w > 0, *query.cost.units(len(w)))
        with np.errstate(over="ignore", divide="ignore"):
            rate: Floats = np.where(w != 0, (unit / np.abs(np.where(w != 0, w, 1.0))) ** query.cost.power, np.inf)
        return rate

    def _finished(self, query: Query, row: Floats, free: NDArray[np.bool_]) -> Floats | None:
        """The row (d,) with its continuous columns (d,) adjusted so that the target is reached; None: it is not."""
        w = self.model.weights
        limit = np.where(w > 0, query.high, query.low)
        rate = self._rates(query)
        usable = free & np.isfinite(rate) & (rate > 0)
        if isinstance(query.cost, L2) and usable.any() and not query.rules.rules:
            used = usable & (np.clip(query.x, query.low, query.high) == query.x)  # a square counts from the query
            used = used & (row != query.x) if query.rules.most_changes is not None else used
            start = np.where(used, np.clip(query.x, query.low, query.high), row)
            need = self.target - self.bias - float(start @ w)
            room = np.abs(w * (limit - start))[None, used]
            gains = WaterFilling.of(room, rate[used], 2).gains(np.array([need]))[0]
            start[used] += np.sign(w[used]) * gains / np.abs(w[used])
            row = np.where(used, np.clip(start, query.low, query.high), row)
        order = np.flatnonzero(usable)
        order = order[np.lexsort((rate[order], row[order] == query.x[order]))]
        for column in order.tolist():
            short = self.target - self.bias - float(row @ w) + self.slack
            if short <= self.slack / 2:
                break
            moved = row.copy()
            moved[column] = np.clip(row[column] + short / w[column], query.low[column], query.high[column])
            moved = query.projected(moved)
            if query.kept(moved) and moved @ w > row @ w:
                row = moved
        if self.model.reached(row, self.at, self.target) and query.kept(row):
            return row
        return None
