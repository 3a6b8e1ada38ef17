"""Clips, masks and formats of a `Hardening`, for (rows, d) tensors of finite numbers, one example a row, which may
change in place; they never mix rows. A clip's `scale(d)` is the size of one coordinate at its bound; a mask gets it,
None without a clip. Formats take the place of the clip, and need no noise and no key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._validate import check_number, check_whole, keep_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.hardening.features import Features, Reason


@dataclass(frozen=True)
class Relative:
    """An amount in units of the clip's scale: the larger end of a `RangeClip`, or the root mean square coordinate
    c / sqrt(d) of d features at L2 norm c. A plain float is in the units of the attribution.

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
    """Scale every explanation to L2 norm `norm`, which leaves no size to read. An explanation of zeros gets a keyed
    random direction if there is noise."""

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
    one of an odd number zero. Small entries of the more frequent sign then change theirs.

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
    """Keep the `fraction` of each example's coordinates with the largest magnitudes (at least one; among equals, the
    first), zero the rest."""

    fraction: float

    def __post_init__(self) -> None:
        keep_fraction(self)

    def __call__(self, rows: Tensor, scale: float | None) -> Tensor:
        """Zero all but the largest coordinates."""
        return rows.mul_(largest(rows.abs(), max(1, round(self.fraction * rows.shape[1]))))


def keep_fraction(step: Any) -> None:
    """Check that the field `fraction` of a step is in (0, 1]."""
    keep_number(step, "fraction", above=0.0)
    if step.fraction > 1:
        raise ConfigurationError(f"{type(step).__name__} fraction must lie in (0, 1], got {step.fraction!r}")


