"""What every recourse mechanism takes, and how it answers.

Checks of what mechanisms are given, before anything is trained, drawn or charged.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safexplain._privacy_loss import Adjacency, check_adjacency
from safexplain._validate import readable, whole_number
from safexplain.dp.linear.inputs import check_classes, check_positive, noise_generator
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.constraints import Constraints, check_constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost, check_cost
from safexplain.recourse.diverse import diverse
from safexplain.recourse.feature_names import check_columns
from safexplain.recourse.mechanisms.guarantee import Guarantee, Per
from safexplain.recourse.result import Floats, Recourse, as_rows

Infeasible = Literal["raise", "mark"]


def check_infeasible(infeasible: Any) -> None:
    """Raise ConfigurationError unless this is one of `Infeasible`."""
    if infeasible not in get_args(Infeasible):
        raise ConfigurationError(f'infeasible: expected "raise" or "mark", got {infeasible!r}')


def check_target(target: Any) -> None:
    """Raise ConfigurationError unless this is a finite number."""
    if isinstance(target, bool) or not isinstance(target, int | float | np.number):
        raise ConfigurationTypeError(f"target: expected a number, got {target!r}")
    try:
        finite = math.isfinite(target)
    except (OverflowError, TypeError):
        finite = False
    if not finite:
        raise ConfigurationError(f"target: expected a finite score, got {target!r}")


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
    return tuple(label.item() if hasattr(label, "item") else label for label in labels)


def wanted_label(labels: list[Any], favourable: Any) -> Any:
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


Frozen = NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False, kw_only=True)
class RecourseMechanism(ABC):
    """Parameters of a mechanism; all are public, and none may be chosen by looking at the training data.

    Args:
        epsilon: budget; of the training, or of each answer, as the mechanism says.
        adjacency: what neighbouring training sets differ in: "substitute", "add_remove" or "zero_out".
        norm_bound: public bound on the Euclidean norm of a training row; longer ones are shortened to it in `fit` only.
            Queries are taken as they come.
        classes: public pair (unfavourable, favourable) of labels.
        target: released score to reach, in logits of the favourable outcome.
        cost: what a change costs; its scales are public.
        constraints: what may change; None: everything.
        intercept_scaling: the constant column; 0 for a model without intercept.
        random_state: None for noise from the operating system's entropy. An int, RandomState or Generator makes the
            noise repeatable, and the guarantee void for whoever knows it: for tests.

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
    intercept_scaling: float = 0.3
    random_state: Any = None

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_adjacency(self.adjacency)
        if self.norm_bound is not None:
            check_positive("norm_bound", self.norm_bound)
        check_positive("intercept_scaling", self.intercept_scaling, or_zero=True)
        object.__setattr__(self, "classes", plain_classes(self.classes))
        check_target(self.target)
        check_cost(self.cost)
        check_constraints(self.constraints)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is promised; from the parameters, so before `fit` too."""

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train.

        Args:
            X: (n, d) finite numbers.
            y: (n,) labels out of `classes`.
        """

    @abstractmethod
    def _solver(self, rows: Floats) -> Callable[[Frozen], Recourse]:
        """Draw the noise of an answer, once, and return what answers given the columns that must not change."""

    def explain(self, x: ArrayLike, *, infeasible: Infeasible = "raise") -> Recourse:
        """What to change so that the released score reaches the target.

        Args:
            x: (n, d) or (d,) queries. A mechanism that pays by answer spends epsilon on each row.
            infeasible: "raise", or "mark" to return queries without recourse within the constraints as valid=False.

        Raises:
            InfeasibleError: some queries have no recourse; its `result` has everything that was spent for.
            InputError: not finite numbers, other features or another order of them than the constraints or a training
                table name, or a query that breaks the constraints.
            ConfigurationError: `fit` has not been called.
        """
        check_infeasible(infeasible)
        result = self._solver(self._queries(x))(None)
        return result.required() if infeasible == "raise" else result

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
        """Number of columns d that queries have; None: whatever the network takes.

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
            x: (n, d) or (d,) queries.

        Raises:
            InputError: queries that would not be answered.
        """
        return np.full(len(self._queries(x)), float(self.epsilon) if self.per == "answer" else 0.0)

    def _queries(self, x: ArrayLike) -> Floats:
        """Everything that can be wrong with queries is found before anything is spent."""
        rows = as_rows(x, self.features)
        check_columns(self._get("columns"), x, "its columns as the training table has them")
        if self.constraints is not None:
            check_columns(self.constraints.features, x)
            self.constraints.check(rows)
        return rows

    def _training(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Training data as scikit-learn reads them; what can be wrong with their columns is found before training."""
        if self.constraints is not None:
            check_columns(self.constraints.features, X)
        rows, labels = readable(X, "X"), readable(y, "y")
        shape = np.shape(rows)
        if len(shape) == 2:  # others are refused by training itself
            self._check_width(shape[1])
        return rows, labels

    def _check_width(self, width: int) -> None:
        """Whether cost and constraints are for this number of columns."""
        if self.constraints is not None and self.constraints.width != width:
            raise ConfigurationError(f"constraints: for {self.constraints.width} columns, but the data have {width}")
        self.cost.weights(width)

    def _get(self, name: str) -> Any:
        return self.__dict__.get("_" + name)

    def _set(self, **values: Any) -> None:
        """What training gives; the parameters stay frozen."""
        if "width" in values:
            values["identity"] = secrets.token_hex(16)
        for name, value in values.items():
            object.__setattr__(self, "_" + name, value)

    def _noise(self) -> np.random.Generator:
        """Fresh entropy for each call, so that forked and restored processes never share noise; or the seeded one."""
        if self.random_state is None:
            return noise_generator(None)
        if self._get("generator") is None:
            self._set(generator=noise_generator(self.random_state))
        generator: np.random.Generator = self._get("generator")
        return generator


class DiverseAnswers(RecourseMechanism):
    """A mechanism whose released score and public geometry allow for several answers at the price of one."""

    def explain_diverse(self, x: ArrayLike, answers: int) -> tuple[Recourse, ...]:
        """Several answers to each query that differ in what they change; the noise is drawn once.

        Args:
            x: (n, d) or (d,) queries.
            answers: how many, at least 1.

        Returns:
            The cheapest answer first; later ones may not touch what was the largest share of the cost of each earlier
            one, and have valid=False where options run out.

        Raises:
            InputError: as `explain`.
            ConfigurationError: fewer than one answer, or `fit` has not been called.
        """
        wanted = whole_number("answers", answers, 1)  # before noise is drawn
        rows = self._queries(x)
        return diverse(self._solver(rows), rows, wanted, cost=self.cost, constraints=self.constraints)
