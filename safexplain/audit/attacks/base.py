"""The protocol of attacks, and a threshold attack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safexplain.audit.signals import all_finite, partners
from safexplain.errors import InputError

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@runtime_checkable
class Attack(Protocol):
    """Scores membership from one signal of the target model and of reference models."""

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) or (n, d) released signal of the target model for each example.
            shadows: (m, n) or (m, n, d), the same for m reference models.
            membership: (m, n) bool, which examples each reference model was trained on.

        Returns:
            (n,) finite scores.
        """


def check_signals(target: Floats, shadows: Floats, membership: Bools) -> tuple[Floats, Floats, Bools]:
    """The three as arrays; InputError: shapes disagree, no bool membership, or a value is not finite."""
    target, shadows, membership = np.asarray(target), np.asarray(shadows), np.asarray(membership)
    if membership.dtype != np.bool_ or membership.ndim != 2:
        raise InputError(
            f"membership: expected bool of shape (m, n), got {membership.dtype} of shape {membership.shape}"
        )
    m, n = membership.shape
    if target.shape[:1] != (n,) or shadows.shape != (m, *target.shape) or target.ndim > 2:
        raise InputError(
            f"expected target (n,) or (n, d), shadows (m, n[, d]) and membership (m, n);"
            f" got {target.shape}, {shadows.shape}, {membership.shape}"
        )
    for name, values in (("target", target[None]), ("shadows", shadows)):
        if not all_finite(values):
            bad = int((~np.isfinite(values)).sum())
            raise InputError(f"{bad} values of the {name} signal are NaN or infinite; replace them before the attack")
    return target, shadows, membership


def references_for(read: int, references: Iterable[int], membership: Bools) -> NDArray[np.int64]:
    """Indices of the references of the model `read`: all but itself and its partner (`partners`)."""
    partner = partners(membership)[read]
    return np.array([r for r in references if r not in (read, partner)], dtype=np.int64)


@dataclass(frozen=True)
class Threshold:
    """Training examples have small losses and small, calm explanations, so the score is the negated signal.

    Shokri, Strobel & Zick, arXiv 1907.00164, section 3 (variance of the explanation); Yeom et al., arXiv 1709.01604
    (loss).

    Args:
        member_when_low: False for signals that are high on members, such as confidence.
    """

    member_when_low: bool = True

    def __call__(
        self, target: Floats, shadows: Floats | None = None, membership: Bools | None = None
    ) -> NDArray[np.float64]:
        """(n,) scores of the target's (n,) signal alone; InputError: it is not one finite number per example."""
        signal = np.asarray(target, dtype=np.float64)
        if signal.ndim != 1 or not np.isfinite(signal).all():
            raise InputError(f"Threshold: expected one finite number per example, got shape {signal.shape}")
        return -signal if self.member_when_low else signal
