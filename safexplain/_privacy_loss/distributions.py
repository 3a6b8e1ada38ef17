"""Distributions of privacy losses on a grid: from a privacy profile, and their composition.

A loss is log(P / Q) under P, for a pair of distributions. The mass of a loss between two grid points is split between
both so that its probabilities under P and under Q stay the same ("connect the dots", Doroshenko et al. 2022, arXiv
2207.04380). This can only increase delta(epsilon), which is exact on the grid before composition. `compose` adds up
independent losses by Fourier transforms, on a grid that covers all but 1e-15 of the mass by Chernoff's bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft

Array = NDArray[np.float64]

CELLS = 1 << 20
"""Largest number of grid points of a distribution; about 100 MB while it is composed."""

VACUOUS = 500.0
"""Larger epsilons are reported as infinite: they guarantee nothing, and their exponentials overflow."""

LARGEST_LOSS = VACUOUS + 20
"""Larger losses count as infinite; losses below its negative count as its negative."""

CUT_OFF = 1e-15
"""Mass of a composition that may lie above its grid; it counts as an infinite loss."""

ORDERS = np.geomspace(0.02, 24.0, 14)
"""Orders of Chernoff's bound, over the standard deviation."""

BLOCK = 16
"""Grid points that are merged into their worst for Chernoff's bound, if there are many."""


@dataclass(frozen=True, eq=False)
class Losses:
    """A distribution of privacy losses.

    Args:
        width: of the grid, in nats.
        first: the lowest loss, in widths.
        mass: (k,) probabilities under P of losses first, first + 1, ... widths; may be slightly negative by rounding.
        infinite: probability of an infinite loss.
    """

    width: float
    first: int
    mass: Array
    infinite: float

    @classmethod
    def of_profile(cls, divergence: Callable[[Array], Array], low: float, high: float, width: float) -> Losses:
        """The distribution with a profile `divergence`: (k,) epsilons -> hockey-stick divergences of order e^epsilon.

        Losses below `low` count as `low`, losses above `high` as infinite.
        """
        first = math.floor(max(low, -LARGEST_LOSS) / width) - 1
        last = max(math.ceil(min(high, LARGEST_LOSS) / width) + 1, first + 2)
        grid = np.arange(first, last + 1, dtype=np.float64) * width
        deltas = np.nan_to_num(divergence(grid), nan=1.0)  # 1 wherever it overflowed
        deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
        # sum over losses l >= e of exp(e - l) mass(l), at e = every grid point but the first
        tails = -np.diff(deltas) / -math.expm1(-width)
        mass = np.empty_like(deltas)
        mass[1:] = tails
        mass[1:-1] -= math.exp(-width) * tails[1:]
        mass[0] = 1 - deltas[0] - math.exp(-width) * tails[0]
        return cls(width, first, mass, float(deltas[-1]))

    @property
    def values(self) -> Array:
        """(k,) the finite losses."""
        return np.asarray((self.first + np.arange(len(self.mass))) * self.width)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of the finite losses."""
        mean = float(self.mass @ self.values)
        return mean, math.sqrt(max(float(self.mass @ (self.values - mean) ** 2), 0.0))

    def coarser(self, width: float) -> Losses:
        """The same mechanism on a grid of larger width; each delta(epsilon) is at least as large."""
        if width <= self.width:
            return self
        values = self.values
        below = np.floor(values / width)
        first = int(below[0])
        rest = np.clip(values - below * width, 0.0, width)
        up = self.mass * (np.expm1(-rest) / math.expm1(-width))
        at = below.astype(np.int64) - first
        mass = np.bincount(at, self.mass - up, at[-1] + 2) + np.bincount(at + 1, up, at[-1] + 2)
        return Losses(width, first, np.asarray(mass, dtype=np.float64), self.infinite)

    def log_moment(self, order: float) -> float:
        """A tight upper bound on log E exp(order * loss) of the finite losses."""
        values, mass = self.values, np.maximum(self.mass, 0.0)
        if len(mass) > 4096:
            pad = -len(mass) % BLOCK
            mass = np.pad(mass, (0, pad)).reshape(-1, BLOCK).sum(axis=1)
            values = values[::BLOCK] + ((BLOCK - 1) * self.width if order > 0 else 0.0)
        exponents = order * values
        top = float(exponents.max())
        return top + math.log(max(float(np.exp(exponents - top) @ mass), 1e-300))

    @cached_property
    def _tail_sums(self) -> tuple[Array, Array]:
        """(k + 1,) sums of mass and of mass times exp(-loss), from each grid point on."""
        shrunk = self.mass * np.exp(-np.clip(self.values, -LARGEST_LOSS, LARGEST_LOSS + 100))
        under_p, under_q = (np.append(np.cumsum(m[::-1])[::-1], 0.0) for m in (self.mass, shrunk))
        return under_p, under_q

    def delta(self, epsilon: ArrayLike) -> Array:
        """(n,) or () delta at each epsilon."""
        epsilon = np.asarray(epsilon, dtype=np.float64)
        at = np.clip(np.floor(epsilon / self.width).astype(np.int64) + 1 - self.first, 0, len(self.mass))
        under_p, under_q = self._tail_sums
        deltas = self.infinite + under_p[at] - np.exp(np.minimum(epsilon, LARGEST_LOSS + 100)) * under_q[at]
        return np.asarray(np.clip(deltas, self.infinite, 1.0))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of at least 0 at a delta; infinite if there is none."""
        if self.infinite >= delta:
            return math.inf
        values = self.values
        points = np.append(0.0, values[values > 0])
        above = np.flatnonzero(self.delta(points) > delta)
        if not len(above):
            return 0.0
        if points[above[-1]] > VACUOUS:
            return math.inf
        under_p, under_q = (sums[above[-1] - len(points)] for sums in self._tail_sums)  # of the losses above that point
        return max(math.log((under_p + self.infinite - delta) / under_q), 0.0)


