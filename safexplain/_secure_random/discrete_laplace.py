"""Two-sided geometric noise, drawn exactly: from uniform whole numbers, without logarithms.

The sampler of Canonne, Kamath and Steinke 2020 (The Discrete Gaussian for Differential Privacy, arXiv 2004.00010,
algorithms 1 and 2), many numbers at once. As far as the whole numbers that it draws from are uniform, as those of
`safexplain._secure_random` are, probabilities are exactly those that proofs speak of.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safexplain._secure_random.generators import Randomness


def discrete_laplace(scale: NDArray[np.int64], rng: Randomness) -> NDArray[np.int64]:
    """(n,) integers z with probability proportional to exp(-|z| / scale), scale (n,) whole numbers of at least 1.

    Canonne, Kamath and Steinke 2020, algorithm 2: z = scale v + u in size, with u below `scale` kept with probability
    exp(-u / scale) and v the number of successes in a row with probability exp(-1); a negative zero is drawn again.
    """
    out = np.zeros(len(scale), dtype=np.int64)
    open_ = np.arange(len(scale))
    while len(open_):
        of = scale[open_]
        low = rng.integers(0, of)
        size = low + of * _successes(len(open_), rng)
        negative = rng.integers(0, 2, len(open_)) == 1
        good = exp_coin(low, of, rng) & ~(negative & (size == 0))
        out[open_[good]] = np.where(negative, -size, size)[good]
        open_ = open_[~good]
    return out


def exp_coin(numerator: NDArray[np.int64], denominator: NDArray[np.int64], rng: Randomness) -> NDArray[np.bool_]:
    """(n,) bool, each true with probability exp(-numerator / denominator), exactly; 0 <= numerator <= denominator.

    Canonne, Kamath and Steinke 2020, algorithm 1: the number of the first failure among coins with probabilities
    x, x/2, x/3, ... is odd with probability exp(-x), the sum of (-x)^k / k!.
    """
    first = np.ones(len(numerator), dtype=np.int64)
    going = np.ones(len(numerator), dtype=np.bool_)
    while going.any():
        at = np.flatnonzero(going)
        success = rng.integers(0, denominator[at] * first[at]) < numerator[at]
        first[at[success]] += 1
        going[at[~success]] = False
    return np.asarray(first % 2 == 1)


def _successes(n: int, rng: Randomness) -> NDArray[np.int64]:
    """(n,) how often a coin of probability exp(-1) succeeds before it fails."""
    count = np.zeros(n, dtype=np.int64)
    at = np.arange(n)
    while len(at):
        one = np.ones(len(at), dtype=np.int64)
        at = at[exp_coin(one, one, rng)]
        count[at] += 1
    return count
