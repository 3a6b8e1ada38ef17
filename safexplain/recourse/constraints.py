"""What a recommended change may touch, and how far.

Constraints are public: they come from what the features mean (an age does not fall, a count is whole), never from the
training data. A box taken from the training data's minimum and maximum would publish two of its records.

Queries are compared exactly, as every answer satisfies its constraints exactly, and an answer to a favourable query is
the query. Float32 turns an upper limit of .1 into .10000000149: such a query is refused too, and told what happened.
Moving it to the limit would answer another query than the one that came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._validate import check_number, real_numbers, whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.feature_names import (
    Feature,
    Features,
    Limit,
    check_features,
    hashable,
    is_mapping,
    label,
    limits,
    listed,
    members_of,
    position,
    positions,
    width_of,
)
from safexplain.recourse.found import Floats, first_of

FLOAT32 = 2.0**-24
"""Relative error of rounding to float32."""

NEARLY = 1e-9
"""Share of a step by which a limit may miss it, and of the numbers in a rule by which that may be missed: rounding."""

Mask = NDArray[np.bool_]
Box = tuple[ArrayLike, ArrayLike]
"""Least and greatest values, (n, d) each or what broadcasts to it; a box of its own for each query."""

_LISTS = ("immutable", "integer", "increasing", "decreasing")


@dataclass(frozen=True)
class Rule:
    """What else changes when a feature rises: if `when` rises by d, `then` rises by at least per_unit d + at_least.

    A rule says nothing about rows in which `when` stays or falls, so that no change is always allowed.

        Rule("education", "age", per_unit=2)    # each level of education takes 2 years
        Rule("employment", "age")               # years of employment rise no faster than age ...
        Rule("age", "employment")               # ... and no slower, for who stays employed

    (with `increasing=("age",)`, which keeps ages from falling). A column of a one-hot group rises by 1 when its
    category is taken up: `Rule("job=doctor", "age", per_unit=6)`.

    Args:
        when: the feature that rises, by name or index.
        then: the one that rises with it; no column of a one-hot group.
        per_unit: units of `then` for each unit of `when`, at least 0.
        at_least: units of `then` for any rise, however small, at least 0.

    Raises:
        ConfigurationError: numbers that are negative or not finite, or both 0.
    """

    when: Feature
    then: Feature
    per_unit: float = 1.0
    at_least: float = 0.0

    def __post_init__(self) -> None:
        for name in ("per_unit", "at_least"):
            check_number(f"{name} of the rule on {self.when!r}", getattr(self, name), minimum=0)
            object.__setattr__(self, name, float(getattr(self, name)))
        if not self.per_unit and not self.at_least:
            raise ConfigurationError(
                f"the rule on {self.when!r} asks for nothing; per_unit or at_least must be positive"
            )

    def needed(self, rise: Floats) -> Floats:
        """By how much `then` rises at least when `when` rises by these; 0 where it does not."""
        return np.where(rise > 0, self.per_unit * rise + self.at_least, 0.0)


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
            columns one by one: `upper` 0 rules a category out, `immutable` keeps a column at its value, `decreasing`
            keeps a category from being taken up (nobody becomes single again).
        most_changes: greatest number of features that change; a one-hot group is one feature. None: no limit.
        largest_change: by how much each feature may change at most, in its units, up or down; given as `lower` is. One
            number for all does not hold for one-hot groups, whose categories change or do not.
        step: features change by whole multiples of it, from where the query is; 0: by any amount. Given as `lower` is,
            one number for all not for one-hot groups. `integer` alone is a step of 1.
        rules: what else has to change when a feature rises, each a `Rule`.

    Attributes:
        low: (d,) least values; whole where whole numbers are needed.
        high: (d,) greatest values, likewise.
        whole: (d,) bool, integer features that are not in a one-hot group.
        grid: (d,) size of a step, 1 where only `integer` asks for one; 0: none, and in one-hot groups.
        largest: (d,) largest changes; infinite where there is no limit.
        groups: one (k,) array of columns for each one-hot group.
        feature: (d,) number of the feature of each column; the columns of a one-hot group have the same.
        linked: columns (when, then) of each rule.

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
    most_changes: int | None = None
    largest_change: Limit = None
    step: Limit = None
    rules: tuple[Rule, ...] = ()
    low: Floats = field(init=False, repr=False, compare=False)
    high: Floats = field(init=False, repr=False, compare=False)
    whole: Mask = field(init=False, repr=False, compare=False)
    grid: Floats = field(init=False, repr=False, compare=False)
    largest: Floats = field(init=False, repr=False, compare=False)
    groups: tuple[NDArray[np.intp], ...] = field(init=False, repr=False, compare=False)
    feature: NDArray[np.intp] = field(init=False, repr=False, compare=False)
    linked: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    _fixed: Mask = field(init=False, repr=False, compare=False)
    _rising: Mask = field(init=False, repr=False, compare=False)
    _falling: Mask = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        features = check_features(self.features)
        columns = {name: positions(features, getattr(self, name), name) for name in _LISTS}
        if isinstance(self.one_hot, Mapping):
            positions(features, self.one_hot, "one_hot")  # refuses it
        groups = tuple(np.array(positions(features, g, "one_hot"), dtype=np.intp) for g in listed(self.one_hot))
        masks = {name: np.isin(np.arange(width_of(features)), columns[name]) for name in _LISTS}
        members = members_of(features, groups)
        low = limits(features, self.lower, "lower", -np.inf)
        high = limits(features, self.upper, "upper", np.inf)
        low[members], high[members] = np.maximum(low[members], 0.0), np.minimum(high[members], 1.0)
        round_to = masks["integer"] | members
        low, high = np.where(round_to, np.ceil(low), low) + 0.0, np.where(round_to, np.floor(high), high) + 0.0
        canonical: dict[str, Any] = {name: listed(getattr(self, name)) for name in _LISTS}
        for name, missing in (("lower", -np.inf), ("upper", np.inf), ("largest_change", np.inf), ("step", 0.0)):
            canonical[name] = hashable(features, getattr(self, name), name, missing)
        canonical |= {"features": features, "one_hot": tuple(map(listed, listed(self.one_hot)))}
        canonical |= self._of_changes(features, members, masks["integer"])
        feature = np.arange(width_of(features))
        for group in groups:
            feature[group] = group.min()
        canonical["feature"] = feature
        canonical |= {"low": low, "high": high, "groups": groups, "whole": masks["integer"] & ~members}
        canonical |= {"_fixed": masks["immutable"], "_rising": masks["increasing"], "_falling": masks["decreasing"]}
        for name, value in canonical.items():
            object.__setattr__(self, name, value)
        self._check_possible()

    def _of_changes(self, features: Features, members: Mask, integer: Mask) -> dict[str, Any]:
        """The fields and attributes that limit changes."""
        sizes = {}
        for name, missing in (("largest_change", np.inf), ("step", 0.0)):
            size = limits(features, getattr(self, name), name, missing)
            one_for_all = getattr(self, name) is not None and not np.ndim(getattr(self, name))
            if one_for_all and not is_mapping(getattr(self, name)):
                size[members] = missing
            bad = (size < 0) | (np.isinf(size) & (name == "step"))
            if bad.any():
                column = int(bad.argmax())
                raise ConfigurationError(
                    f"{name} of {label(features, column)}: expected a number from 0 up, got {size[column]}"
                )
            named = members & (size != missing)
            if named.any():
                raise ConfigurationError(
                    f"{name}: {label(features, int(named.argmax()))} is a category, which changes or does not; list its"
                    " group under immutable to keep it"
                )
            sizes[name] = size
        grid = np.where(integer & ~members & (sizes["step"] == 0), 1.0, sizes["step"])
        broken = integer & (grid != np.rint(grid))
        if broken.any():
            column = int(broken.argmax())
            raise ConfigurationError(
                f"step of {label(features, column)}: {grid[column]:g}, but it takes whole numbers only; give a whole"
                " step, or leave it out of integer"
            )
        coarse = (grid > 0) & (sizes["largest_change"] > 0) & (sizes["largest_change"] < grid * (1 - NEARLY))
        if coarse.any():
            column = int(coarse.argmax())
            raise ConfigurationError(
                f"{label(features, column)}: no step of {grid[column]:g} fits into its largest change of"
                f" {sizes['largest_change'][column]:g}; raise largest_change, or list it under immutable"
            )
        most = self.most_changes if self.most_changes is None else whole_number("most_changes", self.most_changes, 1)
        rules = (self.rules,) if isinstance(self.rules, Rule) else listed(self.rules)
        linked = tuple(_linked(features, rule, members) for rule in rules)
        of_changes = {"grid": grid, "largest": sizes["largest_change"], "most_changes": most}
        return of_changes | {"rules": rules, "linked": linked}

    def _check_possible(self) -> None:
        empty = (self.low > self.high) | np.isposinf(self.low) | np.isneginf(self.high)
        if empty.any():
            column = int(empty.argmax())
            kind = " that a whole number or a category meets" if self.whole[column] or column in self._members() else ""
            raise ConfigurationError(
                f"{self.label(column)}: no value{kind} lies between its lower limit {self.low[column]:g} and its upper"
                f" limit {self.high[column]:g}; correct lower or upper"
            )
        both = self._rising & self._falling
        if both.any():
            name = self.label(int(both.argmax()))
            raise ConfigurationError(f"{name}: increasing and decreasing at once; list it under immutable")
        for group in self.groups:
            if not self.admissible(group, self.low[None], self.high[None]).any():
                raise ConfigurationError(f"one_hot group {self._names(group)}: the limits leave no category")
        if (self._fixed | (self.low == self.high) | (self.largest == 0)).all():
            raise ConfigurationError(
                "immutable: nothing may change, so there is no recourse; leave a feature free"
                f" (of {', '.join(map(self.label, range(min(self.width, 5))))}{', ...' if self.width > 5 else ''})"
            )

    @property
    def width(self) -> int:
        """Number of columns d."""
        return width_of(self.features)

    def label(self, column: int) -> str:
        """How messages call a column."""
        return label(self.features, column)

    def check(self, x: Floats, frozen: Mask | None = None) -> None:
        """Refuse queries that break the constraints, without tolerance, before anything is changed.

        Args:
            x: (n, d) queries.
            frozen: (n, d) bool, what these queries must not change; there it may lie outside its box, which is about
                what they may change to.

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
        outside &= True if frozen is None else ~frozen
        if outside.any():
            _refuse(self, x, outside, int(outside.any(axis=0).argmax()))
        fraction = (x != np.rint(x)) & self.whole & (True if frozen is None else ~frozen)
        if fraction.any():
            column = int(fraction.any(axis=0).argmax())
            raise InputError(
                f"x: {self.label(column)} is an integer feature and not whole ({_rows(fraction[:, column])}); round it,"
                " or if it was standardised, give the constraints and the model its original units"
            )

    def bounds(self, x: Floats, frozen: Mask | None = None, within: Box | None = None) -> tuple[Floats, Floats]:
        """Limits of each column of each query's counterfactual, on its steps where it has some.

        Args:
            x: (n, d) queries.
            frozen: (n, d) bool, what these queries must not change besides; a frozen column freezes its whole one-hot
                group.
            within: a further box of each query, which need not hold the query.

        Returns:
            Lower and upper limits, (n, d) each; a lower one above its upper one where nothing is allowed.
        """
        fixed = np.broadcast_to(self._fixed | (self.largest == 0), x.shape)
        if frozen is not None:
            fixed = fixed | frozen
            for group in self.groups:
                fixed[:, group] |= frozen[:, group].any(axis=1, keepdims=True)
        lower = np.where(fixed | self._rising, x, np.maximum(self.low, x - self.largest))
        upper = np.where(fixed | self._falling, x, np.minimum(self.high, x + self.largest))
        if within is not None:
            lower, upper = np.maximum(lower, within[0]), np.minimum(upper, within[1])
            for group in self.groups:
                lower[:, group], upper[:, group] = np.ceil(lower[:, group]), np.floor(upper[:, group])
        for column in np.flatnonzero(self.grid):
            step, own = self.grid[column], x[:, column]
            down, up = (own - lower[:, column]) / step, (upper[:, column] - own) / step
            down = np.where(down < 2.0**53, np.floor(down + NEARLY), down)
            up = np.where(up < 2.0**53, np.floor(up + NEARLY), up)
            least, most = np.maximum(lower[:, column], own - down * step), np.minimum(upper[:, column], own + up * step)
            empty = down + up < 0  # no step lies between the limits
            lower[:, column], upper[:, column] = np.where(empty, np.inf, least), np.where(empty, -np.inf, most)
        return lower, upper

    def admissible(self, group: NDArray[np.intp], lower: Floats, upper: Floats) -> Mask:
        """(n, k) bool, which category of a one-hot group the limits (n, d) leave open."""
        needed = lower[:, group] > 0
        possible = upper[:, group] >= 1
        others = needed.sum(axis=1, keepdims=True) - needed
        allowed: Mask = possible & (others == 0)
        return allowed

    def project(self, x: Floats, candidate: Floats, frozen: Mask | None = None, within: Box | None = None) -> Floats:
        """Nearest allowed rows: limits, steps, and the largest open category of each one-hot group; then the rules.

        Where a rule is broken, `then` rises as the rule asks if its limits allow it; otherwise `when` goes back to
        where they do. `most_changes` is left to the caller, and so are rows that `satisfied` tells are not allowed.

        Args:
            x: (n, d) queries.
            candidate: (n, d) proposed counterfactuals.
            frozen: (n, d) bool, as in `bounds`.
            within: as in `bounds`.

        Returns:
            (n, d) float64; a tie between categories keeps the query's own.
        """
        lower, upper = self.bounds(x, frozen, within)
        allowed = np.clip(self._on_grid(x, candidate), lower, upper)
        for group in self.groups:
            size = np.where(self.admissible(group, lower, upper), candidate[:, group], -np.inf)
            own = x[:, group].argmax(axis=1)
            keeps = np.take_along_axis(size, own[:, None], axis=1)[:, 0] >= size.max(axis=1)
            chosen = np.where(keeps, own, size.argmax(axis=1))
            allowed[:, group] = np.arange(len(group)) == chosen[:, None]
        return self._ruled(x, allowed, lower, upper) if self.rules else allowed

    def satisfied(self, x: Floats, candidate: Floats, frozen: Mask | None = None, within: Box | None = None) -> Mask:
        """(n,) bool, whether the candidates (n, d) keep every constraint; without tolerance, but for rounding in rules.

        Args:
            x: (n, d) queries.
            candidate: (n, d) counterfactuals.
            frozen: (n, d) bool, as in `bounds`.
            within: as in `bounds`.
        """
        lower, upper = self.bounds(x, frozen, within)
        inside = (candidate >= lower) & (candidate <= upper)
        inside &= ~self.whole | (candidate == np.rint(candidate)) | (candidate == x)
        if self.grid.any():
            with np.errstate(invalid="ignore"):
                inside &= (self.grid == 0) | (candidate == np.clip(self._on_grid(x, candidate), lower, upper))
        kept: Mask = inside.all(axis=1) & self.obeyed(x, candidate)
        for group in self.groups:
            columns = candidate[:, group]
            kept &= ((columns == 0) | (columns == 1)).all(axis=1) & (columns.sum(axis=1) == 1)
        if self.most_changes is not None:
            kept &= self.changes(x, candidate) <= self.most_changes
        return kept

    def changes(self, x: Floats, candidate: Floats) -> NDArray[np.intp]:
        """(n,) number of features in which the candidates (n, d) differ from the queries (n, d)."""
        moved = candidate != x
        for group in self.groups:
            moved[:, group[1:]], moved[:, group[0]] = False, moved[:, group].any(axis=1)
        return np.asarray(moved.sum(axis=1))

    def obeyed(self, x: Floats, candidate: Floats) -> Mask:
        """(n,) bool, whether the changes from x (n, d) to the candidates (n, d) keep every rule, but for rounding."""
        kept = np.ones(len(x), dtype=bool)
        for rule, (when, then) in zip(self.rules, self.linked, strict=True):
            needed = rule.needed(candidate[:, when] - x[:, when])
            size = needed + np.abs(x[:, then]) + rule.per_unit * np.abs(x[:, when])
            kept &= (needed <= 0) | (candidate[:, then] - x[:, then] >= needed - NEARLY * size)
        return kept

    def _on_grid(self, x: Floats, candidate: Floats) -> Floats:
        """(n, d) the nearest steps from x to the candidates; columns without steps as they are."""
        moved = np.where(self.whole, np.rint(candidate), candidate) + 0.0
        for column in np.flatnonzero(self.grid != self.whole):
            step, own = self.grid[column], x[:, column]
            moved[:, column] = own + np.rint((candidate[:, column] - own) / step) * step
        return moved

    def _ruled(self, x: Floats, moved: Floats, lower: Floats, upper: Floats) -> Floats:
        """Allowed rows (n, d), changed so that they keep the rules; as far as a few rounds over the rules can."""
        members, moved = self._members(), moved.copy()
        for _ in range(2 * len(self.rules) + 1):
            if self.obeyed(x, moved).all():
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
                if when in members:
                    group = next(group for group in self.groups if when in group)
                    moved[np.ix_(back, group)] = x[np.ix_(back, group)]
                    continue
                if self.grid[when]:
                    most = np.floor(most / self.grid[when] + NEARLY) * self.grid[when]
                moved[back, when] = np.maximum(x[:, when] + most, lower[:, when])[back]
        broken = ~self.obeyed(x, moved)  # rules that drive each other: nothing rises that they are about
        for when, _ in self.linked if broken.any() else ():
            columns = next((group for group in self.groups if when in group), np.array([when]))
            held = np.minimum(np.maximum(x[:, columns], lower[:, columns]), upper[:, columns])
            rows = broken & (moved[:, when] > x[:, when])
            moved[np.ix_(rows, columns)] = held[rows]
        return moved

    def _members(self) -> set[int]:
        return {int(column) for group in self.groups for column in group}

    def _names(self, group: NDArray[np.intp]) -> str:
        return "(" + ", ".join(self.label(int(column)) for column in group) + ")"


