"""The epsilons of differentially private training under every adjacency, without torch; all are upper bounds.

Composition is numeric, by privacy loss distributions (Koskela, Jalkoe and Honkela 2020, arXiv 1906.03049; Doroshenko et
al. 2022, arXiv 2207.04380; `distributions`): about 3e-4 above the exact.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from dp_accounting import get_epsilon_gaussian
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from safexplain._privacy_loss.distributions import CELLS, LARGEST_LOSS, Losses, Pair, compose
from safexplain._privacy_loss.distributions import VACUOUS as VACUOUS
from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, WeakDeltaWarning

Array = NDArray[np.float64]

Adjacency = Literal["add_remove", "substitute", "zero_out"]
"""One record present or absent; one record replaced by any other; one record or an empty one."""

Sampling = Literal["poisson", "fixed-size", "full-batch"]
"""Each record joins each batch independently; a uniform subset of fixed size; all in every batch."""

PROTECTS: dict[Adjacency, str] = {
    "add_remove": "whether a record was in the training data",
    "substitute": "a record's features and label, even if it is known that the record was in the data",
    "zero_out": "whether a record or an empty one was used, given the number of records",
}
"""What an observer of the trained model cannot learn, up to epsilon and delta; saved guarantees quote these texts."""

ROUNDING = 5e-16
"""The largest decrease of delta by rounding in the Fourier transforms of a step; subtracted from the given delta."""

SMALLEST_DELTA = 1e-12
"""Below, the mass that composition cuts off (1e-15 per product) would not be negligible."""

ERROR = 3e-4
"""The approximate increase of epsilon by discretisation; it never decreases."""

MAX_STEPS = 10**12
MAX_RECORDS = 10**15

MIN_NOISE = 1e-8
"""A smaller noise multiplier counts as none."""

MAX_KINDS = 32
"""Largest number of different kinds of steps in one composition; above, similar kinds count as the worst of them."""


def check_adjacency(adjacency: str) -> None:
    """Raise ConfigurationError unless it is one of `Adjacency`."""
    if adjacency not in get_args(Adjacency):
        raise ConfigurationError(f"adjacency: expected one of {', '.join(get_args(Adjacency))}, got {adjacency!r}")


@dataclass(frozen=True)
class Steps:
    """A number of equal steps of the sampled Gaussian mechanism.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of clipped gradients over the clip bound C; 0 for
            training without noise.
        sample_rate: q, the probability that a given record is in a given batch, in (0, 1].
        steps: how many, at least 0.
        sampling: "poisson"; "fixed-size" (uniform subsets without replacement, q = size / records); or
            "full-batch" (q must be 1).

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int
    sampling: Sampling = "poisson"

    def __post_init__(self) -> None:
        if self.sampling not in get_args(Sampling):
            raise ConfigurationError(
                f"sampling: expected one of {', '.join(get_args(Sampling))}, got {self.sampling!r}. The epsilon of"
                " Poisson batches can be far too small for shuffled ones (Chua et al. 2024, arXiv 2403.17673): draw"
                ' Poisson batches, or count each epoch as one step with sampling="full-batch"'
            )
        check_number("noise_multiplier", self.noise_multiplier, minimum=0.0)
        if not 0 < check_number("sample_rate", self.sample_rate) <= 1:
            raise ConfigurationError(f"sample_rate: expected a number in (0, 1], got {self.sample_rate!r}")
        if self.sampling == "full-batch" and self.sample_rate != 1:
            raise ConfigurationError(f'sample_rate: expected 1 with sampling="full-batch", got {self.sample_rate!r}')
        steps: object = self.steps
        count = whole_number("steps", int(steps) if isinstance(steps, float) and steps.is_integer() else steps, 0)
        if count > MAX_STEPS:
            raise ConfigurationError(f"steps: expected at most {MAX_STEPS:g}, got {count:g}")


