"""Dominating pairs of one step of the sampled Gaussian mechanism, as privacy loss distributions of dp-accounting.

One record changes the sum of clipped gradients by a vector of norm at most C when it is added, removed or emptied, and
at most 2C when it is substituted. Noise of standard deviation `noise_multiplier * C` is added to the sum; below C = 1.

| sampling | add_remove, zero_out | substitute |
|---|---|---|
| Poisson, q | (1-q) N(0) + q N(1) against N(0), and the reverse | (1-q) N(0) + q N(-1) against (1-q) N(0) + q N(1) |
| fixed size, q = b/n | (1-q) N(0) + q N(2) against N(0), and the reverse | the same, both directions in one pair |
| full batch | N(0) against N(1) | N(-1) against N(1) |

Poisson under substitution: given the other records' batch, one record's gradient g or g' joins with probability q, and
by the Neyman-Pearson lemma no g, g' in the ball tells more than g = -g' on its surface, for every order of the
hockey-stick divergence, hence under composition. With a fixed size, the record stands where another of the batch would
stand, 2C away (Zhu, Dong and Wang 2022, arXiv 2106.08567, Theorem 11); under substitution orders above and below one
have different worst cases, which are joined into one symmetric pair. For zero_out with a fixed size the pair of
substitution is used, an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from safexplain.adjacency import Adjacency, Sampling

Array = NDArray[np.float64]

ERROR = 3e-4
"""How far discretisation may raise epsilon, about; never lowered: all estimates are pessimistic."""

CELLS = 1_000_000
"""Most intervals that the losses of one step may be split into; finer would be slow and need much memory."""

COMPOSED_CELLS = 4_000_000
"""Intervals that the losses of all steps together are split into, at most about."""

TAIL = 9.0
"""Losses of noise beyond so many standard deviations (probability 1e-19) count as infinite."""


def one_step(
    noise_multiplier: float, sample_rate: float, adjacency: Adjacency, sampling: Sampling, interval: float
) -> PrivacyLossDistribution:
    """The privacy loss distribution of one step, discretised by connecting the dots of its exact privacy profile.

    dp-accounting's own `from_gaussian_mechanism` gives the same for Poisson sampling, one loss at a time.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over the clip bound C.
        sample_rate: q in (0, 1]; 1 for a full batch.
        adjacency: what neighbours differ in.
        sampling: how the batch is drawn.
        interval: width of the grid of privacy losses, in nats.
    """
    q, d = sample_rate, _distance(noise_multiplier, sampling)
    largest = _largest_losses(q, d)
    if adjacency == "add_remove" or (adjacency == "zero_out" and sampling != "fixed-size"):
        low = -math.log1p(-q) if q < 1 else largest[0]
        remove = _profile(lambda epsilon: _removal(epsilon, d, q), -low, largest[0], interval)
        return PrivacyLossDistribution(
            remove, _profile(lambda epsilon: _addition(epsilon, d, q), -largest[0], low, interval)
        )
    above, top = (_removal, largest[0]) if sampling == "fixed-size" else (_substitution, largest[1])
    return PrivacyLossDistribution(_profile(lambda epsilon: _symmetric(above, epsilon, d, q), -top, top, interval))


def grid_interval(noise_multiplier: float, sample_rate: float, steps: int, sampling: Sampling) -> float:
    """The width at which connect-the-dots discretisation (arXiv 2207.04380) raises epsilon by about `ERROR`.

    Each step's loss is rounded apart within its interval v, which adds about v^2 to its variance; over the steps that
    raises epsilon by about steps v^2 / (2 sd), sd the standard deviation of the whole loss.
    """
    total_sd = _loss_moments(sample_rate, _distance(noise_multiplier, sampling))[1] * math.sqrt(steps)
    total = typical_loss(noise_multiplier, sample_rate, steps, sampling) + 4 * total_sd
    allowed = ERROR * max(min(total, 1.0), total / 10)
    finest = max(
        1e-7,
        20 * total_sd / COMPOSED_CELLS,
        sum(_largest_losses(sample_rate, _distance(noise_multiplier, sampling))) / CELLS,
    )
    return max(min(math.sqrt(2 * allowed * total_sd / steps), max(1.0, total) / 50), finest)


def typical_loss(noise_multiplier: float, sample_rate: float, steps: int, sampling: Sampling) -> float:
    """The mean privacy loss of all steps, in nats, when a record is removed; epsilon is larger at any small delta."""
    return steps * _loss_moments(sample_rate, _distance(noise_multiplier, sampling))[0]


def _distance(sigma: float, sampling: Sampling) -> float:
    return (2.0 if sampling == "fixed-size" else 1.0) / sigma


def _largest_losses(q: float, d: float) -> tuple[float, float]:
    """The loss when the noise is `TAIL` deviations above d, removing and substituting."""
    rest = math.log1p(-q) if q < 1 else -math.inf
    joined = math.log(q) - d * d / 2
    up, down = (float(np.logaddexp(rest, joined + side * d * (TAIL + d))) for side in (1, -1))
    return up, up - down


def _loss_moments(q: float, d: float) -> tuple[float, float]:
    """Mean and standard deviation of the loss log((1-q) + q N(d)/N(0)) under its numerator, by quadrature."""
    x = np.linspace(-9, 9 + d, 4001)
    loss = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + d * x - d * d / 2)
    weight = np.exp(loss - x * x / 2)
    weight /= weight.sum()
    mean = float(weight @ loss)
    return abs(mean), max(math.sqrt(float(weight @ (loss - mean) ** 2)), 1e-12)


def _removal(epsilon: Array, d: float, q: float) -> Array:
    """Hockey-stick divergence of order e^epsilon from (1-q) N(0) + q N(d) to N(0); any epsilon."""
    reached = epsilon > (math.log1p(-q) if q < 1 else -math.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        cut = (_log_joined(epsilon, q) + d * d / 2) / d
        above = (1 - q) * ndtr(-cut) + q * ndtr(d - cut) - np.exp(epsilon + log_ndtr(-cut))
    return np.where(reached, above, -np.expm1(np.minimum(epsilon, 0)))


def _addition(epsilon: Array, d: float, q: float) -> Array:
    """The same from N(0) to (1-q) N(0) + q N(d)."""
    reached = -epsilon > (math.log1p(-q) if q < 1 else -math.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        cut = (_log_joined(-epsilon, q) + d * d / 2) / d
        shrunk = (1 - q) * np.exp(epsilon + log_ndtr(cut)) + q * np.exp(epsilon + log_ndtr(cut - d))
    return np.where(reached, ndtr(cut) - shrunk, 0.0)


def _substitution(epsilon: Array, d: float, q: float) -> Array:
    """The same from (1-q) N(0) + q N(d) to (1-q) N(0) + q N(-d), for epsilon >= 0; asinh inverts the loss exactly."""
    half = epsilon / 2
    grown = (1 - q) / q * np.exp(half + d * d / 2) * -np.expm1(-epsilon) / 2
    cut = (half + np.arcsinh(grown)) / d
    minus = (1 - q) * np.exp(epsilon + log_ndtr(-cut)) + q * np.exp(epsilon + log_ndtr(-d - cut))
    return np.asarray((1 - q) * ndtr(-cut) + q * ndtr(d - cut) - minus)


def _log_joined(epsilon: Array, q: float) -> Array:
    """log((e^epsilon - (1-q)) / q)."""
    return np.asarray(epsilon + np.log1p(-(1 - q) * np.exp(-epsilon)) - math.log(q))


def _symmetric(above: Callable[[Array, float, float], Array], epsilon: Array, d: float, q: float) -> Array:
    """A profile known for epsilon >= 0, continued to a pair whose directions are alike: 1 - a + a H(1/a) at a < 1."""
    values = above(np.abs(epsilon), d, q)
    return np.where(epsilon >= 0, values, -np.expm1(np.minimum(epsilon, 0)) + np.exp(np.minimum(epsilon, 0)) * values)


def _profile(divergence: Callable[[Array], Array], low: float, high: float, interval: float) -> PLDPmf:
    first, last = math.floor(low / interval) - 1, math.ceil(high / interval) + 1
    deltas = divergence(np.arange(first, last + 1) * interval)
    falling = np.minimum.accumulate(np.clip(deltas, 0, 1))
    return create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, falling)
