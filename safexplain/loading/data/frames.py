"""Tables as a fitted classifier takes them: its own columns, in its order, texts and missing values coded."""

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

__all__ = ["ClassifierData", "load_for_classifier"]


@dataclass(frozen=True, eq=False)
class ClassifierData:
    """The data of an audit of a classifier.

    Args:
        data: examples, labels by the place of their class, and membership.
        columns: what the numbers of a row stand for; None: themselves.
        public: (rows, d) public rows, in the same code; None: none were given.
        notes: what a reader must know of how the data were read.
    """

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
    """The data of an audit, and public rows, as a classifier takes them.

    Of a table, the columns that the classifier was fitted with are taken by their names, in its order, and others are
    left out; one that was fitted without names takes all columns in theirs. Texts and missing numbers get codes, see
    `safexplain.columns`, of all rows together. Labels are the classifier's own classes.

    Args:
        found: the classifier.
        path: as `load_data` takes it, but for folders of images.
        public: rows that are known to everybody, as `load_data` takes them; they need no label and no member.
        label: name of the label column of a table.
        group: see `load_data`.
        slices: likewise; they are features where the classifier takes them.

    Raises:
        InputError: a file cannot be read, lacks a column, or holds a label that is no class of the classifier.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder of images; a classifier of tables takes an .npz or a table")
    others = None if public is None else _table(public, found.names or ())
    seen: list[tuple[Columns | None, tuple[str, ...]]] = []

    def features(frame: Any, where: str) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        names = found.names or tuple(frame.columns)
        frame = _as_named(frame, names)
        _require_columns(names, frame, where)
        if found.names is None and found.width not in (None, len(names)):
            x, encoded = one_hot_features(frame, where)
            if x.shape[1] == found.width:
                seen.append((None, ()))
                return x, encoded
            raise InputError(
                f"{where} has {len(names)} columns of features ({_few(names)}), and the model takes {found.width}"
            )
        every = frame
        if others is not None:
            _require_columns(names, others, f"--public: {public}")
            every = require("pandas", "tabular").concat([frame[list(names)], others[list(names)]], ignore_index=True)
        columns = _as_taken(found, Columns.of(every, names), frame)
        seen.append((columns, tuple(name for name in frame.columns if name not in names)))
        return columns.encode(frame), columns.names

    read = load_data(path, label=label, group=group, slices=slices, features=features)
    columns, left = seen[0] if seen else (None, ())
    notes = () if not left else (f"Columns of the data that the model does not take were left out: {_few(left)}.",)
    data, more = _own_classes(found, read)
    coded = None if columns is None or columns.plain else columns
    rows = None
    if others is not None and columns is not None:
        rows = columns.encode(others)
    elif others is not None:
        raise InputError(f"--public: {public} is a table, and the data are arrays or coded; give it as an .npz, too")
    elif public is not None:
        rows = load_inputs(public)
    if rows is not None and rows.shape[1:] != data.x.shape[1:]:
        raise InputError(f"--public: expected rows of shape {data.x.shape[1:]}, as the data have, got {rows.shape[1:]}")
    return ClassifierData(data, coded, rows, notes + more)


def _table(path: str | Path, names: tuple[str, ...]) -> Any:
    """The frame of a file, its columns as a model names them; None: it holds arrays."""
    raw = read_bytes(path, "data")
    if raw[:4] == b"PK\x03\x04":
        return None
    return _as_named(read_table(raw, str(path)), names)


def _as_named(frame: Any, names: tuple[str, ...]) -> Any:
    """With the names of a model in which spaces became underscores, as LightGBM makes them."""
    other = {name: str(name).replace(" ", "_") for name in frame.columns if name not in names and " " in str(name)}
    return frame.rename(columns={old: new for old, new in other.items() if new in names and new not in frame.columns})


def _require_columns(names: tuple[str, ...], frame: Any, where: str) -> None:
    if absent := [name for name in names if name not in frame.columns]:
        raise InputError(
            f"{where} lacks columns that the model was fitted with: {_few(absent)}; it has {_few(frame.columns)}"
        )


def _as_taken(found: FittedClassifier, columns: Columns, frame: Any) -> Columns:
    """With text columns as texts or as pandas categories, whichever the model takes; InputError: neither."""
    if not columns.categorical_names:
        return columns
    rows = columns.encode(frame.iloc[[0, -1]])
    errors = []
    own = getattr(found.estimator, "is_categorical_", None)  # of scikit-learn's histogram boosting, fitted by dtypes
    for as_category in (False, True) if own is None else (True, False):
        tried = replace(columns, as_category=as_category)
        try:
            found.estimator.predict_proba(tried.decode(rows))
        except Exception as error:  # whatever an estimator raises
            errors.append(one_line(error))
        else:
            return tried
    raise InputError(
        f"the model takes text columns neither as texts nor as categories ({'; '.join(errors)}); save it with the steps"
        " that encode them, as one scikit-learn Pipeline"
    )


def _own_classes(found: FittedClassifier, data: AuditData) -> tuple[AuditData, tuple[str, ...]]:
    """Labels as the places of the classifier's classes; InputError: a label that is none of them."""
    classes, names = found.classes, data.class_names
    numbers = are_places(classes)
    if numbers:
        if names is None:
            return data, ()
        if len(names) != len(classes):
            raise InputError(
                f"{data.source} has the labels {_few(names)}, and the model the classes {_few(classes.tolist())}"
            )
        pairs = ", ".join(f"{name} for {number}" for name, number in zip(names, classes.tolist(), strict=True))
        return data, (f"Labels were taken for the model's classes in the order of their names: {pairs}.",)
    own = [str(value) for value in classes.tolist()]
    numbered = np.unique(data.y)
    given = list(names) if names is not None else [str(value) for value in numbered.tolist()]
    if classes.dtype.kind in "biuf":
        with contextlib.suppress(ValueError):
            same = {float(value): str(value) for value in classes.tolist()}
            given = [same.get(float(name), name) for name in given]
    if unknown := [name for name in given if name not in own]:
        raise InputError(
            f"{data.source} has the label {unknown[0]!r}, no class of the model; its classes are {_few(own)}"
        )
    places = np.array([own.index(name) for name in given], dtype=np.int64)
    y = places[data.y if names is not None else np.searchsorted(numbered, data.y)]
    return replace(data, y=y, class_names=tuple(own)), ()


def _few(names: Any) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
