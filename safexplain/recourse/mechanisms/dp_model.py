"""Recourse from a model trained with differential privacy, for any number of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline

from safexplain._privacy_loss import check_delta
from safexplain._validate import check_number
from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.errors import ConfigurationError
from safexplain.recourse.features import training_columns
from safexplain.recourse.guarantee import VOUCHED, Guarantee, Per, assumptions
from safexplain.recourse.mechanisms.mechanism import Frozen, RecourseMechanism, favourable_label
from safexplain.recourse.mechanisms.private_model import PrivateModel, on_table, private_model
from safexplain.recourse.networks.search import DEFAULT, SearchOptions
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse
from safexplain.recourse.robustness import lengths, measured_shift, robust_answers
from safexplain.recourse.solution import Floats, Solution
from safexplain.verdict.privacy_statement import PrivacyStatement


@dataclass(eq=False, kw_only=True)
class DPModelRecourse(RecourseMechanism):
    """The default: recourse from a private model, with the guarantee of its training for any number of answers.

    Statement. If training is (epsilon, delta)-private, so is any number of answers to any queries, together.

    Proof. Answers are functions of the released model, of the queries and of public costs and constraints: direction,
    length, sign and decision all come from the private model, and no record is used again. Post-processing (Dwork and
    Roth 2014, The Algorithmic Foundations of Differential Privacy, proposition 2.1).

    Args:
        model: a fitted `DPLogisticRegression`, a `DPFineTuned`, a network or a linear model with `privacy`; None: `fit`
            trains a `DPLogisticRegression` by noisy gradient descent. With a preprocessing, the model must be trained
            on `preprocessing.transform(frame)`; a Pipeline of a `Preprocessing` and such a model provides both.
        privacy: the statement of a model that does not carry one; it identifies the model's weights. Its content is its
            owner's word, as stated in the guarantee of every answer.
        delta: of the training by `fit`; in [1e-12, 1), below one over the number of records.
        favourable: the favourable label, for a network the column of its output; None: the second of two.
        shift: Euclidean norm by which a retraining may move weights and intercept, in scaled columns: answers stay
            valid under every such shift, see `safexplain.recourse.robustness`. For linear models with two classes;
            `measured_shift` measures it.
        search: `SearchOptions` for networks and for more than two classes.

    Raises:
        RefusedError: a model without a statement, or with one that is about other weights, no weights or an infinite
            epsilon.
        ConfigurationError: an unfitted model, or a value out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = rng.integers(0, 2, 2000)
        >>> X = rng.normal(size=(2000, 3)) + 2 * y[:, None]
        >>> recourse = DPModelRecourse(epsilon=1.0, norm_bound=5.0, random_state=0).fit(X, y)
        >>> answer = recourse.explain(X[y == 0][:5])
        >>> bool(answer.valid.all()), answer.guarantee.epsilon <= 1.0
        (True, True)
    """

    per: ClassVar[Per] = "model"

    model: Any = field(default=None, kw_only=False)
    privacy: PrivacyStatement | None = None
    delta: float = 1e-5
    favourable: Any = None
    shift: float = 0.0
    search: SearchOptions = DEFAULT

    def __post_init__(self) -> None:
        steps = self.model.steps if isinstance(self.model, Pipeline) else []
        if len(steps) == 2 and isinstance(steps[0][1], Preprocessing):  # public, so that the classifier is the model
            if self.preprocessing not in (None, steps[0][1]):
                raise ConfigurationError("preprocessing: differs from the first step of the pipeline; leave it out")
            object.__setattr__(self, "preprocessing", steps[0][1])
            object.__setattr__(self, "model", steps[1][1])
        super().__post_init__()
        check_number("shift", self.shift, minimum=0)
        check_delta(self.delta)
        if self.model is not None:
            self._use_model(private_model(self.model, self.privacy, self.favourable, self.adjacency, self.search))
        elif self.privacy is not None:
            raise ConfigurationError("privacy: a statement needs a model; leave privacy= out, as fit() creates its own")

    def _use_model(self, found: PrivateModel) -> None:
        """Use a given model, after a check of columns and constraints."""
        columns, people = training_columns(self.model), self.preprocessing
        if people is not None:
            found = on_table(found, people)
            if columns not in (None, people.columns):
                raise ConfigurationError(
                    f"model: expected the columns of the preprocessing, {', '.join(people.columns)}, but it was trained"
                    f" on {', '.join(columns or ())}; train it on preprocessing.transform(frame)"
                )
            columns = None
        elif found.width is not None:
            self._check_width(found.width)
        features = None if self.constraints is None else self.constraints.features
        if columns is not None and isinstance(features, tuple) and features != columns:
            raise ConfigurationError(
                f"constraints: expected the columns of the model in their order, {', '.join(columns)}, got"
                f" {', '.join(features)}"
            )
        if len(found.labels) == 2:
            object.__setattr__(self, "classes", found.labels)
        width = found.width if people is None else len(people.columns)
        self._set(model=self._checked(found), width=width, columns=columns)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the private model, which spends the budget; answers spend nothing.

        Raises:
            ConfigurationError: no `norm_bound`, a parameter out of range, no favourable class among several, or a model
                that is trained already; nothing is spent.
            InputError: a label outside `classes`, or columns in another order than the constraints'.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.

        Warns:
            WeakDeltaWarning: delta is at least one over the number of records.
        """
        if self.model is not None:
            raise ConfigurationError("fit: a trained model was given; leave `model` out to train one")
        wanted = favourable_label(list(self.classes), self.favourable)
        trained = self._trainer().fit(*self._training_data(X, y))
        model = self._checked(on_table(private_model(trained, None, wanted), self.preprocessing))
        self._set(width=trained.n_features_in_, columns=self._columns_of(X), model=model)
        return self

    def _trainer(self) -> DPLogisticRegression:
        """The unfitted private model; with a preprocessing, it learns from rows minus their noised mean, as public
        ranges are wide compared to differences between people."""
        return DPLogisticRegression(
            float(self.epsilon),
            self.delta,
            self.adjacency,
            norm_bound=self._get("bound"),
            classes=list(self.classes),
            intercept_scaling=self.intercept_scaling,
            centre=self.preprocessing is not None and self.intercept_scaling > 0,
            random_state=self.random_state,
        )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the training; before `fit`, of the budget."""
        statement, model = self.statement, self._get("model")
        if statement is None:
            epsilon, delta = float(self.epsilon), float(self.delta)
            name = "logistic regression by noisy full-batch gradient descent"
        else:
            epsilon, delta, name = statement.epsilons.of(self.adjacency), statement.delta, statement.mechanism
        vouched = model is not None and model.vouched
        assumed = assumptions(
            seeded=self.random_state is not None if statement is None else None,
            preprocessed=self.preprocessing is not None,
        )
        assumed += ((VOUCHED,) if vouched else ()) + (statement.assumptions if statement else ())
        return Guarantee(
            mechanism=f"recourse from a private model (DPModelRecourse): {name}",
            per="model",
            epsilon=epsilon,
            delta=delta,
            adjacency=self.adjacency,
            released="anything about the trained model: its weights, its decisions and any number of answers",
            why="answers are computed from the private model alone (post-processing, Dwork and Roth 2014, prop. 2.1)",
            statement=statement,
            vouched=vouched,
            assumptions=tuple(dict.fromkeys(assumed)),
            preprocessing=None if self.preprocessing is None else self.preprocessing.digest,
        )

    @property
    def statement(self) -> PrivacyStatement | None:
        """The statement of the training; None before it."""
        model = self._get("model")
        return None if model is None else model.statement

    @property
    def labels(self) -> tuple[Any, Any]:
        """The unfavourable label (None for a network, or if there are several) and the favourable one."""
        model: PrivateModel | None = self._get("model")
        if model is None:
            return super().labels
        if model.labels:
            return model.labels[0], model.labels[1]
        return None, model.model.classes_[model.column].item() if hasattr(model.model, "classes_") else model.column

    @property
    def scores_are_logits(self) -> bool:
        """Whether the model has a single logit; of several, the score is the lead over the largest other one."""
        return self._get("model") is None or self._get("model").weights is not None

    @property
    def private(self) -> Any:
        """The trained private model, which may be published.

        Raises:
            ConfigurationError: `fit` has not been called.
            RefusedError: its weights have changed, so that the statement does not cover them.
        """
        _ = self.features
        found: PrivateModel = self._get("model")
        found.statement.check_model(getattr(found.model, "model", found.model))
        return found.model

    def _solver(self, rows: Floats) -> Callable[[Frozen], Solution]:
        return lambda frozen: self._answers(rows, frozen, float(self.shift))

    def _answers(self, rows: Floats, frozen: Frozen, shift: float) -> Solution:
        """Cheapest rows that withstand a shift of the weights."""
        model: PrivateModel = self._get("model")

        def solve(at: NDArray[np.intp], margin: Floats | None) -> Solution:
            return model.solve(
                rows[at],
                target=self.target,
                cost=self.column_cost,
                constraints=self.column_constraints,
                frozen=None if frozen is None else frozen[at],
                margin=margin,
            )

        if not shift:
            return solve(np.arange(len(rows)), None)
        return robust_answers(solve, model.scores, self._lengths, rows, shift, float(self.target))

    def _lengths(self, rows: Floats) -> Floats:
        return lengths(self._scaled(rows))

    def _checked(self, model: PrivateModel) -> PrivateModel:
        """The model, checked to support `shift`."""
        if self.shift and model.weights is None:
            raise ConfigurationError(
                "shift: expected a linear model with two classes; for a network, or more classes, require a margin on"
                " the score: target="
            )
        return model

    def _linear_model(self, method: str) -> PrivateModel:
        _ = self.features
        model: PrivateModel = self._get("model")
        if model.weights is None:
            raise ConfigurationError(f"{method}: expected a linear model with two classes, got another model")
        return model

    def measured_shift(self, retrained: DPModelRecourse, x: ArrayLike, *, share: float = 0.95) -> float:
        """Measure on two trainings the `shift` that keeps answers valid after a retraining.

        Train twice on samples of PUBLIC data with the epsilon, number of records and parameters of production, or use
        two released private models, which costs no further budget. Take the largest result of several pairs.

        Args:
            retrained: a mechanism with the same columns, whose model must accept the answers of this one.
            x: queries, of which the unfavourable ones count; public, or of people about whom answers may reveal
                something.
            share: of the answers that must stay valid.

        Returns:
            About the smallest shift for which at least this share stays valid.

        Raises:
            InputError: no unfavourable queries, or too few with an answer that would stay valid.
            ConfigurationError: not fitted, not linear, other columns, or a share out of range.
        """
        model = self._linear_model("measured_shift")
        if not isinstance(retrained, DPModelRecourse) or retrained.preprocessing != self.preprocessing:
            raise ConfigurationError("retrained: expected a mechanism with a private model and the same preprocessing")
        if retrained.features != self.features:
            raise ConfigurationError(f"retrained: expected {self.features} columns, got {retrained.features}")
        other, rows = retrained._linear_model("measured_shift"), self.rows(x)
        held = self._frozen_columns(rows)
        gap = float(np.median(np.abs(self.target - model.scores(rows)) / self._lengths(rows)))
        return measured_shift(
            lambda shift: self._answers(rows, held, shift),
            lambda found: other.scores(found) >= retrained.target,
            (gap or 1.0) / 64,
            share,
        )

    def _with_guarantee(self, found: Solution, x: Any, guarantee: Guarantee | None = None) -> Recourse:
        """The answer with its advice, which follows from the released model."""
        model: PrivateModel = self._get("model")

        def accepts(rows: Floats, _: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.asarray(model.scores(rows) >= self.target + self.shift * self._lengths(rows))

        return self._with_advice(super()._with_guarantee(found, x, guarantee), model.weights, model.bias, accepts)
