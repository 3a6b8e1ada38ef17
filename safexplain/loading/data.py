"""The data of an audit, from .npz, folders of images and tables, recognised by content, and checks of it.

Members and non-members are processed by the same code and decisions.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain._digest import sha256
from safexplain._files import ArrayFile
from safexplain.columns import Column, Columns
from safexplain.errors import InputError
from safexplain.loading.estimators import FittedClassifier
from safexplain.loading.files import as_input_error, one_line, read_bytes, require
from safexplain.outputs import are_places

MINIMUM_ROWS = 10


@dataclass(frozen=True)
class AuditData:
    """Examples, labels and membership.

    Attributes:
        x: float32 (n, ...), inputs of the model: images (n, channels, height, width) in [0, 1], tables (n, columns).
        y: int64 (n,), classes counted from 0.
        member: bool (n,), whether the model was trained on the row.
        sha256: Hexadecimal SHA-256 of the file; for several files, of their digests in a fixed order.
        groups: (n,) numbers or names, equal for rows of one group, such as one person; None: no groups.
        slices: Name -> (n,) whole numbers or names; results are also reported for each value.
        scaled: Whether x are 8-bit images divided by 255 and not normalised further.
    """

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    member: NDArray[np.bool_]
    class_names: tuple[str, ...] | None
    feature_names: tuple[str, ...] | None
    sha256: str
    source: str
    groups: NDArray[Any] | None = None
    slices: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    scaled: bool = False

    def rows(self, selected: NDArray[np.bool_]) -> AuditData:
        """The rows marked in `selected`, (n,) bool."""
        groups = None if self.groups is None else self.groups[selected]
        slices = {name: values[selected] for name, values in self.slices.items()}
        x, y, member = self.x[selected], self.y[selected], self.member[selected]
        return replace(self, x=x, y=y, member=member, groups=groups, slices=slices)


def check_data(data: AuditData, *, num_classes: int | None, both_sides: bool = True) -> tuple[str, ...]:
    """Warnings, one sentence each, about classes on one side only; unless `both_sides`, non-members are not needed.

    Raises:
        InputError: x is not (n, ...) or not finite, members or non-members are too few, or labels are negative, of one
            class, or beyond the `num_classes` of the model.
    """
    n = len(data.x)
    if data.x.ndim < 2 or data.x.size == 0:
        raise InputError(
            f"x: expected shape (n, ...), one row for each of at least {MINIMUM_ROWS} examples, got {data.x.shape}"
        )
    inside = int(data.member.sum())
    if both_sides and min(inside, n - inside) < MINIMUM_ROWS:
        raise InputError(
            f"expected at least {MINIMUM_ROWS} members, which the model was trained on, and {MINIMUM_ROWS} non-members,"
            f" got {inside} and {n - inside}; add rows"
        )
    if not inside:
        raise InputError(
            f"{data.source} marks none of its {n} rows as a member; add rows that the model was trained on"
        )
    _check_finite(data)
    _check_labels(data, num_classes)
    return _lopsided_classes(data) if both_sides else ()


def _check_finite(data: AuditData) -> None:
    wrong = np.argwhere(~np.isfinite(data.x)).tolist()
    if not wrong:
        return
    row, *place = wrong[0]
    column = f"position {tuple(place)}"
    if len(place) == 1:
        column = f"column {place[0] if data.feature_names is None else repr(data.feature_names[place[0]])}"
    raise InputError(
        f"x holds {len(wrong)} NaN or infinite values, the first in row {row} (counted from 0), {column}; fill or"
        " remove them as for training"
    )


def _check_labels(data: AuditData, num_classes: int | None) -> None:
    low, high = int(data.y.min()), int(data.y.max())
    if low < 0:
        raise InputError(f"y: expected classes counted from 0, got the label {low}")
    if low == high:
        raise InputError(f"every row has the label {low}; an audit needs examples of at least two classes")
    if num_classes is not None and high >= num_classes:
        outputs = f"labels 0 to {num_classes - 1}, as the model has {num_classes} outputs"
        raise InputError(f"y: expected {outputs}; got {high} in row {int(data.y.argmax())}")


def _lopsided_classes(data: AuditData) -> tuple[str, ...]:
    inside, outside = set(data.y[data.member].tolist()), set(data.y[~data.member].tolist())
    names, warnings = data.class_names or (), list[str]()
    for side, classes in (("members", sorted(inside - outside)), ("non-members", sorted(outside - inside))):
        shown = ", ".join([names[c] if c < len(names) else str(c) for c in classes[:5]] + ["..."] * (len(classes) > 5))
        if classes:
            warnings.append(f"classes that occur only among {side}: {shown}; their labels alone reveal membership")
    return tuple(warnings)


def check_model_fits(model: nn.Module, data: AuditData) -> int:
    """The number of classes k, from outputs (2, k) of two rows, on the model's own device. InputError: the model fails
    on such rows, or does not return finite scores for two or more classes."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.from_numpy(np.ascontiguousarray(data.x[[0, -1]])).to(device)
    came = f"rows of shape {tuple(x.shape[1:])} from {data.source}"
    remedy = "; give the data the shape of the training data"
    with as_input_error(f"the model fails on {came}", remedy), torch.no_grad():
        scores = model(x)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 2 or scores.shape[1] < 2:
        raise InputError(
            f"the model: expected a tensor of scores of shape (2, classes) for 2 rows, got {shape}; change its forward:"
            " of two classes and one score, return torch.stack([-score, score], dim=1)"
        )
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the model returns NaN or infinite scores for {came}; check its weights and the data")
    return int(scores.shape[1])


