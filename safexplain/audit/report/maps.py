"""Explanation pictures as PNG data URIs: input, native map and released map of a few examples."""

from __future__ import annotations

import base64
import io
from typing import Any

import matplotlib
import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from safexplain.audit.report.model import Pictures

SMALL, LARGE = 160, 192
"""Pictures are enlarged by a whole factor to at least SMALL pixels, and thinned out to at most LARGE."""

SIGNED, POSITIVE = "RdBu_r", "Reds"
"""Colour maps, white at zero: blue to red for maps with signs, white to red for maps without negative values."""

NO_METADATA: dict[str, Any] = {"Software": None}


def strips(pictures: Pictures, released_name: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The caption of every example, and its pictures: what each shows and its data URI.

    Args:
        pictures: the arrays.
        released_name: what to call the released maps.
    """
    native = heat_maps(pictures.native)
    released = None if pictures.released is None else heat_maps(pictures.released)
    out = []
    for i, caption in enumerate(pictures.captions):
        row = [] if pictures.images is None else [("input", photo(pictures.images[i]))]
        row.append(("native", native[i]))
        if released is not None:
            row.append((released_name, released[i]))
        out.append((caption, row))
    return out


def has_signs(pictures: Pictures) -> tuple[bool, bool]:
    """Whether some map is drawn on the signed colour map, and whether some is drawn on the other one."""
    groups = [pictures.native] if pictures.released is None else [pictures.native, pictures.released]
    signed = [bool((_channel_sum(g) < 0).any()) for g in groups]
    return any(signed), not all(signed)


def heat_maps(attributions: NDArray[np.floating[Any]]) -> list[str]:
    """Maps (k, c, h, w), each on its own scale; all on one colour map, so that white is zero in all of them."""
    rows = _channel_sum(attributions)
    signed = bool((rows < 0).any())
    colours = matplotlib.colormaps[SIGNED if signed else POSITIVE]
    uris = []
    for row in rows:
        largest = float(np.abs(row).max())
        unit = row / largest if largest > 0 else np.zeros_like(row)
        uris.append(_png(np.asarray(colours((unit + 1) / 2 if signed else unit))[..., :3]))
    return uris


def _channel_sum(attributions: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    values = np.nan_to_num(np.asarray(attributions, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    out: NDArray[np.float64] = values.sum(axis=1)
    return out


def photo(image: NDArray[np.floating[Any]]) -> str:
    """An image (1 or 3, h, w) with values in [0, 1]."""
    pixels = np.clip(np.nan_to_num(np.asarray(image, dtype=np.float64)), 0, 1).transpose(1, 2, 0)
    return _png(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _png(rgb: NDArray[np.floating[Any]]) -> str:
    """(h, w, 3) in [0, 1] as a data URI; nearest-neighbour scaling only, so that no value is invented."""
    longest = max(rgb.shape[:2])
    rgb = rgb[:: -(-longest // LARGE), :: -(-longest // LARGE)]
    factor = -(-SMALL // max(rgb.shape[:2]))
    pixels = np.round(255 * rgb).astype(np.uint8).repeat(factor, axis=0).repeat(factor, axis=1)
    raw = io.BytesIO()
    imsave(raw, pixels, format="png", metadata=NO_METADATA, pil_kwargs={"optimize": True})
    return "data:image/png;base64," + base64.b64encode(raw.getvalue()).decode()
