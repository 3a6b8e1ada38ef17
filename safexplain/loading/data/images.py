"""A folder of images, members and non-members, through one transform."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from safexplain._digest import sha256
from safexplain.errors import InputError
from safexplain.loading.data.checks import AuditData
from safexplain.loading.files import described, read_bytes, require

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
_GREY = frozenset({"1", "L", "LA"})
_SIDES = ("members", "non-members")


def load_images(root: Path) -> AuditData:
    """Load images as `members/class/image.png` and `non-members/class/image.png`.

    **Members and non-members are treated alike**: the decision between grey and colour (grey only if every image is)
    and the scaling are made once for both, and all images must have one size. Values are divided by 255. Classes are
    numbered by the sorted names of the class folders on both sides. Members come first, each side sorted by path.

    Raises:
        InputError: a folder is empty or has no class folders, an image is damaged or has more than 8 bits, or sizes
            differ.
        MissingExtraError: Pillow is not installed.
    """
    pillow = require("PIL.Image", "vision")
    for name in _SIDES:
        if not (root / name).is_dir():
            raise InputError(f"{root} is a directory without {name}; images lie in it as {name}/CLASS/IMAGE")
    files = [(name, path) for name in _SIDES for path in _list(root / name)]
    digest = hashlib.sha256()
    images, sizes = list[Any](), dict[tuple[int, int], Path]()
    for side, path in files:
        raw = read_bytes(path, "image")
        digest.update(f"{side == _SIDES[0]} {path.relative_to(root / side).as_posix()} {sha256(raw)}\n".encode())
        damaged = described(f"the image {path} cannot be read", "; replace or remove it")
        with damaged, pillow.open(io.BytesIO(raw)) as image:
            images.append(image.copy())
        sizes.setdefault(images[-1].size, path)
        if (mode := images[-1].mode).startswith(("I", "F")):
            raise InputError(f"{path} has more than 8 bits a pixel (mode {mode}); save it with 8 bits")
    if len(sizes) > 1:
        (one, first), (other, second) = list(sizes.items())[:2]
        raise InputError(
            f"{first} is {one[0]}x{one[1]} and {second} {other[0]}x{other[1]}; resize members and non-members alike"
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
        raise InputError(f"the folder {root} holds no images; expected class/image.png inside it")
    for path in found:
        if path.parent.parent != root:
            raise InputError(f"{path} does not lie in a class folder; expected {root}/CLASS/{path.name}")
    return sorted(found)
