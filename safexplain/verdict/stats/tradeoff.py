"""Trade-off curves of a mechanism, and which noise multipliers an attack's error rates refute.

The curve is the least false-negative rate of any attack at a false-positive rate (Dong, Roth and Su 2019, arXiv
1905.02383). From the privacy profile delta(e) under substitution (Proposition 2.12 there),

    f(alpha) = sup over e >= 0 of max{0, 1 - delta(e) - exp(e) alpha, exp(-e) (1 - delta(e) - alpha)}.

A delta that is too large makes f too small, so an attack that does better than f here does so in truth. Curves rise
with the noise multiplier, so epsilon is at least that of the smallest refuted noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypedDict

import numpy as np
from dp_accounting import get_epsilon_gaussian
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from safexplain._privacy_loss import ERROR, ROUNDING, VACUOUS, Sampling, Steps, privacy_loss, typical_loss
from safexplain.errors import ConfigurationError

Array = NDArray[np.float64]

COARSER = 3.0
"""Width of the privacy losses' grid over that of the accountant: three times as fast, with nine times its error."""

ORDERS = 400
"""Number of orders e at which the privacy profile is evaluated."""

NEGLIGIBLE = 1e-11
"""Orders whose delta is smaller than this are left out."""

UNITS = 4096
"""Grid points while the noise multiplier grows by a factor of e."""

LOWEST, HIGHEST = -4 * UNITS, 28 * UNITS
"""Ends of the grid; their distance is a power of two, so that every bisection visits the same points."""

RESOLUTION = 0.005
"""Relative distance in epsilon at which the bisection stops."""

SMALLEST_NOISE = 1 / 16
"""Noise multiplier (twice this for a fixed size) below which curves are not computed: their exponentials overflow."""

UNNOTICEABLE = 1e-7
"""Mean privacy loss below which a mechanism counts as having epsilon 0."""


class TradeOff(Protocol):
    """The trade-off curve of one mechanism."""

    @property
    def epsilon(self) -> float:
        """A lower bound on the mechanism's epsilon, at the curve's delta."""

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """Lower bounds on the false-negative rates at these false-positive rates."""


@dataclass(frozen=True)
class GaussianTradeOff:
    """The trade-off between N(0, 1) and N(mu, 1) (arXiv 1905.02383, equation 6), with its `gaussian_epsilon`."""

    mu: float
    epsilon: float

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """(n,) or () least false-negative rates."""
        return np.asarray(ndtr(-ndtri(fpr) - self.mu))


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """The largest of straight lines intercept - slope * fpr, each below the curve."""

    epsilon: float  # lower bound on that of the mechanism
    slopes: Array  # (k,) decreasing
    intercepts: Array  # (k,)
    crossings: Array  # (k - 1,) false-positive rates, not decreasing, above which the next line holds

    def __call__(self, fpr: ArrayLike, /) -> Array:
        """(n,) or () lower bounds on the least false-negative rates."""
        given = np.asarray(fpr, dtype=np.float64)
        at = self.crossings.searchsorted(given)
        return np.asarray(np.maximum(0.0, self.intercepts[at] - self.slopes[at] * given))


@lru_cache(maxsize=4096)
def trade_off(mechanism: Steps, delta: float) -> TradeOff:
    """The trade-off curve of the sampled Gaussian mechanism under substitution, from below.

    For full batches it is that of one Gaussian. Otherwise it comes from privacy loss distributions, and the
    accountant's error, by which it may raise epsilon, is subtracted. The mechanism needs noise and at least one step.
    """
    q, steps, noise = mechanism.sample_rate, mechanism.steps, mechanism.noise_multiplier
    if q == 1:
        mu = 2 * math.sqrt(steps) / noise
        return GaussianTradeOff(mu, gaussian_epsilon(mu, delta))
    slack = ROUNDING * steps
    loss = privacy_loss([mechanism], "substitute", error=COARSER**2 * ERROR)
    epsilon = min(loss.epsilon(delta + slack), VACUOUS)
    top = loss.epsilon(max(NEGLIGIBLE, 10 * slack))
    orders = np.linspace(0.0, min(max(top, 1e-6), VACUOUS), ORDERS)
    profile = np.minimum(loss.delta(orders) + slack, 1.0)
    # approximate largest increase of epsilon by discretisation, which grows with the square of the grid's width
    raised = COARSER**2 * ERROR * max(min(epsilon, 1.0), epsilon / 10)
    return PiecewiseLinear(max(epsilon - raised, 0.0), *_envelope(orders, profile))