@dataclass(frozen=True)
class Epsilons:
    """Epsilon at one delta for a record added or removed, replaced by any other, or replaced by an empty one.

    For the last, the number of records is public.
    """

    add_remove: float
    substitute: float
    zero_out: float
    delta: float

    def of(self, adjacency: Adjacency) -> float:
        """Epsilon under this adjacency."""
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

    It assumes secret batches, noise on the sum of gradients each clipped to norm C, and division by a public constant.

    Args:
        noise_multiplier: standard deviation of the noise on the sum over C; 0 gives infinite epsilon.
        sample_rate: q, from the data actually trained on: expected batch size over number of records.
        steps: of the optimizer.
        delta: in [1e-12, 1), smaller than one over the number of records.
        sampling: as in `Steps`, whose errors apply.

    Example:
        >>> spent = epsilons(noise_multiplier=5.5728, sample_rate=0.25, steps=500, delta=1e-5)
        >>> f"{spent.add_remove:.2f} {spent.substitute:.2f}"
        '4.48 10.00'
    """
    return composed([Steps(noise_multiplier, sample_rate, steps, sampling)], delta)


def composed(phases: Sequence[Steps], delta: float) -> Epsilons:
    """Epsilon of several runs of steps on the same records, one after another, under each adjacency.

    Raises:
        ConfigurationError: delta is not in [1e-12, 1).
        ConfigurationTypeError: phases are not a list of `Steps`.
    """
    check_delta(delta)
    if not isinstance(phases, list | tuple) or not all(isinstance(phase, Steps) for phase in phases):
        raise ConfigurationTypeError(f"phases: expected a list of Steps(...), got {phases!r:.80}")
    add_remove = epsilon_of(phases, delta, "add_remove")
    # substitution never spends less, except by rounding
    substitute = max(epsilon_of(phases, delta, "substitute"), add_remove)
    fixed = any(p.sampling == "fixed-size" and p.sample_rate < 1 for p in phases)
    return Epsilons(add_remove, substitute, substitute if fixed else add_remove, float(delta))


@np.errstate(all="ignore")  # overflow counts as an infinite loss
def epsilon_of(phases: Sequence[Steps], delta: float, adjacency: Adjacency) -> float:
    """Epsilon under one adjacency; arguments as for `composed`."""
    check_adjacency(adjacency)
    phases = [p for p in phases if p.steps]
    if any(p.noise_multiplier < MIN_NOISE for p in phases):
        return math.inf
    if all(p.sample_rate == 1 for p in phases):
        distance = math.hypot(*(math.sqrt(p.steps) / p.noise_multiplier for p in phases))
        distance *= 2 if adjacency == "substitute" else 1
        if distance > 1e4 or distance == 0:
            return math.inf if distance else 0.0
        return float(get_epsilon_gaussian(1 / distance, delta))
    if sum(p.steps * pair_of(p).total_variation(adjacency) for p in phases) <= delta:
        return 0.0
    if any(typical_loss(p) > VACUOUS for p in phases):
        return math.inf
    steps = sum(p.steps for p in phases if p.sample_rate < 1)
    slack = ROUNDING * steps
    if slack > delta / 10:
        raise ConfigurationError(
            f"delta: expected at least {10 * slack:.1g} for {steps:,} steps, whose rounding could cost {slack:.1g}, got"
            f" {delta:g}"
        )
    epsilon = _loss(tuple(phases), adjacency).epsilon(delta - slack)
    return epsilon if epsilon <= VACUOUS else math.inf


def renyi(phase: Steps, adjacency: Adjacency, orders: ArrayLike) -> Array:
    """(n,) Renyi differential privacy (Mironov 2017, arXiv 1702.07476) of all steps of a phase, at each order.

    By quadrature of the dominating pair; infinite without noise. Curves of releases about the same records add up. A
    full batch is rho-zCDP with rho = renyi(...) / order at every order.

    Raises:
        ConfigurationError: an order of at most 1.

    Example:
        >>> renyi(Steps(4.0, 1.0, 8, "full-batch"), "substitute", [2, 10]).tolist()  # order * 2^2 * 8 / (2 * 4^2)
        [2.0, 10.0]
    """
    check_adjacency(adjacency)
    orders = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if not (orders > 1).all() or not np.isfinite(orders).all():
        raise ConfigurationError(f"orders: expected finite numbers above 1, got {orders.tolist()!r:.80}")
    if phase.steps == 0 or phase.noise_multiplier < MIN_NOISE:
        return np.full(orders.shape, 0.0 if phase.steps == 0 else np.inf)
    if phase.sample_rate == 1:
        distance = (2 if adjacency == "substitute" else 1) / phase.noise_multiplier
        return np.asarray(orders * phase.steps * distance**2 / 2)
    pair = pair_of(phase)
    with np.errstate(all="ignore"):
        return np.array([phase.steps * pair.renyi(float(order), adjacency) for order in orders])


def group_privacy_epsilon(
    noise_multiplier: float, sample_rate: float, steps: int, delta: float, *, sampling: Sampling = "poisson"
) -> float:
    """Epsilon under substitution by group privacy from add/remove accounting, looser than `epsilons`; for comparison.

    A substitution is a removal and an addition: (e, d) under add/remove implies (2 e, (1 + exp(e)) d) under
    substitution (Dwork and Roth 2014, Theorem 2.2); (2 e, d) does not follow. Arguments and errors as for `epsilons`.
    """
    check_delta(delta)
    phase = Steps(noise_multiplier, sample_rate, steps, sampling)
    if steps == 0 or noise_multiplier < MIN_NOISE:
        return 0.0 if steps == 0 else math.inf
    loss = _loss((phase,), "add_remove")

    def excess(epsilon: float) -> float:
        return float(loss.delta(epsilon)) * (1 + math.exp(epsilon)) - delta

    top = 1.0
    while excess(top) > 0:
        top *= 2
        if top > 2 * VACUOUS:
            return math.inf
    return 2 * float(brentq(excess, 0.0, top, xtol=1e-6)) if excess(0.0) > 0 else 0.0


def check_delta(delta: float, records: int | None = None) -> None:
    """Raise ConfigurationError unless delta is in [1e-12, 1); warn if it is weak for this number of records."""
    check_number("delta", delta)
    if not SMALLEST_DELTA <= delta < 1:
        raise ConfigurationError(
            f"delta: expected a number in [{SMALLEST_DELTA:g}, 1), got {delta!r}; use at most a tenth of one over the"
            " number of records"
        )
    if records is not None and delta * records >= 1:
        warnings.warn(
            f"delta {delta:g} is at least one over the {records:,} records, so publishing a random record in full would"
            f" satisfy the guarantee; use at most {0.1 / records:.1g}",
            WeakDeltaWarning,
            stacklevel=3,
        )


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """The privacy losses of steps: of the dominating pair, and of the reverse pair if it differs."""

    directions: tuple[Losses, ...]

    def delta(self, epsilon: ArrayLike) -> Array:
        """(n,) or () upper bound on delta at each epsilon."""
        return np.asarray(np.max([losses.delta(epsilon) for losses in self.directions], axis=0))

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at a delta; may be infinite."""
        return max(losses.epsilon(delta) for losses in self.directions)


