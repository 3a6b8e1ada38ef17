"""The best of a random number of trainings: what is spent when hyper-parameters are chosen by their results.

Taking the best of a fixed number of private trainings tells more than any one of them. If their number K is itself
drawn at random, the best costs only about two to three times as much (Liu and Talwar 2019, arXiv 1811.07971). In Renyi
terms
(Papernot and Steinke 2022, arXiv 2110.03620), for trainings with (order, r)-Renyi privacy at every order,

- K from a truncated negative binomial distribution of shape s and stopping probability g (Theorem 2; geometric for
  s = 1, logarithmic for s = 0):  r(order) + log(E K) / (order - 1) + (1 + s) min over o >= 1 of
  ((1 - 1 / o) r(o) + log(1 / g) / o);
- K from a Poisson distribution (Theorem 6):  r(order) + E K delta(log(1 + 1 / (order - 1))) + log(E K) / (order - 1),
  delta being the profile of one training, which is taken from its privacy losses.

A pure guarantee of e becomes one of (2 + s) e (Theorem 2 at infinite orders). The curves are those of
`safexplain._privacy_loss.renyi`, of the right pair under each adjacency. With truncated batches, the trainings are
those of plain Poisson batches but with a probability of at most E K times that of one training, which delta pays for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import pdtr, pdtrik

from safexplain._privacy_loss.steps import (
    ROUNDING,
    Adjacency,
    Epsilons,
    Steps,
    check_delta,
    epsilon_of,
    privacy_loss,
    renyi,
    truncation,
)
from safexplain._secure_random.generators import Randomness, SecureGenerator
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError

Array = NDArray[np.float64]

Number = Literal["geometric", "poisson", "logarithmic", "truncated-negative-binomial"]
"""The distribution that the number of trainings is drawn from."""

ORDERS = np.concatenate([np.geomspace(1.02, 8.0, 18), np.geomspace(9.0, 400.0, 18)])
"""At which Renyi curves are read; each gives a bound, and the least counts."""

_AT_ONCE = 1 << 14
"""Probabilities that are added up together."""

MOST_PHASES = 8
"""Phases of a training that is repeated; each takes a curve of its own."""


@dataclass(frozen=True)
class RepeatAndSelect:
    """Trainings that are repeated a random number of times, of which only the best is released.

    Draw the number before anything is trained, run all of them, and keep it secret:

        choice = RepeatAndSelect(mean=10)
        runs = [train(options.draw()) for _ in range(choice.draw())]
        best = max(runs, key=score)
        statement = best.statement.selected(choice, [run.statement for run in runs])

    What holds the guarantee: each training draws its options from a public list independently of the others, and has
    the same steps and noise; `score` is computed from what the training puts out, all of which its statement covers:
    from the model on data other than the records, or with noise that its steps pay for. A score on the records
    themselves, or a number of trainings that follows the results, breaks it.

    Args:
        mean: trainings in expectation, from 1 to a million.
        number: the distribution of how many: "geometric"; "poisson", whose number varies less and may be 0 (then
            nothing is released); "logarithmic", or "truncated-negative-binomial" with a `shape`, which costs the less
            the smaller the shape, and varies the more.
        shape: of "truncated-negative-binomial", above 0; geometric is 1, and logarithmic the limit at 0.

    Raises:
        ConfigurationError: a value out of range, or a shape where there is none.
    """

    mean: float
    number: Number = "geometric"
    shape: float | None = None

    def __post_init__(self) -> None:
        if self.number not in get_args(Number):
            raise ConfigurationError(f"number: expected one of {', '.join(get_args(Number))}, got {self.number!r}")
        check_number("mean", self.mean, minimum=1.0)
        if self.mean > 1e6:
            raise ConfigurationError(f"mean: expected at most a million trainings, got {self.mean!r}")
        if (self.shape is not None) != (self.number == "truncated-negative-binomial"):
            raise ConfigurationError(
                f'shape belongs to number="truncated-negative-binomial", got {self.shape!r} with {self.number!r}'
            )
        if self.shape is not None and check_number("shape", self.shape, above=0.0) > 1e3:
            raise ConfigurationError(f'shape: expected at most 1,000, got {self.shape!r}; take number="poisson"')

    @property
    def stopping(self) -> float:
        """Of a truncated negative binomial distribution: the parameter with this mean, not above it."""
        shape = self._shape
        if self.mean == 1:
            return 1.0

        def excess(log_stopping: float) -> float:
            grown = math.expm1(-log_stopping)  # 1 / g - 1
            whole = grown / -log_stopping if shape == 0 else shape * grown / -math.expm1(shape * log_stopping)
            return math.log(whole / self.mean)

        return math.exp(float(brentq(excess, -60.0, -1e-12, xtol=1e-12)) - 1e-11)

    @property
    def _shape(self) -> float:
        return {"geometric": 1.0, "logarithmic": 0.0}.get(self.number, self.shape or 0.0)

    def draw(self, rng: Randomness | None = None) -> int:
        """How many trainings to run; from a cryptographic generator unless another is given (for tests)."""
        uniform = (SecureGenerator() if rng is None else rng).random()
        if self.number == "poisson":
            found = math.ceil(float(pdtrik(uniform, self.mean)))
            one_less = max(found - 1, 0)
            return one_less if float(pdtr(one_less, self.mean)) >= uniform else found
        return 1 if self.mean == 1 else self._quantile(uniform)

    def _quantile(self, level: float) -> int:
        """Of a truncated negative binomial distribution: the least number whose cumulative probability is the level.

        P(k + 1) / P(k) = (1 - g) (k + s) / (k + 1) for shape s, and P(1) = (1 - g) s / (g^-s - 1).
        """
        shape, log_stopping = self._shape, math.log(self.stopping)
        grown = -shape * log_stopping  # log of g^-s
        first = math.log(shape / -math.expm1(-grown)) - grown if shape else -math.log(-log_stopping)
        below, k, log_next = 0.0, 1, first + math.log1p(-self.stopping)
        while True:
            at = np.arange(k, k + _AT_ONCE)
            steps = np.log((at + shape) / (at + 1)) + math.log1p(-self.stopping)
            logs = log_next + np.concatenate([[0.0], np.cumsum(steps)])
            reached = below + np.cumsum(np.exp(logs[:-1]))
            if reached[-1] >= level or (k > self.mean and reached[-1] == reached[0]):
                return k + min(int(np.searchsorted(reached, level)), _AT_ONCE - 1)
            below, k, log_next = float(reached[-1]), k + _AT_ONCE, float(logs[-1])

    def __str__(self) -> str:
        of = f" of shape {self.shape:g}" if self.shape is not None else ""
        return f"the best of a random number of trainings, {self.mean:g} in the mean ({self.number}{of})"


def selected_epsilons(phases: Sequence[Steps], delta: float, selection: RepeatAndSelect) -> Epsilons:
    """Epsilons of the released best of all trainings, each of which takes these phases.

    Raises:
        ConfigurationError: delta is out of range, or there are too many phases.
    """
    check_delta(delta)
    if len(phases) > MOST_PHASES:
        raise ConfigurationError(
            f"phases: a selection is accounted for trainings of at most {MOST_PHASES} phases, got {len(phases)}"
        )
    found: dict[Adjacency, float] = {}
    for adjacency in ("add_remove", "substitute"):
        found[adjacency] = selected_epsilon(phases, delta, selection, adjacency)
    fixed = any(p.sampling == "fixed-size" and p.sample_rate < 1 for p in phases)
    emptied = found["substitute" if fixed else "add_remove"]
    return Epsilons(found["add_remove"], found["substitute"], emptied, float(delta))


def selected_pure_epsilon(epsilon: float, selection: RepeatAndSelect) -> float:
    """The same of a pure guarantee, at delta 0; infinite for a Poisson number, which gives none."""
    if selection.mean == 1 and selection.number != "poisson":
        return epsilon
    return math.inf if selection.number == "poisson" else (2 + selection._shape) * epsilon


def selected_epsilon(phases: Sequence[Steps], delta: float, selection: RepeatAndSelect, adjacency: Adjacency) -> float:
    """Epsilon of the best under one adjacency."""
    alone = epsilon_of(phases, delta, adjacency)
    kept = [_plain(p) for p in phases if p.steps]
    if alone == math.inf or not kept or (selection.mean == 1 and selection.number != "poisson"):
        return alone
    curve = selected_curve(tuple(kept), selection, adjacency)
    cut = truncation([p for p in phases if p.steps], adjacency) * selection.mean
    share = delta / 2 if cut else delta
    with np.errstate(over="ignore"):  # Canonne, Kamath and Steinke 2020, arXiv 2004.00010, Proposition 12
        each = curve + np.log1p(-1 / ORDERS) - np.log(share * ORDERS) / (ORDERS - 1)
    epsilon = max(float(each.min()), alone)
    return math.inf if (1 + math.exp(min(epsilon, 700.0))) * cut > delta / 2 else epsilon


@lru_cache(maxsize=64)
def selected_curve(phases: tuple[Steps, ...], selection: RepeatAndSelect, adjacency: Adjacency) -> Array:
    """(k,) Renyi divergences of the best at `ORDERS`, of phases without truncation."""
    one = np.sum([renyi(p, adjacency, ORDERS) for p in phases], axis=0)
    curve = one + math.log(selection.mean) / (ORDERS - 1)
    if selection.number == "poisson":
        profile = privacy_loss(phases, adjacency).delta(np.log1p(1 / (ORDERS - 1)))
        profile = profile + ROUNDING * sum(p.steps for p in phases)
        return np.asarray(curve + selection.mean * np.minimum(profile, 1.0))
    rest = float(((1 - 1 / ORDERS) * one - math.log(selection.stopping) / ORDERS).min())
    least = min(rest, -math.log(selection.stopping))  # at o = 1
    curve = curve + (1 + selection._shape) * least
    return np.asarray(np.minimum.accumulate(curve[::-1])[::-1])  # Renyi divergences grow with the order


def _plain(phase: Steps) -> Steps:
    sampling = "poisson" if phase.sampling == "truncated-poisson" else phase.sampling
    return Steps(phase.noise_multiplier, phase.sample_rate, phase.steps, sampling)
