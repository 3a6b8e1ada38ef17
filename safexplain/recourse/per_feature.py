"""What is given for a person's features (constraints, costs, weights), for the columns of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.feature import Feature
from safexplain.recourse.feature_names import check_known, number_of
from safexplain.recourse.found import Floats

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
                    f"reachable: {part.name} has no label {unknown[0]!r}; expected some of {list(part.labels)}"
                )
            lists["decreasing"] += [
                column for column, label in zip(part.names, part.labels, strict=False) if label not in labels
            ]
        else:
            groups += [part.names] if len(part.names) > 1 else []
            lists["immutable"] += part.names
    if reachable:
        raise ConfigurationError(f"reachable: {next(iter(reachable))!r} is no category of the preprocessing")
    others: dict[str, Any] = {}
    if given is not None:
        names = given.features
        if isinstance(names, int):
            raise ConfigurationError(
                f"constraints: for {names} columns, but the preprocessing has the {len(parts)} features"
                f" {', '.join(part.name for part in parts)}; pass Constraints(preprocessing.features, ...)"
            )
        check_known(names, _known(parts), "constraints")

        def at(feature: int | str, what: str) -> Sequence[str]:
            return _columns_of(parts, feature if isinstance(feature, str) else names[feature], what)

        _narrow(parts, names, given, numbers)
        for name, found in lists.items():
            found += [column for feature in getattr(given, name) for column in at(feature, name)]
        groups += [[column for feature in group for column in at(feature, "one_hot")] for group in given.one_hot]
        others["most_changes"] = given.most_changes
        others["rules"] = tuple(
            replace(rule, when=at(rule.when, "rules")[0], then=at(rule.then, "rules")[0]) for rule in given.rules
        )
    others |= {name: tuple(column for column in columns if column in found) for name, found in lists.items()}
    return Constraints(columns, one_hot=tuple(map(tuple, groups)), **numbers, **others)


def _narrow(parts: Parts, names: Sequence[str], given: Constraints, numbers: dict[str, dict[str, float]]) -> None:
    """Limits and sizes of changes, in place; one number for all is for numbers and levels only."""
    categories = {part.name for part in parts if part.kind == "category"}
    steps = given.grid * (given.grid != given.whole)  # whole numbers are asked for by `integer`
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
    """A cost, priced by public ranges where it has no scale; see `Preprocessing.cost`."""
    sides = {side: _of_side(parts, getattr(cost, side), side, cost.power) for side in ("scale", "rise", "fall")}
    priced = replace(cost, **sides)
    priced.check(len(_columns(parts)))
    return priced


def _of_side(parts: Parts, given: Any, side: str, power: int) -> Any:
    """A scale, or prices of rising or falling, by column."""
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
            f"{what}: expected one number for each of the {len(columns)} columns {', '.join(columns)}, or a mapping;"
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
    """The columns that something given for a feature, or for one column of the table, is about."""
    part = next((part for part in parts if part.name == name), None)
    if part is None or part.kind != "category":
        return [name]
    if what == "immutable":
        return part.names
    raise ConfigurationError(
        f"{what}: {name} is a category, not a number; name one of its columns, such as {part.names[0]!r}, or declare"
        f" its labels in their order, ordinal={{{name!r}: [...]}}"
    )
