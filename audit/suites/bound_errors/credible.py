"""The bound of Zanella-Beguelin et al. 2023 (arXiv 2206.05199) as published: a posterior quantile, which is no bound.

Epsilon is as of "clopper-pearson", under Beta(errors + 1/2, others + 1/2) posteriors of both rates. With few runs, how
often it is above the truth depends on the truth.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr

from safexplain.verdict.stats.lower_bounds import ErrorCounts, smallest_root

Array = NDArray[np.float64]

NAME = "zanella-beguelin"

SCORES = np.linspace(-8.0, 8.0, 801)
"""Standard normal scores at which posterior distributions are kept."""


def credible_bound(errors: ErrorCounts, delta: float) -> float:
    """The (1 - confidence)-quantile of epsilon when both rates have the posterior of Jeffreys' prior.

    P(epsilon <= e) is integrated over the false-positive rate, along its normal scores.
    """
    weight = np.exp(-SCORES * SCORES / 2) / math.sqrt(2 * math.pi) * (SCORES[1] - SCORES[0])
    fpr = _posterior(errors.false_positives, errors.negatives)
    log_fnr = np.log(_posterior(errors.false_negatives, errors.positives))

    def excess(epsilon: float) -> float:
        grown = math.exp(epsilon)
        least = np.maximum(np.maximum(1 - delta - grown * fpr, (1 - delta - fpr) / grown), 1e-300)
        return float(weight @ ndtr(-np.interp(np.log(least), log_fnr, SCORES))) - (1 - errors.confidence)

    return smallest_root(excess)


@lru_cache(maxsize=4096)
def _posterior(errors: int, runs: int) -> Array:
    """Quantiles of Beta(errors + 1/2, others + 1/2) at the normal scores."""
    return np.asarray(betaincinv(errors + 0.5, runs - errors + 0.5, ndtr(SCORES)))
