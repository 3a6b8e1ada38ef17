"""Features of a person, their columns in the table, and frames of people; imports neither pandas nor polars."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import readable, real_numbers
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.solution import Floats, rows_where

Kind = Literal["numeric", "category", "ordinal"]
Label = str | int | float | bool


@dataclass(frozen=True)
class Feature:
    """A person's feature and its columns in the table: one for the value of a numeric or ordinal feature (`middle` for
    a row in a state), a 0/1 column for each label of a category, then one for each state (special or missing value).
    `low` and `high` are its ends in the table, 0 and k - 1 for k levels."""

    name: str
    kind: Kind
    first: int  # its first column
    low: float
    high: float
    labels: tuple[Label, ...]  # categories, or the levels in order
    states: tuple[Label | None, ...]  # special values, and None for missing as the last
    unit: str = ""  # of a numeric feature

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its columns: "age", or "job=clerk" for each category; "age=-9" for a state."""
        regular = [] if self.kind == "category" else [self.name]
        labels = (*(self.labels if self.kind == "category" else ()), *self.states)
        names = regular + [f"{self.name}={_label_text(label)}" for label in labels if label is not None]
        missing = f"{self.name}=missing" if f"{self.name}=missing" not in names else f"{self.name}=(missing)"
        return (*names, missing) if None in self.states else tuple(names)

    @property
    def columns(self) -> slice:
        """All of its columns."""
        return slice(self.first, self.first + len(self.names))

    @property
    def state_columns(self) -> slice:
        """The columns of special and missing values."""
        return slice(self.columns.stop - len(self.states), self.columns.stop)

    @property
    def offset(self) -> float:
        """The number or level that is 0 in the scaled table."""
        return 0.0 if self.kind == "category" else self.low + (self.high - self.low) / 2

    @property
    def scale(self) -> float:
        """Distance from the offset that is 1 in the scaled table."""
        return 1.0 if self.kind == "category" else (self.high - self.low) / 2 or 1.0

    @property
    def longest(self) -> float:
        """Largest sum of squares of its scaled columns."""
        if self.kind == "category":
            return 1.0
        end = max(abs(self.low - self.offset), abs(self.high - self.offset)) / self.scale
        middle = (self.middle - self.offset) / self.scale
        return max(end**2, 1.0 + middle**2 if self.states else 0.0)

    @property
    def regular(self) -> tuple[float, float]:
        """Ends of its regular values: where an end of the range is a special value, the next float."""
        low, high = self.low, self.high
        if self.kind == "numeric":
            while low in self.states:
                low = math.nextafter(low, math.inf)
            while high in self.states:
                high = math.nextafter(high, -math.inf)
        return low, high

    @property
    def middle(self) -> float:
        """The middle of the range, rounded down to a whole number if the range is wide or both ends are whole."""
        middle = self.low + (self.high - self.low) / 2
        whole = self.high - self.low >= 2 or (self.low == int(self.low) and self.high == int(self.high))
        return float(math.floor(middle)) if whole else middle

    def read(self, column: Any, *, clip: bool = False) -> Floats:
        """(n, k) columns of the table from n values of a frame; `clip` moves numbers into the public range."""
        value, state = self._read_numbers(column, clip) if self.kind == "numeric" else self._read_labels(column)
        if self.kind == "category":
            regular = (value[:, None] == np.arange(len(self.labels))) & (state < 0)[:, None]
        else:
            regular = np.where(state < 0, value, self.middle)[:, None]
        return np.hstack([regular, state[:, None] == np.arange(len(self.states))]).astype(np.float64)

    def values(self, own: Floats) -> list[Any]:
        """n values of a frame, from its columns (n, k) of the table."""
        if self.kind == "category":
            every = (*self.labels, *self.states)
            return [every[i] for i in own.argmax(axis=1).tolist()]
        found: list[Any] = own[:, 0].tolist()
        if self.kind == "ordinal":
            found = [self.labels[int(level)] for level in found]
        for row, state in zip(*np.nonzero(own[:, 1:]), strict=True):
            found[row] = self.states[state]
        return found

    def check(self, own: Floats) -> None:
        """Raise InputError unless its columns (n, k) hold a regular value or one state."""
        flags = own if self.kind == "category" else own[:, 1:]
        count = flags.sum(axis=1)
        bad = ((flags != 0) & (flags != 1)).any(axis=1) | (count > 1) | ((count < 1) & (self.kind == "category"))
        if bad.any():
            raise InputError(f"x: {self.name} needs exactly one category or state in {rows_where(bad)} of the table")
        if self.kind == "category":
            return
        self._check_range(own[:, 0], (own[:, 0] < self.low) | (own[:, 0] > self.high))
        between = (own[:, 0] != np.rint(own[:, 0])) & (self.kind == "ordinal")
        if between.any():
            raise InputError(f"x: {self.name} needs a whole level in {rows_where(between)} of the table")

    def _read_numbers(self, column: Any, clip: bool) -> tuple[Floats, NDArray[np.intp]]:
        """(n,) regular values, and the position of each row's state, or -1."""
        values, narrow = numbers_of(column, self.name)
        special = [float(state) for state in self.states if state is not None]
        if narrow:  # float32 lacks .1: its nearest number is meant
            for public in (self.low, self.high, *special):
                values[values == np.float64(np.float32(public))] = public
        state = np.full(len(values), -1)
        for i, value in enumerate(self.states):
            state[np.isnan(values) if value is None else values == value] = i
        lost = np.isnan(values) & (state < 0)
        if lost.any():
            raise InputError(self._missing(rows_where(lost)))
        infinite = np.isinf(values) & (state < 0)
        if infinite.any():
            raise InputError(f"{self.name}: expected finite numbers, got infinity in {rows_where(infinite)}")
        if not clip:
            self._check_range(values, ((values < self.low) | (values > self.high)) & (state < 0))
        return np.clip(values, self.low, self.high) + 0.0, state

    def _read_labels(self, column: Any) -> tuple[Floats, NDArray[np.intp]]:
        known = (*self.labels, *self.states)
        index = {label: i for i, label in enumerate(known)}
        found = []
        for row, value in enumerate(values_of(column)):
            try:
                found.append(index[None if is_missing(value) else value])
            except (KeyError, TypeError):  # a list, for example, cannot be a key
                if is_missing(value):
                    raise InputError(self._missing(f"row {row}")) from None
                kind = "level" if self.kind == "ordinal" else "category"
                labels = ", ".join(repr(label) for label in known if label is not None)
                raise InputError(
                    f"{self.name}: expected one of {labels}, got the unknown {kind} {value!r} in row {row};"
                    f" correct the row, or add it to the public list of {self.name}{suggestion(value, known)}"
                ) from None
        codes = np.array(found, dtype=np.intp)
        return codes.astype(np.float64), np.maximum(codes - len(self.labels), -1)

    def _missing(self, where: str) -> str:
        return f"{self.name}: missing in {where}; fill it, or declare missing=({self.name!r},)"

    def _check_range(self, values: Floats, outside: NDArray[np.bool_]) -> None:
        if outside.any():
            value, unit = float(values[outside.argmax()]), self.unit and f" {self.unit}"
            raise InputError(
                f"{self.name}: expected the public range {self.low:.15g} to {self.high:.15g}{unit}, got {value:.15g} in"
                f" {rows_where(outside)}; correct the row, widen numeric={{{self.name!r}: (...)}}, or for a special"
                f" value declare special={{{self.name!r}: [{value:.15g}]}}"
            )


