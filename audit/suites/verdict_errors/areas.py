"""The claim "auc": how often a verdict by paired areas is wrong, in small samples and where normal limits fail.

An attack and a baseline score the same examples; how much larger the attack's area truly is follows from the
distributions that are drawn from:

  independent   both know as much, of different things: nothing is added
  correlated    scores correlated by .9, the attack knows more
  alike         correlated by .99, nothing is added
  found         5 % of the members stand above everybody by the attack, and are like the others by the baseline
  lost          the same, below everybody
  swapped       5 % of the members stand below everybody by the baseline, and above by the attack
  outsiders     5 % of the non-members stand below everybody by the attack
  ties          both scores have two values
  certain       the attack finds almost everybody, the baseline guesses

The limit is what is true: no leak may be proven, and, if it is a hair lower, nothing be certified. With eight attacks
(correlated by .5, "one" or "all" of them at the limit, the others adding nothing) each lower bound has an eighth of the
risk. Groups are those of `groups`, without an excess.

Beside it what is usually done: DeLong's normal limits, which say that two attacks differ by nothing for certain where
they rank all sampled examples alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.paired_auc import PairedAuc, Ties, area_bounds, compare_areas
from safexplain.verdict.thresholds import weights_of

from .groups import GROUP_SIZES, WITHIN

Scores = NDArray[np.float64]

AREA_SIZES = ((20, 20), (100, 100), (500, 500), (2500, 2500), (50, 1000), (1000, 50))
FAMILIES = (
    "independent", "correlated", "alike", "found", "lost", "swapped", "outsiders", "ties", "certain",
)  # fmt: skip
SHARE = 0.05
"""Of the members (or non-members) that are not like the others."""
MANY = 8
KNOWN = 0.3
"""How far members lie from others by the baseline, in standard deviations."""
MORE = 0.5
"""The same by an attack that adds something."""
GROUPS = 100
"""Groups on either side."""
RISK, SMALL = 0.05, 0.001
SURE = 0.9995
"""Confidence of the limits of a rate of error: of hundreds of cells none fails by chance."""
AREA_COLUMNS = (
    "members", "non_members", "family", "attacks", "truth", "leak", "certified", "leak_small", "certified_small",
    "usual_leak", "usual_certified", "width", "usual_width", "wrong_low", "wrong_high",
)  # fmt: skip
"""Counts of wrong verdicts at a risk of 5 %, of single bounds at .1 %; limits of the larger rate of the first two."""


def area_of(shift: float) -> float:
    """Area under the curve of normal scores whose means lie so far apart."""
    return float(distributions.norm.cdf(shift / 2**0.5))


def scores_of(rng: np.random.Generator, family: str, member: NDArray[np.bool_]) -> tuple[Scores, Scores, float]:
    """Scores of the attack and of the baseline, and how much larger the attack's area is."""
    n = len(member)
    z, own, some = rng.normal(size=n), rng.normal(size=n), rng.random(n) < SHARE
    match family:
        case "independent":
            return own + KNOWN * member, z + KNOWN * member, 0.0
        case "correlated":
            return _like(z, own, 0.9) + MORE * member, z + KNOWN * member, area_of(MORE) - area_of(KNOWN)
        case "alike":
            return _like(z, own, 0.99) + KNOWN * member, z + KNOWN * member, 0.0
        case "found":
            return np.where(some & member, 100 + own, z), z, SHARE / 2
        case "lost":
            return np.where(some & member, own - 100, z), z, -SHARE / 2
        case "swapped":
            return np.where(some & member, 100 + own, z), np.where(some & member, own - 100, z), SHARE
        case "outsiders":
            return np.where(some & ~member, own - 100, z), z, SHARE / 2
        case "ties":
            first, second = (rng.random(n) < 0.3 + more * member for more in (0.2, 0.1))
            return first * 1.0, second * 1.0, 0.05
        case "certain":
            return own + 3 * member, z, area_of(3.0) - 0.5
    raise ValueError(family)


def _like(base: Scores, own: Scores, correlation: float) -> Scores:
    scores: Scores = correlation * base + (1 - correlation**2) ** 0.5 * own
    return scores