def one_step(phase: Steps, adjacency: Adjacency, width: float) -> PrivacyLoss:
    """The privacy losses of one step of a phase, from its exact privacy profile, on a grid of `width` nats."""
    pair = pair_of(phase)
    (up, both), low = pair.largest, pair.smallest
    if adjacency == "substitute" or (adjacency == "zero_out" and pair.fixed_size):
        return PrivacyLoss((Losses.of_profile(pair.substitution, -both, both, width),))
    removal = Losses.of_profile(pair.removal, low, up, width)
    return PrivacyLoss((removal, Losses.of_profile(pair.addition, -up, -low, width)))


def privacy_loss(phases: Sequence[Steps], adjacency: Adjacency, *, error: float = ERROR) -> PrivacyLoss:
    """The losses of all steps of phases with noise; a phase that needs a finer grid than the total is composed on its
    own grid first and then moved to the common one."""
    kinds = _merged(phases)
    common, widths = grid_widths(kinds, error)
    parts: list[tuple[tuple[Losses, ...], int]] = []
    with np.errstate(all="ignore"):
        for (kind, steps), width in zip(kinds, widths, strict=True):
            if width < common and steps > 1:
                parts.append((tuple(compose([(x, steps)]) for x in one_step(kind, adjacency, width).directions), 1))
            else:
                parts.append((one_step(kind, adjacency, common).directions, steps))
        widest = max(x.width for directions, _ in parts for x in directions)
        return PrivacyLoss(
            tuple(
                compose([(d[min(direction, len(d) - 1)].coarser(widest), n) for d, n in parts])
                for direction in range(max(len(d) for d, _ in parts))
            )
        )


