"""Amounts in a hardening's configuration: absolute or relative to the clip, and the checks that all of them share."""

from __future__ import annotations

from dataclasses import dataclass

from safexplain._validate import keep_number
from safexplain.errors import ConfigurationError


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
