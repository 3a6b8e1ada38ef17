"""Counterfactuals of a linear score f(x) = w.x + b: the cheapest x' with f(x') >= target.

Without constraints, in the Euclidean norm, x' = x + (target - f(x)) w / |w|^2. (The formula of "On the Privacy Risks of
Algorithmic Recourse" and of the Laplace recourse built on it divides by |w| once and misses the target unless |w| = 1.)
Limits, frozen and monotone columns keep it exact (`WaterFilling`); whole numbers and one-hot groups are found by
a search that bounds what it leaves out (`safexplain.recourse.linear.knapsack`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, Percentile, check_cost
from safexplain.recourse.feature_names import check_columns
from safexplain.recourse.linear.knapsack import missing, solve
from safexplain.recourse.linear.lagrangian import Items
from safexplain.recourse.linear.water_filling import WaterFilling
from safexplain.recourse.result import Floats, Recourse, as_rows

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
) -> Recourse:
    """Cheapest change of each query that brings w.x + b to the target.

    Args:
        weights: (d,) w.
        bias: b, one number or (n,), one a query.
        x: (n, d) or (d,) queries.
        target: score to reach; queries at or above it are favourable and stay.
        cost: what a change costs.
        constraints: what may change; None: everything.
        frozen: (n, d) bool, columns that a query must not change besides.

    Returns:
        Answers whose score, computed in float64, is never below the target; `valid` False where no allowed row reaches
        it. Optimal but for rounding; with whole numbers or one-hot groups, unless the search of `knapsack` leaves
        doubt.

    Raises:
        InputError: not finite numbers, wrong shapes, columns in another order, or queries that break the constraints.
        ConfigurationError: not a cost or constraints, or for another number of columns.
    """
    check_cost(cost)
    if isinstance(cost, Percentile):
        raise ConfigurationError("cost: percentiles are not minimised here; use L1(scale)")
    check_constraints(constraints)
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
    if constraints is not None:
        check_columns(constraints.features, x)
        constraints.check(rows)
    unit = cost.weights(len(w))
    with np.errstate(over="ignore", invalid="ignore"):
        score = rows @ w + b
    if not np.isfinite(score).all():
        raise InputError("x: the scores overflow float64; use smaller units")
    favourable = score >= target
    counterfactual, valid = rows.copy(), favourable.copy()
    largest = np.abs(w).max(initial=0.0)
    scale = 2.0 ** (np.frexp(largest)[1] - 1)
    todo = np.flatnonzero(~favourable) if largest > 0 else np.empty(0, dtype=np.intp)
    rules = Constraints(len(w)) if constraints is None and held is not None else constraints
    for start in range(0, len(todo), ROWS if rules else max(len(todo), 1)):
        part = todo[start : start + ROWS] if rules else todo
        shift = b[part] if b.ndim else np.broadcast_to(b, part.shape)
        with np.errstate(over="ignore"):
            slack = _rounding(rows[part], w, shift, target, rules) / scale
            gap = (target - score[part]) / scale
        pending = np.flatnonzero(np.isfinite(gap) & np.isfinite(slack))
        for sign in (-1.0, 1.0):
            at = part[pending]
            changed = _reach(
                rows[at],
                w / scale,
                gap[pending] + sign * slack[pending],
                gap[pending] + slack[pending],
                unit,
                cost.power,
                rules,
                None if held is None else held[at],
            )
            done = _reaches(changed, w, shift[pending], target)
            counterfactual[at[done]], valid[at[done]] = changed[done], True
            pending = pending[~done]
            if not len(pending) or rules is None or not (rules.groups or rules.whole.any()):
                break
    distance = cost.distance(counterfactual - rows)
    lost = ~np.isfinite(distance)
    counterfactual[lost], valid[lost], distance[lost] = rows[lost], favourable[lost], 0.0
    return Recourse(rows, counterfactual, valid, distance, score, favourable, np.zeros(len(rows), dtype=bool))


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


def _reach(
    x: Floats,
    w: Floats,
    enough: Floats,
    goal: Floats,
    unit: Floats,
    power: int,
    rules: Constraints | None,
    frozen: NDArray[np.bool_] | None,
) -> Floats:
    """Rows (n, d) changed so that w.x rises by the goal (n,), or by as much as is possible."""
    with np.errstate(all="ignore"):
        size = np.abs(w)
        rate = (unit / size) ** power
        usable = np.isfinite(rate) & (rate > 0)
        if rules is None:
            return x + _unlimited(goal, w, rate, usable, power)
        lower, upper = rules.bounds(x, frozen)
        changed = x.copy()
        limit = np.where(w > 0, upper, lower)
        distance = np.where(usable, np.abs(limit - x), 0.0)
        free, whole = usable & ~rules.whole, usable & rules.whole
        for group in rules.groups:
            free[group] = False
        rest = goal
        if rules.groups or whole.any():
            slack = WaterFilling.of(np.minimum(size * distance, 2 * goal[:, None])[:, free], rate[free], power)
            most = np.minimum(distance, np.ceil(goal[:, None] / size))[:, whole]
            choices = [_categories(x, w, unit, power, rules, group, lower, upper) for group in rules.groups]
            gains, costs = tuple(gain for gain, _ in choices), tuple(price for _, price in choices)
            items = Items(size[whole], unit[whole], most, gains, costs, slack)
            steps, picks = solve(items, enough, goal)
            changed[:, whole] += np.sign(w[whole]) * steps
            for group, pick in zip(rules.groups, picks, strict=True):
                changed[:, group] = np.arange(len(group)) == pick[:, None]
            gained = items.gained(steps, picks)
            rest = missing(gained, enough, goal, slack.total)
        room = (size * distance)[:, free]
        gains_free = WaterFilling.of(room, rate[free], power).gains(rest)
        moved = x[:, free] + np.sign(w[free]) * gains_free / size[free]
        moved = np.where((gains_free >= room) & (room > 0), limit[:, free], moved)
        changed[:, free] = np.clip(moved, lower[:, free], upper[:, free])
        return changed


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
    unit: Floats,
    power: int,
    rules: Constraints,
    group: NDArray[np.intp],
    lower: Floats,
    upper: Floats,
) -> tuple[Floats, Floats]:
    """Gain and cost (n, k) of each category; the cost is infinite where it is ruled out or gains nothing."""
    own = x[:, group].argmax(axis=1)
    gain = w[group] - w[group][own][:, None]
    price = unit[group] ** power + (unit[group] ** power)[own][:, None]
    stays = np.arange(len(group)) == own[:, None]
    possible = rules.admissible(group, lower, upper) & (gain > 0)
    return np.where(stays, 0.0, gain), np.where(stays, 0.0, np.where(possible, price, np.inf))