def check_within(within: Any, shape: tuple[int, ...]) -> tuple[Floats, Floats] | None:
    """A box of each query's own as two (n, d) arrays; None is none.

    Raises:
        InputError: not a pair of numbers that broadcast to the shape (n, d), or NaN.
    """
    if within is None:
        return None
    if not isinstance(within, (tuple, list)) or len(within) != 2:
        raise InputError(
            f"within: expected a pair (lower, upper) of arrays of shape {shape}, got {type(within).__name__}"
        )
    sides = []
    for name, given in zip(("lower", "upper"), within, strict=True):
        side = real_numbers(given, f"within, {name}")
        if np.isnan(side).any():
            raise InputError(f"within, {name}: NaN; leave a side open by -inf or inf")
        try:
            sides.append(np.broadcast_to(side, shape))
        except ValueError:
            raise InputError(f"within, {name}: expected shape {shape}, as the queries, got {side.shape}") from None
    return sides[0], sides[1]


def check_constraints(constraints: Any) -> None:
    """Raise ConfigurationTypeError unless these are Constraints or None."""
    if constraints is not None and not isinstance(constraints, Constraints):
        raise ConfigurationTypeError(f"constraints: expected Constraints(...), got {constraints!r}")


def _linked(features: Features, rule: Any, members: Mask) -> tuple[int, int]:
    """Columns (when, then) of a rule."""
    if not isinstance(rule, Rule):
        raise ConfigurationTypeError(f"rules: expected Rule(when, then, ...), got {rule!r}")
    when, then = position(features, rule.when, "rules, when"), position(features, rule.then, "rules, then")
    if when == then:
        raise ConfigurationError(f"rules: {label(features, when)} stands on both sides; a rule links two features")
    if members[then]:
        raise ConfigurationError(
            f"rules, then: {label(features, then)} is a category, which does not rise by an amount; put it under when"
        )
    return when, then


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