def _label_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value == int(value) else str(value)


# --- names of columns -----------------------------------------------------------------------------------------------

Column = int | str
Features = int | tuple[str, ...]
Limit = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64] | None


def width_of(features: Features) -> int:
    """Number of columns."""
    return features if isinstance(features, int) else len(features)


def check_features(features: Any) -> Features:
    """The features as a number of columns or as distinct names; ConfigurationError: neither."""
    if isinstance(features, (int, np.integer)) and not isinstance(features, bool) and features > 0:
        return int(features)
    names = () if isinstance(features, str) or not isinstance(features, Iterable) else tuple(map(str, features))
    if not names or isinstance(features, Mapping):
        hint = f"; pass features={names!r}, and limits under lower= and upper=" if names else ""
        raise ConfigurationError(f"features: expected a number of columns or their names, got {features!r}{hint}")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"features: expected distinct names, got {', '.join(names)}")
    return names


def position(features: Features, feature: Any, what: str) -> int:
    """Column of a feature given by index or by name; ConfigurationError: there is none."""
    if isinstance(feature, (int, np.integer)) and not isinstance(feature, bool):
        if 0 <= feature < width_of(features):
            return int(feature)
        raise ConfigurationError(f"{what}: expected a column from 0 to {width_of(features) - 1}, got {feature}")
    if isinstance(features, int):
        raise ConfigurationError(f"{what}: unknown feature {feature!r}; to use names, pass features=(names of columns)")
    check_known([feature], features, what)
    return features.index(feature)


