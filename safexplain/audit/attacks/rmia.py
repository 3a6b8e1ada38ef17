"""RMIA: whether the model raises the probability of an example's label more than that of other examples.

Zarifzadeh, Liu & Shokri, "Low-Cost High-Power Membership Inference Attacks", arXiv 2312.03262.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number
from safexplain.audit.attacks.base import Bools, Floats, check_signals
from safexplain.audit.attacks.likelihood import two_sided
from safexplain.errors import ConfigurationError, InputError


@dataclass(frozen=True)
class RMIA:
    """Share of the other examples z that x beats: ratio(x) / ratio(z) >= 1 (eqs. 2-4, gamma = 1).

    Here ratio(x) = p(x | model) / p(x), and p(x | model) = exp(-loss) is the probability of the true label. p(x)
    averages it over reference models:

        online    (mean over models with x + mean over models without x) / 2              (eq. 10)
        offline   ((1 + a) * mean over models without x + (1 - a)) / 2                    (eq. 11)

    Ties in the share are broken by the ratio, by less than one step. The share never falls with the ratio, so this
    ranking holds for every gamma, and a threshold on the paper's score is a threshold here.

    Args:
        a: of the offline average, in [0, 1], about the slope of mean-with against mean-without; a lower value assumes
            that training raises p more on members.
        offline: use only reference models without the example.

    Raises:
        ConfigurationError: `a` out of range.
    """

    a: float = 0.3
    offline: bool = False

    def __post_init__(self) -> None:
        if not 0 <= check_number("a", self.a) <= 1:
            raise ConfigurationError(f"a: expected a number in [0, 1], got {self.a!r}")

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """(n,) shares in [0, 1], from cross-entropies on the true labels, (n,), and those of m reference models (m, n).

        An example without the reference models it needs gets the ratio 1.

        Raises:
            InputError: shapes disagree, a value is negative or not finite, fewer than two examples, or no example has
                the reference models it needs.
        """
        target, shadows, membership = check_signals(target, shadows, membership)
        n = len(target)
        if target.ndim != 1 or n < 2:
            raise InputError(f"RMIA: expected one loss per example and at least 2 examples, got shape {target.shape}")
        lowest = min(target.min(), shadows.min())
        if lowest < 0:
            raise InputError(f"RMIA: expected cross-entropies, which are never negative, got {lowest:g}; pass the loss")
        log_without = _log_mean(shadows, ~membership)
        if self.offline:
            usable = ~membership.all(0)
            if not usable.any():
                raise InputError("offline RMIA needs reference models without the example, got none; train more")
            with np.errstate(divide="ignore"):
                log_p = np.logaddexp(np.log((1 + self.a) / 2) + log_without, np.log((1 - self.a) / 2))
        else:
            usable = two_sided(membership)
            log_p = np.logaddexp(log_without, _log_mean(shadows, membership)) - np.log(2)
        ratio = np.zeros(n)
        ratio[usable] = -np.asarray(target, dtype=np.float64)[usable] - log_p[usable]
        ordered = np.sort(ratio)
        beaten = np.searchsorted(ordered, ratio, side="right") - 1  # not itself
        share: NDArray[np.float64] = (beaten + np.searchsorted(ordered, ratio) / n) / n
        return share


def _log_mean(losses: Floats, chosen: Bools) -> NDArray[np.float64]:
    """(n,) logarithm of the mean of exp(-loss) over the chosen models; -inf where none is."""
    losses = np.asarray(losses, dtype=np.float64)
    low = np.where(chosen, losses, np.inf).min(0)
    low = np.where(np.isfinite(low), low, 0.0)
    total = np.where(chosen, np.exp(np.minimum(low - losses, 0.0)), 0.0).sum(0, dtype=np.float64)
    with np.errstate(divide="ignore"):
        out: NDArray[np.float64] = np.log(total) - np.log(np.maximum(chosen.sum(0), 1)) - low
    return out
