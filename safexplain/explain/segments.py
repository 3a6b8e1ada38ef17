"""Feature masks for images: which pixels are explained together, as superpixels or squares.

Both depend on the image alone, never on the model, so that a mask tells nothing about the training data.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from safexplain.errors import InputError, MissingExtraError

__all__ = ["grid_segments", "superpixels"]


def superpixels(images: Tensor, n_segments: int = 50, compactness: float = 10.0, sigma: float = 0.0) -> Tensor:
    """SLIC superpixels (Achanta et al., IEEE TPAMI 34(11), 2012) of each image, by scikit-image: a `feature_mask`.

    Args:
        images: (batch, channels, height, width) with 1 or 3 channels, on any scale: each image is scaled to [0, 1].
        n_segments: about how many superpixels; there may be fewer or more.
        compactness: weight of nearness in space against nearness in colour; larger gives squarer superpixels.
        sigma: width in pixels of a Gaussian blur before.

    Returns:
        Integers (batch, 1, height, width) from 0, on the images' device. An image in which SLIC finds a single
        superpixel (it is flat) gets squares, since methods that fit a surrogate need two features.

    Raises:
        InputError: other shapes, or fewer than two segments asked for.
        MissingExtraError: scikit-image is not installed.

    >>> image = torch.linspace(0, 1, 32 * 32).view(1, 1, 32, 32)
    >>> mask = superpixels(image, n_segments=16)
    >>> tuple(mask.shape), mask.dtype, int(mask.min())
    ((1, 1, 32, 32), torch.int64, 0)
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise InputError(f"expected images (batch, 1 or 3, height, width), got {_shape(images)}")
    if n_segments < 2:
        raise InputError(f"expected at least 2 segments, got n_segments={n_segments}")
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "skimage":
            raise
        raise MissingExtraError('superpixels need scikit-image: pip install "safexplain[vision]"') from None
    masks = []
    for image in images.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0):
        span = image.amax() - image.amin()
        pixels = ((image - image.amin()) / span if span > 0 else torch.zeros_like(image)).movedim(0, -1).numpy()
        colour = pixels.shape[-1] == 3
        found = slic(
            pixels if colour else pixels[..., 0],
            n_segments=n_segments,
            compactness=compactness,
            sigma=sigma,
            start_label=0,
            channel_axis=-1 if colour else None,
        )
        mask = torch.from_numpy(found).long()
        masks.append(mask if bool((mask != mask[0, 0]).any()) else grid_segments(image[None], _side(n_segments))[0, 0])
    stacked = torch.stack(masks) if masks else torch.empty(0, *images.shape[2:], dtype=torch.long)
    return stacked[:, None].to(images.device)


def grid_segments(inputs: Tensor, side: int = 8) -> Tensor:
    """Squares as a `feature_mask`: each axis after the channels cut into `side` pieces of about the same length.

    Args:
        inputs: (batch, channels, ...); their values do not matter.
        side: pieces on an axis, at least 1; an axis shorter than that is cut into single places.

    Returns:
        Integers (1, 1, ...) from 0, for all examples and channels alike.

    >>> grid_segments(torch.empty(5, 3, 2, 4), 2)[0, 0].tolist()
    [[0, 0, 1, 1], [2, 2, 3, 3]]
    """
    if inputs.dim() < 3 or side < 1:
        raise InputError(f"expected inputs (batch, channels, ...) and side >= 1, got {tuple(inputs.shape)} and {side}")
    mask = torch.zeros(1, 1, *inputs.shape[2:], dtype=torch.long, device=inputs.device)
    for axis, length in enumerate(inputs.shape[2:]):
        pieces = min(side, length)
        index = torch.arange(length, device=inputs.device) * pieces // max(length, 1)
        mask = mask * pieces + index.view(*[-1 if i == axis else 1 for i in range(inputs.dim() - 2)])
    return mask


def _shape(images: object) -> str:
    return str(tuple(images.shape)) if isinstance(images, Tensor) else type(images).__name__


def _side(n_segments: int) -> int:
    return max(2, math.isqrt(n_segments))