_LONGEST_NAMES = 256 << 20
"""Limit in bytes on all class names, or feature names, as Python strings of at least 64 bytes each."""


def load_data(
    path: str | Path,
    *,
    label: str = "label",
    group: str | None = None,
    slices: Sequence[str] = (),
    drop_slices: bool = False,
    features: Features | None = None,
) -> AuditData:
    """Load the data of an audit, recognised by content. Nothing is standardised: give the data as the model expects.

    - `.npz` with arrays `x` (n, ...), `y` (n,) and `member` (n,), optionally `groups` (n,), `class_names`,
      `feature_names` and the arrays named in `group` and `slices`. Images become (n, channels, height, width); 8-bit
      images are divided by 255.
    - A folder with 8-bit images of one size as `members/class/image.png` and `non-members/class/image.png`, grey or
      RGB, divided by 255. Members come first, each side sorted by path.
    - A CSV or Parquet table with a column of labels and a column `member`: 0/1, true/false, yes/no or in/out. A text
      column becomes one 0/1 column for each value (`column=value`, sorted).

    Labels that are names become numbers in their sorted order.

    Args:
        path: The file or folder.
        label: Name of the label column of a table.
        group: Name of the column or array of groups, such as persons; it is not a feature. None: the array `groups`.
        slices: Names of columns or arrays by which results are sliced. Columns of a table stay features.
        drop_slices: Remove these columns from the features.
        features: How columns of a table become numbers; None: as above.

    Raises:
        InputError: a file is missing, unreadable or damaged, or a column or array is missing or unusable.
        MissingExtraError: pandas, pyarrow or Pillow is needed and not installed.
    """
    if Path(path).is_dir():
        if group is not None or slices:
            raise InputError(f"groups and slices need an .npz or a table, got the folder of images {path}")
        return _load_images(Path(path))
    return _load_file(path, label, "member", group, tuple(slices), drop_slices, features)


def load_records(
    path: str | Path, *, label: str = "label"
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...] | None]:
    """(n, ...) features, (n,) classes, and class names if labels are names, from an `.npz` with `x` and `y`, or a
    table; errors as for `load_data`."""
    data = _load_file(path, label, None)
    return data.x, data.y, data.class_names


def load_inputs(path: str | Path) -> NDArray[np.float32]:
    """(n, ...) inputs, from an `.npz` with `x`, or a table, whose column `label` is dropped; errors as for
    `load_data`."""
    raw, where = read_bytes(path, "data"), str(path)
    if raw[:4] != b"PK\x03\x04":
        return load_records(path)[0]
    return _as_features(_read_npz(raw, where, ("x",))["x"], where)


def _load_file(path: str | Path, label: str, member_column: str | None, *options: Any) -> AuditData:
    raw, where = read_bytes(path, "data"), str(path)
    if raw[:4] != b"PK\x03\x04":
        return _load_table(raw, where, label, member_column, *options)
    group, slices, *_ = options or (None, ())
    wanted = ("x", "y", *(name for name in (member_column, group, *slices) if name))
    arrays = _read_npz(raw, where, tuple(dict.fromkeys(wanted)))
    x = _as_features(arrays["x"], where)
    y, class_names = _as_labels(arrays["y"].reshape(len(arrays["y"])), f"y of {where}")
    if "class_names" in arrays:
        class_names = tuple(str(name) for name in arrays["class_names"].ravel())
    columns = tuple(str(name) for name in arrays["feature_names"].ravel()) if "feature_names" in arrays else None
    member = np.ones(len(x), dtype=np.bool_)
    if member_column is not None:
        member = _members_of(arrays[member_column], f"{member_column} of {where}")
    named = arrays.get(group or "groups")
    groups = None if named is None else _names_of(named, f"array {group or 'groups'!r} of {where}")
    sliced = {name: _names_of(arrays[name], f"array {name!r} of {where}") for name in slices}
    scaled = arrays["x"].dtype == np.uint8 and x.ndim == 4
    return AuditData(x, y, member, class_names, columns, sha256(raw), where, groups, sliced, scaled)


