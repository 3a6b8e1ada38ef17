"""Masks and formats of a `Hardening`: both select the features of an explanation that count most.

A mask sets the others to zero, for a (rows, d) tensor of finite numbers and the clip's scale (None without a clip). A
format takes the clip's place and needs no noise and no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._validate import check_whole, keep_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.hardening.clips import Amount, absolute, keep_amount
from safexplain.hardening.features import Features, Reason


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
        keep_fraction(self)

    def __call__(self, rows: Tensor, scale: float | None) -> Tensor:
        """Zero all but the largest coordinates."""
        return rows.mul_(largest(rows.abs(), max(1, round(self.fraction * rows.shape[1]))))


MASKS = (ThresholdMask, TopKMask)


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

    Of d features, those with the max(k, fraction * d) largest values are named, but only values above zero: a feature
    that counts against the class, or not at all, is never named. Among equals, the first. All named features have the
    same number, which hides their order; ordered, the strongest has the number k, the next k - 1, and so on.

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
