"""Costs of changes: norms over columns in public units.

Scales must be public. A scale computed from training data, such as the median absolute deviation of Wachter,
Mittelstadt and Russell 2017 (arXiv 1711.00399, section on distance), would publish statistics of the data with every
distance and counterfactual: take it from public data, or from the meaning of the features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.features import Feature, Features, check_known, is_mapping, limits, number_of
from safexplain.recourse.solution import Floats

Scale = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64]


def _checked(given: Any, what: str, zero: str) -> Any:
    """Positive finite numbers: one, a tuple, or pairs (feature, number); hashable."""
    if is_mapping(given):
        names = tuple(given.keys())
        return tuple(zip(names, _checked(list(given.values()), what, zero), strict=True))
    values = real_numbers(given, what, ConfigurationError)
    if values.ndim > 1 or not values.size or (values.ndim == 0 and what == "scale"):
        raise ConfigurationError(f"{what}: expected one number for each column, got shape {values.shape}")
    if not (np.isfinite(values) & (values >= 0)).all():
        worst = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise ConfigurationError(f"{what}: expected positive finite numbers, got {worst}")
    if not values.all():
        raise ConfigurationError(f"{what}: column {int((values == 0).argmax())} has {what} 0; {zero}")
    with np.errstate(over="ignore"):
        reciprocal = 1.0 / values
    if what == "scale" and not np.isfinite(reciprocal).all():
        raise ConfigurationError("scale: so small that 1/scale is infinite; use larger units")
    return tuple(values.tolist()) if values.ndim else float(values)


def _by_name(given: Any) -> bool:
    return isinstance(given, tuple) and isinstance(given[0], tuple)


@dataclass(frozen=True)
class _Scaled:
    """A cost of columns in public units, upwards and downwards."""

    power: ClassVar[int]
    """1: costs of columns add up to the distance; 2: to its square."""
    zero: ClassVar[str] = "a change of that column would cost infinitely much"
    """Message about a scale of 0."""

    scale: Scale | None = None
    rise: Scale = 1.0
    fall: Scale = 1.0

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", _checked(self.scale, "scale", self.zero))
        for name in ("rise", "fall"):
            free = "free changes have no cheapest answer; give a small positive number"
            object.__setattr__(self, name, _checked(getattr(self, name), name, free))

    def named(self, features: Features) -> Self:
        """This cost for columns in the order of these features, with numbers given by name in that order;
        ConfigurationError: a name that is not among the features."""
        found = {}
        for name in ("scale", "rise", "fall"):
            if _by_name(given := getattr(self, name)):
                found[name] = tuple(limits(features, dict(given), name, 1.0).tolist())
        return replace(self, **found) if found else self

    def weights(self, d: int) -> Floats:
        """(d,) 1/scale."""
        return np.ones(d) if self.scale is None else 1.0 / self._column(self.scale, "scale", d)

    def units(self, d: int) -> tuple[Floats, Floats]:
        """(d,) costs of a change of each column by one unit, up and down; ConfigurationError: not for d columns."""
        weights = self.weights(d)
        return weights * self._column(self.rise, "rise", d), weights * self._column(self.fall, "fall", d)

    @property
    def symmetric(self) -> bool:
        """Whether rising and falling cost the same in all columns, as neither was given."""
        return self.rise == 1.0 and self.fall == 1.0

    def parts(self, delta: Floats) -> Floats:
        """(..., d) contribution of each column of changes (..., d) to the distance or its square."""
        return np.asarray(np.abs(self._scaled(delta)) ** self.power)

    def _scaled(self, delta: Floats) -> Floats:
        """(..., d) changes times their cost per unit."""
        rise, fall = self.units(delta.shape[-1])
        scaled: Floats = delta * (rise if self.symmetric else np.where(delta > 0, rise, fall))
        return scaled

    @staticmethod
    def _column(given: Any, what: str, d: int) -> Floats:
        if _by_name(given):
            raise ConfigurationError(
                f"{what}: given by name ({given[0][0]!r}, ...), but these columns have no names; pass constraints or a"
                f" preprocessing with names, or one number for each column"
            )
        values = np.asarray(given, dtype=np.float64)
        if values.ndim and len(values) != d:
            raise ConfigurationError(f"{what}: expected {d} numbers, one for each column, got {len(values)}")
        return np.broadcast_to(values, (d,))


@dataclass(frozen=True)
class L2(_Scaled):
    """Euclidean norm of change / scale.

    Args:
        scale: public unit of each column: d numbers, or a mapping feature -> number (missing ones: 1); None: 1.
        rise: cost of a change upwards by one unit: one number for all columns, or as `scale`.
        fall: cost of a change downwards by one unit, likewise.

    Raises:
        ConfigurationError: a scale, rise or fall that is not positive and finite.
    """

    power: ClassVar[int] = 2

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d), without overflow in between."""
        scaled = self._scaled(delta)
        largest = np.abs(scaled).max(axis=-1, initial=0.0, keepdims=True)
        power: Any = np.frexp(largest)[1]  # division by powers of two changes no digit
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(scaled, -power), axis=-1), power[..., 0]))


