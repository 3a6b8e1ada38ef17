"""What is given for a person's features (constraints, costs, weights), on the columns of the table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.feature import Feature
from safexplain.recourse.feature_names import number_of
from safexplain.recourse.found import Floats
from safexplain.recourse.frames import close_to

Parts = Sequence[Feature]


def constraints_on_columns(parts: Parts, given: Constraints | None) -> Constraints:
    """Constraints within the public ranges; see `Preprocessing.constraints`."""
    columns = _columns(parts)
    low, high = np.zeros(len(columns)), np.ones(len(columns))
    lists: dict[str, list[int]] = {name: [] for name in ("immutable", "integer", "increasing", "decreasing")}
    groups: list[list[int]] = []
    for part in parts:
        own = list(range(len(columns))[part.columns])
        lists["immutable"] += range(len(columns))[part.state_columns]
        if part.kind != "category":
            low[part.first], high[part.first] = part.regular
            lists["integer"] += [part.first] if part.kind == "ordinal" else []
        elif len(own) > 1:
            groups.append(own)
        else:
            lists["immutable"] += own
    sizes = {
        "lower": low,
        "upper": high,
        "largest_change": np.full(len(columns), math.inf),
        "step": np.zeros(len(columns)),
    }
    of_changes: dict[str, Any] = {}
    if given is not None:
        if isinstance(given.features, int):
            raise ConfigurationError(
                f"constraints: for {given.features} columns, but the preprocessing has the {len(parts)}"
                f" features {_listed(parts)}; pass Constraints(preprocessing.features, ...)"
            )
        names = given.features
        _check_known(parts, names, "constraints")

        def at(feature: int | str, what: str) -> list[int]:
            return _columns_of(parts, feature if isinstance(feature, str) else names[feature], what)

        _narrow(parts, names, given, sizes)
        for name, found in lists.items():
            found += [column for feature in getattr(given, name) for column in at(feature, name)]
        groups += [[column for feature in group for column in at(feature, "one_hot")] for group in given.one_hot]
        of_changes["most_changes"] = given.most_changes
        of_changes["rules"] = tuple(
            replace(rule, when=columns[at(rule.when, "rules")[0]], then=columns[at(rule.then, "rules")[0]])
            for rule in given.rules
        )
    return Constraints(
        columns,
        one_hot=tuple(tuple(columns[column] for column in group) for group in groups),
        **{name: tuple(columns[column] for column in sorted(set(found))) for name, found in lists.items()},
        **sizes,
        **of_changes,
    )


def _narrow(parts: Parts, names: Sequence[str], given: Constraints, sizes: Mapping[str, Floats]) -> None:
    """Limits and sizes of changes, in place; one number for all is for numbers and levels only."""
    categories = {part.name for part in parts if part.kind == "category"}
    steps = given.grid * (given.grid != given.whole)  # whole numbers are asked for by `integer`
    for what, numbers, nearer in (
        ("lower", given.low, max),
        ("upper", given.high, min),
        ("largest_change", given.largest, min),
        ("step", steps, max),
    ):
        for_all = isinstance(getattr(given, what), int | float)
        for name, number in zip(names, numbers.tolist(), strict=True):
            none = not math.isfinite(number) or (what == "step" and number == 0)
            if none or (for_all and name in categories):
                continue
            for column in _columns_of(parts, name, what):
                sizes[what][column] = nearer(sizes[what][column], number)
    empty = sizes["lower"] > sizes["upper"]
    if empty.any():
        column = int(empty.argmax())
        part = next(part for part in parts if column < part.columns.stop)
        what = "upper" if sizes["upper"][column] < part.regular[0] else "lower"
        raise ConfigurationError(
            f"{_columns(parts)[column]}: {what} {sizes[what][column]:.15g} leaves nothing of the public range"
            f" {part.low:.15g} to {part.high:.15g}; change the limit or the range"
        )


def cost_on_columns(parts: Parts, cost: Cost) -> Cost:
    """A cost, priced by public ranges where it has no scale; see `Preprocessing.cost`."""
    sides = {side: _of_side(parts, getattr(cost, side), side, cost.power) for side in ("scale", "rise", "fall")}
    priced = replace(cost, **sides)
    priced.check(len(_columns(parts)))
    return priced


def _of_side(parts: Parts, given: Any, side: str, power: int) -> Any:
    """A scale, or prices of rising or falling, by column."""
    if given is not None and not (isinstance(given, tuple) and isinstance(given[0], tuple)):
        return given  # one number for all, or one a column
    by_name, columns = dict(given or ()), _columns(parts)
    _check_known(parts, by_name, side)
    found = np.ones(len(columns))
    for part in parts:
        by_range = side == "scale" and part.kind != "category"
        both = 2.0 ** (1 / power) if side == "scale" and part.kind == "category" else 1.0  # two of its columns change
        found[part.columns] = by_name.pop(part.name, part.high - part.low if by_range else 1.0) * both
    for name, number in by_name.items():
        found[columns.index(name)] = number
    return tuple(found.tolist())


def numbers_on_columns(parts: Parts, given: Any, what: str) -> Floats:
    """(D,) numbers, not all 0; see `Preprocessing.vector`."""
    columns = _columns(parts)
    found = np.zeros(len(columns))
    if isinstance(given, Mapping):
        _check_known(parts, given, what)
        for name, value in given.items():
            found[_columns_of(parts, name, what)] = number_of(value, f"{what} of {name}")
    else:
        found = real_numbers(given, what, ConfigurationError)
    if found.shape != (len(columns),):
        raise ConfigurationError(
            f"{what}: expected one number for each of the {len(columns)} columns {', '.join(columns)}, or a mapping;"
            f" got shape {found.shape}"
        )
    if not np.isfinite(found).all() or not found.any():
        raise ConfigurationError(f"{what}: expected finite numbers that are not all 0")
    return found


def _columns(parts: Parts) -> tuple[str, ...]:
    return tuple(name for part in parts for name in part.names)


def _listed(parts: Parts) -> str:
    return ", ".join(part.name for part in parts)


def _check_known(parts: Parts, names: Iterable[str], what: str) -> None:
    """Raise ConfigurationError for a name of neither a feature nor a column."""
    known = dict.fromkeys([*(part.name for part in parts), *_columns(parts)])
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{what}: unknown feature {unknown[0]!r}{close_to(unknown[0], known)}; the preprocessing has"
            f" {_listed(parts)}"
        )


def _columns_of(parts: Parts, name: str, what: str) -> list[int]:
    """The columns that something given for a feature, or for one column of the table, is about."""
    part = next((part for part in parts if part.name == name), None)
    if part is None:
        return [_columns(parts).index(name)]
    if part.kind != "category":
        return [part.first]
    if what == "immutable":
        return list(range(part.columns.start, part.columns.stop))
    raise ConfigurationError(
        f"{what}: {name} is a category, not a number; name one of its columns, such as {part.names[0]!r}, or declare"
        f" its labels in their order, ordinal={{{name!r}: [...]}}"
    )
