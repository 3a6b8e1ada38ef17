"""What an attack is: a frozen dataclass that scores every example of one target model."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@runtime_checkable
class Attack(Protocol):
    """Scores membership from one signal of the target model and of reference models."""

    def __call__(self, target: Floats, shadows: Floats, membership: Bools) -> NDArray[np.float64]:
        """Score every example; higher says "member".

        Args:
            target: (n,) or (n, d), what the target model released about each example.
            shadows: (m, n) or (m, n, d), the same for m reference models.
            membership: (m, n) bool, which examples each reference model was trained on.

        Returns:
            (n,) finite scores.
        """


def check_signals(target: Floats, shadows: Floats, membership: Bools) -> tuple[Floats, Floats, Bools]:
    """Return the three as arrays of agreeing shapes.

    Raises:
        InputError: shapes disagree, membership is not bool, or a value is not finite.
    """
    target, shadows, membership = np.asarray(target), np.asarray(shadows), np.asarray(membership)
    if membership.dtype != np.bool_ or membership.ndim != 2:
        raise InputError(f"membership must be bool of shape (m, n), got {membership.dtype} of shape {membership.shape}")
    m, n = membership.shape
    if target.shape[:1] != (n,) or shadows.shape != (m, *target.shape) or target.ndim > 2:
        raise InputError(
            f"expected target (n,) or (n, d), shadows (m, n[, d]) and membership (m, n);"
            f" got {target.shape}, {shadows.shape}, {membership.shape}"
        )
    for name, values in (("target", target), ("shadows", shadows)):
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise InputError(f"{bad} values of the {name} signal are NaN or infinite; replace them before the attack")
    return target, shadows, membership
