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

from safexplain.errors import ConfigurationError, ConfigurationTypeError


@dataclass(frozen=True)
class Relative:
    """An amount in units of the clip's scale, where a plain float is absolute (in the units of the attribution).

    The scale is what one coordinate can be after the clip: the larger end of a `RangeClip`, or, for a `NormClip` or
    `UnitNorm` of size c over d features, the root mean square c / sqrt(d) of an explanation that fills it.

    >>> UnitNorm(1.0).scale(d=64) * Relative(0.4).factor
    0.05
    """

    factor: float

    def __post_init__(self) -> None:
        keep_number(self, "factor", minimum=0.0)


Amount = float | Relative


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
class RankNorm:
    """Keep the ranking and the signs, and give every explanation of d features the same magnitudes.

    The coordinate with the j-th smallest magnitude gets magnitude c (-log(1 - (j - 1/2) / d))^shape, the quantiles of a
    Weibull distribution, with c such that the L2 norm is `norm`; equal magnitudes share the mean of theirs. Every
    norm and the whole distribution of magnitudes are then the same for all explanations, so that a norm, sparsity or
    peak says nothing about membership, where `UnitNorm` fixes the L2 norm only. Coordinates that are exactly zero get
    keyed random signs and the lowest ranks from `Hardening`, so that their number does not show.

    Args:
        norm: L2 norm of every explanation.
        shape: 1 exponential; larger values give fewer, taller peaks. 1.5 is close to what gradients of trained
        networks show.
    """

    norm: float = 1.0
    shape: float = 1.5

    def __post_init__(self) -> None:
        keep_number(self, "norm", above=0.0)
        keep_number(self, "shape", above=0.0)

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
        """Replace the magnitudes by the profile."""
        magnitude = rows.abs()
        order = _argsort(magnitude)
        ordered = magnitude.gather(1, order)
        profile = self.profile(rows.shape[1]).to(rows.device)
        values = profile.to(rows.dtype).expand_as(rows)
        tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if bool(tied.any()):
            values = values.clone()
            values[tied] = _shared_by_ties(ordered[tied], profile).to(rows.dtype)
        return magnitude.scatter_(1, order, values).copysign_(rows)


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


def absolute(amount: Amount, scale: float | None) -> float:
    """An amount in the units of the attribution."""
    if isinstance(amount, Relative):
        if scale is None:
            raise ConfigurationError(f"{amount!r} needs a clip to be relative to; add one or give a plain float")
        return amount.factor * scale
    return float(amount)


def keep_amount(step: object, name: str) -> None:
    """Check that a field of a frozen dataclass is a finite number >= 0 or a `Relative`; see `keep_number`."""
    if not isinstance(getattr(step, name), Relative):
        keep_number(step, name, minimum=0.0)


def keep_number(step: object, name: str, *, minimum: float | None = None, above: float | None = None) -> None:
    """Check a field of a frozen dataclass and keep it as a plain float.

    Configurations that are equal (1, 1.0 and NumPy's 1; 0 and -0.0) must also read the same as JSON, which the noise is
    a function of.
    """
    value = check_number(f"{type(step).__name__} {name}", getattr(step, name), minimum=minimum, above=above)
    object.__setattr__(step, name, value)


def check_number(name: str, value: float, *, minimum: float | None = None, above: float | None = None) -> float:
    """The value as a float, if it is a finite real number within its limits.

    Raises:
        ConfigurationTypeError: not a number.
        ConfigurationError: NaN, infinite, or outside of the limits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationTypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(f"{name} must be finite, got {value!r}")
    if minimum is not None and value < minimum:
        raise ConfigurationError(f"{name} must be at least {minimum:g}, got {value!r}")
    if above is not None and value <= above:
        raise ConfigurationError(f"{name} must be greater than {above:g}, got {value!r}")
    return number


def _size_and_norm(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Largest magnitude of each row, and the L2 norm of the row over it (1 and 1 where the row is zero).

    Dividing first keeps explanations of 1e-30 or 1e+30 from under- or overflowing when squared.
    """
    size = rows.abs().amax(1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    norm = torch.linalg.vector_norm(rows / size, dim=1, keepdim=True)
    return size, torch.where(norm > 0, norm, 1.0)


def _argsort(magnitude: Tensor) -> Tensor:
    """Indices that sort each row in increasing order (equal values in any order)."""
    if magnitude.device.type != "cpu":
        return magnitude.argsort(1)
    return torch.from_numpy(np.argsort(magnitude.numpy(), axis=1))


def _shared_by_ties(ordered: Tensor, profile: Tensor) -> Tensor:
    """For rows of increasing numbers: the profile, each run of equal numbers with the mean of its part."""
    d = ordered.shape[1]
    at = torch.arange(d, device=ordered.device).expand_as(ordered)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.where(new, at, 0).cummax(1).values
    last_of_run = torch.ones_like(new)
    last_of_run[:, :-1] = new[:, 1:]
    last = torch.where(last_of_run, at, d).flip(1).cummin(1).values.flip(1)
    total = torch.cat([profile.new_zeros(1), profile.cumsum(0)])
    return (total[last + 1] - total[first]) / (last + 1 - first)


def _kth_largest(magnitude: Tensor, k: int) -> Tensor:
    """The k-th largest value of each row, shape (rows, 1)."""
    if magnitude.device.type != "cpu":
        return magnitude.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    at = magnitude.shape[1] - k
    return torch.from_numpy(np.partition(magnitude.numpy(), at, axis=1)[:, at : at + 1])