def gaussian_distance(fpr: ArrayLike, fnr: ArrayLike) -> Array:
    """The mu whose Gaussian trade-off passes through these error rates; negative for worse than guessing."""
    return np.asarray(-ndtri(fpr) - ndtri(fnr))


@lru_cache(maxsize=65536)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of mu-GDP at delta, exact (arXiv 1905.02383, Corollary 2.13); 0 for mu <= 0."""
    if mu <= 0:
        return 0.0
    with np.errstate(divide="ignore"):  # a log delta of -inf while an upper end is searched
        return float(get_epsilon_gaussian(1 / mu, delta))


def _envelope(orders: Array, profile: Array) -> tuple[Array, Array, Array]:
    """Slopes, intercepts and crossings of the lines of both directions, the steepest first."""
    shrink = np.exp(-orders[1:])
    slopes = np.concatenate([np.exp(orders[::-1]), shrink])
    intercepts = np.concatenate([1 - profile[::-1], shrink * (1 - profile[1:])])
    crossings = np.maximum.accumulate(np.diff(intercepts) / np.diff(slopes))
    return slopes, intercepts, crossings


@dataclass(frozen=True)
class Family:
    """The sampled Gaussian mechanism with any noise, described as in `Steps`.

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.
    """

    sample_rate: float = 1.0
    steps: int = 1
    sampling: Sampling | None = None  # None: "poisson", or a full batch where the sample rate is 1

    def __post_init__(self) -> None:
        if self.sampling is None:
            object.__setattr__(self, "sampling", "full-batch" if self.sample_rate == 1 else "poisson")
        if self._of(1.0).steps == 0:
            raise ConfigurationError("steps: expected at least 1, got 0")

    @property
    def is_gaussian(self) -> bool:
        """Whether all steps together are one Gaussian mechanism."""
        return self.sample_rate == 1

    def at(self, point: int) -> Steps:
        """The member at a point of the grid."""
        return self._of(math.exp(point / UNITS))

    def _of(self, noise: float) -> Steps:
        return Steps(noise, self.sample_rate, self.steps, self.sampling or "poisson")


class Claimed(TypedDict, total=False):
    """Keyword arguments of a bound: its confidence, and the claimed mechanism, a `Family`."""

    confidence: float
    sample_rate: float
    steps: int
    sampling: Sampling | None


def confidence_and_family(claimed: Claimed) -> tuple[float, Family]:
    """The confidence and the mechanism in a bound's keyword arguments."""
    mechanism: dict[str, Any] = {**claimed}
    confidence = mechanism.pop("confidence", 0.95)
    return confidence, Family(**mechanism)


def smallest_refuted(
    family: Family, delta: float, refutes: Callable[[TradeOff], bool], resolution: float = RESOLUTION
) -> tuple[float, TradeOff | None]:
    """Epsilon and trade-off curve of the smallest noise multiplier of the grid that is refuted.

    `refutes` tests whether the errors are too few for a curve, and then for every higher one. The lower bound on
    epsilon is infinite if no noise explains so few errors; if every noise does, it is 0 and the curve None.
    """
    low, high = LOWEST, HIGHEST  # not refuted, and refuted; the ends of the grid count as such
    below: TradeOff | None = None
    above: TradeOff | None = None
    while high - low > 1 and not (below and above and below.epsilon - above.epsilon <= resolution * above.epsilon):
        middle = (low + high) // 2
        side = _side(family, middle)
        if side < 0:
            low = middle
        elif side > 0:
            high = middle
        elif refutes(curve := trade_off(family.at(middle), delta)):
            high, above = middle, curve
        else:
            low, below = middle, curve
    if above is None:
        return 0.0, None
    return math.inf if below is None and _overflows(family.at(low)) else above.epsilon, above


@lru_cache(maxsize=65536)
def _side(family: Family, point: int) -> int:
    """-1: too little noise to compute a curve; 1: too much noise to learn anything; else 0."""
    member = family.at(point)
    if _overflows(member):
        return -1
    loss = typical_loss(member)
    return int(loss < UNNOTICEABLE) - int(loss > VACUOUS)


def _overflows(member: Steps) -> bool:
    wide = 2 if member.sampling == "fixed-size" else 1
    return member.sample_rate < 1 and member.noise_multiplier < wide * SMALLEST_NOISE
