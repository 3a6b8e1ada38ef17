"""Public preprocessing: from frames of people, in units and categories, to the columns of solvers and training.

A row has three forms:

- the frame: numbers in their units, categories as labels, special values (-9) and missing ones;
- the table, float64 (n, D), for solvers: numbers in their units, ordinal levels as 0 to k - 1, one 0/1 column for each
  category, and one 0/1 column for each special or missing value of a feature;
- the scaled table, for training: affine in each column of the table, and of bounded norm. Numbers and levels are mapped
  from their public range to [-1, 1], 0/1 columns stay, and the norm bound is the worst case: each feature counts at
  most 1, so that F features give sqrt(F).

Everything is declared and nothing is computed from data, so that each record is mapped on its own: neighbouring frames
become neighbouring tables (add/remove, substitute and zero-out alike), and a mechanism that is private for rows of the
table is private for rows of the frame. In training, numbers outside their public range count as its ends, as refusing
them would reveal something about a record. Undeclared labels and missing values are refused in training too; every
guarantee assumes that such a failure is hidden from recipients of answers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
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
from safexplain.recourse.cost import Cost, check_cost, constraints_on_columns, cost_on_columns, numbers_on_columns
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
from safexplain.recourse.solution import Floats, as_rows, rows_where

Range = tuple[float, float]
PUBLIC_PREPROCESSING = (
    "the ranges, categories, levels, special values and missing values of the preprocessing are public knowledge and"
    " were not computed from the training data"
)
"""Further assumption of a guarantee with preprocessing."""

_DECLARED = ("numeric", "categories", "ordinal", "special", "missing", "units", "describe")


@dataclass(eq=False, repr=False)
class Preprocessing(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Public knowledge about the features; a scikit-learn transformer to the scaled table that learns nothing.

    Answers stay in the public ranges, and special and missing values never change, as they are facts and not numbers. A
    special value is special inside the range too; at an end of the range, the regular values begin next to it.

    Args:
        numeric: name -> (least, greatest) value in the feature's unit.
        categories: name -> all labels (str, int, float or bool).
        ordinal: name -> all levels in their order; each change by one level costs the same.
        special: name -> codes that are not numbers or labels of the feature, such as [-7, -8, -9]; None or NaN among
            them is the same as naming the feature under `missing`.
        missing: names of the features that may be missing (None, NaN, NA).
        units: name -> unit of a numeric feature, for messages and sentences.
        describe: name -> name of a feature in sentences and letters ("revolving balance").

    Attributes:
        parts: (F,) the person's features, each a `Feature`: numeric ones first, then categories, then ordinal ones.
        features: (F,) their names.
        columns: (D,) names of the table's columns: a numeric feature by its name, a category as "job=clerk".
        offset: (D,) scaled = (table - offset) / scale.
        scale: (D,) likewise.
        norm_bound: bound on the Euclidean norm of a scaled row, for training.
        digest: SHA-256 of everything declared and of the scaling.

    Raises:
        ConfigurationError: nothing declared, a feature declared twice, missing or repeated labels, an empty range, or
            an undeclared name.

    Example:
        >>> people = Preprocessing(
        ...     numeric={"age": (18, 100), "income": (0, 500_000)},
        ...     categories={"job": ["clerk", "manager"]},
        ...     special={"income": [-9]},
        ... )
        >>> people.columns
        ('age', 'income', 'income=-9', 'job=clerk', 'job=manager')
        >>> people.table({"job": "clerk", "age": 40, "income": -9}).tolist()
        [[40.0, 250000.0, 1.0, 1.0, 0.0]]
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
        self.offset, self.scale = _read_only(offset), _read_only(scale)
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

    # from the frame to the table, from the table to the scaled one, and back to a frame

    def table(self, frame: Any, *, clip: bool = False) -> Floats:
        """The rows of a frame in the columns of the table.

        Args:
            frame: n persons with the features in any order: a pandas or polars DataFrame, a list of dicts, a dict of
                lists; one person as a dict or a pandas Series. An array is read as rows of the table.
            clip: move numbers outside their public range to its ends, as in training, instead of refusing them.

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
        """Rows of the table as a frame.

        Args:
            table: (n, D) or (D,) rows.
            like: a frame whose kind and types of columns to use; if it has n rows, unchanged values are copied from it,
                and a pandas index is kept. None: a dict of lists.

        Returns:
            n persons; whole numbers stay integers if the column had integers, labels and special values are the
            declared ones, missing values stay missing. For a Series, a dict.

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
        """(n, D) bool, columns of features that are special or missing in a row, which must not change."""
        found = np.zeros(table.shape, dtype=bool)
        for part in self.parts:
            found[:, part.columns] = (table[:, part.state_columns] != 0).any(axis=1, keepdims=True)
        return found

    def misread(self, table: Floats) -> NDArray[np.bool_]:
        """(n,) bool, rows with a regular number that a frame would show as a special value, as it lies in the range."""
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
            constraints: names are features (all or some of them, in any order), or columns of the table, such as
                upper={"job=clerk": 0} to exclude a category. None: the public ranges only.

        Raises:
            ConfigurationError: an unknown feature, limits that leave nothing of a public range, or a direction, limit
                or whole numbers for a category; with the feature.
        """
        check_constraints(constraints)
        return constraints_on_columns(self.parts, constraints)

    def cost(self, cost: Cost) -> Cost:
        """The cost on the table's columns.

        Without a scale, each feature counts in units of its public range, and a change of category as much as the full
        range of a number: Gower's distance with `L1`. A scale, rise or fall has names, where missing features get their
        public range (rise and fall: 1), or one number for each column of the table.

        Raises:
            ConfigurationError: a scale of another length, or an unknown name.
        """
        check_cost(cost)
        return cost_on_columns(self.parts, cost)

    def vector(self, given: Any, what: str) -> Floats:
        """(D,) finite numbers, not all 0, for the columns of the table, from D numbers, or a mapping from features (not
        categories) and columns, 0 for missing ones. ConfigurationError: anything else, called `what`."""
        return _read_only(numbers_on_columns(self.parts, given, what))

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
        """Arguments of the constructor, in plain types and in order."""
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
        """Rows of the table from an array, checked."""
        d = len(self.columns)
        expected = (
            f"expected a frame with the columns {', '.join(self.features)} (a pandas or polars DataFrame, a list of"
            " dicts, a dict of lists; for one person a dict)"
        )
        rows = real_numbers(x, "x", expected=f"{expected}, got {type(x).__name__}; arrays must hold rows of numbers")
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != d:
            raise InputError(f"x: {expected}, or rows of the table of shape (n, {d}), got shape {np.shape(x)}")
        if not np.isfinite(rows).all():
            raise InputError(
                f"x: NaN or infinite numbers in {rows_where(~np.isfinite(rows).all(axis=1))}; pass a frame"
            )
        if clip:
            for part in self.parts:
                rows[:, part.first] = np.clip(rows[:, part.first], part.low, part.high)
        return self._check_rows(rows)

    def _check_rows(self, rows: Floats) -> Floats:
        """The rows, checked to fit this table."""
        for part in self.parts:
            part.check(rows[:, part.columns])
        return rows


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The array, made read-only."""
    array.flags.writeable = False
    return array


# Checks of what is declared


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, checked and in one form: finite floats, tuples of plain labels, and None among special values as a
    name under `missing`."""
    lost = (given["missing"],) if isinstance(given["missing"], str) else tuple(given["missing"] or ())
    given = {name: lost if name == "missing" else _mapping(name, value) for name, value in given.items()}
    names = [*given["numeric"], *given["categories"], *given["ordinal"]]
    _check_names(names, given)
    given["numeric"] = {name: _range(name, ends) for name, ends in given["numeric"].items()}
    for kind in ("categories", "ordinal"):
        given[kind] = {name: _labels(name, kind, labels) for name, labels in given[kind].items()}
    states = {name: _states(name, values) for name, values in given["special"].items()}
    given["missing"] = tuple(name for name in names if name in lost or None in states.get(name, ()))
    special = {name: tuple(value for value in values if value is not None) for name, values in states.items()}
    given["special"] = {name: values for name, values in special.items() if values}
    _check_values(given)
    return given


