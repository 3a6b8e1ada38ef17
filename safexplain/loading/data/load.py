"""Load the data of an audit from arrays, folders of images or tables."""

from __future__ import annotations

import hashlib
import io
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
from safexplain.loading.data.tables import Features, as_labels, load_table, members_of, names_of
from safexplain.loading.files import as_input_error, read_bytes, require

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
      `feature_names` and the arrays named in `group` and `slices`. Arrays of Python objects, which are pickles, are
      refused. Images become (n, channels, height, width): of four axes, a last one of length 1 or 3 becomes the second,
      if that has another length. 8-bit images are divided by 255; with three axes they get a channel axis.
    - A folder that holds `members` and `non-members`, with images as `class/image.png`; see `load_images`.
    - A CSV or Parquet table with a column of labels and a column `member`; see `load_table`.

    Args:
        path: The file or folder.
        label: Name of the label column of a table.
        group: Name of the column or array of groups, such as persons; it is not a feature. None: the array `groups` of
            an .npz, if present.
        slices: Names of columns or arrays by which results are sliced. Columns of a table stay features.
        drop_slices: Remove these columns from the features.
        features: How columns of a table become numbers; None: see `load_table`.

    Raises:
        InputError: a file is missing, unreadable or damaged, or a column or array is missing or unusable.
        MissingExtraError: pandas, pyarrow or Pillow is needed and not installed.
    """
    if Path(path).is_dir():
        if group is not None or slices:
            raise InputError(f"groups and slices need an .npz or a table, got the folder of images {path}")
        return load_images(Path(path))
    return _load_file(path, label, "member", group, tuple(slices), drop_slices, features)


def load_records(
    path: str | Path, *, label: str = "label"
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...] | None]:
    """(n, ...) features, (n,) classes, and class names if the labels were names, without membership, from an `.npz`
    with `x` and `y`, or a table; errors as for `load_data`."""
    data = _load_file(path, label, None)
    return data.x, data.y, data.class_names


def load_inputs(path: str | Path) -> NDArray[np.float32]:
    """(n, ...) inputs without labels, such as public rows, from an `.npz` with `x`, or a table with a column `label`,
    which is dropped; errors as for `load_data`."""
    raw, where = read_bytes(path, "data"), str(path)
    if raw[:4] != b"PK\x03\x04":
        return load_records(path)[0]
    return _as_features(_read_npz(raw, where, ("x",))["x"], where)


def _load_file(path: str | Path, label: str, member_column: str | None, *options: Any) -> AuditData:
    """Arrays or a table; without a member column, all rows are members."""
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
    """The named arrays and the optional ones, after a check that their headers fit together."""
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


def load_images(root: Path) -> AuditData:
    """Load images as `members/class/image.png` and `non-members/class/image.png`.

    **Members and non-members are treated alike**: the choice between grey and colour (grey only if every image is) is
    made once for both, and all images must have the same size. Values are divided by 255. Classes are numbered by the
    sorted names of the class folders of both sides. Members come first, each side sorted by path. InputError: a folder
    is empty or has no class folders, an image is damaged or has more than 8 bits, or sizes differ.
    """
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
