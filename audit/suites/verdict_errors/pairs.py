"""What explanations add to labels: how often the bounds of a difference of two attacks miss it, and how wide they are.

The scores of a baseline and of an attack are correlated, members' are moved so that at the policy's rate the baseline
finds a stated share, and the attack exactly as much ("nothing") or more by what is tolerated ("at"):

  shift            all members are moved
  few              the attack's members are like the baseline's but for a few that stand four standard deviations higher
  jump outside     5 % of the members stand just outside of what the attack finds
  jump inside      3 points of what the baseline finds stand just inside
  two jumps        both, of different members, 30 % of them outside
  ties             the baseline has ten values
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions
from scipy.optimize import brentq

from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.paired import PairedCounts, count_pairs, difference_bounds, lower_limits
from safexplain.verdict.thresholds import by_score

Scores = NDArray[np.float64]

TOLERATED = {0.01: 0.02, 0.05: 0.05}
"""False-positive rate -> tolerated excess."""
BASES: dict[float, tuple[float, ...]] = {0.01: (0.01, 0.1), 0.05: (0.05, 0.1, 0.3)}
"""False-positive rate -> what the baseline finds."""
ALIKE = (0.0, 0.9, 0.99)
"""Correlation of the attack with the baseline."""
FAMILIES = ("shift", "few", "jump outside", "jump inside", "two jumps", "ties")
TRUTHS = {"nothing": 0.0, "at": 1.0}
RISKS = (0.05, 0.001)
RISK = 0.05
PAIR_COLUMNS = (
    "members", "non_members", "fpr", "base_tpr", "alike", "family", "truth", "true_excess", "discordant", "half_width",
    "below_low", "above_high", "below_low_small", "above_high_small", "wrong_low", "wrong_high",
)  # fmt: skip
"""The last two: limits of the larger of both rates of error. "Small": at a risk of .1 % a side."""
SURE = 0.9995
"""Confidence of the limits of a rate of error: of hundreds of cells none fails by chance."""
CUTS = np.geomspace(0.5, 0.004, 9)


@cache
def ties_shift(tpr: float, fpr: float) -> float:
    """Mean of members at which a score cut into ten values has this rate."""
    at = distributions.norm.isf(CUTS)

    def rate(shift: float) -> float:
        x, y = (np.array([0.0, *np.sort(distributions.norm.sf(at - s)), 1.0]) for s in (0.0, shift))
        return float(np.interp(fpr, x, y))

    return 0.0 if tpr <= fpr else float(brentq(lambda s: rate(s) - tpr, 0.0, 8.0))


@cache
def shift_for(tpr: float, fpr: float) -> float:
    """Mean of members at which `tpr` of them are above the rate `fpr` of a standard normal."""
    return float(distributions.norm.isf(fpr) - distributions.norm.isf(tpr))


def scores_of(
    rng: np.random.Generator,
    family: str,
    members: int,
    non_members: int,
    fpr: float,
    tpr: float,
    base_tpr: float,
    alike: float,
) -> tuple[Scores, Scores]:
    """Scores of the attack and of the baseline, members first."""
    base = rng.standard_normal(members + non_members)
    mine = alike * base + (1 - alike**2) ** 0.5 * rng.standard_normal(len(base))
    edge, inside = distributions.norm.isf(fpr), slice(0, members)
    chosen = rng.random((2, members))
    outer = {"jump outside": 0.05, "two jumps": 0.3}.get(family, 0.0)
    inner = min(0.03, base_tpr - fpr) if family in ("jump inside", "two jumps") else 0.0
    if family == "few":
        part = (tpr - base_tpr) / (float(distributions.norm.sf(edge - 4)) - base_tpr)
        mine[inside] += np.where(chosen[0] < part, 4.0, shift_for(base_tpr, fpr))
    else:
        mine[inside] += shift_for(tpr / (1 - outer), fpr)
    mine[inside][chosen[0] < outer] = edge - 1e-6
    if family == "ties":
        base[inside] += ties_shift(base_tpr, fpr)
        return mine, (base[:, None] > distributions.norm.isf(CUTS)).sum(1) * 1.0
    less = (base_tpr - inner) if inner else base_tpr
    base[inside] += shift_for(less, fpr)
    base[inside][chosen[1] < inner / (1 - less)] = edge + 1e-6
    return mine, base


def simulate_pairs(
    members: int, non_members: int, fpr: float, alike: float, audits: int, tick: Callable[[int], None]
) -> Any:
    """Rows of all cells of one size, rate and correlation."""
    member, cells = np.arange(members + non_members) < members, {}
    for base_tpr in BASES[fpr]:
        for family in FAMILIES:
            for truth, times in TRUTHS.items():
                if (truth == "nothing" and family == "few") or (family == "jump inside" and base_tpr <= fpr):
                    continue
                cells[base_tpr, family, truth] = times * TOLERATED[fpr]
    found: dict[tuple[float, str, str], list[PairedCounts]] = {cell: [] for cell in cells}
    for number in range(audits):
        for cell, excess in cells.items():
            base_tpr, family, _ = cell
            rng = np.random.default_rng([0xA1F, members, non_members, round(1000 * fpr), number])
            mine, base = scores_of(rng, family, members, non_members, fpr, base_tpr + excess, base_tpr, alike)
            found[cell].append(count_pairs(by_score(mine, number), by_score(base, number), member, fpr))
        tick(number)
    rows = []
    for cell, excess in cells.items():
        low, high, small_low, small_high = (
            x for risk in RISKS for x in bounds_of(found[cell], members, non_members, fpr, risk)
        )
        first = difference_bounds(found[cell][0], members, non_members, fpr, RISK, RISK)
        assert np.allclose(first, (low[0], high[0]), atol=1e-9)
        misses = [int(x.sum()) for x in (low > excess, high < excess, small_low > excess, small_high < excess)]
        discordant = float(np.mean([c.only + c.missed for c in found[cell]])) / members
        numbers = (round(x, 5) for x in (excess, discordant, float((high - low).mean()) / 2))
        limits = (round(x, 5) for x in clopper_pearson(max(misses[:2]), audits, SURE))
        rows.append([members, non_members, fpr, cell[0], alike, cell[1], cell[2], *numbers, *misses, *limits])
    return rows


def bounds_of(counts: list[PairedCounts], members: int, non_members: int, fpr: float, risk: float) -> tuple[Any, Any]:
    """(audits,) lower and upper bounds."""
    c = {n: np.array([getattr(x, n) for x in counts]) for n in PairedCounts.__dataclass_fields__}
    names = ("only", "missed", "non_member_only", "non_member_missed", "attack_window", "baseline_window")
    swapped = ("missed", "only", "non_member_missed", "non_member_only", "baseline_window", "attack_window")
    sizes = members, non_members, fpr, risk
    return lower_limits(*(c[n] for n in names), *sizes), -lower_limits(*(c[n] for n in swapped), *sizes)