def simulate_areas(members: int, non_members: int, audits: int, tick: Callable[[int], None]) -> Any:
    """Rows of all cells of one size."""
    member = np.arange(members + non_members) < members
    found: dict[tuple[str, int, str], list[tuple[float, list[PairedAuc]]]] = {}
    for number in range(audits):
        for family in FAMILIES:
            rng = np.random.default_rng([0xA4EA, members, non_members, FAMILIES.index(family), number])
            attack, base, truth = scores_of(rng, family, member)
            areas = compare_areas(Ties.of(attack), Ties.of(base), member)
            found.setdefault((family, 1, "one"), []).append((truth, [areas]))
        rng = np.random.default_rng([0xA4EB, members, non_members, number])
        z = rng.normal(size=len(member))
        base, common = Ties.of(z + KNOWN * member), rng.normal(size=len(member))
        draws = [_like(z, _like(common, rng.normal(size=len(member)), 0.5), 0.7) for _ in range(MANY)]
        for kind, more in (("one", [MORE, *[KNOWN] * (MANY - 1)]), ("all", [MORE] * MANY)):
            each = [compare_areas(Ties.of(s + m * member), base, member) for s, m in zip(draws, more, strict=True)]
            found.setdefault(("correlated", MANY, kind), []).append((area_of(MORE) - area_of(KNOWN), each))
        tick(number)
    return [_row(members, non_members, *cell, audited) for cell, audited in found.items()]


def _row(
    members: int, non_members: int, family: str, attacks: int, truth: str, audited: list[tuple[float, list[PairedAuc]]]
) -> list[Any]:
    """Counts of one cell."""
    sizes, counts, widths = (members, non_members), np.zeros(6, dtype=int), np.zeros(2)
    for true, areas in audited:
        bounds = np.array([area_bounds(a, *sizes, RISK / attacks, RISK) for a in areas])
        small = np.array(area_bounds(areas[0], *sizes, SMALL, SMALL))
        usual = np.array([_usual(a, *sizes, RISK) for a in areas])
        counts += [
            (bounds[:, 0] > true).any(), (bounds[:, 1] < true).all(), small[0] > true, small[1] < true,
            (usual[:, 0] > true).any(), (usual[:, 1] < true).all(),
        ]  # fmt: skip
        widths += (bounds[0, 1] - bounds[0, 0], usual[0, 1] - usual[0, 0])
    limits = (round(x, 5) for x in clopper_pearson(int(counts[:2].max()), len(audited), SURE))
    shown = (round(float(w) / len(audited), 5) for w in widths)
    return [members, non_members, family, attacks, truth, *map(int, counts), *shown, *limits]


def _usual(found: PairedAuc, members: int, non_members: int, risk: float) -> tuple[float, float]:
    """DeLong's normal limits, each attack by itself."""
    variance = found.member_variance / members + found.non_member_variance / non_members
    reach = float(distributions.norm.isf(risk)) * variance**0.5
    return found.difference - reach, found.difference + reach


def simulate_area_groups(size: str, within: str, both_sides: bool, audits: int, tick: Callable[[int], None]) -> Any:
    """One row, of examples in groups: bounds that miss a difference of nothing."""
    a, b, counts = WITHIN[within] ** 0.5, (1 - WITHIN[within]) ** 0.5, np.zeros(2, dtype=int)
    for number in range(audits):
        rng = np.random.default_rng([0xA4EC, sorted(GROUP_SIZES).index(size), sorted(WITHIN).index(within), number])
        sizes = rng.choice(GROUP_SIZES[size], GROUPS if both_sides else 2 * GROUPS)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        member = np.repeat(np.arange(len(sizes)) < GROUPS, sizes)
        if both_sides:
            groups, member = np.tile(groups, 2), np.repeat([True, False], len(groups))
        shared, single = rng.normal(size=(2, len(sizes)))[:, groups], rng.normal(size=(2, len(groups)))
        base, other = a * shared + b * single
        areas = compare_areas(Ties.of(base + other), Ties.of(base), member, groups, weights_of(member, groups))
        low, high = area_bounds(areas, GROUPS, GROUPS, RISK, RISK)
        counts += (low > 0, high < 0)
        tick(number)
    limits = (round(x, 5) for x in clopper_pearson(int(counts.max()), audits, SURE))
    return [size, within, "both" if both_sides else "one", *map(int, counts), *limits]


AREA_GROUP_COLUMNS = ("size", "within", "sides", "leak", "certified", "wrong_low", "wrong_high")
