"""Recourse for the model at hand: one call, whichever solver the model's kind needs.

A torch network or a differentiable function is searched (`networks`). A fitted scikit-learn model, or a Pipeline that
ends in one, is read (`pipelines`): linear classifiers are solved exactly (`linear`), tree ensembles by an integer
program (`trees`, `program`), multi-layer perceptrons as networks of the same weights. Whatever the solver, a
counterfactual is valid only if the model's own `predict` says so of the very rows that are returned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.neural_network import MLPClassifier
from torch import nn

from safexplain._validate import check_number, readable
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, MissingExtraError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost, for_columns
from safexplain.recourse.feature_names import training_columns
from safexplain.recourse.frames import columns_of, is_missing, kind_of, names_of, only, taken, values_of
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import wanted_label
from safexplain.recourse.networks.score import scores_of
from safexplain.recourse.networks.search import DEFAULT, SearchOptions, network_recourse
from safexplain.recourse.pipelines import PipelineReading, read_model, steps_of, table_of
from safexplain.recourse.plausibility import Plausibility, Solve, Within, check_plausibility
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.program.solve import solve_program
from safexplain.recourse.reasons import advise, is_money
from safexplain.recourse.result import Floats, Recourse, as_rows
from safexplain.recourse.trees.forest import Forest
from safexplain.recourse.trees.scikit import GRADIENT

READ = (
    "torch networks and differentiable functions; scikit-learn's linear classifiers (LogisticRegression,"
    " SGDClassifier, RidgeClassifier, LinearSVC and others with coef_), MLPClassifier, decision trees, random forests,"
    " extra trees and gradient boosting; XGBoost and LightGBM; Pipelines and searches over parameters of these"
)
"""The models that can be asked."""

FURTHER = (0.0, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5)
"""How much further answers go, as a share of the numbers that a score is added up from, until `predict` agrees."""


def search_recourse(
    model: Any,
    x: Any,
    *,
    constraints: Constraints | None = None,
    cost: Cost = EUCLIDEAN,
    target: float = 0.0,
    favourable: Any = None,
    frozen: Any = None,
    options: SearchOptions = DEFAULT,
    preprocessing: Preprocessing | None = None,
    plausibility: Plausibility | None = None,
    time_limit: float = 10.0,
) -> Recourse:
    """Nearest rows that a model decides favourably, in the person's own units and categories.

    Args:
        model: a fitted scikit-learn classifier that is linear, a tree ensemble (of XGBoost and LightGBM too) or a
            multi-layer perceptron; a Pipeline of scalers, encoders, imputers and a ColumnTransformer that ends in one;
            a search over its parameters (GridSearchCV). Or a torch network, or a differentiable function of a tensor
            of rows, as in `network_recourse`.
        x: n queries: a frame (pandas, polars, a dict of lists, a list of dicts), or an array (n, d) or (d,) of numbers.
        constraints: what may change; its names are the frame's columns. None: everything that is not missing or a
            special value.
        cost: what a change costs, in the units of the frame.
        target: score that a counterfactual has to reach besides the decision: the model's decision function, a
            network's logit, the score of an ensemble. Below 0 the decision itself is not asked for.
        favourable: the wanted class: a label of a scikit-learn model, a column of a network's output; None: the second
            of two.
        frozen: (n, d) or (d,) bool, columns of the table that must not change besides.
        options: effort and memory of the search in a network.
        preprocessing: public ranges, units, special values and categories of some or all features. An estimator that
            was trained on an array and is no Pipeline is taken to read `preprocessing.transform(frame)`, as the
            mechanisms do; one that was trained on a frame reads the frame.
        plausibility: answers are no outliers among its public rows, frames as x is, or `valid` is False; see
            `Plausibility`. It asks the solver some fifty times for each query whose cheapest answer is an outlier.
        time_limit: seconds for each query, where an integer program is solved.

    Returns:
        One answer a query: `valid` is False where none was found within the constraints, `proven` says where there is
        no better one (or none at all). `frame` has the counterfactuals as the queries came.

    Raises:
        ConfigurationError: a model that is not fitted or not among those that can be read, a step of a Pipeline that
            cannot be taken apart, an unknown feature or class; with its name and what to do.
        InputError: queries that cannot be read: a missing column, an unknown category, a value out of its range.
    """
    check_number("target", target)
    check_number("time_limit", time_limit, above=0)
    check_cost(cost)
    check_constraints(constraints)
    check_plausibility(plausibility)
    if preprocessing is not None and not isinstance(preprocessing, Preprocessing):
        raise ConfigurationTypeError(f"preprocessing: expected Preprocessing(...), got {preprocessing!r:.80}")
    if isinstance(model, nn.Module) or (callable(model) and not hasattr(model, "predict")):
        return _network(model, x, constraints, cost, target, favourable, frozen, options, preprocessing, plausibility)
    queries = _Queries.of(model, x, preprocessing, favourable)
    wanted = _Wanted(queries.rules(constraints), queries.price(cost), queries.held(frozen), options, time_limit)
    labels, column = classes_of(queries.reading.estimator, favourable)
    solver = _solver(queries, wanted, len(labels), column)

    def accepts(rows: Floats, index: NDArray[np.intp]) -> NDArray[np.bool_]:
        reached = np.full(len(rows), target == 0)
        if solver.weights is not None and target != 0:
            reached = rows @ solver.weights + solver.bias >= target
        return reached & queries.decided(rows, index, labels[column]) if target >= 0 else reached

    def verified(index: NDArray[np.intp], within: Within) -> Recourse:
        return _verified(queries, solver, target, labels[column], index, within)

    return advised(
        _plausible(plausibility, queries.table, queries.rows, verified, accepts, wanted),
        cost=wanted.cost,
        constraints=wanted.constraints,
        frozen=wanted.frozen,
        accepts=accepts,
        weights=solver.weights,
        bias=solver.bias,
        target=target,
        ranges=None if preprocessing is None else queries.rules(None),
    )


def _plausible(
    plausibility: Plausibility | None,
    table: Preprocessing | None,
    rows: Floats,
    solve: Solve,
    accepts: Callable[[Floats, NDArray[np.intp]], NDArray[np.bool_]],
    wanted: _Wanted,
) -> Recourse:
    """The solver's answers, or those that are no outliers among public rows."""
    if plausibility is None or not len(rows):
        return solve(np.arange(len(rows)), None)
    return plausibility.of(table, rows.shape[1]).answers(
        rows,
        solve,
        lambda public: accepts(public, np.zeros(len(public), dtype=np.intp)),
        cost=wanted.cost,
        constraints=wanted.constraints,
        frozen=wanted.frozen,
    )


