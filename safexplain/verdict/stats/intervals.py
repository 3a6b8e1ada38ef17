"""Exact limits of binomial proportions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from safexplain.errors import InputError


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial proportion (Clopper & Pearson, Biometrika 1934).

    Its coverage is at least `confidence` for every true proportion, since each tail is inverted by itself.

    Raises:
        InputError: not 0 <= successes <= trials with trials >= 1, or confidence outside of (0, 1).
    """
    check_counts(successes, trials)
    if not 0 < confidence < 1:
        raise InputError(f"confidence lies in (0, 1), got {confidence!r}")
    tail = (1 - confidence) / 2
    low = special.betaincinv(successes, trials - successes + 1, tail) if successes > 0 else 0.0
    high = special.betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    return float(low), float(high)


def check_counts(successes: int, trials: int) -> None:
    """Raise InputError unless 0 <= successes <= trials with trials >= 1."""
    if trials < 1 or not 0 <= successes <= trials:
        raise InputError(f"expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")


@lru_cache(maxsize=16)
def upper_limits(trials: int, confidence: float = 0.95) -> NDArray[np.float64]:
    """(trials + 1,) upper ends of `clopper_pearson` for every number of successes, read-only."""
    successes = np.arange(trials)
    clopper_pearson(0, trials, confidence)  # refuses what makes no sense
    limits = np.append(special.betaincinv(successes + 1, trials - successes, (1 + confidence) / 2), 1.0)
    limits.flags.writeable = False
    return limits