def compose(parts: Sequence[tuple[Losses, int]], cells: int = CELLS) -> Losses:
    """The distribution of the sum of losses, each so many times, all on one grid; coarser above `cells` points."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    width = parts[0][0].width
    low, high = _support(parts)
    needed = max(math.ceil((high - low) / width) + 2, *(len(p.mass) for p, _ in parts))
    if needed > cells:
        coarse = width * max(2.0, 1.05 * needed / cells)
        return compose([(p.coarser(coarse), n) for p, n in parts], cells)
    length = fft.next_fast_len(needed, real=True)
    product = np.ones(length // 2 + 1, dtype=np.complex128)
    offset, finite = 0, 0.0
    for part, times in parts:
        product *= _power(fft.rfft(part.mass, length), times)
        offset += part.first * times
        finite += times * math.log1p(-min(part.infinite, 1 - 1e-16))
    first = math.floor(low / width)
    mass = np.roll(fft.irfft(product, length), (offset - first) % length)
    if not np.isfinite(mass).all():
        return Losses(width, 0, np.zeros(1), 1.0)
    return Losses(width, first, mass[:needed], 2 * CUT_OFF - math.expm1(finite))


def _power(base: NDArray[np.complex128], times: int) -> NDArray[np.complex128]:
    """base ** times by squaring, as accurate as NumPy's and faster."""
    result: NDArray[np.complex128] | None = None
    while True:
        if times & 1:
            result = base.copy() if result is None else result * base
        times >>= 1
        if not times:
            return base if result is None else result
        base = base * base


def _support(parts: Sequence[tuple[Losses, int]]) -> tuple[float, float]:
    """Two losses outside which the composition has at most `CUT_OFF` of its mass, by Chernoff's bound.

    Mass below the lower end wraps around to the upper one, where it counts for more.
    """
    low = sum(p.first * p.width * n for p, n in parts)
    high = sum((p.first + len(p.mass) - 1) * p.width * n for p, n in parts)
    sd = math.sqrt(sum(n * p.moments[1] ** 2 for p, n in parts))
    scale = max(sd, (high - low) * 1e-9, 1e-300)
    room = math.log(2 / CUT_OFF)
    widest = max(len(p.mass) * p.width for p, _ in parts)
    orders = np.unique(np.concatenate([ORDERS / scale, np.array([2.0, 8.0, 32.0]) / widest]))
    for order in orders:
        high = min(high, (sum(n * p.log_moment(order) for p, n in parts) + room) / order)
        low = max(low, -(sum(n * p.log_moment(-order) for p, n in parts) + room) / order)
    return min(low, high), high
