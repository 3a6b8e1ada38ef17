"""The pair of distributions that dominates one step of the sampled Gaussian mechanism.

The noisy sum of clipped gradients is measured along the worst direction, in units of the noise's standard deviation.
The record in which neighbours differ joins a batch with probability q. With d = 1 / noise_multiplier and the mixture
M(v) = (1 - q) N(0) + q N(v):

| sampling | add_remove, zero_out | substitute |
|---|---|---|
| Poisson, q | M(d) against N(0), and the reverse | M(-d) against M(d) |
| fixed size, q = b/n | M(2 d) against N(0), and the reverse | the first at orders from 1 on, made symmetric |
| full batch, q = 1 | N(d) against N(0) | N(-d) against N(d) |

docs/api/dp.md proves that no other pair is larger (Zhu, Dong and Wang 2022, arXiv 2106.08567).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, roots_legendre

Array = NDArray[np.float64]

TAIL = 9.0
"""Losses of noise beyond this number of standard deviations (probability 1e-19) count as infinite."""

MAX_EXPONENT = 700.0
"""Larger exponents are cut to this; the losses that they belong to count as infinite anyway."""

NODES = roots_legendre(6)


@dataclass(frozen=True)
class Pair:
    """One step of the sampled Gaussian mechanism, with noise; fields as in `safexplain._privacy_loss.Steps`."""

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
        """A loss below which removal falls with negligible probability; for addition, negate it."""
        return float(self.loss(np.array(-TAIL)))

    def renyi(self, order: float, adjacency: str) -> float:
        """The Renyi divergence of the pair, in the larger direction, by quadrature.

        With a fixed size under substitution, the pair is given by its privacy profile H at orders above one, which
        holds in both directions: E_Q (P / Q)^a = 1 + a (a - 1) int_0^inf (e^((a - 1) e) + e^(-a e)) H(e) de. The moment
        of the pair of removal lacks only a part of the reverse direction, which is added. `order` is above 1.
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
        """The same for the pair of substitution, in both directions.

        It is computed at e^|epsilon|, and extended to a symmetric pair: 1 - a + a H(1/a) at a < 1.
        """
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
    """log(1 + (e^epsilon - 1) / q): the order for the part of a mixture that differs, whose weight is q."""
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
