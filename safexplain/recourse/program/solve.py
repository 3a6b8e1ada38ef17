"""The cheapest change of one query by a mixed-integer program, with a proof or the bound that a time limit left."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import Cost
from safexplain.recourse.found import Floats
from safexplain.recourse.linear.choices import WaterFilling
from safexplain.recourse.program.change import COST, Change, Query

CLOSE = 1e-6
"""Share by which an answer may be dearer, to the power of the cost, than the bound that proves it."""
SCORE = 1e3
"""What the score has to rise by, in the program: HiGHS's tolerance of 1e-6 is a 1e-9 share of it."""
ROUNDS = 200
"""Programs solved for one query at most; each is refined where the last one's solution lies."""
WIDER = 16.0
"""How much dearer answers are looked for when none was found."""
WIDEST = 1e15
"""Times the first guess, beyond which no dearer answers are looked for."""


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


NONE = Answer(None, np.inf, np.inf)
"""There is proven to be no answer."""


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
    """The cheapest change of one unfavourable query (d,) that brings w.x + bias to the target.

    Programs look for it within a radius of costs, which grows until there is one.

    Args:
        w: (d,) weights.
        bias: of the score.
        target: score to reach.
        x: (d,) the query.
        cost: what a change costs.
        rules: the constraints.
        frozen: (d,) bool, what must not change besides.
        least: what the answer is known to cost at least, to the power.
        time_limit: seconds.

    Returns:
        A row that keeps every constraint exactly and reaches the target; the best one found where the time is up.
    """
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
        radius = max(radius * WIDER, answer.paid * (1 + CLOSE) if answer.row is not None else 0.0)


@dataclass(eq=False)
class _Search:
    """The programs of one query."""

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
        """What the change would cost, to the power, if every column could change as it liked."""
        if self.query.cost.power == 1:
            return float(self.rate.min()) * self.need
        with np.errstate(divide="ignore"):
            return self.need**2 / float((1 / self.rate).sum())

    def within(self, query: Query, radius: float) -> Answer:
        """The cheapest row of a query with finite limits."""
        best, paid, bound, margin = None, np.inf, -np.inf, 0.0
        change, size = Change(query, radius), max(self.need, self.slack)
        if not change.program.cost:
            return NONE  # nothing can change
        score = change.row(self.w, self.need, SCORE / size)
        enough = change.program.lower[score]
        for _ in range(ROUNDS):
            change.program.lower[score] = enough + margin * SCORE
            solved = change.program.solve(self.deadline - time.monotonic())
            if not margin:
                bound = max(bound, solved.bound * radius / COST)
            if solved.values is None:
                break
            row, free = change.read(solved.values)
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
                margin = 4e-6  # HiGHS took up its tolerance: what it found falls short by the model's own score
        return Answer(best, paid, bound)

    def _finished(self, query: Query, row: Floats, free: Mask) -> Floats | None:
        """The row (d,) with its continuous columns (d,) adjusted so that the target is reached; None: it is not."""
        w, limit = self.w, np.where(self.w > 0, query.high, query.low)
        usable = free & np.isfinite(self.rate) & (self.rate > 0)
        if query.rules.most_changes is not None:
            usable &= row != query.x
        if usable.any() and not query.rules.rules:
            row = np.where(usable, query.x, row)
            room = np.abs(w * (limit - query.x))[None, usable]
            filling = WaterFilling.of(room, self.rate[usable], query.cost.power)
            gains = filling.gains(np.array([self._short(row)]))[0]
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
        """By how much a row (d,) misses the target."""
        return self.target - self.bias - float(row @ self.w)

    def _reached(self, row: Floats) -> bool:
        """Whether a row (d,) reaches the target, in several orders of adding."""
        terms = row * self.w
        ways = (row @ self.w, (row[None] @ self.w)[0], terms.sum(), terms[::-1].sum())
        return all(bool(way + self.bias >= self.target) for way in ways) and bool(np.isfinite(row).all())
