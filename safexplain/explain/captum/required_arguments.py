"""Arguments without which a native method cannot be called: a plain choice of them, from the inputs alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from safexplain.explain.captum.layers import whole_layer
from safexplain.explain.segments import grid_segments

__all__ = ["few_groups", "groups", "neuron", "neuron_and_zero", "windows", "zero_baselines"]

Inputs = tuple[Tensor, ...]


def zero_baselines(inputs: Inputs) -> dict[str, Any]:
    """Two baselines of zeros, a set of which each method takes the mean or draws."""
    return {"baselines": tuple(torch.zeros_like(x[:1]).repeat(2, *[1] * (x.dim() - 1)) for x in inputs)}


def windows(inputs: Inputs) -> dict[str, Any]:
    """Windows of a quarter of each axis at steps of an eighth; the first of several axes stays whole."""
    shapes, strides = [], []
    for x in inputs:
        channels, axes = (x.shape[1:2], x.shape[2:]) if x.dim() > 2 else ((), x.shape[1:])
        shapes.append((*channels, *(max(1, n // 4) for n in axes)))
        strides.append((*channels, *(max(1, n // 8) for n in axes)))
    return {"sliding_window_shapes": tuple(shapes), "strides": tuple(strides)}


def groups(inputs: Inputs) -> dict[str, Any]:
    """Features in groups, so that a few dozen numbers are estimated: 4 x 4 squares of an image, columns of a table."""
    return {"feature_mask": _masks(inputs, side=4, columns=None)}


def few_groups(inputs: Inputs) -> dict[str, Any]:
    """Four groups in all, of neighbouring places: the number of orders to go through is that of groups, factorial."""
    return {"feature_mask": _masks(inputs, side=None, columns=max(1, 4 // len(inputs)))}


def _masks(inputs: Inputs, side: int | None, columns: int | None) -> Inputs:
    masks, first = [], 0
    for x in inputs:
        d = math.prod(x.shape[1:])
        index = torch.arange(d, device=x.device).view(1, *x.shape[1:])
        mask = grid_segments(x, side) if side and x.dim() > 2 else index * min(columns or d, d) // max(d, 1)
        masks.append(mask + first)
        first += int(mask.max()) + 1 if mask.numel() else 0
    return tuple(masks)


def neuron(inputs: Inputs) -> dict[str, Any]:
    """The sum over the layer as the neuron."""
    return {"neuron_selector": whole_layer}


def neuron_and_zero(inputs: Inputs) -> dict[str, Any]:
    """The sum over the layer as the neuron, and baselines of zeros."""
    return {**neuron(inputs), **zero_baselines(inputs)}
