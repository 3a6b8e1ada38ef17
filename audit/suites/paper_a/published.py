"""The attack of Huang et al. ("Explaining the Model, Protecting Your Data", Algorithm 1) as their code has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.attacks.base import check_signals
from safexplain.audit.attacks.likelihood import two_sided


@dataclass(frozen=True)
class ReleasedRatio:
    """VAR-, L1- and L2-LRT: plain means, one variance for all; it ranks by (t - mu_out)^2 - (t - mu_in)^2."""

    def __call__(self, target: Any, shadows: Any, membership: Any) -> NDArray[np.float64]:
        """(n,) log likelihood ratios of (n,) and (m, n) numbers, higher says "member"."""
        target, shadows, membership = check_signals(target, shadows, membership)
        usable = two_sided(membership)
        t, x = target.astype(np.float64), np.where(usable, shadows, 0.0).astype(np.float64)
        sides = np.stack([membership, ~membership])
        count = np.maximum(sides.sum(1), 1)
        mean = np.where(sides, x, 0.0).sum(1) / count
        squares = np.where(sides, np.square(x - mean[:, None]), 0.0).sum(1)
        variance = squares.sum() / max(((count - 1) * usable).sum(), 1) or 1.0
        return np.where(usable, (np.square(t - mean[1]) - np.square(t - mean[0])) / (2 * variance), 0.0)
