"""Counterfactuals of a linear score f(x) = w.x + b: the cheapest x' with f(x') >= target.

Without constraints, in the Euclidean norm, x' = x + (target - f(x)) w / |w|^2. Limits, whole numbers, steps and one-hot
groups are solved exactly by `choices`. These ignore `most_changes` and rules: queries whose answers break them go to an
integer program (`program`), as do those whose lists grow too long.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._progress import show_progress
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints, Mask
from safexplain.recourse.cost import EUCLIDEAN, Cost, for_columns
from safexplain.recourse.linear.choices import Items, Slack, missing, solve
from safexplain.recourse.linear.program import cheapest
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
    needs an integer program. Queries must satisfy the constraints (`Constraints.check`).

    Returns:
        Answers whose score, computed in float64, is never below the target. `proven` is True where no answer is
        cheaper, up to a share of 1e-6 and rounding, or certainly none exists: everywhere unless a time limit ended the
        program, or numbers overflow.

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


@dataclass(frozen=True, eq=False)
class _Answers:
    """Results so far for n queries: (n, d) the answer (the query where there is none; where `open`, the cheapest row
    that only `most_changes` and rules forbid, if any), and (n,) bool, whether it is valid, and proven, and whether an
    integer program must decide."""

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


@dataclass(frozen=True, eq=False)
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
        """Rows (n, d) changed so that the scaled score rises by the goal (n,), or as far as possible; the greatest rise
        (n,) that the limits allow; and (n,) bool, whether certainly no other rows cost less."""
        w, changed, certain = self.w / self.scale, x.copy(), np.ones(len(x), dtype=bool)
        with np.errstate(all="ignore"):
            items, stepped, free = self._items(x, goal, rules, lower, upper)
            limit = np.where(w > 0, upper, lower)
            room = (np.abs(w) * np.abs(limit - x))[:, free]
            rest, most = goal, room.sum(axis=1)
            if rules.groups or stepped.any():
                steps, picks, certain = solve(items, enough, goal)
                moved = x[:, stepped] + np.sign(w[stepped]) * steps * rules.grid[stepped]
                changed[:, stepped] = np.clip(moved, lower[:, stepped], upper[:, stepped])
                for group, pick in zip(rules.groups, picks, strict=True):
                    changed[:, group] = np.arange(len(group)) == pick[:, None]
                rest, most = missing(items.gained(steps, picks), enough, goal, items.slack.total), items.total
            gains = replace(items.slack, room=room).gains(rest)
            moved = x[:, free] + np.sign(w[free]) * gains / np.abs(w[free])
            moved = np.where((gains >= room) & (room > 0), limit[:, free], moved)
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
        """The answer to one unfavourable query (1, d) by an integer program; `known` is the cheapest row that only
        `most_changes` and rules forbid, or x if unknown."""
        least = float(self.cost.parts(known - x).sum())
        found = cheapest(self.w, float(b[0]), self.target, x[0], self.cost, rules, frozen[0], least, time_limit)
        answers = _Answers.none(x)
        if found.row is not None and bool(self.reaches(found.row[None], b)[0]):
            answers.row[:], answers.valid[:] = found.row, True
        answers.proven[:] = found.proven and (found.row is None or answers.valid)
        return answers
