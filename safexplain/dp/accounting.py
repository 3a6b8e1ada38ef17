"""The noise that a privacy budget requires, and the steps that it allows.

`safexplain._privacy_loss` computes what steps spend, with the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from scipy.optimize import brentq

from safexplain._privacy_loss import Adjacency, Sampling, Steps, check_adjacency, check_delta, epsilon_of
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError

SMALLEST_SIGMA, LARGEST_SIGMA = 1e-6, 1e7
MAX_STEPS = 10_000_000


def noise_multiplier(
    target_epsilon: float,
    sample_rate: float,
    steps: int,
    delta: float,
    adjacency: Adjacency = "substitute",
    *,
    sampling: Sampling = "poisson",
) -> float:
    """The smallest noise multiplier with which `steps` steps spend at most `target_epsilon`, to a relative 1e-4.

    Args:
        target_epsilon: the budget, above 0.
        sample_rate: q, from the data actually trained on: expected batch size over number of records.
        steps: of the optimizer, at least 1.
        delta: in (0, 1), smaller than one over the number of records.
        adjacency: under which the budget is meant; "substitute" (the default) protects the content of a record,
            "add_remove" only its presence.
        sampling: "poisson", "fixed-size" or "full-batch".

    Returns:
        Standard deviation of the noise on the sum of clipped gradients, over the clip bound.

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
        if high == MAX_STEPS:
            return high
        low, high = high, min(2 * high, MAX_STEPS)
    while high - low > (low // 5000 if low > 10_000 else 1):
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _bracket(excess: Callable[[float], float], guess: float) -> tuple[float, float]:
    """Logarithms of noise multipliers that spend too much and little enough, near the guess."""
    step, high = 0.25, min(guess, math.log(LARGEST_SIGMA))
    while excess(high) > 0:
        if high >= math.log(LARGEST_SIGMA):
            raise ConfigurationError(
                f"target_epsilon: even a noise multiplier of {LARGEST_SIGMA:g} spends more; use fewer steps, smaller"
                " batches of more records, or a larger epsilon or delta"
            )
        high, step = min(high + step, math.log(LARGEST_SIGMA)), step * 2
    low, step = high, 0.25
    while excess(low) <= 0:
        if low <= math.log(SMALLEST_SIGMA):
            raise ConfigurationError(
                "delta: expected much less than the probability that a given record is in any batch; here training"
                " without noise would meet the guarantee. Use a delta well below one over the number of records"
            )
        low, step = max(low - step, math.log(SMALLEST_SIGMA)), step * 2
    return low, high
