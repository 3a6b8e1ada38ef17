"""What a change costs: norms over columns in public units, or shares of a public population that it overtakes.

The scales are public. A scale computed from the training data, the median absolute deviation of Wachter, Mittelstadt
and Russell 2017 (arXiv 1711.00399, section on distance) above all, publishes statistics of the data with every distance
and counterfactual: take it from public data, or from what the features mean. The same holds for the percentiles of
Ustun, Spangher and Liu 2019 (arXiv 1809.06514, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from safexplain._validate import check_number, real_numbers
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.feature_names import Features, column_names, is_mapping, limits
from safexplain.recourse.found import Floats

Scale = float | Mapping[Any, float] | Sequence[float] | NDArray[np.float64]

LEVELS = 200
"""Steps between the quantiles that `Percentile` keeps of public data."""
FLAT = 0.01
"""What a change across the whole public range of a column costs by `Percentile` besides the percentiles."""


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

    def parts(self, delta: Floats, x: Floats | None = None) -> Floats:
        """(..., d) what each column of changes adds, wherever they start (x)."""
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

    def distance(self, delta: Floats, x: Floats | None = None) -> Floats:
        """(...) cost of changes (..., d), wherever they start (x); does not overflow where the result does not."""
        scaled = self._scaled(delta)
        power: Any = np.frexp(np.abs(scaled).max(axis=-1, initial=0.0, keepdims=True))[
            1
        ]  # powers of two change no digit
        return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(scaled, -power), axis=-1), power[..., 0]))


@dataclass(frozen=True)
class L1(_Scaled):
    """Sum of |change| / scale, times `rise` or `fall`, given as for `L2`; answers change few columns."""

    power: ClassVar[int] = 1

    def distance(self, delta: Floats, x: Floats | None = None) -> Floats:
        """(...) cost of changes (..., d), wherever they start (x)."""
        return np.asarray(self.parts(delta).sum(axis=-1))

    def curve(self, column: int, x: float, low: float, high: float) -> tuple[Floats, Floats]:
        """Cost of bringing one column from x to anywhere between two finite limits; linear between the points.

        Returns:
            Points, ascending, from low to high, with x among them if it lies between, and their costs.
        """
        lengths = [len(given) for given in (self.scale, self.rise, self.fall) if isinstance(given, tuple)]
        rise, fall = (side[column] for side in self.units(max(lengths, default=column + 1)))
        points = _points(low, high, np.array([x]))
        return points, np.where(points > x, rise * (points - x), fall * (x - points))


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


@dataclass(frozen=True, eq=False)
class Percentile:
    """Sum over columns of the share of a public population that a change overtakes (Ustun, Spangher and Liu 2019).

    A change of a column from a to b costs |G(b) - G(a)|. G is the distribution function of its public values: at each
    of their quantiles the mean of the shares below it and up to it, linear between quantiles, constant beyond the least
    and greatest one; plus .01 (v - least) / (greatest - least), so that no change is free. So to go from the 20th
    percentile of incomes to the 50th costs .3, whatever the currency.

    Args:
        public: public data: a frame, a (m, d) array, or a mapping feature -> values, which may be of different lengths.
            NaN are left out. A frame with categories needs a preprocessing that encodes them. The training data are
            not public.
        category: what a change of a 0/1 column (public values 0 and 1 only) costs; another category of a one-hot group
            changes two of them.

    Raises:
        ConfigurationError: not numbers, or a column with fewer than two different values besides 0 and 1.
    """

    power: ClassVar[int] = 1
    symmetric: ClassVar[bool] = True

    public: Any = field(repr=False)
    category: float = 0.5
    _names: tuple[Any, ...] | None = field(init=False, repr=False)
    _columns: tuple[tuple[Floats, Floats], ...] = field(init=False, repr=False)
    _unread: str | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_number("category", self.category, above=0)
        object.__setattr__(self, "category", float(self.category))
        try:
            names, columns = _public_columns(self.public)
        except ConfigurationError as error:
            if isinstance(self.public, Mapping) or column_names(self.public) is None:
                raise
            names, columns = column_names(self.public), []  # a preprocessing may know its categories
            object.__setattr__(self, "_unread", str(error))
        object.__setattr__(self, "_names", names)
        shown = [repr(name) for name in names] if names else [f"column {at}" for at in range(len(columns))]
        found = tuple(self._distribution(values, name) for values, name in zip(columns, shown, strict=False))
        object.__setattr__(self, "_columns", found)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Percentile):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        columns = tuple((values.tobytes(), shares.tobytes()) for values, shares in self._columns)
        return self.category, self._names, columns

    def _distribution(self, values: Floats, name: str) -> tuple[Floats, Floats]:
        """Points of G and its values there."""
        values = np.sort(values[~np.isnan(values)])
        if not np.isfinite(values).all():
            raise ConfigurationError(f"public: {name} has infinite values; leave these rows out")
        if np.isin(values, (0.0, 1.0)).all():
            return np.array([0.0, 1.0]), np.array([0.0, self.category])
        if values[0] == values[-1]:
            raise ConfigurationError(
                f"public: {name} has one value only ({values[0]:g}), so no percentiles; add public rows that differ, or"
                " use L1 with a scale for it"
            )
        grid = np.unique(np.quantile(values, np.linspace(0, 1, LEVELS + 1), method="inverted_cdf"))
        below, up_to = (np.searchsorted(values, grid, side) / len(values) for side in ("left", "right"))
        return grid, (below + up_to) / 2 + FLAT * (grid - grid[0]) / (grid[-1] - grid[0])

    def named(self, features: Features) -> Percentile:
        """This cost for columns in the order of these features, where the public data have names.

        Raises:
            ConfigurationError: a feature that the public data have not.
        """
        if self._names is None or isinstance(features, int) or self._names == features or self._unread:
            return self
        lost = [name for name in features if name not in self._names]
        if lost:
            raise ConfigurationError(
                f"public: no column {lost[0]!r}; add its public values, or leave it out of the features"
                f" (it has {', '.join(map(str, self._names))})"
            )
        columns = dict(zip(self._names, _public_columns(self.public)[1], strict=True))
        return Percentile({name: columns[name] for name in features}, category=self.category)

    def check(self, d: int) -> None:
        """Raise ConfigurationError unless this is a cost of d columns."""
        if self._unread:
            raise ConfigurationError(self._unread)
        if len(self._columns) != d:
            raise ConfigurationError(f"public: expected {d} columns, as the queries have, got {len(self._columns)}")

    def share(self, column: int, values: Floats) -> Floats:
        """G of one column at values (...)."""
        points, shares = self._columns[column]
        width = points[-1] - points[0]
        slope = self.category if points[0] == 0.0 and width == 1.0 and len(points) == 2 else FLAT / width
        inside: Floats = np.interp(values, points, shares)
        beyond: Floats = np.maximum(values - points[-1], 0.0) - np.maximum(points[0] - values, 0.0)
        return inside + slope * beyond

    def steepness(self, column: int, middle: float) -> float:
        """Slope of G of one column, on average over this middle part of its public values."""
        points, shares = self._columns[column]
        ends = np.interp(shares[-1] * np.array([1 - middle, 1 + middle]) / 2, shares, points)
        rise = np.diff(self.share(column, ends))[0]
        return float(rise / (ends[1] - ends[0]))

    def parts(self, delta: Floats, x: Floats | None = None) -> Floats:
        """(..., d) what each column of changes from x (..., d) adds."""
        if x is None:
            raise InputError("x: a percentile cost depends on where a change starts; pass distance(change, x)")
        self.check(delta.shape[-1])
        after = np.asarray(x) + delta
        each = [
            np.abs(self.share(column, after[..., column]) - self.share(column, x[..., column]))
            for column in range(delta.shape[-1])
        ]
        return np.stack(each, axis=-1)

    def distance(self, delta: Floats, x: Floats | None = None) -> Floats:
        """(...) cost of changes (..., d) from x (..., d)."""
        return np.asarray(self.parts(delta, x).sum(axis=-1))

    def curve(self, column: int, x: float, low: float, high: float) -> tuple[Floats, Floats]:
        """Cost of bringing one column from x to anywhere between two finite limits; linear between the points.

        Returns:
            Points, ascending, from low to high, with x among them if it lies between, and their costs.
        """
        points = _points(low, high, np.append(self._columns[column][0], x))
        return points, np.abs(np.asarray(self.share(column, points) - self.share(column, np.array(x))))


def _points(low: float, high: float, inner: Floats) -> Floats:
    """The inner points that lie between two finite limits, and these."""
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise ConfigurationError(f"a curve needs finite limits, the lower one first, got {low} and {high}")
    return np.asarray(np.unique(np.concatenate([[low, high], inner[(inner > low) & (inner < high)]])))


def _public_columns(public: Any) -> tuple[tuple[Any, ...] | None, list[Floats]]:
    """Names, if there are any, and the values of each column of public data."""
    if isinstance(public, Mapping):
        names: tuple[Any, ...] | None = tuple(public)
        columns = [real_numbers(public[name], f"public, {name!r}", ConfigurationError) for name in public]
    else:
        names = column_names(public)
        hint = "expected numbers; encode categories as the preprocessing does: Percentile(preprocessing.table(frame))"
        table = real_numbers(public, "public", ConfigurationError, hint)
        if table.ndim != 2:
            raise ConfigurationError(f"public: expected shape (m, d), got {table.shape}")
        columns = list(table.T)
    for at, values in enumerate(columns):
        if values.ndim != 1 or np.isnan(values).all():
            shown = repr(names[at]) if names else f"column {at}"
            raise ConfigurationError(f"public: {shown} has no values; expected a list of public numbers")
    if not columns:
        raise ConfigurationError("public: expected at least one column")
    return names, columns


Cost = L1 | L2 | Percentile
"""What a change may cost; the solvers are exact for these."""

EUCLIDEAN = L2()
"""L2 in the columns' own units, the default cost."""


def check_cost(cost: Any) -> None:
    """Raise ConfigurationTypeError unless this is a `Cost`."""
    if not isinstance(cost, Cost):
        raise ConfigurationTypeError(f"cost: expected L2(), L1(), MAD(scale) or Percentile(public), got {cost!r}")


def for_columns(cost: Cost, features: Features | None, d: int) -> Cost:
    """The cost of d columns in the order of these features; None: they have no names.

    Raises:
        ConfigurationError: not a cost of such columns.
    """
    found = cost.named(d if features is None else features)
    found.check(d)
    return found
