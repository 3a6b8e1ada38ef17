"""Several answers to one query that differ in what they change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import whole_number
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost
from safexplain.recourse.result import Recourse, as_rows


def diverse(
    solve: Callable[[NDArray[np.bool_]], Recourse],
    x: ArrayLike,
    answers: int,
    *,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
) -> tuple[Recourse, ...]:
    """Answers that each leave alone what was the largest share of the cost of every earlier one.

    Args:
        solve: answers to the queries, given (n, d) bool, what each query must not change.
        x: (n, d) or (d,) queries.
        answers: how many, at least 1.
        cost: the cost that `solve` minimises; its parts are the shares.
        constraints: those that `solve` keeps; a one-hot group counts as one feature.

    Returns:
        `answers` results, the cheapest first (where `solve` is optimal the later ones cost at least as much); `valid`
        is False where the options have run out.

    Raises:
        ConfigurationError: fewer than one answer, or not a cost or constraints.
    """
    wanted = whole_number("answers", answers, 1)
    check_cost(cost)
    check_constraints(constraints)
    rows = as_rows(x)
    frozen = np.zeros(rows.shape, dtype=bool)
    results = [solve(frozen.copy())]
    while len(results) < wanted:
        more = frozen | _largest_share(results[-1], cost, constraints)
        again = results[-1] if (more == frozen).all() else solve(more.copy())
        frozen = more
        results.append(again)
    return tuple(results)


def _largest_share(found: Recourse, cost: Cost, constraints: Constraints | None) -> NDArray[np.bool_]:
    """(n, d) bool, the column that made up most of each answer's cost, or one of its group; none where nothing changed.

    To freeze one column of a one-hot group is to freeze the group (`Constraints.bounds`).
    """
    share = cost.parts(found.change)
    for group in constraints.groups if constraints else ():
        share[:, group] = share[:, group].sum(axis=1, keepdims=True)
    largest: NDArray[np.bool_] = np.arange(share.shape[1]) == share.argmax(axis=1)[:, None]
    return largest & (share > 0)
