"""Means and spreads of reference signals with and without each example, in double precision, a part at a time.

`transformed` chooses the scale on which Gaussians are fitted: norms and losses are closer to log-normal than to normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Moments:
    """Means and squared deviations of the reference signals with (in) and without (out) each example: (n, d) arrays."""

    mean_in: NDArray[np.float64]
    mean_out: NDArray[np.float64]
    ss_in: NDArray[np.float64]
    ss_out: NDArray[np.float64]
    dof_in: NDArray[np.float64]
    dof_out: NDArray[np.float64]

    @classmethod
    def of(cls, shadows: Floats, membership: Bools) -> Moments:
        """Of (m, n, d) signals and (m, n) membership."""
        m, n, d = shadows.shape
        count = membership.sum(0, dtype=np.float64)[:, None]
        means = [np.empty((n, d)), np.empty((n, d))]
        squares = [np.empty((n, d)), np.empty((n, d))]
        for part in parts(n, d * m):
            values = np.asarray(shadows[:, part], dtype=np.float64)
            for side, chosen in enumerate((membership[:, part], ~membership[:, part])):
                weight = chosen.astype(np.float64)
                number = np.maximum(weight.sum(0), 1)[:, None]
                mean = np.einsum("mn,mnd->nd", weight, values) / number
                means[side][part] = mean
                squares[side][part] = np.einsum("mn,mnd->nd", weight, (values - mean) ** 2)
        return cls(means[0], means[1], squares[0], squares[1], np.maximum(count - 1, 0), np.maximum(m - count - 1, 0))

    def __getitem__(self, part: slice) -> Moments:
        return Moments(
            self.mean_in[part],
            self.mean_out[part],
            self.ss_in[part],
            self.ss_out[part],
            self.dof_in[part],
            self.dof_out[part],
        )

    def pooled(self, usable: Bools) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
        """Variances over all usable examples, (1, d): among in-models, among out-models, and both together.

        Last comes a number to add to every variance, small beside the mean of the features, so that a feature which
        never changes decides nothing.
        """
        ss_in, ss_out = self.ss_in[usable].sum(0), self.ss_out[usable].sum(0)
        dof_in, dof_out = self.dof_in[usable].sum(), self.dof_out[usable].sum()
        pairs = ((ss_in, dof_in), (ss_out, dof_out), (ss_in + ss_out, dof_in + dof_out))
        a, b, c = ((ss / max(dof, 1.0))[None] for ss, dof in pairs)
        return a, b, c, 1e-9 * float(c.mean()) or 1.0


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
