"""Public preprocessing: from frames of people, in units and categories, to the columns of solvers and training."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from safexplain._digest import sha256
from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import SIDES, Cost, by_name, check_cost, for_columns
from safexplain.recourse.features import (
    Feature,
    Kind,
    Label,
    check_known,
    columns_of,
    frame_kind,
    is_missing,
    number_of,
    values_of,
    write_frame,
)
from safexplain.recourse.solution import Floats, as_rows

Range = tuple[float, float]
PUBLIC_PREPROCESSING = (
    "the ranges, categories, levels, special values and missing values of the preprocessing are public knowledge and"
    " were not computed from the training data"
)
"""Further assumption of a guarantee with preprocessing."""

_DECLARED = ("numeric", "categories", "ordinal", "special", "missing", "units", "describe")


@dataclass(eq=False, repr=False)
class Preprocessing(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Public knowledge about features; a scikit-learn transformer to the scaled table that learns nothing.

    The *table*, float64 (n, D), is for solvers: numbers in their units, levels as 0 to k - 1, and one 0/1 column for
    each category and for each special or missing value of a feature. In the *scaled table*, for training, numbers and
    levels are mapped from their public range to [-1, 1].

    Each record is mapped on its own, so that a mechanism that is private for rows of the table is private for rows of
    the frame. In training, numbers outside their public range count as its ends. Undeclared labels and missing values
    are refused; every guarantee assumes that such a failure is hidden from recipients of answers.

    Answers stay in the public ranges, and special and missing values never change. A special value is special inside
    the range too; at an end of the range, the regular values begin next to it.

    Args:
        numeric: name -> (least, greatest) value in the feature's unit.
        categories: name -> all labels (str, int, float or bool).
        ordinal: name -> all levels in their order; each change by one level costs the same.
        special: name -> codes that are not numbers or labels of the feature, such as [-7, -8, -9]; None or NaN: the
            feature may be missing.
        missing: names of the features that may be missing (None, NaN, NA).
        units: name -> unit of a numeric feature, for messages and sentences.
        describe: name -> name of a feature in sentences and letters ("revolving balance").

    Attributes:
        parts: (F,) the features, each a `Feature`: numeric ones first, then categories, then ordinal ones.
        features: (F,) their names.
        columns: (D,) names of the table's columns: a numeric feature by its name, a category as "job=clerk".
        offset: (D,) scaled = (table - offset) / scale.
        scale: (D,) likewise.
        norm_bound: bound on the Euclidean norm of a scaled row, for training.
        digest: SHA-256 of everything declared and of the scaling.

    Raises:
        ConfigurationError: nothing declared, a feature declared twice, missing or repeated labels, an empty range, or
            an undeclared name.
    """

    numeric: Mapping[str, Range] = field(default_factory=dict)
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ordinal: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    special: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    missing: Sequence[str] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    describe: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[Feature, ...] = field(init=False)
    features: tuple[str, ...] = field(init=False)
    columns: tuple[str, ...] = field(init=False)
    offset: Floats = field(init=False)
    scale: Floats = field(init=False)
    norm_bound: float = field(init=False)

    def __post_init__(self) -> None:
        given = _checked({name: getattr(self, name) for name in _DECLARED})
        parts = _parts(given)
        columns = tuple(name for part in parts for name in part.names)
        twice = [column for column, count in Counter(columns).items() if count > 1]
        if twice:
            raise ConfigurationError(f"{twice[0]}: two columns of the table would get this name; rename a label")
        offset, scale = np.zeros(len(columns)), np.ones(len(columns))
        for part in parts:
            offset[part.first], scale[part.first] = part.offset, part.scale
        for name, value in given.items():
            setattr(self, name, MappingProxyType(value) if isinstance(value, dict) else value)
        self.features, self.columns = tuple(part.name for part in parts), columns
        offset.flags.writeable = scale.flags.writeable = False
        self.offset, self.scale = offset, scale
        self.norm_bound = math.sqrt(sum(part.longest for part in parts))
        self.n_features_in_, self.feature_names_in_ = len(parts), np.array(self.features, dtype=object)
        self.parts = parts  # last, as nothing may change afterwards

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything declared and of the scaling."""
        declared = self._declared()
        declared |= {"features": self.features, "labels": declared.pop("describe")}
        content = ["safexplain preprocessing 1", declared, self.offset.tolist(), self.scale.tolist()]
        return sha256(json.dumps(content, separators=(",", ":"), sort_keys=True))

    # tables and frames

    def table(self, frame: Any, *, clip: bool = False) -> Floats:
        """The rows of a frame in the columns of the table.

        Args:
            frame: n persons: a pandas or polars DataFrame, a list of dicts, a dict of lists; one person as a dict or a
                pandas Series. An array is read as rows of the table.
            clip: move numbers outside their public range to its ends, instead of refusing them.

        Returns:
            (n, D) float64.

        Raises:
            InputError: missing, unknown or repeated columns, an unknown label, a number outside its public range, text
                instead of numbers, or an undeclared missing value; with feature, row and value.
        """
        if frame_kind(frame) is None:
            return self._from_array(frame, clip)
        columns, _ = columns_of(frame, self.features)
        return np.hstack([part.read(columns[part.name], clip=clip) for part in self.parts])

    def scaled(self, table: Any) -> Floats:
        """(n, D) scaled rows of the table: (table - offset) / scale."""
        rows: Floats = (np.asarray(table, dtype=np.float64) - self.offset) / self.scale
        return rows

    def frame(self, table: Any, like: Any = None) -> Any:
        """Rows (n, D) or (D,) of the table as a frame of n persons.

        Args:
            table: the rows.
            like: a frame whose kind and types of columns to use; if it has n rows, unchanged values are copied from it,
                and a pandas index is kept. A Series gives a dict. None: a dict of lists.

        Raises:
            InputError: rows that do not fit this table.
        """
        rows = self._check_rows(as_rows(table, len(self.columns)))
        found: dict[str, Any] = {part.name: part.values(rows[:, part.columns]) for part in self.parts}
        if frame_kind(like) is None:
            return found
        came, n = columns_of(like, self.features)
        for part in self.parts if n == len(rows) else ():
            with suppress(InputError):  # unreadable values are not copied
                same = (part.read(came[part.name]) == rows[:, part.columns]).all(axis=1)
                each = zip(same.tolist(), values_of(came[part.name]), found[part.name], strict=True)
                found[part.name] = came[part.name] if same.all() else [old if copy else new for copy, old, new in each]
        return write_frame(found, like, came, {part.name: part.labels for part in self.parts})

    def held(self, table: Floats) -> NDArray[np.bool_]:
        """(n, D) bool, columns of features that are special or missing in a row."""
        found = np.zeros(table.shape, dtype=bool)
        for part in self.parts:
            found[:, part.columns] = (table[:, part.state_columns] != 0).any(axis=1, keepdims=True)
        return found

    def misread(self, table: Floats) -> NDArray[np.bool_]:
        """(n,) bool, rows with a regular number that a frame would show as a special value."""
        found = np.zeros(len(table), dtype=bool)
        for part in self.parts:
            if part.kind == "numeric":
                special = [float(value) for value in part.states if value is not None]
                regular = (table[:, part.state_columns] == 0).all(axis=1)
                found |= regular & np.isin(table[:, part.first], special)
        return found

    # from features to the columns of the table

    def constraints(self, constraints: Constraints | None = None) -> Constraints:
        """Constraints of features as constraints of the table's columns, within the public ranges.

        Args:
            constraints: names are features (all or some, in any order), or columns of the table, such as
                upper={"job=clerk": 0} to exclude a category. None: the public ranges only.

        Raises:
            ConfigurationError: an unknown feature, limits that leave nothing of a public range, or a direction, limit
                or whole numbers for a category; with the feature.
        """
        check_constraints(constraints)
        given, columns = constraints or Constraints(self.features), self.columns
        reachable, groups = dict(given.reachable), list[Sequence[str]]()
        lists: dict[str, list[str]] = {name: [] for name in ("immutable", "integer", "increasing", "decreasing")}
        numbers: dict[str, Any] = {
            "lower": dict.fromkeys(columns, 0.0),
            "upper": dict.fromkeys(columns, 1.0),
            "largest_change": {},
            "step": {},
        }
        for part in self.parts:
            lists["immutable"] += columns[part.state_columns]
            if part.kind != "category":
                numbers["lower"][part.name], numbers["upper"][part.name] = part.regular
                lists["integer"] += [part.name] if part.kind == "ordinal" else []
                continue
            groups += [part.names] if len(part.names) > 1 else []
            labels = reachable.pop(part.name, ())
            if unknown := [label for label in labels if label not in part.labels]:
                raise ConfigurationError(
                    f"reachable: expected labels of {part.name} among {list(part.labels)}, got {unknown[0]!r}"
                )
            if labels and len(part.names) > 1:
                pairs = zip(part.names, part.labels, strict=False)
                lists["decreasing"] += [column for column, label in pairs if label not in labels]
            else:
                lists["immutable"] += part.names
        if reachable:
            raise ConfigurationError(f"reachable: {next(iter(reachable))!r} is not a category of the preprocessing")
        names = given.features
        if isinstance(names, int):
            raise ConfigurationError(
                f"constraints: expected names among the {len(self.parts)} features of the preprocessing"
                f" ({', '.join(self.features)}), got {names} columns; pass Constraints(preprocessing.features, ...)"
            )
        check_known(names, self._known, "constraints")

        def at(feature: int | str, what: str) -> Sequence[str]:
            return self._columns_of(feature if isinstance(feature, str) else names[feature], what)

        self._apply_limits(names, given, numbers)
        for name, found in lists.items():
            found += [column for feature in getattr(given, name) for column in at(feature, name)]
        groups += [[column for feature in group for column in at(feature, "one_hot")] for group in given.one_hot]
        others: dict[str, Any] = {name: tuple(c for c in columns if c in found) for name, found in lists.items()}
        others["most_changes"] = given.most_changes
        others["rules"] = tuple(
            replace(rule, when=at(rule.when, "rules")[0], then=at(rule.then, "rules")[0]) for rule in given.rules
        )
        return Constraints(columns, one_hot=tuple(map(tuple, groups)), **numbers, **others)

    def cost(self, cost: Cost) -> Cost:
        """The cost on the table's columns.

        Without a scale, each feature counts in units of its public range, and a change of category as much as the full
        range of a number: Gower's distance with `L1`. A scale, rise or fall has names, where missing features get their
        public range (rise and fall: 1), or one number for each column of the table.

        Raises:
            ConfigurationError: a scale of another length, or an unknown name.
        """
        check_cost(cost)
        sides = {side: self._side(getattr(cost, side), side, cost.power) for side in SIDES}
        return for_columns(replace(cost, **sides), None, len(self.columns))

    def vector(self, given: Any, what: str) -> Floats:
        """(D,) finite numbers, not all 0, for the columns of the table, from D numbers, or a mapping from features (not
        categories) and columns; ConfigurationError: anything else, called `what`."""
        columns = self.columns
        if isinstance(given, Mapping):
            check_known(given, self._known, what)
            named = {
                column: number_of(value, f"{what} of {name}")
                for name, value in given.items()
                for column in self._columns_of(name, what)
            }
            given = [named.get(column, 0.0) for column in columns]
        found = real_numbers(given, what, ConfigurationError)
        if found.shape != (len(columns),):
            raise ConfigurationError(
                f"{what}: expected a mapping, or one number for each of the {len(columns)} columns"
                f" {', '.join(columns)}, got shape {found.shape}"
            )
        if not np.isfinite(found).all() or not found.any():
            raise ConfigurationError(f"{what}: expected finite numbers that are not all 0")
        return found

    def _apply_limits(self, names: Sequence[str], given: Constraints, numbers: dict[str, dict[str, float]]) -> None:
        """Apply limits in place; one number for all does not apply to categories."""
        categories = {part.name for part in self.parts if part.kind == "category"}
        steps = given.grid * (given.grid != given.whole)  # whole numbers come from `integer`
        for what, sizes, nearer in (
            ("lower", given.low, max),
            ("upper", given.high, min),
            ("largest_change", given.largest, min),
            ("step", steps, max),
        ):
            for_all, so_far = isinstance(getattr(given, what), float), numbers[what]
            for name, number in zip(names, sizes.tolist(), strict=True):
                none = not math.isfinite(number) or (what == "step" and number == 0)
                if none or (for_all and name in categories):
                    continue
                for column in self._columns_of(name, what):
                    so_far[column] = nearer(so_far.get(column, number), number)
        for part in self.parts:
            lower, upper = numbers["lower"][part.names[0]], numbers["upper"][part.names[0]]
            if lower > upper:
                which = f"upper {upper:.15g}" if upper < part.regular[0] else f"lower {lower:.15g}"
                raise ConfigurationError(
                    f"{part.names[0]}: {which} leaves nothing of the public range {part.low:.15g} to {part.high:.15g};"
                    " change the limit or the range"
                )

    def _side(self, given: Any, side: str, power: int) -> Any:
        if given is not None and not by_name(given):
            return given  # one number for all, or one a column
        named, found = dict(given or ()), []
        check_known(named, self._known, side)
        for part in self.parts:
            usual, times = part.high - part.low if side == "scale" else 1.0, 1.0
            if side == "scale" and part.kind == "category":
                times = 2.0 ** (1 / power)  # two of its columns change
            of_feature = named.get(part.name, usual) * times
            found += [of_feature if name == part.name else named.get(name, of_feature) for name in part.names]
        return tuple(map(float, found))

    @property
    def _known(self) -> list[str]:
        return list(dict.fromkeys([*self.features, *self.columns]))

    def _columns_of(self, name: str, what: str) -> Sequence[str]:
        part = next((part for part in self.parts if part.name == name), None)
        if part is None or part.kind != "category":
            return [name]
        if what == "immutable":
            return part.names
        raise ConfigurationError(
            f"{what}: expected a number, but {name} is a category; name one of its columns, such as"
            f" {part.names[0]!r}, or declare the order of its labels, ordinal={{{name!r}: [...]}}"
        )

    # scikit-learn's transformer

    def fit(self, X: Any = None, y: Any = None) -> Preprocessing:
        """Do nothing, as everything is declared."""
        return self

    def transform(self, X: Any) -> Floats:
        """(n, D) the scaled table of a frame; numbers outside their public range count as its ends.

        Raises:
            InputError: as `table`.
        """
        return self.scaled(self.table(X, clip=True))

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """(D,) `columns`."""
        return np.array(self.columns, dtype=object)

    # immutability and equality

    def _declared(self) -> dict[str, Any]:
        return {name: self.missing if name == "missing" else dict(getattr(self, name)) for name in _DECLARED}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _DECLARED and "parts" in self.__dict__:  # scikit-learn sets attributes of its own
            raise ConfigurationError("Preprocessing is part of a guarantee and cannot change; make another one")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> Any:
        return Preprocessing, tuple(self._declared().values())

    def __repr__(self) -> str:
        declared = [f"{name}={value!r}" for name, value in self._declared().items() if value]
        return f"Preprocessing({', '.join(declared)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preprocessing) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __sklearn_clone__(self) -> Preprocessing:
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.categorical, tags.input_tags.string = False, True, True
        tags.input_tags.allow_nan = bool(self.missing)
        return tags

    def _from_array(self, x: Any, clip: bool) -> Floats:
        try:
            rows = as_rows(x, len(self.columns))
        except InputError as error:
            raise InputError(
                f"x: expected a frame with the columns {', '.join(self.features)} (a DataFrame, a list of dicts, a dict"
                f" of lists; for one person a dict), got {type(x).__name__}; as rows of the table: {error}"
            ) from None
        if clip:
            for part in self.parts:
                rows[:, part.first] = np.clip(rows[:, part.first], part.low, part.high)
        return self._check_rows(rows)

    def _check_rows(self, rows: Floats) -> Floats:
        for part in self.parts:
            part.check(rows[:, part.columns])
        return rows


# Checks of what is declared


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, checked and in one form, with None among special values as a name under `missing`."""
    lost = (given["missing"],) if isinstance(given["missing"], str) else tuple(given["missing"] or ())
    given = {name: lost if name == "missing" else _mapping(name, value) for name, value in given.items()}
    names = [*given["numeric"], *given["categories"], *given["ordinal"]]
    if not names:
        raise ConfigurationError("Preprocessing: no features; declare them under numeric, categories or ordinal")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigurationError(
            f"{twice[0]}: declared more than once; list a feature under one of numeric, categories and ordinal"
        )
    for what in ("special", "missing", "units", "describe"):
        check_known(given[what], names, what)
    given["numeric"] = {name: _range(name, ends) for name, ends in given["numeric"].items()}
    for kind, least in (("categories", 1), ("ordinal", 2)):
        given[kind] = {name: _labels(name, kind, labels, least) for name, labels in given[kind].items()}
    states = {name: _labels(name, "special", values) for name, values in given["special"].items()}
    given["missing"] = tuple(name for name in names if name in lost or None in states.get(name, ()))
    special = {name: tuple(value for value in values if value is not None) for name, values in states.items()}
    given["special"] = {name: values for name, values in special.items() if values}
    for name, values in given["special"].items():
        regular = given["categories"].get(name, ()) + given["ordinal"].get(name, ())
        for state in values:
            if name in given["numeric"] and isinstance(state, str | bool):
                raise ConfigurationError(f"special: {name} is numeric and needs numbers, got {state!r}")
            if state in regular:
                raise ConfigurationError(f"special: {name} has {state!r} as a regular label too; remove one of them")
    for name, unit in given["units"].items():
        if not isinstance(unit, str) or name not in given["numeric"]:
            raise ConfigurationError(f"units: expected a unit of a numeric feature as text, got {name}: {unit!r}")
    for name, label in given["describe"].items():
        if not isinstance(label, str) or not label:
            raise ConfigurationError(f"describe: expected the name of a feature in sentences, got {name}: {label!r}")
    return given


