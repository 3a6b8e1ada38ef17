"""The scale on which Gaussians are fitted: norms and losses are closer to log-normal than to normal."""

from __future__ import annotations

from typing import Literal

import numpy as np

from safexplain.audit.attacks.base import Floats
from safexplain.errors import ConfigurationError, InputError

Transform = Literal["auto", "log", "identity"]


def check_transform(transform: str) -> None:
    """Refuse other names.

    Raises:
        ConfigurationError: not one of the three.
    """
    if transform not in ("auto", "log", "identity"):
        raise ConfigurationError(f"transform is auto, log or identity, got {transform!r}")


def transformed(transform: Transform, target: Floats, shadows: Floats) -> tuple[Floats, Floats]:
    """One signal of the target and of the reference models, on the scale asked for.

    Zeros are raised to half of the smallest positive value before the logarithm is taken.

    Args:
        transform: "log", "identity", or "auto": the logarithm of what is never negative.
        target: (n,) or (n, 1).
        shadows: (m, n) or (m, n, 1).

    Raises:
        InputError: the logarithm of a negative signal was asked for.
    """
    lowest = min(target.min(), shadows.min())
    if transform == "log" and lowest < 0:
        raise InputError(f"the signal has negative values (down to {lowest:g}); use transform='identity'")
    if transform == "identity" or lowest < 0:
        return target, shadows
    target, shadows = target.astype(np.float64), shadows.astype(np.float64)
    smallest = min((float(a[a > 0].min()) for a in (target, shadows) if (a > 0).any()), default=1.0)
    floor = max(smallest / 2, 5e-324)
    return np.log(np.maximum(target, floor)), np.log(np.maximum(shadows, floor))
