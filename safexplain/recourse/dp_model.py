"""Recourse from a model that was trained with differential privacy: any number of answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from numpy.typing import ArrayLike

from safexplain.dp.linear import DPLogisticRegression
from safexplain.dp.statement import PrivacyStatement
from safexplain.errors import ConfigurationError
from safexplain.recourse.guarantee import Guarantee, assumptions
from safexplain.recourse.mechanism import DiverseAnswers, Frozen
from safexplain.recourse.private_model import PrivateModel, private_model
from safexplain.recourse.result import Floats, Recourse


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivateModelRecourse(DiverseAnswers):
    """Recourse from a private model: its guarantee is the training's, by post-processing, however many answers follow.

    Statement. If training is (epsilon, delta)-private, so is any number of answers to any queries, together.

    Proof. Answers are functions of the released model, of the queries and of public costs and constraints: direction,
    length, sign and the decision whether there is anything to change all come from the private model, and no record is
    looked at again. Post-processing (Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy,
    proposition 2.1).

    Args:
        delta: of the training; smaller than one over the number of records.
        favourable: the label that is wanted; None: the second of `classes`.
    """

    training: ClassVar[str] = ""

    delta: float = 1e-5
    favourable: Any = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the private model, which spends the budget; answers spend nothing.

        Args:
            X: (n, d) finite numbers.
            y: (n,) labels out of `classes`.

        Raises:
            ConfigurationError: `norm_bound` is missing, a parameter is out of range, or the model is trained already.
            InputError: a label that `classes` does not list.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.

        Warns:
            WeakDeltaWarning: delta is at least one over the number of records.
        """
        self._check_untrained()
        trained = self._trainer().fit(X, y)
        self._check_width(trained.n_features_in_)
        wanted = self.classes[1] if self.favourable is None and len(self.classes) == 2 else self.favourable
        self._set(width=trained.n_features_in_, model=private_model(trained, None, wanted))
        return self

    @property
    def guarantee(self) -> Guarantee:
        """That of the training; before `fit`, the budget."""
        statement = self.statement
        if statement is None:
            epsilon, delta, name = float(self.epsilon), self._planned_delta(), self.training
        else:
            epsilon, delta = statement.epsilons.of(self.adjacency), statement.delta
            name = statement.mechanism
        seeded = self.random_state is not None if statement is None else statement.seeded
        return Guarantee(
            mechanism=f"recourse from a private model ({type(self).__name__}): {name}",
            is_private=True,
            per="model",
            epsilon=epsilon,
            delta=delta,
            adjacency=self.adjacency,
            released="anything about the trained model: its weights, its decisions and any number of answers",
            why="answers are computed from the private model alone (post-processing, Dwork and Roth 2014, prop. 2.1)",
            statement=statement,
            assumptions=tuple(dict.fromkeys(assumptions(seeded=seeded) + (statement.assumptions if statement else ()))),
        )

    @property
    def statement(self) -> PrivacyStatement | None:
        """The training's; None before it."""
        model = self._get("model")
        return None if model is None else model.statement

    @property
    def labels(self) -> tuple[Any, Any]:
        """The unfavourable label (None for a network, or where there are several) and the favourable one."""
        model: PrivateModel | None = self._get("model")
        if model is None:
            return super().labels
        if model.labels:
            return model.labels[0], model.labels[1]
        return None, model.model.classes_[model.column].item() if hasattr(model.model, "classes_") else model.column

    @property
    def scores_are_logits(self) -> bool:
        """Whether the model has a single logit; that of several is the lead over the next."""
        return self._get("model") is None or self._get("model").weights is not None

    @property
    def private(self) -> Any:
        """The trained private model, which may be published.

        Raises:
            ConfigurationError: `fit` has not been called.
        """
        _ = self.features
        return self._get("model").model

    def _solver(self, rows: Floats) -> Callable[[Frozen], Recourse]:
        model: PrivateModel = self._get("model")
        return lambda frozen: model.solve(
            rows, target=self.target, cost=self.cost, constraints=self.constraints, frozen=frozen
        )

    @abstractmethod
    def _trainer(self) -> DPLogisticRegression:
        """The unfitted private model."""

    def _planned_delta(self) -> float:
        return float(self.delta)

    def _check_untrained(self) -> None:
        """Nothing to refuse: each fit spends anew."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DPModelRecourse(PrivateModelRecourse):
    """The default: recourse from a private model, linear or a network; see `PrivateModelRecourse` for statement, proof.

    Args:
        model: a fitted `DPLogisticRegression`, a `DPFineTuned`, a network or a linear model with `privacy`; None: `fit`
            trains a `DPLogisticRegression` by noisy gradient descent.
        privacy: the statement of a model that does not carry its own.
        favourable: the label that is wanted, for a network the column of its output; None: the second of two.
        search: `SearchOptions` for networks and for more than two classes.

    Raises:
        RefusedError: a model without a statement, with one about other weights, or one that promises nothing.
        ConfigurationError: a model that is not fitted, or a value out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 2, 2000)
        >>> X = rng.normal(size=(2000, 3)) + 2 * y[:, None]
        >>> recourse = DPModelRecourse(epsilon=1.0, norm_bound=5.0, random_state=0).fit(X, y)
        >>> answer = recourse.explain(X[y == 0][:5])
        >>> bool(answer.valid.all()), recourse.guarantee.per
        (True, 'model')
    """

    training: ClassVar[str] = "logistic regression by noisy full-batch gradient descent"

    model: Any = field(default=None, kw_only=False)
    privacy: PrivacyStatement | None = None
    search: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            if self.privacy is not None:
                raise ConfigurationError("privacy: a statement without a model; fit() makes its own")
            return
        found = private_model(self.model, self.privacy, self.favourable, self.adjacency, self.search)
        if found.width is not None:
            self._check_width(found.width)
        if len(found.labels) == 2:
            object.__setattr__(self, "classes", found.labels)
        self._set(model=found, width=found.width)

    def _trainer(self) -> DPLogisticRegression:
        return DPLogisticRegression(
            float(self.epsilon),
            self.delta,
            self.adjacency,
            norm_bound=self.norm_bound,
            classes=list(self.classes),
            intercept_scaling=self.intercept_scaling,
            random_state=self.random_state,
        )

    def _check_untrained(self) -> None:
        if self.model is not None:
            raise ConfigurationError("fit: the model is trained already; leave `model` out to train one")
