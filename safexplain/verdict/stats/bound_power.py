"""The power of an audit by canaries: how surely it would have found a training that spends more than is claimed.

A weak canary finds nothing in any training, and a bound below the claim is then no evidence for it. What the audit
would have found had the training spent twice the claim is answered from what it counted:

1. How far apart the canary puts D and D', from its errors. The model is that of the worst case, for a canary of any
   strength: a score is the number of batches that the record joined, up on D and down on D', plus Gaussian noise. Two
   error rates give the noise, in units of the canary's effect, and the threshold. Each rate has its posterior under
   Jeffreys' prior, over which all that follows is averaged: few runs say little about the strength of a canary.
2. The same canary in a training that spends twice the claim, by a noise multiplier smaller in that ratio, for the same
   sampling rate, steps and sampling. Where no mechanism is claimed, the ratio is that of one Gaussian mechanism.
3. The probability that as many runs, judged by the same method at the same confidence, then give a bound above the
   claim. A threshold that was fixed stays; one that is chosen on some of the runs is placed where it serves best.

The strength is that in the training at hand, taken to be as claimed. Were it broken already, a weak canary in it would
look like a stronger one in a right training: from one number of errors nobody can tell these apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from dp_accounting import get_sigma_gaussian
from numpy.typing import NDArray
from scipy import stats as distributions
from scipy.special import betainc, betaincinv, ndtr, ndtri

from safexplain._privacy_loss import SMALLEST_DELTA, VACUOUS, Adjacency, Steps, epsilon_of
from safexplain.verdict.stats.bound_methods import BoundMethod, ErrorCounts
from safexplain.verdict.stats.one_run import OneRunMethod, shows_more
from safexplain.verdict.stats.tradeoff import Family, TradeOff, trade_off

Array = NDArray[np.float64]

TIMES = 2.0
"""What is to be found: a training that spends so many times the claim."""

NODES = 10
"""Points of equal probability at which each posterior is read."""

NOISES = np.geomspace(0.01, 1000.0, 81)
"""Noise of a score over the canary's mean effect, between which a canary's is interpolated."""

MOST_COUNTS = 48
"""Values to which the number of joined batches is reduced."""

POINTS = 48
"""Numbers of errors at which a binomial distribution is read, where there are more."""

PLACES = ndtri(np.array([1e-4, 1e-3, 5e-3, 0.02, 0.05, 0.1, 0.16, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9]))
"""Normal scores of the false-negative rates among which a chosen threshold is placed."""

MOST_RUNS, MOST_CANARIES = 1_000_000, 20_000
"""More, in many runs or in one, are not asked for."""


@dataclass(frozen=True)
class Excess:
    """A training that spends more than is claimed, beside the one that is described."""

    claimed: float  # epsilon that a bound has to exceed
    delta: float  # of all epsilons
    family: Family  # the mechanism but for its noise; one Gaussian where none is claimed
    limit: Steps | None  # the mechanism for which the claimed epsilon is that under substitution; None: not known
    shrink: float  # noise of the training that is to be found, over that of the described one


@lru_cache(maxsize=256)
def excess_over(
    claimed: float, delta: float, mechanism: Steps | None, adjacency: Adjacency, group: int = 1
) -> Excess | None:
    """The training that spends `TIMES` the epsilon that is claimed under this adjacency for groups of so many records.

    None where there is none, or nothing would be promised. The described mechanism may be None: not known.
    """
    if not 0 < claimed < VACUOUS or delta < SMALLEST_DELTA:
        return None
    more = min(TIMES * claimed, VACUOUS)
    if mechanism is None:
        ratio = get_sigma_gaussian(more, delta) / get_sigma_gaussian(claimed, delta)
        return Excess(claimed, delta, Family(), None, float(ratio))
    if not mechanism.steps or not mechanism.noise_multiplier:
        return None
    at = _noise_of(claimed, delta, mechanism, "substitute", group)
    less = _noise_of(more, delta, mechanism, adjacency, group)
    if at is None or less is None:
        return None
    m = mechanism
    family = Family(m.sample_rate, m.steps, m.sampling, group, m.largest_batch, m.records)
    return Excess(claimed, delta, family, replace(m, noise_multiplier=at), less / m.noise_multiplier)


def many_runs_power(errors: ErrorCounts, method: BoundMethod, excess: Excess, *, fixed: bool) -> float:
    """Probability that as many runs on D and on D' of the excessive training give a bound above the claim.

    The canary's errors are those in the described training; `fixed` says whether the threshold was fixed beforehand,
    not chosen on some of the runs.
    """
    test = _Test(method, excess, errors.negatives, errors.positives, errors.confidence)
    if not test.can_exceed:
        return 0.0
    sums = canary_sums(excess.family)
    fpr, fnr = (
        part.ravel()
        for part in np.meshgrid(
            _posterior(errors.false_positives, errors.negatives), _posterior(errors.false_negatives, errors.positives)
        )
    )
    noise, threshold = sums.fit(fpr, fnr)
    less = noise * excess.shrink
    if fixed:
        return float(test.power(sums.cdf(-threshold, less), sums.cdf(threshold, less)).mean())
    grid = np.geomspace(less.min(), max(less.max(), less.min() * 1.001), 12)
    placed = np.stack([sums.quantile(ndtr(PLACES), r) for r in grid])
    best = test.power(sums.cdf(-placed, grid[:, None]), sums.cdf(placed, grid[:, None])).max(1)
    return float(np.interp(np.log(less), np.log(grid), best).mean())


def one_run_power(
    correct: int, guesses: int, canaries: int, method: OneRunMethod, excess: Excess, confidence: float
) -> float:
    """Probability that as many guesses of as many coins in one excessive training give a bound above the claim.

    So many of them were correct in the described training. Coins are guessed by the sign of their scores, those of the
    largest ones; the guesses count as independent.
    """
    curve = None if method == "steinke" else _claimed_curve(excess)

    def shown(right: int) -> bool:
        return shows_more(right, guesses, canaries, excess.claimed, excess.delta, curve, 1 - confidence)

    if not shown(guesses):
        return 0.0
    low, high = guesses // 2, guesses  # too few, and enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    sums = canary_sums(excess.family)
    accuracy = sums.accuracy(guesses / canaries)
    noise = np.exp(np.interp(-_posterior(correct, guesses), -accuracy, np.log(NOISES)))
    then = np.interp(np.log(noise * excess.shrink), np.log(NOISES), accuracy)
    return float(distributions.binom.sf(high - 1, guesses, then).mean())


def runs_needed(runs: int, power: Callable[[float], float], wanted: float, most: int = MOST_RUNS) -> int | None:
    """How many runs have the wanted power, to two digits; None: more than `most`, or none.

    `power` is that of so many times the runs that there were, with errors in the same proportion.
    """
    low, high = 1.0, most / runs
    if high <= 1 or power(high) < wanted:
        return None
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    digits = 10.0 ** (math.floor(math.log10(high * runs)) - 1)
    return 2 * math.ceil(math.ceil(high * runs / digits) * digits / 2)


class _CanarySums:
    """Scores of a canary: (k,) numbers of batches joined, over their mean, with (k,) probabilities, up on D and down on
    D', and Gaussian noise.
    """

    def __init__(self, counts: Array, weights: Array) -> None:
        self.counts, self.weights = counts, weights

    def cdf(self, threshold: Array, noise: Array) -> Array:
        """(...,) probability that a score on D is below; a score on D' is above minus the threshold as often."""
        z = (threshold[..., None] - self.counts) / noise[..., None]
        return np.asarray(ndtr(z) @ self.weights)

    def quantile(self, rate: Array, noise: float) -> Array:
        """(...,) thresholds below which scores on D are so often."""
        at, below = self._table(noise)
        return np.interp(rate, below, at)

    def _table(self, noise: float) -> tuple[Array, Array]:
        ends = noise * np.linspace(-9, 9, 121)[:, None] + self.counts[[0, -1]]
        at = np.unique(np.concatenate([ends.ravel(), self.counts]))
        return at, self.cdf(at, np.full(at.shape, noise))

    @cached_property
    def _tables(self) -> list[tuple[Array, Array]]:
        return [self._table(float(noise)) for noise in NOISES]

    def fit(self, fpr: Array, fnr: Array) -> tuple[Array, Array]:
        """(n,) noises and thresholds at which a canary makes these errors.

        The least noise where errors are fewer than any makes, the most where D and D' were not told apart.
        """
        near = np.stack([np.interp(fnr, below, at) for at, below in self._tables])
        far = np.stack([np.interp(fpr, below, at) for at, below in self._tables])
        gap = near + far  # above 0: the canary would make fewer errors with so little noise
        last = np.clip((gap > 0).sum(0) - 1, 0, len(NOISES) - 2)
        index = np.arange(len(fpr))
        above, under = gap[last, index], gap[last + 1, index]
        share = np.clip(np.where(above > under, above / np.where(above > under, above - under, 1.0), 0.0), 0.0, 1.0)
        share = np.where(fpr + fnr >= 1, 1.0, share)
        last = np.where(fpr + fnr >= 1, len(NOISES) - 2, last)
        noise = np.exp((1 - share) * np.log(NOISES[last]) + share * np.log(NOISES[last + 1]))
        middle = (near - far) / 2  # both are the threshold where gap is 0
        return noise, (1 - share) * middle[last, index] + share * middle[last + 1, index]

    @lru_cache(maxsize=8)  # noqa: B019  (the sums are themselves kept)
    def accuracy(self, share: float) -> Array:
        """(noises,) of the guesses of this share of the coins: of the largest scores, by their sign."""
        found = []
        for noise in NOISES:
            ends = np.linspace(0.0, float(self.counts[-1] + 9 * noise), 2001)
            spread = np.full(ends.shape, noise)
            wrong, right = self.cdf(-ends, spread), 1 - self.cdf(ends, spread)
            at = float(np.interp(-share, -(wrong + right), ends))
            found.append(float(np.interp(at, ends, right / np.maximum(wrong + right, 1e-300))))
        return np.minimum.accumulate(np.array(found))


