"""Groups of features (superpixels and squares of images, words of texts), and hardening at their resolution: noise on
every feature of a group would average away.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import InputError, RefusedError, needs_extra
from safexplain.hardening.hardening import plain_tensors

Tensors = tuple[Tensor, ...]
Harden = Callable[[Tensor, slice], Tensor]
"""(values (rows, k), which rows of the batch) -> hardened values."""

_TOLERANCE = 1e-5


def superpixels(images: Tensor, n_segments: int = 50, compactness: float = 10.0) -> Tensor:
    """SLIC superpixels (Achanta et al., IEEE TPAMI 34(11), 2012) of each image, by scikit-image: a `feature_mask`.

    Args:
        images: (batch, 1 or 3, height, width), on any scale: each is scaled to [0, 1].
        n_segments: approximate number of superpixels.
        compactness: weight of space against colour; larger gives squarer superpixels.

    Returns:
        Integers (batch, 1, height, width) from 0, on the images' device; squares if SLIC finds a single superpixel.

    Raises:
        InputError: other shapes, or fewer than two segments.
        MissingExtraError: scikit-image is not installed.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"expected images (batch, 1 or 3, height, width), got {got}")
    if n_segments < 2:
        raise InputError(f"expected at least 2 segments, got n_segments={n_segments}")
    with needs_extra("vision"):
        from skimage.segmentation import slic
    masks = []
    for image in images.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0):
        shifted = image - image.amin()
        pixels = (shifted / shifted.amax() if bool(shifted.any()) else shifted).movedim(0, -1).numpy()
        found = slic(pixels, n_segments=n_segments, compactness=compactness, start_label=0)
        mask = torch.from_numpy(found).long()
        side = max(2, math.isqrt(n_segments))
        masks.append(mask if bool((mask != mask[0, 0]).any()) else grid_segments(image[None], side)[0, 0])
    stacked = torch.stack(masks) if masks else torch.empty(0, *images.shape[2:], dtype=torch.long)
    return stacked[:, None].to(images.device)


def grid_segments(inputs: Tensor, side: int = 8) -> Tensor:
    """Squares as a `feature_mask`: each axis after the channels is cut into `side` parts of about the same length.

    Args:
        inputs: (batch, channels, ...); their values do not matter.
        side: parts of an axis, at least 1; a shorter axis is cut into single positions.

    Returns:
        Integers (1, 1, ...) from 0.

    >>> grid_segments(torch.empty(5, 3, 2, 4), 2)[0, 0].tolist()
    [[0, 0, 1, 1], [2, 2, 3, 3]]
    """
    if inputs.dim() < 3 or side < 1:
        raise InputError(f"expected inputs (batch, channels, ...) and side >= 1, got {tuple(inputs.shape)} and {side}")
    mask = torch.zeros(1, 1, dtype=torch.long, device=inputs.device)
    for length in inputs.shape[2:]:
        parts = min(side, length)
        mask = mask[..., None] * parts + torch.arange(length, device=inputs.device) * parts // max(length, 1)
    return mask


def words(tokens: Tensor, continues: Sequence[int]) -> Tensor:
    """Words as a `feature_mask`: (n, tokens) integers, the word of each token.

    Args:
        tokens: (n, tokens) token numbers, integers or floats.
        continues: tokens that continue a word: those that begin with "##" in a WordPiece vocabulary.

    >>> words(torch.tensor([[101, 7, 90, 91, 8]]), continues=[90, 91]).tolist()
    [[0, 1, 1, 1, 2]]
    """
    of_word = torch.tensor([*continues], dtype=tokens.dtype, device=tokens.device)
    begins = ~torch.isin(tokens.round(), of_word).flatten(1)
    begins[:, :1] = False
    return begins.cumsum(1).view(tokens.shape)


def show_set(image: Any, released: Any, ax: Any = None, color: str = "tab:orange") -> Any:
    """Draw an image in grey and the pixels of a released set in colour; in an ordered set, stronger ones in more
    colour.

    Args:
        image: (channels, height, width) or (height, width), a tensor or an array, on any scale.
        released: the set released for it, of the same shape; a pixel is coloured if one of its channels is in the set.
        ax: matplotlib's axes, which are returned; None: the current ones.
        color: of the set, as matplotlib takes it.

    Raises:
        InputError: other shapes, or numbers below zero: not a set.
    """
    from matplotlib import colors, pyplot

    pixels, named = (np.asarray(torch.as_tensor(a).detach().cpu().double()) for a in (image, released))
    if pixels.ndim not in (2, 3) or named.ndim not in (2, 3) or pixels.shape[-2:] != named.shape[-2:]:
        raise InputError(
            "expected one image and its released set, (channels, height, width) or (height, width) each, got"
            f" {pixels.shape} and {named.shape}"
        )
    if (named < 0).any():
        raise InputError("expected a set (TopKSet) without negative numbers, got some below 0: draw maps by imshow")
    height, width = named.shape[-2:]
    grey, share = pixels.reshape(-1, height, width).mean(0), named.reshape(-1, height, width).max(0)
    grey = (grey - grey.min()) / (np.ptp(grey) or 1.0)
    share = (share / (share.max() or 1.0))[..., None]
    ax = pyplot.gca() if ax is None else ax
    ax.imshow(grey[..., None] * (1 - share) + np.array(colors.to_rgb(color)) * share)
    ax.set(xticks=[], yticks=[])
    return ax


