"""Answers that stay valid after a retraining moves the weights of the model.

Let the weights w and the intercept b of a linear score, in the scaled columns z of training, move by at most `shift`
together, in the Euclidean norm. By Cauchy and Schwarz, the least score of a row is then

    min over |(dw, db)| <= shift of (w + dw).z + (b + db)  =  w.z + b - shift |(z, 1)|,

so that an answer stays valid under every such shift exactly if that is at least the target. Upadhyay, Joshi and
Lakkaraju 2021 (ROAR, arXiv 2102.13620) search by gradients for answers that withstand the worst shift.
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
"""Largest number of raises of the target; each is a contraction unless the shift is about as long as the weights."""

_ROOM = 1e-9
"""Share by which a target is raised further, for rounding."""

_MOST = 1e6
"""Largest margin, in gaps of the query, up to which the target is raised."""

_HALVINGS = 12
"""Bisections in `measured_shift`."""


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
    """Verified answers to `rows` (n, d) whose score still reaches the target after the worst shift of the weights.
    Favourable queries do not change, and may not withstand it.

    `solve`: (k,) positions of queries and (k,) margins -> cheapest answers whose score is at least target + margin;
    `length`: (n, d) rows -> (n,) |(z, 1)|.

    The target of each query is raised from below, by shift |(z, 1)| of the previous answer, until the answer withstands
    the shift. A shorter row that does may cost less, so that only results of the first round are `proven`.
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
    """About the smallest shift for which at least this share of the `answers` (a function of the shift) stays valid
    under another model, which `accepts` (n, d) rows. `start`, above 0, is tried first, then doubled, bisected."""
    if not 0 < check_number("share", share) <= 1:
        raise ConfigurationError(f"share: expected a number in (0, 1], got {share!r}")

    def share_valid(shift: float) -> float:
        found = answers(shift)
        declined = ~found.favourable
        if not declined.any():
            raise InputError("x: expected some unfavourable queries, but all are favourable; pass other queries")
        if found.valid[declined].mean() < 0.5:
            raise InputError(
                f"x: at a shift of {shift:.3g} fewer than half of the queries have an answer, and at smaller shifts"
                f" fewer than {share:.0%} of the answers stay valid; pass a smaller share, or loosen the constraints"
            )
        return float(accepts(found.counterfactual[declined & found.valid]).mean())

    if share_valid(0.0) >= share:
        return 0.0
    low, high = 0.0, start
    while share_valid(high) < share:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_valid(middle) < share else (low, middle)
    return high