def _mapping(what: str, given: Any) -> dict[str, Any]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ConfigurationTypeError(f"{what}: expected a mapping from names of features, got {given!r:.80}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ConfigurationTypeError(f"{what}: expected names of features as text, got {name!r}")
    return dict(given)


def _check_names(names: list[str], given: Mapping[str, Any]) -> None:
    """Check that each feature is declared once, and that all other names are features."""
    if not names:
        raise ConfigurationError("Preprocessing: no features; declare them under numeric, categories or ordinal")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"{twice[0]}: declared more than once; list a feature under one of numeric, categories and ordinal"
        )
    for what in ("special", "missing", "units", "describe"):
        check_known(given[what], names, what)


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


def _labels(name: str, what: str, given: Any) -> tuple[Label, ...]:
    """The categories or levels of a feature."""
    labels = _states(name, given, what)
    if None in labels:
        raise ConfigurationError(f"{what}: {name} lists a missing value; declare missing=({name!r},) instead")
    least = 2 if what == "ordinal" else 1
    if len(labels) < least:
        raise ConfigurationError(f"{what}: {name} needs at least {least} labels, got {len(labels)}")
    return tuple(label for label in labels if label is not None)


def _states(name: str, given: Any, what: str = "special") -> tuple[Label | None, ...]:
    """Distinct labels, None for missing; a single special value need not be in a list."""
    if what == "special" and (isinstance(given, str) or not hasattr(given, "__iter__")):
        given = [given]
    if isinstance(given, str | bytes | Mapping | Set) or not hasattr(given, "__iter__"):
        raise ConfigurationError(f"{what}: {name} needs a list, got {given!r:.80}")
    labels = tuple(None if is_missing(value) else _label(name, what, value) for value in given)
    twice = [label for i, label in enumerate(labels) if label in labels[:i]]
    if twice:
        raise ConfigurationError(f"{what}: {name} lists {twice[0]!r} twice (for Python True is 1 and 1.0 is 1)")
    return labels


