"""Groups of examples that belong together: how often verdicts are wrong that count groups, and that count examples.

Scores of an example are a part of its group's and a part of its own, with standard normal marginals, so that the true
share of members found is that of single examples whatever the groups are like:

  equal        all examples of a group have one score (copies)
  correlated   half of the variance is the group's
  independent  groups mean nothing

Sizes are all alike, or mixed (1, 2, 5, 20 and 50 equally often); under "both sides" each group has as many examples
among the members as among the non-members. What is found is exactly the limit (no leak may be proven) or 1.001 times
it (none may be certified). The same for the claim "excess", of an attack and a baseline whose scores are correlated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.paired import count_pairs, difference_bounds
from safexplain.verdict.thresholds import (
    by_score,
    found_above,
    lower_bound,
    lower_bound_rank,
    units_of,
    upper_bound,
    upper_bound_rank,
    weights_of,
)

from .pairs import SURE, shift_for

GROUP_SIZES: dict[str, tuple[int, ...]] = {
    "1": (1,), "2": (2,), "5": (5,), "20": (20,), "50": (50,), "mixed": (1, 2, 5, 20, 50),
}  # fmt: skip
WITHIN = {"equal": 1.0, "correlated": 0.5, "independent": 0.0}
UNITS = 400
"""Groups on either side."""
POLICY = Policy(fpr=0.05, max_tpr=0.15, claim="whole")
EXCESS = 0.05
"""Largest tolerated difference, from a baseline that finds 10 %."""
ALIKE = 0.9
"""Correlation of the attack's scores with the baseline's."""
OVER = 1.001
GROUP_COLUMNS = (
    "size", "within", "sides", "claim", "truth", "counted", "wrong", "wrong_low", "wrong_high",
)  # fmt: skip


def simulate_groups(size: str, within: str, both_sides: bool, audits: int, tick: Callable[[int], None]) -> Any:
    """Rows of all cells of one kind of groups: wrong verdicts by groups, and by examples as if each stood alone."""
    wrong: dict[tuple[str, str, str], int] = {}
    a, b = WITHIN[within] ** 0.5, (1 - WITHIN[within]) ** 0.5
    for number in range(audits):
        rng = np.random.default_rng([0x6E0, sorted(GROUP_SIZES).index(size), sorted(WITHIN).index(within), number])
        sizes = rng.choice(GROUP_SIZES[size], UNITS if both_sides else 2 * UNITS)
        sides = np.tile([True, False], UNITS)[: len(sizes)]
        groups, member = np.repeat(np.arange(len(sizes)), sizes), np.repeat(sides, sizes)
        if both_sides:
            groups, member = np.tile(groups, 2), np.repeat([True, False], len(groups))
        shared = rng.normal(size=(2, len(sizes)))[:, groups]
        single = rng.normal(size=(2, len(groups)))
        base, other = a * shared + b * single
        attack = ALIKE * base + (1 - ALIKE**2) ** 0.5 * other
        weights = weights_of(member, groups)
        for truth, times in (("at", 1.0), ("over", OVER)):
            scores = attack + shift_for(POLICY.max_tpr * times, POLICY.fpr) * member
            beside = attack + shift_for(0.1 + EXCESS * times, POLICY.fpr) * member
            order = by_score(scores, number)
            pair = by_score(beside, number), by_score(base + shift_for(0.1, POLICY.fpr) * member, number)
            for counted, w in (("groups", weights), ("examples", None)):
                low, high = _bounds(member[order], None if w is None else w[order])
                key = "whole", truth, counted
                wrong[key] = wrong.get(key, 0) + (low > POLICY.max_tpr if truth == "at" else high <= POLICY.max_tpr)
                counts = count_pairs(*pair, member, POLICY.fpr, w)
                n1, n0 = (units_of(weights[s]) if w is not None else int(s.sum()) for s in (member, ~member))
                low, high = difference_bounds(counts, n1, n0, POLICY.fpr, POLICY.risk, POLICY.risk)
                key = "excess", truth, counted
                wrong[key] = wrong.get(key, 0) + (low > EXCESS if truth == "at" else high <= EXCESS)
        tick(number)
    rows = []
    for (claim, truth, counted), count in wrong.items():
        limits = (round(x, 5) for x in clopper_pearson(int(count), audits, SURE))
        rows.append([size, within, "both" if both_sides else "one", claim, truth, counted, int(count), *limits])
    return rows


def _bounds(order: NDArray[np.bool_], weights: NDArray[np.float64] | None) -> tuple[float, float]:
    """Of the share of members found by the one judged attack, as `Judgement.bounds`."""
    w = np.ones(len(order)) if weights is None else weights
    members, others, risk = units_of(w[order]), units_of(w[~order]), POLICY.risk / 2
    rank, share = lower_bound_rank(others, POLICY.fpr, risk)
    low = lower_bound(found_above(order, rank, w, strict=True), members, risk) * share
    loose = upper_bound_rank(others, POLICY.fpr, risk)
    return low, 1.0 if loose is None else upper_bound(found_above(order, loose, w), members, risk)
