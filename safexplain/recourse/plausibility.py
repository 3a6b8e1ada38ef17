"""Answers that look like rows that there are: outliers among PUBLIC rows are found, or ruled out.

The cheapest change that a model accepts often leads where nobody is: one column moves far, and those that go with it
stay behind. `Plausibility` compares rows with public ones, by the local outlier factor (Breunig, Kriegel, Ng and Sander
2000, LOF: identifying density-based local outliers) or by the distance to the nearest of them, as a report and as a
constraint. Kanamori, Takagi, Kobayashi and Arimura 2020 (DACE, IJCAI, section 3) put the local outlier factor into the
cost; here it is a limit, so that what is said of an answer can be checked.

The rows must be PUBLIC: data that were released before, of another bank, or made up. An answer depends on them, and so
does whether there is one; the rows that a model was trained on would be published bit by bit. Where they are public,
answers are a function of the private model, of the query and of public knowledge, which is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from safexplain._validate import check_number, whole_number
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost, for_columns
from safexplain.recourse.feature_names import check_columns, column_names
from safexplain.recourse.frames import kind_of
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Floats, Recourse, as_rows

Method = Literal["lof", "knn"]
Mask = NDArray[np.bool_]
Within = tuple[Floats, Floats] | None
Solve = Callable[[NDArray[np.intp], Within], Recourse]
"""Cheapest answers to the queries at these positions, each within its own box of (lower, upper) limits, (k, d) each."""

PUBLIC_ROWS = "the rows that plausibility compares answers with are public: none of them is a training row"

LOF_LIMIT = 1.5
"""Local outlier factor above which rows are outliers for scikit-learn."""

SHARE = 0.02
"""Share of public rows that may be outliers themselves. Where they are mostly categories, many more than these have a
local outlier factor above 1.5, and it would say little about anybody."""

_STEPS = (1.0, 0.5, 0.25, 0.12, 0.06)
"""Half widths of the boxes around a query that are tried, in spreads of the public rows."""

_MARGINS = (0.2, 0.1, 0.0)
"""How much further than a query and a public row the box that spans both reaches, likewise."""

_ROWS = 8
"""Public rows that each query is led towards."""

_NEARLY = 1.02
"""Times the cheapest answer's cost that is good enough."""

_HALVINGS = 4
_CHUNK = 2**22


