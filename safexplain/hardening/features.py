"""The columns of a table as the applicant knows them, and reasons in their names.

If a prohibited column is among the reasons, there is no answer: none of the principal reasons may be missing
(commentary on Regulation B, 12 CFR 1002.9(b)(2)).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import ConfigurationError, InputError, ProhibitedReasonError


@dataclass(frozen=True)
class Reason:
    """A feature that counts for the decision.

    Args:
        name: of the applicant's column.
        value: of the applicant: a number; for a one-hot column, the label; for other groups, the numbers.
        rank: 1 for the strongest; None if the release has no order.
        text: its wording in a notice.
    """

    name: str
    value: Any = None
    rank: int | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text or self.name


@dataclass(frozen=True)
class Features:
    """Names of an explanation's features, groups of features, and features that may not be reasons.

    Args:
        names: of the d features, in their order.
        groups: the applicant's column -> names of the features that are added up for it. Others are columns themselves.
        prohibited: columns (after grouping) that may not be among the reasons.

    Raises:
        ConfigurationError: a repeated or unknown name, or a feature in two groups.
    """

    names: tuple[str, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prohibited: tuple[str, ...] = ()

    def __init__(
        self,
        names: Iterable[str],
        groups: Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]] = (),
        prohibited: Iterable[str] = (),
    ) -> None:
        given = groups.items() if isinstance(groups, Mapping) else groups
        object.__setattr__(self, "names", tuple(map(str, names)))
        object.__setattr__(self, "groups", tuple((str(name), tuple(map(str, parts))) for name, parts in given))
        object.__setattr__(self, "prohibited", tuple(map(str, prohibited)))
        parts = [part for _, members in self.groups for part in members]
        for what, listed in (("names", self.names), ("groups: features", parts)):
            if len(set(listed)) < len(listed):
                raise ConfigurationError(f"{what}: expected each name once, got {', '.join(listed)[:200]}")
        for what, listed, known in (("groups", parts, self.names), ("prohibited", self.prohibited, self.columns)):
            if unknown := [name for name in listed if name not in known]:
                raise ConfigurationError(f"{what}: expected some of {', '.join(known)[:200]}; got {unknown[0]!r}")

    @cached_property
    def _owners(self) -> tuple[str, ...]:
        of = {part: name for name, parts in self.groups for part in parts}
        return tuple(of.get(name, name) for name in self.names)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The applicant's columns, in the order of their first features."""
        return tuple(dict.fromkeys(self._owners))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Column number of each feature."""
        return tuple(map(self.columns.index, self._owners))

    def summed(self, rows: Tensor) -> Tensor:
        """(n, columns) of (n, d): each column's values, added up; InputError for another number of features."""
        if rows.shape[1] != len(self.names):
            raise InputError(f"expected explanations of the {len(self.names)} named features, got {rows.shape[1]}")
        index = torch.tensor(self.places, device=rows.device)
        return rows.new_zeros(len(rows), len(self.columns)).index_add_(1, index, rows)

    def refused(self, released: Any) -> Any:
        """(n, prohibited columns) bool: whether each is among the reasons of (n, d) released explanations."""
        return released[:, list(map(self._owners.index, self.prohibited))] != 0

    def check(self, released: Tensor) -> None:
        """Raise ProhibitedReasonError if one of (n, d) released explanations names a prohibited column."""
        if found := [self.prohibited[i] for i in self.refused(released).any(0).nonzero().flatten().tolist()]:
            raise ProhibitedReasonError(
                f"{', '.join(found)}: prohibited, but among the reasons for this decision. Train the model without it;"
                " leaving out the reason would hide what was scored"
            )

    def reasons(self, released: Any, rows: Any = None, *, describe: Mapping[str, str] | None = None) -> list[Any]:
        """The reasons in a released set, the strongest first if it is ordered, else in the order of the columns.

        Args:
            released: (d,) or (n, d) of a `TopKSet`.
            rows: the explained rows, of the same shape; None: reasons have no values.
            describe: column -> its wording in a notice.

        Returns:
            A list of `Reason` for one explanation, or a list of such lists.

        Raises:
            InputError: other shapes, or not a released set.

        >>> form = Features(["income", "home=owns", "home=rents"], {"home": ["home=owns", "home=rents"]})
        >>> [reason] = form.reasons([0.0, 1.0, 1.0], [20.0, 0.0, 1.0], describe={"home": "type of residence"})
        >>> reason.name, reason.value, str(reason)
        ('home', 'rents', 'type of residence')
        """
        maps = self._maps(released)
        values = None if rows is None else self._maps(rows)
        if values is not None and values.shape != maps.shape:
            raise InputError(f"rows: expected the explained rows, of shape {maps.shape}, got {values.shape}")
        found = []
        for i, numbers in enumerate(np.atleast_2d(maps)[:, list(map(self._owners.index, self.columns))]):
            strength = numbers[numbers > 0]
            ordered = strength.max(initial=0) > 1
            twice = len(set(strength)) < len(strength)
            if not np.isin(numbers, range(len(numbers) + 1)).all() or (ordered and twice):
                raise InputError(
                    "expected a released TopKSet, as from Hardening(clip=TopKSet(k=4, ordered=True)), got another"
                    " explanation"
                )
            reasons = []
            for rank, place in enumerate(sorted(np.flatnonzero(numbers > 0), key=lambda at: -numbers[at]), 1):
                name, value = self.columns[place], None
                if values is not None:
                    value = self._value(place, np.atleast_2d(values)[i])
                reasons.append(Reason(name, value, rank if ordered else None, (describe or {}).get(name, "")))
            found.append(reasons)
        return found[0] if maps.ndim == 1 else found

    def _maps(self, given: Any) -> Any:
        given = given.detach().cpu().double().numpy() if isinstance(given, Tensor) else np.asarray(given, np.float64)
        d = len(self.names)
        if given.ndim == 0 or given.size != d * (1 if given.ndim == 1 else len(given)):
            raise InputError(f"expected one number for each of {d} features, (d,) or (n, d), got {given.shape}")
        return given if given.ndim == 1 else given.reshape(len(given), d)

    def _value(self, place: int, row: Any) -> Any:
        parts = [i for i, column in enumerate(self.places) if column == place]
        numbers = [float(row[i]) for i in parts]
        if len(parts) == 1 and self.names[parts[0]] == self.columns[place]:
            return numbers[0]
        if sum(numbers) == 1 and set(numbers) <= {0.0, 1.0}:
            label = self.names[parts[numbers.index(1.0)]]
            return label.removeprefix(self.columns[place]).lstrip("=_ ") or label
        return tuple(numbers)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        groups = {name: list(parts) for name, parts in self.groups}
        return {"names": list(self.names), "groups": groups, "prohibited": list(self.prohibited)}
