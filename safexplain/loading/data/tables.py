"""CSV and Parquet tables, encoded by all rows together, so that the encoding does not depend on membership."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain.columns import Column
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import as_input_error, require

_MEMBER = dict.fromkeys(("1", "true", "yes", "in"), True) | dict.fromkeys(("0", "false", "no", "out"), False)


def load_table(
    raw: bytes,
    where: str,
    label: str,
    member_column: str | None,
    group_column: str | None = None,
    slice_columns: Sequence[str] = (),
    drop_slices: bool = False,
    features: Features | None = None,
) -> AuditData:
    """Read CSV or Parquet and encode its columns; arguments and errors as for `load_data`.

    Numeric columns stay as they are. True/false columns become 0/1, and text columns one 0/1 column for each value
    (`column=value`, sorted by value, over all rows). Columns keep their order. Text labels become class numbers by
    their sorted names. Membership is 0/1, true/false, yes/no or in/out; without a member column all rows are members.
    """
    frame = read_table(raw, where)
    columns = ", ".join(frame.columns[:8]) + (", ..." if len(frame.columns) > 8 else "")
    wanted = [("label", label), ("member", member_column), ("group", group_column)]
    for kind, name in (*wanted, *(("slice", name) for name in slice_columns)):
        if name is not None and name not in frame.columns:
            raise InputError(f"{where} has no {kind} column {name!r} (its columns: {columns}); pass another name")
    what = f"column {member_column!r} of {where}"
    member = np.ones(len(frame), dtype=np.bool_) if member_column is None else members_of(frame[member_column], what)
    y, class_names = _labels(frame[label], where)
    named = {name: names_of(frame[name].to_numpy(), f"column {name!r} of {where}") for name in slice_columns}
    groups = None
    if group_column is not None:
        groups = names_of(frame[group_column].to_numpy(), f"the group column {group_column!r} of {where}")
    excluded = {label, member_column, group_column, *(slice_columns if drop_slices else ())}
    frame = frame.drop(columns=[name for name in frame.columns if name in excluded])
    x, names = (features or one_hot_features)(frame, where)
    return AuditData(x, y, member, class_names, names, sha256(raw), where, groups, named)


Features = Callable[[Any, str], tuple[NDArray[np.float32], tuple[str, ...]]]
"""(frame of features, path) -> (n, d) numbers, and the names of their columns."""


def read_table(raw: bytes, where: str) -> Any:
    """A frame of CSV or Parquet with at least one row and distinct names of columns; errors as for `load_table`."""
    pandas = require("pandas", "tabular")
    if raw[:4] == b"PAR1":
        require("pyarrow", "tabular")
        read = pandas.read_parquet
    elif b"\x00" in raw[:1000]:
        raise InputError(f"expected .npz, CSV or Parquet data, but {where} starts with {raw[:8]!r}")
    else:
        read = pandas.read_csv
    with as_input_error(f"{where} cannot be read as a table", "; check it or save it again"):
        frame = read(io.BytesIO(raw))
    if len(frame) == 0:
        raise InputError(f"{where} is a table without rows; add the examples")
    frame.columns = [str(name) for name in frame.columns]
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"{where} has two columns named {twice!r}; rename one")
    return frame


def members_of(values: Any, what: str) -> NDArray[np.bool_]:
    """(n,) membership from 0/1, true/false, yes/no or in/out; InputError: anything else."""
    texts = [str(value).strip().lower().removesuffix(".0") for value in np.ravel(values)]
    if unknown := [text for text in texts if text not in _MEMBER]:
        raise InputError(f"{what}: expected 0/1, true/false, yes/no or in/out, got {unknown[0]!r}")
    return np.array([_MEMBER[text] for text in texts], dtype=np.bool_)


def _labels(column: Any, where: str) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    what = f"the label column {column.name!r} of {where}"
    if column.isna().any():
        raise InputError(f"{what} is empty in row {int(column.isna().to_numpy().argmax())} (counted from 0); fill it")
    numeric = require("pandas", "tabular").api.types.is_numeric_dtype(column)
    return as_labels(column.to_numpy(dtype=np.float64) if numeric else np.array([*map(str, column)]), what)


def as_labels(y: NDArray[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Classes (n,) as numbers, and their sorted names if they are names; InputError: neither."""
    if y.dtype.kind in "US":
        names, codes = np.unique(y.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(names.tolist())
    if y.dtype.kind not in "biuf":
        raise InputError(f"{what}: expected class numbers or names, got dtype {y.dtype}")
    wrong = ~np.equal(np.mod(y.astype(np.float64), 1), 0)
    if wrong.any():
        raise InputError(f"{what}: expected whole class numbers, counted from 0, got {y[wrong.argmax()]}")
    return y.astype(np.int64), None


def names_of(values: NDArray[Any], what: str) -> NDArray[Any]:
    """(n,) identifiers: whole numbers as int64, all others as text; InputError: a missing one, or not one per row."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"{what}: expected shape (n,), one entry for each row, got {values.shape}")
    missing = np.array([value is None or value != value for value in values.tolist()], dtype=np.bool_)
    if missing.any():
        raise InputError(f"{what} is empty in row {int(missing.argmax())} (counted from 0); fill it")
    if values.dtype.kind in "biu" or (values.dtype.kind == "f" and (values == np.floor(values)).all()):
        return values.astype(np.int64)
    return np.array([str(value) for value in values.tolist()])


def one_hot_features(frame: Any, where: str) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Numeric columns as they are, and a 0/1 column for each value of a text column; InputError: empty values."""
    blocks: list[NDArray[np.float32]] = []
    names: list[str] = []
    for name, values in frame.items():
        column = Column.of(values, name)
        if column.categories is None:
            with np.errstate(over="ignore"):  # overflow becomes infinity, which is refused later
                blocks.append(values.to_numpy(dtype=np.float64, na_value=np.nan).astype(np.float32)[:, None])
            names.append(name)
            continue
        if None in column.categories:
            missing = values.isna().to_numpy()
            first = f"the first in row {missing.argmax()} (counted from 0); fill them as for training"
            raise InputError(f"column {name!r} of {where} has {missing.sum()} empty values, {first}")
        blocks.append(np.eye(len(column.categories), dtype=np.float32)[column.encode(values).astype(np.int64)])
        names.extend(f"{name}={category}" for category in column.categories)
    if not blocks:
        raise InputError(f"{where} has no columns of features; add them")
    return np.concatenate(blocks, axis=1), tuple(names)
