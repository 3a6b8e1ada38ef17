"""Masks, the second step of a `Hardening`: they set the small numbers of an explanation to zero.

Each is a plain function of a (rows, d) tensor of finite numbers, one example a row, and of the clip's scale (None
without a clip). It never mixes rows, and may work in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._validate import keep_number
from safexplain.errors import ConfigurationError
from safexplain.hardening.clips import Amount, absolute, keep_amount

_numpy: Any = np
_SORTS = "AVX512_SKX" in _numpy.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", ())
"""Whether NumPy sorts by vector instructions, which takes half the time, or less, of a partition."""


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
"""All masks, as JSON and certificates name them."""


def keep_fraction(step: Any) -> None:
    """Check that the field `fraction` of a step is in (0, 1]; see `keep_number`."""
    keep_number(step, "fraction", above=0.0)
    if step.fraction > 1:
        raise ConfigurationError(f"{type(step).__name__} fraction must lie in (0, 1], got {step.fraction!r}")


def largest(keys: Tensor, k: int, cut: Tensor | None = None) -> Tensor:
    """Where the k largest numbers of each row of (rows, d) stand, 1 <= k <= d, bool; among equals, the first.

    `cut` is (rows, 1) the k-th largest of each, where that is known.
    """
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
    if len(at) == 1 and _SORTS:
        return torch.from_numpy(np.sort(keys.numpy(), axis=1)[:, at[0], None])
    return torch.from_numpy(np.partition(keys.numpy(), sorted(set(at)), axis=1)[:, at])
