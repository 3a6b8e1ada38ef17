"""Frames of people, read and written: one column a feature, numbers and labels as they are.

A frame is a pandas or polars DataFrame, a list of dicts, or a dict of lists; one person may also be a dict, or a row of
a pandas DataFrame. Neither library is imported here: whoever has a frame has imported its library.
"""

from __future__ import annotations

import difflib
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import readable
from safexplain.errors import InputError

Floats = NDArray[np.float64]


def kind_of(x: Any) -> str | None:
    """ "pandas", "polars", "records" (a list of dicts), "lists" (a dict of lists), "person" (a dict of values, or a
    pandas Series); None: no frame.
    """
    library, name = type(x).__module__.split(".")[0], type(x).__name__
    if name == "DataFrame" and library in ("pandas", "polars"):
        return library
    if name == "Series" and library == "pandas":
        return "person"
    if isinstance(x, Mapping):
        return "lists" if any(_is_column(value) for value in x.values()) else "person"
    if isinstance(x, Sequence) and not isinstance(x, str) and len(x) and all(isinstance(row, Mapping) for row in x):
        return "records"
    return None


def columns_of(x: Any, names: Sequence[str]) -> tuple[dict[str, Any], int]:
    """The columns of a frame by name, in the order of `names`, and the number of rows.

    Raises:
        InputError: columns are missing, twice there, of different lengths, or not known.
    """
    kind = kind_of(x)
    if kind == "records":
        for i, row in enumerate(x):
            _check_names(row, names, f" in row {i}")
        return {name: [row[name] for row in x] for name in names}, len(x)
    _check_names(x.columns if kind in ("pandas", "polars") else x.keys(), names)
    if kind == "person":
        return {name: [x[name]] for name in names}, 1
    if kind != "lists":
        return {name: x[name] for name in names}, len(x)
    single = [name for name in names if not _is_column(x[name])]
    if single:
        raise InputError(f"x: {single[0]} is one value and other columns are lists; give a list for each column")
    columns = {name: readable(x[name], name) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
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
    values = [None if is_missing(value) else value for value in values_of(column)]
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, int | float | Decimal | Fraction):
            what = f"the text {value!r}" if isinstance(value, str) else f"{type(value).__name__} {reprlib.repr(value)}"
            raise InputError(
                f"{name}: expected numbers, got {what} in row {row}; convert the column, or declare the feature under"
                " categories or ordinal"
            )
    try:
        return np.array(values, dtype=np.float64), narrow  # None becomes NaN
    except OverflowError:
        raise InputError(f"{name}: a number is too large for float64") from None


def values_of(column: Any) -> list[Any]:
    """A column's values as Python has them."""
    values = column.tolist() if hasattr(column, "tolist") else column
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or pandas' NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating | Decimal) and bool(value != value)


def close_to(value: Any, known: Iterable[Any]) -> str:
    """ "; did you mean 'clerk'?" where a known label is spelled almost alike, or is of another type."""
    alike = [label for label in known if str(label).strip().lower() == str(value).strip().lower()]
    if not alike and isinstance(value, str):
        texts = [label for label in known if isinstance(label, str)]
        alike = difflib.get_close_matches(value, texts, 1)
    return f"; did you mean {alike[0]!r}?" if alike else ""


def written(columns: Mapping[str, Any], like: Any, came: Mapping[str, Any], labels: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a frame of the kind of `like`, with its order of columns, its types where they hold the values exactly
    (whole numbers stay integers, categories stay categorical), and its index where it has as many rows.

    Args:
        columns: name -> n values, None where there is none; or the very column of `came`, to keep it.
        like: a frame.
        came: its columns, by `columns_of`.
        labels: name -> all labels of a feature with labels, in their order.
    """
    kind, n = kind_of(like), len(next(iter(columns.values())))
    if kind in ("pandas", "polars"):
        index = like.index if kind == "pandas" and len(like) == n else None
        options = {"index": index} if kind == "pandas" else {"strict": False}
        made = {
            name: came[name]
            if columns[name] is came[name]
            else _typed(columns[name], came[name], labels.get(name, ()), options)
            for name in like.columns
        }
        return type(like)(made, index=index, columns=like.columns) if kind == "pandas" else type(like)(made)
    found = {
        name: _plain(values_of(columns[name]), came[name]) for name in (like[0] if kind == "records" else like.keys())
    }
    if kind == "person" and n == 1:
        return {name: values[0] for name, values in found.items()}
    if kind == "records":
        return [dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True)]
    return found


def _is_column(value: Any) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__len__") and np.ndim(value) > 0


def _check_names(found: Iterable[Any], names: Sequence[str], where: str = "") -> None:
    count = Counter(list(found))
    twice = [str(name) for name in count if count[name] > 1]
    if twice:
        raise InputError(f"x: {', '.join(twice)} occurs more than once among the columns{where}; keep one of them")
    lacking = [name for name in names if name not in count]
    unknown = [str(name) for name in count if name not in names]
    if lacking:
        hint = close_to(lacking[0], unknown)
        raise InputError(f"x: no column {', '.join(lacking)}{where}{hint}; expected {', '.join(names)}, in any order")
    if unknown:
        raise InputError(
            f"x: unknown column {', '.join(unknown)}{where}; pass the columns {', '.join(names)} only, as in"
            " x[list(preprocessing.features)]"
        )


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return all(
        is_missing(a) if is_missing(b) else (not is_missing(a) and bool(a == b))
        for a, b in zip(one, other, strict=True)
    )


def _typed(values: list[Any], own: Any, labels: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """A Series of the type of `own` if that holds the values exactly, else of one that does."""
    dtype = own.dtype
    if type(dtype).__name__ in ("CategoricalDtype", "Enum"):  # an answer may be a label that the frame has not
        known = list(dtype.categories)
        new = [value for value in dict.fromkeys(values) if value in labels and value not in known]
        every = list(labels) if new and getattr(dtype, "ordered", False) else known + new
        dtype = type(dtype)(every, dtype.ordered) if hasattr(dtype, "ordered") else type(dtype)(every)
    numbers = [None if is_missing(value) else value for value in values]
    for given, kind in ((values, dtype), (numbers, float)):
        with suppress(Exception):  # each library has its own errors for values that a type does not hold
            made = type(own)(given, dtype=kind, **options)
            if _same(made.to_list(), values):
                return made
    return type(own)(values, **options)


def _plain(values: list[Any], came: Any) -> list[Any]:
    """Values with whole numbers as integers, if all that came were integers and all of these are whole."""
    if any(type(value) is not int for value in values_of(came) if not is_missing(value)):
        return values
    if any(type(value) not in (int, float) or value != int(value) for value in values if not is_missing(value)):
        return values
    return [value if is_missing(value) else int(value) for value in values]
