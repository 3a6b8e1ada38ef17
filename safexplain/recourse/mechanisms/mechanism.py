"""What every recourse mechanism promises, takes, and how it answers.

A mechanism is a frozen set of public parameters. Everything that can be wrong with them, with training data or with
queries is found before anything is trained, drawn or charged. `_with_guarantee` is where an answer gets its guarantee.
"""

from __future__ import annotations

import operator
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from copy import deepcopy
from dataclasses import FrozenInstanceError, dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from safexplain._privacy_loss import Adjacency, check_adjacency
from safexplain._secure_random import Randomness
from safexplain._validate import check_number, readable, whole_number
from safexplain.dp.linear.inputs import check_classes, noise_generator
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost, for_columns
from safexplain.recourse.features import check_columns, column_names, frame_kind, is_missing, numbers_of
from safexplain.recourse.guarantee import Guarantee, Per
from safexplain.recourse.letters import checked_advice
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse
from safexplain.recourse.solution import Floats, Solution, as_rows, first_of

Infeasible = Literal["raise", "mark"]
Frozen = NDArray[np.bool_] | None


def check_infeasible(infeasible: Any) -> None:
    """Raise ConfigurationError unless this is one of `Infeasible`."""
    if infeasible not in get_args(Infeasible):
        raise ConfigurationError(f'infeasible: expected "raise" or "mark", got {infeasible!r}')


def plain_classes(classes: Any) -> tuple[Any, ...]:
    """The labels as plain Python values, which JSON takes, in their order.

    Raises:
        ConfigurationError: not a list of at least two different labels.
    """
    try:
        labels = () if isinstance(classes, (str, bytes, Set)) else tuple(classes)  # a set has no order
        check_classes(labels)
    except (TypeError, ConfigurationError):
        raise ConfigurationError(
            f"classes: expected a list of at least two different labels of one kind, got {classes!r}"
        ) from None
    plain = tuple(label.item() if hasattr(label, "item") else label for label in labels)
    kept = isinstance(classes, tuple) and all(map(operator.is_, plain, classes))  # scikit-learn looks for the same one
    return classes if kept else plain


