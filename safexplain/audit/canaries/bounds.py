"""Where a crafted input may lie, so that it could be a record: within each feature's range, or within a norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain._validate import check_number
from safexplain.errors import InputError

__all__ = ["Ball", "Bounds", "Box", "region"]

Bounds = tuple[Tensor, Tensor] | float | None
"""Lower and upper end of each feature, the largest 2-norm of an input, or None for the ranges of the data."""


@dataclass(frozen=True, eq=False)
class Box:
    """Inputs between `low` and `high`, both of the shape of one input."""

    low: Tensor
    high: Tensor

    @property
    def width(self) -> Tensor:
        """Of each feature."""
        return self.high - self.low

    def project(self, x: Tensor) -> Tensor:
        """(n, ...) to the nearest inputs inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def corners(self, x: Tensor, weights: Tensor) -> Tensor:
        """The corners that minimise x . c - w / 2 ||c||^2 for each weight w: (len(weights), ...).

        From the corner opposite to x they lead to the one farthest from 0.
        """
        w = weights.view(-1, *[1] * x.dim()) / 2
        return torch.where(x * self.low - w * self.low**2 <= x * self.high - w * self.high**2, self.low, self.high)


@dataclass(frozen=True, eq=False)
class Ball:
    """Inputs of 2-norm at most `radius`."""

    radius: float
    numbers: int

    @property
    def width(self) -> Tensor:
        """Of each feature, in an input on the sphere: twice the root mean square."""
        return torch.tensor(2 * self.radius / self.numbers**0.5)

    def project(self, x: Tensor) -> Tensor:
        """(n, ...) to the nearest inputs inside."""
        norms = torch.linalg.vector_norm(x.flatten(1), dim=1).view(-1, *[1] * (x.dim() - 1))
        inside: Tensor = x * (self.radius / norms).clamp(max=1.0)
        return inside

    def corners(self, x: Tensor, weights: Tensor) -> Tensor:
        """The one that is opposite to x."""
        return self.project(-x[None] * (self.radius / torch.linalg.vector_norm(x)))


def region(bounds: Bounds, x: Tensor) -> Box | Ball:
    """The region that bounds stand for, with data x (n, ...).

    Raises:
        InputError: bounds of another shape, not finite, or empty.
    """
    if bounds is None:
        return Box(x.amin(0), x.amax(0))
    if not isinstance(bounds, tuple):
        return Ball(check_number("bounds", bounds, above=0.0), x[0].numel())
    if len(bounds) != 2:
        raise InputError(f"bounds: expected (low, high), one number for the norm, or None, got {len(bounds)} values")
    low, high = (torch.as_tensor(b).to(x).expand(x.shape[1:]) for b in bounds)
    if not bool((low <= high).all()) or not bool((low.isfinite() & high.isfinite()).all()):
        raise InputError("bounds: expected finite ends with low <= high for every feature")
    return Box(low, high)
