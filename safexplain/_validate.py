"""Amounts in a hardening's configuration: absolute or relative to the clip, and the checks that all of them share."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from safexplain.errors import ConfigurationError, ConfigurationTypeError


@dataclass(frozen=True)
class Relative:
    """An amount in units of the clip's scale, where a plain float is absolute (in the units of the attribution).

    The scale is what one coordinate can be after the clip: the larger end of a `RangeClip`, or, for a `NormClip` or
    `UnitNorm` of size c over d features, the root mean square c / sqrt(d) of an explanation that fills it.

    >>> from safexplain import UnitNorm
    >>> UnitNorm(1.0).scale(d=64) * Relative(0.4).factor
    0.05
    """

    factor: float

    def __post_init__(self) -> None:
        keep_number(self, "factor", minimum=0.0)


Amount = float | Relative
"""A float is absolute, in the units of the attribution."""


def absolute(amount: Amount, scale: float | None) -> float:
    """An amount in the units of the attribution."""
    if isinstance(amount, Relative):
        if scale is None:
            raise ConfigurationError(f"{amount!r} needs a clip to be relative to; add one or give a plain float")
        return amount.factor * scale
    return float(amount)


def keep_amount(step: object, name: str) -> None:
    """Check that a field of a frozen dataclass is a finite number >= 0 or a `Relative`; see `keep_number`."""
    if not isinstance(getattr(step, name), Relative):
        keep_number(step, name, minimum=0.0)


def keep_number(step: object, name: str, *, minimum: float | None = None, above: float | None = None) -> None:
    """Check a field of a frozen dataclass and keep it as a plain float.

    Configurations that are equal (1, 1.0 and NumPy's 1; 0 and -0.0) must also read the same as JSON, which the noise is
    a function of.
    """
    value = check_number(f"{type(step).__name__} {name}", getattr(step, name), minimum=minimum, above=above)
    object.__setattr__(step, name, value)


def check_number(name: str, value: float, *, minimum: float | None = None, above: float | None = None) -> float:
    """The value as a float, if it is a finite real number within its limits.

    Raises:
        ConfigurationTypeError: not a number.
        ConfigurationError: NaN, infinite, or outside of the limits.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        raise ConfigurationTypeError(f"{name} must be a number, got {type(value).__name__} {value!r}")
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError(f"{name} must be finite, got {value!r}")
    if minimum is not None and value < minimum:
        raise ConfigurationError(f"{name} must be at least {minimum:g}, got {value!r}")
    if above is not None and value <= above:
        raise ConfigurationError(f"{name} must be greater than {above:g}, got {value!r}")
    return number


def check_whole(name: str, value: object, least: int) -> int:
    """The value, if it is an int (not a bool, nor one of NumPy's, which are no JSON) of at least `least`.

    Raises:
        ConfigurationError: anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = "" if type(value) is int else f"{type(value).__name__} "
        raise ConfigurationError(f"{name}: expected a whole number of at least {least}, got {kind}{value!r}")
    return value


def whole_number(name: str, value: object, least: int) -> int:
    """The value as an int, if it is a whole number of at least `least`; NumPy's integers are taken too.

    Raises:
        ConfigurationError: anything else.
    """
    return check_whole(name, operator.index(value) if isinstance(value, np.integer) else value, least)