@dataclass(frozen=True, eq=False)
class Plausibility:
    """What public rows say about whether a row is plausible; a report by itself, a constraint as `plausibility=`.

    How far out a row is depends on the units of its columns, so that it is judged in four, and the worst one counts: in
    public ranges (of a preprocessing), in standard deviations and in ranges of the public rows, and in columns as they
    are. Columns of 0 and 1 stay as they are in the second and third. In each the score counts by its own distribution:
    1.5 is that of 2 % of the public rows there, and for "lof" at least scikit-learn's 1.5.

    As a constraint: an answer is further inside than the limit (`strictness`) wherever such an answer is found, because
    the cheapest answers lie at the edge, and other public rows, or more of them, draw the limit elsewhere. Otherwise,
    and for people who are further out themselves, it may be up to half of the way to the limit. Queries for which no
    such answer is found are answered `valid` False; those that are favourable already stay as they are.

    Args:
        public: (m, d) PUBLIC rows, never training rows: a table, or a frame as people see it, with a `preprocessing`.
            Rows that occur more than once count once, as densities are infinite otherwise.
        method: "lof", the local outlier factor; or "knn", the mean distance to the nearest public rows, in units of
            the median of public rows.
        neighbours: how many.
        preprocessing: the `Preprocessing` of a frame, in which public numbers outside of a range count as its ends.
            None: that of the mechanism, the search or the answer; and where these have none, rows are numbers as they
            are.
        quantiles: two quantiles of the public rows, such as (.005, .995), that changed values stay between. A query
            beyond one of them may stay where it is, or come back. None: no such limits.
        strictness: share of public rows that lie further out than answers should.

    Attributes:
        limit: score above which a row is an outlier: that of 2 % of the public rows, by their worst units, and for
            "lof" at least 1.5, which is scikit-learn's limit.
        aim: score that answers are sought below.

    Raises:
        InputError: not finite numbers, not enough rows, or columns that the preprocessing does not know.
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
    quantiles: tuple[float, float] | None = field(default=None, kw_only=True)
    strictness: float = field(default=0.25, kw_only=True)
    limit: float = field(init=False)
    aim: float = field(init=False)
    _rows: Floats = field(init=False, repr=False)
    _first: NDArray[np.intp] = field(init=False, repr=False)
    _spread: Floats = field(init=False, repr=False)
    _names: tuple[str, ...] | None = field(init=False, repr=False)
    _densities: tuple[_Density, ...] = field(init=False, repr=False)
    _unread: str = field(init=False, repr=False)
    _others: dict[str, Self] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ConfigurationError(f'method: expected "lof" or "knn", got {self.method!r}')
        neighbours = whole_number("neighbours", self.neighbours, 1)
        check_number("strictness", self.strictness, above=0, below=0.5)
        _check_quantiles(self.quantiles)
        self._keep({"neighbours": neighbours, "limit": np.nan, "aim": np.nan, "_unread": ""})
        try:
            rows = self._read(self.public, "public")
        except InputError as error:
            if self.preprocessing is not None or kind_of(self.public) is None:
                raise
            self._keep({"_unread": str(error)})  # a frame of people, which a mechanism or an answer can read
            return
        first = np.unique(rows, axis=0, return_index=True)[1]
        if len(first) <= neighbours:
            raise InputError(
                f"public: expected more than {neighbours} different rows, as many as there are neighbours and one, got"
                f" {len(first)}; give more public rows, or fewer neighbours"
            )
        low, high = np.quantile(rows, [0.05, 0.95], axis=0)
        ranges = np.ptp(rows, axis=0)
        ranges = np.where(ranges > 0, ranges, 1.0)
        spread = np.where(high > low, high - low, ranges)
        names = column_names(self.public) if self.preprocessing is None else self.preprocessing.columns
        public_unit = ranges if self.preprocessing is None else _public_units(self.preprocessing, ranges)
        yes_or_no = ((rows == 0) | (rows == 1)).all(axis=0)
        deviation = np.where(yes_or_no | (rows.std(axis=0) == 0), public_unit, rows.std(axis=0))
        choices = (public_unit, deviation, np.where(yes_or_no, public_unit, ranges), np.ones_like(ranges))
        units = {unit.tobytes(): unit for unit in choices}.values()
        densities = tuple(_Density(rows[first], unit, self.method, neighbours) for unit in units)
        of_public = np.max([one.of_public for one in densities], axis=0)
        aim, limit = np.quantile(of_public, [1 - self.strictness, 1 - SHARE]).tolist()
        limit = max(limit, LOF_LIMIT) if self.method == "lof" else limit
        values = {"_rows": rows, "_first": first, "_names": names, "_spread": spread, "_densities": densities}
        self._keep({**values, "limit": limit, "aim": min(aim, limit)})

    def scores(self, rows: Recourse | ArrayLike) -> Floats:
        """(n,) how far out rows are: about 1 among public rows, above `limit` for outliers.

        Args:
            rows: an answer, of which the counterfactuals count, or (n, d) rows in the form of the public ones.

        Raises:
            InputError: rows of another form than the public ones.
        """
        plausible, table = self._for(rows)
        return plausible._scores(table)

    def outliers(self, rows: Recourse | ArrayLike) -> Mask:
        """(n,) bool, which counterfactuals, or rows, are outliers among the public rows; arguments as `scores`."""
        plausible, table = self._for(rows)
        return np.asarray(plausible._scores(table) > plausible.limit)

    def nearest(self, rows: Recourse | ArrayLike) -> NDArray[np.intp]:
        """(n,) position of the public row that is nearest to each counterfactual, or row; arguments as `scores`."""
        plausible, table = self._for(rows)
        return np.asarray(plausible._first[plausible._densities[0].nearest(table)])

    def limits(
        self, quantiles: tuple[float, float] = (0.005, 0.995)
    ) -> tuple[dict[int | str, float], dict[int | str, float]]:
        """Quantiles of the public rows for `Constraints(lower=..., upper=...)`, by column.

        Queries outside of them are refused then, as limits of `Constraints` hold for queries too; with `quantiles` of
        the Plausibility itself they are answered.

        Raises:
            ConfigurationError: not two increasing shares.
        """
        if quantiles is None:
            raise ConfigurationError("quantiles: expected two increasing shares, such as (.005, .995), got None")
        _check_quantiles(quantiles)
        self._check_read()
        names = range(self._rows.shape[1]) if self._names is None else self._names
        low, high = np.quantile(self._rows, quantiles, axis=0).tolist()
        return dict(zip(names, low, strict=True)), dict(zip(names, high, strict=True))

    def of(self, preprocessing: Preprocessing | None, width: int | None = None) -> Self:
        """This, about rows of a preprocessing's table; itself if it has one, or without a preprocessing.

        Raises:
            ConfigurationError: another preprocessing than its own, or a table of another number of columns.
        """
        if preprocessing is not None and self.preprocessing is None:
            if preprocessing.digest not in self._others:
                self._others[preprocessing.digest] = replace(self, preprocessing=preprocessing)
            return self._others[preprocessing.digest].of(preprocessing, width)
        if self.preprocessing != preprocessing:
            raise ConfigurationError("plausibility: it has another preprocessing than what answers; give both the same")
        self._check_read()
        if width not in (None, self._rows.shape[1]):
            raise ConfigurationError(
                f"plausibility: its public rows have {self._rows.shape[1]} columns, but the model {width}; give it"
                " rows of the model's own columns"
            )
        return self

    def answers(
        self,
        rows: Floats,
        solve: Solve,
        accepts: Callable[[Floats], Mask],
        *,
        cost: Cost,
        constraints: Constraints | None = None,
        frozen: Mask | None = None,
    ) -> Recourse:
        """Cheapest answers found that are no outliers; what mechanisms and searches call.

        Every candidate is an answer of the solver, within a box: around the query, ever narrower, so that a change
        is shared by more columns; and spanned by the query and one of the nearest public rows that the model accepts,
        so that columns only move as they differ between people. Answers whose first candidate is no outlier are as
        good and as `proven` as the solver's; the others cost at least as much as the solver's first, which bounds how
        far they are from the cheapest plausible answer, and are not proven.

        Args:
            rows: (n, d) queries, table columns.
            solve: the solver.
            accepts: (k, d) rows -> (k,) bool, whether the model accepts them.
            cost: what the solver minimises, of the columns or by the names that the constraints give them.
            constraints: those that the solver keeps.
            frozen: (n, d) bool, as in `linear_recourse`.
        """
        rules = Constraints(rows.shape[1]) if constraints is None else constraints
        cost = for_columns(cost, rules.features, rows.shape[1])
        box = self._box(rows)
        found = solve(np.arange(len(rows)), box)
        search = _Search(self, found, solve, box, rules)
        if len(search.todo):
            accepted = self._accepted(accepts)
            search.around_queries()
            if len(accepted):
                search.towards(accepted, cost, frozen)
                search.instead(accepted, cost, frozen)
            search.back()
        return search.result()

    def _box(self, rows: Floats) -> Within:
        if self.quantiles is None:
            return None
        low, high = np.quantile(self._rows, self.quantiles, axis=0)
        return np.minimum(rows, low), np.maximum(rows, high)

    def _accepted(self, accepts: Callable[[Floats], Mask]) -> Floats:
        """(k, d) public rows that the model accepts and that are no outliers themselves."""
        rows = self._rows[self._first]
        rows = rows[accepts(rows)]
        inside: Floats = rows[self._scores(rows) <= self.aim] if len(rows) else rows
        return inside

    def _scores(self, table: Floats) -> Floats:
        if not len(table):
            return np.empty(0)
        return np.asarray(np.max([one.scores(table) for one in self._densities], axis=0))

    def _for(self, rows: Recourse | ArrayLike) -> tuple[Plausibility, Floats]:
        """What rows are compared by, an answer's own preprocessing if it has one; and (n, d) rows of its table."""
        if not isinstance(rows, Recourse):
            self._check_read()
            return self, self._read(rows, "rows")
        plausible = self.of(rows.table if isinstance(rows.table, Preprocessing) else self.preprocessing)
        width = plausible._rows.shape[1]
        if rows.counterfactual.shape[1] != width:
            raise InputError(f"rows: the answer has {rows.counterfactual.shape[1]} columns, the public rows {width}")
        return plausible, rows.counterfactual

    def _check_read(self) -> None:
        if self._unread:
            raise InputError(self._unread)

    def _read(self, rows: Any, what: str) -> Floats:
        """(n, d) table of public rows, or of rows like them."""
        if self.preprocessing is not None:
            return self.preprocessing.table(rows, clip=True)
        if what == "public":
            try:
                return as_rows(rows)
            except InputError as error:
                raise InputError(
                    f"public: {str(error).removeprefix('x: ')}; a frame of people as they are needs preprocessing=, the"
                    " same as the mechanism has"
                ) from None
        check_columns(self._names, rows, "its columns as the public rows have them")
        return as_rows(rows, self._rows.shape[1])

    def _keep(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class _Density:
    """How dense public rows lie around a row, in one choice of units.

    Most public rows have a local outlier factor of about 1 in any units, but how far the others reach differs: where
    many share a category or a 0, to hundreds. So that no units drown the others, scores are stretched: 1 stays 1, and
    `SHARE` of the public rows, or those beyond scikit-learn's limit if that is fewer, are beyond `LOF_LIMIT`.
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
        """(n,) how far out rows (n, d) are."""
        if isinstance(self.found, LocalOutlierFactor):
            score = -self.found.score_samples(table / self.unit)
        else:
            score = self.found.kneighbors(table / self.unit)[0].mean(axis=1) / self.typical
        return np.asarray(1 + self.slope * (score - 1))

    def nearest(self, table: Floats) -> NDArray[np.intp]:
        """(n,) positions of the nearest public rows."""
        return np.asarray(self.found.kneighbors(table / self.unit, 1, return_distance=False)[:, 0])


def check_plausibility(plausibility: Any) -> None:
    """Raise ConfigurationTypeError unless this is a Plausibility or None."""
    if plausibility is not None and not isinstance(plausibility, Plausibility):
        raise ConfigurationTypeError(f"plausibility: expected Plausibility(public rows), got {plausibility!r}")


def _public_units(preprocessing: Preprocessing, ranges: Floats) -> Floats:
    """(D,) units in which rows are compared: half the public range, or else half the range of the public rows."""
    ranged = np.array([np.isfinite(part.high - part.low) for part in preprocessing.parts])
    return np.where(ranged[preprocessing.feature_of], preprocessing.scale, ranges / 2)


def _check_quantiles(quantiles: Any) -> None:
    if quantiles is None:
        return
    if not isinstance(quantiles, (tuple, list)) or len(quantiles) != 2:
        raise ConfigurationError(f"quantiles: expected two shares, such as (.005, .995), got {quantiles!r}")
    low, high = (check_number("quantiles", share, minimum=0) for share in quantiles)
    if not low < high <= 1:
        raise ConfigurationError(f"quantiles: expected two increasing shares of at most 1, got {quantiles!r}")


class _Search:
    """The cheapest inlier of each query so far."""

    def __init__(self, plausible: Plausibility, found: Recourse, solve: Solve, box: Within, rules: Constraints) -> None:
        self.plausible, self.solve, self.box, self.rules, self.first = plausible, solve, box, rules, found
        asked = np.flatnonzero(found.valid & ~found.favourable)
        score = np.zeros(len(found))
        score[asked] = plausible._scores(found.counterfactual[asked])
        own, self.aim = np.zeros(len(found)), np.full(len(found), plausible.aim)
        own[asked] = plausible._scores(found.x[asked])
        self.limit = (plausible.aim + plausible.limit) / 2
        self.aim = np.clip(own, plausible.aim, self.limit)
        self.todo = asked[score[asked] > self.aim[asked]]
        self.score = np.where(np.isin(np.arange(len(found)), self.todo), score, 0.0)
        self.distance = np.where(self.score > self.limit, np.inf, found.distance)
        self.counterfactual = found.counterfactual.copy()
        self.proven = found.proven.copy()
        self.spread = plausible._spread.copy()
        for group in rules.groups:
            self.spread[group] = np.inf  # a category is as far as any other

    def consider(self, at: NDArray[np.intp], lower: Floats, upper: Floats) -> Mask:
        """Solve in these boxes, keep what is better, and say where a candidate was plausible."""
        if not len(at):
            return np.empty(0, dtype=bool)
        if self.box is not None:
            lower, upper = np.maximum(lower, self.box[0][at]), np.minimum(upper, self.box[1][at])
        found = self.solve(at, (lower, upper))
        usable = np.flatnonzero(found.valid)
        score = np.full(len(at), np.inf)
        score[usable] = self.plausible._scores(found.counterfactual[usable])
        inside, settled = score <= self.aim[at], self.score[at] <= self.aim[at]
        nearer = found.distance < self.distance[at]
        better = np.where(inside, ~settled | nearer, ~settled & (score <= self.limit) & (score < self.score[at]))
        kept = at[better]
        self.counterfactual[kept], self.distance[kept] = found.counterfactual[better], found.distance[better]
        self.score[kept] = score[better]
        return inside

    def around_queries(self) -> None:
        """Boxes around each query, narrower until the answer is plausible; then the widest that still is, about."""
        x, at = self.first.x, self.todo
        narrow, wide = np.zeros(len(x)), np.full(len(x), np.inf)
        for width in _STEPS:
            inside = self._around(at, np.full(len(at), width))
            narrow[at[inside]], wide[at[~inside]] = width, width
            at = at[~inside]
        at = self.todo[narrow[self.todo] > 0]
        wide[at] = np.minimum(wide[at], 2.0)
        for _ in range(_HALVINGS):
            middle = (narrow[at] + wide[at]) / 2
            inside = self._around(at, middle)
            narrow[at[inside]], wide[at[~inside]] = middle[inside], middle[~inside]

    def _around(self, at: NDArray[np.intp], width: Floats) -> Mask:
        reach, x = width[:, None] * self.spread, self.first.x[at]
        return self.consider(at, x - reach, x + reach)

    def towards(self, accepted: Floats, cost: Cost, frozen: Mask | None) -> None:
        """Boxes that a query spans with a public row that the model accepts, wider and narrower."""
        spread = np.where(np.isfinite(self.spread), self.spread, 0.0)
        settled = self.score[self.todo] <= self.aim[self.todo]
        dear = self.todo[~settled | (self.distance[self.todo] > _NEARLY * self.first.distance[self.todo])]
        for others in self._nearest(dear, accepted, cost, frozen).transpose(1, 0, 2):
            left = np.arange(len(dear))
            for margin in _MARGINS:
                at, other = dear[left], others[left]
                x = self.first.x[at]
                low, high = np.minimum(x, other) - margin * spread, np.maximum(x, other) + margin * spread
                left = left[~self.consider(at, low, high)]

    def _nearest(self, queries: NDArray[np.intp], accepted: Floats, cost: Cost, frozen: Mask | None) -> Floats:
        """(queries, k, d) public rows that it costs least to become like, as far as the constraints let one."""
        count, found = min(_ROWS, len(accepted)), []
        for at in np.array_split(queries, max(1, -(-len(queries) * accepted.size // _CHUNK))):
            x = self.first.x[at]
            lower, upper = self.rules.bounds(x, None if frozen is None else frozen[at])
            allowed = np.clip(accepted, lower[:, None], upper[:, None])
            distance = cost.distance(allowed - x[:, None], x[:, None])
            best = np.argpartition(distance, count - 1, axis=1)[:, :count]
            best = np.take_along_axis(best, np.take_along_axis(distance, best, axis=1).argsort(axis=1), axis=1)
            found.append(np.take_along_axis(allowed, best[:, :, None], axis=1))
        return np.concatenate(found)

    def instead(self, accepted: Floats, cost: Cost, frozen: Mask | None) -> None:
        """For queries whose answers are not far enough inside: boxes that hold a public row, and not the query."""
        lost = self.todo[self.score[self.todo] > self.aim[self.todo]]
        reach = _STEPS[-1] * np.where(np.isfinite(self.spread), self.spread, 0.0)
        x = self.first.x[lost]
        for other in self._nearest(lost, accepted, cost, frozen).transpose(1, 0, 2):
            for part in (0.5, 1.0):
                start = x + part * (other - x)
                self.consider(lost, np.minimum(start, other) - reach, np.maximum(start, other) + reach)

    def back(self) -> None:
        """Boxes between that of the best candidate so far and that of the cheapest answer, which was an outlier."""
        dear = self.distance[self.todo] > _NEARLY * self.first.distance[self.todo]
        at = self.todo[dear & (self.score[self.todo] <= self.limit)]
        x, best, cheapest = self.first.x[at], self.counterfactual[at].copy(), self.first.counterfactual[at]
        near, far = np.zeros(len(at)), np.ones(len(at))
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            end = best + middle[:, None] * (cheapest - best)
            inside = self.consider(at, np.minimum(x, end), np.maximum(x, end))
            near, far = np.where(inside, middle, near), np.where(inside, far, middle)

    def result(self) -> Recourse:
        first, valid = self.first, self.first.valid.copy()
        lost = self.todo[self.score[self.todo] > self.limit]
        changed = self.todo[(self.counterfactual[self.todo] != first.counterfactual[self.todo]).any(axis=1)]
        self.counterfactual[lost], self.distance[lost], valid[lost] = first.x[lost], 0.0, False
        self.proven[lost], self.proven[changed] = False, False
        return replace(
            first, counterfactual=self.counterfactual, distance=self.distance, valid=valid, proven=self.proven
        )
