"""A fitted scikit-learn pipeline, taken apart: what each column of the final estimator's input is, as a function of the
person's features.

Scalers are affine, an encoder is a table from labels to numbers, an imputer says what stands for a missing value, and a
projection (PCA) adds columns up. So every input column is a constant plus one term for each feature: a slope times its
number, or what is listed for its label (`Column`, `Term`). Nothing is learnt here and nothing is guessed: a step that
is not of this kind is refused by its name and its columns, and whoever uses the result compares it with what the
pipeline's own `transform` says about the queries (`PipelineReading.check`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectorMixin
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.model_selection._search import BaseSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.utils.validation import check_is_fitted

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.frames import columns_of, kind_of, names_of, numbers_of, values_of
from safexplain.recourse.preprocessing import Feature, Preprocessing
from safexplain.recourse.result import Floats, first_of
from safexplain.recourse.trees.forest import Reading

State: TypeAlias = Any
"""What a feature may be in besides a plain number: one of its labels, a special value, or `MISSING`."""

MISSING = math.nan
"""The state of a feature without a value. The very object: NaN is not equal to itself, but is found by identity."""

READ = (
    "StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, OneHotEncoder, OrdinalEncoder, TargetEncoder,"
    " SimpleImputer, MissingIndicator, feature selection, PCA, TruncatedSVD, ColumnTransformer, FeatureUnion, Pipeline,"
    ' "passthrough" and "drop"'
)
"""The steps that can be taken apart."""


def state_of(value: Any) -> State:
    """The value as a plain Python object; None, NaN, NaT and pandas' NA are `MISSING`."""
    plain = value.item() if isinstance(value, np.generic) else value
    if plain is None or type(plain).__name__ in ("NAType", "NaTType") or plain != plain:
        return MISSING
    return plain


@dataclass(frozen=True)
class Term:
    """What one feature adds to a column.

    Args:
        slope: times the feature's number.
        states: what is added instead where the feature is in one of these states.
    """

    slope: float = 0.0
    states: Mapping[State, float] = field(default_factory=dict)

    def of(self, state: State) -> float:
        """What is added in a state: NaN where a value is missing and nothing stands for it."""
        if state in self.states:
            return self.states[state]
        if self.slope == 0 and (state is not MISSING or not self.states):
            return 0.0
        if state is MISSING or isinstance(state, str):
            return math.nan
        return self.slope * float(state)

    def times(self, factor: float) -> Term:
        """This term, scaled."""
        return Term(self.slope * factor, {state: value * factor for state, value in self.states.items()})

    def plus(self, other: Term) -> Term:
        """Both together."""
        states = dict.fromkeys([*self.states, *other.states])
        return Term(self.slope + other.slope, {state: self.of(state) + other.of(state) for state in states})


Operation: TypeAlias = tuple[str, float]
"""One step of arithmetic: "add", "subtract", "multiply" or "divide", and the number."""

_ARITHMETIC: Mapping[str, Callable[[Floats, float], Floats]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
}


@dataclass(frozen=True)
class Column:
    """One column between two steps: a constant plus one term for each feature.

    Args:
        constant: what is added to the terms.
        terms: of the features that the column depends on.
        raw: the feature that this column still is, as it came: what an encoder may read; None: numbers by now.
        filled: what an imputer put in place of a state of the raw feature.
        made: how the number of a single feature is computed, operation by operation, so that it rounds as it does in
            scikit-learn; empty: as the constant and the term say.
        starts: of such a column, state -> its value, and how many of these operations were done before.
    """

    constant: float = 0.0
    terms: Mapping[str, Term] = field(default_factory=dict)
    raw: str | None = None
    filled: Mapping[State, Any] = field(default_factory=dict)
    made: tuple[Operation, ...] = ()
    starts: Mapping[State, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, feature: str) -> Column:
        """A feature as it comes."""
        return cls(terms={feature: Term(1.0)}, raw=feature)

    def then(self, *operations: Operation) -> Column:
        """This column after some arithmetic, which makes numbers of it; itself without any."""
        column = self
        for name, number in operations:
            if name in ("add", "subtract"):
                shift = number if name == "add" else -number
                column = replace(column, constant=column.constant + shift)
            else:
                factor = number if name == "multiply" else 1.0 / number
                terms = {name: term.times(factor) for name, term in column.terms.items()}
                column = replace(column, constant=column.constant * factor, terms=terms)
        return replace(column, raw=None, made=(*self.made, *operations)) if operations else self

    def number(self, values: Floats) -> Floats:
        """(n,) this column where its single feature has these numbers (n,)."""
        slope = next((term.slope for term in self.terms.values()), 0.0)
        if not self.made:
            return values if slope == 1 and self.constant == 0 else self.constant + slope * values
        return self._after(values if slope else np.zeros(len(values)), 0)

    def at(self, state: State) -> float:
        """This column where its single feature is in a state."""
        ((_, term),) = self.terms.items()
        if state not in self.starts:
            if not self.made or state is MISSING or not term.slope or isinstance(state, str):
                return self.constant + term.of(state)
            return float(self._after(np.array([float(state)]), 0)[0])
        value, done = self.starts[state]
        return float(self._after(np.array([value]), done)[0])

    def _after(self, values: Floats, done: int) -> Floats:
        for name, number in self.made[done:]:
            values = _ARITHMETIC[name](values, number)
        return values

    @property
    def may_be_missing(self) -> bool:
        """Whether a missing value of a feature would still be missing here."""
        return any(math.isnan(term.of(MISSING)) for term in self.terms.values())


