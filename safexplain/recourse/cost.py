"""What a change costs: norms over columns in public units.

The scales are public. A scale computed from the training data, the median absolute deviation of Wachter, Mittelstadt
and Russell 2017 (arXiv 1711.00399, section on distance) above all, publishes statistics of the data with every distance
and counterfactual: take it from public data, or from what the features mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.result import Floats

Scale = Sequence[float] | NDArray[np.float64]


def _checked(scale: Scale, zero: str) -> tuple[float, ...]:
    values = real_numbers(scale, "scale", ConfigurationError)
    if values.ndim != 1 or not len(values):
        raise ConfigurationError(f"scale: expected one number a column, got shape {values.shape}")
    if not (np.isfinite(values) & (values >= 0)).all():
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise ConfigurationError(f"scale: expected positive finite numbers, got {worst}")
    if not values.all():
        raise ConfigurationError(f"scale: column {int((values == 0).argmax())} has scale 0; {zero}")
    with np.errstate(over="ignore"):
        reciprocal = 1.0 / values
    if not np.isfinite(reciprocal).all():
        raise ConfigurationError("scale: so small that 1/scale is infinite; use larger units")
    return tuple(values.tolist())


@dataclass(frozen=True)
class _Scaled:
    """Columns in public units."""

    power: ClassVar[int]
    """1: the parts of columns add up to the distance; 2: to its square."""
    zero: ClassVar[str] = "a change of that column would cost infinitely much"
    """What is wrong with a scale of 0."""

    scale: Scale | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", _checked(self.scale, self.zero))

    def weights(self, d: int) -> Floats:
        """(d,) 1/scale."""
        if self.scale is None:
            return np.ones(d)
        if len(self.scale) != d:
            raise ConfigurationError(f"scale: expected {d} numbers, one a column, got {len(self.scale)}")
        return 1.0 / np.asarray(self.scale, dtype=np.float64)

    def parts(self, delta: Floats) -> Floats:
        """(..., d) what each column of changes adds."""
        parts: Floats = np.abs(delta * self.weights(delta.shape[-1])) ** self.power
        return parts


@dataclass(frozen=True)
class L2(_Scaled):
    """Euclidean norm of change / scale.

    Args:
        scale: (d,) public unit of each column; None: 1.

    Raises:
        ConfigurationError: a scale that is not positive and finite.
    """

    power: ClassVar[int] = 2

    def distance(self, delta: Floats) -> Floats:
        """(...) cost of changes (..., d); does not overflow where the result does not."""
        scaled = delta * self.weights(delta.shape[-1])
        power = np.frexp(np.abs(scaled).max(axis=-1, initial=0.0, keepdims=True))[1]  # powers of two change no digit
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(scaled, -power), axis=-1), power[..., 0]))


@dataclass(frozen=True)
class L1(_Scaled):
    """Sum of |change| / scale, scale as in `L2`; answers change few columns."""

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
