"""The noise that a privacy budget asks for, and the steps that it allows.

What steps spend is computed in `safexplain._privacy_loss`, which has the proofs and the tables: certificates need them
too, without torch. What was spent is stated by `safexplain.verdict.privacy_statement.PrivacyStatement`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from dp_accounting import get_sigma_gaussian
from scipy.optimize import brentq

from safexplain._privacy_loss import (
    Adjacency,
    Sampling,
    Steps,
    check_adjacency,
    check_delta,
    epsilon_of,
)
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError

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
    """The least noise multiplier with which `steps` steps spend at most `target_epsilon`, to a relative 1e-4.

    Args:
        target_epsilon: the budget, above 0.
        sample_rate: q, from the data actually trained on: expected batch size over number of records.
        steps: of the optimizer, at least 1.
        delta: in (0, 1), smaller than one over the number of records.
        adjacency: under which the budget is meant; "substitute" (the default) protects what a record says,
            "add_remove" only whether it was there.
        sampling: "poisson", "fixed-size" or "full-batch".

    Returns:
        Standard deviation of the noise on the sum of clipped gradients over the clip bound; `epsilons` of it is at
        most the budget.

    Raises:
        ConfigurationError: a value out of range, shuffled batches, or no noise multiplier up to 1e7 is enough.

    Example:
        >>> f"{noise_multiplier(10, sample_rate=0.25, steps=500, delta=1e-5, adjacency='substitute'):.2f}"
        '5.57'
    """
    check_delta(delta)
    check_adjacency(adjacency)
    check_number("target_epsilon", target_epsilon, above=0.0)
    phase = Steps(1.0, sample_rate, steps, sampling)
    if phase.steps == 0:
        raise ConfigurationError("steps: expected at least 1, got 0; without steps no noise is needed")

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
    """The most steps, up to ten million, that spend at most `target_epsilon`; 0 if one step spends more.

    Beyond 10,000 steps it is found to one part in 5,000, downwards. Arguments and errors as for `noise_multiplier`.
    """
    check_delta(delta)
    check_adjacency(adjacency)
    check_number("target_epsilon", target_epsilon, above=0.0)

    def within(steps: int) -> bool:
        phase = Steps(noise_multiplier, sample_rate, steps, sampling)
        spent = epsilon_of([phase], delta, adjacency)
        return spent <= target_epsilon

    if not within(1):
        return 0
    enough, too_many = _around(within, _likely_steps(target_epsilon, noise_multiplier, sample_rate, delta, adjacency))
    if enough >= MOST_STEPS:
        return MOST_STEPS
    while too_many - enough > max(enough // 5000 if enough > 10_000 else 0, 1):
        middle = (enough + too_many) // 2
        enough, too_many = (middle, too_many) if within(middle) else (enough, middle)
    return enough


def _likely_steps(target: float, sigma: float, q: float, delta: float, adjacency: Adjacency) -> int:
    """By the central limit theorem: many steps are about one Gaussian (Dong, Roth and Su 2019, arXiv 1905.02383)."""
    distance = 1 / get_sigma_gaussian(target, delta)
    each = q * math.sqrt(math.expm1(min(sigma**-2, 700.0))) * (2 if adjacency == "substitute" else 1)
    return max(1, min(int((distance / each) ** 2), MOST_STEPS))


def _around(within: Callable[[int], bool], guess: int) -> tuple[int, int]:
    """A number of steps within the budget and a larger one that is not, near the guess; at most `MOST_STEPS`."""
    factor = 1.05
    enough = too_many = guess
    while enough > 1 and not within(enough):
        too_many, enough, factor = enough, max(int(enough / factor), 1), factor * factor
    if too_many > enough:
        return enough, too_many
    while within(too_many):
        enough, too_many, factor = too_many, max(int(too_many * factor), too_many + 1), factor * factor
        if enough >= MOST_STEPS:
            break
    return enough, too_many


def _bracket(excess: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Logarithms of noise multipliers that spend too much and not too much, near the guess."""
    step, high = 0.25, min(guess, math.log(LARGEST_SIGMA))
    while excess(high) > 0:
        if high >= math.log(LARGEST_SIGMA):
            raise ConfigurationError(
                f"target_epsilon cannot be reached: even a noise multiplier of {LARGEST_SIGMA:g} spends more. Use fewer"
                " steps, smaller batches of more records, or a larger epsilon or delta"
            )
        high, step = min(high + step, math.log(LARGEST_SIGMA)), step * 2
    low, step = high, 0.25
    while excess(low) <= 0:
        if low <= math.log(SMALLEST_SIGMA):
            raise ConfigurationError(
                "target_epsilon is kept without any noise: delta is as large as the probability that a given record is"
                " in a batch at all, so that the guarantee says nothing. Use a delta well below one over the number of"
                " records"
            )
        low, step = max(low - step, math.log(SMALLEST_SIGMA)), step * 2
    return low, high