def check_known(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise ConfigurationError for a name that is not known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(
            f"{what}: unknown feature {unknown[0]!r}{suggestion(unknown[0], known)}; known: {', '.join(known)}"
        )


def positions(features: Features, given: Any, what: str) -> list[int]:
    """Columns of one or several features; ConfigurationError: an unknown one, or a mapping."""
    if isinstance(given, Mapping):
        raise ConfigurationError(
            f"{what}: expected names of features, got {given!r}; pass {what}={tuple(given)!r}, and numbers as lower=,"
            " upper=, largest_change= or step="
        )
    return [position(features, feature, what) for feature in as_tuple(given)]


def label(features: Features, column: int) -> str:
    """Name of a column in messages."""
    return f"column {column}" if isinstance(features, int) else features[column]


def number_of(value: Any, what: str) -> float:
    """A single number as a float; ConfigurationError: anything else."""
    number = real_numbers(value, what, ConfigurationError)
    if number.ndim:
        raise ConfigurationError(f"{what}: expected one number, got shape {number.shape}")
    return float(number) + 0.0


def limits(features: Features, given: Limit, what: str, missing: float) -> NDArray[np.float64]:
    """(d,) limits from one number, a mapping feature -> number, or d numbers; ConfigurationError: others, NaN."""
    array = np.full(width_of(features), missing)
    if is_mapping(given):
        for feature, value in given.items():
            array[position(features, feature, what)] = number_of(value, f"{what} of {feature}")
    elif given is not None:
        values = real_numbers(given, what, ConfigurationError)
        if values.ndim and values.shape != array.shape:
            raise ConfigurationError(
                f"{what}: expected one number, a mapping, or {width_of(features)} numbers, got shape {values.shape}"
            )
        array[:] = values
    if np.isnan(array).any():
        raise ConfigurationError(f"{what}: NaN for {label(features, int(np.isnan(array).argmax()))}")
    return array


def hashable(given: Limit, found: Floats) -> Any:
    """Limits as None, one number, or d numbers, as they were given."""
    if given is None:
        return None
    shape: Any = getattr(given, "shape", ())
    several = bool(shape) or isinstance(given, Sequence) or is_mapping(given)
    return tuple(found.tolist()) if several else float(found[0])


def as_tuple(given: Any) -> tuple[Any, ...]:
    """One, several or no (None) features as a tuple."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


def is_mapping(given: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether numbers are given by feature, in a mapping or a pandas Series."""
    return hasattr(given, "keys")


def column_names(x: Any) -> tuple[str, ...] | None:
    """Names of the columns of a table, or of the entries of a row; None: none, or only numbers."""
    names = getattr(x, "columns", None)
    if names is not None and not callable(names):
        return None if list(names) == list(range(len(names))) else tuple(map(str, names))
    names = getattr(x, "index", None) if getattr(x, "ndim", None) == 1 else None
    if names is None or callable(names) or all(isinstance(name, (int, np.integer)) for name in names):
        return None
    return tuple(map(str, names))


def training_columns(model: Any) -> tuple[str, ...] | None:
    """Names of the columns that a scikit-learn model was trained on; None: they had none."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else tuple(map(str, names))


def check_columns(features: Features | None, x: Any, select: str = "x[list(constraints.features)]") -> None:
    """Raise InputError for a table, a row or a list of these whose columns have other names, or another order, than the
    features; `select` says what to pass instead."""
    if not isinstance(features, tuple):
        return
    for part in x if isinstance(x, (list, tuple)) else (x,):
        found = column_names(part)
        if found not in (None, features):
            raise InputError(
                f"x: expected the columns {', '.join(features)}, in this order, got {', '.join(found or ())}; pass"
                f" {select}"
            )


# --- frames of people, read and written -----------------------------------------------------------------------------


def frame_kind(x: Any) -> str | None:
    """Kind of a frame: "pandas", "polars", "records" (a list of dicts), "lists" (a dict of lists), "person" (a dict of
    values, or a pandas Series); None: not a frame."""
    library, name = type(x).__module__.split(".")[0], type(x).__name__
    if name == "DataFrame" and library in ("pandas", "polars"):
        return library
    if name == "Series" and library == "pandas":
        return "person"
    if isinstance(x, Mapping):
        return "lists" if {_is_column(value) for value in x.values()} == {True} else "person"
    if isinstance(x, Sequence) and not isinstance(x, str) and len(x) and all(isinstance(row, Mapping) for row in x):
        return "records"
    return None


def columns_of(x: Any, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The columns of a frame by name, in the order of `names`, and the number of rows."""
    kind = frame_kind(x)
    if kind == "records":
        for i, row in enumerate(x):
            _check_columns(row, names, f" in row {i}")
        return {name: [row[name] for row in x] for name in names}, len(x)
    _check_columns(x.columns if kind in ("pandas", "polars") else x.keys(), names)
    if kind == "person":
        return {name: [x[name]] for name in names}, 1
    if kind != "lists":
        return {name: x[name] for name in names}, len(x)
    columns = {name: readable(x[name], name) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"x: expected columns of one length, got {lengths}")
    return columns, lengths[names[0]]


def numbers_of(column: Any, name: str) -> tuple[Floats, bool]:
    """(n,) a column as numbers, NaN for missing ones, and whether it has less than double precision."""
    dtype = getattr(column, "dtype", None)
    narrow = str(dtype).lower() in ("float16", "float32", "float[pyarrow]", "halffloat[pyarrow]")
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return np.array(column, dtype=np.float64).reshape(len(column)), narrow
    values = [None if is_missing(value) else value for value in values_of(column)]
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, int | float | Decimal | Fraction):
            raise InputError(
                f"{name}: expected numbers, got {reprlib.repr(value)} in row {row}; convert the column, or declare the"
                " feature under categories or ordinal"
            )
    try:
        return np.array(values, dtype=np.float64), narrow  # None becomes NaN
    except OverflowError:
        raise InputError(f"{name}: a number is too large for float64") from None


