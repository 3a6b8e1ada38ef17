"""How much higher the AUC of one attack is than that of another on the same examples.

NumPy and SciPy only. AUC(A) - AUC(B) is a mean over members, and over non-members, of how much better A places each
than B does: a member's place is the share of the non-members below it (ties count half), a non-member's the share of
the members above it. DeLong, DeLong & Clarke-Pearson (Biometrics 44, 1988) take the variance of the difference from
those of the two kinds of places; examples in groups are averaged within their group first, and groups with members and
non-members add their covariance (Obuchowski, Biometrics 53, 1997).

The normal limits that usually follow are too short in small samples, at the small risks of many attacks, and where two
attacks differ in a few examples only: then none, or one, of these may be in the sample, and the variance found is about
0. Limits here take Student's t, and on the smaller side, whose examples count most, as many made-up examples as the
risk asks for (`made_up`), which differ as much as is possible in the direction that is feared. Of n examples that never
differ this leaves about what the rule of three does. Error rates are measured: docs/statistics.md,
audit/suites/verdict_errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from safexplain.errors import InputError

Floats = NDArray[np.float64]

POISSON = 2.2
"""ln(1 / risk) over this many made-up examples give limits of rare events that are no shorter than Poisson's."""


@dataclass(frozen=True)
class PairedAuc:
    """The two areas, and how much the places vary of which their difference is the mean. All in units (groups).

    Args:
        auc: of the attack.
        base_auc: of the baseline on the same examples; 0.5 where there is none, which is guessing.
        member_variance: of the differences of the members' places.
        non_member_variance: of those of the non-members.
        shared: what groups with members and non-members add to the variance of the difference of the areas, at least 0.
    """

    auc: float
    base_auc: float
    member_variance: float
    non_member_variance: float
    shared: float = 0.0

    @property
    def difference(self) -> float:
        """How much higher the attack's area is."""
        return self.auc - self.base_auc

    def to_dict(self) -> dict[str, float]:
        """Plain JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> PairedAuc:
        """Read what `to_dict` wrote.

        Raises:
            InputError: a number is none, or impossible.
            KeyError, TypeError: a field is missing, or there are none.
        """
        return cls(*(_number(name, content[name]) for name in cls.__dataclass_fields__))

    def check(self) -> None:
        """Refuse numbers that no two attacks have.

        Raises:
            InputError: an area outside of [0, 1], or variances of places that are.
        """
        values = asdict(self)
        if not all(0 <= v <= 2 and math.isfinite(v) for v in values.values()) or max(self.auc, self.base_auc) > 1:
            raise InputError(f"areas under the curve are impossible: {values}")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"not the outcome of an audit: {name} is a number, got {value!r:.60}")
    return float(value)


@dataclass(frozen=True, eq=False)
class Ties:
    """Scores as what matters of them: which of the distinct ones each example has.

    Args:
        which: (s,) from 0, the lowest score.
        distinct: how many there are.
    """

    which: NDArray[np.int64]
    distinct: int

    @classmethod
    def of(cls, scores: Floats) -> Ties:
        """Of (s,) scores, infinite ones included.

        Raises:
            InputError: NaN scores, or another shape.
        """
        s = np.asarray(scores, dtype=np.float64)
        if s.ndim != 1 or np.isnan(s).any():
            raise InputError(f"expected scores (s,) without NaN, got shape {s.shape}")
        values, which = np.unique(s, return_inverse=True)
        return cls(which.reshape(-1), len(values))

    def places(self, member: NDArray[np.bool_], weights: Floats | None = None) -> Floats:
        """(s,) of a member the share of the non-members below it, of a non-member that of the members above it."""
        w = np.ones(len(member)) if weights is None else weights
        inside = np.bincount(self.which, np.where(member, w, 0.0), self.distinct)
        outside = np.bincount(self.which, np.where(member, 0.0, w), self.distinct)
        below = (np.cumsum(outside) - outside / 2) / outside.sum()
        above = 1 - (np.cumsum(inside) - inside / 2) / inside.sum()
        places: Floats = np.where(member, below[self.which], above[self.which])
        return places


def compare_areas(
    attack: Ties,
    baseline: Ties | None,
    member: NDArray[np.bool_],
    groups: NDArray[np.integer[Any]] | None = None,
    weights: Floats | None = None,
) -> PairedAuc:
    """Both areas, on the same examples.

    Args:
        attack: its scores.
        baseline: its scores; None: guessing, with an area of 0.5.
        member: (s,) bool.
        groups: (s,) which examples belong together; None: each stands alone.
        weights: (s,) `thresholds.weights_of` of these; None only without groups.

    Raises:
        InputError: shapes differ, or there are no members or no non-members.
    """
    sizes = {len(member), len(attack.which), len(member if baseline is None else baseline.which)}
    if len(sizes) > 1 or member.all() or not member.any():
        raise InputError(f"expected scores of members and non-members, got sizes {sorted(sizes)}")
    own = attack.places(member, weights)
    other = np.full(len(member), 0.5) if baseline is None else baseline.places(member, weights)
    w = np.ones(len(member)) if weights is None else weights
    auc, base = (float(np.average(p[member], weights=w[member])) for p in (own, other))
    apart = own - other
    if groups is None:
        variances = [_variance(apart[side]) for side in (member, ~member)]
        return PairedAuc(auc, base, variances[0], variances[1])
    _, which = np.unique(groups, return_inverse=True)
    which = which.reshape(-1)
    sums: list[Floats] = [
        np.bincount(which[side], (w * apart)[side], which.max() + 1).astype(np.float64) for side in (member, ~member)
    ]
    there = [np.bincount(which[side], minlength=which.max() + 1) > 0 for side in (member, ~member)]
    both = there[0] & there[1]
    joint = float(((sums[0][both] - (auc - base)) * (sums[1][both] - (auc - base))).sum())
    shared = 2 * joint / (int(there[0].sum()) * int(there[1].sum()))
    return PairedAuc(auc, base, _variance(sums[0][there[0]]), _variance(sums[1][there[1]]), max(shared, 0.0))


def _variance(values: Floats) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def area_bounds(
    found: PairedAuc, members: int, non_members: int, low_risk: float, high_risk: float
) -> tuple[float, float]:
    """Lower and upper bound of how much higher the attack's area is.

    Args:
        found: on these examples.
        members: units (groups) scored.
        non_members: units (groups) scored.
        low_risk: largest probability that the true difference is below the lower bound.
        high_risk: largest probability that it is above the upper bound.
    """
    d = found.difference
    spread = found.member_variance, found.non_member_variance, found.shared
    low = d - _reach(d, *spread, members, non_members, low_risk)
    return max(low, -1.0), min(d + _reach(-d, *spread, members, non_members, high_risk), 1.0)


def made_up(risk: float) -> float:
    """How many examples of the feared kind are added."""
    return math.log(1 / risk) / POISSON


def _reach(
    d: float, inside: float, outside: float, shared: float, members: int, non_members: int, risk: float
) -> float:
    """How far below a difference d the true one may be."""
    (n, spread), (many, other) = sorted([(members, inside), (non_members, outside)])
    k = made_up(risk)
    total = n + k
    shift = k * (1 + d) / total
    variance = ((n - 1) * spread + n * k / total * (1 + d) ** 2) / (total - 1) / total + other / many + shared
    return shift + _quantile(n, risk) * math.sqrt(variance)


@lru_cache(maxsize=4096)
def _quantile(freedom: int, risk: float) -> float:
    """Of Student's t, exceeded with a probability of `risk`."""
    return float(-special.stdtrit(freedom, risk))