@lru_cache(maxsize=32)
def canary_sums(family: Family) -> _CanarySums:
    """Of a record, or a group of them, each of which joins a batch by itself."""
    draws = family.steps * family.group
    if family.sample_rate == 1:
        return _CanarySums(np.ones(1), np.ones(1))
    joined = distributions.binom(draws, family.sample_rate)
    low, high = (int(joined.ppf(p)) for p in (1e-9, 1 - 1e-9))
    counts = np.arange(low, high + 1)
    weights = joined.pmf(counts)
    parts = np.array_split(np.arange(len(counts)), min(MOST_COUNTS, len(counts)))
    total = np.array([weights[part].sum() for part in parts])
    means = np.array([counts[part] @ weights[part] for part in parts]) / total
    mean = family.sample_rate * draws
    return _CanarySums(means / mean, total / total.sum())


class _Test:
    """Which numbers of errors give a bound above the claim, of a method at so many runs and a confidence."""

    def __init__(self, method: BoundMethod, excess: Excess, negatives: int, positives: int, confidence: float) -> None:
        self.negatives, self.positives = negatives, positives
        self.confidence, self.method, self.excess = confidence, method, excess

    @cached_property
    def can_exceed(self) -> bool:
        """Without any error, the bound would be above the claim."""
        return bool(self._limited(np.zeros(1))[0] >= 0)

    def most(self, false_positives: NDArray[np.int_]) -> NDArray[np.int_]:
        """(...,) the most false negatives beside so many false positives with which it is; -1: none.

        Interpolated where there are many runs.
        """
        return np.asarray(np.floor(np.interp(false_positives, *self._knots) + 1e-9), dtype=np.int_)

    @cached_property
    def _knots(self) -> tuple[Array, Array]:
        at = np.unique(np.geomspace(1, self.negatives + 1, 400).round()) - 1
        return at, self._limited(at)

    def _limited(self, false_positives: Array) -> Array:
        """The most false negatives: the limit of k is below a rate where P(X <= k) is below its tail."""
        tail = (1 - self.confidence) / 2
        rest = self.negatives - false_positives
        fpr = np.where(rest > 0, betaincinv(false_positives + 1, np.maximum(rest, 1), 1 - tail), 1.0)
        allowed = np.clip(self._allowed(fpr), 0.0, 1.0)
        return np.asarray(distributions.binom.ppf(tail, self.positives, allowed) - 1)

    def _allowed(self, fpr: Array) -> Array:
        """(k,) false-negative rates below which the claim is refuted."""
        e, delta = self.excess.claimed, self.excess.delta
        if self.method == "clopper-pearson":
            return np.maximum(1 - delta - math.exp(e) * fpr, (1 - delta - fpr) * math.exp(-e))
        if self.method == "gdp" or self.excess.family.is_gaussian:
            return np.asarray(ndtr(-ndtri(fpr) - 1 / get_sigma_gaussian(e, delta)))
        return np.asarray(_claimed_curve(self.excess)(fpr))

    def power(self, fpr: Array, fnr: Array) -> Array:
        """(...,) probability of a bound above the claim at these error rates."""
        shape, fpr, fnr = fpr.shape, fpr.reshape(-1, 1), fnr.reshape(-1, 1)
        spread = np.sqrt(self.negatives * fpr * (1 - fpr)) + 1
        low = np.maximum(np.floor(self.negatives * fpr - 6 * spread), -1.0)
        high = np.minimum(np.ceil(self.negatives * fpr + 6 * spread), self.negatives)
        ends = np.floor(low + (high - low) * np.linspace(0, 1, POINTS)).astype(int)
        mass = np.diff(_binomial_cdf(ends, self.negatives, fpr), axis=1, prepend=0.0)
        first = np.concatenate([ends[:, :1], ends[:, :-1] + 1], axis=1)  # of the numbers of errors up to each end
        shown = [_binomial_cdf(self.most(np.maximum(at, 0)), self.positives, fnr) for at in (first, ends)]
        found = (mass * (shown[0] + shown[1]) / 2).sum(1)
        return np.asarray(np.clip(found, 0.0, 1.0).reshape(shape))


