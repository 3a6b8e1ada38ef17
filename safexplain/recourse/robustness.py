"""Answers that stay valid when the model is trained anew and its weights move.

Somebody who was told what to change comes back when it is done, and a new model decides. Let the weights w and the
intercept b of a linear score, in the columns that training sees (z, scaled), move by at most `shift`, all together, in
the Euclidean norm. The least score that a row can have then is, by Cauchy and Schwarz, and attained,

    min over |(dw, db)| <= shift of (w + dw).z + (b + db)  =  w.z + b - shift |(z, 1)|,

so that an answer stays valid under every such shift exactly if w.z + b - shift |(z, 1)| >= target. Upadhyay, Joshi and
Lakkaraju 2021 (ROAR, arXiv 2102.13620) search by gradients for answers that withstand the worst shift; for linear
scores the worst one is known.

How large a shift to ask for is a question about trainings, and no proof answers it: `DPModelRecourse.measured_shift`
measures it. A private model moves more than others, as its noise is new in each training. Answers fare worse than rows
in general, because they go where this model is more optimistic than the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.solution import Floats, Solution

_ROUNDS = 100
"""Raises of the target at most; each is a contraction unless the shift is about as long as the weights."""

_ROOM = 1e-9
"""Share by which a target is raised further than is needed, for rounding."""

_MOST = 1e6
"""Largest margin, in gaps of the query, after which there is no use in raising it."""

_HALVINGS = 12
"""Of the interval in which `measured_shift` looks."""


def lengths(scaled: Floats) -> Floats:
    """(n,) |(z, 1)| of rows (n, d)."""
    return np.asarray(np.hypot(1.0, np.linalg.norm(scaled, axis=1)))


def robust_answers(
    solve: Callable[[NDArray[np.intp], Floats], Solution],
    score: Callable[[Floats], Floats],
    length: Callable[[Floats], Floats],
    rows: Floats,
    shift: float,
    target: float,
) -> Solution:
    """Answers whose score is still at the target after the worst shift of the weights.

    The target of each query is raised by shift |(z, 1)| of the answer before, until the answer withstands the shift:
    from below, so that it is about the least target for which the cheapest answer does. The cheapest of all rows that
    withstand the shift may cost less, as it may also be shorter. So answers are not `proven`, but for those of the
    first round, and neither is it that there is none.

    Args:
        solve: (k,) positions of queries and (k,) margins -> cheapest answers whose score is at least target + margin.
        score: (n, d) rows -> (n,) scores.
        length: (n, d) rows -> (n,) |(z, 1)|.
        rows: (n, d) queries.
        shift: of the weights, above 0.
        target: score to be kept.

    Returns:
        Answers, verified; `valid` is False where none was found. Queries that are favourable stay, and may not
        withstand the shift.
    """
    margin = np.zeros(len(rows))
    found = solve(np.arange(len(rows)), margin)
    counterfactual, distance = found.counterfactual.copy(), found.distance.copy()
    valid, proven = found.valid.copy(), found.proven.copy()
    short = np.flatnonzero(valid & ~found.favourable)
    most = _MOST * (target - found.score + shift * length(rows))
    for _ in range(_ROUNDS):
        need = shift * length(counterfactual[short])
        missing = valid[short] & (score(counterfactual[short]) - target < need)
        hopeless = missing & (margin[short] > most[short])
        valid[short[hopeless]] = False
        short, need = short[missing & ~hopeless], need[missing & ~hopeless]
        if not len(short):
            break
        margin[short] = np.maximum(need, margin[short]) * (1 + _ROOM)
        again = solve(short, margin[short])
        counterfactual[short], distance[short], valid[short] = again.counterfactual, again.distance, again.valid
        proven[short] = False
    valid[short] = False
    counterfactual[~valid], distance[~valid] = found.x[~valid], 0.0
    return replace(found, counterfactual=counterfactual, distance=distance, valid=valid, proven=proven)


def measured_shift(
    answers: Callable[[float], Solution], accepts: Callable[[Floats], NDArray[np.bool_]], start: float, share: float
) -> float:
    """Shift for which at least this share of the answers stays valid under another model, and about the smallest one.

    Args:
        answers: shift -> answers to the same queries, that withstand it.
        accepts: (n, d) rows -> (n,) bool, whether the other model accepts them.
        start: first shift to try, above 0; then doubled and halved.
        share: of the answers, in (0, 1].

    Raises:
        InputError: nobody is turned down, or no shift will do, as fewer than half of the queries have an answer left.
        ConfigurationError: a share out of range.
    """
    if not 0 < check_number("share", share) <= 1:
        raise ConfigurationError(f"share: expected a number in (0, 1], got {share!r}")

    def kept(shift: float) -> float:
        found = answers(shift)
        asked = ~found.favourable
        if not asked.any():
            raise InputError("x: nobody here is turned down, so that there are no answers to look at")
        if found.valid[asked].mean() < 0.5:
            raise InputError(
                f"x: at a shift of {shift:.3g} fewer than half of the queries have an answer, and at smaller ones fewer"
                f" than {share:.0%} stay valid; ask for a smaller share, or loosen the constraints"
            )
        return float(accepts(found.counterfactual[asked & found.valid]).mean())

    if kept(0.0) >= share:
        return 0.0
    low, high = 0.0, start
    while kept(high) < share:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if kept(middle) < share else (low, middle)
    return high