def _label(name: str, what: str, value: Any) -> Label:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float) or (isinstance(plain, float) and not math.isfinite(plain)):
        raise ConfigurationError(f"{what}: {name} needs labels of text, numbers or bools, got {value!r}")
    return plain


def _check_values(given: Mapping[str, Any]) -> None:
    """Check special values against regular ones, units and descriptions."""
    for name, states in given["special"].items():
        regular = given["categories"].get(name, ()) + given["ordinal"].get(name, ())
        for state in states:
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


def _parts(given: Mapping[str, Any]) -> tuple[Feature, ...]:
    """The features from checked arguments."""
    declared: list[tuple[str, Kind, Range, tuple[Label, ...]]] = [
        *((name, "numeric", ends, ()) for name, ends in given["numeric"].items()),
        *((name, "category", (0.0, 1.0), labels) for name, labels in given["categories"].items()),
        *((name, "ordinal", (0.0, len(levels) - 1.0), levels) for name, levels in given["ordinal"].items()),
    ]
    found: list[Feature] = []
    for name, kind, (low, high), labels in declared:
        first = found[-1].columns.stop if found else 0
        states = (*given["special"].get(name, ()), *((None,) if name in given["missing"] else ()))
        found.append(Feature(name, kind, first, low, high, labels, states, given["units"].get(name, "")))
    return tuple(found)
