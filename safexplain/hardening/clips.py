"""Clips, the first step of a `Hardening`: plain functions of a (rows, d) tensor of finite numbers, one example a row,
which never mix rows. And amounts for masks and noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from safexplain._validate import check_number, keep_number
from safexplain.errors import ConfigurationError


@dataclass(frozen=True)
class Relative:
    """An amount in units of the clip's scale; a plain float is absolute (in the units of the attribution).

    The scale is the larger end of a `RangeClip`, or the root mean square coordinate c / sqrt(d) of d features at L2
    norm c.

    >>> from safexplain import UnitNorm
    >>> UnitNorm(1.0).scale(d=64) * Relative(0.4).factor
    0.05
    """

    factor: float

    def __post_init__(self) -> None:
        keep_number(self, "factor", minimum=0.0)


Amount = float | Relative


def absolute(amount: Amount, scale: float | None) -> float:
    """An amount in the units of the attribution."""
    if isinstance(amount, Relative):
        if scale is None:
            raise ConfigurationError(f"expected a clip for {amount!r} to be relative to; add one or give a plain float")
        return amount.factor * scale
    return float(amount)


def keep_amount(step: object, name: str) -> None:
    """Check that a field of a frozen dataclass is a finite number >= 0 or a `Relative`."""
    if not isinstance(getattr(step, name), Relative):
        keep_number(step, name, minimum=0.0)


@runtime_checkable
class Clip(Protocol):
    """Bounds the size of an attribution."""

    def scale(self, d: int) -> float:
        """Size of one coordinate at the bound, for explanations of d features."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the clipped (rows, d) tensor; may work in place."""


@dataclass(frozen=True)
class RangeClip:
    """Limit every coordinate to [low, high], as DeepLeak does (arXiv 2601.03429, section IV-B)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        keep_number(self, "low")
        keep_number(self, "high")
        if self.low >= self.high:
            raise ConfigurationError(f"RangeClip: expected low < high, got low={self.low!r}, high={self.high!r}")

    def scale(self, d: int) -> float:
        """The larger end."""
        return max(abs(self.low), abs(self.high))

    def __call__(self, rows: Tensor) -> Tensor:
        """Clamp elementwise."""
        limit = torch.finfo(rows.dtype).max
        return rows.clamp_(min(max(self.low, -limit), limit), max(min(self.high, limit), -limit))


@dataclass(frozen=True)
class NormClip:
    """Scale explanations with a larger L2 norm than `max_norm` down to it."""

    max_norm: float

    def __post_init__(self) -> None:
        keep_number(self, "max_norm", above=0.0)

    def scale(self, d: int) -> float:
        """Root mean square coordinate at the bound."""
        return self.max_norm / math.sqrt(d)

    def __call__(self, rows: Tensor) -> Tensor:
        """Scale each long row down."""
        size, norm = _size_and_norm(rows)
        factor = torch.where(norm > self.max_norm / size, self.max_norm / norm, size)
        return rows.div_(size).mul_(factor)


@dataclass(frozen=True)
class UnitNorm:
    """Scale every explanation to L2 norm `norm`: same direction and ranking, and no size left to read.

    An explanation of zeros gets a keyed random direction if there is noise.
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
class RankNorm:
    """Keep the ranking and the signs, and give every explanation of d features the same magnitudes.

    The coordinate with the j-th smallest magnitude gets magnitude c (-log(1 - (j - 1/2) / d))^shape, the quantiles of a
    Weibull distribution, with c such that the L2 norm is `norm`; equal magnitudes share the mean of theirs. Zeros stay
    zero; if there is noise, they get the lowest ranks, and keyed random signs unless all others have one sign.

    The balance of positive and negative entries still reveals members of overfitted models. From `balanced_from`
    features on, an explanation with both signs is therefore ranked by its signed values: the larger half gets the
    magnitudes above (those of d/2 features) with a plus, the smaller half the same ones with a minus, and the middle
    one of an odd number zero. Small entries of the more frequent sign then change theirs: few on pixels, whose signs
    nearly balance.

    Args:
        norm: L2 norm of every explanation.
        shape: 1 for exponential; larger values give fewer, taller peaks. 1.5 is close to gradients of trained networks.
        balanced_from: the least number of features that are balanced, at least 2; None: never.

    Raises:
        ConfigurationError, ConfigurationTypeError: not a number, or out of range.
    """

    norm: float = 1.0
    shape: float = 1.5
    balanced_from: int | None = None

    def __post_init__(self) -> None:
        keep_number(self, "norm", above=0.0)
        keep_number(self, "shape", above=0.0)
        if self.balanced_from is not None:
            number = check_number("RankNorm balanced_from", self.balanced_from, minimum=2.0)
            if number != int(number):
                raise ConfigurationError(f"RankNorm balanced_from must be a whole number or None, got {number!r}")
            object.__setattr__(self, "balanced_from", int(number))

    def scale(self, d: int) -> float:
        """Root mean square coordinate."""
        return self.norm / math.sqrt(d)

    def profile(self, d: int) -> Tensor:
        """The d magnitudes in increasing order, float64."""
        quantiles = (torch.arange(d, dtype=torch.float64) + 0.5) / d
        magnitudes = -torch.log1p(-quantiles)
        magnitudes = (magnitudes / magnitudes.amax()) ** self.shape  # at most 1, so that no shape overflows
        scaled: Tensor = magnitudes * (self.norm / torch.linalg.vector_norm(magnitudes))
        return scaled

    def __call__(self, rows: Tensor) -> Tensor:
        """Replace the magnitudes, or the values, by the profile."""
        d = rows.shape[1]
        if self.balanced_from is not None and d >= self.balanced_from:
            low, high = torch.aminmax(rows, dim=1)
            both = (low < 0) & (high > 0)
            rows[both] = _values_by_rank(rows[both], _totals(self, d, True, rows.device))
            rows[~both] = replace(self, balanced_from=None)(rows[~both])
            return rows
        released = _values_by_rank(rows.abs(), _totals(self, d, False, rows.device))
        return released.copysign_(rows).masked_fill_(rows == 0, 0.0)