@dataclass(frozen=True)
class Groups:
    """Which positions of a map form a group: `members` has for each tensor of the map the group of each position,
    integers (1 or batch, ...); `words` is what they were made from, if not single examples, as a part of the query."""

    members: Tensors
    words: str = ""

    def canonical(self, tensors: Tensors) -> Tensor:
        """(1 or batch, d) groups over all positions of all tensors, numbered by first occurrence."""
        pairs = [(m.view(*[1] * (t.dim() - m.dim()), *m.shape), t) for m, t in zip(self.members, tensors, strict=True)]
        rows = max(m.shape[0] for m, _ in pairs)
        flat = [m.to(t.device).expand(rows, *t.shape[1:]).reshape(rows, -1) for m, t in pairs]
        return torch.stack([_by_first_occurrence(row) for row in torch.cat(flat, 1)])


def find_groups(options: Mapping[str, Any], tensors: Tensors) -> Groups | None:
    """The groups in the arguments of a call: of a feature mask or a sliding window over the inputs, or of a layer mask
    over the native result."""
    for name in ("feature_mask", "layer_mask"):
        if (mask := options.get(name)) is not None:
            return Groups(mask if isinstance(mask, tuple) else (mask,))
    if (shapes := options.get("sliding_window_shapes")) is None:
        return None
    strides = options.get("strides")
    several = isinstance(shapes[0], tuple)
    windows = shapes if several else (shapes,)
    steps = strides if several and strides is not None else (strides,) * len(windows)
    members, words, count = list[Tensor](), [], 0
    for tensor, window, step in zip(tensors, windows, steps, strict=True):
        covered = _covered(tensor.shape[1:], window, step)
        members.append(count + _cells(covered, tensor.shape[1:]))
        words.append([places for places, n in zip(covered, tensor.shape[1:], strict=True) if n != 1])
        count += members[-1].numel()
    return Groups(tuple(members), f"{words}")


def by_name(tensors: Tensors, members: Tensors) -> Tensor | None:
    """(k,) the canonical group of each coefficient of a map (batch, k), whatever the caller's names of the groups; None
    unless there is one for each name, from 0."""
    names = torch.cat([m.reshape(-1) for m in members]).long()
    count = tensors[0].shape[-1]
    if len(tensors) != 1 or tensors[0].dim() != 2 or torch.unique(names).tolist() != list(range(count)):
        return None
    numbers = _by_first_occurrence(names)
    return numbers.new_empty(count).scatter_(0, names, numbers)


def harden_groups(tensors: Tensors, groups: Tensor, harden: Harden) -> Tensors:
    """A map with the value of each group hardened, in the shapes and dtypes of the native map, (batch, ...) each;
    `groups` are (1 or batch, d). RefusedError: the map has more than one value in a group."""
    widths = [t[:1].numel() for t in tensors]
    flat = torch.cat([t.flatten(1) for t in plain_tensors(tensors)], 1)
    released = torch.empty_like(flat)
    for i, group in enumerate(groups):
        rows = slice(0, len(flat)) if len(groups) == 1 else slice(i, i + 1)
        released[rows] = harden(_values(flat[rows], group), rows)[:, group]
    parts = torch.split(released, widths, 1)
    return tuple(p.reshape(t.shape).to(t.dtype).clone() for p, t in zip(parts, tensors, strict=True))


def names_of(groups: Tensor) -> Tensor:
    """(rows, 2) integers that identify the partition in each row of groups, whatever the batch."""
    rows = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in groups.cpu().numpy()]
    return torch.from_numpy(np.frombuffer(b"".join(rows), "<i8").reshape(-1, 2).copy())


def _values(rows: Tensor, groups: Tensor) -> Tensor:
    values = rows[:, torch.from_numpy(np.unique(groups.cpu(), return_index=True)[1]).to(rows.device)]
    spread = (rows - values[:, groups]).abs().nan_to_num(0.0, 0.0, 0.0).amax() if rows.numel() else 0.0
    if bool(spread > _TOLERANCE * rows.nan_to_num(0.0, 0.0, 0.0).abs().amax()):
        raise RefusedError("expected one value for each group of features: leave out the mask, or pass the right one")
    return values


def _by_first_occurrence(row: Tensor) -> Tensor:
    _, first, index = np.unique(row.cpu(), return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[index]).to(row.device)


def _covered(shape: Sequence[int], window: Any, step: Any) -> list[list[tuple[int, int]]]:
    """(start, end) of the windows along each axis, the same for all strides that give the same windows."""
    sizes = window if isinstance(window, tuple | list) else (window,)
    steps = step if isinstance(step, tuple | list) else (1 if step is None else step,) * len(shape)
    found = []
    for length, size, stride in zip(shape, map(int, sizes), map(int, steps), strict=True):
        starts = range(0, max(length - size, 0) + stride, stride)
        found.append([(s, min(s + size, length)) for s in starts if s < length])
    return found


def _cells(covered: list[list[tuple[int, int]]], shape: Sequence[int]) -> Tensor:
    """(1, ...) the cell of each position between the edges of all windows."""
    cells = torch.zeros(1, dtype=torch.long)
    for length, places in zip(shape, covered, strict=True):
        edges = sorted({0, length}.union(*places))[1:]
        cells = cells[..., None] * len(edges) + torch.bucketize(torch.arange(length), torch.tensor(edges), right=True)
    return cells
