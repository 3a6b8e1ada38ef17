"""Clips and masks: the first two steps of a `Hardening`, as plain functions of rows of attributions.

Each works on a (rows, d) tensor of finite numbers, one example a row, and never mixes rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from safexplain._validate import Amount, absolute, keep_amount, keep_number
from safexplain.errors import ConfigurationError


@runtime_checkable
class Clip(Protocol):
    """Bounds the size of an attribution."""

    def scale(self, d: int) -> float:
        """Size of one coordinate at the bound, for explanations of d features."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the clipped (rows, d) tensor; may work in place."""


@runtime_checkable
class Mask(Protocol):
    """Sets small coordinates to zero."""

    def __call__(self, rows: Tensor, scale: float | None) -> Tensor:
        """Return the masked (rows, d) tensor; may work in place. `scale` is the clip's, None without a clip."""


@dataclass(frozen=True)
class RangeClip:
    """Limit every coordinate to [low, high], as DeepLeak does (arXiv 2601.03429, section IV-B)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        keep_number(self, "low")
        keep_number(self, "high")
        if self.low >= self.high:
            raise ConfigurationError(f"RangeClip needs low < high, got low={self.low!r}, high={self.high!r}")

    def scale(self, d: int) -> float:
        """The larger end of the range."""
        return max(abs(self.low), abs(self.high))

    def __call__(self, rows: Tensor) -> Tensor:
        """Clamp elementwise."""
        limit = torch.finfo(rows.dtype).max
        return rows.clamp_(min(max(self.low, -limit), limit), max(min(self.high, limit), -limit))


@dataclass(frozen=True)
class NormClip:
    """Scale an explanation down to L2 norm `max_norm` where it is longer; shorter ones keep their length."""

    max_norm: float

    def __post_init__(self) -> None:
        keep_number(self, "max_norm", above=0.0)

    def scale(self, d: int) -> float:
        """Root mean square coordinate of an explanation at the bound."""
        return self.max_norm / math.sqrt(d)

    def __call__(self, rows: Tensor) -> Tensor:
        """Scale each long row down."""
        size, norm = _size_and_norm(rows)
        factor = torch.where(norm > self.max_norm / size, self.max_norm / norm, size)
        return rows.div_(size).mul_(factor)


@dataclass(frozen=True)
class UnitNorm:
    """Scale every explanation to L2 norm `norm`: same direction and ranking, and nothing left to read from its size.

    Norms carry nearly all of what membership attacks find in gradient explanations, because training drives the
    gradient at its members towards zero. An explanation that is exactly zero has no direction; `Hardening` gives it a
    keyed random one, so that it does not stand out by its size.
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        keep_number(self, "norm", above=0.0)

    def scale(self, d: int) -> float:
        """Root mean square coordinate."""
        return self.norm / math.sqrt(d)

    def __call__(self, rows: Tensor) -> Tensor:
        """Scale each row that is not zero."""
        size, norm = _size_and_norm(rows)
        return rows.div_(size).mul_(self.norm / norm)


@dataclass(frozen=True)
class ThresholdMask:
    """Set coordinates of magnitude below `threshold` to zero (the magnitude: DeepLeak's text drops all negatives)."""

    threshold: Amount

    def __post_init__(self) -> None:
        keep_amount(self, "threshold")

    def __call__(self, rows: Tensor, scale: float | None) -> Tensor:
        """Zero the small coordinates."""
        return rows.masked_fill_(rows.abs() < absolute(self.threshold, scale), 0.0)


@dataclass(frozen=True)
class TopKMask:
    """Keep the `fraction` of each example's coordinates with the largest magnitudes (at least one), zero the rest.

    Exactly that many are kept: among equals, the first.
    """

    fraction: float

    def __post_init__(self) -> None:
        keep_number(self, "fraction", above=0.0)
        if self.fraction > 1:
            raise ConfigurationError(f"TopKMask fraction must lie in (0, 1], got {self.fraction!r}")

    def kept(self, d: int) -> int:
        """How many of d coordinates stay."""
        return max(1, round(self.fraction * d))

    def __call__(self, rows: Tensor, scale: float | None) -> Tensor:
        """Zero all but the largest coordinates."""
        k = self.kept(rows.shape[1])
        magnitude = rows.abs()
        cut = _kth_largest(magnitude, k)
        keep = magnitude >= cut
        crowded = keep.sum(1) > k
        if bool(crowded.any()):
            tied = magnitude[crowded] == cut[crowded]
            above = magnitude[crowded] > cut[crowded]
            room = k - above.sum(1, keepdim=True)
            keep[crowded] = above | (tied & (tied.cumsum(1) <= room))
        return rows.mul_(keep)


def _size_and_norm(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Largest magnitude of each row, and the L2 norm of the row over it (1 and 1 where the row is zero).

    Dividing first keeps explanations of 1e-30 or 1e+30 from under- or overflowing when squared.
    """
    size = rows.abs().amax(1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    norm = torch.linalg.vector_norm(rows / size, dim=1, keepdim=True)
    return size, torch.where(norm > 0, norm, 1.0)


def _kth_largest(magnitude: Tensor, k: int) -> Tensor:
    """The k-th largest value of each row, shape (rows, 1)."""
    if magnitude.device.type != "cpu":
        return magnitude.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    at = magnitude.shape[1] - k
    return torch.from_numpy(np.partition(magnitude.numpy(), at, axis=1)[:, at : at + 1])
