"""Report which answers are outliers among PUBLIC rows.

Rows are compared with public ones by the local outlier factor (Breunig, Kriegel, Ng and Sander 2000, LOF: identifying
density-based local outliers) or by the distance to the nearest. The rows must be PUBLIC: with training rows, such a
report would reveal them bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from safexplain._validate import whole_number
from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.features import check_columns, column_names
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse
from safexplain.recourse.solution import Floats, as_rows

Method = Literal["lof", "knn"]
Mask = NDArray[np.bool_]

LOF_LIMIT = 1.5
"""Local outlier factor above which scikit-learn calls rows outliers."""

SHARE = 0.02
"""Share of public rows that may count as outliers. If columns are mostly categories, many more rows have a local
outlier factor above 1.5."""


@dataclass(frozen=True, eq=False)
class Plausibility:
    """Judges whether rows are plausible among public rows.

    Outlier scores depend on the units of columns, so that rows are scored in four units, and the worst score counts:
    public ranges (of a preprocessing), standard deviations and ranges of the public rows, and the columns' own units.
    Columns of 0 and 1 keep their units in the second and third. In each, scores are scaled such that 2 % of the public
    rows exceed 1.5, or for "lof" those above scikit-learn's limit 1.5 if they are fewer.

    Args:
        public: (m, d) PUBLIC rows, never training rows: a table, or a frame with a `preprocessing`. Repeated rows count
            once, as densities would be infinite.
        method: "lof", the local outlier factor; or "knn", the mean distance to the nearest public rows, relative to the
            median of the public rows.
        neighbours: number of neighbours.
        preprocessing: of a frame, the same as the mechanism's; numbers outside a public range count as its ends.
            None: rows are plain numbers.

    Attributes:
        limit: score above which a row is an outlier: 2 % of the public rows exceed it in their worst units; for "lof"
            at least 1.5, scikit-learn's limit.

    Raises:
        InputError: not finite numbers, not enough rows, or columns unknown to the preprocessing.
        ConfigurationError: a value out of range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> plausible = Plausibility(rng.normal(size=(500, 2)))
        >>> plausible.outliers([[0, 0], [9, -9]]).tolist()
        [False, True]
    """

    public: Any = field(repr=False)
    method: Method = "lof"
    neighbours: int = 20
    preprocessing: Preprocessing | None = field(default=None, kw_only=True, repr=False)
    limit: float = field(init=False)
    _rows: Floats = field(init=False, repr=False)
    _first: NDArray[np.intp] = field(init=False, repr=False)
    _names: tuple[str, ...] | None = field(init=False, repr=False)
    _densities: tuple[_Density, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ConfigurationError(f'method: expected "lof" or "knn", got {self.method!r}')
        neighbours = whole_number("neighbours", self.neighbours, 1)
        people = self.preprocessing
        names: tuple[str, ...] | None
        if people is not None:
            rows, names = people.table(self.public, clip=True), people.columns
        else:
            try:
                rows, names = as_rows(self.public), column_names(self.public)
            except InputError as error:
                raise InputError(f"public: {str(error).removeprefix('x: ')}") from None
        first = np.unique(rows, axis=0, return_index=True)[1]
        if len(first) <= neighbours:
            raise InputError(
                f"public: expected more than {neighbours} different rows, the number of neighbours, got {len(first)};"
                " pass more public rows, or fewer neighbours"
            )
        ranges = np.ptp(rows, axis=0)
        ranges = np.where(ranges > 0, ranges, 1.0)
        public_unit = ranges if people is None else people.scale
        yes_or_no = ((rows == 0) | (rows == 1)).all(axis=0)
        deviation = np.where(yes_or_no | (rows.std(axis=0) == 0), public_unit, rows.std(axis=0))
        choices = (public_unit, deviation, np.where(yes_or_no, public_unit, ranges), np.ones_like(ranges))
        units = {unit.tobytes(): unit for unit in choices}.values()
        densities = tuple(_Density(rows[first], unit, self.method, neighbours) for unit in units)
        limit = float(np.quantile(np.max([one.of_public for one in densities], axis=0), 1 - SHARE))
        limit = max(limit, LOF_LIMIT) if self.method == "lof" else limit
        made = {"neighbours": neighbours, "limit": limit, "_rows": rows, "_first": first, "_names": names}
        for name, value in {**made, "_densities": densities}.items():
            object.__setattr__(self, name, value)

    def scores(self, rows: Recourse | ArrayLike) -> Floats:
        """(n,) outlier scores: about 1 among public rows, above `limit` for outliers.

        Args:
            rows: an answer, whose counterfactuals are scored, or (n, d) rows like the public ones.

        Raises:
            InputError: rows with other columns than the public ones.
            ConfigurationError: an answer of a mechanism with another preprocessing.
        """
        table = self._table(rows)
        if not len(table):
            return np.empty(0)
        return np.asarray(np.max([one.scores(table) for one in self._densities], axis=0))

    def outliers(self, rows: Recourse | ArrayLike) -> Mask:
        """(n,) bool, which counterfactuals or rows are outliers among the public rows; arguments as for `scores`."""
        return np.asarray(self.scores(rows) > self.limit)

    def nearest(self, rows: Recourse | ArrayLike) -> NDArray[np.intp]:
        """(n,) position of the public row nearest to each counterfactual or row; arguments as for `scores`."""
        return np.asarray(self._first[self._densities[0].nearest(self._table(rows))])

    def _table(self, rows: Recourse | ArrayLike) -> Floats:
        """(n, d) rows in the columns of the public ones."""
        width = self._rows.shape[1]
        if isinstance(rows, Recourse):
            if rows.table != self.preprocessing:
                raise ConfigurationError(
                    "plausibility: expected the preprocessing of the mechanism that answered, got another one"
                )
            if rows.counterfactual.shape[1] != width:
                raise InputError(
                    f"rows: expected an answer of {width} columns, as the public rows, got"
                    f" {rows.counterfactual.shape[1]}"
                )
            return rows.counterfactual
        if self.preprocessing is not None:
            return self.preprocessing.table(rows, clip=True)
        check_columns(self._names, rows, "its columns as the public rows have them")
        return as_rows(rows, width)


class _Density:
    """Density of public rows around a row, in one choice of units.

    To make units comparable, scores are scaled: 1 stays 1, and `SHARE` of the public rows, or those beyond
    scikit-learn's limit if fewer, exceed `LOF_LIMIT`.
    """

    def __init__(self, rows: Floats, unit: Floats, method: Method, neighbours: int) -> None:
        self.unit, self.typical = unit, 1.0
        if method == "lof":
            self.found: Any = LocalOutlierFactor(n_neighbors=neighbours, novelty=True).fit(rows / unit)
            score, least = -self.found.negative_outlier_factor_, LOF_LIMIT
        else:
            self.found = NearestNeighbors(n_neighbors=neighbours).fit(rows / unit)
            distance = self.found.kneighbors(None)[0].mean(axis=1)  # to others than the row itself
            self.typical = float(np.median(distance)) or 1.0
            score, least = distance / self.typical, 1 + 1e-6
        self.slope = (LOF_LIMIT - 1) / (max(float(np.quantile(score, 1 - SHARE)), least) - 1)
        self.of_public: Floats = 1 + self.slope * (score - 1)

    def scores(self, table: Floats) -> Floats:
        """(n,) scaled outlier scores of rows (n, d)."""
        if isinstance(self.found, LocalOutlierFactor):
            score = -self.found.score_samples(table / self.unit)
        else:
            score = self.found.kneighbors(table / self.unit)[0].mean(axis=1) / self.typical
        return np.asarray(1 + self.slope * (score - 1))

    def nearest(self, table: Floats) -> NDArray[np.intp]:
        """(n,) positions of the nearest public rows."""
        return np.asarray(self.found.kneighbors(table / self.unit, 1, return_distance=False)[:, 0])
