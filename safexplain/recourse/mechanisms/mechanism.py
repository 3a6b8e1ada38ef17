"""Parameters, checks and answers shared by all recourse mechanisms.

Invalid parameters, training data and queries are refused before anything is trained, drawn or charged.
"""

from __future__ import annotations

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
from safexplain._validate import check_number, readable, real_numbers, whole_number
from safexplain.dp.linear.classifier import check_classes, noise_generator
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.constraints import Constraints, Mask, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost, for_columns
from safexplain.recourse.features import check_columns, column_names, frame_kind
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Guarantee, Per, Recourse, advise
from safexplain.recourse.solution import NO_NUMBERS, Floats, Solution, as_rows

Infeasible = Literal["raise", "mark"]
Frozen = Mask | None
Accepts = Callable[[Floats, NDArray[np.intp]], Mask]


def check_infeasible(infeasible: Any) -> None:
    """Raise ConfigurationError unless this is one of `Infeasible`."""
    if infeasible not in get_args(Infeasible):
        raise ConfigurationError(f'infeasible: expected "raise" or "mark", got {infeasible!r}')


def _plain_classes(classes: Any) -> tuple[Any, ...]:
    try:
        labels = () if isinstance(classes, (str, bytes, Set)) else tuple(classes)  # a set has no order
        check_classes(labels)
    except (TypeError, ConfigurationError):
        raise ConfigurationError(
            f"classes: expected a list of at least two different labels of one kind, got {classes!r}"
        ) from None
    if isinstance(classes, tuple) and not any(hasattr(label, "item") for label in classes):
        return classes  # scikit-learn expects the same object
    return tuple(label.item() if hasattr(label, "item") else label for label in labels)


def favourable_label(labels: list[Any], favourable: Any) -> Any:
    """The favourable label; None: the second of two. ConfigurationError: not among the labels, or None with several."""
    if favourable is None and len(labels) == 2:
        return labels[1]
    if favourable not in labels or favourable is None:
        raise ConfigurationError(f"favourable: expected one of the labels {labels}, got {favourable!r}")
    return favourable


