"""Slow answers that the fast ones are held against: an integer program for L1, every count, every allowed row."""

from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from safexplain.recourse.constraints import Constraints


def integer_program(w, b, x, unit, constraints: Constraints) -> float:
    """Least L1 distance for one query (d,), infinite if there is none, by HiGHS: x' = x + up - down; its whole numbers
    are completed here, so that the solver's tolerances do not count."""
    d, gap = len(w), -b - w @ x
    if gap <= 0:
        return 0.0
    lower, upper = (side[0] for side in constraints.bounds(x[None]))
    member = np.zeros(d, dtype=bool)
    rules = [LinearConstraint(np.concatenate([w, -w])[None] / gap, lb=1)]
    rules.append(LinearConstraint(np.hstack([np.eye(d), -np.eye(d)]), lb=lower - x, ub=upper - x))
    for group in constraints.groups:
        member[group] = True
        kept = np.isin(np.arange(d), group).astype(float)
        rules.append(LinearConstraint(np.concatenate([kept, -kept])[None], lb=0, ub=0))
    whole = np.tile(constraints.whole | member, 2)
    found = milp(
        np.tile(unit, 2),
        constraints=rules,
        integrality=whole.astype(int),
        bounds=Bounds(0, np.where(np.tile(member, 2), 1, np.inf)),
        options={"mip_rel_gap": 0.0},
    )
    if found.status != 0:
        return np.inf
    fixed = constraints.whole | member
    moved = np.where(fixed, x + np.rint(found.x[:d] - found.x[d:]), x)
    for column in sorted(np.flatnonzero(~fixed), key=lambda column: unit[column] / abs(w[column])):
        if w @ moved + b < -1e-11:
            moved[column] = np.clip(moved[column] - (w @ moved + b) / w[column], lower[column], upper[column])
    assert w @ moved + b >= -1e-11, "the solver's whole numbers miss the target"
    return float(unit @ np.abs(moved - x))


def all_counts(w, b, x, unit, constraints: Constraints, power: int) -> float:
    """Least distance for one query (d,) at target 0, infinite if there is none: every count, all at once."""
    lower, upper = (side[0] for side in constraints.bounds(x[None]))
    need, limit = -(w @ x + b), np.where(w > 0, upper - x, x - lower)
    gain, cost = np.zeros(1), np.zeros(1)
    free = ~constraints.whole
    for column in np.flatnonzero(constraints.whole):
        steps = np.arange(min(limit[column], np.ceil(need / abs(w[column])) + 1) + 1)
        gain = np.add.outer(gain, abs(w[column]) * steps).ravel()
        cost = np.add.outer(cost, (unit[column] * steps) ** power).ravel()
    for group in constraints.groups:
        own, free[group] = x[group].argmax(), False
        price = np.where(np.arange(len(group)) == own, 0.0, unit[group] ** power + unit[group][own] ** power)
        gain, cost = np.add.outer(gain, w[group] - w[group][own]).ravel(), np.add.outer(cost, price).ravel()
    rest = np.where(need - gain > 1e-12 * need, need - gain, 0.0)
    room, rate = (np.abs(w) * limit)[free], ((unit / np.abs(w)) ** power)[free]
    able = rest <= room.sum() * (1 + 1e-12)
    if not able.any():
        return np.inf
    rest, cost = rest[able], cost[able]
    if power == 1:
        for column in np.argsort(rate):
            taken = np.minimum(rest, room[column])
            rest, cost = rest - taken, cost + rate[column] * taken
        return float(cost.min())
    low, high = np.zeros(len(rest)), np.full(len(rest), (room * rate).max(initial=0.0))
    for _ in range(100):
        middle = (low + high) / 2
        short = np.minimum(middle[:, None] / rate, room).sum(axis=1) < rest
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    taken = np.where(rest[:, None] > 0, np.minimum(high[:, None] / rate, room), 0.0)
    return float(np.sqrt((cost + (rate * taken**2).sum(axis=1)).min()))


def values_of(x, rules: Constraints, column: int, low: float, high: float) -> list[float]:
    """What one column with a step may become, from one query (d,)."""
    step = rules.grid[column]
    count = int(np.ceil(max(abs(low - x[column]), abs(high - x[column])) / step)) + 1
    steps = (x[column] + k * step for k in range(-count, count + 1))
    return [value for value in steps if low - 1e-9 <= value <= high + 1e-9]


def allowed(x, row, rules: Constraints) -> bool:
    """Whether one row (d,) keeps what limits the changes of several columns together, of one query (d,)."""
    changed = {int(rules.feature[column]) for column in range(len(x)) if row[column] != x[column]}
    if rules.most_changes is not None and len(changed) > rules.most_changes:
        return False
    for rule, (when, then) in zip(rules.rules, rules.linked, strict=True):
        rise = row[when] - x[when]
        if rise > 0 and row[then] - x[then] < rule.per_unit * rise + rule.at_least - 1e-9:
            return False
    return True


def every_row(x, rules: Constraints, low, high) -> np.ndarray:
    """(m, d) all rows between finite limits that one query (d,) may become; every column needs a step or a group."""
    d, choices = len(x), []
    low, high = np.maximum(low, rules.low), np.minimum(high, rules.high)
    names = {
        name: [at for at in range(d) if rules.label(at) in getattr(rules, name) or at in getattr(rules, name)]
        for name in ("immutable", "increasing", "decreasing")
    }

    def open_(column: int, value: float) -> bool:
        change = value - x[column]
        return (
            low[column] - 1e-9 <= value <= high[column] + 1e-9
            and (change == 0 or column not in names["immutable"])
            and (change >= 0 or column not in names["increasing"])
            and (change <= 0 or column not in names["decreasing"])
            and abs(change) <= rules.largest[column] + 1e-9
        )

    grouped = {int(column) for group in rules.groups for column in group}
    for column in sorted(set(range(d)) - grouped):
        inside = values_of(x, rules, column, low[column], high[column])
        choices.append([((column,), (value,)) for value in inside if open_(column, value)])
    for group in rules.groups:
        rows = [np.eye(len(group))[k] for k in range(len(group))]
        kept = [row for row in rows if all(open_(int(c), v) for c, v in zip(group, row, strict=True))]
        choices.append([(tuple(group), tuple(row)) for row in kept])
    found = []
    for chosen in product(*choices):
        row = x.copy()
        for columns, values in chosen:
            row[list(columns)] = values
        if allowed(x, row, rules):
            found.append(row)
    return np.array(found).reshape(-1, d)


def least_cost(x, rows, w, b, target, cost) -> float:
    """Least cost among rows (m, d) whose score reaches the target, infinite if none does."""
    reached = rows[rows @ w + b >= target - 1e-9]
    return float(cost.distance(reached - x).min()) if len(reached) else np.inf
