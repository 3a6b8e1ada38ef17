"""An audit that looks again while it is undecided: how often any of its looks gives a wrong verdict.

Each look scores the examples of the one before and as many new ones, with references that partly redraw what the attack
sees (`RENEWED`): at the first 600 + 600, then 1,200 + 1,200 and 2,400 + 2,400. The attack adds nothing to the baseline,
or exactly what is tolerated: a leak proven in either case would be wrong, and so would be a certificate just above.
Looks share the risk as `Policy.risk` says; beside it each takes all of it, as if it were the only one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.paired import PairedCounts, count_pairs
from safexplain.verdict.thresholds import by_score

from .pairs import ALIKE, SURE, TOLERATED, TRUTHS, bounds_of, shift_for

SIDES = (600, 1200, 2400)
"""Members, and as many non-members, at each look."""
LOOK_BASES = {0.01: (0.02, 0.1), 0.05: (0.05, 0.2)}
"""False-positive rate -> what the baseline finds."""
RENEWED = 0.3
"""Share of the attack's own variance that each look draws anew."""
LOOK_COLUMNS = ("fpr", "base_tpr", "truth", "leak", "certified", "looks", "leak_unshared", "certified_unshared",
                "wrong_low", "wrong_high")  # fmt: skip
"""Audits that proved a leak or certified; looks that all took together; the same with the whole risk at each look;
limits of the larger rate of error."""


def simulate_looks(fpr: float, base_tpr: float, audits: int, tick: Callable[[int], None]) -> list[list[Any]]:
    """A row for each truth."""
    rows, most = list[list[Any]](), SIDES[-1]
    for truth, times in TRUTHS.items():
        excess, counts = times * TOLERATED[fpr], list[list[PairedCounts]]([[] for _ in SIDES])
        for number in range(audits):
            rng = np.random.default_rng([0x100C, round(1000 * fpr), round(1000 * base_tpr), number])
            base, kept = rng.standard_normal((2, 2, most))  # of members and non-members
            for at, side in zip(counts, SIDES, strict=True):
                fresh = rng.standard_normal((2, most))
                own = (1 - RENEWED) ** 0.5 * kept + RENEWED**0.5 * fresh
                mine, member = ALIKE[1] * base + (1 - ALIKE[1] ** 2) ** 0.5 * own, np.arange(2 * side) < side
                attack = mine + np.array([[shift_for(base_tpr + excess, fpr)], [0.0]])
                baseline = base + np.array([[shift_for(base_tpr, fpr)], [0.0]])
                orders = [by_score(scores[:, :side].reshape(-1), number) for scores in (attack, baseline)]
                at.append(count_pairs(*orders, member, fpr))
            tick(number)
        found, taken = list[int](), 0
        for shared in (False, True):
            decided, taken = np.zeros(audits, dtype=np.int8), 0
            for look, (at, side) in enumerate(zip(counts, SIDES, strict=True), 1):
                taken += int((decided == 0).sum())
                policy = Policy(look=look, looks=len(SIDES)) if shared else Policy()
                low, high = bounds_of(at, side, side, fpr, policy.risk)
                verdict = np.where(low > TOLERATED[fpr], 1, np.where(high <= TOLERATED[fpr], 2, 0))
                decided = np.where(decided == 0, verdict, decided)
            found += [int((decided == 1).sum()), int((decided == 2).sum())]
        *unshared, leak, certified = found
        wrong = max(leak, certified) if truth == "at" else leak
        limits = (round(x, 5) for x in clopper_pearson(wrong, audits, SURE))
        rows.append([fpr, base_tpr, truth, leak, certified, taken, *unshared, *limits])
    return rows
