"""Tables prepared for a fitted classifier: its columns in its order, with texts and missing values as codes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.columns import Columns
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.data.load import load_data, load_inputs
from safexplain.loading.data.tables import one_hot_features, read_table
from safexplain.loading.files import one_line, read_bytes, require
from safexplain.loading.models.estimators import FittedClassifier
from safexplain.outputs import are_places


@dataclass(frozen=True, eq=False)
class ClassifierData:
    """The data of an audit of a classifier, labels as positions of its classes; `columns` is the coding of columns
    (None: plain numbers), `public` (rows, d) public rows in the same coding, `notes` sentences for the report."""

    data: AuditData
    columns: Columns | None
    public: NDArray[np.float32] | None
    notes: tuple[str, ...]


def load_for_classifier(
    found: FittedClassifier,
    path: str | Path,
    *,
    public: str | Path | None = None,
    label: str = "label",
    group: str | None = None,
    slices: tuple[str, ...] = (),
) -> ClassifierData:
    """Load the data of an audit, and `public` rows, for a classifier; arguments as for `load_data`.

    A table is reduced to the columns that the classifier was fitted with, by name and in its order; a classifier fitted
    without names gets all columns. Slice columns are features if it was fitted with them. Texts and missing numbers
    become codes (`safexplain.columns`), derived from all rows together. Labels become positions of the classifier's
    classes. Public rows need no label and no member column. InputError: a file is unreadable, lacks a column, or holds
    a label that is not a class of the classifier.
    """
    if Path(path).is_dir():
        raise InputError(f"expected an .npz or a table for a classifier, got the folder {path}")
    others = None if public is None else _read_frame(public, found.names or ())
    seen: list[tuple[Columns | None, tuple[str, ...]]] = []

    def features(frame: Any, where: str) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        names = found.names or tuple(frame.columns)
        frame = _rename_columns(frame, names)
        _require_columns(names, frame, where)
        if found.names is None and found.width not in (None, len(names)):
            x, encoded = one_hot_features(frame, where)
            if x.shape[1] == found.width:
                seen.append((None, ()))
                return x, encoded
            raise InputError(
                f"{where}: expected {found.width} columns of features, as the model was fitted with, got {len(names)}"
                f" ({_abbreviated(names)})"
            )
        every = frame
        if others is not None:
            _require_columns(names, others, f"--public: {public}")
            every = require("pandas", "tabular").concat([frame[list(names)], others[list(names)]], ignore_index=True)
        columns = _with_accepted_types(found, Columns.of(every, names), frame)
        seen.append((columns, tuple(name for name in frame.columns if name not in names)))
        return columns.encode(frame), columns.names

    read = load_data(path, label=label, group=group, slices=slices, features=features)
    columns, left = seen[0] if seen else (None, ())
    notes = () if not left else (f"Columns unknown to the model were left out: {_abbreviated(left)}.",)
    data, more = _map_labels(found, read)
    coded = None if columns is None or columns.plain else columns
    rows = None
    if others is not None and columns is not None:
        rows = columns.encode(others)
    elif others is not None:
        raise InputError(f"--public: expected an .npz, as the data are arrays or coded columns, got the table {public}")
    elif public is not None:
        rows = load_inputs(public)
    if rows is not None and rows.shape[1:] != data.x.shape[1:]:
        raise InputError(f"--public: expected rows of shape {data.x.shape[1:]}, as the data have, got {rows.shape[1:]}")
    return ClassifierData(data, coded, rows, notes + more)


def _read_frame(path: str | Path, names: tuple[str, ...]) -> Any:
    """The frame of a file, with the model's names of columns; None: the file holds arrays."""
    raw = read_bytes(path, "data")
    if raw[:4] == b"PK\x03\x04":
        return None
    return _rename_columns(read_table(raw, str(path)), names)


def _rename_columns(frame: Any, names: tuple[str, ...]) -> Any:
    """The frame with spaces in names of columns as underscores where the model has these, as LightGBM writes them."""
    other = {name: str(name).replace(" ", "_") for name in frame.columns if name not in names and " " in str(name)}
    return frame.rename(columns={old: new for old, new in other.items() if new in names and new not in frame.columns})


def _require_columns(names: tuple[str, ...], frame: Any, where: str) -> None:
    if absent := [name for name in names if name not in frame.columns]:
        raise InputError(
            f"{where} lacks columns that the model was fitted with: {_abbreviated(absent)}; it has"
            f" {_abbreviated(frame.columns)}"
        )


def _with_accepted_types(found: FittedClassifier, columns: Columns, frame: Any) -> Columns:
    """The columns with text as str or as pandas categories, whichever the model accepts; InputError: neither."""
    if not columns.categorical_names:
        return columns
    rows = columns.encode(frame.iloc[[0, -1]])
    errors = []
    by_dtype = getattr(found.estimator, "is_categorical_", None)  # of scikit-learn's histogram boosting
    for as_category in (False, True) if by_dtype is None else (True, False):
        tried = replace(columns, as_category=as_category)
        try:
            found.estimator.predict_proba(tried.decode(rows))
        except Exception as error:  # estimators raise any error
            errors.append(one_line(error))
        else:
            return tried
    raise InputError(
        f"the model accepts text columns neither as texts nor as categories ({'; '.join(errors)}); save it together"
        " with the steps that encode them, as one scikit-learn Pipeline"
    )


def _map_labels(found: FittedClassifier, data: AuditData) -> tuple[AuditData, tuple[str, ...]]:
    """The data with labels as positions of the classifier's classes; InputError: a label is not among them."""
    classes, names = found.classes, data.class_names
    numbers = are_places(classes)
    if numbers:
        if names is None:
            return data, ()
        if len(names) != len(classes):
            raise InputError(
                f"{data.source} has the labels {_abbreviated(names)}, but the model has the classes"
                f" {_abbreviated(classes.tolist())}; use the same labels"
            )
        pairs = ", ".join(f"{name} for {number}" for name, number in zip(names, classes.tolist(), strict=True))
        return data, (f"Labels were matched to the model's classes in the order of their names: {pairs}.",)
    own = [str(value) for value in classes.tolist()]
    numbered = np.unique(data.y)
    given = list(names) if names is not None else [str(value) for value in numbered.tolist()]
    if classes.dtype.kind in "biuf":
        with contextlib.suppress(ValueError):
            same = {float(value): str(value) for value in classes.tolist()}
            given = [same.get(float(name), name) for name in given]
    if unknown := [name for name in given if name not in own]:
        raise InputError(
            f"{data.source}: expected labels among the model's classes {_abbreviated(own)}, got {unknown[0]!r}"
        )
    places = np.array([own.index(name) for name in given], dtype=np.int64)
    y = places[data.y if names is not None else np.searchsorted(numbered, data.y)]
    return replace(data, y=y, class_names=tuple(own)), ()


def _abbreviated(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