def _merged(phases: Sequence[Steps]) -> list[tuple[Steps, int]]:
    """At most `MAX_KINDS` kinds of steps with their numbers, similar ones with their smallest noise and highest rate,
    and all full batches as one Gaussian step."""
    kinds: Counter[Steps] = Counter()
    precision = 0.0
    for p in phases:
        if p.sample_rate == 1:
            precision += p.steps / p.noise_multiplier / p.noise_multiplier  # the square could overflow
        else:
            kinds[replace(p, steps=1)] += int(p.steps)
    step = 1e-3
    while len(kinds) > MAX_KINDS:
        similar: dict[tuple[Sampling, int, int], list[tuple[Steps, int]]] = {}
        for p, n in kinds.items():
            noise, rate = (math.floor(math.log(x) / step) for x in (p.noise_multiplier, p.sample_rate))
            similar.setdefault((p.sampling, noise, rate), []).append((p, n))
        kinds = Counter()
        for (sampling, _, _), like in similar.items():
            least, highest = min(p.noise_multiplier for p, _ in like), max(p.sample_rate for p, _ in like)
            kinds[Steps(least, highest, 1, sampling)] += sum(n for _, n in like)
        step *= 1.5
    full = [(Steps(1 / math.sqrt(precision), 1.0, 1, "full-batch"), 1)] if precision else []
    return [*kinds.items(), *full]


def grid_widths(kinds: Sequence[tuple[Steps, int]], error: float) -> tuple[float, list[float]]:
    """Grid widths for the total and for the single steps of each phase, at which epsilon increases by about `error`.

    Splitting a loss l over an interval of width v adds at most v^2, and about v |l|, to its variance. Variance added to
    a total of standard deviation sd raises epsilon by about half of it over sd.
    """
    pairs, steps = [pair_of(kind) for kind, _ in kinds], [n for _, n in kinds]
    sd = max(math.sqrt(sum(n * p.moments[1] ** 2 for p, n in zip(pairs, steps, strict=True))), 1e-300)
    total = sum(n * p.moments[0] for p, n in zip(pairs, steps, strict=True)) + 4 * sd
    allowed = 2 * sd * error * max(min(total, 1.0), total / 10)
    widest = min(max(1.0, total) / 50, sd / 2)
    reaches = [sum(min(end, LARGEST_LOSS) for end in p.largest) for p in pairs]
    finest = max(20 * sd, 4 * max(reaches)) / CELLS
    together = math.sqrt(allowed / sum(steps))
    if len(kinds) == 1 or together >= finest:
        together = max(min(together, widest), finest)
        return together, [together] * len(kinds)
    common = max(min(math.sqrt(allowed / (2 * len(kinds))), widest), finest)
    widths = []
    for pair, n, reach in zip(pairs, steps, reaches, strict=True):
        floor = max(20 * math.sqrt(n) * pair.moments[1], 4 * reach) / CELLS
        split = max(math.sqrt(allowed / (2 * len(kinds) * n)), allowed / (2 * len(kinds) * n) / pair.moments[2])
        widths.append(max(min(split, widest), floor))
    return common, widths


@lru_cache(maxsize=64)
def _loss(phases: tuple[Steps, ...], adjacency: Adjacency) -> PrivacyLoss:
    return privacy_loss(phases, adjacency)


@lru_cache(maxsize=1024)
def pair_of(phase: Steps) -> Pair:
    """The dominating pair of a phase's steps."""
    return Pair(float(phase.noise_multiplier), float(phase.sample_rate), phase.sampling)


def typical_loss(phase: Steps) -> float:
    """The mean privacy loss of all steps, in nats, for a removed record; at any small delta, epsilon is larger."""
    return phase.steps * pair_of(phase).moments[0]