def _labels_of(y: Any, n: int, classes: Any) -> NDArray[Any]:
    """(n,) labels of people's frames, each out of `classes`.

    Raises:
        InputError: no rows, another number of labels, missing ones, or some that `classes` does not list.
    """
    if not n:
        raise InputError("X: no rows; give the people to train on")
    labels = np.asarray(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (n,):
        got = "None" if y is None else f"shape {labels.shape}"
        raise InputError(f"y: expected {n} labels, one for each row of X, got {got}")
    found = labels.tolist()
    missing = np.array([is_missing(label) for label in found])
    if missing.any():
        raise InputError(f"y: missing in rows {first_of(np.flatnonzero(missing))}; leave these rows out of X and y")
    known = set(np.asarray(classes).tolist())
    bad = np.array([label not in known for label in found])
    if bad.any():
        raise InputError(
            f"y: expected labels out of classes={list(classes)}, got {found[int(bad.argmax())]!r}, and such labels in"
            f" {bad.sum()} of {n} rows; pass the public pair classes=(unfavourable, favourable) of labels to the"
            " mechanism, or leave these rows out"
        )
    return labels


def favourable_label(labels: list[Any], favourable: Any) -> Any:
    """The favourable label; None: the second of two.

    Raises:
        ConfigurationError: none of the labels, or not said which of several.
    """
    if favourable is None and len(labels) == 2:
        return labels[1]
    if favourable is None:
        raise ConfigurationError(f"favourable: which of the labels {labels} is wanted? Pass favourable=, one of them")
    if favourable not in labels:
        raise ConfigurationError(f"favourable: expected one of the labels {labels}, got {favourable!r}")
    return favourable


@dataclass(eq=False, kw_only=True)
class RecourseMechanism(BaseEstimator, ABC):  # type: ignore[misc]
    """Parameters of a mechanism; all are public, and none may be chosen by looking at the training data.

    To scikit-learn it is an estimator that is neither a classifier nor a regressor: it has `fit` and parameters, and
    answers by `explain`. Parameters are checked when it is made and do not change but by `set_params`, all or none,
    which leaves it untrained. `clone` gives the same parameters without the training; a model that was given stays.

    Args:
        epsilon: budget; of the training, or of each answer, as the mechanism says.
        adjacency: what neighbouring training sets differ in: "substitute", "add_remove" or "zero_out".
        norm_bound: public bound on the Euclidean norm of a training row; longer ones are shortened to it in `fit` only.
            Queries are taken as they come. None: that of the preprocessing; without one it is missing.
        classes: public pair (unfavourable, favourable) of labels.
        target: released score to reach, in logits of the favourable outcome.
        cost: what a change costs; its scales are public. With a preprocessing it is about the person's features and
            without a scale counts each in units of its public range (see `Preprocessing.cost`).
        constraints: what may change; None: everything, and with a preprocessing everything within the public ranges.
            With a preprocessing they are about the person's features, in their units (`Preprocessing.constraints`).
        preprocessing: the public way from people's frames to the rows that training sees. Then frames go in (`fit`,
            `explain`) and come out (`answer.frame`), and special and missing values never change.
        intercept_scaling: the constant column; 0 for a model without intercept.
        random_state: None for noise from a cryptographic generator (`safexplain._secure_random`). An int, RandomState
            or Generator makes the noise repeatable, and the guarantee void for whoever knows it: for tests.

    Raises:
        ConfigurationError: a value out of range.
    """

    per: ClassVar[Per] = "model"

    epsilon: float = 1.0
    adjacency: Adjacency = "substitute"
    norm_bound: float | None = None
    classes: Sequence[Any] = (0, 1)
    target: float = 0.0
    cost: Cost = EUCLIDEAN
    constraints: Constraints | None = None
    preprocessing: Preprocessing | None = None
    intercept_scaling: float = 0.3
    random_state: Any = None

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, above=0)
        check_adjacency(self.adjacency)
        if self.norm_bound is not None:
            check_number("norm_bound", self.norm_bound, above=0)
        check_number("intercept_scaling", self.intercept_scaling, minimum=0)
        object.__setattr__(self, "classes", plain_classes(self.classes))
        check_number("target", self.target)
        check_cost(self.cost)
        check_constraints(self.constraints)
        people = self.preprocessing
        if people is None:
            if self.constraints is not None and self.constraints.reachable:
                raise ConfigurationError(
                    "reachable: it is about labels of people; give preprocessing=Preprocessing(...)"
                )
            names = None if self.constraints is None else self.constraints.features
            cost = self.cost.named(names) if isinstance(names, tuple) else self.cost
            self._set(column_cost=cost, column_constraints=self.constraints, bound=self.norm_bound)
            return
        if not isinstance(people, Preprocessing):
            raise ConfigurationTypeError(f"preprocessing: expected Preprocessing(...), got {type(people).__name__}")
        bound = people.norm_bound  # refuses features without a public range
        self._set(
            column_cost=people.cost(self.cost),
            column_constraints=people.constraints(self.constraints),
            bound=bound if self.norm_bound is None else self.norm_bound,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_made(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._check_made(name)
        object.__delattr__(self, name)

    def _check_made(self, name: str) -> None:
        """Parameters stay as they were checked; scikit-learn's meta-estimators keep notes of their own beside them."""
        if "_bound" in vars(self) and (name in self.__dataclass_fields__ or not name.startswith("_")):
            raise FrozenInstanceError(
                f"cannot assign to field {name!r}; make another one, or use set_params({name}=...)"
            )

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is promised; from the parameters, so before `fit` too."""

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train.

        Args:
            X: (n, d) finite numbers; with a preprocessing a frame of n persons.
            y: (n,) labels out of `classes`.
        """

    def set_params(self, **params: Any) -> Self:
        """Other parameters, checked as when it was made; what was trained is dropped.

        Raises:
            ConfigurationError: an unknown name, or a value out of range; nothing has changed.
        """
        known = self.get_params(deep=False)
        if unknown := sorted(set(params) - set(known)):
            raise ConfigurationError(
                f"{type(self).__name__} has no parameter {', '.join(unknown)}; expected some of {', '.join(known)}"
            )
        if params:
            made = type(self)(**{**known, **params})
            self.__dict__.clear()
            self.__dict__.update(made.__dict__)
        return self

    def __sklearn_clone__(self) -> Self:
        params = self.get_params(deep=False)
        return type(self)(**{**params, "random_state": deepcopy(params["random_state"])})

    def __sklearn_is_fitted__(self) -> bool:
        return "_width" in vars(self)

    @property
    def n_features_in_(self) -> int:
        """Number of columns that it was trained on; as scikit-learn has it, an AttributeError before `fit`."""
        if (width := self._get("width")) is None:
            raise AttributeError(f"{type(self).__name__} has no number of features; call fit(X, y) first")
        return int(width)

    @abstractmethod
    def _solver(self, rows: Floats) -> Callable[[Frozen], Solution]:
        """Draw the noise of an answer, once, and return what answers given the columns that must not change."""

    def explain(self, x: ArrayLike, *, infeasible: Infeasible = "raise") -> Recourse:
        """What to change so that the released score reaches the target.

        Args:
            x: (n, d) or (d,) queries; with a preprocessing a frame. A mechanism that pays by answer spends epsilon on
                each row.
            infeasible: "raise", or "mark" to return queries without recourse within the constraints as valid=False.

        Raises:
            InfeasibleError: some queries have no recourse; its `result` has everything that was spent for.
            InputError: not finite numbers, other features or another order of them than the constraints or a training
                table name, or a query that breaks the constraints.
            ConfigurationError: `fit` has not been called.
        """
        check_infeasible(infeasible)
        rows = self.rows(x)
        result = self._with_guarantee(self._solver(rows)(self._frozen_columns(rows)), x)
        return result.required() if infeasible == "raise" else result

    def explain_diverse(self, x: ArrayLike, answers: int) -> tuple[Recourse, ...]:
        """Several answers to each query that differ in what they change, as by `diverse`; the noise is drawn once.

        Raises:
            InputError: as `explain`.
            ConfigurationError: fewer than one answer, or `fit` has not been called.
        """
        wanted = whole_number("answers", answers, 1)  # before noise is drawn
        rows = self.rows(x)
        return self._diverse_answers(self._solver(rows), rows, x, wanted)

    def _diverse_answers(
        self,
        solve: Callable[[Frozen], Solution],
        rows: Floats,
        x: ArrayLike,
        wanted: int,
        guarantee: Guarantee | None = None,
    ) -> tuple[Recourse, ...]:
        """Answers to rows that were read from x, by a solver whose noise is drawn."""
        held = self._frozen_columns(rows)

        def besides(frozen: NDArray[np.bool_]) -> Solution:
            return solve(frozen if held is None else frozen | held)

        found = diverse(besides, rows, wanted, cost=self.column_cost, constraints=self.column_constraints)
        return tuple(self._with_guarantee(one, x, guarantee) for one in found)

    @property
    def labels(self) -> tuple[Any, Any]:
        """The unfavourable label (None where there are several) and the favourable one."""
        return self.classes[0], self.classes[1]

    @property
    def scores_are_logits(self) -> bool:
        """Whether 1 / (1 + exp(-score)) is the released probability of the favourable one of two outcomes."""
        return True

    @property
    def features(self) -> int | None:
        """Number of columns d that queries have, with a preprocessing in the table; None: whatever the network takes.

        Raises:
            ConfigurationError: `fit` has not been called.
        """
        if "_width" not in self.__dict__:
            raise ConfigurationError(f"{type(self).__name__} has not been trained; call fit(X, y) first")
        width: int | None = self._get("width")
        return width

    @property
    def identity(self) -> str:
        """A random name of this fit: another one for each training, the same after copying and pickling.

        Raises:
            ConfigurationError: `fit` has not been called.
        """
        _ = self.features
        return str(self._get("identity"))

    def release(self, x: ArrayLike) -> Floats:
        """(n,) epsilon that the answer to each query costs; 0 where training has paid for all of them.

        Args:
            x: (n, d) or (d,) queries; with a preprocessing a frame.

        Raises:
            InputError: queries that would not be answered.
        """
        return np.full(len(self.rows(x)), float(self.epsilon) if self.per == "answer" else 0.0)

    def rows(self, x: ArrayLike) -> Floats:
        """(n, D) queries as solvers see them: with a preprocessing rows of its table, else the numbers as they came.

        Everything that can be wrong with queries is found here, before anything is spent.

        Args:
            x: (n, d) or (d,) queries; with a preprocessing a frame, or rows of its table.

        Raises:
            InputError: queries that would not be answered.
            ConfigurationError: `fit` has not been called.
        """
        width, allowed = self.features, self.column_constraints
        if self.preprocessing is not None:
            rows = self.preprocessing.table(x)
        else:
            rows = as_rows(x, width)
            check_columns(self._get("columns"), x, "its columns as the training table has them")
            if allowed is not None:
                check_columns(allowed.features, x)
        if allowed is not None:
            allowed.check(rows, self._frozen_columns(rows))
        return rows

    @property
    def column_constraints(self) -> Constraints | None:
        """The constraints on the columns of `rows`."""
        found: Constraints | None = self._get("column_constraints")
        return found

    @property
    def column_cost(self) -> Cost:
        """The cost of changing the columns of `rows`."""
        found: Cost = self._get("column_cost")
        return found

    def _frozen_columns(self, rows: Floats) -> Frozen:
        """What must not change, whatever the constraints: special and missing values."""
        held = None if self.preprocessing is None else self.preprocessing.held(rows)
        return held if held is not None and held.any() else None

    def _with_guarantee(self, found: Solution, x: Any, guarantee: Guarantee | None = None) -> Recourse:
        """The answer: with its guarantee, and with what gives it back as the frame that came."""
        people = self.preprocessing
        if people is not None and (bad := people.misread(found.counterfactual) & ~found.favourable).any():
            found = replace(  # a number that stands for something else is no answer
                found,
                counterfactual=np.where(bad[:, None], found.x, found.counterfactual),
                valid=found.valid & ~bad,
                distance=np.where(bad, 0.0, found.distance),
                proven=found.proven & ~bad,
            )
        return Recourse(**vars(found), guarantee=guarantee or self.guarantee, table=people, like=x)

    def _with_advice(
        self,
        answer: Recourse,
        weights: Floats | None,
        bias: float | Floats,
        accepts: Callable[[Floats, NDArray[np.intp]], NDArray[np.bool_]],
    ) -> Recourse:
        """The answer with how it may be put in words; arguments as for `checked_advice`."""
        advice = checked_advice(
            answer,
            answer.table,
            weights,
            bias,
            target=self.target,
            cost=self.column_cost,
            constraints=self.column_constraints,
            frozen=self._frozen_columns(answer.x),
            accepts=accepts,
        )
        return replace(answer, advice=advice)

    def _scaled(self, rows: Floats) -> Floats:
        """(n, D) rows as training sees them."""
        return rows if self.preprocessing is None else self.preprocessing.scaled(rows)

    def _training_data(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Training data as scikit-learn reads them; what can be wrong with their columns is found before training."""
        labels = readable(y, "y")
        if self.preprocessing is not None:
            self._check_width(len(self.preprocessing.columns))
            table = self.preprocessing.table(X, clip=True)
            return self.preprocessing.scaled(table), _labels_of(labels, len(table), self.classes)
        if self.constraints is not None:
            check_columns(self.constraints.features, X)
        if frame_kind(X) in ("pandas", "polars"):
            _check_numbers(X)
        rows = readable(X, "X")
        shape = np.shape(rows)
        if len(shape) == 2:  # others are refused by training itself
            self._check_width(shape[1])
        return rows, labels

    def _columns_of(self, X: Any) -> tuple[str, ...] | None:
        """Names of the columns of a training table, which queries must have too; a preprocessing knows its own."""
        return None if self.preprocessing is not None else column_names(X)

    def _check_width(self, width: int) -> None:
        """Whether cost and constraints are for this number of columns."""
        allowed = self.column_constraints
        if allowed is not None and allowed.width != width:
            raise ConfigurationError(f"constraints: for {allowed.width} columns, but the data have {width}")
        for_columns(self.column_cost, None if allowed is None else allowed.features, width)

    def _get(self, name: str) -> Any:
        return self.__dict__.get("_" + name)

    def _set(self, **values: Any) -> None:
        """What training gives; the parameters stay frozen."""
        if "width" in values:
            values["identity"] = secrets.token_hex(16)
        for name, value in values.items():
            object.__setattr__(self, "_" + name, value)

    def _noise(self) -> Randomness:
        """The cryptographic generator, of which forked and restored processes share nothing; or the seeded one."""
        if self.random_state is None:
            return noise_generator(None)
        if self._get("generator") is None:
            self._set(generator=noise_generator(self.random_state))
        generator: Randomness = self._get("generator")
        return generator


def diverse(
    solve: Callable[[NDArray[np.bool_]], Solution],
    x: ArrayLike,
    answers: int,
    *,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
) -> tuple[Solution, ...]:
    """Answers that each leave alone what was the largest share of the cost of every earlier one.

    Args:
        solve: answers to the queries, given (n, d) bool, what each query must not change.
        x: (n, d) or (d,) queries.
        answers: how many, at least 1.
        cost: the cost that `solve` minimises; its parts are the shares.
        constraints: those that `solve` keeps; a one-hot group counts as one feature.

    Returns:
        `answers` results, the cheapest first (where `solve` is optimal the later ones cost at least as much); `valid`
        is False where the options have run out.

    Raises:
        ConfigurationError: fewer than one answer, or not a cost or constraints.
    """
    wanted = whole_number("answers", answers, 1)
    check_cost(cost)
    check_constraints(constraints)
    rows = as_rows(x)
    cost = for_columns(cost, None if constraints is None else constraints.features, rows.shape[1])
    frozen = np.zeros(rows.shape, dtype=bool)
    results = [solve(frozen.copy())]
    while len(results) < wanted:
        more = frozen | _largest_share(results[-1], cost, constraints)
        again = results[-1] if (more == frozen).all() else solve(more.copy())
        frozen = more
        results.append(again)
    return tuple(results)


def _largest_share(found: Solution, cost: Cost, constraints: Constraints | None) -> NDArray[np.bool_]:
    """(n, d) bool, the column that made up most of each answer's cost, or one of its group; none where nothing changed.

    To freeze one column of a one-hot group is to freeze the group (`Constraints.bounds`).
    """
    share = cost.parts(found.change)
    for group in constraints.groups if constraints else ():
        share[:, group] = share[:, group].sum(axis=1, keepdims=True)
    largest: NDArray[np.bool_] = np.arange(share.shape[1]) == share.argmax(axis=1)[:, None]
    return largest & (share > 0)


def _check_numbers(frame: Any) -> None:
    """Raise InputError for a frame with a column of labels, which training cannot read without a preprocessing."""
    for place, name in enumerate(frame.columns):
        try:
            numbers_of(frame.iloc[:, place] if frame_kind(frame) == "pandas" else frame.to_series(place), str(name))
        except InputError as error:
            raise InputError(f"{error} of preprocessing=Preprocessing(numeric=..., categories=...)") from None
