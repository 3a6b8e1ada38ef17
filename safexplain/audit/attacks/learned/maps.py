"""Attributions as inputs of a classifier: every map at unit size, and its size and shape in a few numbers beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SCALARS = ("log RMS", "log L1", "log variance", "mean / RMS", "share positive", "log max")
"""What `unit_maps` says about each map beside the map itself."""

CLIP = 10.0
"""Largest standardised scalar."""


def unit_maps(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps divided by their root mean square, and what this took away.

    Args:
        maps: (p, d) double precision; all-zero maps stay zero.

    Returns:
        (p, d) float32 maps and (p, 6) `SCALARS` in double precision, -inf for the logarithm of zero.
    """
    largest = maps.abs().amax(1, keepdim=True)
    part = maps / torch.where(largest > 0, largest, 1.0)  # squares of what is at most 1 neither overflow nor vanish
    mean = part.mean(1, keepdim=True)
    rms = part.square().mean(1, keepdim=True).sqrt()
    safe = torch.where(rms > 0, rms, 1.0)
    scale = largest.log()
    scalars = [
        rms.log() + scale,
        part.abs().sum(1, keepdim=True).log() + scale,
        (part - mean).square().mean(1, keepdim=True).log() + 2 * scale,
        mean / safe,
        (part > 0).double().mean(1, keepdim=True),
        scale,
    ]
    return (part / safe).float(), torch.cat(scalars, 1)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Shift and scale of the scalars over the training rows.

    Args:
        floor: (6,) what stands for the logarithm of zero: half of the smallest positive value.
        mean: (6,) after that.
        deviation: (6,) 1 for scalars that never change.
    """

    floor: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, scalars: Tensor) -> Standardisation:
        """Fitted to (p, 6) scalars."""
        lowest = torch.where(scalars.isinf(), torch.inf, scalars).amin(0)
        floor = torch.where(lowest.isinf(), 0.0, lowest) - math.log(2)
        filled = torch.where(scalars.isinf(), floor, scalars)
        deviation = filled.std(0, correction=0)
        return cls(floor, filled.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, scalars: Tensor) -> Tensor:
        """(p, 6) float32 standardised scalars."""
        filled = torch.where(scalars.isinf(), self.floor, scalars)
        return ((filled - self.mean) / self.deviation).clamp(-CLIP, CLIP).float()