def _network(
    model: Any,
    x: Any,
    constraints: Constraints | None,
    cost: Cost,
    target: float,
    favourable: Any,
    frozen: Any,
    options: SearchOptions,
    preprocessing: Preprocessing | None,
    plausibility: Plausibility | None,
) -> Recourse:
    """A network of the columns themselves, or of the scaled table of a preprocessing."""
    wanted = 1 if favourable is None else favourable
    score, table, rules, price, held = model, x, constraints, cost, frozen
    if preprocessing is not None:
        table = preprocessing.table(x)
        held = (
            preprocessing.held(table) if frozen is None else preprocessing.held(table) | np.asarray(frozen, dtype=bool)
        )
        rules, price = preprocessing.constraints(constraints), preprocessing.cost(cost)
        scaled = _Scaled(preprocessing.scale, preprocessing.offset)
        score = nn.Sequential(scaled, model) if isinstance(model, nn.Module) else _composed(scaled, model)

    def answers(rows: Any, held: Any, within: Within) -> Recourse:
        return network_recourse(
            score,
            rows,
            target=target,
            favourable=wanted,
            cost=price,
            constraints=rules,
            frozen=held,
            within=within,
            options=options,
        )

    answer = answers(table, held, None)
    if plausibility is not None:
        mask = np.broadcast_to(False if held is None else np.asarray(held, dtype=bool), answer.x.shape)

        def solve(index: NDArray[np.intp], within: Within) -> Recourse:
            whole = within is None and len(index) == len(answer)
            return answer if whole else answers(answer.x[index], mask[index], within)

        def accepts(rows: Floats, index: NDArray[np.intp]) -> NDArray[np.bool_]:
            return scores_of(score, rows, favourable=wanted, batch_size=options.batch_size) >= target

        asked = _Wanted(rules, price, mask, options, 1.0)
        answer = _plausible(plausibility, preprocessing, answer.x, solve, accepts, asked)
    if preprocessing is not None:
        return replace(answer, table=preprocessing, like=x)
    return replace(answer, like=x) if kind_of(x) in ("pandas", "polars") else answer