@dataclass(frozen=True)
class L1(_Scaled):
    """Sum of |change| / scale, times `rise` or `fall`, as for `L2`; answers change few columns."""

    power: ClassVar[int] = 1

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d)."""
        return np.asarray(self.parts(delta).sum(axis=-1))


@dataclass(frozen=True)
class MAD(L1):
    """Sum of |change| / median absolute deviation (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399).

    Args:
        scale: (d,) median absolute deviations of PUBLIC data; those of the training data are private.
        rise: as in `L1`.
        fall: as in `L1`.

    Raises:
        ConfigurationError: no scale, or one that is not positive and finite.
    """

    zero: ClassVar[str] = (
        "the median absolute deviation is 0 where more than half of the rows share one value, as in rare categories;"
        " choose a unit for that column, such as 1 for a 0/1 column"
    )

    def __post_init__(self) -> None:
        if self.scale is None:
            raise ConfigurationError("MAD: expected the median absolute deviations of public data, MAD(scale)")
        super().__post_init__()


Cost = L1 | L2
"""Costs for which the solvers are exact."""

EUCLIDEAN = L2()
"""L2 in the columns' own units, the default cost."""


def check_cost(cost: Any) -> None:
    """Raise ConfigurationTypeError unless this is a `Cost`."""
    if not isinstance(cost, Cost):
        raise ConfigurationTypeError(f"cost: expected L2(), L1() or MAD(scale), got {cost!r}")


def for_columns(cost: Cost, features: Features | None, d: int) -> Cost:
    """The cost for d columns in the order of these features (None: no names); ConfigurationError: it is for others."""
    found = cost.named(d if features is None else features)
    found.units(d)
    return found


# --- costs and constraints of features, for the columns of a table --------------------------------------------------

Parts = Sequence[Feature]


def constraints_on_columns(parts: Parts, given: Constraints | None) -> Constraints:
    """Constraints within the public ranges; see `Preprocessing.constraints`."""
    columns = _columns(parts)
    reachable = {} if given is None else dict(given.reachable)
    lists: dict[str, list[str]] = {name: [] for name in ("immutable", "integer", "increasing", "decreasing")}
    groups: list[Sequence[str]] = []
    numbers: dict[str, Any] = {
        "lower": dict.fromkeys(columns, 0.0),
        "upper": dict.fromkeys(columns, 1.0),
        "largest_change": {},
        "step": {},
    }
    for part in parts:
        lists["immutable"] += columns[part.state_columns]
        if part.kind != "category":
            numbers["lower"][part.name], numbers["upper"][part.name] = part.regular
            lists["integer"] += [part.name] if part.kind == "ordinal" else []
        elif len(part.names) > 1 and part.name in reachable:
            groups.append(part.names)
            labels = reachable.pop(part.name)
            if unknown := [label for label in labels if label not in part.labels]:
                raise ConfigurationError(
                    f"reachable: expected labels of {part.name} among {list(part.labels)}, got {unknown[0]!r}"
                )
            lists["decreasing"] += [
                column for column, label in zip(part.names, part.labels, strict=False) if label not in labels
            ]
        else:
            groups += [part.names] if len(part.names) > 1 else []
            lists["immutable"] += part.names
    if reachable:
        raise ConfigurationError(f"reachable: {next(iter(reachable))!r} is not a category of the preprocessing")
    others: dict[str, Any] = {}
    if given is not None:
        names = given.features
        if isinstance(names, int):
            raise ConfigurationError(
                f"constraints: expected names among the {len(parts)} features of the preprocessing"
                f" ({', '.join(part.name for part in parts)}), got {names} columns; pass"
                " Constraints(preprocessing.features, ...)"
            )
        check_known(names, _known(parts), "constraints")

        def at(feature: int | str, what: str) -> Sequence[str]:
            return _columns_of(parts, feature if isinstance(feature, str) else names[feature], what)

        _apply_limits(parts, names, given, numbers)
        for name, found in lists.items():
            found += [column for feature in getattr(given, name) for column in at(feature, name)]
        groups += [[column for feature in group for column in at(feature, "one_hot")] for group in given.one_hot]
        others["most_changes"] = given.most_changes
        others["rules"] = tuple(
            replace(rule, when=at(rule.when, "rules")[0], then=at(rule.then, "rules")[0]) for rule in given.rules
        )
    others |= {name: tuple(column for column in columns if column in found) for name, found in lists.items()}
    return Constraints(columns, one_hot=tuple(map(tuple, groups)), **numbers, **others)