def _binomial_cdf(most: NDArray[np.int_], trials: int, rate: Array) -> Array:
    """Probability of at most so many."""
    inside = np.clip(most, 0, trials - 1)
    found = betainc(trials - inside, inside + 1, 1 - rate)
    return np.where(most < 0, 0.0, np.where(most >= trials, 1.0, found))


def _posterior(errors: int, runs: int) -> Array:
    """(NODES,) points of equal probability of Beta(errors + 1/2, others + 1/2)."""
    return np.asarray(betaincinv(errors + 0.5, runs - errors + 0.5, (np.arange(NODES) + 0.5) / NODES))


def _claimed_curve(excess: Excess) -> TradeOff:
    assert excess.limit is not None
    return trade_off(excess.limit, excess.delta, excess.family.group)


@lru_cache(maxsize=1024)
def _noise_of(epsilon: float, delta: float, mechanism: Steps, adjacency: Adjacency, group: int) -> float | None:
    """The noise multiplier with which the mechanism spends epsilon, to about .2 %; None: none does."""

    def spent(log_noise: float) -> float:
        return epsilon_of([replace(mechanism, noise_multiplier=math.exp(log_noise))], delta, adjacency, group=group)

    low = high = math.log(mechanism.noise_multiplier)
    if spent(low) > epsilon:
        while spent(high) > epsilon:
            low, high = high, high + 0.5
            if high > 30:
                return None
    else:
        while spent(low) <= epsilon:
            low, high = low - 0.5, low
            if low < -8:
                return None
    while high - low > 2e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return math.exp((low + high) / 2)
