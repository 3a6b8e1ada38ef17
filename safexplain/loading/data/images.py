"""Two folders of images, members and non-members, through one transform."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import one_line, read_bytes, require, sha256

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L", "LA"})
_DEEP = ("I", "F")


def load_images(members: Path, non_members: Path, *, image_size: int | None) -> AuditData:
    """Load folders of images as `class/image.png`.

    **Members and non-members are treated alike**: the decision between grey and colour (grey only if every
    image is), the size and the scaling are made once for both. Values are divided by 255. Classes are
    numbered by the sorted names of the class folders on both sides. Members come first, each side sorted by
    path.

    Args:
        members: Folder of the images that the model was trained on.
        non_members: Folder of images that it was not trained on.
        image_size: Height and width to which every image is resized (bilinear; the aspect ratio is not kept).

    Raises:
        InputError: a folder is empty or has no class folders, an image is damaged or has more than 8 bits,
            sizes differ and no `image_size` is given, or resizing would mark one side.
        MissingExtraError: Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="vision", purpose="reading images")
    if image_size is not None and image_size < 1:
        raise InputError(f"image_size is {image_size}; expected a number of pixels, at least 1")
    files = {True: _list(members), False: _list(non_members)}
    modes: set[str] = set()
    sizes: dict[bool, dict[tuple[int, int], Path]] = {True: {}, False: {}}
    for side, paths in files.items():
        for path in paths:
            with _open(pillow, path) as image:
                modes.add(image.mode)
                sizes[side].setdefault(image.size, path)
                if image.mode.startswith(_DEEP):
                    raise InputError(f"{path} has more than 8 bits a pixel (mode {image.mode}); save it with 8 bits")
    _check_sizes(sizes, image_size)
    mode = "L" if modes <= _GREY else "RGB"

    names = tuple(sorted({path.parent.name for paths in files.values() for path in paths}))
    number = {name: index for index, name in enumerate(names)}
    digest = hashlib.sha256()
    images, labels = [], []
    for side, root in ((True, members), (False, non_members)):
        for path in files[side]:
            raw = read_bytes(path, "image")
            digest.update(f"{side} {path.relative_to(root).as_posix()} {sha256(raw)}\n".encode())
            images.append(_pixels(pillow, raw, path, mode, image_size))
            labels.append(number[path.parent.name])
    x = np.stack(images).astype(np.float32) / np.float32(255)
    member = np.repeat([True, False], [len(files[True]), len(files[False])])
    y = np.array(labels, dtype=np.int64)
    return AuditData(x, y, member, names, None, True, digest.hexdigest(), f"{members} and {non_members}")


def _list(root: Path) -> list[Path]:
    try:
        found = [path for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()]
    except OSError as error:
        raise InputError(f"the folder {root} cannot be read: {error.strerror or error}") from None
    if not found:
        raise InputError(f"the folder {root} holds no images; expected class/image.png inside it")
    for path in found:
        if path.parent.parent != root:
            raise InputError(f"{path} does not lie in a class folder; expected {root}/CLASS/{path.name}")
    return sorted(found)


def _open(pillow: Any, source: Path) -> Any:
    try:
        return pillow.open(source)
    except Exception as error:  # the decoders raise many kinds of error
        raise _damaged(source, error) from None


def _damaged(path: Path, error: BaseException) -> InputError:
    return InputError(f"the image {path} cannot be read: {one_line(error)}; replace or remove it")


def _check_sizes(sizes: dict[bool, dict[tuple[int, int], Path]], image_size: int | None) -> None:
    seen = {**sizes[True], **sizes[False]}
    if len(seen) == 1:
        return
    if image_size is None:
        (one, first), (other, second) = list(seen.items())[:2]
        raise InputError(
            f"images differ in size ({first} is {one[0]}x{one[1]}, {second} is {other[0]}x{other[1]}); pass "
            "image_size= in Python (safexplain.loading.data.load_data) to resize all of them"
        )
    if not sizes[True].keys() & sizes[False].keys():
        raise InputError(
            "no size of image occurs among both members and non-members, so resizing would leave its mark on "
            "one side and an attack would read that mark; take both sides from one source"
        )


def _pixels(pillow: Any, raw: bytes, path: Path, mode: str, image_size: int | None) -> NDArray[np.uint8]:
    """Pixels (channels, height, width)."""
    try:
        with pillow.open(io.BytesIO(raw)) as image:
            converted = image.convert(mode)
            if image_size is not None:
                converted = converted.resize((image_size, image_size), pillow.Resampling.BILINEAR)
            pixels = np.asarray(converted, dtype=np.uint8)
    except Exception as error:  # the decoders raise many kinds of error
        raise _damaged(path, error) from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