def values_of(column: Any) -> list[Any]:
    """A column's values as plain Python values."""
    values = column.tolist() if hasattr(column, "tolist") else column
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def is_missing(value: Any) -> bool:
    """Whether a value is missing: None, NaN, or pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and bool(value != value)


def suggestion(value: Any, known: Iterable[Any]) -> str:
    """A hint such as "; did you mean 'clerk'?" if a known label is spelled similarly or has another type."""
    alike = [label for label in known if str(label).strip().lower() == str(value).strip().lower()]
    if not alike and isinstance(value, str):
        texts = [label for label in known if isinstance(label, str)]
        alike = difflib.get_close_matches(value, texts, 1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def write_frame(
    columns: Mapping[str, Any], like: Any, came: Mapping[str, Any], labels: Mapping[str, Sequence[Any]]
) -> Any:
    """Columns (name -> n values, None for missing) as a frame of the kind of `like`, with its order of columns, its
    types if they hold the values exactly, and its index if the number of rows is the same. `came` are its own columns,
    `labels` all labels of each feature."""
    kind, n = frame_kind(like), len(next(iter(columns.values())))
    if kind in ("pandas", "polars"):
        index = {"index": like.index if len(like) == n else None} if kind == "pandas" else {}
        made = {
            name: own if columns[name] is own else _typed_series(columns[name], own, labels[name], index)
            for name in like.columns
            for own in (came[name],)
        }
        return type(like)(made, **index)
    names = like[0] if kind == "records" else like.keys()
    found = {name: _as_integers(values_of(columns[name]), came[name]) for name in names}
    if kind == "person" and n == 1:
        return {name: values[0] for name, values in found.items()}
    if kind == "records":
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return found


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and np.ndim(value) > 0


def _check_columns(found: Iterable[Any], names: Sequence[str], where: str = "") -> None:
    count = Counter(list(found))
    if twice := [str(name) for name in count if count[name] > 1]:
        raise InputError(f"x: expected distinct columns, got {', '.join(twice)} more than once{where}")
    lacking = [name for name in names if name not in count]
    unknown = [str(name) for name in count if name not in names]
    if lacking:
        hint = f"{where}{suggestion(lacking[0], unknown)}"
        raise InputError(f"x: expected the columns {', '.join(names)}, but {', '.join(lacking)} is missing{hint}")
    if unknown:
        raise InputError(
            f"x: unknown column {', '.join(unknown)}{where}; pass the columns {', '.join(names)} only, as in"
            " x[list(preprocessing.features)]"
        )


def _typed_series(values: list[Any], own: Any, labels: Sequence[Any], index: Mapping[str, Any]) -> Any:
    dtype, options = own.dtype, index or {"strict": False}
    if type(dtype).__name__ in ("CategoricalDtype", "Enum"):  # an answer may be a label that the frame lacks
        known = list(dtype.categories)
        new = [value for value in dict.fromkeys(values) if value in labels and value not in known]
        every = list(labels) if new and getattr(dtype, "ordered", False) else known + new
        dtype = type(dtype)(every, dtype.ordered) if hasattr(dtype, "ordered") else type(dtype)(every)
    numbers = [None if is_missing(value) else value for value in values]
    for given, kind in ((values, dtype), (numbers, float)):
        with suppress(Exception):  # each library raises its own errors for values that do not fit a type
            made = type(own)(given, dtype=kind, **options)
            pairs = zip(made.to_list(), values, strict=True)
            if all(is_missing(a) == is_missing(b) and (is_missing(a) or a == b) for a, b in pairs):
                return made
    return type(own)(values, **options)


def _as_integers(values: list[Any], came: Any) -> list[Any]:
    before, after = ([value for value in column if not is_missing(value)] for column in (values_of(came), values))
    if any(type(value) is not int for value in before):
        return values
    if any(type(value) not in (int, float) or value != int(value) for value in after):
        return values
    return [value if is_missing(value) else int(value) for value in values]
