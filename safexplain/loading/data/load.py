"""A stranger's data: arrays, folders of images or tables, brought to one form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain._files import ArrayFile
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.data.images import load_images
from safexplain.loading.data.tables import Features, as_labels, load_table, members_of, names_of
from safexplain.loading.files import read_bytes

__all__ = ["load_data", "load_inputs", "load_records"]

_LONGEST_NAMES = 256 << 20
"""Bytes that all names of classes, or of features, may take once each is a text of Python's, which takes 64 or more."""


def load_data(
    path: str | Path,
    *,
    label: str = "label",
    group: str | None = None,
    slices: Sequence[str] = (),
    drop_slices: bool = False,
    features: Features | None = None,
) -> AuditData:
    """Load the data of an audit. Nothing is standardised: it must come as the model expects it.

    - `.npz` with arrays `x` (n, ...), `y` (n,) and `member` (n,), optionally `groups` (n,), `class_names` and
      `feature_names`, and those that `group` and `slices` name. Arrays of Python objects, which are pickles, are
      refused. Images become (n, channels, height, width): of four axes, a last one of length 1 or 3 becomes the second,
      if that has another length. 8-bit images are divided by 255; with three axes they get a channel axis.
    - A folder that holds `members` and `non-members`, with images as `class/image.png`; see `load_images`.
    - A CSV or Parquet table with a column of labels and a column `member`; see `load_table`.

    Files are told apart by content, not by name.

    Args:
        path: The file or folder.
        label: Name of the label column of a table.
        group: Name of the column or array that tells which rows belong together, as those of one person; it is no
            feature. None: of an .npz the array `groups`, where it is there.
        slices: Names of columns or arrays by which results are sliced. Columns of a table stay features.
        drop_slices: They do not.
        features: How the columns of a table become numbers; None: see `load_table`.

    Raises:
        InputError: a file is missing, unreadable or damaged, or a column or array is missing or of no use.
        MissingExtraError: pandas, pyarrow or Pillow is needed and not installed.
    """
    if Path(path).is_dir():
        if group is not None or slices:
            raise InputError(f"{path} is a folder of images, which has no columns; give groups and slices in an .npz")
        return load_images(Path(path))
    return _load_file(path, label, "member", group, tuple(slices), drop_slices, features)


def load_records(
    path: str | Path, *, label: str = "label"
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...] | None]:
    """Load examples whose membership is not in question: `.npz` with `x` and `y`, or a table. Errors are those of
    `load_data`.

    Returns:
        (n, ...) features, (n,) classes, and the names of the classes where the labels were names.
    """
    data = _load_file(path, label, None)
    return data.x, data.y, data.class_names


def load_inputs(path: str | Path) -> NDArray[np.float32]:
    """Load inputs whose labels are of no interest, such as public rows: (n, ...) as the model expects them.

    Args:
        path: `.npz` with `x`, or a table with a column `label`, which is left out; errors are those of `load_data`.
    """
    raw, where = read_bytes(path, "data"), str(path)
    if raw[:4] != b"PK\x03\x04":
        return load_records(path)[0]
    return _as_features(_read_npz(raw, where, ("x",))["x"], where)


def _load_file(path: str | Path, label: str, member_column: str | None, *options: Any) -> AuditData:
    """Arrays or a table; without a name for what tells membership, all rows are members."""
    raw, where = read_bytes(path, "data"), str(path)
    if raw[:4] != b"PK\x03\x04":
        return load_table(raw, where, label, member_column, *options)
    group, slices, *_ = options or (None, ())
    wanted = ("x", "y", *(name for name in (member_column, group, *slices) if name))
    arrays = _read_npz(raw, where, tuple(dict.fromkeys(wanted)))
    x = _as_features(arrays["x"], where)
    y, class_names = as_labels(arrays["y"].reshape(len(arrays["y"])), f"y of {where}")
    if "class_names" in arrays:
        class_names = tuple(str(name) for name in arrays["class_names"].ravel())
    columns = tuple(str(name) for name in arrays["feature_names"].ravel()) if "feature_names" in arrays else None
    member = np.ones(len(x), dtype=np.bool_)
    if member_column is not None:
        member = members_of(arrays[member_column], f"{member_column} of {where}")
    named = arrays.get(group or "groups")
    groups = None if named is None else names_of(named, f"array {group or 'groups'!r} of {where}")
    sliced = {name: names_of(arrays[name], f"array {name!r} of {where}") for name in slices}
    scaled = arrays["x"].dtype == np.uint8 and x.ndim == 4
    return AuditData(x, y, member, class_names, columns, sha256(raw), where, groups, sliced, scaled)


def _read_npz(raw: bytes, where: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The arrays of these names and the optional ones, once their headers show that they belong together."""
    with ArrayFile(raw, where) as file:
        if not file.names:
            raise InputError(f"{where} is a zip archive without arrays; expected a .npz file with x, y and member")
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
                raise InputError(f"y of {where} has shape {shape}; expected (n,): of one-hot rows, take argmax")
            if not x or shape not in (x[:1], (x[0], 1)):
                raise InputError(f"x of {where} has shape {x} but {name} {shape}; expected one entry a row")
        texts = [name for name in ("class_names", "feature_names") if name in file.names]
        for name in texts:
            dtype, shape = file.header(name)
            count = math.prod(shape)
            if name == "feature_names" and (len(x) != 2 or count != x[1]):
                raise InputError(f"{where} has {count} feature_names for x of shape {x}; give one a column")
            if count * max(dtype.itemsize, 64) > _LONGEST_NAMES:
                raise InputError(f"{name} of {where} are {dtype} of shape {shape}; expected a short name for each")
        return file.read(*names, *texts)


def _as_features(x: NDArray[Any], where: str) -> NDArray[np.float32]:
    if x.dtype.kind not in "biuf":
        raise InputError(f"x of {where} has dtype {x.dtype}; expected numbers")
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as such
        values = np.ascontiguousarray(x, dtype=np.float32)
    if x.dtype == np.uint8 and x.ndim == 4:
        values = values / np.float32(255)
    return values
