"""What a recommended change may touch, and how far.

Constraints are public: they come from what the features mean (an age does not fall, a count is whole), never from the
training data. A box taken from the training data's minimum and maximum would publish two of its records.

Queries are compared exactly, as every answer satisfies its constraints exactly, and an answer to a favourable query is
the query. Float32 turns an upper limit of .1 into .10000000149: such a query is refused too, and told what happened.
Moving it to the limit would answer another query than the one that came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.feature_names import (
    Feature,
    Features,
    Limit,
    check_features,
    hashable,
    label,
    limits,
    listed,
    members_of,
    positions,
    width_of,
)
from safexplain.recourse.result import Floats, first_of

FLOAT32 = 2.0**-24
"""Relative error of rounding to float32."""

Mask = NDArray[np.bool_]

_LISTS = ("immutable", "integer", "increasing", "decreasing")


@dataclass(frozen=True)
class Constraints:
    """Which features may change, and how.

    Args:
        features: number of columns d, or their names.
        lower: least value: one number for all, a mapping feature -> number (a pandas Series with names is one), or d
            numbers. None: no limit. Queries are compared exactly: float32 numbers may miss a limit by their rounding.
        upper: greatest value, likewise.
        immutable: features that never change.
        integer: features that take whole numbers only.
        increasing: features that may not fall.
        decreasing: features that may not rise.
        one_hot: groups of columns of which exactly one is 1 and the others 0. The other constraints hold for their
            columns one by one: `upper` 0 rules a category out, `immutable` keeps a column at its value.

    Attributes:
        low: (d,) least values; whole where whole numbers are needed.
        high: (d,) greatest values, likewise.
        whole: (d,) bool, integer features that are not in a one-hot group.
        groups: one (k,) array of columns for each one-hot group.

    Raises:
        ConfigurationError: no row could satisfy them, nothing could ever change, or a feature is not known.
    """

    features: Features
    lower: Limit = None
    upper: Limit = None
    immutable: tuple[Feature, ...] = ()
    integer: tuple[Feature, ...] = ()
    increasing: tuple[Feature, ...] = ()
    decreasing: tuple[Feature, ...] = ()
    one_hot: tuple[tuple[Feature, ...], ...] = ()
    low: Floats = field(init=False, repr=False, compare=False)
    high: Floats = field(init=False, repr=False, compare=False)
    whole: Mask = field(init=False, repr=False, compare=False)
    groups: tuple[NDArray[np.intp], ...] = field(init=False, repr=False, compare=False)
    _fixed: Mask = field(init=False, repr=False, compare=False)
    _rising: Mask = field(init=False, repr=False, compare=False)
    _falling: Mask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        features = check_features(self.features)
        columns = {name: positions(features, getattr(self, name), name) for name in _LISTS}
        groups = tuple(np.array(positions(features, g, "one_hot"), dtype=np.intp) for g in listed(self.one_hot))
        masks = {name: np.isin(np.arange(width_of(features)), columns[name]) for name in _LISTS}
        members = members_of(features, groups)
        low = limits(features, self.lower, "lower", -np.inf)
        high = limits(features, self.upper, "upper", np.inf)
        low[members], high[members] = np.maximum(low[members], 0.0), np.minimum(high[members], 1.0)
        round_to = masks["integer"] | members
        low, high = np.where(round_to, np.ceil(low), low) + 0.0, np.where(round_to, np.floor(high), high) + 0.0
        canonical: dict[str, Any] = {name: listed(getattr(self, name)) for name in _LISTS}
        canonical |= {name: hashable(features, getattr(self, name), name) for name in ("lower", "upper")}
        canonical |= {"features": features, "one_hot": tuple(map(listed, listed(self.one_hot)))}
        canonical |= {"low": low, "high": high, "groups": groups, "whole": masks["integer"] & ~members}
        canonical |= {"_fixed": masks["immutable"], "_rising": masks["increasing"], "_falling": masks["decreasing"]}
        for name, value in canonical.items():
            object.__setattr__(self, name, value)
        self._check_possible()

    def _check_possible(self) -> None:
        empty = (self.low > self.high) | np.isposinf(self.low) | np.isneginf(self.high)
        if empty.any():
            column = int(empty.argmax())
            kind = " that a whole number or a category meets" if self.whole[column] or column in self._members() else ""
            raise ConfigurationError(f"{self.label(column)}: no value{kind} lies between its lower and its upper limit")
        both = self._rising & self._falling
        if both.any():
            name = self.label(int(both.argmax()))
            raise ConfigurationError(f"{name}: increasing and decreasing at once; list it under immutable")
        for group in self.groups:
            if not self.admissible(group, self.low[None], self.high[None]).any():
                raise ConfigurationError(f"one_hot group {self._names(group)}: the limits leave no category")
        if (self._fixed | (self.low == self.high)).all():
            raise ConfigurationError("immutable: nothing may change, so there is no recourse; leave a feature free")

    @property
    def width(self) -> int:
        """Number of columns d."""
        return width_of(self.features)

    def label(self, column: int) -> str:
        """How messages call a column."""
        return label(self.features, column)

    def check(self, x: Floats) -> None:
        """Refuse queries that break the constraints, without tolerance, before anything is changed.

        Args:
            x: (n, d) queries.

        Raises:
            InputError: another width, a value outside its box, an integer feature that is not whole, or a one-hot group
                without exactly one 1; with the rows.
        """
        if x.ndim != 2 or x.shape[1] != self.width:
            raise InputError(f"x: expected shape (n, {self.width}), as the constraints have it, got {x.shape}")
        for group in self.groups:
            columns = x[:, group]
            bad = (columns.sum(axis=1) != 1) | ((columns != 0) & (columns != 1)).any(axis=1)
            if bad.any():
                raise InputError(
                    f"x: one-hot group {self._names(group)} needs exactly one 1 and otherwise 0 ({_rows(bad)}); an"
                    " unseen category, perhaps: an encoder that ignores unknown categories writes all zeros"
                )
        outside = (x < self.low) | (x > self.high)
        if outside.any():
            _refuse(self, x, outside, int(outside.any(axis=0).argmax()))
        fraction = (x != np.rint(x)) & self.whole
        if fraction.any():
            column = int(fraction.any(axis=0).argmax())
            raise InputError(
                f"x: {self.label(column)} is an integer feature and not whole ({_rows(fraction[:, column])}); round it,"
                " or if it was standardised, give the constraints and the model its original units"
            )

    def bounds(self, x: Floats, frozen: Mask | None = None) -> tuple[Floats, Floats]:
        """Limits of each column of each query's counterfactual.

        Args:
            x: (n, d) queries.
            frozen: (n, d) bool, what these queries must not change besides; a frozen column freezes its whole one-hot
                group.

        Returns:
            Lower and upper limits, (n, d) each.
        """
        fixed = np.broadcast_to(self._fixed, x.shape)
        if frozen is not None:
            fixed = fixed | frozen
            for group in self.groups:
                fixed[:, group] |= frozen[:, group].any(axis=1, keepdims=True)
        lower = np.where(fixed | self._rising, x, self.low)
        upper = np.where(fixed | self._falling, x, self.high)
        return lower, upper

    def admissible(self, group: NDArray[np.intp], lower: Floats, upper: Floats) -> Mask:
        """(n, k) bool, which category of a one-hot group the limits (n, d) leave open."""
        needed = lower[:, group] > 0
        possible = upper[:, group] >= 1
        others = needed.sum(axis=1, keepdims=True) - needed
        allowed: Mask = possible & (others == 0)
        return allowed

    def project(self, x: Floats, candidate: Floats, frozen: Mask | None = None) -> Floats:
        """Nearest allowed rows: limits, whole numbers, and the largest open category of each one-hot group.

        Args:
            x: (n, d) queries.
            candidate: (n, d) proposed counterfactuals.
            frozen: (n, d) bool, as in `bounds`.

        Returns:
            (n, d) float64; a tie between categories keeps the query's own.
        """
        lower, upper = self.bounds(x, frozen)
        rounded = np.where(self.whole, np.rint(candidate), candidate) + 0.0
        allowed = np.clip(rounded, lower, upper)
        for group in self.groups:
            size = np.where(self.admissible(group, lower, upper), candidate[:, group], -np.inf)
            own = x[:, group].argmax(axis=1)
            keeps = np.take_along_axis(size, own[:, None], axis=1)[:, 0] >= size.max(axis=1)
            chosen = np.where(keeps, own, size.argmax(axis=1))
            allowed[:, group] = np.arange(len(group)) == chosen[:, None]
        return allowed

    def satisfied(self, x: Floats, candidate: Floats, frozen: Mask | None = None) -> Mask:
        """(n,) bool, whether the candidates (n, d) keep every constraint; without tolerance."""
        lower, upper = self.bounds(x, frozen)
        inside = (candidate >= lower) & (candidate <= upper) & (~self.whole | (candidate == np.rint(candidate)))
        kept: Mask = inside.all(axis=1)
        for group in self.groups:
            columns = candidate[:, group]
            kept &= ((columns == 0) | (columns == 1)).all(axis=1) & (columns.sum(axis=1) == 1)
        return kept

    def _members(self) -> set[int]:
        return {int(column) for group in self.groups for column in group}

    def _names(self, group: NDArray[np.intp]) -> str:
        return "(" + ", ".join(self.label(int(column)) for column in group) + ")"


def check_constraints(constraints: Any) -> None:
    """Raise ConfigurationTypeError unless these are Constraints or None."""
    if constraints is not None and not isinstance(constraints, Constraints):
        raise ConfigurationTypeError(f"constraints: expected Constraints(...), got {constraints!r}")


def _refuse(rules: Constraints, x: Floats, outside: NDArray[np.bool_], column: int) -> None:
    low, high = float(rules.low[column]), float(rules.high[column])
    bad = outside[:, column]
    values = x[bad, column]
    limit = np.where(values > high, high, low)
    said, advice = f"{low:g} to {high:g}", "correct the rows or widen the limits"
    if (np.abs(values - limit) <= FLOAT32 * np.abs(limit)).all():
        said = f"{low!r} to {high!r}, at {float(values[0])!r}"
        advice = (
            "it is the limit but for rounding, as float32 rounds: pass float64 numbers, or"
            " np.clip(np.float64(x), constraints.low, constraints.high)"
        )
    raise InputError(f"x: {rules.label(column)} lies outside {said} ({_rows(bad)}); {advice}")


def _rows(bad: NDArray[np.bool_]) -> str:
    rows = np.flatnonzero(bad)
    return f"row{'s' if len(rows) > 1 else ''} {first_of(rows)}"
