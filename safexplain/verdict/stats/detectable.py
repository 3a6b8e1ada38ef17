"""The power of an audit by canaries: the smallest epsilon above the claim that 95 of 100 such audits would show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtr, ndtri

from safexplain._privacy_loss import SMALLEST_DELTA, VACUOUS, Adjacency, Steps, epsilon_of
from safexplain.verdict.stats.lower_bounds import (
    SMALLEST_NOISE,
    BoundMethod,
    ErrorCounts,
    Family,
    gaussian_epsilon,
    trade_off,
)

Array = NDArray[np.float64]

OFTEN = 0.95  # required share of audits that detect it
CAUTION = 0.8  # quantile of each error rate's posterior that is used
LEAST, MOST = math.log(1e-3), math.log(1e3)  # logarithm of a score's noise over the mean effect
ACCURACY = 2e-3  # relative, of noise multipliers and epsilons
QUANTILES = (np.arange(200) + 0.5) / 200  # of the number of false positives
PLACES = ndtri(np.array([1e-4, 1e-3, 5e-3, 0.02, 0.05, 0.1, 0.16, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9]))
"""Normal scores of candidate false-negative rates, if the threshold is chosen."""


@dataclass(frozen=True)
class Promise:
    """A claimed epsilon and mechanism; an unknown one is modelled as Gaussian."""

    epsilon: float
    delta: float
    mechanism: Steps | None
    adjacency: Adjacency

    @cached_property
    def family(self) -> Family:
        """The mechanism without its noise."""
        m = self.mechanism
        return Family() if m is None else Family(m.sample_rate, m.steps, m.sampling)

    @cached_property
    def mu(self) -> float:
        """mu of the Gaussian trade-off with the claimed epsilon."""
        return float(brentq(lambda mu: gaussian_epsilon(mu, self.delta) - self.epsilon, 1e-9, 1e3))

    def spent(self, shrink: float, adjacency: Adjacency | None = None) -> float:
        """Epsilon of the training if the noise is multiplied by `shrink`."""
        if self.mechanism is None:
            return gaussian_epsilon(self.mu / shrink, self.delta)
        less = replace(self.mechanism, noise_multiplier=shrink * self.mechanism.noise_multiplier)
        return epsilon_of([less], self.delta, adjacency or self.adjacency)

    def curve(self, fpr: Array, method: BoundMethod) -> Array:
        """False-negative rates below which the method refutes the claim."""
        e, delta = self.epsilon, self.delta
        if method == "clopper-pearson":
            return np.maximum(1 - delta - math.exp(e) * fpr, (1 - delta - fpr) * math.exp(-e))
        if method == "gdp" or self.family.is_gaussian:
            return np.asarray(ndtr(-ndtri(fpr) - self.mu))
        return np.asarray(trade_off(self.limit, delta)(fpr))

    @cached_property
    def limit(self) -> Steps:
        """The mechanism with the claimed epsilon under substitution, as in the bounds."""
        assert self.mechanism is not None
        if self.adjacency == "substitute" and abs(self.spent(1.0) / self.epsilon - 1) < ACCURACY:
            return self.mechanism
        log_shrink = _root(lambda s: self.spent(math.exp(s), "substitute") - self.epsilon, -8.0, 8.0)
        return replace(self.mechanism, noise_multiplier=math.exp(log_shrink) * self.mechanism.noise_multiplier)

    def smallest_found(self, found: Callable[[float], bool]) -> float | None:
        """Epsilon of the training with the most noise that is `found` when its noise is multiplied by a factor."""
        lowest = 1e-6 if self.mechanism is None else SMALLEST_NOISE / 2 / self.mechanism.noise_multiplier
        low, high = math.log(min(lowest, 0.5)), 0.0
        while high - low > ACCURACY:
            middle = (low + high) / 2
            low, high = (middle, high) if found(math.exp(middle)) else (low, middle)
        if not found(math.exp(low)):
            return None
        spent = self.spent(math.exp(low))
        return spent if spent < VACUOUS else None


def promise_of(epsilon: float, delta: float, mechanism: Steps | None, adjacency: Adjacency) -> Promise | None:
    """The claim; None: it is vacuous."""
    if not 0 < epsilon < VACUOUS or delta < SMALLEST_DELTA:
        return None
    if mechanism is not None and not (mechanism.steps and mechanism.noise_multiplier):
        return None
    return Promise(epsilon, delta, mechanism, adjacency)


@lru_cache(maxsize=256)
def detectable(errors: ErrorCounts, method: BoundMethod, promise: Promise, *, fixed: bool) -> float | None:
    """The smallest epsilon that as many runs would show to be above the claim in 95 of 100 audits; None: none.

    `errors` are the canary's in the training at hand; their `CAUTION` quantiles under Jeffreys' prior determine the
    noise of its scores. The same canary is then put into trainings with less noise. `fixed`: the threshold was fixed
    beforehand.
    """
    fpr, fnr = (
        float(betaincinv(k + 0.5, n - k + 0.5, CAUTION))
        for k, n in ((errors.false_positives, errors.negatives), (errors.false_negatives, errors.positives))
    )
    if fpr + fnr >= 1:
        return None
    sums = _CanarySums(promise.family)
    noise, threshold = sums.fit(fpr, fnr)

    def found(shrink: float) -> bool:
        at = np.array([threshold]) if fixed else sums.quantiles(ndtr(PLACES), noise * shrink)
        rates = zip(sums.below(-at, noise * shrink), sums.below(at, noise * shrink), strict=True)
        return max(_refuted(a, b, errors, method, promise) for a, b in rates) >= OFTEN

    return promise.smallest_found(found)


def _refuted(fpr: float, fnr: float, errors: ErrorCounts, method: BoundMethod, promise: Promise) -> float:
    """Probability that runs with these error rates give a bound above the claim.

    The upper limit of a rate with k errors is below r if P(X <= k) at r is below the limit's tail.
    """
    tail, n, m = (1 - errors.confidence) / 2, errors.negatives, errors.positives
    wrong = distributions.binom.ppf(QUANTILES, n, fpr)
    limits = np.where(wrong < n, betaincinv(wrong + 1, np.maximum(n - wrong, 1), 1 - tail), 1.0)
    allowed = np.clip(promise.curve(limits, method), 0.0, 1.0)
    most = distributions.binom.ppf(tail, m, allowed) - 1
    return float(np.where(most >= 0, distributions.binom.cdf(most, m, fnr), 0.0).mean())


class _CanarySums:
    """Scores: the number of batches with the record, over its mean, up on D and down on D', plus Gaussian noise."""

    def __init__(self, family: Family) -> None:
        draws, q = family.steps, family.sample_rate
        low, high = (int(distributions.binom.ppf(p, draws, q)) for p in (1e-9, 1 - 1e-9))
        counts = np.unique(np.linspace(low, high, 200).round())
        edges = np.concatenate([[-1.0], np.floor((counts[1:] + counts[:-1]) / 2), [float(draws)]])
        self.counts = counts / (q * draws)
        self.weights = np.diff(distributions.binom.cdf(edges, draws, q))

    def below(self, threshold: Array, noise: float) -> Array:
        """(k,) probabilities of a score on D below the threshold, or on D' above its negative."""
        return np.asarray(ndtr((threshold[:, None] - self.counts) / noise) @ self.weights)

    def quantiles(self, rates: Array, noise: float) -> Array:
        """(k,) thresholds below which scores on D fall at these rates."""
        ends = self.counts[0] - 9 * noise, self.counts[-1] + 9 * noise
        at = np.unique(np.concatenate([np.linspace(*ends, 400), self.counts, self.counts + 1e-6]))
        return np.interp(rates, self.below(at, noise), at)

    def fit(self, fpr: float, fnr: float) -> tuple[float, float]:
        """Noise and threshold at which a canary has these error rates."""

        def gap(log_noise: float) -> float:
            near, far = self.quantiles(np.array([fnr, fpr]), math.exp(log_noise))
            return float(near + far)  # both thresholds, from either side; above 0: fewer errors would be made

        grid = np.linspace(LEAST, MOST, 60)  # with less noise than a record's own chance makes, gaps are 0 for long
        last = max((i for i, at in enumerate(grid[:-1]) if gap(at) > 0), default=0)
        noise = math.exp(_root(gap, grid[last], grid[last + 1]))
        near, far = self.quantiles(np.array([fnr, fpr]), noise)
        return noise, float(near - far) / 2


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function, or the nearer end."""
    if falling(low) <= 0:
        return low
    if falling(high) >= 0:
        return high
    return float(brentq(falling, low, high, xtol=ACCURACY))