class _Scaled(nn.Module):
    """(table - offset) / scale, in the type of the rows."""

    def __init__(self, scale: Floats, offset: Floats) -> None:
        super().__init__()
        self.scale, self.offset = torch.from_numpy(scale.copy()), torch.from_numpy(offset.copy())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows - self.offset.to(rows)) / self.scale.to(rows)


def _composed(first: nn.Module, then: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    return lambda rows: then(first(rows))


@dataclass(frozen=True, eq=False)
class _Queries:
    """The persons, as they came, as rows, and as the model takes them.

    Args:
        model: as it was given.
        reading: of it.
        table: what the rows are rows of; None: rows are arrays of numbers as they came.
        like: the queries: a frame, or an array of numbers where there is no table.
        rows: (n, D).
        names: of the columns that the model was trained on; None: it was trained on an array.
        takes: what the model is given: the "table", the "scaled" table, the "frame" with the columns it was trained
            on, or an "array" of these.
        forest: of a model that ends in a tree ensemble.
    """

    model: Any
    reading: PipelineReading
    table: Preprocessing | None
    like: Any
    rows: Floats
    names: tuple[str, ...] | None
    takes: Literal["table", "scaled", "frame", "array"]
    forest: Forest | None

    @classmethod
    def of(cls, model: Any, x: Any, given: Preprocessing | None, favourable: Any) -> _Queries:
        steps, estimator = steps_of(model)
        check_readable(estimator)
        forest = Forest.of(estimator, favourable=favourable) if Forest.reads(estimator) else None
        first = steps[0][1] if steps else None
        if isinstance(first, Preprocessing):
            if given is not None and given != first:
                raise ConfigurationError(
                    f"preprocessing: the pipeline's step {steps[0][0]!r} is another one; leave preprocessing= out"
                )
            return cls(model, read_model(model, first.columns), first, x, first.table(x), None, "frame", forest)
        plain = forest is not None and not steps
        names = forest.names if forest is not None and plain else training_columns(first if steps else estimator)
        if given is not None and not steps and names is None:
            _check_width(estimator, len(given.columns), "columns of preprocessing.transform(x)")
            reading = read_model(model, given.columns, given)
            return cls(model, reading, given, x, given.table(x), None, "scaled", forest)
        frame = kind_of(x) is not None
        seen = names or (names_of(x) if frame else None) or _numbered(first if steps else estimator, x)
        if names is None:
            _check_width(first if steps else estimator, len(seen), "columns in x")
        codes = category_codes(estimator, forest.ensemble.categorical, x, seen) if forest is not None and plain else {}
        reading = read_model(model, seen, codes=codes)
        like = x if frame else _as_frame(x, seen)
        gaps = _with_gaps(like, seen) if forest is not None and type(estimator).__name__ != GRADIENT else ()
        array = not frame and given is None and not (reading.labels or reading.special or reading.imputed or gaps)
        if array:
            return cls(model, reading, None, x, as_rows(x, len(seen)), names, "table", forest)
        table = table_of(reading, like, given, gaps)
        takes: Literal["frame", "array"] = "array" if names is None or not hasattr(model, "classes_") else "frame"
        return cls(model, reading, table, like, table.table(like), names, takes, forest)

    @property
    def base(self) -> Preprocessing:
        """The table; of an array, its columns as they are."""
        free = dict.fromkeys(self.reading.features, (None, None))
        return Preprocessing(numeric=free) if self.table is None else self.table

    def affine(self) -> tuple[Floats, Floats]:
        """The estimator's input as rows @ matrix (D, m) + shift (m,)."""
        return self.reading.affine(self.base)

    def given(self, rows: Floats, index: NDArray[np.intp]) -> Any:
        """What the model takes for changed rows of the queries at `index`."""
        if self.table is None:
            return rows
        if self.takes == "scaled":
            return (rows - self.table.offset) / self.table.scale
        frame = self.table.frame(rows, taken(self.like, index))
        kind = kind_of(frame)
        if self.takes == "frame" and self.names is None:  # its first step is a Preprocessing
            return frame
        if self.takes == "frame" and kind in ("pandas", "polars"):
            place = {str(name): name for name in frame.columns}
            return frame[[place[name] for name in self.reading.features if name in place]]
        columns = columns_of(only(frame, self.reading.features), self.reading.features)[0]
        return _pandas(columns) if self.takes == "frame" else _stacked(list(columns.values()))

    def decided(self, rows: Floats, index: NDArray[np.intp], label: Any) -> NDArray[np.bool_]:
        """(n,) bool, whether the model's own `predict` gives the label."""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(feature names|unknown categories).*")
            booster = self.forest is not None and not hasattr(self.model, "classes_")
            predict = self.forest.ensemble.predict if booster and self.forest is not None else self.model.predict
            said = np.asarray(predict(self.given(rows, index))).reshape(len(rows), -1)[:, 0]
        plain = np.zeros(len(rows), dtype=bool) if self.table is None else self.table.misread(rows)
        return np.asarray(said == label, dtype=bool) & ~plain

    def rules(self, constraints: Constraints | None) -> Constraints | None:
        """The constraints on the columns of the rows."""
        if self.table is None:
            features = None if constraints is None else constraints.features
            if isinstance(features, tuple) and self.names is not None and features != self.names:
                raise ConfigurationError(
                    f"constraints: for the columns {', '.join(features)}, but the model was trained on"
                    f" {', '.join(self.names)}, in this order"
                )
            return constraints
        if constraints is not None:
            came = names_of(self.like) or ()
            if constraints.features == len(came):  # by number: in the order of the frame that came
                constraints = replace(constraints, features=came)
            there = {*self.table.features, *self.table.columns}
            constraints = without(constraints, [name for name in came if name not in there])
        return self.table.constraints(constraints)

    def price(self, cost: Cost) -> Cost:
        """The cost of the columns of the rows."""
        return cost if self.table is None else self.table.cost(cost)

    def held(self, frozen: Any) -> NDArray[np.bool_]:
        """(n, D) bool, what must not change: as asked for, and what is special or missing."""
        shape = self.rows.shape
        held = np.zeros(shape, dtype=bool) if self.table is None else self.table.held(self.rows)
        if frozen is None:
            return held
        given = np.asarray(frozen)
        if given.dtype == np.bool_ and self.table is not None and given.shape[-1:] == (len(self.table.features),):
            given = given[..., self.table.feature_of]
        if given.dtype != np.bool_ or given.shape not in (shape, shape[1:]):
            raise InputError(f"frozen: expected bool of shape {shape} or {shape[1:]}, got {given.dtype} {given.shape}")
        both: NDArray[np.bool_] = held | given
        return both


@dataclass(frozen=True, eq=False)
class _Wanted:
    """What every solver is asked for, besides the target."""

    constraints: Constraints | None
    cost: Cost
    frozen: NDArray[np.bool_]
    options: SearchOptions
    time_limit: float


@dataclass(frozen=True, eq=False)
class _Solver:
    """What answers queries.

    Args:
        solve: the numbers of some queries (k,), a target and a box of each query's own -> their answers.
        size: (n,) how large the numbers are that make up a score.
        weights: (D,) and
        bias: of a score that is linear in the rows; None: it is not.
        careful: answers for the same target of those that the model disagreed with; None: `solve`, a little further.
    """

    solve: Callable[[NDArray[np.intp], float, Within], Recourse]
    size: Floats
    weights: Floats | None = None
    bias: float = 0.0
    careful: Callable[[NDArray[np.intp], float, Within], Recourse] | None = None


def rows_of(model: Any, x: Any, preprocessing: Preprocessing | None = None, favourable: Any = None) -> Floats:
    """(n, D) queries as rows of the table that a model is read as; arguments and errors as `search_recourse`."""
    return _Queries.of(model, x, preprocessing, favourable).rows


def check_readable(estimator: Any) -> None:
    """Raise unless this is an estimator of a kind that can be read.

    Raises:
        ConfigurationError: another one; the message lists what can be read.
    """
    name = type(estimator).__name__
    if isinstance(estimator, type):
        raise ConfigurationError(f"model: expected a fitted model, got the class {estimator.__name__}")
    if isinstance(estimator, CalibratedClassifierCV):
        raise ConfigurationError(
            f"model: {name} averages calibrated copies of its estimator, and its probability is no score of one model;"
            " pass the estimator that it calibrates, fitted on all rows, with target= at the wanted score"
        )
    if not (is_linear_kind(estimator) or isinstance(estimator, MLPClassifier) or Forest.reads(estimator)):
        check_trees(estimator)
        raise ConfigurationError(f"model: {name} cannot be asked for recourse; what can be: {READ}")


def check_trees(estimator: Any) -> None:
    """Say what is wrong with a model that is some kind of tree, or of its relatives.

    Raises:
        ConfigurationError: it is one.
    """
    try:
        Forest.of(estimator)
    except ConfigurationTypeError:
        return


def is_linear_kind(estimator: Any) -> bool:
    """Whether this is a linear classifier, fitted or not."""
    if isinstance(estimator, LinearClassifierMixin):
        return True
    if not (hasattr(estimator, "coef_") and hasattr(estimator, "intercept_") and hasattr(estimator, "get_params")):
        return False
    return not Forest.reads(estimator) and bool(is_classifier(estimator))


def _check_width(step: Any, width: int, what: str) -> None:
    expected = getattr(step, "n_features_in_", None)
    if expected is not None and expected != width:
        raise InputError(f"x: the model was trained on an array of {expected} columns, and there are {width} {what}")


def _numbered(step: Any, x: Any) -> tuple[str, ...]:
    """Names for the columns of an array that have none."""
    shape = np.shape(x)
    width = getattr(step, "n_features_in_", None) or (shape[-1] if shape else 0)
    return tuple(f"x{k}" for k in range(width))


def _as_frame(x: Any, names: tuple[str, ...]) -> dict[str, list[Any]]:
    """An array of numbers and labels as columns with these names."""
    rows = np.atleast_2d(np.asarray(readable(x, "x")))
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise InputError(
            f"x: expected shape (n, {len(names)}), one column for each of {', '.join(names[:5])}, ..., got"
            f" {np.shape(x)}; or pass a frame"
        )
    return {name: column.tolist() for name, column in zip(names, rows.T, strict=True)}


def _stacked(columns: list[Any]) -> NDArray[Any]:
    """(n, d) an array of columns: of float64 where all are numbers."""
    listed = [values_of(column) for column in columns]
    numbers = all(v is None or isinstance(v, (int, float)) for column in listed for v in column)
    out = np.empty((len(listed[0]), len(listed)), dtype=np.float64 if numbers else object)
    for k, column in enumerate(listed):
        out[:, k] = [np.nan if value is None else value for value in column] if numbers else column
    return out


def _with_gaps(frame: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of a frame in which a value is missing."""
    columns, _ = columns_of(only(frame, names), [name for name in names if name in (names_of(frame) or ())])
    return tuple(name for name, column in columns.items() if any(map(is_missing, values_of(column))))


def category_codes(
    estimator: Any, categorical: tuple[int, ...], x: Any, names: tuple[str, ...]
) -> dict[str, dict[Any, float]]:
    """Features that a tree ensemble reads as categories by itself: label -> the number that its splits know it by."""
    if kind_of(x) != "pandas":
        return {}
    if getattr(estimator, "is_categorical_", None) is not None:  # scikit-learn's histogram boosting
        encoder = estimator._preprocessor.named_transformers_["encoder"]
        known = [np.asarray(values).tolist() for values in encoder.categories_]
        by_name = {names[k]: values for k, values in zip(np.flatnonzero(estimator.is_categorical_), known, strict=True)}
        plain = {name: [v for v in values if not is_missing(v)] for name, values in by_name.items()}
        text = {name: any(isinstance(v, str) for v in values) for name, values in plain.items()}
        return {
            name: {label: float(code if text[name] else label) for code, label in enumerate(values)}
            for name, values in plain.items()
        }
    dtypes = {str(name): x[name].dtype for name in x.columns}
    own = [name for name in dtypes if name in names and type(dtypes[name]).__name__ == "CategoricalDtype"]
    trained = getattr(getattr(estimator, "booster_", estimator), "pandas_categorical", None)  # LightGBM's
    if trained is not None and len(trained) == len(own):
        return {name: {v: float(k) for k, v in enumerate(values)} for name, values in zip(own, trained, strict=True)}
    return {name: {v: float(k) for k, v in enumerate(dtypes[name].categories.tolist())} for name in own}


def _pandas(columns: dict[str, Any]) -> Any:
    """A pandas frame, for a model that was trained on one and asked in plain Python."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError(
            "x: the model was trained on a frame, so ask it about one (pandas or polars; neither is installed here)"
        ) from None
    return pandas.DataFrame({name: values_of(column) for name, column in columns.items()})


def without(constraints: Constraints, names: list[str]) -> Constraints:
    """The constraints less some features, which no model reads and which cannot change."""
    features = constraints.features
    lost = [name for name in names if isinstance(features, tuple) and name in features]
    if not lost or not isinstance(features, tuple):
        return constraints
    kept = [k for k, name in enumerate(features) if name not in lost]
    changes: dict[str, Any] = {"features": tuple(features[k] for k in kept)}
    for name in ("lower", "upper", "largest_change", "step"):
        value = getattr(constraints, name)
        changes[name] = tuple(value[k] for k in kept) if isinstance(value, tuple) else value
    for name in ("immutable", "integer", "increasing", "decreasing"):
        at = [features[f] if isinstance(f, int) else f for f in getattr(constraints, name)]
        changes[name] = tuple(f for f in at if f not in lost)
    return replace(constraints, **changes)


def classes_of(estimator: Any, favourable: Any) -> tuple[list[Any], int]:
    """The labels of a model, and the place of the wanted one."""
    if Forest.reads(estimator):
        forest = Forest.of(estimator, favourable=favourable)
        return list(forest.ensemble.classes), forest.wanted
    if not hasattr(estimator, "classes_"):
        raise ConfigurationError(
            f"model: {type(estimator).__name__} has no classes; it predicts numbers, and recourse needs a decision"
        )
    labels = np.asarray(estimator.classes_).tolist()
    if not isinstance(labels, list) or len(labels) < 2 or isinstance(labels[0], list):
        raise ConfigurationError(f"model: expected two classes or more, of one decision, got {labels!r:.80}")
    return labels, labels.index(wanted_label(labels, favourable))


def _solver(queries: _Queries, wanted: _Wanted, classes: int, column: int) -> _Solver:
    """What answers the queries, by the kind of the model."""
    estimator = queries.reading.estimator
    if queries.forest is not None:
        return _by_trees(queries, wanted, queries.forest.ensemble.classes[column])
    matrix, shift = queries.affine()
    lost = np.isnan(matrix).any(axis=1)
    if lost.any():
        table = queries.table
        name = table.features[table.feature_of[lost.argmax()]] if table is not None else str(lost.argmax())
        raise ConfigurationError(
            f"{name}: may be missing by preprocessing, but no step of the model fills it in; add a SimpleImputer to the"
            " pipeline"
        )
    if len(queries.rows):
        given = queries.given(queries.rows, np.arange(len(queries.rows)))
        queries.reading.check(given, queries.rows @ matrix + shift)
    if isinstance(estimator, MLPClassifier):
        return _by_network(queries, wanted, perceptron(estimator, matrix, shift), column)
    coefficients = dense(estimator.coef_)
    intercept = np.broadcast_to(np.asarray(estimator.intercept_, dtype=np.float64).ravel(), len(coefficients))
    pairs = classes > 2 and hasattr(estimator, "decision_function_shape")  # an SVC, which has a row for each pair
    if len(coefficients) != (1 if classes == 2 else classes) or pairs:
        raise ConfigurationError(
            f"model: {type(estimator).__name__} has {len(coefficients)} rows of coefficients for {classes} classes; it"
            " decides by votes of pairs, which is no score. Fit a LogisticRegression or LinearSVC"
        )
    weights, bias = coefficients @ matrix.T, coefficients @ shift + intercept
    if classes > 2:
        return _by_network(queries, wanted, linear_layer(weights, bias), column)
    sign = 1.0 if column == 1 else -1.0
    w, b = sign * weights[0], float(sign * bias[0])

    def solve(index: NDArray[np.intp], target: float, within: Within) -> Recourse:
        return linear_recourse(
            w,
            b,
            queries.rows[index],
            target=target,
            cost=wanted.cost,
            constraints=wanted.constraints,
            frozen=wanted.frozen[index],
            within=within,
            time_limit=wanted.time_limit,
        )

    size = (
        np.abs(queries.rows) @ np.abs(w) + abs(b) + np.abs(shift) @ np.abs(coefficients[0]) + np.abs(w).max(initial=0.0)
    )
    return _Solver(solve, size, w, b)


def _by_trees(queries: _Queries, wanted: _Wanted, label: Any) -> _Solver:
    """The forest's own score decides while it is solved, which is quick; where the model itself disagrees with an
    answer, it is asked about every row that is tried."""
    slow = quick = Forest.of(queries.reading.estimator, favourable=label)
    if queries.table is not None or queries.reading.transforms:
        base = queries.base
        slow = slow.in_units(
            queries.reading.readings(base),
            len(base.columns),
            lambda rows: queries.decided(rows, np.zeros(len(rows), dtype=np.intp), label),
        )
        quick = replace(slow, decide=lambda rows: slow.score(rows) >= 0)
        if queries.reading.transforms and len(queries.rows):
            given = queries.given(queries.rows, np.arange(len(queries.rows)))
            queries.reading.check(given, queries.reading.input_of(queries.rows, base))

    def solve(forest: Forest, index: NDArray[np.intp], target: float, within: Within) -> Recourse:
        return solve_program(
            forest,
            queries.rows[index],
            target=target,
            cost=wanted.cost,
            constraints=wanted.constraints,
            frozen=wanted.frozen[index],
            within=within,
            time_limit=wanted.time_limit,
        )

    return _Solver(partial(solve, quick), np.zeros(len(queries.rows)), careful=partial(solve, slow))


def _by_network(queries: _Queries, wanted: _Wanted, network: nn.Module, column: int) -> _Solver:
    def solve(index: NDArray[np.intp], target: float, within: Within) -> Recourse:
        return network_recourse(
            network,
            queries.rows[index],
            target=target,
            favourable=column,
            cost=wanted.cost,
            constraints=wanted.constraints,
            frozen=wanted.frozen[index],
            within=within,
            options=wanted.options,
        )

    return _Solver(solve, np.ones(len(queries.rows)))


_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
}


