"""Costs of changes: norms over columns in public units.

Scales must be public. A scale computed from training data, such as the median absolute deviation of Wachter,
Mittelstadt and Russell 2017 (arXiv 1711.00399), would publish statistics of the data with every answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.features import Features, is_mapping, limits
from safexplain.recourse.solution import Floats

Scale = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64]

SIDES = ("scale", "rise", "fall")


def _checked(given: Any, what: str, zero: str) -> Any:
    if is_mapping(given):
        return tuple(zip(given.keys(), _checked(list(given.values()), what, zero), strict=True))
    values = real_numbers(given, what, ConfigurationError)
    if values.ndim > 1 or not values.size or (values.ndim == 0 and what == "scale"):
        raise ConfigurationError(f"{what}: expected one number for each column, got shape {values.shape}")
    if (bad := ~(np.isfinite(values) & (values >= 0))).any():
        raise ConfigurationError(f"{what}: expected positive finite numbers, got {values[bad].flat[0]}")
    if not values.all():
        raise ConfigurationError(f"{what}: column {int((values == 0).argmax())} has {what} 0; {zero}")
    with np.errstate(over="ignore"):
        if what == "scale" and not np.isfinite(1.0 / values).all():
            raise ConfigurationError("scale: so small that 1/scale is infinite; use larger units")
    return tuple(values.tolist()) if values.ndim else float(values)


def by_name(given: Any) -> bool:
    """Whether a checked scale, rise or fall was given by name."""
    return isinstance(given, tuple) and isinstance(given[0], tuple)


@dataclass(frozen=True)
class _Scaled:
    power: ClassVar[int]
    """1: costs of columns add up to the distance; 2: to its square."""
    zero: ClassVar[str] = "a change of that column would cost infinitely much"
    """Message about a scale of 0."""

    scale: Scale | None = None
    rise: Scale = 1.0
    fall: Scale = 1.0

    def __post_init__(self) -> None:
        free = "free changes have no cheapest answer; give a small positive number"
        for name in SIDES if self.scale is not None else SIDES[1:]:
            checked = _checked(getattr(self, name), name, self.zero if name == "scale" else free)
            object.__setattr__(self, name, checked)

    def named(self, features: Features) -> Self:
        """This cost for columns in the order of these features; ConfigurationError: an unknown name."""
        named = {name: dict(given) for name in SIDES if by_name(given := getattr(self, name))}
        return replace(self, **{name: tuple(limits(features, v, name, 1.0).tolist()) for name, v in named.items()})

    def units(self, d: int) -> tuple[Floats, Floats]:
        """(d,) costs of a change of each column by one unit, up and down; ConfigurationError: not for d columns."""
        weights = np.ones(d) if self.scale is None else 1.0 / self._column(self.scale, "scale", d)
        return weights * self._column(self.rise, "rise", d), weights * self._column(self.fall, "fall", d)

    def parts(self, delta: Floats) -> Floats:
        """(..., d) contribution of each column of changes (..., d) to the distance or its square."""
        return np.asarray(np.abs(self._scaled(delta)) ** self.power)

    def _scaled(self, delta: Floats) -> Floats:
        rise, fall = self.units(delta.shape[-1])
        return np.asarray(delta * np.where(delta > 0, rise, fall))

    @staticmethod
    def _column(given: Any, what: str, d: int) -> Floats:
        if by_name(given):
            raise ConfigurationError(
                f"{what}: given by name ({given[0][0]!r}, ...), but these columns have no names; pass constraints or a"
                f" preprocessing with names, or one number for each column"
            )
        values = np.asarray(given, dtype=np.float64)
        if values.ndim and len(values) != d:
            raise ConfigurationError(f"{what}: expected {d} numbers, one for each column, got {len(values)}")
        return np.broadcast_to(values, (d,))


@dataclass(frozen=True)
class L2(_Scaled):
    """Euclidean norm of change / scale.

    Args:
        scale: public unit of each column: d numbers, or a mapping feature -> number (missing ones: 1); None: 1.
        rise: cost of a change upwards by one unit: one number for all columns, or as `scale`.
        fall: cost of a change downwards by one unit, likewise.

    Raises:
        ConfigurationError: a scale, rise or fall that is not positive and finite.
    """

    power: ClassVar[int] = 2

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d), without overflow in between."""
        scaled = self._scaled(delta)
        largest = np.abs(scaled).max(axis=-1, initial=0.0, keepdims=True)
        power: Any = np.frexp(largest)[1]  # division by powers of two changes no digit
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(scaled, -power), axis=-1), power[..., 0]))


@dataclass(frozen=True)
class L1(_Scaled):
    """Sum of |change| / scale, times `rise` or `fall`, as for `L2`; answers change few columns."""

    power: ClassVar[int] = 1

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d)."""
        return np.asarray(self.parts(delta).sum(axis=-1))


@dataclass(frozen=True)
class MAD(L1):
    """Sum of |change| / median absolute deviation (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399).

    Args:
        scale: (d,) median absolute deviations of PUBLIC data; those of the training data are private.

    Raises:
        ConfigurationError: no scale, or one that is not positive and finite.
    """

    zero: ClassVar[str] = (
        "the median absolute deviation is 0 where more than half of the rows share one value; choose a unit for that"
        " column, such as 1 for a 0/1 column"
    )

    def __post_init__(self) -> None:
        if self.scale is None:
            raise ConfigurationError("MAD: expected the median absolute deviations of public data, MAD(scale)")
        super().__post_init__()


Cost = L1 | L2
"""Costs for which the solvers are exact."""

EUCLIDEAN = L2()
"""L2 in the columns' own units, the default cost."""


def check_cost(cost: Any) -> None:
    """Raise ConfigurationTypeError unless this is a `Cost`."""
    if not isinstance(cost, Cost):
        raise ConfigurationTypeError(f"cost: expected L2(), L1() or MAD(scale), got {cost!r}")


def for_columns(cost: Cost, features: Features | None, d: int) -> Cost:
    """The cost for d columns in the order of these features (None: no names); ConfigurationError: it is for others."""
    found = cost.named(d if features is None else features)
    found.units(d)
    return found