def largest(keys: Tensor, k: int, cut: Tensor | None = None) -> Tensor:
    """Where the k largest numbers of each row of (rows, d) are, bool; among equals, the first. `cut` (rows, 1) is the
    k-th largest of each, if known."""
    if cut is None:
        cut = kth_largest(keys, [k])
    found = keys >= cut
    if (np.count_nonzero(found.numpy()) if found.is_cpu else int(found.sum())) > k * keys.shape[0]:
        above, tied = keys > cut, keys == cut
        found = above | (tied & (tied.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return found


def kth_largest(keys: Tensor, ks: Sequence[int]) -> Tensor:
    """The k-th largest value of each row for several k, shape (rows, len(ks))."""
    if keys.device.type != "cpu":
        return keys.topk(max(ks), dim=1).values[:, [k - 1 for k in ks]]
    at = [keys.shape[1] - k for k in ks]
    return torch.from_numpy(np.partition(keys.numpy(), sorted(set(at)), axis=1)[:, at])


@dataclass(frozen=True, repr=False)
class TopKSet:
    """Name the features that count most for the explained class: 1 for each of them, 0 for all others.

    Of d features, those with the max(k, fraction * d) largest values are named, but only values above zero: none that
    counts against the class. Among equals, the first. Ordered, the strongest has the number k, the next k - 1, ...

    Args:
        k: number of named features; None: by `fraction` alone.
        fraction: share of the features that is named, at least one feature; None: by `k` alone. If both are given, the
            larger number counts.
        positive: True: the largest values. False: the largest magnitudes, of both signs, without the signs.
        ordered: release the order too, as the reasons for a credit score must be listed (15 USC 1681g(f)).

    Raises:
        ConfigurationError, ConfigurationTypeError: neither `k` nor `fraction`, or one out of range.

    >>> TopKSet(k=2)(torch.tensor([[0.5, -3.0, 0.1, 2.0]])).tolist()
    [[1.0, 0.0, 0.0, 1.0]]
    >>> TopKSet(k=2, ordered=True)(torch.tensor([[0.5, -3.0, 0.1, 2.0]])).tolist()
    [[1.0, 0.0, 0.0, 2.0]]
    """

    k: int | None = None
    fraction: float | None = None
    positive: bool = True
    ordered: bool = False

    def __post_init__(self) -> None:
        if self.k is None and self.fraction is None:
            raise ConfigurationError("TopKSet: expected k, as TopKSet(k=4), or fraction, or both, got neither")
        if self.k is not None:
            object.__setattr__(self, "k", check_whole("TopKSet k", self.k, 1))
        if self.fraction is not None:
            keep_fraction(self)
        for name in ("positive", "ordered"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigurationTypeError(f"TopKSet {name} must be True or False, got {value!r}")

    def named(self, d: int) -> int:
        """The most features of d that are named."""
        return min(d, max(self.k or 1, round((self.fraction or 0.0) * d)))

    def scale(self, d: int) -> float:
        """The number of the strongest feature."""
        return float(self.named(d)) if self.ordered else 1.0

    def __call__(self, rows: Tensor) -> Tensor:
        """1 and 0; ordered, k to 1 and 0."""
        keys, k = rows if self.positive else rows.abs(), self.named(rows.shape[1])
        if not self.ordered:
            return (largest(keys, k) & (keys > 0)).to(rows.dtype)
        strongest = keys.argsort(dim=1, descending=True, stable=True)[:, :k]
        ranks = torch.arange(k, 0, -1, dtype=rows.dtype, device=rows.device).expand(len(rows), k)
        return torch.zeros_like(rows).scatter_(1, strongest, ranks).masked_fill_(keys <= 0, 0.0)

    def __repr__(self) -> str:
        ordered = ", ordered=True" if self.ordered else ""
        return f"TopKSet(k={self.k}, fraction={self.fraction}, positive={self.positive}{ordered})"

    @staticmethod
    def reasons(released: Any, names: Sequence[str]) -> list[Any]:
        """The names of the reasons in a released set, (d,) or (n, d), from the names of the d features.

        See `Features.reasons` for the applicant's columns and values.

        >>> TopKSet.reasons(torch.tensor([[1.0, 0.0, 1.0]]), ["income", "age", "debt"])
        [['income', 'debt']]
        """
        found = Features(names).reasons(released)
        one = not found or isinstance(found[0], Reason)
        return [r.name for r in found] if one else [[r.name for r in each] for each in found]


@dataclass(frozen=True)
class Levels:
    """Release in n steps how much each feature counts: j/n or -j/n for step j, 0 for the half that counts least.

    Step j and those above it hold a 2^-j share of the features, and at least one: of 64 features with n = 3, 16, 8, 8
    have the magnitudes 1/3, 2/3, 1 (in that order). Balanced, each step has as many features for the class as against
    it, which hides sizes and the balance of signs; a feature never gets the wrong sign, and if one sign is rare, only
    as many steps are filled as it has features. Explanations of one sign, and unbalanced ones, get their steps by
    magnitude. Among equals, the first.

    Args:
        n: number of steps, 1 to 16.
        balanced: as many features for the class as against it at each step.

    Raises:
        ConfigurationError, ConfigurationTypeError: `n` out of range, or `balanced` no bool.

    >>> Levels(2)(torch.tensor([[8.0, 5.0, -6.0, 1.0, -2.0, 0.5, -0.1, 0.2]])).tolist()
    [[1.0, 0.5, -1.0, 0.0, -0.5, 0.0, 0.0, 0.0]]
    """

    n: int
    balanced: bool = True

    def __post_init__(self) -> None:
        if check_whole("Levels n", self.n, 1) > 16:
            raise ConfigurationError(f"Levels n must be at most 16, got {self.n!r}")
        if not isinstance(self.balanced, bool):
            raise ConfigurationTypeError(f"Levels balanced must be True or False, got {self.balanced!r}")

    def scale(self, d: int) -> float:
        """1."""
        return 1.0

    def __call__(self, rows: Tensor) -> Tensor:
        """The steps, divided by their number."""
        counts = [max(1, round(rows.shape[1] * 2.0**-j)) for j in range(1, self.n + 1)]
        if not self.balanced:
            return _steps(rows.abs(), counts).mul_(rows.sign()).div_(self.n)
        half = [max(1, count // 2) for count in counts]
        one_sign = (rows.amin(1, keepdim=True) >= 0) | (rows.amax(1, keepdim=True) <= 0)
        out = _steps(rows, half).sub_(_steps(-rows, half))
        if bool(one_sign.any()):
            out = torch.where(one_sign, _steps(rows.abs(), counts).mul_(rows.sign()), out)
        return out.div_(self.n)


def _steps(keys: Tensor, counts: Sequence[int]) -> Tensor:
    """For how many of the counts each positive number is among that many largest of its row."""
    out, cuts, some = torch.zeros_like(keys), kth_largest(keys, counts), keys > 0
    for i, count in enumerate(counts):
        out += largest(keys, count, cuts[:, i : i + 1]) & some
    return out


Clip = RangeClip | NormClip | UnitNorm | RankNorm | TopKSet | Levels
Mask = ThresholdMask | TopKMask
