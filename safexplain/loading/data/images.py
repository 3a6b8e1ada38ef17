"""A folder of images, members and non-members, through one transform."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import one_line, read_bytes, require

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L", "LA"})
_DEEP = ("I", "F")
_PLACES = "members/CLASS/IMAGE and non-members/CLASS/IMAGE"


def load_images(root: Path) -> AuditData:
    """Load images as `members/class/image.png` and `non-members/class/image.png`.

    **Members and non-members are treated alike**: the decision between grey and colour (grey only if every
    image is) and the scaling are made once for both, and all images must have one size. Values are divided
    by 255. Classes are numbered by the sorted names of the class folders on both sides. Members come first,
    each side sorted by path.

    Raises:
        InputError: a folder is empty or has no class folders, an image is damaged or has more than 8 bits,
            or sizes differ.
        MissingExtraError: Pillow is not installed.
    """
    pillow = require("PIL.Image", extra="vision", purpose="reading images")
    folders = {True: root / "members", False: root / "non-members"}
    for folder in folders.values():
        if not folder.is_dir():
            raise InputError(f"{root} is a directory without {folder.name}; images lie in it as {_PLACES}")
    files = {side: _list(folder) for side, folder in folders.items()}
    modes: set[str] = set()
    sizes: dict[tuple[int, int], Path] = {}
    for paths in files.values():
        for path in paths:
            with _open(pillow, path) as image:
                modes.add(image.mode)
                sizes.setdefault(image.size, path)
                if image.mode.startswith(_DEEP):
                    raise InputError(f"{path} has more than 8 bits a pixel (mode {image.mode}); save it with 8 bits")
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise InputError(
            f"images differ in size ({first} is {one[0]}x{one[1]}, {second} is {other[0]}x{other[1]}); resize"
            " members and non-members alike, from originals of the same sizes"
        )
    mode = "L" if modes <= _GREY else "RGB"

    names = tuple(sorted({path.parent.name for paths in files.values() for path in paths}))
    number = {name: index for index, name in enumerate(names)}
    digest = hashlib.sha256()
    images, labels = [], []
    for side, folder in folders.items():
        for path in files[side]:
            raw = read_bytes(path, "image")
            digest.update(f"{side} {path.relative_to(folder).as_posix()} {sha256(raw)}\n".encode())
            images.append(_pixels(pillow, raw, path, mode))
            labels.append(number[path.parent.name])
    x = np.stack(images).astype(np.float32) / np.float32(255)
    member = np.repeat([True, False], [len(files[True]), len(files[False])])
    y = np.array(labels, dtype=np.int64)
    return AuditData(x, y, member, names, None, digest.hexdigest(), str(root), scaled=True)


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


def _pixels(pillow: Any, raw: bytes, path: Path, mode: str) -> NDArray[np.uint8]:
    """Pixels (channels, height, width)."""
    try:
        with pillow.open(io.BytesIO(raw)) as image:
            pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    except Exception as error:  # the decoders raise many kinds of error
        raise _damaged(path, error) from None
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
