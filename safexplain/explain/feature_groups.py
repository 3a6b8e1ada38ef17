"""Hardening at the resolution of what was computed.

An explanation of superpixels, windows or other groups of features is a few numbers, written into all the places of each
group. Noise on each place would average away over a group. So the numbers are read from the native map, hardened as the
few numbers that they are, and written back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import RefusedError
from safexplain.hardening.hardening import plain

__all__ = ["Groups", "find_groups", "harden_groups", "names_of"]

Tensors = tuple[Tensor, ...]
Harden = Callable[[Tensor, slice], Tensor]
"""(values (rows, k), which rows of the batch) -> hardened values of the same shape."""

_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Groups:
    """Which places of a map belong together.

    Args:
        members: for each tensor of the map the group of each place, integers (1 or batch, ...), broadcastable to it.
        words: what the groups were made from where they are no function of single examples; part of the query.
    """

    members: Tensors
    words: str = ""

    def canonical(self, tensors: Tensors) -> Tensor:
        """(1 or batch, d) groups over all places of all tensors, numbered by first occurrence."""
        pairs = [(m.view(*[1] * (t.dim() - m.dim()), *m.shape), t) for m, t in zip(self.members, tensors, strict=True)]
        rows = max(m.shape[0] for m, _ in pairs)
        flat = [m.to(t.device).expand(rows, *t.shape[1:]).reshape(rows, -1) for m, t in pairs]
        return torch.stack([_by_first_occurrence(row) for row in torch.cat(flat, 1)])


def find_groups(options: Mapping[str, Any], tensors: Tensors) -> Groups | None:
    """The groups that the arguments of a call speak of: a feature mask, a layer mask or a sliding window.

    Args:
        options: arguments of the native call by name.
        tensors: the inputs, or for a layer's mask the native result, whose places are grouped.
    """
    for name in ("feature_mask", "layer_mask"):
        if (mask := options.get(name)) is not None:
            return Groups(mask if isinstance(mask, tuple) else (mask,))
    if (shapes := options.get("sliding_window_shapes")) is not None:
        strides = options.get("strides")
        several = isinstance(shapes[0], tuple)
        windows = shapes if several else (shapes,)
        steps = strides if several and strides is not None else (strides,) * len(windows)
        asked = [_for_each_axis(*one) for one in zip(tensors, windows, steps, strict=True)]
        cells = [_cells(t, *one) for t, one in zip(tensors, asked, strict=True)]
        return Groups(tuple(c + sum(map(Tensor.numel, cells[:i])) for i, c in enumerate(cells)), f"{asked}")
    return None


def harden_groups(tensors: Tensors, groups: Tensor, harden: Harden) -> Tensors:
    """A map with each group's value hardened, in the shapes and dtypes of the native map.

    Args:
        tensors: the native map, (batch, ...) each.
        groups: (1 or batch, d) from `Groups.canonical`.
        harden: what is done to the values.

    Raises:
        RefusedError: the map has more than one value in a group.
    """
    widths = [t[:1].numel() for t in tensors]
    flat = torch.cat([t.flatten(1) for t in plain(tensors)], 1)
    released = torch.empty_like(flat)
    alike = len(groups) == 1
    for i in range(1 if alike else len(flat)):
        part = slice(0, len(flat)) if alike else slice(i, i + 1)
        values = _values(flat[part], groups[i])
        released[part] = harden(values, part)[:, groups[i]]
    pieces = torch.split(released, widths, 1)
    return tuple(p.reshape(t.shape).to(t.dtype).clone() for p, t in zip(pieces, tensors, strict=True))


def names_of(groups: Tensor) -> Tensor:
    """A name of each row of groups, (rows, 2) integers: the same one for the same partition, alone or in a batch."""
    rows = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in groups.cpu().numpy()]
    return torch.from_numpy(np.frombuffer(b"".join(rows), "<i8").reshape(-1, 2).copy())


def _values(rows: Tensor, groups: Tensor) -> Tensor:
    first = _first_places(groups)
    values = rows[:, first]
    spread = (rows - values[:, groups]).abs().nan_to_num(0.0, 0.0, 0.0).amax() if rows.numel() else 0.0
    if bool(spread > _TOLERANCE * rows.nan_to_num(0.0, 0.0, 0.0).abs().amax()):
        raise RefusedError(
            "the map has different values within one group of features, so that it cannot be hardened at the resolution"
            " of the groups: leave the mask away, or name the groups as the explainer uses them"
        )
    return values


def _by_first_occurrence(row: Tensor) -> Tensor:
    _, index = torch.unique(row, return_inverse=True)
    order = _first_places(index).argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=row.device)
    return rank[index]


def _first_places(index: Tensor) -> Tensor:
    """First place of each group, for groups 0 to k - 1."""
    places = torch.arange(len(index), device=index.device)
    count = int(index.max()) + 1 if len(index) else 0
    return places.new_full((count,), len(index)).scatter_reduce(0, index, places, "amin")


def _for_each_axis(tensor: Tensor, window: Any, step: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a window, however they were written."""
    axes = tensor.dim() - 1
    sizes = window if isinstance(window, tuple | list) else (window,)
    steps = step if isinstance(step, tuple | list) else (1 if step is None else step,) * axes
    return tuple(map(int, sizes)), tuple(map(int, steps))


def _cells(tensor: Tensor, window: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """Cells between the edges of all windows: places of one cell are covered by the same windows."""
    shape = tensor.shape[1:]
    cells = torch.zeros(1, *shape, dtype=torch.long, device=tensor.device)
    for axis, (length, size, stride) in enumerate(zip(shape, window, steps, strict=True)):
        starts = range(0, max(length - size, 0) + stride, stride) if length > size else range(1)
        edges = sorted({0, length} | {s for s in starts if s < length} | {min(s + size, length) for s in starts})
        index = torch.bucketize(torch.arange(length), torch.tensor(edges[1:]), right=True).to(tensor.device)
        cells = cells * len(edges) + index.view(*[-1 if i == axis else 1 for i in range(len(shape))])
    return cells
