"""A likelihood ratio learned over all examples together: for few reference models and signals on a common scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.errors import ConfigurationError, InputError

FEWEST_A_BIN = 50
"""Reference values in a bin, at least."""


@dataclass(frozen=True)
class PooledDensityRatio:
    """How often do members' signals lie here, and how often non-members'? Counted over all references and examples.

    The reference values are cut into bins of equal numbers; a bin's log ratio is that of the shares of all members' and
    of all non-members' values in it, each with one added; between the middles of bins it is interpolated. Nothing is
    estimated of one example alone, so that a few references are enough, and the ratio may rise and fall: interpolating
    models put members into a narrow band of margins, with non-members on both sides of it.

    Args:
        bins: at most, see `FEWEST_A_BIN`.
    """

    bins: int = 200

    def __post_init__(self) -> None:
        if isinstance(self.bins, bool) or not isinstance(self.bins, int) or self.bins < 2:
            raise ConfigurationError(f"bins must be a whole number of at least 2, got {self.bins!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) signal of the target model.
            shadows: (m, n) signals of reference models.
            membership: (m, n) bool.

        Returns:
            (n,) log ratios.

        Raises:
            InputError: shapes disagree, values are not finite, or the references have no members or only members.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"PooledDensityRatio needs one number per example, got shape {target.shape}")
        if membership.all() or not membership.any():
            raise InputError("the reference models have no members or only members; both are needed")
        order = np.argsort(shadows, axis=None)
        values, member = shadows.ravel()[order].astype(np.float64), membership.ravel()[order]
        parts = max(2, min(self.bins, len(values) // FEWEST_A_BIN))
        cuts = np.linspace(0, len(values), parts + 1).astype(np.int64)[:-1]
        cuts = np.unique(np.searchsorted(values, values[cuts]))  # equal values share a bin
        inside = np.add.reduceat(member.astype(np.int64), cuts) + 1
        outside = np.diff(np.append(cuts, len(values))) + 2 - inside
        ratio = np.log(inside / inside.sum()) - np.log(outside / outside.sum())
        middle = values[(cuts + np.append(cuts[1:], len(values))) // 2]
        return np.interp(np.asarray(target, dtype=np.float64), middle, ratio)