CLIPS = (RangeClip, NormClip, UnitNorm, RankNorm)


@lru_cache(maxsize=8)
def _totals(clip: RankNorm, d: int, balanced: bool, device: torch.device) -> Tensor:
    """(d + 1,) sums of the first 0, 1, ..., d magnitudes, or balanced values, in increasing order, float64."""
    profile = clip.profile(d // 2 if balanced else d)
    if balanced:
        above = profile / math.sqrt(2)
        profile = torch.cat([-above.flip(0), above.new_zeros(d % 2), above])
    return torch.cat([profile.new_zeros(1), profile.cumsum(0)]).to(device)


def _values_by_rank(keys: Tensor, totals: Tensor) -> Tensor:
    """The numbers with the sums `totals` (d + 1,) in the order of each row's keys (rows, d), which change in place;
    equal keys share the mean of theirs."""
    ordered, order = keys.sort(1)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    start = new.flatten().nonzero().flatten()  # of each run of equal keys, among all numbers
    length = start.diff(append=start.new_tensor([keys.numel()]))
    rank = start % keys.shape[1]
    means = (totals[rank + length] - totals[rank]) / length
    shared = means.to(keys.dtype).repeat_interleave(length, output_size=keys.numel())
    return keys.scatter_(1, order, shared.view_as(keys))


def _size_and_norm(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Largest magnitude of each row, and the L2 norm of the row divided by it, so that no square under- or overflows; 1
    and 1 for a row of zeros."""
    size = rows.abs().amax(1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    norm = torch.linalg.vector_norm(rows / size, dim=1, keepdim=True)
    return size, torch.where(norm > 0, norm, 1.0)
