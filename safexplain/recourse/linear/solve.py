"""Counterfactuals of a linear score f(x) = w.x + b: the cheapest x' with f(x') >= target.

Without constraints, in the Euclidean norm, x' = x + (target - f(x)) w / |w|^2. Limits, whole numbers, steps and one-hot
groups are solved exactly by lists of choices. These ignore `most_changes` and rules: queries whose answers break them
go to an integer program (`program`), as do those whose lists grow too long.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._progress import show_progress
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import EUCLIDEAN, Cost, for_columns
from safexplain.recourse.linear.program import Slack, cheapest
from safexplain.recourse.solution import Floats, Solution, as_rows

ROWS = 4096
"""Number of constrained queries solved at a time."""


def linear_recourse(
    weights: ArrayLike,
    bias: ArrayLike,
    x: ArrayLike,
    *,
    target: float = 0.0,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: ArrayLike | None = None,
    time_limit: float = 10.0,
) -> Solution:
    """Cheapest change of each query x, (n, d) or (d,), that brings w.x + b to the target; `weights` w (d,), `bias` b
    one number or (n,), `frozen` (n, d) further values that must not change, `time_limit` seconds for each query that
    needs an integer program. Queries must satisfy the constraints.

    Returns:
        Answers whose score in float64 is never below the target. `proven` is True where no answer is cheaper, up to a
        share of 1e-6 and rounding, or certainly none exists: everywhere unless time ran out, or numbers overflow.

    Raises:
        InputError: not finite numbers, wrong shapes, or scores that overflow.
        ConfigurationError: a cost or constraints for another number of columns.
    """
    w = np.asarray(weights, dtype=np.float64)
    rows = as_rows(x, len(w))
    if constraints is not None and constraints.width != len(w):
        raise ConfigurationError(f"constraints: expected {len(w)} columns, as the model has, got {constraints.width}")
    held = None if frozen is None else np.atleast_2d(np.asarray(frozen, dtype=bool))
    cost = for_columns(cost, None if constraints is None else constraints.features, len(w))
    shift = np.broadcast_to(np.asarray(bias, dtype=np.float64), (len(rows),))
    with np.errstate(over="ignore", invalid="ignore"):
        score = rows @ w + shift
    if not np.isfinite(score).all():
        raise InputError("x: expected finite scores, but they overflow float64; use smaller units")

    favourable = score >= target
    found = _Answers(rows.copy(), favourable.copy(), favourable.copy(), np.zeros(len(rows), dtype=bool))
    line, todo = _LinearScore(w, float(target), cost), np.flatnonzero(~favourable)
    if constraints is None and held is None:
        found.put(todo, line.unlimited(rows[todo], shift[todo]))
    else:
        rules = Constraints(len(w)) if constraints is None else constraints
        held = np.zeros(rows.shape, dtype=bool) if held is None else held
        for part in np.split(todo, range(ROWS, len(todo), ROWS)):
            found.put(part, line.limited(rows[part], shift[part], rules, held[part]))
        left = np.flatnonzero(found.open)
        with show_progress(quiet=len(left) < 2, stream=sys.stderr) as progress:
            for done, at in enumerate(left.tolist()):
                progress("recourse by integer program", done, len(left))
                one = slice(at, at + 1)
                answer = line.programmed(rows[one], shift[one], rules, held[one], found.row[one], time_limit)
                found.put(one, answer)
            progress("recourse by integer program", len(left), len(left))
    distance = cost.distance(found.row - rows)
    lost = ~np.isfinite(distance)
    found.row[lost], found.valid[lost], found.proven[lost], distance[lost] = rows[lost], favourable[lost], False, 0.0
    censored = np.zeros(len(rows), dtype=bool)
    return Solution(rows, found.row, found.valid, distance, score, favourable, censored, proven=found.proven)


@dataclass
class _Answers:
    """Results so far: (n, d) the answer, or the query; where an integer program must decide (`open`), the cheapest row
    that only `most_changes` and rules forbid, if any."""

    row: Floats
    valid: Mask
    proven: Mask
    open: Mask

    @classmethod
    def none(cls, x: Floats) -> _Answers:
        return cls(x.copy(), *np.zeros((3, len(x)), dtype=bool))

    def put(self, part: NDArray[np.intp] | slice, answers: _Answers) -> None:
        self.row[part], self.valid[part] = answers.row, answers.valid
        self.proven[part], self.open[part] = answers.proven, answers.open


@dataclass
class _LinearScore:
    w: Floats
    target: float
    cost: Cost

    @property
    def scale(self) -> float:
        """Power of two by which weights are divided to stay far from the limits of float64."""
        return float(2.0 ** (np.frexp(np.abs(self.w).max())[1] - 1))

    def missing(self, x: Floats, b: Floats, rules: Constraints | None) -> tuple[Floats, Floats]:
        """(n,) gains of the scaled score needed for the target, and bounds (n,) on its rounding error."""
        size = np.abs(x) @ np.abs(self.w) + np.abs(b) + abs(self.target)
        for group in rules.groups if rules else ():
            size = size + np.abs(self.w[group]).max()
        with np.errstate(over="ignore"):
            slack = 8 * (len(self.w) + 8) * np.finfo(np.float64).eps * size / self.scale
            return (self.target - (x @ self.w + b)) / self.scale, slack

    def reaches(self, x: Floats, b: Floats) -> Mask:
        """(n,) bool, whether the score reaches the target, in two orders of its terms."""
        w = self.w
        with np.errstate(over="ignore", invalid="ignore"):
            reached = (x @ w + b >= self.target) & ((x * w)[:, ::-1].sum(axis=1) + b >= self.target)
        return np.asarray(reached & np.isfinite(x).all(axis=1))

    def rates(self) -> tuple[Floats, Mask]:
        """(d,) cost of a unit of the scaled score, to the power, and whether float64 can represent it."""
        with np.errstate(all="ignore"):
            unit = np.where(self.w > 0, *self.cost.units(len(self.w)))
            rate = (unit / np.abs(self.w / self.scale)) ** self.cost.power
        return rate, np.isfinite(rate) & (rate > 0)

    def unlimited(self, x: Floats, b: Floats) -> _Answers:
        """Answers to unfavourable queries (n, d) without constraints, in closed form."""
        answers = _Answers.none(x)
        if not self.w.any():
            answers.proven[:] = True
            return answers
        w, (rate, usable) = self.w / self.scale, self.rates()
        direction = np.zeros_like(w)
        if self.cost.power == 1:
            best = int(np.where(usable, rate, np.inf).argmin())
            direction[best] = 1.0 / w[best]
        else:
            speed = np.where(usable, 1.0 / np.where(usable, rate, 1.0), 0.0)
            direction[usable] = (speed / speed.sum())[usable] / w[usable]
        with np.errstate(all="ignore"):
            changed = x + np.sum(self.missing(x, b, None), axis=0)[:, None] * direction
        reached = self.reaches(changed, b)
        answers.row[reached], answers.valid[reached], answers.proven[reached] = changed[reached], True, True
        return answers

    def limited(self, x: Floats, b: Floats, rules: Constraints, frozen: Mask) -> _Answers:
        """Answers to unfavourable queries (n, d) within limits, steps and categories."""
        answers = _Answers.none(x)
        if not self.w.any():
            answers.proven[:] = True
            return answers
        gap, slack = self.missing(x, b, rules)
        lower, upper = rules.bounds(x, frozen)
        sure, pending = np.zeros(len(x), dtype=bool), np.flatnonzero(np.isfinite(gap) & np.isfinite(slack))
        discrete, every = bool(rules.groups or rules.grid.any()), not self.w[~self.rates()[1]].any()
        for sign in (-1.0, 1.0) if discrete else (1.0,):  # whole steps may reach the target exactly, up to rounding
            enough, goal = (gap + sign * slack)[pending], (gap + slack)[pending]
            changed, most, certain = self._raised(x[pending], enough, goal, rules, lower[pending], upper[pending])
            reached = self.reaches(changed, b[pending])
            answers.row[pending[reached]], answers.valid[pending[reached]] = changed[reached], True
            sure[pending] = np.where(reached, certain, (most < enough) & every)
            answers.open[pending] = ~certain & every
            pending = pending[~reached & ~sure[pending] & certain]
        limit = np.inf if rules.most_changes is None else rules.most_changes
        broken = answers.valid & ~((rules.changes(x, answers.row) <= limit) & rules.keeps_rules(x, answers.row))
        answers.open[broken], answers.valid[broken] = True, False
        answers.proven[:] = sure & ~answers.open
        return answers

    def _raised(
        self, x: Floats, enough: Floats, goal: Floats, rules: Constraints, lower: Floats, upper: Floats
    ) -> tuple[Floats, Floats, Mask]:
        """Rows (n, d) whose scaled score rises by the goal (n,) or as far as possible, the greatest possible rise (n,),
        and (n,) bool, whether certainly no other rows cost less."""
        w, changed, certain = self.w / self.scale, x.copy(), np.ones(len(x), dtype=bool)
        with np.errstate(all="ignore"):
            items, stepped, free = self._items(x, goal, rules, lower, upper)
            limit = np.where(w > 0, upper, lower)
            room = (np.abs(w) * np.abs(limit - x))[:, free]
            rest, most = goal, room.sum(axis=1)
            if rules.groups or stepped.any():
                steps, picks, certain = choose(items, enough, goal)
                moved = x[:, stepped] + np.sign(w[stepped]) * steps * rules.grid[stepped]
                changed[:, stepped] = np.clip(moved, lower[:, stepped], upper[:, stepped])
                for group, pick in zip(rules.groups, picks, strict=True):
                    changed[:, group] = np.arange(len(group)) == pick[:, None]
                rest, most = missing(items.gained(steps, picks), enough, goal, items.slack.total), items.total
            gains = replace(items.slack, room=room).gains(rest)
            moved = x[:, free] + np.sign(w[free]) * gains / np.abs(w[free])
            moved = np.where(gains >= room, limit[:, free], moved)
            changed[:, free] = np.clip(moved, lower[:, free], upper[:, free])
        return changed, most, certain

    def _items(
        self, x: Floats, goal: Floats, rules: Constraints, lower: Floats, upper: Floats
    ) -> tuple[Items, Mask, Mask]:
        """Items whose choice raises the scaled score, and (d,) bool, columns with steps, and continuous ones."""
        w, power, (rate, usable) = self.w / self.scale, self.cost.power, self.rates()
        rise, fall = self.cost.units(len(w))
        size, unit = np.abs(w), np.where(w > 0, rise, fall)
        distance = np.where(usable, np.abs(np.where(w > 0, upper, lower) - x), 0.0)
        free, stepped = usable & (rules.grid == 0), usable & (rules.grid > 0)
        gains, costs = [], []
        for group in rules.groups:
            free[group] = False
            current = x[:, group].argmax(axis=1)[:, None]
            stays = np.arange(len(group)) == current
            gain = np.where(stays, 0.0, w[group] - w[group][current])
            price = np.where(stays, 0.0, rise[group] ** power + (fall[group] ** power)[current])
            possible = stays | (rules.admissible(group, lower, upper) & (gain > 0))
            gains.append(gain)
            costs.append(np.where(possible, price, np.inf))
        slack = Slack(np.minimum(size * distance, 2 * goal[:, None])[:, free], rate[free], power)
        step = rules.grid[stepped]
        most = np.minimum(np.rint(distance[:, stepped] / step), np.ceil(goal[:, None] / (size[stepped] * step)))
        items = Items(size[stepped] * step, unit[stepped] * step, most, tuple(gains), tuple(costs), slack)
        return items, stepped, free

    def programmed(
        self, x: Floats, b: Floats, rules: Constraints, frozen: Mask, known: Floats, time_limit: float
    ) -> _Answers:
        """The answer to one unfavourable query (1, d) by an integer program; `known`: its row where `open`."""
        least = float(self.cost.parts(known - x).sum())
        found = cheapest(self.w, float(b[0]), self.target, x[0], self.cost, rules, frozen[0], least, time_limit)
        answers = _Answers.none(x)
        if found.row is not None and bool(self.reaches(found.row[None], b)[0]):
            answers.row[:], answers.valid[:] = found.row, True
        answers.proven[:] = found.proven and (found.row is None or answers.valid)
        return answers


# --- whole numbers and categories -----------------------------------------------------------------------------------
#
# They are a knapsack: each integer column (k steps towards its better side) and each one-hot group is an item whose
# choice has a gain in score and a cost; continuous columns provide the rest.
#
# 1. The Lagrangian relaxation. For a multiplier m, each item minimises cost - m gain (Everett 1963; with one choice per
#    group, Sinha and Zoltners 1979). The sum of the minima plus m goal is a lower bound.
# 2. Lists (dynamic programming by dominance: Horowitz and Sahni 1974; restricted by the bound: Pisinger 1997) of all
#    choices of the items so far that no other dominates and whose bound is below a cap. The integer column with most
#    steps comes last, with the continuous columns: their cost is convex in its count, so that only the counts next to
#    the continuous optimum can be best.
#
# The cap rises until a choice below it is found, which then is optimal, and falls if lists grow longer than `STATES`. A
# query without a suitable cap goes to an integer program.

Ints = NDArray[np.intp]


@dataclass
class Items:
    """Choices of n queries: gain, cost and greatest number of steps of each of i integer columns; for each group, gain
    of each category over the query's own, and cost to the power, infinite for excluded ones."""

    step: Floats  # (i,)
    unit: Floats  # (i,)
    most: Floats  # (n, i)
    gain: tuple[Floats, ...]  # (n, k) each
    cost: tuple[Floats, ...]  # (n, k) each
    slack: Slack

    def take(self, rows: Ints) -> Items:
        """Items of some queries."""
        gain, cost = (tuple(array[rows] for array in arrays) for arrays in (self.gain, self.cost))
        slack = replace(self.slack, room=self.slack.room[rows])
        return replace(self, most=self.most[rows], gain=gain, cost=cost, slack=slack)

    @property
    def total(self) -> Floats:
        """(n,) greatest gain."""
        best = (self.most * self.step).sum(axis=1) + self.slack.total
        for gain, cost in zip(self.gain, self.cost, strict=True):
            best = best + np.where(np.isfinite(cost), gain, 0.0).max(axis=1)
        return np.asarray(best)

    def step_cost(self, steps: Floats) -> Floats:
        """Cost, to the power, of steps (..., i)."""
        return np.asarray((self.unit * steps) ** self.slack.power)

    def relaxed(self, level: Floats) -> tuple[Floats, list[Ints]]:
        """Best choice of each item at multiplier `level` (n,): steps (n, i), and a category (n,) for each group."""
        worth = level[:, None] * self.step
        if self.slack.power == 1:
            steps = np.where(worth > self.unit, self.most, 0.0)
        else:
            steps = np.clip(np.rint(worth / (2 * self.unit**2)), 0.0, self.most)
        picks = [(cost - level[:, None] * gain).argmin(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        return steps, picks

    def slack_gains(self, level: Floats) -> Floats:
        """(n, c) gains of the continuous columns when each minimises its cost - level gain."""
        rate, room = self.slack.rate, self.slack.room
        if self.slack.power == 1:
            return np.where(level[:, None] > rate, room, 0.0)
        return np.minimum(level[:, None] / (2 * rate), room)

    def least(self, level: Floats) -> Floats:
        """(n, g + i + 1) least cost - level gain of each group, each integer column, and the continuous columns."""
        worth, steps, gains = level[:, None], self.relaxed(level)[0], self.slack_gains(level)
        groups = [(cost - worth * gain).min(axis=1) for gain, cost in zip(self.gain, self.cost, strict=True)]
        whole = self.step_cost(steps) - worth * self.step * steps
        free = (self.slack.rate * gains**self.slack.power - worth * gains).sum(axis=1)
        return np.column_stack([*groups, whole, free])

    def near(self, level: Floats, gap: Floats) -> tuple[Floats, Floats]:
        """Least and greatest step counts, (n, i) each, whose cost - level gain is within `gap` (n,) of its minimum: no
        choice with another count costs less than the Lagrangian bound plus the gap."""
        steps, gap = self.relaxed(level)[0], np.maximum(gap, 0.0)[:, None]
        if self.slack.power == 1:
            middle, radius = steps, gap / np.abs(self.unit - level[:, None] * self.step)
        else:
            middle = level[:, None] * self.step / (2 * self.unit**2)
            radius = np.sqrt(gap / self.unit**2 + (steps - middle) ** 2)
        radius = np.where(np.isnan(radius), np.inf, radius) * (1 + 1e-9) + 1e-9
        return np.clip(np.ceil(middle - radius), 0.0, self.most), np.clip(np.floor(middle + radius), 0.0, self.most)

    def gained(self, steps: Floats, picks: list[Ints]) -> Floats:
        """(n,) gain of a choice, without the continuous columns."""
        total = (steps * self.step).sum(axis=1)
        for gain, pick in zip(self.gain, picks, strict=True):
            total = total + gain[np.arange(len(gain)), pick]
        return np.asarray(total)

    def relaxed_gain(self, level: Floats) -> Floats:
        """(n,) gain of the relaxed choice, continuous columns included; it increases with the level."""
        return np.asarray(self.gained(*self.relaxed(level)) + self.slack_gains(level).sum(axis=1))


def multiplier(items: Items, goal: Floats) -> Floats:
    """(n,) multipliers at which the relaxed gain reaches the goal (n,), positive and below `items.total`, to a relative
    1e-11, by bisection of the logarithm."""
    low, high = np.full_like(goal, -1000.0), np.full_like(goal, 1000.0)
    for _ in range(48):
        middle = (low + high) / 2
        short = items.relaxed_gain(np.exp2(middle)) < goal
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    level: Floats = np.exp2(high)
    return level


STATES, TRIED = 50_000, 2_000_000
"""Largest number of choices of one query that are stored, and that are examined, at a time."""
LEAST, FIRST, MOST = 1e-8, 3e-2, 1e15
"""Smallest, first and largest cap, as excess over the lower bound relative to it."""
TIE = 1e-14
"""Share of the goal up to which different gains count as equal."""


def choose(items: Items, enough: Floats, goal: Floats) -> tuple[Floats, list[Ints], Mask]:
    """Cheapest choice of each query, to gain the `goal` (n,) together with continuous columns, or `enough` (n,), which
    is less by rounding, without them: steps (n, i), the category (n,) of each group, and (n,) bool, whether certainly
    no choice is cheaper, or none reaches the goal. Nothing changes where none does, or where this is uncertain."""
    total = items.total
    level = multiplier(items, np.minimum(goal, (1 - 1e-12) * total))
    bound = items.least(level).sum(axis=1) + level * goal
    values, proven = np.zeros((len(goal), len(items.gain) + len(items.step))), np.ones(len(goal), dtype=bool)
    for group, cost in enumerate(items.cost):
        values[:, group] = cost.argmin(axis=1)  # the query's own category costs nothing
    for at in np.flatnonzero((total >= enough) & (total > 0)).tolist():
        lists = _ChoiceLists(items.take(np.array([at])), float(enough[at]), float(goal[at]), float(level[at]))
        found = lists.cheapest(float(bound[at]))
        if found is None:
            proven[at] = False
        else:
            values[at] = found
    picks = [values[:, group].astype(np.intp) for group in range(len(items.gain))]
    return values[:, len(items.gain) :], picks, proven


def missing(gain: Floats, enough: Floats | float, goal: Floats | float, most: Floats) -> Floats:
    """Gain that continuous columns must add; all of theirs (`most`) if only rounding errors are missing."""
    rest = np.where(gain >= enough, 0.0, goal - gain)
    return np.where((rest > most) & (enough - gain <= most), most, rest)


class _ChoiceLists:
    """The choices of one query that may be the cheapest; `level` is the multiplier of the Lagrangian bound."""

    def __init__(self, items: Items, enough: float, goal: float, level: float) -> None:
        self.items, self.enough, self.goal, self.level = items, enough, goal, level
        self.least: Floats = items.least(np.array([level]))[0]

    def cheapest(self, bound: float) -> Floats | None:
        """(g + i,) categories and steps; None: the lists grew too long."""
        gap, empty, long = FIRST * bound, LEAST * bound, np.inf
        while long > 1.5 * empty and empty < MOST * bound:
            found, complete = self._below(bound, gap)
            if found is not None:
                return found
            empty, long = (gap, long) if complete else (empty, gap)
            gap = min(10 * empty, math.sqrt(empty * long))
        return None

    def _below(self, bound: float, gap: float) -> tuple[Floats | None, bool]:
        """The cheapest choice within `gap` of the bound, and whether all of these were listed."""
        items, groups = self.items, len(self.items.gain)
        fewest, greatest = (counts[0] for counts in items.near(np.array([self.level]), np.array([gap])))
        last = int((greatest - fewest).argmax()) if len(fewest) else None
        options: list[tuple[int, Floats, Floats, Floats]] = []
        for group, (gain, cost) in enumerate(zip(items.gain, items.cost, strict=True)):
            open_ = np.flatnonzero(cost[0] - self.level * gain[0] - self.least[group] <= gap * (1 + 1e-9))
            options.append((group, open_.astype(np.float64), gain[0, open_], cost[0, open_]))
        for column in range(len(fewest)):
            if column == last:
                continue
            if greatest[column] - fewest[column] > STATES:
                return None, False
            counts = np.arange(fewest[column], greatest[column] + 1)
            price = (items.unit[column] * counts) ** items.slack.power
            options.append((groups + column, counts, counts * items.step[column], price))
        gain, cost, rest = np.zeros(1), np.zeros(1), float(self.least.sum())
        trail: list[tuple[int, NDArray[np.intp], Floats]] = []
        for item, values, gains, costs in sorted(options, key=lambda option: len(option[1])):
            rest -= self.least[item]
            if len(gain) * len(values) > TRIED:
                return None, False
            gain = np.minimum(gain[:, None] + gains, self.goal).ravel()
            cost = (cost[:, None] + costs).ravel()
            relaxed = cost + self.level * (self.enough - gain) + rest
            kept = np.flatnonzero(relaxed <= bound + gap * (1 + 1e-9))
            kept = kept[_undominated(cost[kept], gain[kept], TIE * self.goal)]
            if not len(kept) or len(kept) > STATES:
                return None, not len(kept)
            gain, cost = gain[kept], cost[kept]
            trail.append((item, kept // len(values), values[kept % len(values)]))
        state, count, paid = self._completed(last, gain, cost)
        if not paid <= bound + gap:
            return None, True
        chosen = np.zeros(groups + len(fewest))
        if last is not None:
            chosen[groups + last] = count
        for item, parents, values in reversed(trail):
            chosen[item], state = values[state], parents[state]
        return chosen, True

    def _completed(self, column: int | None, gain: Floats, cost: Floats) -> tuple[int, float, float]:
        """The cheapest state completed by one integer column and continuous ones, the steps of the former, the cost."""
        slack, counts = self.items.slack, np.zeros((1, len(gain)))
        if column is not None:
            step, unit, most = self.items.step[column], self.items.unit[column], self.items.most[0, column]
            rooms, rates = np.append([most * step], slack.room), np.append([(unit / step) ** slack.power], slack.rate)
            both = Slack(np.broadcast_to(rooms, (len(gain), len(rooms))), rates, slack.power)
            below = np.floor(both.gains(self.enough - gain)[:, 0] / step)
            counts = np.clip(below + np.array([[-1.0], [0.0], [1.0]]), 0.0, most)
            gain, cost = gain + counts * step, cost + (unit * counts) ** slack.power
        rest = missing(gain.ravel(), self.enough, self.goal, slack.total)
        each = replace(slack, room=np.broadcast_to(slack.room, (len(rest), slack.room.shape[1])))
        paid = cost.ravel() + each.cost(rest)
        best = int(paid.argmin())
        return best % counts.shape[1], float(counts.flat[best]), float(paid[best])


def _undominated(cost: Floats, gain: Floats, tie: float) -> NDArray[np.intp]:
    order = np.lexsort((-gain, cost))
    best = np.maximum.accumulate(gain[order])
    more = np.append(np.ones(min(1, len(order)), dtype=bool), gain[order][1:] > best[:-1] + tie)
    return np.asarray(order[more])
