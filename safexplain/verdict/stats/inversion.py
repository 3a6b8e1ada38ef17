"""Which noise multipliers do an attack's error rates refute? A bisection over a fixed grid, of which curves are kept.

The family is that of one sampling rate and number of steps: its trade-off curves rise with the noise multiplier, so all
that are larger than a refuted one are refuted too: epsilon is at least that of the smallest refuted noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from safexplain._privacy_loss import VACUOUS, Steps
from safexplain.adjacency import Sampling
from safexplain.errors import ConfigurationError
from safexplain.pairs import typical_loss
from safexplain.verdict.stats.tradeoff import TradeOff, trade_off

UNITS = 4096
"""Grid points while the noise multiplier grows by a factor of e."""

LOWEST, HIGHEST = -4 * UNITS, 28 * UNITS
"""Ends of the grid; their distance is a power of two, so that every bisection visits the same points."""

RESOLUTION = 0.005
"""Relative distance in epsilon at which the bisection stops."""

SMALLEST_NOISE = 1 / 16
"""Noise multiplier (twice this for a fixed size) below which curves are not computed: their exponentials overflow."""

UNNOTICEABLE = 1e-7
"""Mean privacy loss below which a mechanism is taken to have epsilon 0."""


@dataclass(frozen=True)
class Family:
    """The sampled Gaussian mechanism with any noise.

    Args:
        sample_rate: q in (0, 1].
        steps: at least 1.
        sampling: how batches are drawn; None for "poisson", or a full batch where the sample rate is 1.

    Raises:
        ConfigurationError: a value out of range, or shuffled batches.
    """

    sample_rate: float = 1.0
    steps: int = 1
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if self.sampling is None:
            object.__setattr__(self, "sampling", "full-batch" if self.sample_rate == 1 else "poisson")
        if Steps(1.0, self.sample_rate, self.steps, self.sampling or "poisson").steps == 0:
            raise ConfigurationError("steps: expected at least 1, got 0; without steps nothing is learnt")

    @property
    def is_gaussian(self) -> bool:
        """All steps together are one Gaussian mechanism."""
        return self.sample_rate == 1

    def at(self, point: int) -> Steps:
        """The member at a point of the grid."""
        return Steps(math.exp(point / UNITS), self.sample_rate, self.steps, self.sampling or "poisson")


@dataclass(frozen=True)
class Refuted:
    """What an attack's error rates refute.

    Args:
        epsilon: a lower bound on epsilon; infinite if no noise multiplier explains so few errors, 0 if all do.
        curve: the trade-off curve of the smallest noise multiplier of the grid that is refuted, if any.
    """

    epsilon: float
    curve: TradeOff | None = None


def smallest_refuted(
    family: Family, delta: float, refutes: Callable[[TradeOff], bool], resolution: float = RESOLUTION
) -> Refuted:
    """The epsilon of the smallest noise multiplier of the grid whose trade-off curve is refuted.

    Args:
        family: the mechanism that is claimed, but for its noise.
        delta: at which epsilon is reported.
        refutes: whether the errors found are too few for a curve; if so, also for every higher one.
        resolution: relative distance in epsilon at which the bisection stops.
    """
    low, high = LOWEST, HIGHEST  # not refuted, and refuted, or so taken: too little noise, and too much, to matter
    below: TradeOff | None = None
    above: TradeOff | None = None
    while high - low > 1 and not (below and above and below.epsilon - above.epsilon <= resolution * above.epsilon):
        middle = (low + high) // 2
        side = _side(family, middle)
        if side < 0:
            low = middle
        elif side > 0:
            high = middle
        elif refutes(curve := trade_off(family.at(middle), delta)):
            high, above = middle, curve
        else:
            low, below = middle, curve
    if above is None:
        return Refuted(0.0)
    return Refuted(math.inf if below is None and _overflows(family.at(low)) else above.epsilon, above)


@lru_cache(maxsize=65536)
def _side(family: Family, point: int) -> int:
    """-1 where there is too little noise to compute anything, 1 where there is too much to learn anything, else 0."""
    member = family.at(point)
    if _overflows(member):
        return -1
    loss = typical_loss(member.noise_multiplier, member.sample_rate, member.steps, member.sampling)
    return int(loss < UNNOTICEABLE) - int(loss > VACUOUS)


def _overflows(member: Steps) -> bool:
    wide = 2 if member.sampling == "fixed-size" else 1
    return member.sample_rate < 1 and member.noise_multiplier < wide * SMALLEST_NOISE