@dataclass
class _Found:
    """What is learnt about the features on the way through the steps."""

    labels: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    special: dict[str, tuple[State, ...]] = field(default_factory=dict)

    def stands(self, feature: str, value: State) -> None:
        """Note that an imputer takes this value of a feature for none."""
        known = self.special.get(feature, ())
        self.special[feature] = known if value in known else (*known, value)


@dataclass(frozen=True)
class PipelineReading:
    """A pipeline taken apart.

    Args:
        estimator: the final one, fitted.
        features: names of the columns that the pipeline was fitted on, or that it is given.
        columns: of the estimator's input.
        labels: of each feature that an encoder reads, in the encoder's order.
        ordered: those of them whose order the user of the encoder gave (`OrdinalEncoder(categories=...)`).
        special: values that an imputer takes for none (`SimpleImputer(missing_values=-7)`), by feature.
        transforms: the steps before the estimator, as they are.
    """

    estimator: Any
    features: tuple[str, ...]
    columns: tuple[Column, ...]
    labels: Mapping[str, tuple[Any, ...]]
    ordered: frozenset[str]
    special: Mapping[str, tuple[State, ...]]
    transforms: tuple[Any, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """The features that the estimator's input depends on, in the order of the table."""
        reached = {name for column in self.columns for name in column.terms}
        return tuple(name for name in self.features if name in reached)

    @property
    def imputed(self) -> frozenset[str]:
        """The features whose missing values the pipeline replaces, wherever it reads them."""
        lost = {name for c in self.columns for name, term in c.terms.items() if math.isnan(term.of(MISSING))}
        return frozenset(self.used) - lost

    def on_line(self, name: str) -> bool:
        """Whether a feature has levels in an order that was given, and each of them adds as much as the one before."""
        if name not in self.ordered or len(self.labels[name]) < 2:
            return False
        terms = [column.terms[name] for column in self.columns if name in column.terms]
        for values in (np.array([term.of(label) for label in self.labels[name]]) for term in terms):
            if np.isnan(values).any() or not _is_line(values):
                return False
        return True

    def affine(self, table: Preprocessing) -> tuple[Floats, Floats]:
        """The estimator's input as an affine function of a table's columns: table @ matrix + shift.

        Args:
            table: that declares every feature in `used`.

        Returns:
            (D, m) matrix and (m,) shift. NaN where a value is missing and no step stands in for it.

        Raises:
            ConfigurationError: a feature declared as what the pipeline does not take it for.
        """
        matrix = np.zeros((len(table.columns), len(self.columns)))
        if self.features == table.columns:  # rows of the table itself, or of the scaled one
            at = {name: k for k, name in enumerate(table.columns)}
            for k, column in enumerate(self.columns):
                for name, term in column.terms.items():
                    matrix[at[name], k] = term.slope
            return matrix, np.array([column.constant for column in self.columns])
        parts = {part.name: part for part in table.parts}
        for k, column in enumerate(self.columns):
            for name, term in column.terms.items():
                self._put(matrix[:, k], parts[name], term)
        return matrix, np.array([self._constant(column, parts) for column in self.columns])

    def _put(self, out: Floats, part: Feature, term: Term) -> None:
        """One term on the columns of its feature."""
        known = self.labels.get(part.name)
        if part.kind == "numeric":
            if known is not None and any(label in term.states for label in known):
                raise ConfigurationError(
                    f"{part.name}: numeric in preprocessing, but the model encodes its values as categories; declare"
                    f" categories={{{part.name!r}: {list(known)!r}}}"
                )
            out[part.first] = term.slope
        else:
            unknown = [label for label in part.labels if known is not None and label not in known]
            if unknown:
                raise ConfigurationError(
                    f"{part.name}: the model's encoder does not know {unknown[0]!r}; it knows"
                    f" {', '.join(map(repr, known or ()))}; take it out of preprocessing, or train with it"
                )
            values = np.array([term.of(label) for label in part.labels])
            if np.isnan(values).any():
                raise ConfigurationError(
                    f"{part.name}: has labels in preprocessing, but the model takes it as a number; declare it under"
                    " numeric"
                )
            if part.kind == "category":
                out[part.first : part.first + len(values)] = values
            else:
                out[part.first] = _slope_of_levels(part.name, values)
        for place, state in enumerate(part.states):
            own = term.of(MISSING if state is None else state)
            out[part.state_columns.start + place] = own - self._regular(part, term)

    @staticmethod
    def _regular(part: Feature, term: Term) -> float:
        """What the value column of a row in a special state adds."""
        if part.kind == "category":
            return 0.0
        if part.kind == "numeric":
            return term.slope * part.middle
        values = [term.of(label) for label in part.labels]
        return values[0] + (values[1] - values[0]) * part.middle

    @staticmethod
    def _constant(column: Column, parts: Mapping[str, Feature]) -> float:
        """What is left where every table column is 0: the first level of an ordinal feature counts."""
        first = (t.of(parts[n].labels[0]) for n, t in column.terms.items() if parts[n].kind == "ordinal")
        return column.constant + sum(first)

    def transform(self, frame: Any) -> Floats:
        """(n, m) the estimator's input, by the steps themselves."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names, and labels that an encoder does not know
            for step in self.transforms:
                frame = step.transform(frame)
        return _numbers(frame)

    def readings(self, table: Preprocessing) -> list[Reading]:
        """How each column of the estimator's input is read from a table's columns, for splits at thresholds.

        Raises:
            ConfigurationError: a column that mixes several features, or falls where a feature rises.
        """
        self.affine(table)  # refuses features declared as what the pipeline does not take them for
        at = {name: k for k, name in enumerate(table.columns)}
        parts = {part.name: part for part in table.parts}
        found = []
        for number, column in enumerate(self.columns):
            if len(column.terms) > 1:
                raise ConfigurationError(
                    f"model: column {number} of the trees' input adds up several features ({_named([column])}), so that"
                    " their splits are no limits on any of them; leave the projection (PCA) out of the pipeline"
                )
            if not column.terms:
                found.append(Reading(0, map=column.number))
                continue
            ((name, term),) = column.terms.items()
            if term.slope < 0:
                raise ConfigurationError(
                    f"{name}: the pipeline multiplies it by a negative number before the trees see it; leave that out"
                )
            if name in at and self.features == table.columns:
                found.append(Reading(at[name], map=_map_of(column)))
            else:
                found.append(_reading(column, parts[name]))
        return found

    def input_of(self, rows: Floats, table: Preprocessing) -> Floats:
        """(n, m) the estimator's input for rows (n, D) of a table."""
        matrix, shift = self.affine(table)
        lost = np.isnan(matrix)
        out = rows @ np.where(lost, 0.0, matrix) + shift
        out[(rows != 0) @ lost] = np.nan
        return np.asarray(out, dtype=np.float64)

    def check(self, frame: Any, expected: Floats) -> None:
        """Compare the estimator's input as it was read with the pipeline's own, before anything is built on it.

        Args:
            frame: queries, as the pipeline takes them.
            expected: (n, m) what this reading makes of them.

        Raises:
            ConfigurationError: they differ, with the column and the rows.
        """
        own = self.transform(frame)
        if own.shape != expected.shape:
            raise ConfigurationError(
                f"model: taken apart, its steps give {expected.shape[1]} columns, its own transform {own.shape[1]}"
            )
        size = np.maximum(np.abs(own), np.abs(expected))
        close = (np.abs(own - expected) <= 1e-6 + 1e-5 * size) | (np.isnan(own) & np.isnan(expected))
        if not close.all():
            column = int((~close).any(axis=0).argmax())
            rows = np.flatnonzero(~close[:, column])
            read, says = expected[rows[0], column], own[rows[0], column]
            for name in self.columns[column].terms:
                if names_of(frame) and _value(frame, name, int(rows[0])) is None:
                    raise ConfigurationError(
                        f"{name}: None in rows {first_of(rows)}, which the pipeline does not take for a missing value"
                        " (for scikit-learn None is not NaN); write NaN there, in training too"
                    )
            raise ConfigurationError(
                f"model: column {column} of the estimator's input ({_named([self.columns[column]])})"
                f" is {says:g} by the pipeline's own transform, and {read:g} by its steps taken apart (rows"
                f" {first_of(rows)}); a step does more than scikit-learn's own: give the table after that step to a"
                " model of its own"
            )


def _map_of(column: Column) -> Callable[[Floats], Floats] | None:
    """The column as a function of its feature's number; None: the number itself."""
    slope = next(iter(column.terms.values())).slope
    return None if not column.made and slope == 1 and column.constant == 0 else column.number


def _reading(column: Column, part: Feature) -> Reading:
    """A column of the trees' input on the columns of its one feature."""
    states = [
        (part.state_columns.start + place, column.at(MISSING if state is None else state))
        for place, state in enumerate(part.states)
    ]
    if part.kind == "numeric":
        return Reading(part.first, map=_map_of(column), states=tuple(states))
    values = [column.at(label) for label in part.labels]
    if part.kind == "category":
        return Reading(states=(*((part.first + k, value) for k, value in enumerate(values)), *states))
    if values[1] < values[0]:
        raise ConfigurationError(f"{part.name}: the pipeline's codes fall where its levels rise; list them in order")
    first, step = values[0], values[1] - values[0]
    return Reading(part.first, map=lambda levels: first + step * levels, states=tuple(states))


def _is_line(values: Floats) -> bool:
    steps = np.diff(values)
    return bool((np.abs(steps - steps[0]) <= 1e-9 * np.abs(values).max(initial=1e-300)).all())


def _slope_of_levels(name: str, values: Floats) -> float:
    """What each further level adds, if it is the same for all."""
    if not _is_line(values):
        raise ConfigurationError(
            f"{name}: ordinal in preprocessing, but in the model its levels do not lie on a straight line"
            f" ({', '.join(f'{value:.3g}' for value in values[:6])}), as one-hot columns do not; declare it under"
            " categories"
        )
    return float(values[1] - values[0])


def read_model(
    model: Any,
    features: Sequence[str],
    scaled: Preprocessing | None = None,
    codes: Mapping[str, Mapping[Any, float]] | None = None,
) -> PipelineReading:
    """Take a fitted Pipeline apart; any other estimator is a pipeline of itself.

    Args:
        model: a `Pipeline` whose last step is an estimator, or an estimator.
        features: names of the columns that the first step is given, in its order.
        scaled: of a model that is given the scaled table of this preprocessing, or a Pipeline that begins with it;
            `features` are its columns.
        codes: features with categories that the estimator itself reads: label -> the number that stands for it.

    Raises:
        ConfigurationError: not fitted, or a step that is not a scaler, an encoder, an imputer or a projection; with its
            name, the columns, and what to do.
    """
    steps, estimator = steps_of(model)
    fitted(estimator, "the final estimator" if steps else "it")
    found = _Found()
    columns = [Column.of(name) for name in features]
    for name, numbers in ({} if steps else codes or {}).items():
        found.labels[name] = tuple(numbers)
        columns[list(features).index(name)] = Column(terms={name: Term(0.0, dict(numbers))})
    transforms = tuple(step for _, step in steps if hasattr(step, "transform"))
    if steps and isinstance(steps[0][1], Preprocessing):
        (_, scaled), *steps = steps
    if scaled is not None:
        pairs = zip(columns, scaled.scale.tolist(), scaled.offset.tolist(), strict=True)
        columns = [column.then(("subtract", offset), ("divide", scale)) for column, scale, offset in pairs]
    for name, step in steps:
        columns = _through(step, columns, found, repr(name))
    return PipelineReading(
        estimator=estimator,
        features=tuple(features),
        columns=tuple(columns),
        labels=found.labels,
        ordered=frozenset(found.ordered & set(found.labels)),
        special=found.special,
        transforms=transforms,
    )


def steps_of(model: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The steps before the final estimator, with their names, and the estimator; what a search over parameters chose is
    in its place.

    Raises:
        ConfigurationError: a pipeline without an estimator, or a search that has chosen none.
    """
    if isinstance(model, BaseSearchCV):
        if not hasattr(model, "best_estimator_"):
            raise ConfigurationError(
                f"model: {type(model).__name__} is not fitted, or was fitted with refit=False, and has no"
                " best_estimator_; fit it with refit=True"
            )
        return steps_of(model.best_estimator_)
    if not isinstance(model, Pipeline):
        return [], model
    steps = [(str(name), step) for name, step in model.steps if step is not None and step != "passthrough"]
    if not steps or model.steps[-1][1] is not steps[-1][1] or not hasattr(steps[-1][1], "predict"):
        raise ConfigurationError("model: a Pipeline without an estimator at its end; there is no decision to change")
    inner, estimator = steps_of(steps[-1][1])
    return [*steps[:-1], *inner], estimator


def fitted(step: Any, at: str) -> None:
    """Raise ConfigurationError unless this estimator or transformer is fitted; `at` is how the message calls it."""
    if not hasattr(step, "get_params"):  # a Booster exists only fitted
        return
    try:
        check_is_fitted(step)
    except (NotFittedError, TypeError) as error:
        raise ConfigurationError(
            f"model: {at} ({type(step).__name__}) is not fitted; call fit(frame, y) of the whole model first"
        ) from error


def _numbers(out: Any) -> Floats:
    """(n, m) float64 of whatever a transform returns: an array, a sparse matrix, a frame."""
    dense = out.toarray() if hasattr(out, "toarray") else out.to_numpy() if hasattr(out, "to_numpy") else out
    return np.asarray(dense, dtype=np.float64)


def _named(columns: Iterable[Column]) -> str:
    """The features behind columns, for messages."""
    names = dict.fromkeys(name for column in columns for name in column.terms)
    listed = list(names)[:5]
    return ", ".join(listed) + (", ..." if len(names) > 5 else "")


def _through(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """What a step makes of columns."""
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return columns
    if isinstance(step, str) and step == "drop":
        return []
    for kind, rule in _RULES:
        if isinstance(step, kind):
            if not isinstance(step, FunctionTransformer):
                fitted(step, f"step {at}")
            return rule(step, columns, found, at)
    if hasattr(step, "fit_resample") and not hasattr(step, "transform"):
        return columns  # a sampler changes which rows are trained on, not what they say
    raise _refused(step, columns, at)


_ADVICE = {
    "PowerTransformer": "is not affine",
    "QuantileTransformer": "is not affine",
    "PolynomialFeatures": "multiplies features",
    "SplineTransformer": "is not affine",
    "KBinsDiscretizer": "cuts numbers into bins",
    "Binarizer": "cuts numbers into two",
    "Normalizer": "divides by the length of the row",
    "KNNImputer": "fills a value from the other features",
    "IterativeImputer": "fills a value from the other features",
    "KernelPCA": "is not affine",
}


def _refused(step: Any, columns: Sequence[Column], at: str, why: str | None = None) -> ConfigurationError:
    name = type(step).__name__
    why = why or _ADVICE.get(name, "is not among the steps that can be taken apart")
    return ConfigurationError(
        f"model: step {at} ({name}) {why}, so that nothing can be solved exactly in the units of {_named(columns)};"
        f" what can be read: {READ}. Either leave that step out of the model, or compute its columns beforehand, train"
        " on the table that has them, and ask about rows of that table"
    )


def _scaled(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """Scalers: column by column, factor * x + shift."""
    if getattr(step, "clip", False):
        raise _refused(step, columns, at, "clips (clip=True), which is not affine")
    steps: list[tuple[str, Any]]
    if isinstance(step, StandardScaler):
        steps = [("subtract", step.mean_ if step.with_mean else None), ("divide", step.scale_)]
    elif isinstance(step, MinMaxScaler):
        steps = [("multiply", step.scale_), ("add", step.min_)]
    elif isinstance(step, RobustScaler):
        steps = [("subtract", step.center_), ("divide", step.scale_)]
    else:
        steps = [("divide", step.scale_)]
    return [
        replace(column.then(*((name, float(numbers[k])) for name, numbers in steps if numbers is not None)), raw=None)
        for k, column in enumerate(columns)
    ]


def _imputed(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """SimpleImputer: what stands for a missing value; a column that had no value in training is left out."""
    replaced = state_of(step.missing_values)
    out = []
    for column, statistic in zip(columns, step.statistics_.tolist(), strict=True):
        fill = state_of(statistic)
        if fill is MISSING:
            if not step.keep_empty_features:
                continue
            fill = 0
        out.append(_filled(step, column, replaced, fill, found, at))
    if step.add_indicator:
        out += _flags(step.indicator_, columns, found, at)
    return out


def _filled(step: Any, column: Column, replaced: State, fill: Any, found: _Found, at: str) -> Column:
    """A column in which one state is replaced."""
    if replaced is not MISSING:
        if column.raw is None:
            raise _refused(step, [column], at, f"replaces {replaced!r} in numbers that another step has made")
        found.stands(column.raw, replaced)
    terms = dict(column.terms)
    if isinstance(fill, str):
        return replace(column, filled={**column.filled, replaced: fill})
    if len(terms) > 1:
        if column.may_be_missing:
            raise _refused(step, [column], at, "fills a sum of several features")
        return column
    for name, term in terms.items():
        if replaced is not MISSING or math.isnan(term.of(MISSING)):
            terms[name] = replace(term, states={**term.states, replaced: float(fill) - column.constant})
    kept = column.filled if column.raw is None or replaced in column.filled else {**column.filled, replaced: fill}
    starts = (
        column.starts if replaced in column.starts else {**column.starts, replaced: (float(fill), len(column.made))}
    )
    return replace(column, terms=terms, filled=kept, starts=starts)


def _flags(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """MissingIndicator: 1 where the feature has no value."""
    replaced = state_of(step.missing_values)
    out = []
    for column in [columns[k] for k in step.features_]:
        if len(column.terms) != 1 or (replaced is not MISSING and column.raw is None):
            raise _refused(step, [column], at, "marks missing values of numbers that another step has made")
        (name, term), *_ = column.terms.items()
        if replaced is MISSING and not math.isnan(term.of(MISSING)) and MISSING in column.filled:
            out.append(Column())  # filled before: never missing
            continue
        if replaced is not MISSING:
            found.stands(name, replaced)
        out.append(Column(terms={name: Term(0.0, {replaced: 1.0})}, starts={replaced: (1.0, 0)}))
    return out


def _encoded(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """An encoder, asked about each label of each column in turn: what it says is a table from labels to numbers."""
    readable = []
    for column, categories in zip(columns, step.categories_, strict=True):
        if column.raw is None:
            raise _refused(
                step, [column], at, "encodes numbers that another step has made, not the labels of a feature"
            )
        plain = [state_of(c) for c in categories]
        labels = tuple(label for label in plain if label is not MISSING)
        before = found.labels.get(column.raw)
        if before is not None and set(before) != set(labels):
            raise _refused(step, [column], at, "has other categories than an earlier encoder of the same feature")
        if before is None or (isinstance(step, OrdinalEncoder) and not isinstance(step.categories, str)):
            found.labels[column.raw] = labels
        if isinstance(step, OrdinalEncoder) and not isinstance(step.categories, str):
            found.ordered.add(column.raw)
        lost = column.filled.get(MISSING, MISSING)
        shown = {label: label for label in labels}
        shown |= {state: fill for state, fill in column.filled.items() if state is not MISSING}
        if lost is not MISSING or any(label is MISSING for label in plain):
            shown[MISSING] = lost
        readable.append(shown)
    base = [next(iter(shown.values())) for shown in readable]
    rows, owner = [base], [(-1, MISSING)]
    for k, shown in enumerate(readable):
        for state, label in shown.items():
            rows.append([*base[:k], label, *base[k + 1 :]])
            owner.append((k, state))
    table = np.empty((len(rows), len(base)), dtype=object)
    table[:] = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no names beside an array, and labels that it does not know
        out = _numbers(step.transform(table))
    made = []
    for values in out.T:
        own: dict[int, dict[State, float]] = {}
        for (k, state), value in zip(owner[1:], values[1:].tolist(), strict=True):
            own.setdefault(k, {})[state] = value
        moving = [k for k, states in own.items() if any(value != values[0] for value in states.values())]
        if len(moving) == 1:
            states = own[moving[0]]
            starts = {state: (value, 0) for state, value in states.items()}
            made.append(Column(terms={columns[moving[0]].raw or "": Term(0.0, states)}, starts=starts))
        else:  # a constant: the only category there is
            made.append(Column(constant=float(values[0])))
    return made


def _chosen(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    return [columns[k] for k in np.flatnonzero(step.get_support())]


def _projected(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """PCA and the like: sums of columns, as `transform` of zeros and of unit vectors tells them."""
    n = len(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no names beside an array
        shift = _numbers(step.transform(np.zeros((1, n))))[0]
        matrix = _numbers(step.transform(np.eye(n))) - shift
    return [_sum(columns, weights, float(b)) for weights, b in zip(matrix.T, shift, strict=True)]


def _sum(columns: Sequence[Column], weights: NDArray[np.float64], constant: float) -> Column:
    terms: dict[str, Term] = {}
    for column, weight in zip(columns, weights.tolist(), strict=True):
        constant += weight * column.constant
        for name, term in column.terms.items():
            part = term.times(weight)
            terms[name] = terms[name].plus(part) if name in terms else part
    return Column(constant, terms)


def _identity(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    if step.func is not None:
        name = getattr(step.func, "__name__", repr(step.func))
        raise _refused(step, columns, at, f"applies {name}, of which nothing is known")
    return columns


def _nested(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    for name, part in step.steps:
        columns = _through(part, columns, found, f"{at} > {name!r}")
    return columns


def _side_by_side(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """FeatureUnion: every part reads all columns."""
    out: list[Column] = []
    for name, part in step.transformer_list:
        weight = (step.transformer_weights or {}).get(name, 1.0)
        out += [_weighted(c, weight) for c in _through(part, columns, found, f"{at} > {name!r}")]
    return out


def _weighted(column: Column, weight: float) -> Column:
    return column if weight == 1 else column.then(("multiply", float(weight)))


def _split(step: Any, columns: list[Column], found: _Found, at: str) -> list[Column]:
    """ColumnTransformer: each part reads its own columns, by name, position, slice or mask."""
    names = getattr(step, "feature_names_in_", None)
    known = None if names is None else [str(name) for name in names]
    if known is not None and all(c.raw is not None for c in columns):  # columns may come in another order
        by_name = {c.raw: c for c in columns}
        missing = [name for name in known if name not in by_name]
        columns = [by_name[name] if name in by_name else Column.of(name) for name in known] if not missing else columns
    out: list[Column] = []
    for name, part, chosen in step.transformers_:
        if isinstance(part, str) and part == "drop":
            continue
        picked = [columns[k] for k in _positions(chosen, len(columns), known)]
        if not picked:
            continue
        here = f"{at} > {name!r}"
        if isinstance(chosen, str) and not isinstance(part, str):
            raise _refused(part, picked, here, f"reads text (its column is {chosen!r}, not [{chosen!r}])")
        weight = (step.transformer_weights or {}).get(name, 1.0)
        out += [_weighted(c, weight) for c in _through(part, picked, found, here)]
    return out


def _positions(chosen: Any, count: int, names: list[str] | None) -> list[int]:
    """Columns that a specification of ColumnTransformer picks, as numbers."""
    if isinstance(chosen, slice):
        if isinstance(chosen.start, str) or isinstance(chosen.stop, str):
            names = names or []
            start = names.index(chosen.start) if chosen.start is not None else 0
            stop = names.index(chosen.stop) + 1 if chosen.stop is not None else count
            return list(range(start, stop))
        return list(range(count))[chosen]
    listed = [chosen] if isinstance(chosen, (str, int, np.integer)) else list(chosen)
    if listed and all(isinstance(c, (bool, np.bool_)) for c in listed):
        return [k for k, taken in enumerate(listed) if taken]
    return [(names or []).index(str(c)) if isinstance(c, str) else range(count)[int(c)] for c in listed]


Rule: TypeAlias = Callable[[Any, list[Column], _Found, str], list[Column]]

_RULES: tuple[tuple[Any, Rule], ...] = (
    ((StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler), _scaled),
    ((OneHotEncoder, OrdinalEncoder, TargetEncoder), _encoded),
    (SimpleImputer, _imputed),
    (MissingIndicator, _flags),
    (SelectorMixin, _chosen),
    ((PCA, IncrementalPCA, TruncatedSVD), _projected),
    (FunctionTransformer, _identity),
    (Pipeline, _nested),
    (ColumnTransformer, _split),
    (FeatureUnion, _side_by_side),
)
"""Kind of step -> what it makes of columns."""


class ModelTable(Preprocessing):
    """What a pipeline says of its features, as a preprocessing: unlimited ranges, and the encoders' categories.

    Frames may have columns that the model does not read; they come back in answers as they were.
    """

    def table(self, frame: Any, *, clip: bool = False) -> Floats:
        """See `Preprocessing.table`; other columns are not looked at."""
        return super().table(self._own(frame), clip=clip)

    def frame(self, table: Any, like: Any = None) -> Any:
        """See `Preprocessing.frame`; other columns are those of `like`, which has as many rows."""
        own = self._own(like)
        found = super().frame(table, own)
        return found if own is like or len(found) != len(own) else _beside(found, like)

    def _own(self, frame: Any) -> Any:
        kind = kind_of(frame)
        if kind in ("pandas", "polars"):
            names = [name for name in frame.columns if str(name) in self.features]
            return frame if len(names) == len(frame.columns) else frame[names]
        if kind == "series":
            names = [name for name in frame.index if str(name) in self.features]
            return frame if len(names) == len(frame) else frame[names]
        if kind in ("lists", "person"):
            return {name: value for name, value in frame.items() if str(name) in self.features}
        if kind == "records":
            return [{name: value for name, value in row.items() if str(name) in self.features} for row in frame]
        return frame


def _beside(found: Any, like: Any) -> Any:
    """A frame with the columns of another one, some of them as found."""
    kind = kind_of(like)
    if kind == "polars":
        return like.with_columns(found.get_columns())
    if kind == "pandas":
        return _assigned(like, found)
    if kind == "series":
        full = like.copy()
        full[found.index] = found
        return full
    if kind == "records":
        return [{**row, **own} for row, own in zip(like, found, strict=True)]
    return {**like, **found}


def _assigned(like: Any, found: Any) -> Any:
    full = like.copy()
    for name in found.columns:
        full[name] = found[name]
    return full


def table_of(
    reading: PipelineReading, frame: Any, given: Preprocessing | None, gaps: Sequence[str] = ()
) -> Preprocessing:
    """The preprocessing of the features that a model reads, and of other columns of numbers in the frame.

    Args:
        reading: the model.
        frame: queries, with names.
        given: what is publicly known; holds for its features, and the model's own reading for the others.
        gaps: features that may be missing without a step that fills them in, because trees know where to go.

    Raises:
        InputError: the frame lacks a column that the model reads.
        ConfigurationError: `given` has a feature that is not there.
    """
    names = names_of(frame) or reading.features
    lacking = [name for name in reading.used if name not in names]
    if lacking:
        raise InputError(
            f"x: no column {lacking[0]}, which the model reads; expected {', '.join(reading.used)}, got"
            f" {', '.join(names)}"
        )
    own: tuple[str, ...] = () if given is None else given.features
    unknown = [name for name in own if name not in names]
    if unknown:
        raise ConfigurationError(
            f"preprocessing: {unknown[0]} is no column of x; x has {', '.join(names)}, and the model reads"
            f" {', '.join(reading.used)}"
        )
    used = set(reading.used)
    others = [name for name in names if name not in used and name not in own and is_numeric(frame, name)]
    plain = [name for name in names if name not in own and (name in used or name in others)]
    yes_no = {n: [False, True] for n in plain if n not in reading.labels and is_boolean(frame, n)}
    free = {n: None for n in plain if n not in reading.labels and n not in yes_no}
    declared: dict[str, dict[str, Any]] = {
        "numeric": free,
        "categories": {n: reading.labels[n] for n in plain if n in reading.labels and not reading.on_line(n)} | yes_no,
        "ordinal": {n: reading.labels[n] for n in plain if n in reading.labels and reading.on_line(n)},
        "special": {n: reading.special[n] for n in plain if n in reading.special},
    }
    missing = [n for n in plain if n in reading.imputed or n in gaps]
    if given is not None:
        for what, values in declared.items():
            values.update(getattr(given, what))
        missing += list(given.missing)
    for what in ("units", "labels"):
        declared[what] = {} if given is None else dict(getattr(given, what))
    return ModelTable(**cast("dict[str, Any]", declared), missing=tuple(missing))


def is_boolean(frame: Any, name: str) -> bool:
    """Whether a column of a frame holds nothing but True and False."""
    if name not in (names_of(frame) or ()):
        return False
    values = values_of(columns_of(frame, names_of(frame) or ())[0][name])
    return len(values) > 0 and all(isinstance(value, bool) for value in values)


def _value(frame: Any, name: str, row: int) -> Any:
    """One value of a frame; NaN where it has no such column."""
    if name not in (names_of(frame) or ()):
        return math.nan
    kind = kind_of(frame)
    if kind == "pandas":
        return frame[name].iloc[row]
    return frame[row][name] if kind == "records" else frame[name][row] if kind in ("polars", "lists") else frame[name]


def is_numeric(frame: Any, name: str) -> bool:
    """Whether a column of a frame holds nothing but finite numbers."""
    kind = kind_of(frame)
    if kind in ("pandas", "polars"):
        column = frame[name] if name in frame.columns else []
    elif kind == "records":
        column = [row.get(name) for row in frame]
    else:
        column = frame[name] if kind == "lists" else [frame[name]]
    try:
        return len(column) > 0 and bool(np.isfinite(numbers_of(column, name)[0]).all())
    except InputError:
        return False
