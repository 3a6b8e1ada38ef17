"""Who is exposed most: members found in each part of the data, and the members that are found most surely.

Both describe one attack's scores; the verdict does not depend on them. The threshold is one for all: with a threshold
for each part, an attacker would have to know non-members of each. A part whose non-members are also taken for members
more often than elsewhere is one that models find easy, so both rates are shown side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.thresholds import by_score, units_of, weights_of

FEWEST_MEMBERS = 20
"""Members (in groups: groups) below which a part of the data has no line: its interval would say nothing."""


@dataclass(frozen=True)
class SliceRow:
    """One part of the data.

    Args:
        value: of the slice, as "north" or "3".
        found: members found; of a group that is found in part, that part.
        members: of the part; groups count once.
        low, high: interval of the share of members found.
        false_positives: non-members of the part that score as high.
        non_members: of the part; groups count once.
    """

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
    """All parts that one slice divides the data into, the most exposed first.

    Args:
        name: of the slice, as "class".
        fpr: share of all non-members above the threshold, at most that of the policy.
        confidence: with which all intervals of the table hold together; each has 1 - (1 - confidence) / parts.
        left_out: parts with fewer than `FEWEST_MEMBERS` members.
        rows: one a part.
    """

    name: str
    fpr: float
    confidence: float
    left_out: int
    rows: tuple[SliceRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "rows": [row.to_dict() for row in self.rows]}


@dataclass(frozen=True)
class ExposedMember:
    """A member that an attack finds.

    Args:
        example: its index in the signals.
        score: of the attack.
        fpr: share of the non-members that score at least as high; groups count once.
    """

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
    """Members found in each part of the data, above one threshold for all: the strictest at which the share of false
    positives among all non-members is at most the policy's.

    Intervals are Clopper & Pearson's over the members of a part, at that threshold as it came out; Bonferroni's
    correction makes those of one table hold together with the policy's confidence.

    Args:
        scores: (s,) of one attack, higher says "member".
        member: (s,) bool.
        slices: name -> (s,) values, as class or region.
        policy: whose false-positive rate and confidence are taken.
        groups: (s,) of examples that belong together, or None.
        seed: of the order among ties, as the verdict has it.

    Raises:
        InputError: a column is not of shape (s,), or there are no members or no non-members.
    """
    _check(scores, member)
    order = by_score(scores, seed)
    weights = weights_of(member, None if groups is None else groups.astype(np.int64))
    outside = np.cumsum(np.where(member, 0.0, weights)[order])
    above = np.zeros(len(scores), dtype=bool)
    above[order[: np.searchsorted(outside, policy.fpr * outside[-1] * (1 + 1e-9), side="right")]] = True
    realised = float(weights[above & ~member].sum() / outside[-1])
    return tuple(_table(name, above, member, values, policy, groups, realised) for name, values in slices.items())


def _table(
    name: str,
    above: NDArray[np.bool_],
    member: NDArray[np.bool_],
    values: NDArray[Any],
    policy: Policy,
    groups: NDArray[np.integer[Any]] | None,
    fpr: float,
) -> SliceTable:
    if values.shape != member.shape:
        raise InputError(f"slice {name!r}: expected a value for each of {len(member)} examples, got {values.shape}")
    parts: list[tuple[str, tuple[float, int], tuple[float, int]]] = []
    distinct = np.unique(values)
    for value in distinct:
        found, false = (
            _share(above[side], None if groups is None else groups[side])
            for side in ((values == value) & member, (values == value) & ~member)
        )
        if found[1] >= FEWEST_MEMBERS:
            parts.append((str(value), found, false))
    each = 1 - policy.risk / max(len(parts), 1)
    rows = [
        SliceRow(value, found, members, *clopper_pearson(found, members, each), false, others)
        for value, (found, members), (false, others) in parts
    ]
    rows.sort(key=lambda row: (-row.rate, row.value))
    return SliceTable(name, fpr, policy.confidence, len(distinct) - len(rows), tuple(rows))


def _share(above: NDArray[np.bool_], groups: NDArray[np.integer[Any]] | None) -> tuple[float, int]:
    """How many stand above the threshold, and of how many; of a group each example is an equal share of one."""
    weights = weights_of(np.ones(len(above), dtype=bool), None if groups is None else groups.astype(np.int64))
    units = units_of(weights)
    return min(float(weights[above].sum()), float(units)), units


def most_exposed(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    k: int,
    *,
    at: NDArray[np.integer[Any]] | None = None,
    groups: NDArray[np.integer[Any]] | None = None,
) -> tuple[ExposedMember, ...]:
    """The k members that score highest, the most exposed first. Only for the owner of the data: it names members.

    Args:
        scores: (s,) of one attack, higher says "member".
        member: (s,) bool.
        k: how many; all members where there are fewer.
        at: (s,) indices of the scored examples in the signals; None: they are all of them.
        groups: (s,) of examples that belong together, or None.

    Raises:
        InputError: there are no members or no non-members.
    """
    _check(scores, member)
    index = np.arange(len(scores)) if at is None else at
    weights = weights_of(member, None if groups is None else groups.astype(np.int64))
    others = np.argsort(scores[~member])
    ascending, total = scores[~member][others], weights[~member].sum()
    below = np.concatenate([[0.0], np.cumsum(weights[~member][others])])
    inside = np.flatnonzero(member)
    first = inside[np.argsort(-scores[inside], kind="stable")][:k]
    fprs = np.clip(1 - below[np.searchsorted(ascending, scores[first], side="left")] / total, 0.0, 1.0)
    return tuple(
        ExposedMember(int(index[i]), float(scores[i]), round(float(f), 12)) for i, f in zip(first, fprs, strict=True)
    )


def _check(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> None:
    if scores.shape != member.shape or member.all() or not member.any():
        raise InputError(
            f"expected a score for each of {len(member)} examples, members and non-members; got scores {scores.shape},"
            f" {int(member.sum())} members"
        )
