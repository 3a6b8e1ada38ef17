"""Report which answers are outliers among PUBLIC rows, by the local outlier factor (Breunig, Kriegel, Ng and Sander
2000, LOF: identifying density-based local outliers). With training rows, a report would reveal them bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import LocalOutlierFactor

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.features import check_columns, column_names
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse
from safexplain.recourse.solution import Floats, as_rows

LOF_LIMIT = 1.5
"""Local outlier factor above which scikit-learn calls rows outliers."""

SHARE = 0.02
"""Share of public rows that may count as outliers; of categories, many more have a local outlier factor above 1.5."""


@dataclass(frozen=True, eq=False)
class Plausibility:
    """Judges whether rows are plausible among public rows.

    The worst score in four units counts: public ranges (of a preprocessing), standard deviations and ranges of the
    public rows, except for columns of 0 and 1, and the columns' own units. In each, scores are scaled such that at most
    2 % of the public rows exceed 1.5.

    Args:
        public: (m, d) PUBLIC rows, never training rows: a table, or a frame with a `preprocessing`. Repeated rows count
            once, as densities would be infinite.
        neighbours: number of neighbours.
        preprocessing: of a frame, the same as the mechanism's; numbers outside a public range count as its ends.
            None: rows are plain numbers.

    Attributes:
        limit: score above which a row is an outlier, at least 1.5: 2 % of the public rows exceed it in their worst
            units.

    Raises:
        InputError: not finite numbers, not enough rows, or columns unknown to the preprocessing.
        ConfigurationError: a value out of range.
    """

    public: Any = field(repr=False)
    neighbours: int = 20
    preprocessing: Preprocessing | None = field(default=None, kw_only=True, repr=False)
    limit: float = field(init=False)
    _names: tuple[str, ...] | None = field(init=False, repr=False)
    _densities: tuple[_Density, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        neighbours = whole_number("neighbours", self.neighbours, 1)
        people = self.preprocessing
        try:
            rows = as_rows(self.public) if people is None else people.table(self.public, clip=True)
        except InputError as error:
            raise InputError(f"public: {str(error).removeprefix('x: ')}") from None
        distinct = np.unique(rows, axis=0)
        if len(distinct) <= neighbours:
            raise InputError(
                f"public: expected more than {neighbours} different rows, the number of neighbours, got {len(distinct)}"
            )
        ranges = np.ptp(rows, axis=0)
        ranges = np.where(ranges > 0, ranges, 1.0)
        public_unit = ranges if people is None else people.scale
        yes_or_no = ((rows == 0) | (rows == 1)).all(axis=0)
        deviation = np.where(yes_or_no | (rows.std(axis=0) == 0), public_unit, rows.std(axis=0))
        choices = (public_unit, deviation, np.where(yes_or_no, public_unit, ranges), np.ones_like(ranges))
        units = {unit.tobytes(): unit for unit in choices}.values()
        densities = tuple(_Density(distinct, unit, neighbours) for unit in units)
        of_public = np.max([one.of_public for one in densities], axis=0)
        object.__setattr__(self, "limit", max(float(np.quantile(of_public, 1 - SHARE)), LOF_LIMIT))
        object.__setattr__(self, "_names", column_names(self.public) if people is None else None)
        object.__setattr__(self, "_densities", densities)

    def scores(self, rows: Recourse | ArrayLike) -> Floats:
        """(n,) outlier scores: about 1 among public rows, above `limit` for outliers.

        Args:
            rows: an answer, whose counterfactuals are scored, or (n, d) rows like the public ones.

        Raises:
            InputError: rows with other columns than the public ones.
            ConfigurationError: an answer of a mechanism with another preprocessing.
        """
        table = self._table(rows)
        return np.asarray(np.max([one.scores(table) for one in self._densities], axis=0)) if len(table) else np.empty(0)

    def outliers(self, rows: Recourse | ArrayLike) -> NDArray[np.bool_]:
        """(n,) bool, which counterfactuals or rows are outliers among the public rows; arguments as for `scores`."""
        return np.asarray(self.scores(rows) > self.limit)

    def _table(self, rows: Recourse | ArrayLike) -> Floats:
        if isinstance(rows, Recourse):
            if rows.table != self.preprocessing:
                raise ConfigurationError(
                    "plausibility: expected the preprocessing of the mechanism that answered, got another one"
                )
            return as_rows(rows.counterfactual, len(self._densities[0].unit))
        if self.preprocessing is not None:
            return self.preprocessing.table(rows, clip=True)
        check_columns(self._names, rows, "its columns as the public rows have them")
        return as_rows(rows, len(self._densities[0].unit))


class _Density:
    """Scaled local outlier factors among public rows, in one choice of units."""

    def __init__(self, rows: Floats, unit: Floats, neighbours: int) -> None:
        self.unit = unit
        self.found: Any = LocalOutlierFactor(n_neighbors=neighbours, novelty=True).fit(rows / unit)
        factor = -self.found.negative_outlier_factor_
        self.slope = (LOF_LIMIT - 1) / (max(float(np.quantile(factor, 1 - SHARE)), LOF_LIMIT) - 1)
        self.of_public: Floats = 1 + self.slope * (factor - 1)

    def scores(self, table: Floats) -> Floats:
        return np.asarray(1 + self.slope * (-self.found.score_samples(table / self.unit) - 1))
