"""What differentially private training spends, under every adjacency at once.

Read from the top: what neighbouring data sets differ in and how batches are drawn (`Adjacency`, `Sampling`); a number
of equal `Steps` and the `Epsilons` that they spend (`epsilons`, `composed`); and, at the end, the privacy loss of one
step (`one_step`), from which all follows. `safexplain.dp.accounting` calibrates noise to a budget with it, and
`safexplain.verdict.privacy_statement` states what was spent.

Composition is numeric, by privacy loss distributions (Koskela, Jalkoe and Honkela 2020, arXiv 1906.03049; Doroshenko et
al. 2022, arXiv 2207.04380) of dp-accounting. Every number is an upper bound, about 3e-4 above the exact one. Renyi
accounting is not used: in dp-accounting 0.6 it leaves out that substitution changes the sum by 2C
(google/differential-privacy issue 378).

One step is dominated by a pair of distributions. One record changes the sum of clipped gradients by a vector of norm at
most C when it is added, removed or emptied, and at most 2C when it is substituted. Noise of standard deviation
`noise_multiplier * C` is added to the sum; below C = 1.

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
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from dp_accounting import get_epsilon_gaussian
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationError, WeakDeltaWarning

Array = NDArray[np.float64]

Adjacency = Literal["add_remove", "substitute", "zero_out"]
"""One record present or absent; one record's value, label or attributes anything; one record or an empty one."""

Sampling = Literal["poisson", "fixed-size", "full-batch"]
"""Each record joins each batch independently with probability q; a uniform subset of fixed size; all in every batch."""

PROTECTS: dict[Adjacency, str] = {
    "add_remove": "whether a record was in the training data",
    "substitute": "what a record's features and label are, though it be known that it was there",
    "zero_out": "whether a record or an empty one stood in its place, the number of records being known",
}
"""What an observer of the trained model cannot tell, up to epsilon and delta."""

SHUFFLED = (
    "shuffled batches are not accounted: passing over a shuffled data set is not Poisson sampling, and the epsilon of"
    " Poisson sampling can be far too small for it (Chua et al. 2024, arXiv 2403.17673). Draw Poisson batches"
    ' (DPFineTuner and make_private do), or account each epoch as one step with sampling="full-batch", which holds for'
    " any order in which each record is in one batch an epoch"
)

ROUNDING = 5e-16
"""By how much a step's rounding in the Fourier transforms may lower delta; taken off the delta that is asked for."""

VACUOUS = 500.0
"""Epsilons above are given as infinite: they would promise nothing, and their exponentials overflow."""

SMALLEST_DELTA = 1e-12
"""Below this the mass that composition cuts off (1e-15 a product) would no longer be small beside delta."""

ERROR = 3e-4
"""How far discretisation may raise epsilon, about; never lowered: all estimates are pessimistic."""

CELLS = 1_000_000
"""Most intervals that the losses of one step may be split into; finer would be slow and need much memory."""

COMPOSED_CELLS = 4_000_000
"""Intervals that the losses of all steps together are split into, at most about."""

TAIL = 9.0
"""Losses of noise beyond so many standard deviations (probability 1e-19) count as infinite."""


def check_adjacency(adjacency: str) -> None:
    """Raise ConfigurationError unless it is one of `Adjacency`."""
    if adjacency not in get_args(Adjacency):
        raise ConfigurationError(f"adjacency: expected one of {', '.join(get_args(Adjacency))}, got {adjacency!r}")


def check_sampling(sampling: str) -> None:
    """Raise ConfigurationError unless it is one of `Sampling`; shuffling is refused with the reason."""
    if sampling in ("shuffle", "shuffled", "shuffling"):
        raise ConfigurationError(SHUFFLED)
    if sampling not in get_args(Sampling):
        raise ConfigurationError(f"sampling: expected one of {', '.join(get_args(Sampling))}, got {sampling!r}")


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
        check_number("noise_multiplier", self.noise_multiplier, minimum=0.0)
        if not 0 < check_number("sample_rate", self.sample_rate) <= 1:
            raise ConfigurationError(
                f"sample_rate: expected a number in (0, 1], got {self.sample_rate!r}"
                + ("; no record would be in any batch" if self.sample_rate == 0 else "")
            )
        if self.sampling == "full-batch" and self.sample_rate != 1:
            raise ConfigurationError(f'sampling="full-batch" has sample_rate 1, got {self.sample_rate!r}')
        steps: object = self.steps
        whole_number("steps", int(steps) if isinstance(steps, float) and steps.is_integer() else steps, 0)


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
    delta is no bound at all. Arguments and errors as for `epsilons`.
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
    check_number("delta", delta)
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