def _read_npz(raw: bytes, where: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    with ArrayFile(raw, where) as file:
        if not file.names:
            raise InputError(f"expected an .npz with x, y and member, got a zip archive without arrays: {where}")
        if missing := [name for name in names if name not in file.names]:
            raise InputError(
                f"{where} has no array {' and no array '.join(missing)} (it has {', '.join(file.names)}); expected"
                f" {', '.join('x (n, ...)' if name == 'x' else f'{name} (n,)' for name in names)}"
            )
        if "member" in names and "groups" in file.names and "groups" not in names:
            names = (*names, "groups")
        x = file.header("x").shape
        for name in names[1:]:
            shape = file.header(name).shape
            if name == "y" and shape not in (shape[:1], (*shape[:1], 1)):
                raise InputError(f"y of {where}: expected shape (n,), got {shape}; for one-hot rows take argmax")
            if not x or shape not in (x[:1], (x[0], 1)):
                raise InputError(f"{name} of {where}: expected one entry for each row of x {x}, got shape {shape}")
        texts = [name for name in ("class_names", "feature_names") if name in file.names]
        for name in texts:
            dtype, shape = file.header(name)
            count = math.prod(shape)
            if name == "feature_names" and (len(x) != 2 or count != x[1]):
                raise InputError(f"{where} has {count} feature_names for x of shape {x}; give one for each column")
            if count * max(dtype.itemsize, 64) > _LONGEST_NAMES:
                raise InputError(f"{name} of {where}: expected short names, got {dtype} of shape {shape}")
        return file.read(*names, *texts)


def _as_features(x: NDArray[Any], where: str) -> NDArray[np.float32]:
    if x.dtype.kind not in "biuf":
        raise InputError(f"x of {where}: expected numbers, got dtype {x.dtype}")
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    with np.errstate(over="ignore"):  # overflow becomes infinity, which is refused later
        values = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype == np.uint8 and x.ndim == 4:
        values = values / np.float32(255)
    return values


# --- folders of images ----------------------------------------------------------------------------------------------

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L", "LA"})
_SIDES = ("members", "non-members")


def _load_images(root: Path) -> AuditData:
    """Load a folder of images; **members and non-members are treated alike**, so the choice of grey is made for
    both."""
    pillow = require("PIL.Image", "vision")
    for name in _SIDES:
        if not (root / name).is_dir():
            raise InputError(f"{root}: expected images as {name}/CLASS/IMAGE, got a folder without {name}")
    files = [(name, path) for name in _SIDES for path in _list(root / name)]
    digest = hashlib.sha256()
    images, sizes = list[Any](), dict[tuple[int, int], Path]()
    for side, path in files:
        raw = read_bytes(path, "image")
        digest.update(f"{side == _SIDES[0]} {path.relative_to(root / side).as_posix()} {sha256(raw)}\n".encode())
        damaged = as_input_error(f"the image {path} cannot be read", "; replace or remove it")
        with damaged, pillow.open(io.BytesIO(raw)) as image:
            images.append(image.copy())
        sizes.setdefault(images[-1].size, path)
        if (mode := images[-1].mode).startswith(("I", "F")):
            raise InputError(f"{path}: expected 8 bits per channel, got mode {mode}; save the image with 8 bits")
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise InputError(
            f"expected images of one size, but {first} is {one[0]}x{one[1]} and {second} is {other[0]}x{other[1]};"
            " resize members and non-members in the same way"
        )
    grey = {image.mode for image in images} <= _GREY
    pixels = np.stack([np.asarray(image.convert("L" if grey else "RGB"), dtype=np.uint8) for image in images])
    x = (pixels[:, None] if grey else pixels.transpose(0, 3, 1, 2)).astype(np.float32, order="C") / np.float32(255)
    names, y = np.unique([path.parent.name for _, path in files], return_inverse=True)
    member = np.array([side == _SIDES[0] for side, _ in files])
    return AuditData(
        x, y.astype(np.int64), member, tuple(names.tolist()), None, digest.hexdigest(), str(root), scaled=True
    )


def _list(root: Path) -> list[Path]:
    found = [path for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()]
    if not found:
        raise InputError(f"the folder {root} holds no images; expected CLASS/image.png inside it")
    for path in found:
        if path.parent.parent != root:
            raise InputError(f"{path} is not in a class folder; expected {root}/CLASS/{path.name}")
    return sorted(found)


# --- tables ----------------------------------------------------------------------------------------------------------

_MEMBER = dict.fromkeys(("1", "true", "yes", "in"), True) | dict.fromkeys(("0", "false", "no", "out"), False)


def _load_table(
    raw: bytes,
    where: str,
    label: str,
    member_column: str | None,
    group_column: str | None = None,
    slice_columns: Sequence[str] = (),
    drop_slices: bool = False,
    features: Features | None = None,
) -> AuditData:
    """Read a table and encode its columns by all rows together, so that codes do not depend on membership."""
    frame = _read_table(raw, where)
    columns = ", ".join(frame.columns[:8]) + (", ..." if len(frame.columns) > 8 else "")
    wanted = [("label", label), ("member", member_column), ("group", group_column)]
    for kind, name in (*wanted, *(("slice", name) for name in slice_columns)):
        if name is not None and name not in frame.columns:
            raise InputError(f"{where} has no {kind} column {name!r} (its columns: {columns}); pass another name")
    what = f"column {member_column!r} of {where}"
    member = np.ones(len(frame), dtype=np.bool_) if member_column is None else _members_of(frame[member_column], what)
    y, class_names = _labels(frame[label], where)
    named = {name: _names_of(frame[name].to_numpy(), f"column {name!r} of {where}") for name in slice_columns}
    groups = None
    if group_column is not None:
        groups = _names_of(frame[group_column].to_numpy(), f"the group column {group_column!r} of {where}")
    excluded = {label, member_column, group_column, *(slice_columns if drop_slices else ())}
    frame = frame.drop(columns=[name for name in frame.columns if name in excluded])
    x, names = (features or _one_hot_features)(frame, where)
    return AuditData(x, y, member, class_names, names, sha256(raw), where, groups, named)


Features = Callable[[Any, str], tuple[NDArray[np.float32], tuple[str, ...]]]
"""(frame of features, path) -> (n, d) numbers, and the names of their columns."""


def _read_table(raw: bytes, where: str) -> Any:
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


def _members_of(values: Any, what: str) -> NDArray[np.bool_]:
    texts = [str(value).strip().lower().removesuffix(".0") for value in np.ravel(values)]
    if unknown := [text for text in texts if text not in _MEMBER]:
        raise InputError(f"{what}: expected 0/1, true/false, yes/no or in/out, got {unknown[0]!r}")
    return np.array([_MEMBER[text] for text in texts], dtype=np.bool_)


def _labels(column: Any, where: str) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    what = f"the label column {column.name!r} of {where}"
    if column.isna().any():
        raise InputError(f"{what} is empty in row {int(column.isna().to_numpy().argmax())} (counted from 0); fill it")
    numeric = require("pandas", "tabular").api.types.is_numeric_dtype(column)
    return _as_labels(column.to_numpy(dtype=np.float64) if numeric else np.array([*map(str, column)]), what)


def _as_labels(y: NDArray[Any], what: str) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    if y.dtype.kind in "US":
        names, codes = np.unique(y.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(names.tolist())
    if y.dtype.kind not in "biuf":
        raise InputError(f"{what}: expected class numbers or names, got dtype {y.dtype}")
    wrong = ~np.equal(np.mod(y.astype(np.float64), 1), 0)
    if wrong.any():
        raise InputError(f"{what}: expected whole class numbers, counted from 0, got {y[wrong.argmax()]}")
    return y.astype(np.int64), None


def _names_of(values: NDArray[Any], what: str) -> NDArray[Any]:
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


def _one_hot_features(frame: Any, where: str) -> tuple[NDArray[np.float32], tuple[str, ...]]:
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


# --- data of a fitted classifier -------------------------------------------------------------------------------------


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
    group: str | None = None,
    slices: tuple[str, ...] = (),
) -> ClassifierData:
    """Load the data of an audit, and `public` rows without labels, for a classifier; arguments as for `load_data`.

    A table is reduced to the columns that the classifier was fitted with, by name; texts and missing numbers become
    codes (`safexplain.columns`), derived from all rows together, and labels positions of its classes. InputError: a
    file is unreadable, lacks a column, or has a label of no class.
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
            x, encoded = _one_hot_features(frame, where)
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

    read = load_data(path, group=group, slices=slices, features=features)
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
    raw = read_bytes(path, "data")
    if raw[:4] == b"PK\x03\x04":
        return None
    return _rename_columns(_read_table(raw, str(path)), names)


def _rename_columns(frame: Any, names: tuple[str, ...]) -> Any:
    other = {name: str(name).replace(" ", "_") for name in frame.columns if name not in names and " " in str(name)}
    return frame.rename(columns={old: new for old, new in other.items() if new in names and new not in frame.columns})


def _require_columns(names: tuple[str, ...], frame: Any, where: str) -> None:
    if absent := [name for name in names if name not in frame.columns]:
        raise InputError(
            f"{where} lacks columns that the model was fitted with: {_abbreviated(absent)}; it has"
            f" {_abbreviated(frame.columns)}"
        )


def _with_accepted_types(found: FittedClassifier, columns: Columns, frame: Any) -> Columns:
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
    classes, names = found.classes, data.class_names
    if are_places(classes):
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