def perceptron(model: Any, matrix: Floats, shift: Floats) -> nn.Module:
    """A fitted MLPClassifier as a network of its weights, over rows @ matrix (D, m) + shift (m,); its output is logits.

    Raises:
        ConfigurationError: one of several decisions at once.
    """
    if model.out_activation_ == "logistic" and model.n_outputs_ > 1:
        raise ConfigurationError("model: an MLPClassifier of several decisions at once; fit one for each")
    layers: list[nn.Module] = [linear_layer(matrix.T, shift)]
    for k, (weights, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        layer = linear_layer(weights.T, bias)
        layers += [_ACTIVATIONS[model.activation](), layer] if k else [layer]
    return nn.Sequential(*layers).requires_grad_(False).eval()


def linear_layer(weights: ArrayLike, bias: ArrayLike) -> nn.Linear:
    """A layer with these weights (classes, d) and intercepts (classes,), in float64."""
    given = np.array(weights, dtype=np.float64)
    layer = nn.Linear(given.shape[1], len(given), dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(given))
    layer.bias.copy_(torch.from_numpy(np.array(bias, dtype=np.float64)))
    return layer


def dense(coefficients: Any) -> Floats:
    """(rows, d) the coefficients of a scikit-learn model, which may be sparse, or one row."""
    held = coefficients.toarray() if hasattr(coefficients, "toarray") else coefficients
    return np.atleast_2d(np.asarray(held, dtype=np.float64))


def _verified(
    queries: _Queries, solver: _Solver, target: float, label: Any, index: NDArray[np.intp], within: Within
) -> Recourse:
    """Answers to the queries at `index` that the model's own `predict` agrees with, row by row as they are returned.

    Where rounding, or a tie, makes it disagree, the answer is looked for a little further away (`FURTHER`). What is
    still not confirmed then is not valid.
    """
    rows, every = queries.rows[index], np.arange(len(index))
    found = solver.solve(index, target, within)
    arrays: dict[str, Any] = {name: np.array(getattr(found, name)) for name in (*_PER_ANSWER, "favourable")}
    if target >= 0:
        nothing = {"counterfactual": rows, "distance": np.zeros(len(every))}
        said = queries.decided(rows, index, label)
        favourable = said if target == 0 else said & found.favourable
        left = np.flatnonzero(arrays["valid"] & ~favourable)
        arrays["favourable"] = favourable
        sure = np.ones(len(every), dtype=bool)
        _put(arrays, favourable.nonzero()[0], nothing | {"valid": sure, "proven": sure})
        for further in FURTHER:
            if not len(left):
                break
            if further:
                at, box = index[left], None if within is None else (within[0][left], within[1][left])
                if solver.careful is not None:
                    again = solver.careful(at, target, box)
                else:
                    again = solver.solve(at, target + further * float(solver.size[at].max()), box)
                _put(arrays, left, {name: getattr(again, name) for name in _PER_ANSWER}, own=True)
            agrees = arrays["valid"][left] & queries.decided(arrays["counterfactual"][left], index[left], label)
            left = left[~agrees]
            if further and solver.careful is not None:
                break
        _put(arrays, left, nothing | {"valid": ~sure, "proven": ~sure})
    return replace(found, **arrays, table=queries.table, like=queries.like)


_PER_ANSWER = ("counterfactual", "valid", "distance", "proven")


def _put(arrays: dict[str, Any], index: NDArray[np.intp], values: dict[str, Any], *, own: bool = False) -> None:
    """Write rows of values at `index`; with `own` they are those of these rows only."""
    for name, value in values.items():
        arrays[name][index] = value if own else value[index]


def advised(
    answer: Recourse,
    *,
    cost: Cost,
    constraints: Constraints | None,
    frozen: NDArray[np.bool_] | None,
    accepts: Callable[[Floats, NDArray[np.intp]], NDArray[np.bool_]],
    weights: Floats | None = None,
    bias: float = 0.0,
    target: float = 0.0,
    ranges: Constraints | None = None,
) -> Recourse:
    """The answer with how it may be put in words: rounded as far as the model still decides alike.

    Args:
        answer: rows of its table.
        cost: what was minimised, of the columns or by the names that the constraints give them.
        constraints: on the columns.
        frozen: (n, D) bool, what was not to change.
        accepts: rows (k, D) and the numbers of their queries (k,) -> (k,) bool, whether the decision is favourable.
        weights: (D,) of a score that is linear in the rows; None: it is not.
        bias: of that score.
        target: that it has to reach.
        ranges: limits of the columns alone, for the reasons of those who have no recourse; None: those of the
            constraints.
    """
    rows, change = answer.x, answer.change
    cost = for_columns(cost, None if constraints is None else constraints.features, rows.shape[1])
    free = np.ones(rows.shape[1], dtype=bool)
    stepped, money = np.zeros(len(free), dtype=bool), np.zeros(len(free), dtype=bool)
    if isinstance(answer.table, Preprocessing):
        free[:] = False
        for part in answer.table.parts:
            free[part.first] = part.kind == "numeric"
            money[part.first] = is_money(answer.table.units.get(part.name, ""))
    if constraints is None:
        limits = np.full(rows.shape, -np.inf), np.full(rows.shape, np.inf)
    else:
        free &= ~np.isin(np.arange(len(free)), [k for g in constraints.groups for k in g])
        stepped = free & (constraints.grid != 0)
        free &= ~stepped
        limits = constraints.bounds(rows, frozen)

    def valid(candidate: Floats, index: NDArray[np.intp]) -> NDArray[np.bool_]:
        good = np.ones(len(index), dtype=bool)
        if constraints is not None:
            inside = np.where(stepped, answer.counterfactual[index], candidate)
            inside = np.clip(inside, limits[0][index], limits[1][index])
            good &= constraints.satisfied(rows[index], inside, None if frozen is None else frozen[index])
        return good & accepts(candidate, index)

    further = np.zeros(rows.shape, dtype=bool) if weights is None else change * weights > 0
    share = cost.parts(change, rows)
    advice = advise(
        rows,
        answer.counterfactual,
        share,
        free=free,
        stepped=stepped,
        money=money,
        limits=limits,
        valid=valid,
        further=further,
    )
    box = constraints if ranges is None else ranges
    if box is not None:  # nobody goes below the least value that there is
        room = np.where(change > 0, advice.rounded < box.high, advice.rounded > box.low)
        advice = replace(advice, further=advice.further & room)
    lost = np.flatnonzero(~answer.valid)
    if weights is not None and constraints is not None and len(lost):
        if ranges is None:
            ranges = Constraints(
                constraints.features, lower=constraints.low, upper=constraints.high, one_hot=constraints.one_hot
            )
        held = None if not isinstance(answer.table, Preprocessing) else answer.table.held(rows[lost])
        free_to_move = linear_recourse(
            weights, bias, rows[lost], target=target, cost=cost, constraints=ranges, frozen=held
        )
        unlimited = rows.copy()
        unlimited[lost] = free_to_move.counterfactual
        share = share.copy()
        share[lost] = cost.parts(free_to_move.change, rows[lost])
        advice = replace(advice, unlimited=unlimited, share=share)
    return replace(answer, advice=advice)
