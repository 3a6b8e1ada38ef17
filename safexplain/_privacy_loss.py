"""What differentially private training spends, under every adjacency at once.

Composition is numeric, by privacy loss distributions (Koskela, Jalkoe and Honkela 2020, arXiv 1906.03049; Doroshenko et
al. 2022, arXiv 2207.04380) of dp-accounting. Every number is an upper bound, about 3e-4 above the exact one. Renyi
accounting is not used: in dp-accounting 0.6 it leaves out that substitution changes the sum by 2C
(google/differential-privacy issue 378).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.optimize import brentq

from safexplain.adjacency import Adjacency, Sampling, check_adjacency, check_sampling
from safexplain.errors import ConfigurationError, ConfigurationTypeError, WeakDeltaWarning
from safexplain.pairs import grid_interval, one_step, typical_loss

ROUNDING = 5e-16
"""By how much a step's rounding in the Fourier transforms may lower delta; taken off the delta that is asked for."""

VACUOUS = 500.0
"""Epsilons above are given as infinite: they would promise nothing, and their exponentials overflow."""

SMALLEST_DELTA = 1e-12
"""Below this the mass that composition cuts off (1e-15 a product) would no longer be small beside delta."""


@dataclass(frozen=True)
class Steps:
    """A number of equal steps of the sampled Gaussian mechanism.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients over the clip bound C; 0 for
            training without noise.
        sample_rate: q, the probability that a given record is in a given batch, in (0, 1].
        steps: how many, at least 0.
        sampling: "poisson"; "fixed-size" (uniform subsets without replacement, q = size / records); or "full-batch"
            (q must be 1).

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    sampling: Sampling = "poisson"

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        _check_number("noise_multiplier", self.noise_multiplier, 0.0, math.inf)
        _check_number("sample_rate", self.sample_rate, 0.0, 1.0)
        if self.sample_rate == 0:
            raise ConfigurationError("sample_rate: expected a number in (0, 1], got 0; no record would be in any batch")
        if self.sampling == "full-batch" and self.sample_rate != 1:
            raise ConfigurationError(f'sampling="full-batch" has sample_rate 1, got {self.sample_rate!r}')
        if isinstance(self.steps, bool) or self.steps != int(self.steps) or self.steps < 0:
            raise ConfigurationError(f"steps: expected a whole number of at least 0, got {self.steps!r}")


@dataclass(frozen=True)
class Epsilons:
    """Epsilon under each adjacency, at one delta; all hold at once.

    Args:
        add_remove: one record more or less.
        substitute: one record's features and label replaced by any others.
        zero_out: one record replaced by an empty one, the number of records being public.
        delta: the delta of each.
    """

    add_remove: float
    substitute: float
    zero_out: float
    delta: float

    def of(self, adjacency: Adjacency) -> float:
        """The one under this adjacency."""
        check_adjacency(adjacency)
        return float(getattr(self, adjacency))

    def __str__(self) -> str:
        return (
            f"epsilon {self.add_remove:.3f} (one record added or removed), {self.substitute:.3f} (one record"
            f" substituted) at delta {self.delta:g}"
        )


def epsilons(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, sampling: Sampling = "poisson"
) -> Epsilons:
    """Epsilon of `steps` steps of the sampled Gaussian mechanism, under each adjacency.

    It holds for batches drawn as `sampling` says and hidden, sums divided by a public constant, and noise on the sum
    of gradients each clipped to norm C.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over C; 0 gives infinite epsilon.
        sample_rate: q, from the data actually trained on: expected batch size over number of records.
        steps: of the optimizer.
        delta: in (0, 1), smaller than one over the number of records.
        sampling: "poisson", "fixed-size" or "full-batch".

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.

    Example:
        >>> spent = epsilons(noise_multiplier=5.5728, sample_rate=0.25, steps=500, delta=1e-5)
        >>> f"{spent.add_remove:.2f} {spent.substitute:.2f}"
        '4.48 10.00'
    """
    return composed([Steps(noise_multiplier, sample_rate, steps, sampling)], delta)


def composed(phases: Sequence[Steps], delta: float) -> Epsilons:
    """Epsilon of several runs of steps on the same records, one after another, under each adjacency.

    Raises:
        ConfigurationError: delta is out of range.
    """
    check_delta(delta)
    add_remove = epsilon_of(phases, delta, "add_remove")
    substitute = max(epsilon_of(phases, delta, "substitute"), add_remove)  # it is never less, but for rounding
    fixed = any(p.sampling == "fixed-size" and p.sample_rate < 1 for p in phases)
    return Epsilons(add_remove, substitute, substitute if fixed else add_remove, float(delta))


def epsilon_of(phases: Sequence[Steps], delta: float, adjacency: Adjacency) -> float:
    """Epsilon under one adjacency; arguments as for `composed`."""
    phases = [p for p in phases if p.steps]
    if not phases:
        return 0.0
    if any(p.noise_multiplier == 0 for p in phases):
        return math.inf
    if all(p.sample_rate == 1 for p in phases):
        distance = math.sqrt(sum(p.steps / p.noise_multiplier**2 for p in phases))
        return float(get_epsilon_gaussian(1 / (distance * (2 if adjacency == "substitute" else 1)), delta))
    if any(typical_loss(p.noise_multiplier, p.sample_rate, p.steps, p.sampling) > VACUOUS for p in phases):
        return math.inf
    slack = ROUNDING * sum(p.steps for p in phases)
    if slack > delta / 10:
        raise ConfigurationError(
            f"delta {delta:g} is too small for {sum(p.steps for p in phases):,} steps: rounding alone could cost"
            f" {slack:.1g}; use at least {10 * slack:.1g}"
        )
    epsilon = float(_loss(tuple(phases), adjacency).get_epsilon_for_delta(delta - slack))
    return max(epsilon, 0.0) if epsilon <= VACUOUS else math.inf


def group_privacy_epsilon(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, sampling: Sampling = "poisson"
) -> float:
    """Epsilon under substitution as add/remove accounting alone gives it, by group privacy; for comparison only.

    A substitution is a removal and an addition: (e, d) under add/remove gives (2 e, (1 + exp(e)) d) under substitution
    (Dwork and Roth 2014, Theorem 2.2). `epsilons(...).substitute` is the better bound. Doubling epsilon at the same
    delta is no bound at all.

    Args:
        noise_multiplier: as for `epsilons`.
        sample_rate: as for `epsilons`.
        steps: as for `epsilons`.
        delta: as for `epsilons`.
        sampling: as for `epsilons`.

    Raises:
        ConfigurationError: as for `epsilons`.
    """
    check_delta(delta)
    phase = Steps(noise_multiplier, sample_rate, steps, sampling)
    if steps == 0 or noise_multiplier == 0:
        return 0.0 if steps == 0 else math.inf
    loss = _loss((phase,), "add_remove")

    def excess(epsilon: float) -> float:
        return float(loss.get_delta_for_epsilon(epsilon)) * (1 + math.exp(min(epsilon, 700))) - delta

    top = 1.0
    while excess(top) > 0:
        if top > 600:
            return math.inf
        top *= 2
    return 2 * float(brentq(excess, 0.0, top, xtol=1e-6)) if excess(0.0) > 0 else 0.0


def check_delta(delta: float, records: int | None = None) -> None:
    """Raise ConfigurationError unless delta lies in [1e-12, 1); warn where it is weak for so many records.

    Args:
        delta: the delta of a guarantee.
        records: size of the training data, if known.
    """
    _check_number("delta", delta, 0.0, 1.0)
    if not SMALLEST_DELTA <= delta < 1:
        raise ConfigurationError(
            f"delta: expected a number in [{SMALLEST_DELTA:g}, 1), got {delta!r}; customary is at most one over ten"
            " times the number of records"
        )
    if records is not None and delta * records >= 1:
        warnings.warn(
            f"delta {delta:g} is at least one over the {records:,} records: publishing one record outright, chosen at"
            f" random, would meet it. Use at most {0.1 / records:.1g}",
            WeakDeltaWarning,
            stacklevel=3,
        )


def _check_number(name: str, value: float, low: float, high: float) -> None:
    try:
        if isinstance(value, bool | str | bytes):  # which float() takes
            raise TypeError
        value = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationTypeError(f"{name}: expected a number, got {value!r}") from None
    if not low <= value <= high or math.isinf(value):
        raise ConfigurationError(f"{name}: expected a finite number from {low:g} to {high:g}, got {value!r}")


@lru_cache(maxsize=64)
def _loss(phases: tuple[Steps, ...], adjacency: Adjacency) -> PrivacyLossDistribution:
    steps = sum(p.steps for p in phases)
    interval = min(grid_interval(p.noise_multiplier, p.sample_rate, steps, p.sampling) for p in phases)
    whole: PrivacyLossDistribution | None = None
    with np.errstate(over="ignore"):  # in scipy's logsumexp, of terms that are then weighted by zero
        for p in phases:
            loss = one_step(p.noise_multiplier, p.sample_rate, adjacency, p.sampling, interval).self_compose(p.steps)
            whole = loss if whole is None else whole.compose(loss)
    return whole