@dataclass(eq=False, kw_only=True)
class RecourseMechanism(BaseEstimator, ABC):  # type: ignore[misc]
    """Parameters of a mechanism; all are public, and none may depend on the training data.

    It is a scikit-learn estimator that answers by `explain`. Parameters only change by `set_params`, all or none, which
    discards the training. `clone` copies parameters, including a given model.

    Args:
        epsilon: budget of the training or of each answer, depending on the mechanism.
        adjacency: how neighbouring training sets differ: "substitute", "add_remove" or "zero_out".
        norm_bound: public bound on the Euclidean norm of a training row; longer rows are shortened to it, in `fit`
            only. Queries are not shortened. None: the bound of the preprocessing.
        classes: public pair (unfavourable, favourable) of labels.
        target: released score to reach, in logits of the favourable outcome.
        cost: of changes, with public scales; with a preprocessing, of features (`Preprocessing.cost`).
        constraints: on changes; with a preprocessing, of features, within the public ranges
            (`Preprocessing.constraints`).
        preprocessing: public map from frames of people to training rows. `fit` and `explain` then take frames,
            `answer.frame` returns one, and special and missing values never change.
        intercept_scaling: the constant column; 0 for a model without intercept.
        random_state: None: noise from a cryptographic generator. An int, RandomState or Generator, for tests, makes it
            repeatable and the guarantee void towards anyone who knows it.

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
        object.__setattr__(self, "classes", _plain_classes(self.classes))
        check_number("target", self.target)
        check_cost(self.cost)
        check_constraints(self.constraints)
        cost, allowed, bound, people = self.cost, self.constraints, self.norm_bound, self.preprocessing
        if people is None:
            if allowed is not None and allowed.reachable:
                raise ConfigurationError(
                    "reachable: labels of people need a preprocessing; pass preprocessing=Preprocessing(...)"
                )
            if allowed is not None and isinstance(allowed.features, tuple):
                cost = cost.named(allowed.features)
        elif isinstance(people, Preprocessing):
            cost, allowed, bound = people.cost(cost), people.constraints(allowed), bound or people.norm_bound
        else:
            raise ConfigurationTypeError(f"preprocessing: expected Preprocessing(...), got {type(people).__name__}")
        self._set(column_cost=cost, column_constraints=allowed, bound=bound)

    def __setattr__(self, name: str, value: Any) -> None:  # scikit-learn's meta-estimators may set private attributes
        if "_bound" in vars(self) and not name.startswith("_"):
            raise FrozenInstanceError(
                f"cannot assign to field {name!r}; make another mechanism, or use set_params({name}=...)"
            )
        object.__setattr__(self, name, value)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The privacy guarantee; available before `fit`, as it follows from the parameters."""

    def _guarantee(self, assumed: tuple[str, ...], **known: Any) -> Guarantee:
        people = self.preprocessing
        return Guarantee(
            per=self.per,
            adjacency=self.adjacency,
            assumptions=tuple(dict.fromkeys(assumed)),
            preprocessing=None if people is None else people.digest,
            **known,
        )

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train.

        Args:
            X: (n, d) finite numbers; with a preprocessing a frame of n persons.
            y: (n,) labels among `classes`.
        """

    def set_params(self, **params: Any) -> Self:
        """Change parameters, with the same checks as at construction; the training is discarded.

        Raises:
            ConfigurationError: an unknown name, or a value out of range; nothing changes.
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
        """Number of columns of the training rows; AttributeError before `fit`, as in scikit-learn."""
        if (width := self._get("width")) is None:
            raise AttributeError(f"{type(self).__name__} has no number of features; call fit(X, y) first")
        return int(width)

    @abstractmethod
    def _solver(self, rows: Floats) -> Callable[[Frozen], Solution]:
        """Draw the noise of an answer once, and return a function from frozen columns to answers."""

    @abstractmethod
    def _released(self, found: Solution) -> tuple[Floats | None, float | Floats, Accepts]:
        """What was released of the score: weights and bias of a linear one, and which rows it accepts."""

    def explain(self, x: ArrayLike, *, infeasible: Infeasible = "raise") -> Recourse:
        """Cheapest changes with which the released score reaches the target.

        Args:
            x: (n, d) or (d,) queries; with a preprocessing a frame. With `per` "answer", each row spends epsilon.
            infeasible: "raise", or "mark" to return queries without recourse within the constraints as valid=False.

        Raises:
            InfeasibleError: some queries have no recourse; its `result` has all answers.
            InputError: not finite numbers, features with other names or in another order than in training, or a query
                that breaks the constraints.
            ConfigurationError: `fit` has not been called.
        """
        check_infeasible(infeasible)
        rows = self.rows(x)
        result = self._answer(self._solver(rows)(self._frozen_columns(rows)), x)
        return result.required() if infeasible == "raise" else result

    def explain_diverse(self, x: ArrayLike, answers: int) -> tuple[Recourse, ...]:
        """Several answers to each query, the cheapest first, each of which keeps the features that had the largest
        share of the cost in earlier ones; the noise is drawn once. `valid` is False where no further answer exists.

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
        answers: int,
        guarantee: Guarantee | None = None,
    ) -> tuple[Recourse, ...]:
        frozen = self._frozen_columns(rows)
        results = [solve(frozen)]
        frozen = np.zeros(rows.shape, dtype=bool) if frozen is None else frozen
        while len(results) < answers:
            more = frozen | self._largest_share(results[-1])
            results.append(results[-1] if (more == frozen).all() else solve(more))
            frozen = more
        return tuple(self._answer(one, x, guarantee) for one in results)

    def _largest_share(self, found: Solution) -> Mask:
        """(n, d) bool, the column with the largest share of each answer's cost, if anything changed; one frozen column
        freezes its one-hot group."""
        share = self.column_cost.parts(found.change)
        for group in self.column_constraints.groups if self.column_constraints else ():
            share[:, group] = share[:, group].sum(axis=1, keepdims=True)
        largest: Mask = np.arange(share.shape[1]) == share.argmax(axis=1)[:, None]
        return largest & (share > 0)

    @property
    def features(self) -> int | None:
        """Number of columns d of queries, with a preprocessing in the table; None: unknown, for a network.
        ConfigurationError: `fit` has not been called."""
        if "_width" not in self.__dict__:
            raise ConfigurationError(f"{type(self).__name__} is not trained; call fit(X, y) first")
        width: int | None = self._get("width")
        return width

    @property
    def identity(self) -> str:
        """A random name of this fit, kept by copying and pickling; ConfigurationError: `fit` has not been called."""
        _ = self.features
        return str(self._get("identity"))

    def release(self, x: ArrayLike) -> Floats:
        """(n,) epsilon that the answer to each of (n, d) queries costs; InputError: invalid queries."""
        return np.full(len(self.rows(x)), float(self.epsilon) if self.per == "answer" else 0.0)

    def rows(self, x: ArrayLike) -> Floats:
        """(n, D) queries for solvers from (n, d) or (d,) ones, or from a frame of a preprocessing. InputError: invalid
        queries, before anything is spent; ConfigurationError: `fit` was not called."""
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
        """(n, D) bool, special and missing values, which never change, if any."""
        held = None if self.preprocessing is None else self.preprocessing.held(rows)
        return held if held is not None and held.any() else None

    def _answer(self, found: Solution, x: Any, guarantee: Guarantee | None = None) -> Recourse:
        people = self.preprocessing
        if people is not None and (bad := people.misread(found.counterfactual) & ~found.favourable).any():
            found = replace(  # a special value is not a number to recommend
                found,
                counterfactual=np.where(bad[:, None], found.x, found.counterfactual),
                valid=found.valid & ~bad,
                distance=np.where(bad, 0.0, found.distance),
                proven=found.proven & ~bad,
            )
        weights, bias, accepts = self._released(found)
        advice = advise(
            found,
            people,
            weights,
            bias,
            target=self.target,
            cost=self.column_cost,
            constraints=self.column_constraints,
            frozen=self._frozen_columns(found.x),
            accepts=accepts,
        )
        return Recourse(**vars(found), guarantee=guarantee or self.guarantee, advice=advice, table=people, like=x)

    def _scaled(self, rows: Floats) -> Floats:
        return rows if self.preprocessing is None else self.preprocessing.scaled(rows)

    def _training_data(self, X: Any, y: Any) -> tuple[Any, Any]:
        labels = readable(y, "y")
        if self.preprocessing is not None:
            self._check_width(len(self.preprocessing.columns))
            return self._scaled(self.preprocessing.table(X, clip=True)), labels
        if self.constraints is not None:
            check_columns(self.constraints.features, X)
        if frame_kind(X) in ("pandas", "polars"):
            real_numbers(X, "X", expected=NO_NUMBERS)
        rows = readable(X, "X")
        shape = np.shape(rows)
        if len(shape) == 2:  # training refuses other shapes
            self._check_width(shape[1])
        return rows, labels

    def _columns_of(self, X: Any) -> tuple[str, ...] | None:
        return None if self.preprocessing is not None else column_names(X)

    def _check_width(self, width: int) -> None:
        allowed = self.column_constraints
        if allowed is not None and allowed.width != width:
            raise ConfigurationError(f"constraints: expected {width} columns, as in the data, got {allowed.width}")
        for_columns(self.column_cost, None if allowed is None else allowed.features, width)

    def _get(self, name: str) -> Any:
        return self.__dict__.get("_" + name)

    def _set(self, **values: Any) -> None:
        if "width" in values:
            values["identity"] = secrets.token_hex(16)
        for name, value in values.items():
            object.__setattr__(self, "_" + name, value)

    def _noise(self) -> Randomness:
        if self.random_state is None:
            return noise_generator(None)
        if self._get("generator") is None:
            self._set(generator=noise_generator(self.random_state))
        generator: Randomness = self._get("generator")
        return generator
