"""The Laplace mechanism on a grid, with integers only, so that floating-point numbers tell nothing beside the value.

Laplace noise in float64 reaches some numbers from one value and never from its neighbour (Mironov 2012, On significance
of the least significant bits for differential privacy). Here a value v in a public interval [low, high], which changes
by at most s between neighbouring data sets, is released as follows. The grid g is a power of two.

1. q = round(v / g), an integer. Rounding moves each value by at most 1/2, so neighbours' q differ by at most
   K = floor(s / g) + 1.
2. q + Z, with P(Z = z) proportional to exp(-|z| / N) and N = ceil(K / epsilon) (Ghosh, Roughgarden and Sundararajan
   2009, arXiv 0811.2841). For any output the two probabilities differ by a factor of at most exp(K / N), and
   K / N <= epsilon: pure epsilon.
3. (q + Z) g, exact in float64, is clamped to [low, high]: post-processing.

Z is drawn exactly (`safexplain._secure_random.discrete_laplace`). K / N <= epsilon is all of the guarantee, whatever g
is; g only decides how much noise the rounding adds, about one part in 1,024.

The value that reaches step 1 was computed in floating-point numbers. s is that of the exact value, so it is enlarged by
a relative 1e-6 and by 2^-40 of the interval: a caller's computation may be off by half of that, on either data set.
What this covers is said where the values are computed.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from safexplain._secure_random.discrete_laplace import discrete_laplace
from safexplain._secure_random.generators import Randomness
from safexplain._validate import check_number
from safexplain.errors import ConfigurationError

FINENESS = 1024
"""Grid points in the sensitivity, or in the scale of the noise where that is smaller."""

RELATIVE_SLACK = 1e-6
"""Part of the sensitivity that the caller's rounding may amount to, on both data sets together."""

SLACK = 2.0**-40
"""Part of the interval that it may amount to besides, and the finest grid."""

LARGEST_SCALE = 2**40
"""Of the noise in grid points, so that products stay within 64-bit integers."""


def laplace_grid(sensitivity: float, epsilon: float, low: float, high: float) -> tuple[float, int, int]:
    """The grid g, the sensitivity K in grid points and the scale N of the noise in grid points.

    Args:
        sensitivity: most that the value changes between neighbouring data sets; what exceeds the interval is ignored.
        epsilon: of one release.
        low: public lower end.
        high: public upper end.

    Raises:
        ConfigurationError: an empty interval or a number out of range.
    """
    epsilon = check_number("epsilon", epsilon, above=0)
    check_number("sensitivity", sensitivity, above=0)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigurationError(f"expected a public interval with low < high, got {low!r} to {high!r}")
    width = high - low
    needed = min(sensitivity, width) * (1 + RELATIVE_SLACK) + width * SLACK
    wanted = max(needed * min(1.0, 1.0 / epsilon) / FINENESS, max(abs(low), abs(high)) * SLACK)
    grid = 2.0 ** math.floor(math.log2(wanted))
    steps = math.floor(needed / grid) + 1
    scale = math.ceil(steps / Fraction(epsilon))  # never below the exact quotient
    if scale > LARGEST_SCALE:
        raise ConfigurationError(f"epsilon: expected at least {steps / LARGEST_SCALE:.1g}, got {epsilon!r}")
    return grid, steps, scale


def laplace_release(
    values: NDArray[np.float64],
    sensitivity: NDArray[np.float64],
    epsilon: float,
    low: float,
    high: float,
    rng: Randomness,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values with Laplace noise of scale about sensitivity / epsilon, each private with `epsilon`; see the module.

    Args:
        values: (n,) private numbers; those outside of [low, high] count as its ends.
        sensitivity: (n,) public, of each.
        epsilon: of each release; n of them on the same data compose to at most n epsilon.
        low: public lower end.
        high: public upper end.
        rng: source of the noise.

    Returns:
        (n,) noised values in [low, high], and (n,) bool: at an end of the interval.
    """
    grids = [laplace_grid(float(s), epsilon, low, high) for s in sensitivity]
    grid = np.array([g for g, _, _ in grids], dtype=np.float64)
    scale = np.array([n for _, _, n in grids], dtype=np.int64)
    whole = np.rint(np.clip(values, low, high) / grid).astype(np.int64)
    noised = np.clip((whole + discrete_laplace(scale, rng)) * grid, low, high)
    return noised, (noised <= low) | (noised >= high)
