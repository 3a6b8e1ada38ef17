"""Counterfactuals of a linear score f(x) = w.x + b: the cheapest x' with f(x') >= target.

Without constraints, in the Euclidean norm, x' = x + (target - f(x)) w / |w|^2. (The formula of "On the Privacy Risks of
Algorithmic Recourse" and of the Laplace recourse built on it divides by |w| once and misses the target unless |w| = 1.)
Limits, frozen and monotone columns keep it exact (`WaterFilling`); whole numbers, steps and one-hot groups are found by
a search that bounds what it leaves out (`safexplain.recourse.linear.knapsack`).

Both leave `most_changes` and rules out. An answer that keeps these anyway is the cheapest of all, and where there is
none without them, there is none. The other queries go to an integer program (`safexplain.recourse.program`), as do
percentile costs, and L1 queries for which the search leaves doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import check_number, real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Box, Constraints, Mask, check_constraints, check_within
from safexplain.recourse.cost import EUCLIDEAN, L1, L2, Cost, Percentile, check_cost, for_columns
from safexplain.recourse.feature_names import check_columns
from safexplain.recourse.found import Floats, Found, as_rows
from safexplain.recourse.linear.few_changes import Savings
from safexplain.recourse.linear.knapsack import CLOSE, missing, solve
from safexplain.recourse.linear.lagrangian import Items
from safexplain.recourse.linear.water_filling import WaterFilling
from safexplain.recourse.program.solve import Linear, solve_program

ROWS = 4096
"""Constrained queries solved at a time."""


def linear_recourse(
    weights: ArrayLike,
    bias: ArrayLike,
    x: ArrayLike,
    *,
    target: float = 0.0,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: ArrayLike | None = None,
    within: Box | None = None,
    time_limit: float = 10.0,
) -> Found:
    """Cheapest change of each query that brings w.x + b to the target.

    Args:
        weights: (d,) w.
        bias: b, one number or (n,), one a query.
        x: (n, d) or (d,) queries.
        target: score to reach; queries at or above it are favourable and stay.
        cost: what a change costs.
        constraints: what may change; None: everything.
        frozen: (n, d) bool, columns that a query must not change besides.
        within: least and greatest values, (n, d) each or what broadcasts to it, of each query's own answer; the query
            itself may lie outside. Favourable queries stay nevertheless.
        time_limit: seconds for each query that needs an integer program.

    Returns:
        Answers whose score, computed in float64, is never below the target; `valid` False where no allowed row that
        reaches it was found. `proven` where no answer is cheaper, but for a share of 1e-6 and rounding, or where there
        certainly is none. That is everywhere but where a time limit ended the program, the search of `knapsack` leaves
        doubt about whole numbers under L2, or numbers overflow.

    Raises:
        InputError: not finite numbers, wrong shapes, columns in another order, or queries that break the constraints.
        ConfigurationError: not a cost or constraints, or for another number of columns.
    """
    check_cost(cost)
    check_constraints(constraints)
    check_number("time_limit", time_limit, above=0)
    w = _finite(weights, "weights")
    if w.ndim != 1:
        raise InputError(f"weights: expected shape (d,), got {w.shape}")
    rows = as_rows(x, len(w))
    b = _finite(bias, "bias")
    if b.ndim and b.shape != (len(rows),):
        raise InputError(f"bias: expected one number or shape ({len(rows)},), got {b.shape}")
    if _finite(target, "target").ndim:
        raise InputError(f"target: expected one number, got shape {np.shape(target)}")
    if constraints is not None and constraints.width != len(w):
        raise ConfigurationError(f"constraints: for {constraints.width} columns, but the model has {len(w)}")
    held = None if frozen is None else np.atleast_2d(np.asarray(frozen, dtype=bool))
    if held is not None and held.shape != rows.shape:
        raise InputError(f"frozen: expected shape {rows.shape}, as the queries, got {held.shape}")
    box = check_within(within, rows.shape)
    if constraints is not None:
        check_columns(constraints.features, x)
        constraints.check(rows, held)
    cost = for_columns(cost, None if constraints is None else constraints.features, len(w))
    shift = np.broadcast_to(b, (len(rows),))
    with np.errstate(over="ignore", invalid="ignore"):
        score = rows @ w + shift
    if not np.isfinite(score).all():
        raise InputError("x: the scores overflow float64; use smaller units")
    limited = constraints is None and (held is not None or box is not None)
    rules = Constraints(len(w)) if limited else constraints
    favourable = score >= target
    found = _Answers(rows.copy(), favourable.copy(), favourable.copy())
    line, todo, hard = _Line(w, float(target), cost, rules), np.flatnonzero(~favourable), []
    for start in range(0, len(todo), ROWS if rules else max(len(todo), 1)):
        part = todo[start : start + ROWS] if rules else todo
        answers, left = line.answers(rows[part], shift[part], score[part], _part(held, part), _part(box, part))
        found.put(part, answers)
        hard.append(part[left])
    part = np.concatenate([np.empty(0, dtype=np.intp), *hard])
    if len(part):
        answers = line.programmed(
            rows[part], shift[part], _part(held, part), _part(box, part), time_limit, found.take(part)
        )
        found.put(part, answers)
    distance = cost.distance(found.row - rows, rows)
    lost = ~np.isfinite(distance)
    found.row[lost], found.valid[lost], found.proven[lost], distance[lost] = rows[lost], favourable[lost], False, 0.0
    censored = np.zeros(len(rows), dtype=bool)
    return Found(rows, found.row, found.valid, distance, score, favourable, censored, proven=found.proven)


def _part(given: Any, part: NDArray[np.intp]) -> Any:
    """Some rows of an array, or of both sides of a box; None stays."""
    return tuple(side[part] for side in given) if isinstance(given, tuple) else None if given is None else given[part]


@dataclass(frozen=True, eq=False)
class _Answers:
    """Rows (n, d), and (n,) bool, whether they are valid, and proven to be the cheapest or that there is none."""

    row: Floats
    valid: Mask
    proven: Mask

    def take(self, part: NDArray[np.intp]) -> _Answers:
        return _Answers(self.row[part], self.valid[part], self.proven[part])

    def put(self, part: NDArray[np.intp], answers: _Answers) -> None:
        self.row[part], self.valid[part], self.proven[part] = answers.row, answers.valid, answers.proven


@dataclass(frozen=True, eq=False)
class _Line:
    """The score, apart from its bias, and what answers are held to.

    Args:
        w: (d,) weights.
        target: score to reach.
        cost: of d columns.
        rules: the constraints; None: none.
    """

    w: Floats
    target: float
    cost: Cost
    rules: Constraints | None

    def answers(
        self, x: Floats, b: Floats, score: Floats, frozen: Mask | None, within: tuple[Floats, Floats] | None
    ) -> tuple[_Answers, Mask]:
        """Answers to unfavourable queries (n, d) without an integer program, and (n,) which need one."""
        answers, left = self.nearest(x, b, score, frozen, within)
        if self.rules is None or self.rules.most_changes is None or self.rules.rules or not left.any():
            return answers, left
        lower, upper = self.rules.bounds(x, frozen, within)
        many = np.flatnonzero(left & ~answers.valid & ((lower <= x) & (x <= upper)).all(axis=1))
        if not len(many):
            return answers, left
        found, still = self.few(x[many], b[many], score[many], _part(frozen, many), _part(within, many))
        answers.put(many, found)
        left[many] = still
        return answers, left

    def nearest(
        self, x: Floats, b: Floats, score: Floats, frozen: Mask | None, within: tuple[Floats, Floats] | None
    ) -> tuple[_Answers, Mask]:
        """As `answers`, by geometry and the knapsack alone."""
        w, rules, power = self.w, self.rules, self.cost.power
        answers = _Answers(x.copy(), np.zeros(len(x), dtype=bool), np.zeros(len(x), dtype=bool))
        left = np.zeros(len(x), dtype=bool)
        if not w.any():
            answers.proven[:] = True
            return answers, left
        bounds, start, pending = None, x, np.arange(len(x))
        if rules is not None:
            bounds = rules.bounds(x, frozen, within)
        if rules is not None and bounds is not None and within is not None:
            start, outside, possible = _starts(rules, x, *bounds)
            start = np.where(possible[:, None], start, x)  # an empty box has no start
            reached = possible & ~outside & _reaches(start, w, b, self.target)
            self._keep(answers, left, np.flatnonzero(reached), x, start[reached], reached[reached])
            answers.proven[~possible] = True
            moved = (start != x).any(axis=1)
            left |= possible & ~reached & (outside | (moved & (power == 2)))
            pending = np.flatnonzero(possible & ~reached & ~left)
            score = np.where(moved, start @ w + b, score)
        if isinstance(self.cost, Percentile):
            left[pending] = True
            return answers, left
        scale = float(2.0 ** (np.frexp(np.abs(w).max())[1] - 1))
        with np.errstate(over="ignore"):
            slack = _rounding(start, w, b, self.target, rules) / scale
            gap = (self.target - score) / scale
        pending = pending[np.isfinite(gap[pending]) & np.isfinite(slack[pending])]
        usable = _rates(w / scale, np.where(w > 0, *self.cost.units(len(w))), power)[1]
        every, several = not w[~usable].any(), rules is not None and bool(rules.groups or rules.grid.any())
        for sign in (-1.0, 1.0):
            enough, goal = gap[pending] + sign * slack[pending], gap[pending] + slack[pending]
            sides = None if bounds is None else (bounds[0][pending], bounds[1][pending])
            changed, most, sure = _reach(start[pending], w / scale, enough, goal, self.cost, rules, sides)
            if rules is not None and within is not None:
                changed = _in_steps(rules, x[pending], changed)
            done = _reaches(changed, w, b[pending], self.target)
            self._keep(answers, left, pending[done], x, changed[done], sure[done])
            answers.proven[pending] |= ~done & (most < (enough if several else goal)) & every
            pending = pending[~done & ~answers.proven[pending]]
            if not len(pending) or not several:
                break
        return answers, left

    def _keep(self, answers: _Answers, left: Mask, at: NDArray[np.intp], x: Floats, row: Floats, sure: Mask) -> None:
        """Take rows that reach the target for the queries `at`, unless what limits changes forbids them."""
        kept = np.ones(len(at), dtype=bool)
        if self.rules is not None and self.rules.rules:
            kept &= self.rules.obeyed(x[at], row)
        if self.rules is not None and self.rules.most_changes is not None:
            kept &= self.rules.changes(x[at], row) <= self.rules.most_changes
        answers.put(at[kept], _Answers(row[kept], kept[kept], sure[kept]))
        left[at] = ~kept | (~sure & (self.cost.power == 1))

    def few(
        self, x: Floats, b: Floats, score: Floats, frozen: Mask | None, within: tuple[Floats, Floats] | None
    ) -> tuple[_Answers, Mask]:
        """As `nearest`, of queries whose nearest answers change too many features; without other rules."""
        w, rules, cost = self.w, self.rules, self.cost
        answers = _Answers(x.copy(), np.zeros(len(x), dtype=bool), np.zeros(len(x), dtype=bool))
        left = np.ones(len(x), dtype=bool)
        if rules is None or rules.most_changes is None or isinstance(cost, Percentile):
            return answers, left
        lower, upper = rules.bounds(x, frozen, within)
        scale = float(2.0 ** (np.frexp(np.abs(w).max())[1] - 1))
        if w[~_rates(w / scale, np.where(w > 0, *cost.units(len(w))), cost.power)[1]].any():
            return answers, left
        slack, gap = _rounding(x, w, b, self.target, rules) / scale, (self.target - score) / scale
        items, stepped, free = _items(x, w / scale, gap + slack, cost, rules, (lower, upper))
        columns = [*rules.groups, *np.flatnonzero(stepped)[:, None], *np.flatnonzero(free)[:, None]]
        with np.errstate(all="ignore"):
            savings = Savings.of(items, gap - slack, rules.most_changes)
        best, sure = np.full(len(x), np.inf), np.ones(len(x), dtype=bool)
        line = replace(self, rules=replace(rules, most_changes=None))

        def tried(sets: list[list[tuple[int, ...]]]) -> None:
            """Take the answers that change one of these sets of features, where they are better."""
            query = np.repeat(np.arange(len(x)), [len(own) for own in sets])
            held = np.ones((len(query), len(w)), dtype=bool)
            for row, chosen in enumerate(one for own in sets for one in own):
                for feature in chosen:
                    held[row, columns[feature]] = False
            held = held if frozen is None else held | frozen[query]
            for start in range(0, len(query), ROWS):
                part = query[start : start + ROWS]
                found, _ = line.nearest(x[part], b[part], score[part], held[start : start + ROWS], _part(within, part))
                np.logical_and.at(sure, part, found.proven)
                paid = np.where(found.valid, cost.parts(found.row - x[part]).sum(axis=1), np.inf)
                for row in np.flatnonzero(paid < best[part]).tolist():
                    if paid[row] < best[part[row]]:
                        best[part[row]] = paid[row]
                        answers.put(part[[row]], found.take(np.array([row])))

        tried([savings.first(at) if savings.possible[at] else [] for at in range(len(x))])
        doubt = savings.possible & ~(best <= savings.bound * (1 + CLOSE))
        more = [savings.better(at, best[at]) if doubt[at] else [] for at in range(len(x))]
        tried([sets or [] for sets in more])
        left = np.array([sets is None for sets in more], dtype=bool) | (np.isinf(best) & savings.possible)
        answers.proven[:] = sure & ~left
        return answers, left | (~sure & (cost.power == 1))

    def programmed(
        self,
        x: Floats,
        b: Floats,
        frozen: Mask | None,
        within: tuple[Floats, Floats] | None,
        time_limit: float,
        known: _Answers,
    ) -> _Answers:
        """Answers to unfavourable queries (n, d) by an integer program, where they are better than those known.

        Columns are held from changes that lower the score and that no rule asks for, as the cheapest answer has none.
        """
        rules = Constraints(len(self.w)) if self.rules is None else self.rules
        lower, upper = rules.bounds(x, frozen, within)
        start, then = np.clip(x, lower, np.maximum(lower, upper)), [column for _, column in rules.linked]
        falls, rises = self.w < 0, self.w > 0
        rises[then] = True
        for group in rules.groups:
            falls[group] = rises[group] = True
        found = solve_program(
            Linear(self.w, b),
            x,
            target=self.target,
            cost=self.cost,
            constraints=rules,
            frozen=frozen,
            within=(np.where(falls, lower, start), np.where(rises, upper, start)),
            time_limit=time_limit,
        )
        valid = found.valid & _reaches(found.counterfactual, self.w, b, self.target)
        before = np.where(known.valid, self.cost.distance(known.row - x, x), np.inf)
        better = valid & (found.distance < before)
        proven = found.proven & (valid == found.valid) & (known.valid <= valid)
        return _Answers(np.where(better[:, None], found.counterfactual, known.row), valid | known.valid, proven)


def _starts(rules: Constraints, x: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Mask, Mask]:
    """Nearest rows within limits that need not hold the query.

    Returns:
        Rows (n, d); (n,) bool, whether a category would have to be given up first, so that they are none; and (n,)
        bool, whether the limits leave anything at all.
    """
    possible, outside = (lower <= upper).all(axis=1), np.zeros(len(x), dtype=bool)
    for group in rules.groups:
        possible &= rules.admissible(group, lower, upper).any(axis=1)
        outside |= ((x[:, group] < lower[:, group]) | (x[:, group] > upper[:, group])).any(axis=1)
    return np.clip(x, lower, np.maximum(lower, upper)), outside, possible


def _in_steps(rules: Constraints, x: Floats, changed: Floats) -> Floats:
    """The rows (n, d), each step counted from the query and not from the edge of its box, which rounds otherwise."""
    stepped = (rules.grid > 0) & ~rules.whole
    size = np.where(stepped, rules.grid, 1.0)
    moved = x + np.rint((changed - x) / size) * size
    return np.where(stepped & (np.abs(moved - changed) <= 1e-9 * size), moved, changed)


def _finite(given: ArrayLike, what: str) -> Floats:
    array = real_numbers(given, what)
    if not np.isfinite(array).all():
        raise InputError(f"{what}: NaN or infinite")
    return array


def _rounding(x: Floats, w: Floats, b: Floats, target: float, rules: Constraints | None) -> Floats:
    """(n,) bound on the rounding error of a score near the target, in whatever order its terms are added."""
    size = np.abs(x) @ np.abs(w) + np.abs(b) + abs(target)
    for group in rules.groups if rules else ():
        size = size + np.abs(w[group]).max()
    bound: Floats = 8 * (len(w) + 8) * np.finfo(np.float64).eps * size
    return bound


def _reaches(x: Floats, w: Floats, b: Floats, target: float) -> NDArray[np.bool_]:
    """(n,) bool, whether the score reaches the target, in two orders of adding."""
    with np.errstate(over="ignore", invalid="ignore"):
        reached: NDArray[np.bool_] = (x @ w + b >= target) & ((x * w)[:, ::-1].sum(axis=1) + b >= target)
        reached &= np.isfinite(x).all(axis=1)
    return reached


def _rates(w: Floats, unit: Floats, power: int) -> tuple[Floats, Mask]:
    """(d,) cost of a unit of score by each column, to the power, and which columns float64 can reckon with."""
    with np.errstate(all="ignore"):
        rate = (unit / np.abs(w)) ** power
    return rate, np.isfinite(rate) & (rate > 0)


def _reach(
    x: Floats,
    w: Floats,
    enough: Floats,
    goal: Floats,
    cost: L1 | L2,
    rules: Constraints | None,
    bounds: tuple[Floats, Floats] | None,
) -> tuple[Floats, Floats, Mask]:
    """Rows (n, d) changed so that w.x rises by the goal (n,), or by as much as is possible.

    Returns:
        The rows, the greatest rise (n,) that the limits allow, and (n,) bool, whether it is proven that no other rows
        cost less.
    """
    sure = np.ones(len(x), dtype=bool)
    if rules is None or bounds is None:
        unit = np.where(w > 0, *cost.units(len(w)))
        rate, usable = _rates(w, unit, cost.power)
        with np.errstate(all="ignore"):
            far = np.full(len(x), np.inf if usable.any() else 0.0)
            return x + _unlimited(goal, w, rate, usable, cost.power), far, sure
    (lower, upper), changed, size = bounds, x.copy(), np.abs(w)
    with np.errstate(all="ignore"):
        items, stepped, free = _items(x, w, goal, cost, rules, bounds)
        limit = np.where(w > 0, upper, lower)
        room = (size * np.abs(limit - x))[:, free]
        rest, most = goal, room.sum(axis=1)
        if rules.groups or stepped.any():
            steps, picks, sure = solve(items, enough, goal)
            moved = x[:, stepped] + np.sign(w[stepped]) * steps * rules.grid[stepped]
            changed[:, stepped] = np.clip(moved, lower[:, stepped], upper[:, stepped])
            for group, pick in zip(rules.groups, picks, strict=True):
                changed[:, group] = np.arange(len(group)) == pick[:, None]
            gained = items.gained(steps, picks)
            rest, most = missing(gained, enough, goal, items.slack.total), items.total
        gains_free = WaterFilling.of(room, items.slack.rate, cost.power).gains(rest)
        moved = x[:, free] + np.sign(w[free]) * gains_free / size[free]
        moved = np.where((gains_free >= room) & (room > 0), limit[:, free], moved)
        changed[:, free] = np.clip(moved, lower[:, free], upper[:, free])
        return changed, most, sure


def _items(
    x: Floats, w: Floats, goal: Floats, cost: L1 | L2, rules: Constraints, bounds: tuple[Floats, Floats]
) -> tuple[Items, Mask, Mask]:
    """What can be chosen so that w.x rises by the goal (n,), and (d,) which columns take steps and which are free."""
    (rise, fall), power = cost.units(len(w)), cost.power
    unit, (lower, upper) = np.where(w > 0, rise, fall), bounds
    rate, usable = _rates(w, unit, power)
    with np.errstate(all="ignore"):
        size = np.abs(w)
        distance = np.where(usable, np.abs(np.where(w > 0, upper, lower) - x), 0.0)
        free, stepped = usable & (rules.grid == 0), usable & (rules.grid > 0)
        for group in rules.groups:
            free[group] = False
        slack = WaterFilling.of(np.minimum(size * distance, 2 * goal[:, None])[:, free], rate[free], power)
        step = rules.grid[stepped]
        most = np.minimum(np.rint(distance[:, stepped] / step), np.ceil(goal[:, None] / (size[stepped] * step)))
        choices = [_categories(x, w, rise, fall, power, rules, group, lower, upper) for group in rules.groups]
        gains, costs = tuple(gain for gain, _ in choices), tuple(price for _, price in choices)
        return Items(size[stepped] * step, unit[stepped] * step, most, gains, costs, slack), stepped, free


def _unlimited(goal: Floats, w: Floats, rate: Floats, usable: NDArray[np.bool_], power: int) -> Floats:
    """(n, d) cheapest change that raises w.x by the goal (n,), without limits."""
    direction = np.zeros_like(w)
    if power == 1:
        best = int(np.where(usable, rate, np.inf).argmin())
        direction[best] = 1.0 / w[best]
    else:
        speed = np.where(usable, 1.0 / rate, 0.0)
        direction[usable] = (speed / speed.sum())[usable] / w[usable]
    return goal[:, None] * direction


def _categories(
    x: Floats,
    w: Floats,
    rise: Floats,
    fall: Floats,
    power: int,
    rules: Constraints,
    group: NDArray[np.intp],
    lower: Floats,
    upper: Floats,
) -> tuple[Floats, Floats]:
    """Gain and cost (n, k) of each category; the cost is infinite where it is ruled out or gains nothing."""
    own = x[:, group].argmax(axis=1)
    gain = w[group] - w[group][own][:, None]
    price = rise[group] ** power + (fall[group] ** power)[own][:, None]
    stays = np.arange(len(group)) == own[:, None]
    possible = rules.admissible(group, lower, upper) & (gain > 0)
    return np.where(stays, 0.0, gain), np.where(stays, 0.0, np.where(possible, price, np.inf))