def _mapping(what: str, given: Any) -> dict[str, Any]:
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
        raise ConfigurationTypeError(f"{what}: expected a mapping from names of features, as text, got {given!r:.80}")
    return dict(given)


def _range(name: str, ends: Any) -> Range:
    try:
        least, greatest = ends
    except (TypeError, ValueError):
        raise ConfigurationError(f"numeric: {name} needs two numbers (least, greatest), got {ends!r}") from None
    low, high = (number_of(end, f"numeric: the range of {name}") for end in (least, greatest))
    if not (low < high and math.isfinite(high - low)):
        raise ConfigurationError(
            f"numeric: {name} needs a public range with least < greatest, both finite, got {low:g} to {high:g};"
            " training noise is scaled to this range"
        )
    return low, high


def _labels(name: str, what: str, given: Any, least: int = 0) -> tuple[Label | None, ...]:
    if what == "special" and (isinstance(given, str) or not hasattr(given, "__iter__")):
        given = [given]
    if isinstance(given, str | bytes | Mapping | Set) or not hasattr(given, "__iter__"):
        raise ConfigurationError(f"{what}: {name} needs a list, got {given!r:.80}")
    labels = tuple(None if is_missing(value) else _label(name, what, value) for value in given)
    if twice := [label for i, label in enumerate(labels) if label in labels[:i]]:
        raise ConfigurationError(f"{what}: {name} lists {twice[0]!r} twice (for Python True is 1 and 1.0 is 1)")
    if None in labels and what != "special":
        raise ConfigurationError(f"{what}: {name} lists a missing value; declare missing=({name!r},) instead")
    if len(labels) < least:
        raise ConfigurationError(f"{what}: {name} needs at least {least} labels, got {len(labels)}")
    return labels


def _label(name: str, what: str, value: Any) -> Label:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float) or (isinstance(plain, float) and not math.isfinite(plain)):
        raise ConfigurationError(f"{what}: {name} needs labels of text, numbers or bools, got {value!r}")
    return plain


def _parts(given: Mapping[str, Any]) -> tuple[Feature, ...]:
    declared: list[tuple[str, Kind, Range, tuple[Label, ...]]] = [
        *((name, "numeric", ends, ()) for name, ends in given["numeric"].items()),
        *((name, "category", (0.0, 1.0), labels) for name, labels in given["categories"].items()),
        *((name, "ordinal", (0.0, len(levels) - 1.0), levels) for name, levels in given["ordinal"].items()),
    ]
    found: list[Feature] = []
    for name, kind, ends, labels in declared:
        first = found[-1].columns.stop if found else 0
        states = (*given["special"].get(name, ()), *((None,) if name in given["missing"] else ()))
        found.append(Feature(name, kind, first, *ends, labels, states, given["units"].get(name, "")))
    return tuple(found)
