"""What a change costs: norms over columns in public units.

The scales are public. A scale computed from the training data, the median absolute deviation of Wachter, Mittelstadt
and Russell 2017 (arXiv 1711.00399, section on distance) above all, publishes statistics of the data with every distance
and counterfactual: take it from public data, or from what the features mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.feature_names import Features, is_mapping, limits
from safexplain.recourse.found import Floats

Scale = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64]


def _checked(given: Any, what: str, zero: str) -> Any:
    """Positive finite numbers: one, a tuple, or pairs (feature, number); hashable."""
    if is_mapping(given):
        names = tuple(given.keys())
        return tuple(zip(names, _checked(list(given.values()), what, zero), strict=True))
    values = real_numbers(given, what, ConfigurationError)
    if values.ndim > 1 or not values.size or (values.ndim == 0 and what == "scale"):
        raise ConfigurationError(f"{what}: expected one number a column, got shape {values.shape}")
    if not (np.isfinite(values) & (values >= 0)).all():
        worst = values[~(np.isfinite(values) & (values >= 0))].flat[0]
        raise ConfigurationError(f"{what}: expected positive finite numbers, got {worst}")
    if not values.all():
        raise ConfigurationError(f"{what}: column {int((values == 0).argmax())} has {what} 0; {zero}")
    with np.errstate(over="ignore"):
        reciprocal = 1.0 / values
    if what == "scale" and not np.isfinite(reciprocal).all():
        raise ConfigurationError("scale: so small that 1/scale is infinite; use larger units")
    return tuple(values.tolist()) if values.ndim else float(values)


def _by_name(given: Any) -> bool:
    return isinstance(given, tuple) and isinstance(given[0], tuple)


@dataclass(frozen=True)
class _Scaled:
    """Columns in public units, up and down."""

    power: ClassVar[int]
    """1: the parts of columns add up to the distance; 2: to its square."""
    zero: ClassVar[str] = "a change of that column would cost infinitely much"
    """What is wrong with a scale of 0."""

    scale: Scale | None = None
    rise: Scale = 1.0
    fall: Scale = 1.0

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", _checked(self.scale, "scale", self.zero))
        for name in ("rise", "fall"):
            free = "a change for free has no cheapest answer; give a small positive number"
            object.__setattr__(self, name, _checked(getattr(self, name), name, free))

    def named(self, features: Features) -> Self:
        """This cost for columns in the order of these features; numbers given by name are looked up.

        Raises:
            ConfigurationError: a name that is not among the features.
        """
        found = {}
        for name in ("scale", "rise", "fall"):
            if _by_name(given := getattr(self, name)):
                found[name] = tuple(limits(features, dict(given), name, 1.0).tolist())
        return replace(self, **found) if found else self

    def check(self, d: int) -> None:
        """Raise ConfigurationError unless this is a cost of d columns."""
        self.units(d)

    def weights(self, d: int) -> Floats:
        """(d,) 1/scale."""
        return np.ones(d) if self.scale is None else 1.0 / self._column(self.scale, "scale", d)

    def units(self, d: int) -> tuple[Floats, Floats]:
        """What a change by one unit costs each column, upwards and downwards: (d,) each."""
        weights = self.weights(d)
        return weights * self._column(self.rise, "rise", d), weights * self._column(self.fall, "fall", d)

    @property
    def symmetric(self) -> bool:
        """Whether rising costs what falling does, whatever the column, because neither was given."""
        return self.rise == 1.0 and self.fall == 1.0

    def parts(self, delta: Floats) -> Floats:
        """(..., d) what each column of changes (..., d) adds, to the distance or to its square."""
        return np.asarray(np.abs(self._scaled(delta)) ** self.power)

    def _scaled(self, delta: Floats) -> Floats:
        """(..., d) changes times what a unit of them costs."""
        rise, fall = self.units(delta.shape[-1])
        scaled: Floats = delta * (rise if self.symmetric else np.where(delta > 0, rise, fall))
        return scaled

    @staticmethod
    def _column(given: Any, what: str, d: int) -> Floats:
        if _by_name(given):
            raise ConfigurationError(
                f"{what}: given by name ({given[0][0]!r}, ...), but the columns have none here; pass constraints or a"
                f" preprocessing with names, or one number a column"
            )
        values = np.asarray(given, dtype=np.float64)
        if values.ndim and len(values) != d:
            raise ConfigurationError(f"{what}: expected {d} numbers, one a column, got {len(values)}")
        return np.broadcast_to(values, (d,))


@dataclass(frozen=True)
class L2(_Scaled):
    """Euclidean norm of change / scale.

    Args:
        scale: public unit of each column: d numbers, or a mapping feature -> number (1 where it has none); None: 1.
        rise: what a change upwards by one unit costs, 1 by default: one number for all columns, or given as `scale` is.
        fall: what a change downwards by one unit costs, likewise.

    Raises:
        ConfigurationError: a scale, or a price of rising or falling, that is not positive and finite.
    """

    power: ClassVar[int] = 2

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d); does not overflow where the result does not."""
        scaled = self._scaled(delta)
        power: Any = np.frexp(np.abs(scaled).max(axis=-1, initial=0.0, keepdims=True))[
            1
        ]  # powers of two change no digit
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(scaled, -power), axis=-1), power[..., 0]))


@dataclass(frozen=True)
class L1(_Scaled):
    """Sum of |change| / scale, times `rise` or `fall`, given as for `L2`; answers change few columns."""

    power: ClassVar[int] = 1

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d)."""
        return np.asarray(self.parts(delta).sum(axis=-1))


@dataclass(frozen=True)
class MAD(L1):
    """Sum of |change| / median absolute deviation (Wachter, Mittelstadt and Russell 2017, arXiv 1711.00399).

    Args:
        scale: (d,) median absolute deviations of PUBLIC data; those of the training data are private.
        rise: as in `L1`.
        fall: as in `L1`.

    Raises:
        ConfigurationError: no scale, or one that is not positive and finite.
    """

    zero: ClassVar[str] = (
        "the median absolute deviation is 0 where more than half of the rows share one value, as rare categories do;"
        " give that column a unit of your own, 1 for a 0/1 column"
    )

    def __post_init__(self) -> None:
        if self.scale is None:
            raise ConfigurationError("MAD needs the median absolute deviations of public data: MAD(scale)")
        super().__post_init__()


Cost = L1 | L2
"""What a change may cost; the solvers are exact for these."""

EUCLIDEAN = L2()
"""L2 in the columns' own units, the default cost."""


def check_cost(cost: Any) -> None:
    """Raise ConfigurationTypeError unless this is a `Cost`."""
    if not isinstance(cost, Cost):
        raise ConfigurationTypeError(f"cost: expected L2(), L1() or MAD(scale), got {cost!r}")


def for_columns(cost: Cost, features: Features | None, d: int) -> Cost:
    """The cost of d columns in the order of these features; None: they have no names.

    Raises:
        ConfigurationError: not a cost of such columns.
    """
    found = cost.named(d if features is None else features)
    found.check(d)
    return found