# --- the noise that a budget requires, and the steps that it allows ---------------------------------------------------


SMALLEST_SIGMA, LARGEST_SIGMA = 1e-6, 1e7
MOST_STEPS = 10_000_000


def noise_multiplier(
    target_epsilon: float,
    sample_rate: float,
    steps: int,
    delta: float,
    adjacency: Adjacency = "substitute",
    *,
    sampling: Sampling = "poisson",
) -> float:
    """The smallest noise multiplier with which `steps` steps spend at most `target_epsilon`, to a relative 1e-4: the
    standard deviation of the noise on the sum of clipped gradients, over the clip bound.

    Args:
        target_epsilon: the budget, above 0.
        sample_rate: q, from the data actually trained on: expected batch size over number of records.
        steps: of the optimizer, at least 1.
        delta: in (0, 1), smaller than one over the number of records.
        adjacency: under which the budget is meant; "substitute" protects the content of a record, "add_remove" only its
            presence.
        sampling: "poisson", "fixed-size" or "full-batch".

    Raises:
        ConfigurationError: a value out of range, or no noise multiplier up to 1e7 is enough.

    Example:
        >>> f"{noise_multiplier(10, sample_rate=0.25, steps=500, delta=1e-5, adjacency='substitute'):.2f}"
        '5.57'
    """
    check_delta(delta)
    check_adjacency(adjacency)
    check_number("target_epsilon", target_epsilon, above=0.0)
    phase = Steps(1.0, sample_rate, steps, sampling)
    if phase.steps == 0:
        raise ConfigurationError("steps: expected at least 1, got 0, which needs no noise")

    def excess(log_sigma: float) -> float:
        epsilon = epsilon_of([replace(phase, noise_multiplier=math.exp(log_sigma))], delta, adjacency)
        return min(math.log(max(epsilon, 1e-12) / target_epsilon), 50.0)

    guess = math.log(max(sample_rate * math.sqrt(2 * steps * math.log(1.25 / delta)) / target_epsilon, 0.3))
    low, high = _bracket(excess, guess)
    found = float(brentq(excess, low, high, xtol=2e-5))
    while excess(found) > 0:
        found += 1e-5
    return math.exp(found)


def steps_within(
    target_epsilon: float,
    noise_multiplier: float,
    sample_rate: float,
    delta: float,
    adjacency: Adjacency = "substitute",
    *,
    sampling: Sampling = "poisson",
) -> int:
    """The largest number of steps, up to ten million, that spend at most `target_epsilon`; 0 if one step spends more.

    Above 10,000 steps it is rounded down by at most one part in 5,000. Arguments and errors as for `noise_multiplier`.
    """
    check_delta(delta)
    check_adjacency(adjacency)
    check_number("target_epsilon", target_epsilon, above=0.0)

    def within(steps: int) -> bool:
        phase = Steps(noise_multiplier, sample_rate, steps, sampling)
        return epsilon_of([phase], delta, adjacency) <= target_epsilon

    low, high = 0, 1
    while within(high):
        if high == MOST_STEPS:
            return high
        low, high = high, min(2 * high, MOST_STEPS)
    while high - low > (low // 5000 if low > 10_000 else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _bracket(excess: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Logarithms of noise multipliers that spend too much and little enough."""
    step, high = 0.25, min(guess, math.log(LARGEST_SIGMA))
    while excess(high) > 0:
        if high >= math.log(LARGEST_SIGMA):
            raise ConfigurationError(
                f"target_epsilon: even a noise multiplier of {LARGEST_SIGMA:g} spends more; use fewer steps, more"
                " records, or a larger epsilon or delta"
            )
        high, step = min(high + step, math.log(LARGEST_SIGMA)), step * 2
    low, step = high, 0.25
    while excess(low) <= 0:
        if low <= math.log(SMALLEST_SIGMA):
            raise ConfigurationError(
                "delta: expected much less than the probability that a given record is in any batch, as here training"
                " without noise would meet the guarantee"
            )
        low, step = max(low - step, math.log(SMALLEST_SIGMA)), step * 2
    return low, high
