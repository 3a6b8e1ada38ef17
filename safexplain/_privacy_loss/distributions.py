"""Distributions of privacy losses log(P / Q), under P, on a grid: of one step, from its privacy profile, and composed.

The mass between two grid points is split between both so that its probabilities under P and Q stay the same ("connect
the dots", Doroshenko et al. 2022, arXiv 2207.04380). This can only increase delta(epsilon), which is exact on the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft
from scipy.special import log_ndtr, ndtr, roots_legendre

Array = NDArray[np.float64]

TAIL = 9.0
"""Losses of noise beyond this number of standard deviations (probability 1e-19) count as infinite."""

MAX_EXPONENT = 700.0
"""Larger exponents are cut to this; the losses that they belong to count as infinite anyway."""

NODES = roots_legendre(6)


@dataclass(frozen=True)
class Pair:
    """The pair of distributions that dominates one step of the sampled Gaussian mechanism; fields as in
    `safexplain._privacy_loss.Steps`.

    Outputs x are measured along the worst direction, in standard deviations of the noise, and M(v) = (1 - q) N(0) +
    q N(v). docs/api/dp.md has the pairs, with proofs (Zhu, Dong and Wang 2022, arXiv 2106.08567).
    """

    noise_multiplier: float
    sample_rate: float
    sampling: str = "poisson"

    @property
    def fixed_size(self) -> bool:
        """Whether a drawn record replaces another one."""
        return self.sampling == "fixed-size" and self.sample_rate < 1

    @cached_property
    def distance(self) -> float:
        """The largest change of the sum by one record, in standard deviations of the noise."""
        return (2.0 if self.fixed_size else 1.0) / self.noise_multiplier

    def loss(self, x: Array) -> Array:
        """log(M(d) / N(0)) at x, increasing; with small relative errors near 0."""
        q, term = self.sample_rate, self.distance * x - self.distance**2 / 2
        total = np.logaddexp(self.least, term + math.log(q))
        excess = q * np.expm1(np.minimum(term, 300.0))
        near = np.abs(excess) < 0.5
        return np.where(near, np.log1p(np.where(near, excess, 0.0)), total)

    @cached_property
    def least(self) -> float:
        """The infimum of the loss: log(1 - q)."""
        return math.log1p(-self.sample_rate) if self.sample_rate < 1 else -math.inf

    @cached_property
    def largest(self) -> tuple[float, float]:
        """Losses that removal and substitution exceed with negligible probability."""
        reach = TAIL + self.distance
        up, down = (float(self.loss(np.array(side * reach))) for side in (1, -1))
        return up, up if self.fixed_size else up - down

    @cached_property
    def smallest(self) -> float:
        """A loss below which removal falls with negligible probability; addition has the negative."""
        return float(self.loss(np.array(-TAIL)))

    def renyi(self, order: float, adjacency: str) -> float:
        """The Renyi divergence at an order above 1, in the larger direction, by quadrature.

        With a fixed size under substitution, the profile H holds in both directions, and E_Q (P / Q)^a =
        1 + a (a - 1) int_0^inf (e^((a - 1) e) + e^(-a e)) H(e) de: a part is added to the moment of removal.
        """
        top = self.distance
        bound = order * (top * (1 if self.fixed_size or adjacency == "add_remove" else 2)) ** 2 / 2
        if 2 * order * top > 2000:  # far beyond any budget
            return bound
        if adjacency == "substitute" and not self.fixed_size:
            return min(self._log_moment(order, 1, -1) / (order - 1), bound)
        if adjacency == "substitute" or (adjacency == "zero_out" and self.fixed_size):
            log_moment = self._log_moment(order, 1, 0)
            if log_moment > MAX_EXPONENT:
                return bound
            moment = math.expm1(log_moment) + self._reverse_part(order)
            return min(math.log1p(moment) / (order - 1), bound)
        return min(max(self._log_moment(order, 1, 0), self._log_moment(order, 0, 1)) / (order - 1), bound)

    def _log_moment(self, order: float, upper: int, lower: int) -> float:
        """log E_Q (P / Q)^order for P, Q = M(upper d), M(lower d), by the trapezoidal rule."""
        top = self.distance
        reach = 2 * order * top + 12
        x = np.linspace(-reach, reach, 2 * math.ceil(reach / 0.15 * math.sqrt(1 + order * top * top)) + 1)
        with np.errstate(over="ignore"):
            under = self.loss(lower * x) if lower else np.zeros_like(x)
            ratio = (self.loss(upper * x) if upper else np.zeros_like(x)) - under
        log_weight = under - x * x / 2 + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
        exponents = order * ratio + log_weight
        highest = float(exponents.max())
        relevant = np.maximum(exponents, log_weight) > -60
        if order * float(np.abs(ratio[relevant]).max()) > 300:
            return max(highest + math.log(float(np.exp(exponents - highest).sum())), 0.0)
        # order * (E_Q (P / Q) - 1) = 0 is subtracted, so that small moments are not lost to rounding
        terms = np.exp(log_weight[relevant]) * (np.expm1(order * ratio[relevant]) - order * np.expm1(ratio[relevant]))
        return math.log1p(max(float(terms.sum()), 0.0))

    def _reverse_part(self, order: float) -> float:
        """a (a - 1) int_0^inf e^(-a e) (H(e) - its reverse) de, at least 0, of the pair of removal."""
        e, width = np.linspace(0, 40 / order, 2001, retstep=True)
        gap = np.maximum(self.removal(e) - self.addition(e), 0.0) * np.exp(-order * e)
        return float(order * (order - 1) * width * (gap.sum() - gap[0] / 2))

    @cached_property
    def moments(self) -> tuple[float, float, float]:
        """Mean, standard deviation and mean absolute value of the loss under its numerator, by quadrature."""
        b = np.array([1 - self.sample_rate, self.sample_rate])
        at = np.linspace(-TAIL, TAIL, 241)
        weights = np.exp(-at * at / 2)
        weights /= weights.sum()
        loss = self.loss(at + np.array([[0.0], [self.distance]]))
        mean = float(b @ (loss @ weights))
        sd = math.sqrt(float(b @ ((loss - mean) ** 2 @ weights)))
        return abs(mean), sd, float(b @ (np.abs(loss) @ weights))

    def total_variation(self, adjacency: str) -> float:
        """delta of one step at epsilon 0."""
        profile = self.substitution if adjacency == "substitute" or self.fixed_size else self.removal
        return float(profile(np.zeros(1))[0])

    def removal(self, epsilon: Array) -> Array:
        """Hockey-stick divergence of order e^epsilon from M(d) to N(0), for any epsilon."""
        cut, half = self._cut(epsilon), self.distance / 2
        above = self.sample_rate * _interval(half - cut, half) - _times_expm1(epsilon, -cut)
        return np.where(epsilon > self.least, above, -np.expm1(np.minimum(epsilon, 0)))

    def addition(self, epsilon: Array) -> Array:
        """The same from N(0) to M(d)."""
        cut, half = self._cut(-epsilon), self.distance / 2
        grown = np.exp(np.minimum(epsilon, MAX_EXPONENT)) * (self.sample_rate * _interval(cut - half, half))
        return np.where(-epsilon > self.least, grown - _times_expm1(epsilon, cut), 0.0)

    def substitution(self, epsilon: Array) -> Array:
        """The same for the pair of substitution, in both directions: 1 - a + a H(1/a) at orders a < 1."""
        above = self.removal if self.fixed_size else self._poisson_substitution
        values = above(np.abs(epsilon))
        low = np.minimum(epsilon, 0)
        return np.where(epsilon >= 0, values, -np.expm1(low) + np.exp(low) * values)

    def _poisson_substitution(self, epsilon: Array) -> Array:
        """From M(d) to M(-d), for epsilon >= 0; asinh inverts the loss exactly."""
        q, d = self.sample_rate, self.distance
        with np.errstate(divide="ignore"):
            grown = self.least - math.log(q) + (epsilon + d * d) / 2 + np.log(-np.expm1(-epsilon) / 2)
        sinh = np.where(grown > 300, grown + math.log(2), np.arcsinh(np.exp(np.minimum(grown, 300))))
        cut = (epsilon / 2 + sinh) / d
        apart = q * (_interval(-cut, d) - _times_expm1(epsilon, -d - cut))
        return np.asarray(apart - (1 - q) * _times_expm1(epsilon, -cut))

    def _cut(self, epsilon: Array) -> Array:
        """The x at which the loss is epsilon; arbitrary if there is none."""
        return np.asarray((_log_order(epsilon, self.sample_rate) + self.distance**2 / 2) / self.distance)


def _log_order(epsilon: Array, q: float) -> Array:
    """log(1 + (e^epsilon - 1) / q): the order for the part of a mixture that differs."""
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / q)
        far = epsilon + np.log1p(-(1 - q) * np.exp(-np.maximum(epsilon, 0.5))) - math.log(q)
    return np.asarray(np.where(epsilon < 1, near, far))


def _times_expm1(epsilon: Array, x: Array) -> Array:
    """(e^epsilon - 1) Phi(x), for any epsilon."""
    out = np.expm1(np.minimum(epsilon, 1.0)) * ndtr(x)
    far = epsilon >= 1
    if far.any():
        out[far] = np.exp(np.minimum(epsilon[far] + log_ndtr(x[far]), MAX_EXPONENT)) - ndtr(x[far])
    return np.asarray(out)


def _interval(middle: Array, half: float) -> Array:
    """Phi(middle + half) - Phi(middle - half), with a small relative error even if half is small."""
    if half >= 0.25:
        below = -np.abs(middle)  # by symmetry; two numbers near 1 would cancel
        return np.asarray(ndtr(below + half) - ndtr(below - half))
    near = np.zeros_like(middle)
    for node, weight in zip(*NODES, strict=True):
        near += weight * np.exp(-((middle + half * node) ** 2) / 2)
    return np.asarray(near * (half / math.sqrt(2 * math.pi)))


# --- the pair of one step ---------------------------------------------------------------------------------------------


CELLS = 1 << 20
"""Largest number of grid points of a distribution; about 100 MB while it is composed."""

VACUOUS = 500.0
"""Larger epsilons are reported as infinite: they guarantee nothing, and their exponentials overflow."""

LARGEST_LOSS = VACUOUS + 20
"""Larger losses count as infinite; those below its negative as its negative."""

CUT_OFF = 1e-15
"""Mass of a composition that may lie above its grid; it counts as an infinite loss."""

ORDERS = np.geomspace(0.02, 24.0, 14)
"""Orders of Chernoff's bound, over the standard deviation."""

BLOCK = 16
"""Grid points merged into their worst for Chernoff's bound, if there are many."""


@dataclass(frozen=True, eq=False)
class Losses:
    """Privacy losses on a grid of `width` nats: `mass` (k,) are probabilities under P of losses `first`, first + 1, ...
    widths (slightly negative by rounding), and `infinite` that of an infinite loss."""

    width: float
    first: int
    mass: Array
    infinite: float

    @classmethod
    def of_profile(cls, divergence: Callable[[Array], Array], low: float, high: float, width: float) -> Losses:
        """From `divergence`: (k,) epsilons -> hockey-stick divergences of order e^epsilon. Losses below `low` count as
        `low`, losses above `high` as infinite."""
        first = math.floor(max(low, -LARGEST_LOSS) / width) - 1
        last = math.ceil(min(high, LARGEST_LOSS) / width) + 1
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
    """The distribution of the sum of independent losses, each so many times and all on one grid, by Fourier transforms;
    the grid becomes coarser if it needs more than `cells` points."""
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
    """Two losses outside which the composition has at most `CUT_OFF` of its mass, by Chernoff's bound. Mass below the
    lower end wraps around to the upper one, where it counts for more."""
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
