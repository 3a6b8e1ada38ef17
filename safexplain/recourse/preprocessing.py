"""Public preprocessing: from a person's frame, in units and categories, to the columns that solvers and training use.

Three spaces of a row:

- the frame, as people have it: numbers in their units, categories as labels, special values (-9) and missing ones;
- the table, float64 (n, D), which solvers work on: numbers in their units, ordinal levels as 0 to k - 1, one 0/1 column
  for each category, and for a feature with special or missing values one 0/1 column for each of these;
- the scaled table, which training sees: affine in the table, column by column, of bounded norm. Numbers and levels are
  brought from their public range to [-1, 1], 0/1 columns stay, and the norm bound is that of the worst case: each
  feature counts at most 1, so that F features make sqrt(F). At epsilon 1 this was as good as any of the natural ones
  (Adult, HELOC; ranges to [0, 1], centred or halved categories, norm bounds of .5 to .85 of the worst case): what
  counts more is that `DPModelRecourse` then learns from rows minus their noised mean. So Adult reaches .845, and HELOC
  .730, the figure of columns that were standardised with the data's own mean and deviation.

Everything is declared and nothing is read off data, so that the map of each record depends on that record only: a
mechanism that is private for the rows it is given is private for the rows of the frame (a neighbouring frame becomes a
neighbouring table; add/remove, substitute and zero-out alike). Training numbers outside of the public range count as
its ends, which is such a map; to refuse them would tell about one record. What no declared label says, and what is
missing without being declared so, is refused in training too, as unknown class labels are: no end of a range stands for
it, and that it was refused is not told to who is given answers (an assumption of every guarantee).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from safexplain._digest import sha256
from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import L1, L2, Cost, check_cost
from safexplain.recourse.found import Floats, as_rows, first_of
from safexplain.recourse.frames import close_to, columns_of, is_missing, kind_of, numbers_of, values_of, written

Range = tuple[float | None, float | None]
Label = str | int | float | bool
PUBLIC_PREPROCESSING = (
    "the ranges, categories, levels, special values and missing values of the preprocessing are public knowledge and"
    " were not computed from the training data"
)
"""What a guarantee with preprocessing assumes besides."""


@dataclass(frozen=True)
class Feature:
    """A person's feature and where it stands in the table.

    Args:
        name: of the frame's column.
        kind: "numeric", "category" or "ordinal".
        first: its first column in the table.
        low: least value in the table, -inf where there is no limit; 0 for an ordinal feature.
        high: greatest value, likewise.
        labels: categories, or the levels in order.
        states: special values, None for missing; each has a 0/1 column behind the others.
    """

    name: str
    kind: Literal["numeric", "category", "ordinal"]
    first: int
    low: float
    high: float
    labels: tuple[Label, ...]
    states: tuple[Label | None, ...]

    @property
    def values(self) -> int:
        """Number of columns that hold its values: one, or one a category."""
        return len(self.labels) if self.kind == "category" else 1

    @property
    def columns(self) -> slice:
        """All of its columns."""
        return slice(self.first, self.first + self.values + len(self.states))

    @property
    def state_columns(self) -> slice:
        """The columns of special and missing values."""
        return slice(self.first + self.values, self.first + self.values + len(self.states))

    @property
    def regular(self) -> tuple[float, float]:
        """Ends of its regular values: next to an end of the range that is a special value, so that no answer is one."""
        low, high = self.low, self.high
        if self.kind != "numeric":
            return low, high
        while low in self.states:
            low = math.nextafter(low, math.inf)
        while high in self.states:
            high = math.nextafter(high, -math.inf)
        return low, high

    @property
    def middle(self) -> float:
        """What stands in the value column of a row whose value is special: the middle of the range, rounded down to a
        whole number where the range is wide or both ends are whole; without an end the other one, or 0."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return float(np.clip(0.0, self.low, self.high))
        middle = self.low + (self.high - self.low) / 2
        whole = self.high - self.low >= 2 or (self.low == int(self.low) and self.high == int(self.high))
        return float(math.floor(middle)) if whole else middle


