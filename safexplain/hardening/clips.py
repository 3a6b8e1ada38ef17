"""Clips, the first step of a `Hardening`: they bound the size of an explanation, or take it away.

Each is a plain function of a (rows, d) tensor of finite numbers, one example a row, and never mixes rows. A new clip is
one class with the two methods of `Clip`, and its name in `SLOTS` of `safexplain.hardening.hardening`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from safexplain._validate import check_number, keep_number
from safexplain.errors import ConfigurationError


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
    gradient at its members towards zero. An explanation that is exactly zero has no direction; where there is noise,
    `Hardening` gives it a keyed random one, so that it does not stand out by its size.
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
    peak says nothing about membership, where `UnitNorm` fixes the L2 norm only. Coordinates that are exactly zero stay
    zero; where there is noise, `Hardening` gives them the lowest ranks, and keyed random signs unless all others have
    one sign, so that their number does not show.

    How far positive and negative entries balance is still there to read, and on overfitted models it tells members.
    From `balanced_from` features on, an explanation that has both signs is therefore ranked by its signed values: the
    larger half of the coordinates gets the magnitudes above (those of d/2 features) with a plus, the smaller half the
    same ones with a minus, and the middle one of an odd number gets zero. Every sum over coordinates is then the same
    for all explanations. The price: where signs do not balance, small entries of the more frequent sign change theirs,
    and large ones of the other sign grow. On pixels, whose signs nearly balance, that moves little; on few features it
    would tell users that something counted against them that counted for them. Explanations of a single sign are left
    as above.

    Args:
        norm: L2 norm of every explanation.
        shape: 1 exponential; larger values give fewer, taller peaks. 1.5 is close to what gradients of trained
            networks show.
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

    def balanced_profile(self, d: int) -> Tensor:
        """The d >= 2 values of a balanced explanation in increasing order, float64."""
        above = self.profile(d // 2) / math.sqrt(2)
        return torch.cat([-above.flip(0), above.new_zeros(d % 2), above])

    def __call__(self, rows: Tensor) -> Tensor:
        """Replace the magnitudes, or the values, by the profile."""
        if self.balanced_from is None or rows.shape[1] < self.balanced_from:
            return self._by_magnitude(rows)
        both = (rows.amin(1) < 0) & (rows.amax(1) > 0)
        if bool(both.all()):
            return self._by_value(rows)
        if not bool(both.any()):
            return self._by_magnitude(rows)
        rows[both], rows[~both] = self._by_value(rows[both]), self._by_magnitude(rows[~both])
        return rows

    def _by_magnitude(self, rows: Tensor) -> Tensor:
        return _given_by_rank(rows.abs(), self.profile(rows.shape[1])).copysign_(rows).masked_fill_(rows == 0, 0.0)

    def _by_value(self, rows: Tensor) -> Tensor:
        return _given_by_rank(rows, self.balanced_profile(rows.shape[1]))


def _given_by_rank(keys: Tensor, profile: Tensor) -> Tensor:
    """The profile's numbers, each row's in the order of its keys; equal keys share the mean of theirs."""
    order = _argsort(keys)
    ordered = keys.gather(1, order)
    profile = profile.to(keys.device)
    values = profile.to(keys.dtype).expand_as(keys)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if bool(tied.any()):
        values = values.clone()
        values[tied] = _shared_by_ties(ordered[tied], profile).to(keys.dtype)
    return keys.scatter_(1, order, values)


def _argsort(keys: Tensor) -> Tensor:
    """Indices that sort each row in increasing order (equal values in any order)."""
    if keys.device.type != "cpu":
        return keys.argsort(1)
    return torch.from_numpy(np.argsort(keys.numpy(), axis=1))


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


def _size_and_norm(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Largest magnitude of each row, and the L2 norm of the row over it (1 and 1 where the row is zero).

    Dividing first keeps explanations of 1e-30 or 1e+30 from under- or overflowing when squared.
    """
    size = rows.abs().amax(1, keepdim=True)
    size = torch.where(size > 0, size, 1.0)
    norm = torch.linalg.vector_norm(rows / size, dim=1, keepdim=True)
    return size, torch.where(norm > 0, norm, 1.0)
