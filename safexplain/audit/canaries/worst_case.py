"""S1: the worst pair of data sets, in which the record's gradient is +C, its canary's -C, and all others are 0."""

from __future__ import annotations

import numpy as np

from safexplain._privacy_loss import Steps
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.scores import Scores

__all__ = ["worst_case_scores"]


def worst_case_scores(mechanism: Steps, runs: int, *, every: int | None = None, rng: np.random.Generator) -> Scores:
    """The sum of all noisy gradients after so many steps, in units of C.

    Nothing has to be trained: after t steps the sum is +k or -k, k ~ Binomial(t, q), plus N(0, t sigma^2). The paper
    scores it by the log-likelihood ratio of the two mixtures (arXiv 2511.21804, equation 3), which rises with the sum,
    so that both order the runs alike. The adversary sees the sum, not the single gradients: for q < 1 the exact epsilon
    of the sum is a little below the accountant's (9.81 for 10 at q = 1/16, 500 steps).

    Args:
        mechanism: with Poisson sampling or full batches.
        runs: in both worlds together, half in each.
        every: look after each so many steps and after the last; None: after the last only.
        rng: source of sampling and noise.

    Raises:
        ConfigurationError: fewer than 2 runs in a world, no noise, or batches of fixed size.
    """
    if runs < 4 or runs % 2:
        raise ConfigurationError(f"runs: expected an even number from 4 on, half for each world; got {runs}")
    if mechanism.noise_multiplier == 0 or mechanism.steps == 0:
        raise ConfigurationError("the worst case needs noise and at least one step: without them nothing is claimed")
    if mechanism.sampling == "fixed-size":
        raise ConfigurationError('the worst case of sampling="fixed-size" is another one; expected "poisson"')
    steps = audited_steps(mechanism.steps, every)
    sums = np.zeros((2, runs // 2))
    found = np.empty((len(steps), 2, runs // 2))
    for i, (since, step) in enumerate(zip((0, *steps), steps, strict=False)):
        taken = rng.binomial(step - since, mechanism.sample_rate, sums.shape)
        taken[1] *= -1
        sums += taken + rng.normal(0.0, mechanism.noise_multiplier * np.sqrt(step - since), sums.shape)
        found[i] = sums
    return Scores(steps, found[:, 0], found[:, 1])


def audited_steps(steps: int, every: int | None) -> tuple[int, ...]:
    """Every `every`-th step, and the last; None: the last only.

    Raises:
        ConfigurationError: `every` is less than 1.
    """
    if every is None:
        return (steps,)
    if every < 1:
        raise ConfigurationError(f"every: expected a number of steps from 1 on, got {every}")
    return (*range(every, steps, every), steps)