@dataclass(eq=False, repr=False)
class Preprocessing(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """What is publicly known of the features; a scikit-learn transformer to the scaled table that learns nothing.

    An answer never leaves the public ranges, and special and missing values never change: they are facts about a
    person, not numbers to move. A special value is special wherever it lies, inside of the range too; at an end of the
    range the regular values begin next to it.

    Args:
        numeric: name -> (least, greatest) value in the feature's unit; None for no limit, which solvers can use and
            training cannot.
        categories: name -> all labels (str, int, float or bool).
        ordinal: name -> all levels in their order; a change of one level costs the same everywhere.
        special: name -> values that stand for something else than themselves, such as [-7, -8, -9]; None or NaN among
            them is the same as naming the feature under `missing`.
        missing: names of the features that may be missing (None, NaN, NA).
        units: name -> unit of a numeric feature, for messages and reasons.
        describe: name -> what sentences and letters call a feature ("revolving balance").

    Attributes:
        features: names of the person's features, (F,).
        columns: names of the table's columns, (D,): a numeric feature by its name, a category as "job=clerk".
        feature_of: (D,) the person's feature of each column.
        offset: (D,) scaled = (table - offset) / scale.
        scale: (D,) likewise.
        digest: SHA-256 of everything declared and of the scaling.

    Raises:
        ConfigurationError: nothing declared, a feature twice, labels that are missing or occur twice, a range without
            room, or a name that is declared nowhere.

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

    def __post_init__(self) -> None:
        given: dict[str, Any] = {name: _mapping(name, getattr(self, name)) for name in _MAPPINGS}
        lost = () if self.missing is None else self.missing
        given["missing"] = tuple(lost) if hasattr(lost, "__iter__") and not isinstance(lost, str) else (lost,)
        names = [name for kind in ("numeric", "categories", "ordinal") for name in given[kind]]
        if not names:
            raise ConfigurationError("Preprocessing: no features; declare them under numeric, categories or ordinal")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                f"{twice[0]}: declared more than once; a feature is numeric, categories or ordinal, one of these"
            )
        for what in ("special", "missing", "units", "describe"):
            unknown = [name for name in given[what] if name not in names]
            if unknown:
                raise ConfigurationError(
                    f"{what}: unknown feature {unknown[0]!r}{close_to(unknown[0], names)}; known: {', '.join(names)}"
                )
        given["numeric"] = {name: _range(name, ends) for name, ends in given["numeric"].items()}
        for kind in ("categories", "ordinal"):
            given[kind] = {name: _labels(name, kind, labels) for name, labels in given[kind].items()}
        states = {name: _states(name, values) for name, values in given["special"].items()}
        for name in given["numeric"]:
            for value in states.get(name, ()):
                if isinstance(value, str | bool):
                    raise ConfigurationError(f"special: {name} is numeric, and {value!r} is no number")
        either = tuple(n for n in names if n in given["missing"] or None in states.get(n, ()))
        given["special"] = {n: tuple(v for v in values if v is not None) for n, values in states.items()}
        given["special"] = {n: values for n, values in given["special"].items() if values}
        given["missing"] = either
        for name, unit in given["units"].items():
            if not isinstance(unit, str) or name not in given["numeric"]:
                raise ConfigurationError(f"units: expected the unit of a numeric feature as text, got {name}: {unit!r}")
        for name, label in given["describe"].items():
            if not isinstance(label, str) or not label:
                raise ConfigurationError(f"describe: expected what to call a feature as text, got {name}: {label!r}")
        for name, value in given.items():
            object.__setattr__(self, name, MappingProxyType(value) if isinstance(value, dict) else value)
        _ = self.columns  # finds names that two columns would share

    @cached_property
    def parts(self) -> tuple[Feature, ...]:
        """(F,) the person's features, numeric ones first, then categories, then ordinal ones."""
        found: list[Feature] = []
        at = 0
        for kind in ("numeric", "categories", "ordinal"):
            for name, declared in getattr(self, kind).items():
                states: tuple[Any, ...] = tuple(self.special.get(name, ()))
                states += (None,) if name in self.missing else ()
                if kind == "numeric":
                    low, high = (-math.inf if declared[0] is None else declared[0]), declared[1]
                    part = Feature(name, "numeric", at, low, math.inf if high is None else high, (), states)
                else:
                    both = [label for label in declared if label in states]
                    if both:
                        raise ConfigurationError(f"special: {name} has {both[0]!r} as a regular label too")
                    top = len(declared) - 1.0
                    singular: Literal["category", "ordinal"] = "category" if kind == "categories" else "ordinal"
                    part = Feature(name, singular, at, 0.0, 1.0 if singular == "category" else top, declared, states)
                found.append(part)
                at = part.columns.stop
        return tuple(found)

    @property
    def features(self) -> tuple[str, ...]:
        """(F,) names of the person's features."""
        return tuple(part.name for part in self.parts)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """(D,) names of the table's columns."""
        names: list[str] = []
        for part in self.parts:
            regular = [part.name] if part.kind != "category" else [f"{part.name}={_text(v)}" for v in part.labels]
            lost = f"{part.name}=missing"
            taken = {*regular, *(f"{part.name}={_text(v)}" for v in part.states if v is not None)}
            lost = f"{part.name}=(missing)" if lost in taken else lost
            names += regular + [lost if v is None else f"{part.name}={_text(v)}" for v in part.states]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigurationError(f"{twice[0]}: two columns of the table would have this name; rename a label")
        return tuple(names)

    @cached_property
    def feature_of(self) -> NDArray[np.intp]:
        """(D,) index in `features` of each column's feature."""
        return _kept(np.repeat(np.arange(len(self.parts)), [p.columns.stop - p.columns.start for p in self.parts]))

    @cached_property
    def offset(self) -> Floats:
        """(D,) what becomes 0 in the scaled table."""
        found = np.zeros(len(self.columns))
        for part in self.parts:
            if part.kind != "category" and math.isfinite(part.low) and math.isfinite(part.high):
                found[part.first] = part.low + (part.high - part.low) / 2
        return _kept(found)

    @cached_property
    def scale(self) -> Floats:
        """(D,) what becomes 1 in the scaled table, measured from the offset."""
        found = np.ones(len(self.columns))
        for part in self.parts:
            if part.kind != "category" and math.isfinite(part.low) and math.isfinite(part.high):
                found[part.first] = (part.high - part.low) / 2 or 1.0
        return _kept(found)

    @property
    def norm_bound(self) -> float:
        """Bound on the Euclidean norm of a scaled row: what training needs.

        Raises:
            ConfigurationError: a feature without a public range.
        """
        self._check_bounded()
        return math.sqrt(sum(_longest(part, self.offset, self.scale) for part in self.parts))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is declared, and of the scaling; another preprocessing has another one."""
        told = ["safexplain preprocessing 1", self.to_dict(), self.offset.tolist(), self.scale.tolist()]
        return sha256(json.dumps(told, separators=(",", ":"), sort_keys=True))

    def table(self, frame: Any, *, clip: bool = False) -> Floats:
        """The rows of a frame in the columns of the table.

        Args:
            frame: n persons with the features in any order: a pandas or polars DataFrame, a dict of lists, a list of
                dicts; one person as a Series or a dict. An array is read as rows of the table itself, or, where it has
                F columns and the table has not, as the features in their order.
            clip: numbers outside of their public range count as its ends, as in training; else they are refused.

        Returns:
            (n, D) float64.

        Raises:
            InputError: missing, unknown or repeated columns, an unknown label, a number out of its public range, text
                where numbers are meant, or a missing value that is not declared; with feature, row and value.
        """
        if kind_of(frame) is None:
            return self._from_array(frame, clip=clip)
        columns, n = columns_of(frame, self.features)
        out = np.zeros((n, len(self.columns)))
        for part in self.parts:
            if part.kind == "numeric":
                self._put_numbers(out, part, columns[part.name], clip=clip)
            else:
                self._put_labels(out, part, columns[part.name])
        return out

    def frame(self, table: Any, like: Any = None) -> Any:
        """Rows of the table as people have them.

        Args:
            table: (n, D) or (D,) rows.
            like: a frame of the kind that is wanted, with its types of columns; where it has n rows, those whose value
                did not change keep it as it came, and a pandas index is kept. None: a dict of lists.

        Returns:
            n persons; whole numbers stay integers where the column had integers, labels and special values are those
            that were declared, missing values stay missing.

        Raises:
            InputError: rows that are none of this table.
        """
        rows = self._checked(as_rows(table, len(self.columns)))
        is_frame = kind_of(like) is not None
        came, own = columns_of(like, self.features) if is_frame else ({}, -1)
        before = None
        if own == len(rows):
            with suppress(InputError):  # of values that could not be read, none is kept
                before = self.table(like)
        found: dict[str, list[Any]] = {}
        same = []
        for part in self.parts:
            if before is None:
                found[part.name] = self._values(part, rows)
                continue
            kept = (before[:, part.columns] == rows[:, part.columns]).all(axis=1)
            found[part.name] = given = values_of(came[part.name])
            same += [part.name] if kept.all() else []
            moved = np.flatnonzero(~kept)
            for row, value in zip(moved.tolist(), self._values(part, rows[moved]), strict=True):
                given[row] = value
        return written(found, like, {part.name: part.labels for part in self.parts if part.labels}, same)

    def scaled(self, table: Any) -> Floats:
        """(n, D) rows of the table as training sees them: (table - offset) / scale.

        Raises:
            ConfigurationError: a feature without a public range.
        """
        self._check_bounded()
        rows: Floats = (np.asarray(table, dtype=np.float64) - self.offset) / self.scale
        return rows

    def held(self, table: Floats) -> NDArray[np.bool_]:
        """(n, D) bool, the columns of features that are special or missing in a row: these never change there."""
        found = np.zeros(table.shape, dtype=bool)
        for part in self.parts:
            if part.states:
                special = (table[:, part.state_columns] != 0).any(axis=1)
                found[:, part.columns] = special[:, None]
        return found

    def constraints(self, constraints: Constraints | None = None) -> Constraints:
        """The constraints of the person's features on the table's columns, within the public ranges.

        Args:
            constraints: names are features (all or some of them, in any order), or columns of the table, such as
                upper={"job=clerk": 0} to rule a category out. None: the public ranges only.

        Raises:
            ConfigurationError: an unknown feature, limits that leave nothing of a public range, or an order, a limit or
                whole numbers asked of categories, which have none; with the feature.
        """
        check_constraints(constraints)
        return _expanded(self, constraints)

    def cost(self, cost: Cost) -> Cost:
        """The cost on the table's columns.

        Without a scale each feature counts in units of its public range (a unit of its own without one), and another
        category as much as the whole range of a number: Gower's distance with `L1`. A scale, rise or fall is one
        number a feature in the order of `features`, one a column of the table, or by name, where those that are not
        named have their public range.

        Raises:
            ConfigurationError: a scale of another length.
        """
        check_cost(cost)
        return _priced(self, cost)

    def vector(self, given: Any, what: str) -> Floats:
        """(D,) one finite number a column of the table; not all 0.

        Args:
            given: D numbers; F numbers, 0 for categories; or a mapping from features (not categories) and columns, 0
                for those that are not named.
            what: how messages call it.

        Raises:
            ConfigurationError: another length, an unknown name, a number for a category as a whole, or not finite.
        """
        d, f = len(self.columns), len(self.parts)
        found = np.zeros(d)
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in self.features and name not in self.columns]
            if unknown:
                known = [*self.features, *self.columns]
                raise ConfigurationError(
                    f"{what}: unknown feature {unknown[0]!r}{close_to(unknown[0], known)}; known: {', '.join(known)}"
                )
            for name, value in given.items():
                found[_columns_for(self, name, what)] = _number(f"{what} of {name}", value)
        else:
            numbers = real_numbers(given, what, ConfigurationError)
            if numbers.shape not in ((d,), (f,)):
                raise ConfigurationError(
                    f"{what}: expected one number for each of the {d} columns {', '.join(self.columns)}, or a mapping;"
                    f" got shape {numbers.shape}"
                )
            if len(numbers) == d:
                found = numbers
            else:
                for part, number in zip(self.parts, numbers, strict=True):
                    found[_columns_for(self, part.name, what) if number else []] = number
        if not np.isfinite(found).all() or not found.any():
            raise ConfigurationError(f"{what}: expected finite numbers that are not all 0")
        return _kept(found)

    def misread(self, table: Floats) -> NDArray[np.bool_]:
        """(n,) bool, rows with a regular value that a frame would tell as a special one, as their range has it too."""
        found = np.zeros(len(table), dtype=bool)
        for part in self.parts:
            if part.kind == "numeric" and part.states:
                special = [float(value) for value in part.states if value is not None]
                regular = (table[:, part.state_columns] == 0).all(axis=1)
                found |= regular & np.isin(table[:, part.first], special)
        return found

    # scikit-learn's transformer

    def fit(self, X: Any = None, y: Any = None) -> Preprocessing:
        """Nothing: all is declared."""
        return self

    def transform(self, X: Any) -> Floats:
        """(n, D) the scaled table of a frame; numbers outside of their public range count as its ends.

        Raises:
            InputError: as `table`.
            ConfigurationError: a feature without a public range.
        """
        self._check_bounded()
        return self.scaled(self.table(X, clip=True))

    @property
    def n_features_in_(self) -> int:
        """F."""
        return len(self.parts)

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """(F,) `features`, as scikit-learn has them."""
        return np.array(self.features, dtype=object)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """(D,) `columns`."""
        return np.array(self.columns, dtype=object)

    def set_params(self, **params: Any) -> Preprocessing:
        """Refused: what is public does not change; make another Preprocessing.

        Raises:
            ConfigurationError: parameters were given.
        """
        for name, value in params.items():
            setattr(self, name, value)
        return self

    # as JSON

    def to_dict(self) -> dict[str, Any]:
        """What was declared, in plain JSON types, whose keys may be stored in any order; see `from_dict`."""
        return {
            "features": list(self.features),
            "numeric": {name: list(ends) for name, ends in self.numeric.items()},
            "categories": {name: list(labels) for name, labels in self.categories.items()},
            "ordinal": {name: list(labels) for name, labels in self.ordinal.items()},
            "special": {name: list(values) for name, values in self.special.items()},
            "missing": list(self.missing),
            "units": dict(self.units),
            "labels": dict(self.describe),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Preprocessing:
        """What `to_dict` gave, after JSON too.

        Raises:
            ConfigurationError: other names, or as the constructor.
        """
        given = dict(plain)
        given["describe"] = given.pop("labels", {})
        order = given.pop("features", [])
        unknown = sorted(set(given) - {*_MAPPINGS, "missing"})
        if unknown:
            raise ConfigurationError(f"Preprocessing: unknown {', '.join(unknown)}")
        for kind in ("numeric", "categories", "ordinal") if order else ():
            declared = given.get(kind, {})
            given[kind] = {name: declared[name] for name in order if name in declared} | dict(declared)
        return cls(**given)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in {*_MAPPINGS, "missing"} and "parts" in self.__dict__:  # scikit-learn keeps notes of its own here
            raise ConfigurationError("Preprocessing is part of a guarantee and does not change; make another one")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        declared = {name: value for name, value in self.to_dict().items() if value and name != "features"}
        return f"Preprocessing({', '.join(f'{name}={value!r}' for name, value in declared.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preprocessing) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> Any:
        return _restored, (self.to_dict(),)

    def __sklearn_clone__(self) -> Preprocessing:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.categorical, tags.input_tags.string = False, True, True
        tags.input_tags.allow_nan = bool(self.missing)
        return tags

    def _check_bounded(self) -> None:
        for part in self.parts:
            if not math.isfinite(part.high - part.low):
                raise ConfigurationError(
                    f"{part.name}: no public range, and training needs one, as its noise is for rows of bounded norm;"
                    f" declare numeric={{{part.name!r}: (least, greatest)}} by public knowledge"
                )

    def _put_numbers(self, out: Floats, part: Feature, column: Any, *, clip: bool) -> None:
        values, narrow = numbers_of(column, part.name)
        if narrow:  # float32 has no .1: its nearest number is what was meant
            for public in (part.low, part.high, *(float(v) for v in part.states if v is not None)):
                values[values == np.float64(np.float32(public))] = public
        special = np.zeros(len(values), dtype=bool)
        for i, state in enumerate(part.states):
            here = np.isnan(values) if state is None else values == state
            out[here, part.state_columns.start + i] = 1.0
            special |= here
        infinite = ~np.isfinite(values) & ~special
        if infinite.any():
            row = int(infinite.argmax())
            if np.isnan(values[row]):
                raise InputError(
                    f"{part.name}: missing in {_rows(infinite)}; fill it, or declare that it may be:"
                    f" missing=({part.name!r},)"
                )
            raise InputError(f"{part.name}: infinite in {_rows(infinite)}; correct or leave out")
        outside = ~special & ((values < part.low) | (values > part.high))
        if outside.any() and not clip:
            self._refuse_outside(part, values, outside)
        with np.errstate(invalid="ignore"):
            regular = np.clip(values, part.low, part.high) + 0.0
        out[:, part.first] = np.where(special, part.middle, regular)

    def _refuse_outside(self, part: Feature, values: Floats, outside: NDArray[np.bool_]) -> None:
        unit = f" {self.units[part.name]}" if part.name in self.units else ""
        value = float(values[outside.argmax()])
        raise InputError(
            f"{part.name}: {value:.15g} in {_rows(outside)} lies outside of the public range {part.low:.15g} to"
            f" {part.high:.15g}{unit}; correct the row, widen numeric={{{part.name!r}: (...)}}, or if the value stands"
            f" for something else, declare special={{{part.name!r}: [{value:.15g}]}}"
        )

    def _put_labels(self, out: Floats, part: Feature, column: Any) -> None:
        known = (*part.labels, *part.states)
        place: dict[Any, int] = {label: i for i, label in enumerate(known)}
        lost = place.pop(None, -1)
        found = []
        for row, value in enumerate(values_of(column)):
            try:
                code = place.get(value, -1)
            except TypeError:  # a list, which no label is
                code = -1
            if code < 0 and is_missing(value):
                code = lost
                if lost < 0:
                    raise InputError(
                        f"{part.name}: missing in row {row}; fill it, or declare that it may be:"
                        f" missing=({part.name!r},)"
                    )
            if code < 0:
                kind = "level" if part.kind == "ordinal" else "category"
                listed = ", ".join(repr(label) for label in known if label is not None)
                raise InputError(
                    f"{part.name}: unknown {kind} {value!r} in row {row}{close_to(value, known)}; known: {listed}."
                    f" Correct the row, or add it to the public list of {part.name}"
                )
            found.append(code)
        codes = np.array(found, dtype=np.intp)
        rows = np.arange(len(codes))
        if part.kind == "category":
            out[rows, part.first + codes] = 1.0
            return
        special = codes >= len(part.labels)
        out[:, part.first] = np.where(special, part.middle, codes)
        out[rows[special], part.first + 1 + codes[special] - len(part.labels)] = 1.0

    def _from_array(self, x: Any, *, clip: bool) -> Floats:
        d, f = len(self.columns), len(self.features)
        if isinstance(x, np.ndarray) and x.dtype.kind == "O" and x.shape[-1:] == (f,) and d != f:
            return self.table(dict(zip(self.features, np.atleast_2d(x).T, strict=True)), clip=clip)
        rows = real_numbers(
            x, "x", expected=f"expected a frame with the columns {', '.join(self.features)}; arrays hold numbers only"
        )
        rows = rows[None] if rows.ndim == 1 else rows
        if rows.ndim == 2 and rows.shape[1] == f != d:
            return self.table(dict(zip(self.features, rows.T, strict=True)), clip=clip)
        if rows.ndim != 2 or rows.shape[1] != d:
            raise InputError(
                f"x: expected a frame with the columns {', '.join(self.features)}, or rows of the table of shape (n,"
                f" {d}), got shape {np.shape(x)}"
            )
        if not np.isfinite(rows).all():
            raise InputError(f"x: NaN or infinite numbers in {_rows(~np.isfinite(rows).all(axis=1))}; pass a frame")
        if clip:
            for part in self.parts:
                rows[:, part.first] = np.clip(rows[:, part.first], part.low, part.high)
        return self._checked(rows)

    def _checked(self, rows: Floats) -> Floats:
        """Rows that are ones of this table."""
        for part in self.parts:
            flags = rows[:, part.columns] if part.kind == "category" else rows[:, part.state_columns]
            count, most = flags.sum(axis=1), 1
            bad = ((flags != 0) & (flags != 1)).any(axis=1) | (count > most)
            bad |= (count < 1) if part.kind == "category" else False
            if bad.any():
                raise InputError(f"x: {part.name} has no one category or state in {_rows(bad)} of the table")
            if part.kind == "category":
                continue
            values = rows[:, part.first]
            outside = (values < part.low) | (values > part.high)
            if outside.any():
                self._refuse_outside(part, values, outside)
            if part.kind == "ordinal" and (values != np.rint(values)).any():
                raise InputError(f"x: {part.name} is no whole level in {_rows(values != np.rint(values))} of the table")
        return rows

    def _values(self, part: Feature, rows: Floats) -> list[Any]:
        """(n,) the values of a feature in the rows of the table, as a person has them."""
        if part.kind == "category":
            every = (*part.labels, *part.states)
            return [every[i] for i in rows[:, part.columns].argmax(axis=1).tolist()]
        values: list[Any] = rows[:, part.first].tolist()
        if part.kind == "ordinal":
            values = [part.labels[int(value)] for value in values]
        if part.states:
            flags = rows[:, part.state_columns]
            for row in np.flatnonzero(flags.any(axis=1)).tolist():
                values[row] = part.states[int(flags[row].argmax())]
        return values


_MAPPINGS = ("numeric", "categories", "ordinal", "special", "units", "describe")


def _kept(array: NDArray[Any]) -> NDArray[Any]:
    """An array that nobody can write to."""
    array.flags.writeable = False
    return array


def _restored(plain: dict[str, Any]) -> Preprocessing:
    return Preprocessing.from_dict(plain)


def _mapping(what: str, given: Any) -> dict[str, Any]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ConfigurationTypeError(f"{what}: expected a mapping from names of features, got {given!r:.80}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ConfigurationTypeError(f"{what}: expected names of features as text, got {name!r}")
    return dict(given)


def _number(what: str, value: Any) -> float:
    number = real_numbers(value, what, ConfigurationError)
    if number.ndim or isinstance(value, bool | np.bool_):
        raise ConfigurationError(f"{what}: expected a number, got {value!r}")
    return float(number) + 0.0


def _range(name: str, ends: Any) -> Range:
    ends = (None, None) if ends is None else ends
    if isinstance(ends, str) or not isinstance(ends, Sequence | np.ndarray) or len(ends) != 2:
        raise ConfigurationError(f"numeric: {name} needs (least, greatest), None for no limit; got {ends!r}")
    low, high = (None if end is None else _number(f"numeric: the range of {name}", end) for end in ends)
    low, high = (None if low == -math.inf else low), (None if high == math.inf else high)
    finite = [end for end in (low, high) if end is not None]
    if not all(map(math.isfinite, finite)):
        raise ConfigurationError(f"numeric: {name} has the range {low} to {high}; expected finite numbers, or None")
    if low is not None and high is not None and not (low < high and math.isfinite(high - low)):
        raise ConfigurationError(f"numeric: {name} has the range {low:g} to {high:g}; expected least < greatest")
    return low, high


def _plain_label(name: str, what: str, value: Any) -> Label:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, str | int | float) or (isinstance(plain, float) and not math.isfinite(plain)):
        raise ConfigurationError(f"{what}: {name} has the label {value!r}; expected text, numbers or bools")
    return plain


def _distinct(name: str, what: str, given: Any) -> list[Any]:
    if isinstance(given, str | bytes | Mapping | set | frozenset) or not hasattr(given, "__iter__"):
        raise ConfigurationError(f"{what}: {name} needs a list, got {given!r:.80}")
    values = list(given)
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ConfigurationError(f"{what}: {name} lists {twice[0]!r} twice (for Python True is 1 and 1.0 is 1)")
    return values


def _labels(name: str, what: str, given: Any) -> tuple[Label, ...]:
    values = _distinct(name, what, given)
    if any(is_missing(value) for value in values):
        raise ConfigurationError(f"{what}: {name} lists a missing value; declare missing=({name!r},) instead")
    least = 2 if what == "ordinal" else 1
    if len(values) < least:
        raise ConfigurationError(f"{what}: {name} has {len(values)} labels; expected at least {least}")
    return tuple(_plain_label(name, what, value) for value in values)


def _states(name: str, given: Any) -> tuple[Label | None, ...]:
    alone = isinstance(given, str) or not hasattr(given, "__iter__")
    values = _distinct(name, "special", [given] if alone else given)
    return tuple(None if is_missing(value) else _plain_label(name, "special", value) for value in values)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


def _rows(bad: NDArray[np.bool_]) -> str:
    rows = np.flatnonzero(bad)
    return f"row{'s' if len(rows) > 1 else ''} {first_of(rows)}"


def _longest(part: Feature, offset: Floats, scale: Floats) -> float:
    """Largest square that the scaled columns of a feature add up to."""
    if part.kind == "category":
        return 1.0
    ends = max(abs(part.low - offset[part.first]), abs(part.high - offset[part.first])) / scale[part.first]
    middle = (part.middle - offset[part.first]) / scale[part.first]
    return float(max(ends**2, 1.0 + middle**2 if part.states else 0.0))


def _expanded(people: Preprocessing, given: Constraints | None) -> Constraints:
    """The constraints of features on columns."""
    low, high = np.zeros(len(people.columns)), np.ones(len(people.columns))
    lists: dict[str, list[int]] = {name: [] for name in ("immutable", "integer", "increasing", "decreasing")}
    groups: list[list[int]] = []
    for part in people.parts:
        columns = list(range(part.columns.start, part.columns.stop))
        lists["immutable"] += range(part.state_columns.start, part.state_columns.stop)
        if part.kind != "category":
            low[part.first], high[part.first] = part.regular
            lists["integer"] += [part.first] if part.kind == "ordinal" else []
        elif len(columns) > 1:
            groups.append(columns)
        else:
            lists["immutable"].append(part.first)
    of_changes: dict[str, Any] = {}
    if given is not None:
        names = _names_of(people, given)

        def at(feature: int | str, what: str) -> list[int]:
            return _columns_for(people, feature if isinstance(feature, str) else names[feature], what)

        for what, ends in (("lower", given.low), ("upper", given.high)):
            for column, end in _by_column(people, names, what, getattr(given, what), ends):
                _narrow(people, what, column, end, low, high)
        for name in lists:
            lists[name] += [column for feature in getattr(given, name) for column in at(feature, name)]
        groups += [[column for feature in group for column in at(feature, "one_hot")] for group in given.one_hot]
        steps = given.grid * (given.grid != given.whole)  # whole numbers are asked for by `integer`
        for what, sizes, none in (("largest_change", given.largest, math.inf), ("step", steps, 0.0)):
            found = np.full(len(people.columns), none)
            for column, size in _by_column(people, names, what, getattr(given, what), sizes):
                found[column] = size
            of_changes[what] = None if (found == none).all() else tuple(found.tolist())
        of_changes["most_changes"] = given.most_changes
        of_changes["rules"] = tuple(
            replace(
                rule,
                when=people.columns[at(rule.when, "rules")[0]],
                then=people.columns[at(rule.then, "rules")[0]],
            )
            for rule in given.rules
        )
    named: dict[str, Any] = {name: tuple(people.columns[c] for c in sorted(set(cs))) for name, cs in lists.items()}
    return Constraints(
        people.columns,
        lower=tuple(low.tolist()),
        upper=tuple(high.tolist()),
        one_hot=tuple(tuple(people.columns[column] for column in group) for group in groups),
        **named,
        **of_changes,
    )


def _names_of(people: Preprocessing, given: Constraints) -> tuple[str, ...]:
    """What the constraints call their columns: features, or columns of the table."""
    if not isinstance(given.features, int):
        known = {*people.features, *people.columns}
        unknown = [name for name in given.features if name not in known]
        if unknown:
            raise ConfigurationError(
                f"constraints: unknown feature {unknown[0]!r}{close_to(unknown[0], sorted(known))}; the preprocessing"
                f" has {', '.join(people.features)}"
            )
        return given.features
    for names in (people.features, people.columns):
        if given.features == len(names):
            return names
    raise ConfigurationError(
        f"constraints: for {given.features} columns, but the preprocessing has the {len(people.features)} features"
        f" {', '.join(people.features)}; pass Constraints(preprocessing.features, ...)"
    )


def _columns_for(people: Preprocessing, name: str, what: str) -> list[int]:
    """The columns that a constraint on a feature, or on one column of the table, is about."""
    part = next((part for part in people.parts if part.name == name), None)
    if part is None:
        return [people.columns.index(name)]
    if part.kind != "category":
        return [part.first]
    if what == "immutable":
        return list(range(part.columns.start, part.columns.stop))
    example = people.columns[part.first]
    advice = {
        "lower": f"rule a category out by its column, as in upper={{{example!r}: 0}}",
        "upper": f"rule a category out by its column, as in upper={{{example!r}: 0}}",
        "integer": "leave it out, as categories are kept whole anyway",
        "one_hot": "leave it out, as its columns are a one-hot group anyway",
        "rules": f"name its column, as in Rule({example!r}, ...)",
        "public_weights": f"name its columns, as in {{{example!r}: 1}}",
        "direction": "a step cannot switch it; leave it out",
    }.get(what, f"declare its labels in their order, ordinal={{{name!r}: [...]}}")
    raise ConfigurationError(f"{what}: {name} is a category, not a number; {advice}")


def _by_column(
    people: Preprocessing, names: tuple[str, ...], what: str, given: Any, numbers: Floats
) -> list[tuple[int, float]]:
    """Limits or sizes that were given for features, by column; one for all is for numbers only."""
    if given is None:
        return []
    categories = {part.name for part in people.parts if part.kind == "category"}
    found = []
    for name, number in zip(names, numbers.tolist(), strict=True):
        none = not math.isfinite(number) or (what == "step" and number == 0)
        if not none and not (name in categories and isinstance(given, int | float)):
            found += [(column, number) for column in _columns_for(people, name, what)]
    return found


def _narrow(people: Preprocessing, what: str, column: int, end: float, low: Floats, high: Floats) -> None:
    """One limit within the public range, in place."""
    if what == "lower":
        low[column] = max(low[column], end)
    else:
        high[column] = min(high[column], end)
    if low[column] > high[column]:
        public = people.parts[people.feature_of[column]]
        other = (high if what == "lower" else low)[column]
        leaves = f"the public range {public.low:.15g} to {public.high:.15g}"
        if other not in (public.low, public.high):
            leaves += f" with the other limit {other:.15g}"
        raise ConfigurationError(
            f"{people.columns[column]}: {what} {end:.15g} leaves nothing of {leaves}; change the limit or the range"
        )


def _priced(people: Preprocessing, cost: Cost) -> Cost:
    """The cost of features on columns."""
    sides = {name: _of_columns(people, getattr(cost, name), name, cost.power) for name in ("scale", "rise", "fall")}
    priced: L1 | L2 = replace(cost, **sides)
    return priced


def _of_columns(people: Preprocessing, given: Any, what: str, power: int) -> Any:
    """A scale, rise or fall of features, by column."""
    d, f = len(people.columns), len(people.parts)
    if isinstance(given, int | float):
        return given
    by_name = dict(given) if isinstance(given, tuple) and isinstance(given[0], tuple) else {}
    unknown = [name for name in by_name if name not in people.features and name not in people.columns]
    if unknown:
        known = [*people.features, *people.columns]
        raise ConfigurationError(
            f"{what}: unknown feature {unknown[0]!r}{close_to(unknown[0], known)}; known: {', '.join(people.features)}"
        )
    numbers = None if given is None or by_name else np.asarray(given)
    if numbers is not None and len(numbers) == d != f:
        return given
    if numbers is not None and len(numbers) != f:
        raise ConfigurationError(
            f"{what}: expected {f} numbers, one a feature ({', '.join(people.features)}), got {len(numbers)}"
        )
    found = np.ones(d)
    for i, part in enumerate(people.parts):
        room = part.high - part.low
        usual = room if what == "scale" and part.kind != "category" and math.isfinite(room) else 1.0
        unit = float(numbers[i]) if numbers is not None else float(by_name.get(part.name, usual))
        both = 2.0 ** (1 / power) if what == "scale" and part.kind == "category" else 1.0  # two of its columns change
        found[part.columns] = unit * both
    for name, number in by_name.items():
        if name not in people.features:
            found[people.columns.index(name)] = number
    return tuple(found.tolist())