def _apply_limits(parts: Parts, names: Sequence[str], given: Constraints, numbers: dict[str, dict[str, float]]) -> None:
    """Apply limits and sizes of changes in place; one number for all does not apply to categories."""
    categories = {part.name for part in parts if part.kind == "category"}
    steps = given.grid * (given.grid != given.whole)  # whole numbers come from `integer`
    for what, sizes, nearer in (
        ("lower", given.low, max),
        ("upper", given.high, min),
        ("largest_change", given.largest, min),
        ("step", steps, max),
    ):
        for_all, so_far = isinstance(getattr(given, what), int | float), numbers[what]
        for name, number in zip(names, sizes.tolist(), strict=True):
            none = not math.isfinite(number) or (what == "step" and number == 0)
            if none or (for_all and name in categories):
                continue
            for column in _columns_of(parts, name, what):
                so_far[column] = nearer(so_far.get(column, number), number)
    for part in parts:
        lower, upper = numbers["lower"][part.names[0]], numbers["upper"][part.names[0]]
        if lower > upper:
            which = f"upper {upper:.15g}" if upper < part.regular[0] else f"lower {lower:.15g}"
            raise ConfigurationError(
                f"{part.names[0]}: {which} leaves nothing of the public range {part.low:.15g} to {part.high:.15g};"
                " change the limit or the range"
            )


def cost_on_columns(parts: Parts, cost: Cost) -> Cost:
    """A cost, with public ranges as scales where it has none; see `Preprocessing.cost`."""
    sides = {side: _side_on_columns(parts, getattr(cost, side), side, cost.power) for side in ("scale", "rise", "fall")}
    priced = replace(cost, **sides)
    priced.units(len(_columns(parts)))
    return priced


def _side_on_columns(parts: Parts, given: Any, side: str, power: int) -> Any:
    """`scale`, `rise` or `fall` by column."""
    if given is not None and not (isinstance(given, tuple) and isinstance(given[0], tuple)):
        return given  # one number for all, or one a column
    by_name = dict(given or ())
    check_known(by_name, _known(parts), side)
    found = []
    for part in parts:
        usual, times = part.high - part.low if side == "scale" else 1.0, 1.0
        if side == "scale" and part.kind == "category":
            times = 2.0 ** (1 / power)  # two of its columns change
        of_feature = by_name.get(part.name, usual) * times
        found += [of_feature if name == part.name else by_name.get(name, of_feature) for name in part.names]
    return tuple(map(float, found))


def numbers_on_columns(parts: Parts, given: Any, what: str) -> Floats:
    """(D,) numbers, not all 0; see `Preprocessing.vector`."""
    columns = _columns(parts)
    if isinstance(given, Mapping):
        check_known(given, _known(parts), what)
        by_name = {
            column: number_of(value, f"{what} of {name}")
            for name, value in given.items()
            for column in _columns_of(parts, name, what)
        }
        given = [by_name.get(column, 0.0) for column in columns]
    found = real_numbers(given, what, ConfigurationError)
    if found.shape != (len(columns),):
        raise ConfigurationError(
            f"{what}: expected a mapping, or one number for each of the {len(columns)} columns {', '.join(columns)},"
            f" got shape {found.shape}"
        )
    if not np.isfinite(found).all() or not found.any():
        raise ConfigurationError(f"{what}: expected finite numbers that are not all 0")
    return found


def _columns(parts: Parts) -> tuple[str, ...]:
    return tuple(name for part in parts for name in part.names)


def _known(parts: Parts) -> list[str]:
    """Names of features and of columns."""
    return list(dict.fromkeys([*(part.name for part in parts), *_columns(parts)]))


def _columns_of(parts: Parts, name: str, what: str) -> Sequence[str]:
    """Columns of the table named by a feature or by a column; `what` names the argument in messages."""
    part = next((part for part in parts if part.name == name), None)
    if part is None or part.kind != "category":
        return [name]
    if what == "immutable":
        return part.names
    raise ConfigurationError(
        f"{what}: expected a number, but {name} is a category; name one of its columns, such as {part.names[0]!r}, or"
        f" declare the order of its labels, ordinal={{{name!r}: [...]}}"
    )
