"""Public constraints on recommended changes, from the meaning of the features (ages do not fall).

Limits at the minimum and maximum of the training data would publish two of its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.features import (
    Column,
    Features,
    Limit,
    as_tuple,
    check_features,
    hashable,
    label,
    limits,
    position,
    positions,
    width_of,
)
from safexplain.recourse.solution import Floats, rows_where

NEARLY = 1e-9
"""Tolerance for rounding: share of a step for limits on steps, and share of the numbers in a rule."""

Mask = NDArray[np.bool_]

_LISTS = ("immutable", "integer", "increasing", "decreasing")
_NUMBERS = {"lower": -np.inf, "upper": np.inf, "largest_change": np.inf, "step": 0.0}  # with the values for none


@dataclass(frozen=True)
class Rule:
    """Links two features: if `when` rises by d, `then` rises by at least per_unit d + at_least.

    It does not apply if `when` stays or falls, so that a row without changes always satisfies it.

        Rule("education", "age", per_unit=2)    # each level of education takes 2 years
        Rule("employment", "age")               # years of employment rise no faster than age ...
        Rule("age", "employment")               # ... and no slower, for a person who stays employed

    (with `increasing=("age",)`). A column of a one-hot group rises by 1 when its category is chosen:
    `Rule("job=doctor", "age", per_unit=6)`.

    Args:
        when: the feature that rises, by name or index.
        then: the feature that must rise with it; not a column of a one-hot group.
        per_unit: units of `then` for each unit of `when`, at least 0.
        at_least: units of `then` for any rise, at least 0.

    Raises:
        ConfigurationError: numbers that are negative or not finite, or both 0.
    """

    when: Column
    then: Column
    per_unit: float = 1.0
    at_least: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_unit", "at_least"):
            check_number(f"{name} of the rule on {self.when!r}", getattr(self, name), minimum=0)
            object.__setattr__(self, name, float(getattr(self, name)))
        if not self.per_unit and not self.at_least:
            raise ConfigurationError(f"the rule on {self.when!r} has no effect; per_unit or at_least must be positive")

    def needed(self, rise: Floats) -> Floats:
        """Least rises of `then` for these rises of `when`; 0 where `when` does not rise."""
        return np.where(rise > 0, self.per_unit * rise + self.at_least, 0.0)


@dataclass(frozen=True)
class Constraints:
    """Which features may change, and how.

    Args:
        features: number of columns d, or their names.
        lower: least value: one number for all, a mapping (or pandas Series) feature -> number, or d numbers. None: no
            limit. Queries are compared exactly.
        upper: greatest value, likewise.
        immutable: features that never change.
        integer: features of whole numbers.
        increasing: features that must not fall.
        decreasing: features that must not rise.
        one_hot: groups of columns of which exactly one is 1 and the others are 0. Other constraints apply to each
            column: `upper` 0 excludes a category, `decreasing` keeps it from being chosen (nobody becomes single
            again).
        most_changes: largest number of changed features; a one-hot group is one feature. None: no limit.
        largest_change: largest change of each feature, in its units, up or down; as `lower`. One number for all does
            not apply to one-hot groups.
        step: features change by whole multiples of it from the query; 0: by any amount. As `lower`; one number for all
            does not apply to one-hot groups. `integer` alone is a step of 1.
        rules: links between features, each a `Rule`.
        reachable: with a preprocessing, the labels of categories that can be changed to: {"home": ["owns"]}. Other
            categories never change.

    Attributes:
        low: (d,) least values, whole for integer features.
        high: (d,) greatest values, likewise.
        whole: (d,) bool, integer features outside one-hot groups.
        grid: (d,) size of a step, 1 for `integer` alone; 0: none, also in one-hot groups.
        largest: (d,) largest changes.
        groups: (k,) columns of each one-hot group.
        grouped: (d,) bool, columns in a one-hot group.
        feature: (d,) first column of the one-hot group of each column, or the column itself.
        linked: columns (when, then) of each rule.

    Raises:
        ConfigurationError: no row can satisfy them, nothing can change, or an unknown feature.
    """

    features: Features
    lower: Limit = None
    upper: Limit = None
    immutable: tuple[Column, ...] = ()
    integer: tuple[Column, ...] = ()
    increasing: tuple[Column, ...] = ()
    decreasing: tuple[Column, ...] = ()
    one_hot: tuple[tuple[Column, ...], ...] = ()
    most_changes: int | None = None
    largest_change: Limit = None
    step: Limit = None
    rules: tuple[Rule, ...] = ()
    reachable: Mapping[str, Sequence[Any]] | tuple[tuple[str, tuple[Any, ...]], ...] = ()
    low: Floats = field(init=False, repr=False, compare=False)
    high: Floats = field(init=False, repr=False, compare=False)
    whole: Mask = field(init=False, repr=False, compare=False)
    grid: Floats = field(init=False, repr=False, compare=False)
    largest: Floats = field(init=False, repr=False, compare=False)
    groups: tuple[NDArray[np.intp], ...] = field(init=False, repr=False, compare=False)
    grouped: Mask = field(init=False, repr=False, compare=False)
    feature: NDArray[np.intp] = field(init=False, repr=False, compare=False)
    linked: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    _fixed: Mask = field(init=False, repr=False, compare=False)
    _rising: Mask = field(init=False, repr=False, compare=False)
    _falling: Mask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        features = check_features(self.features)
        d = width_of(features)
        one_hot = tuple(map(as_tuple, as_tuple(self.one_hot)))
        groups = tuple(np.array(positions(features, group, "one_hot"), dtype=np.intp) for group in one_hot)
        members, feature = _members(features, groups), np.arange(d)
        for group in groups:
            feature[group] = group.min()
        marked = {name: np.isin(np.arange(d), positions(features, getattr(self, name), name)) for name in _LISTS}
        found = {name: limits(features, getattr(self, name), name, none) for name, none in _NUMBERS.items()}
        numbers = {name: hashable(getattr(self, name), array) for name, array in found.items()}
        low, high, largest, step = found.values()
        low[members], high[members] = np.maximum(low[members], 0.0), np.minimum(high[members], 1.0)
        rounded, whole = marked["integer"] | members, marked["integer"] & ~members
        for name, size in (("largest_change", largest), ("step", step)):
            if isinstance(numbers[name], float):
                size[members] = _NUMBERS[name]  # one number for all does not apply to categories
        most = None if self.most_changes is None else whole_number("most_changes", self.most_changes, 1)
        rules = as_tuple(self.rules)
        attributes: dict[str, Any] = {
            **{name: as_tuple(getattr(self, name)) for name in _LISTS},
            **numbers,
            "features": features,
            "one_hot": one_hot,
            "most_changes": most,
            "rules": rules,
            "reachable": _labels_by_feature(self.reachable),
            "low": np.where(rounded, np.ceil(low), low) + 0.0,
            "high": np.where(rounded, np.floor(high), high) + 0.0,
            "whole": whole,
            "grid": np.where(whole & (step == 0), 1.0, step),
            "largest": largest,
            "groups": groups,
            "grouped": members,
            "feature": feature,
            "linked": tuple(_linked(features, rule, members) for rule in rules),
            "_fixed": marked["immutable"],
            "_rising": marked["increasing"],
            "_falling": marked["decreasing"],
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        self._check(members, step)

    def _check(self, members: Mask, step: Floats) -> None:
        """Refuse constraints that no row can satisfy, or under which nothing can change."""

        def refuse(bad: Mask, message: str, *numbers: Floats) -> None:
            if bad.any():
                column = int(bad.argmax())
                raise ConfigurationError(message.format(self.label(column), *(each[column] for each in numbers)))

        grid, largest, low, high = self.grid, self.largest, self.low, self.high
        for name, size in (("largest_change", largest), ("step", step)):
            bad = (size < 0) | (np.isinf(size) & (name == "step"))
            refuse(bad, name + " of {}: expected a number from 0 up, got {}", size)
            message = ": expected a number, but {} is a category; list its group under immutable to keep it"
            refuse(members & (size != _NUMBERS[name]), name + message)
        message = "step of {}: expected a whole number, as it is listed under integer, got {:g}"
        refuse(self.whole & (grid != np.rint(grid)), message, grid)
        refuse(
            (grid > 0) & (largest > 0) & (largest < grid * (1 - NEARLY)),
            "{}: its step of {:g} exceeds its largest change of {:g}; raise largest_change, or list it under immutable",
            *(grid, largest),
        )
        refuse(
            (low > high) | np.isposinf(low) | np.isneginf(high),
            "{}: no allowed value (a whole number for categories and integer features) lies between its lower limit"
            " {:g} and its upper limit {:g}; correct lower or upper",
            *(low, high),
        )
        refuse(self._rising & self._falling, "{}: both increasing and decreasing; list it under immutable")
        for group in self.groups:
            if not self.admissible(group, self.low[None], self.high[None]).any():
                raise ConfigurationError(f"one_hot group {self._names(group)}: the limits exclude all categories")
        if (self._fixed | (self.low == self.high) | (self.largest == 0)).all():
            raise ConfigurationError(
                "immutable: expected a feature that may change, but nothing may; free one, or list reachable labels"
                f" (of {', '.join(map(self.label, range(min(self.width, 5))))}{', ...' if self.width > 5 else ''})"
            )

    @property
    def width(self) -> int:
        """Number of columns d."""
        return width_of(self.features)

    def label(self, column: int) -> str:
        """Name of a column in messages."""
        return label(self.features, column)

    def check(self, x: Floats, frozen: Mask | None = None) -> None:
        """Raise InputError for queries (n, d) that break the constraints, without tolerance; `frozen` values (n, d) may
        lie outside the limits."""
        if x.ndim != 2 or x.shape[1] != self.width:
            raise InputError(f"x: expected shape (n, {self.width}), as for the constraints, got {x.shape}")
        for group in self.groups:
            columns = x[:, group]
            bad = (columns.sum(axis=1) != 1) | ((columns != 0) & (columns != 1)).any(axis=1)
            if bad.any():
                raise InputError(
                    f"x: one-hot group {self._names(group)} needs exactly one 1 and otherwise 0 ({rows_where(bad)});"
                    " encoders that ignore unknown categories write only zeros"
                )
        free = np.ones(x.shape, dtype=bool) if frozen is None else ~frozen
        outside = free & ((x < self.low) | (x > self.high))
        if outside.any():
            column = int(outside.any(axis=0).argmax())
            bad = outside[:, column]
            value = x[bad, column][0]
            raise InputError(
                f"x: expected {self.label(column)} from {self.low[column]:.12g} to {self.high[column]:.12g}, got"
                f" {value:.12g} ({rows_where(bad)}); correct the rows or widen the limits. If float32 missed a limit by"
                " rounding, pass np.clip(np.float64(x), constraints.low, constraints.high)"
            )
        fraction = free & self.whole & (x != np.rint(x))
        if fraction.any():
            column = int(fraction.any(axis=0).argmax())
            raise InputError(
                f"x: expected whole numbers for the integer feature {self.label(column)}"
                f" ({rows_where(fraction[:, column])}); round it, or if it was standardised, use its original units"
            )

    def bounds(self, x: Floats, frozen: Mask | None = None) -> tuple[Floats, Floats]:
        """Lower and upper limits (n, d) of counterfactuals of queries x (n, d), at multiples of steps; lower > upper
        where nothing is allowed. `frozen` (n, d): further values that must not change, with their one-hot group."""
        fixed = np.broadcast_to(self._fixed | (self.largest == 0), x.shape)
        if frozen is not None:
            fixed = fixed | frozen
            for group in self.groups:
                fixed[:, group] |= frozen[:, group].any(axis=1, keepdims=True)
        lower = np.where(fixed | self._rising, x, np.maximum(self.low, x - self.largest))
        upper = np.where(fixed | self._falling, x, np.minimum(self.high, x + self.largest))
        for column in np.flatnonzero(self.grid):
            step, start = self.grid[column], x[:, column]
            down, up = (start - lower[:, column]) / step, (upper[:, column] - start) / step
            down = np.where(down < 2.0**53, np.floor(down + NEARLY), down)
            up = np.where(up < 2.0**53, np.floor(up + NEARLY), up)
            least = np.maximum(lower[:, column], start - down * step)
            most = np.minimum(upper[:, column], start + up * step)
            empty = down + up < 0  # no multiple of the step lies between the limits
            lower[:, column], upper[:, column] = np.where(empty, np.inf, least), np.where(empty, -np.inf, most)
        return lower, upper

    def admissible(self, group: NDArray[np.intp], lower: Floats, upper: Floats) -> Mask:
        """(n, k) bool, categories of a one-hot group allowed by the limits (n, d)."""
        needed = lower[:, group] > 0
        others = needed.sum(axis=1, keepdims=True) - needed
        return np.asarray((upper[:, group] >= 1) & (others == 0))

    def project(self, x: Floats, candidate: Floats, frozen: Mask | None = None) -> Floats:
        """The candidates (n, d) for queries x (n, d) moved within limits, steps and rules, with the largest allowed
        category of each one-hot group (in a tie the query's own). `most_changes` is not enforced, and some rows may
        stay infeasible: check them with `satisfied`."""
        lower, upper = self.bounds(x, frozen)
        allowed = np.clip(self._on_grid(x, candidate), lower, upper)
        for group in self.groups:
            size = np.where(self.admissible(group, lower, upper), candidate[:, group], -np.inf)
            own = x[:, group].argmax(axis=1)
            keeps = np.take_along_axis(size, own[:, None], axis=1)[:, 0] >= size.max(axis=1)
            chosen = np.where(keeps, own, size.argmax(axis=1))
            allowed[:, group] = np.arange(len(group)) == chosen[:, None]
        return self._repair_rules(x, allowed, lower, upper) if self.rules else allowed

    def satisfied(self, x: Floats, candidate: Floats, frozen: Mask | None = None) -> Mask:
        """(n,) bool, whether the candidates (n, d) for queries x (n, d) satisfy all constraints."""
        lower, upper = self.bounds(x, frozen)
        inside = (candidate >= lower) & (candidate <= upper)
        inside &= ~self.whole | (candidate == np.rint(candidate)) | (candidate == x)
        if self.grid.any():
            with np.errstate(invalid="ignore"):
                inside &= (self.grid == 0) | (candidate == np.clip(self._on_grid(x, candidate), lower, upper))
        kept: Mask = inside.all(axis=1) & self.keeps_rules(x, candidate)
        for group in self.groups:
            columns = candidate[:, group]
            kept &= ((columns == 0) | (columns == 1)).all(axis=1) & (columns.sum(axis=1) == 1)
        if self.most_changes is not None:
            kept &= self.changes(x, candidate) <= self.most_changes
        return kept

    def changes(self, x: Floats, candidate: Floats) -> NDArray[np.intp]:
        """(n,) number of features that candidates (n, d) change."""
        moved = candidate != x
        for group in self.groups:
            moved[:, group[1:]], moved[:, group[0]] = False, moved[:, group].any(axis=1)
        return np.asarray(moved.sum(axis=1))

    def keeps_rules(self, x: Floats, candidate: Floats) -> Mask:
        """(n,) bool, whether candidates (n, d) satisfy all rules, up to rounding."""
        kept = np.ones(len(x), dtype=bool)
        for rule, (when, then) in zip(self.rules, self.linked, strict=True):
            needed = rule.needed(candidate[:, when] - x[:, when])
            size = needed + np.abs(x[:, then]) + rule.per_unit * np.abs(x[:, when])
            kept &= (needed <= 0) | (candidate[:, then] - x[:, then] >= needed - NEARLY * size)
        return kept

    def _on_grid(self, x: Floats, candidate: Floats) -> Floats:
        """(n, d) the candidates at the nearest multiples of steps from x."""
        moved = np.where(self.whole, np.rint(candidate), candidate) + 0.0
        for column in np.flatnonzero(self.grid != self.whole):
            step, start = self.grid[column], x[:, column]
            moved[:, column] = start + np.rint((candidate[:, column] - start) / step) * step
        return moved

    def _repair_rules(self, x: Floats, moved: Floats, lower: Floats, upper: Floats) -> Floats:
        """Rows (n, d) changed to satisfy the rules as far as a few rounds can: `then` rises as required, or `when` goes
        back as far as its limits demand."""
        moved = moved.copy()
        for _ in range(2 * len(self.rules) + 1):
            if self.keeps_rules(x, moved).all():
                break
            for rule, (when, then) in zip(self.rules, self.linked, strict=True):
                grid = self.grid[then]
                needed = rule.needed(moved[:, when] - x[:, when])
                risen = np.ceil(needed / grid - NEARLY) * grid if grid else needed
                wanted = np.where(needed > 0, np.maximum(moved[:, then], x[:, then] + risen), moved[:, then])
                moved[:, then] = np.minimum(wanted, upper[:, then])
                room = moved[:, then] - x[:, then]
                most = (room - rule.at_least) / rule.per_unit if rule.per_unit else np.full(len(x), np.inf)
                most = np.where(room * (1 + NEARLY) >= rule.at_least, np.maximum(most, 0.0), 0.0)
                back = moved[:, when] - x[:, when] > most * (1 + NEARLY)
                if self.grouped[when]:
                    group = self._group_of(when)
                    moved[np.ix_(back, group)] = x[np.ix_(back, group)]
                    continue
                if self.grid[when]:
                    most = np.floor(most / self.grid[when] + NEARLY) * self.grid[when]
                moved[back, when] = np.maximum(x[:, when] + most, lower[:, when])[back]
        broken = ~self.keeps_rules(x, moved)  # rules that drive each other: their features do not rise
        for when, _ in self.linked if broken.any() else ():
            columns = self._group_of(when)
            held = np.minimum(np.maximum(x[:, columns], lower[:, columns]), upper[:, columns])
            rows = broken & (moved[:, when] > x[:, when])
            moved[np.ix_(rows, columns)] = held[rows]
        return moved

    def _group_of(self, column: int) -> NDArray[np.intp]:
        return np.flatnonzero(self.feature == self.feature[column])

    def _names(self, group: NDArray[np.intp]) -> str:
        return "(" + ", ".join(self.label(int(column)) for column in group) + ")"


def _labels_by_feature(given: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        found = tuple((str(name), tuple(labels)) for name, labels in pairs)
    except (TypeError, ValueError):
        found, pairs = (), [None]
    if len(found) != len(pairs) or any(isinstance(labels, str) for _, labels in pairs):
        raise ConfigurationError(f'reachable: expected labels by feature, as {{"home": ["owns"]}}, got {given!r:.80}')
    return found


def check_constraints(constraints: Any) -> None:
    """Raise ConfigurationTypeError unless these are Constraints or None."""
    if constraints is not None and not isinstance(constraints, Constraints):
        raise ConfigurationTypeError(f"constraints: expected Constraints(...), got {constraints!r}")


def _members(features: Features, groups: tuple[NDArray[np.intp], ...]) -> Mask:
    count = np.zeros(width_of(features), dtype=int)
    for group in groups:
        if len(group) < 2:
            raise ConfigurationError(
                "one_hot: expected groups of at least two columns; list a 0/1 column under integer"
            )
        np.add.at(count, group, 1)
    if (count > 1).any():
        raise ConfigurationError(f"one_hot: {label(features, int(count.argmax()))} is listed more than once")
    return np.asarray(count == 1)


def _linked(features: Features, rule: Any, members: Mask) -> tuple[int, int]:
    if not isinstance(rule, Rule):
        raise ConfigurationTypeError(f"rules: expected Rule(when, then, ...), got {rule!r}")
    when, then = position(features, rule.when, "rules, when"), position(features, rule.then, "rules, then")
    if when == then:
        raise ConfigurationError(f"rules: expected two different features, got {label(features, when)} on both sides")
    if members[then]:
        raise ConfigurationError(
            f"rules, then: expected a number, but {label(features, then)} is a category; name it under when"
        )
    return when, then
