"""What a broken trainer really spends, where it can be computed: of a canary whose gradient is C or -C in every step.

The released model moves along that gradient by the sum of all steps. Where every step adds the same kind of noise to a
number of appearances that is known, two Gaussians are left, whose epsilon is exact. Where batches are drawn, the steps
are composed. This is the epsilon of one pair of data sets, so a lower bound for others that a network might know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from safexplain.verdict.stats.tradeoff import gaussian_epsilon

Array = NDArray[np.float64]


def of_sum(appearances: float, noise_std: float, delta: float) -> float:
    """Epsilon of one number: +appearances or -appearances, plus Gaussian noise.

    Args:
        appearances: how often the canary's gradient is in the released sum, in units of C.
        noise_std: of the noise in that sum, in units of C.
        delta: of epsilon.
    """
    return gaussian_epsilon(2 * appearances / noise_std, delta)


def of_mixtures(weights: Sequence[float], means: Sequence[float], sigma: float, steps: int, delta: float) -> float:
    """Epsilon of `steps` numbers, each +mean or -mean with a probability, plus Gaussian noise.

    The privacy loss of a step is put on a grid, rounded up, and convolved with itself.

    Args:
        weights: of the means, in all at most 1; the rest is at 0.
        means: on D; on D' they are the opposite.
        sigma: of the noise.
        steps: in which that happens.
        delta: of epsilon.
    """
    grid, fine = 1e-3, np.linspace(-12 * sigma - max(means), 12 * sigma + max(means), 400_001)
    own = [(1 - sum(weights), 0.0), *zip(weights, means, strict=True)]
    p, q = (sum(w * np.exp(-((fine - s * m) ** 2) / (2 * sigma**2)) for w, m in own) for s in (1, -1))
    p, loss = p / p.sum(), np.ceil(np.log(p / q) / grid).astype(int)
    first = int(loss.min())
    mass = np.bincount(loss - first, weights=p)
    size = 1 << math.ceil(math.log2(steps * len(mass)))
    total = np.fft.irfft(np.fft.rfft(mass, size) ** steps, size).clip(0)
    losses = grid * (steps * first + np.arange(size))
    order = np.arange(0.0, losses.max(), grid)
    # delta(epsilon) = sum of (1 - e^(epsilon - loss)) over the larger losses
    above = np.searchsorted(losses, order, side="right")
    tail = np.append(np.cumsum(total[::-1])[::-1], 0.0)[above]
    discounted = np.append(np.cumsum((total * np.exp(-losses.clip(0, 700)))[::-1])[::-1], 0.0)[above]
    found = tail - np.exp(order.clip(0, 700)) * discounted
    return float(order[np.argmax(found <= delta)])


def of_actual_batch_size(records: int, rate: float, sigma: float, steps: int, delta: float) -> float:
    """Sums divided by the number of records drawn, with noise of sigma C over the expected number.

    With b records in the batch, a canary counts (expected / b) times; nobody else's gradient is there.
    """
    sizes = np.arange(1, records + 1)
    weights = rate * binom.pmf(sizes - 1, records - 1, rate)
    return of_mixtures(list(weights), list(rate * records / sizes), sigma, steps, delta)


def of_epochs(batches: int, epochs: int, sigma: float, delta: float, draws: int = 1_000_000) -> float:
    """All models of a training whose epochs are shuffled: each record in one batch of each epoch, at random.

    By simulation, as no formula is known; the standard error is about 0.1 at delta 1e-5.
    """
    rng, loss = np.random.default_rng(0), np.zeros(draws)
    for _ in range(epochs):
        y = sigma * rng.standard_normal((draws, batches))
        y[:, 0] += 1.0  # which batch it is makes no difference to the loss
        loss += np.logaddexp.reduce(y / sigma**2, axis=1) - np.logaddexp.reduce(-y / sigma**2, axis=1)
    low, high = 0.0, float(loss.max())
    for _ in range(40):
        middle = (low + high) / 2
        over = loss[loss > middle]
        low, high = (middle, high) if (1 - np.exp(middle - over)).sum() / draws > delta else (low, middle)
    return high
