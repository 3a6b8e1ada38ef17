"""Who is exposed most: members found in each part of the data, and the most exposed members.

Both describe one attack's scores and do not affect the verdict. All parts share one threshold, since an attacker would
need non-members of each part to set one per part. Groups count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.thresholds import by_score, units_of, weights_of

FEWEST_MEMBERS = 20  # members (or groups) below which a part of the data has no row, as its interval would be too wide


@dataclass(frozen=True)
class SliceRow:
    """One part of the data; a group that is found in part counts in part."""

    value: str
    found: float
    members: int
    low: float
    high: float
    false_positives: float
    non_members: int

    @property
    def rate(self) -> float:
        """Share of the members that are found."""
        return self.found / self.members

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "rate": self.rate}


@dataclass(frozen=True)
class SliceTable:
    """All parts of the data by one column, such as the class, the most exposed first."""

    name: str
    fpr: float  # share of all non-members above the threshold, at most that of the policy
    confidence: float  # with which all intervals of the table hold together
    left_out: int  # parts with fewer than `FEWEST_MEMBERS` members
    rows: tuple[SliceRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}


@dataclass(frozen=True)
class ExposedMember:
    """A member that an attack finds: its index, its score, and the share of non-members that score as high."""

    example: int
    score: float
    fpr: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def by_slice(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    slices: Mapping[str, NDArray[Any]],
    policy: Policy,
    *,
    groups: NDArray[np.integer[Any]] | None = None,
    seed: int = 0,
) -> tuple[SliceTable, ...]:
    """Members found in each part of the data by (s,) scores, at one threshold: the lowest whose false-positive rate
    over all non-members is at most the policy's.

    Intervals are Clopper & Pearson's over the members of a part, given that threshold; with Bonferroni's correction,
    those of one table hold together with the policy's confidence.
    """
    order = by_score(scores, seed)
    weights = weights_of(member, groups)
    outside = np.cumsum(np.where(member, 0.0, weights)[order])
    above = np.zeros(len(scores), dtype=bool)
    above[order[: np.searchsorted(outside, policy.fpr * outside[-1] * (1 + 1e-9), side="right")]] = True
    fpr = float(weights[above & ~member].sum() / outside[-1])

    def found(part: NDArray[np.bool_]) -> tuple[float, int]:
        """How many of a part lie above the threshold, and its size."""
        each = weights_of(np.ones(int(part.sum()), dtype=bool), None if groups is None else groups[part])
        return min(float(each[above[part]].sum()), float(units_of(each))), units_of(each)

    tables = []
    for name, values in slices.items():
        distinct = np.unique(values)
        parts = [(str(v), found((values == v) & member), found((values == v) & ~member)) for v in distinct]
        parts = [part for part in parts if part[1][1] >= FEWEST_MEMBERS]
        each = 1 - policy.risk / max(len(parts), 1)
        rows = [SliceRow(v, *inside, *clopper_pearson(*inside, each), *others) for v, inside, others in parts]
        rows.sort(key=lambda row: (-row.rate, row.value))
        tables.append(SliceTable(name, fpr, policy.confidence, len(distinct) - len(rows), tuple(rows)))
    return tuple(tables)


def most_exposed(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    k: int,
    *,
    at: NDArray[np.integer[Any]] | None = None,
    groups: NDArray[np.integer[Any]] | None = None,
) -> tuple[ExposedMember, ...]:
    """The k members with the highest (s,) scores, the most exposed first; `at` (s,) are their indices in the signals.

    The list names members and is only for the owner of the data.
    """
    index = np.arange(len(scores)) if at is None else at
    weights = weights_of(member, groups)[~member]
    inside = np.flatnonzero(member)
    first = inside[np.argsort(-scores[inside], kind="stable")][:k]
    fprs = [float(weights[scores[~member] >= scores[i]].sum() / weights.sum()) for i in first]
    return tuple(ExposedMember(int(index[i]), float(scores[i]), round(f, 12)) for i, f in zip(first, fprs, strict=True))
