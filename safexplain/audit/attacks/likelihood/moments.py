"""What likelihood ratios share: parts of the examples, the scale on which Gaussians are fitted, shrunk variances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats
from safexplain.errors import ConfigurationError, InputError

CHUNK = 1 << 22
"""Numbers of the reference signals held in double precision at a time."""


def parts(n: int, width: int) -> Iterator[slice]:
    """Slices of n examples of `width` numbers each, with at most `CHUNK` numbers (or one example) a slice."""
    step = max(1, CHUNK // max(width, 1))
    return (slice(start, start + step) for start in range(0, n, step))


def two_sided(membership: Bools) -> Bools:
    """(n,) whether an example has reference models both with and without it.

    Raises:
        InputError: none has.
    """
    inside = membership.sum(0)
    usable: Bools = (inside > 0) & (inside < len(membership))
    if not usable.any():
        raise InputError("no example has reference models both with and without it; train more reference models")
    return usable


def shrunk(
    ss: NDArray[np.float64], dof: NDArray[np.float64], shrink: float, pooled: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(ss + shrink * pooled) / (dof + shrink), broadcast; the pooled one where nothing else is known."""
    if shrink == np.inf:
        return np.broadcast_to(pooled, np.broadcast_shapes(ss.shape, pooled.shape))
    weight = dof + shrink
    return np.where(weight > 0, (ss + shrink * pooled) / np.where(weight > 0, weight, 1.0), pooled)


Transform = Literal["auto", "log", "identity"]


def check_transform(transform: str) -> None:
    """Refuse other names.

    Raises:
        ConfigurationError: not one of the three.
    """
    if transform not in ("auto", "log", "identity"):
        raise ConfigurationError(f"transform is auto, log or identity, got {transform!r}")


def transformed(transform: Transform, target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
    """One signal of the target and of the reference models, on the scale asked for.

    Zeros are raised to half of the smallest positive value before the logarithm is taken.

    Args:
        transform: "log", "identity", or "auto": the logarithm of what is never negative.
        target: (n,) or (n, 1).
        shadows: (m, n) or (m, n, 1).

    Raises:
        InputError: the logarithm of a negative signal was asked for.
    """
    lowest = min(target.min(), shadows.min())
    if transform == "log" and lowest < 0:
        raise InputError(f"the signal has negative values (down to {lowest:g}); use transform='identity'")
    if transform == "identity" or lowest < 0:
        return target, shadows
    target, shadows = target.astype(np.float64), shadows.astype(np.float64)
    smallest = min((float(a[a > 0].min()) for a in (target, shadows) if (a > 0).any()), default=1.0)
    floor = max(smallest / 2, 5e-324)
    return np.log(np.maximum(target, floor)), np.log(np.maximum(shadows, floor))
