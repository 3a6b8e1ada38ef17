"""What an answer can be told by: numbers of few digits that are as valid, and what turned down those without an answer.

A sentence has to stay true when its numbers are rounded. Counterfactuals are rounded away from where the person is, and
the model is asked whether the rounded row is still accepted; where it is not, finer, and in the end not at all. "Or
less" and "or more" are said only where going further in that direction cannot lower the score, as in a linear model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost, for_columns
from safexplain.recourse.found import Floats, Found
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.preprocessing import Preprocessing

Mask = NDArray[np.bool_]

COARSEST = (0.05, 0.005, 5e-4, 5e-6)
"""Shares of a change by which it may grow when it is rounded, from the first that is tried to the last."""

SMALL = 2e-3
"""A change of less than this share of the number itself is rounded as one of that share: 23,300.61 becomes 23,301."""

CURRENCIES = ("USD", "EUR", "GBP", "CHF", "$", "£", "€")
"""Units, or first words of these, whose numbers have two decimals or none."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What an answer can be told by, besides its numbers.

    Args:
        rounded: (n, d) the counterfactual in numbers of few digits, never nearer to x, as valid as it.
        further: (n, d) bool, where going further in the direction of the change keeps the decision.
        share: (n, d) what each column adds to the cost.
        unlimited: (n, d) for queries without recourse the cheapest row that would be accepted if only public ranges
            held, and the directions in which numbers may change: what turned them down; x for all others. None: not
            known.
    """

    rounded: Floats
    further: Mask
    share: Floats
    unlimited: Floats | None = None


def checked_advice(
    found: Found,
    table: Preprocessing | None,
    weights: Floats | None,
    bias: float | Floats,
    *,
    target: float,
    cost: Cost,
    constraints: Constraints | None,
    frozen: Mask | None,
    accepts: Callable[[Floats, NDArray[np.intp]], Mask],
) -> Advice:
    """How answers may be put in words: rounded as far as the model still decides alike.

    Args:
        found: the answers, rows of the table.
        table: the preprocessing; None: rows are numbers as they came.
        weights: (D,) of a linear score, of which more can be said; None: of a network.
        bias: of a linear score, one number or (n,), one a query.
        target: that it has to reach.
        cost: what was minimised, of the columns.
        constraints: on the columns.
        frozen: (n, D) bool, what was not to change.
        accepts: (k, D) rows and the numbers of their queries (k,) -> (k,) bool, whether the decision is favourable.
    """
    rows, change = found.x, found.change
    cost = for_columns(cost, None if constraints is None else constraints.features, rows.shape[1])
    free = np.ones(rows.shape[1], dtype=bool)
    stepped, money = np.zeros(len(free), dtype=bool), np.zeros(len(free), dtype=bool)
    if table is not None:
        free[:] = False
        for part in table.parts:
            free[part.first] = part.kind == "numeric"
            money[part.first] = is_money(table.units.get(part.name, ""))
    limits = np.full(rows.shape, -np.inf), np.full(rows.shape, np.inf)
    if constraints is not None:
        free &= ~constraints.grouped
        stepped = free & (constraints.grid != 0)
        free &= ~stepped
        limits = constraints.bounds(rows, frozen)

    def valid(candidate: Floats, index: NDArray[np.intp]) -> Mask:
        good = accepts(candidate, index)
        if constraints is not None:
            inside = np.where(stepped, found.counterfactual[index], candidate)
            inside = np.clip(inside, limits[0][index], limits[1][index])
            good = good & constraints.satisfied(rows[index], inside, None if frozen is None else frozen[index])
        return good

    advice = advise(
        rows,
        found.counterfactual,
        cost.parts(change),
        free=free,
        stepped=stepped,
        money=money,
        limits=limits,
        valid=valid,
        further=np.zeros(change.shape, dtype=bool) if weights is None else change * weights > 0,
    )
    ranges = constraints
    if table is not None:  # whatever can be a reason, whether or not it may change
        ranges = table.constraints(Constraints(table.features, reachable=table.categories))
    if ranges is not None:  # nobody goes below the least value that there is
        room = np.where(change > 0, advice.rounded < ranges.high, advice.rounded > ranges.low)
        advice = replace(advice, further=advice.further & room)
    lost = np.flatnonzero(~found.valid)
    if weights is None or table is None or ranges is None or not len(lost):
        return advice
    if constraints is not None:
        numbers = {part.name for part in table.parts if part.kind != "category"}
        rising, falling = (
            tuple(name for name in listed if name in numbers)
            for listed in (constraints.increasing, constraints.decreasing)
        )
        ranges = replace(ranges, increasing=rising, decreasing=falling)
    unlimited, share = rows.copy(), advice.share.copy()
    offset, held = np.broadcast_to(bias, len(rows))[lost], table.held(rows[lost])
    without = linear_recourse(weights, offset, rows[lost], target=target, cost=cost, constraints=ranges, frozen=held)
    unlimited[lost], share[lost] = without.counterfactual, cost.parts(without.change)
    return replace(advice, unlimited=unlimited, share=share)


def advise(
    x: Floats,
    counterfactual: Floats,
    share: Floats,
    *,
    free: Mask,
    stepped: Mask,
    money: Mask,
    limits: tuple[Floats, Floats],
    valid: Callable[[Floats, NDArray[np.intp]], Mask],
    further: Mask,
) -> Advice:
    """Round counterfactuals outwards, as far as they stay valid.

    Args:
        x: (n, d) queries.
        counterfactual: (n, d).
        share: (n, d) what each column adds to the cost.
        free: (d,) bool, columns of numbers that may be rounded.
        stepped: (d,) bool, columns of numbers that change by steps: rounded by next to nothing, as sums of steps are
            not exact.
        money: (d,) bool, columns of amounts, which are rounded to cents at least.
        limits: lower and upper ones, (n, d) each.
        valid: rows (k, d) and the numbers of their queries (k,) -> (k,) bool, whether they would be accepted.
        further: (n, d) bool, as in `Advice`.
    """
    change = counterfactual - x
    moved, on_steps = (change != 0) & free, (change != 0) & stepped
    out = counterfactual.copy()
    left = np.flatnonzero((moved | on_steps).any(axis=1))
    for coarsest in (*COARSEST, 0.0):
        if not len(left):
            break
        exact = _nearest(counterfactual[left])
        candidate = outward(x[left], counterfactual[left], coarsest, money) if coarsest else exact
        inside = np.clip(candidate, limits[0][left], limits[1][left])
        candidate = np.where(inside == candidate, candidate, _nearest(inside))  # a limit that was added up has dust
        candidate = np.where(moved[left], candidate, np.where(on_steps[left], exact, counterfactual[left]))
        good = valid(candidate, left)
        out[left[good]] = candidate[good]
        left = left[~good]
    return Advice(out, further & (change != 0), share)


def outward(x: Floats, to: Floats, coarsest: float, money: Mask | None = None) -> Floats:
    """Numbers rounded away from x, by at most a share of the change, and money to cents at least."""
    change = to - x
    size = np.where(change == 0, 1.0, np.maximum(np.abs(change), SMALL * np.abs(x))) * coarsest
    digits = -np.floor(np.log10(np.clip(size, 1e-300, 1e300))).astype(int)
    digits = digits if money is None else np.where(money, np.minimum(digits, 2), digits)
    out = to.copy()
    for k in np.unique(digits[change != 0]).tolist():
        if not -300 < k < 300:
            continue
        here = (digits == k) & (change != 0)
        sign = np.sign(change[here])
        near = np.round(to[here], k)
        short = sign * (near - to[here]) < 0
        out[here] = np.where(short, np.round(near + sign * 10.0**-k, k), near) + 0.0
    return out


def _nearest(to: Floats) -> Floats:
    """Numbers to twelve digits: less than anybody would notice."""
    return np.array([[float(f"{value:.12g}") for value in row] for row in to.tolist()]).reshape(to.shape)


def is_money(unit: str) -> bool:
    """Whether numbers with this unit are amounts of money: "USD", "EUR a month"."""
    return unit.partition(" ")[0] in CURRENCIES
