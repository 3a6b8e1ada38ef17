"""Attacks on the distance of recourse (Pawelczyk, Lakkaraju & Neel, arXiv 2211.05427, sections 4.1 and 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.attacks.base import Bools, Floats, Threshold, check_signals
from safexplain.audit.attacks.likelihood import transformed
from safexplain.errors import ConfigurationError, InputError

Spread = Literal["global", "local"]


@dataclass(frozen=True)
class CounterfactualDistance(Threshold):
    """Training pushes the decision boundary away from members, so a large recourse distance says "member".

    CFD, arXiv 2211.05427, section 4.1.
    """

    member_when_low: bool = False


@dataclass(frozen=True)
class CounterfactualLRT:
    """Compares the recourse distance with that of models not trained on the example (CFD-LRT, one-sided).

    arXiv 2211.05427, Algorithm 1 and section 4.2: the logarithm of the distance is Gaussian over the k reference models
    not trained on the example,

        z = (log d - mu_out) / (sd_out sqrt(1 + 1 / k)).

    References trained on the scored non-members alone, as in the released code of the paper, find "members" where there
    are none.

    Args:
        variance: "global" is one for all examples. "local" is one per example; z then follows Student's t with k - 1
            degrees of freedom and is mapped to the normal scale, so that examples with different k compare.
    """

    variance: Spread = "global"

    def __post_init__(self) -> None:
        if self.variance not in get_args(Spread):
            raise ConfigurationError(f"variance: expected global or local, got {self.variance!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """(n,) scores of (n,) recourse distances, at least 0, by those of m reference models (m, n).

        Without a reference not trained on it (two for "local"), an example's is 0. InputError: shapes disagree, a
        distance is negative or not finite, or no example has two such references.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        if target.ndim != 1:
            raise InputError(f"recourse distances: expected one number per example, got shape {target.shape}")
        if min(target.min(), shadows.min()) < 0:
            raise InputError("recourse distances: expected no negative ones")
        log_target, log_shadows = transformed("auto", target, shadows)
        without = ~membership
        count = without.sum(0).astype(np.float64)
        if count.max(initial=0.0) < 2:
            raise InputError("no example has two reference models that were not trained on it; train more of them")
        mean = np.where(without, log_shadows, 0.0).sum(0) / np.maximum(count, 1)
        squares = np.where(without, (log_shadows - mean) ** 2, 0.0).sum(0)
        if self.variance == "global":
            usable, variance = count >= 1, np.full(len(count), squares.sum() / np.maximum(count - 1, 0).sum())
        else:
            usable, variance = count >= 2, squares / np.maximum(count - 1, 1)
        spread = np.sqrt(np.maximum(variance, 1e-10) * (1 + 1 / np.maximum(count, 1)))
        z = np.where(usable, (log_target - mean) / spread, 0.0)
        return z if self.variance == "global" else _on_normal_scale(z, np.maximum(count - 1, 1))


def _on_normal_scale(t: NDArray[np.float64], freedom: NDArray[np.float64]) -> NDArray[np.float64]:
    """The normal quantile with the tail probability of t: from the smaller tail, so that both stay finite."""
    tail = distributions.t.logsf(np.abs(t), freedom)
    out: NDArray[np.float64] = np.sign(t) * -distributions.norm.ppf(np.exp(np.maximum(tail, -700.0)))
    return out
