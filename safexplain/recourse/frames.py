"""Frames of people, read and written: one column a feature, numbers and labels as they are.

A frame is a pandas or polars DataFrame, a pandas Series or a dict (one person), a dict of lists, or a list of dicts.
Neither library is imported here: whoever has a frame has imported its library.
"""

from __future__ import annotations

import difflib
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import readable
from safexplain.errors import InputError

Floats = NDArray[np.float64]


def kind_of(x: Any) -> str | None:
    """ "pandas", "series", "polars", "lists" (a dict of lists), "person" (a dict of values), "records" (a list of
    dicts); None: no frame.

    Raises:
        InputError: a lazy frame.
    """
    library, name = type(x).__module__.split(".")[0], type(x).__name__
    if name == "LazyFrame" and library == "polars":
        raise InputError("x: a polars LazyFrame has no rows yet; pass x.collect()")
    if name == "DataFrame" and library in ("pandas", "polars"):
        return library
    if name == "Series" and library == "pandas":
        return "series"
    if isinstance(x, Mapping):
        return "lists" if any(_is_column(value) for value in x.values()) else "person"
    if isinstance(x, Sequence) and not isinstance(x, str) and len(x) and all(isinstance(row, Mapping) for row in x):
        return "records"
    return None


def columns_of(x: Any, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The columns of a frame by name, in the order of `names`, and the number of rows.

    Raises:
        InputError: no frame, or one in which columns are missing, twice there, of different lengths, or not known.
    """
    kind = kind_of(x)
    if kind in ("pandas", "polars"):
        labels = [str(name) for name in x.columns]
        _check_names(labels, names)
        places = {label: i for i, label in enumerate(labels)}
        take: Callable[[int], Any] = (lambda i: x.iloc[:, i]) if kind == "pandas" else x.to_series
        return {name: take(places[name]) for name in names}, len(x)
    if kind == "series":
        labels = [str(name) for name in x.index]
        _check_names(labels, names)
        return {name: [x.iloc[labels.index(name)]] for name in names}, 1
    if kind == "records":
        for i, row in enumerate(x):
            _check_names([str(name) for name in row], names, f" in row {i}")
        rows = [{str(name): value for name, value in row.items()} for row in x]
        return {name: [row[name] for row in rows] for name in names}, len(rows)
    if kind is None:
        raise InputError(
            "x: expected a frame with one named column a feature (a pandas or polars DataFrame, a dict of lists, a list"
            f" of dicts; for one person a Series or a dict), got {type(x).__name__}"
        )
    _check_names([str(name) for name in x], names)
    given = {str(name): value for name, value in x.items()}
    if kind == "person":
        return {name: [given[name]] for name in names}, 1
    single = [name for name in names if not _is_column(given[name])]
    if single:
        raise InputError(f"x: {single[0]} is one value and other columns are lists; give a list for each column")
    columns = {name: readable(given[name], name) for name in names}
    lengths = {name: len(columns[name]) for name in names}
    if len(set(lengths.values())) > 1:
        least, most = min(names, key=lengths.__getitem__), max(names, key=lengths.__getitem__)
        raise InputError(
            f"x: columns of different lengths: {least} has {lengths[least]} rows and {most} {lengths[most]}"
        )
    return columns, lengths[names[0]]


def numbers_of(column: Any, name: str) -> tuple[Floats, bool]:
    """(n,) a column as numbers, NaN where it has none, and whether it came in less than double precision.

    Raises:
        InputError: text, dates or other values that are no numbers; with the feature, the row and the value.
    """
    dtype = getattr(column, "dtype", None)
    narrow = str(dtype).lower() in ("float16", "float32", "float[pyarrow]", "halffloat[pyarrow]")
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return np.array(column, dtype=np.float64).reshape(len(column)), narrow
    if type(column).__module__.startswith("polars"):
        polars = sys.modules["polars"]
        polars_type: Any = dtype
        if polars_type == polars.Boolean or polars_type.is_integer() or polars_type.is_float():
            return np.array(column.cast(polars.Float64).to_numpy(), dtype=np.float64), narrow
    elif not isinstance(dtype, np.dtype) and getattr(dtype, "kind", "O") in "biuf" and hasattr(column, "to_numpy"):
        return np.array(column.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64), narrow
    values = values_of(column)
    found = np.empty(len(values))
    for row, value in enumerate(values):
        if is_missing(value):
            found[row] = np.nan
        elif isinstance(value, bool | int | float | Decimal | Fraction | np.number | np.bool_) and not isinstance(
            value, np.complexfloating
        ):
            try:
                found[row] = float(value)
            except OverflowError:
                raise InputError(f"{name}: a number in row {row} is too large for float64") from None
        else:
            what = f"the text {value!r}" if isinstance(value, str) else f"{type(value).__name__} {reprlib.repr(value)}"
            raise InputError(
                f"{name}: expected numbers, got {what} in row {row}; convert the column, or declare the feature under"
                " categories or ordinal"
            )
    return found, narrow


def values_of(column: Any) -> list[Any]:
    """A column's values as Python has them."""
    for method in ("tolist", "to_list"):
        if hasattr(column, method):
            found = getattr(column, method)()
            return found if isinstance(found, list) else [found]
    return [value.item() if isinstance(value, np.generic) else value for value in column]


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or pandas' NA and NaT."""
    if value is None:
        return True
    kind = type(value)
    if kind is float:
        return bool(value != value)
    if kind is int or kind is str or kind is bool:
        return False
    if kind.__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and bool(value != value)


def close_to(value: Any, known: Sequence[Any]) -> str:
    """ "; did you mean 'clerk'?" where a known label is spelled almost alike, or is of another type."""
    alike = [label for label in known if str(label).strip().lower() == str(value).strip().lower()]
    if not alike and isinstance(value, str):
        texts = [label for label in known if isinstance(label, str)]
        alike = difflib.get_close_matches(value, texts, 1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def written(
    columns: Mapping[str, list[Any]], like: Any, labels: Mapping[str, Sequence[Any]], kept: Collection[str] = ()
) -> Any:
    """Columns as a frame of the kind of `like`, with its order of columns, its types where they hold the values exactly
    (whole numbers stay integers, categories stay categorical), and its index where it has as many rows.

    Args:
        columns: name -> n values; None where there is none.
        like: a frame that was read with these columns; anything else gives a dict of lists.
        labels: name -> all labels of a feature with labels, in their order.
        kept: names of columns that are those of `like`.
    """
    kind, n = kind_of(like), len(next(iter(columns.values())))
    if kind == "pandas":
        pandas = sys.modules["pandas"]
        index = like.index if len(like) == n else pandas.RangeIndex(n)
        made = {}
        for place, name in enumerate(like.columns):
            own = like.iloc[:, place]
            if str(name) in kept:
                made[name] = own.copy()
                continue
            made[name] = _pandas_column(pandas, columns[str(name)], own.dtype, labels.get(str(name), ()), index)
        return type(like)(made, index=index, columns=like.columns)
    if kind == "polars":
        polars = sys.modules["polars"]
        return type(like)(
            [like[name] if name in kept else _polars_column(polars, columns[name], like[name]) for name in like.columns]
        )
    if kind == "series" and n == 1:
        values = [_as_came(columns[str(name)][0], like.iloc[i]) for i, name in enumerate(like.index)]
        for dtype in (like.dtype, object):
            try:
                made_row = type(like)(values, index=like.index, dtype=dtype, name=like.name)
            except (TypeError, ValueError):
                continue
            if _same(made_row.tolist(), values):
                return made_row
    if kind == "person" and n == 1:
        return {name: _as_came(columns[str(name)][0], like[name]) for name in like}
    if kind == "records":
        whole = {name: all(type(row[name]) is int or is_missing(row[name]) for row in like) for name in like[0]}
        listed = {name: _as_integers(columns[str(name)]) if whole[name] else columns[str(name)] for name in like[0]}
        return [dict(zip(listed, values, strict=True)) for values in zip(*listed.values(), strict=True)]
    if kind == "lists":
        found = {}
        for name, given in like.items():
            whole_numbers = all(type(value) is int or is_missing(value) for value in values_of(given))
            found[name] = _as_integers(columns[str(name)]) if whole_numbers else list(columns[str(name)])
        return found
    return {name: list(values) for name, values in columns.items()}


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and np.ndim(value) > 0


def _check_names(found: Sequence[str], names: Sequence[str], where: str = "") -> None:
    twice = [name for name, count in Counter(found).items() if count > 1]
    if twice:
        raise InputError(f"x: {', '.join(twice)} occurs more than once among the columns{where}; keep one of them")
    lacking = [name for name in names if name not in found]
    unknown = [name for name in found if name not in names]
    if lacking:
        hint = close_to(lacking[0], unknown)
        raise InputError(f"x: no column {', '.join(lacking)}{where}{hint}; expected {', '.join(names)}, in any order")
    if unknown:
        raise InputError(
            f"x: unknown column {', '.join(unknown)}{where}; pass the columns {', '.join(names)} only, as in"
            " x[list(preprocessing.features)]"
        )


def _as_integers(values: Sequence[Any]) -> list[Any]:
    """Whole numbers as int, if all of them are whole."""
    numbers = [value for value in values if not is_missing(value)]
    if all(isinstance(value, int | float) and not isinstance(value, bool) and value == int(value) for value in numbers):
        return [value if is_missing(value) else int(value) for value in values]
    return list(values)


def _as_came(value: Any, came: Any) -> Any:
    """A value in the type of the one in its place, where that holds it."""
    whole = isinstance(came, int | np.integer) and not isinstance(came, bool)
    return int(value) if whole and isinstance(value, float) and value == int(value) else value


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(
        is_missing(a) if is_missing(b) else (not is_missing(a) and bool(a == b))
        for a, b in zip(one, other, strict=True)
    )


def _pandas_column(pandas: Any, values: list[Any], dtype: Any, labels: Sequence[Any], index: Any) -> Any:
    """A pandas Series, of the type if it holds the values exactly."""
    if type(dtype).__name__ == "CategoricalDtype":
        known = list(dtype.categories)
        new = list(dict.fromkeys(value for value in values if not is_missing(value) and value not in known))
        if new and all(label in labels for label in known + new):  # an answer may be a level that the frame has not
            dtype = pandas.CategoricalDtype(list(labels) if dtype.ordered else known + new, ordered=dtype.ordered)
    kind = getattr(dtype, "kind", "O")
    if kind in "iu":
        values = _as_integers(values)
    given = [np.nan if value is None else value for value in values] if kind == "f" else values
    try:
        made = pandas.Series(given, index=index, dtype=dtype)
        if _same(made.tolist(), values):
            return made
    except (TypeError, ValueError, OverflowError):
        pass
    if values and kind in "biuf":  # numbers that the type cannot hold
        return pandas.Series([np.nan if is_missing(value) else value for value in values], index=index, dtype=float)
    return pandas.Series(values, index=index, dtype=None if len(values) else dtype)


def _polars_column(polars: Any, values: list[Any], like: Any) -> Any:
    """A polars Series, of the type of `like` if it holds the values exactly."""
    dtype = like.dtype
    if isinstance(dtype, polars.Enum):
        known = dtype.categories.to_list()
        dtype = polars.Enum(known + [v for v in dict.fromkeys(values) if isinstance(v, str) and v not in known])
    values = _as_integers(values) if dtype.is_integer() else values
    try:
        made = polars.Series(like.name, values, dtype=dtype, strict=True)
        if _same(made.to_list(), values):
            return made
    except (TypeError, ValueError, OverflowError, polars.exceptions.PolarsError):
        pass
    return polars.Series(like.name, values, strict=False)


def names_of(frame: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame; None: an array has none."""
    kind = kind_of(frame)
    if kind is None:
        return None
    if kind == "records":
        return tuple(map(str, frame[0]))
    if kind in ("pandas", "polars"):
        return tuple(map(str, frame.columns))
    return tuple(map(str, frame.index if kind == "series" else frame))


def taken(frame: Any, index: NDArray[np.intp]) -> Any:
    """Rows of a frame, of its own kind."""
    kind = kind_of(frame)
    if kind == "pandas":
        return frame.iloc[index]
    if kind == "polars":
        return frame[index.tolist()]
    if kind == "lists":
        return {name: [column[i] for i in index.tolist()] for name, column in frame.items()}
    if kind == "records":
        return [frame[i] for i in index.tolist()]
    return frame


def only(frame: Any, names: Collection[str]) -> Any:
    """Some columns of a frame."""
    kind = kind_of(frame)
    if kind in ("pandas", "polars"):
        return frame[[name for name in frame.columns if str(name) in names]]
    if kind == "series":
        return frame[[name for name in frame.index if str(name) in names]]
    if kind == "records":
        return [{name: row[name] for name in row if str(name) in names} for row in frame]
    return {name: value for name, value in frame.items() if str(name) in names}
