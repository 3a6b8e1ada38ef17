"""Vectors of public numbers, one a feature, that mechanisms are given."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from safexplain.errors import ConfigurationError
from safexplain.real_numbers import real_numbers
from safexplain.recourse.result import Floats


def public_vector(name: str, given: ArrayLike) -> Floats:
    """(d,) finite numbers that are not all 0, which nobody can write to."""
    found = real_numbers(given, name, ConfigurationError)
    if found.ndim != 1 or not np.isfinite(found).all() or not found.any():
        raise ConfigurationError(f"{name}: expected d finite numbers that are not all 0, got shape {found.shape}")
    found.flags.writeable = False
    return found


def check_length(name: str, given: ArrayLike, width: int) -> None:
    """Refuse a public vector for another number of features."""
    if len(np.asarray(given)) != width:
        raise ConfigurationError(f"{name}: expected one number a feature, {width}, got {len(np.asarray(given))}")
