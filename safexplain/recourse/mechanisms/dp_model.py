"""Recourse from a model that was trained with differential privacy: any number of answers.

A `PrivateModel` is a model that carries a privacy statement, and answers queries by geometry or by search. The
mechanisms differ in how it is trained: `DPModelRecourse` takes any such model or trains by noisy gradient descent,
`OutputPerturbation` and `ObjectivePerturbation` publish a regression once, with noise on its weights or in its
objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection._search import BaseSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from torch import nn

from safexplain._digest import trained_digest
from safexplain._privacy_loss import Adjacency, check_delta
from safexplain._validate import check_number, whole_number
from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.dp.sgd.make_private import without_hooks
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.feature_names import training_columns
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import (
    DiverseAnswers,
    Frozen,
    Guarantee,
    Infeasible,
    assumptions,
    check_infeasible,
    diverse,
    wanted_label,
)
from safexplain.recourse.networks.score import scores_of
from safexplain.recourse.networks.search import DEFAULT, SearchOptions, network_recourse
from safexplain.recourse.pipelines import fitted, steps_of
from safexplain.recourse.plausibility import PUBLIC_ROWS, Plausibility, Within, check_plausibility
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Floats, Recourse
from safexplain.recourse.robustness import lengths, measured_shift, tolerated, withstanding
from safexplain.recourse.search import (
    advised,
    check_readable,
    classes_of,
    dense,
    linear_layer,
    rows_of,
    search_recourse,
)
from safexplain.recourse.trees.forest import Forest
from safexplain.verdict.privacy_statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """A model as it was given, its statement, and the score that is wanted high.

    That is a linear logit with (d,) weights, a bias and labels (unfavourable, favourable), or a column of a network's
    output, which does not know its width d. The network is a copy, as the statement is about these weights.
    """

    model: Any
    statement: PrivacyStatement
    width: int | None
    weights: Floats | None = None
    bias: float = 0.0
    network: Any = None
    column: int = 1
    labels: tuple[Any, ...] = ()
    search: SearchOptions = DEFAULT
    asked: Any = None
    """The favourable label of a model that `search_recourse` reads as a whole; None: it is not one of these."""

    def solve(
        self,
        rows: Floats,
        *,
        target: float,
        cost: Cost,
        constraints: Constraints | None,
        frozen: Frozen,
        within: Within = None,
        margin: Floats | None = None,
    ) -> Recourse:
        """Answers by geometry for a linear logit, (n,) margins beyond the target; by search for anything else."""
        if self.weights is not None:
            return linear_recourse(
                self.weights,
                self.bias if margin is None else self.bias - margin,
                rows,
                target=target,
                cost=cost,
                constraints=constraints,
                frozen=frozen,
                within=within,
            )
        return network_recourse(
            self.network,
            rows,
            target=target,
            favourable=self.column,
            cost=cost,
            constraints=constraints,
            frozen=frozen,
            within=within,
            options=self.search,
        )

    def scores(self, rows: Floats) -> Floats:
        """(n,) score of the favourable outcome."""
        if self.weights is not None:
            return np.asarray(rows @ self.weights + self.bias)
        return scores_of(self.network, rows, favourable=self.column, batch_size=self.search.batch_size)


def private_model(
    model: Any,
    privacy: PrivacyStatement | None,
    favourable: Any,
    adjacency: Adjacency = "substitute",
    search: SearchOptions = DEFAULT,
) -> PrivateModel:
    """What answers from a model, if it is private; arguments as in `DPModelRecourse`.

    Raises:
        RefusedError: no statement, one about other weights or about none, one without a finite epsilon, or under
            add/remove one that tells the number of records.
        ConfigurationError: not a model, not fitted, or it is not clear which class is favourable.
    """
    own = getattr(model, "privacy_", None) or getattr(model, "statement", None)
    if own is not None and privacy is not None and own != privacy:
        raise RefusedError("privacy: the model carries a statement of its own, and it is another one; leave it out")
    statement = own or privacy
    if is_read_whole(model):
        return _whole(model, statement, favourable, adjacency, search)
    linear = hasattr(model, "coef_") and hasattr(model, "intercept_")
    if not linear and hasattr(model, "fit") and hasattr(model, "get_params"):
        raise ConfigurationError(f"model: {type(model).__name__} is not fitted, or is not a linear model; fit it first")
    network = getattr(model, "model", model)
    if not linear and not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"model: expected a fitted linear model or a torch module, got {type(network).__name__}"
        )
    if not isinstance(statement, PrivacyStatement):
        raise RefusedError(
            f"{type(model).__name__} comes without a PrivacyStatement: answers from a model that was not trained with"
            " differential privacy publish its training data's influence, its direction above all. Train it with"
            " safexplain.dp, or pass privacy=statement"
        )
    statement.check_model(model if linear else network)
    _check_promise(statement, adjacency)
    if linear:
        return _linear(model, statement, favourable, search)
    return _network(network, model, statement, favourable, search)


def _check_promise(statement: PrivacyStatement, adjacency: Adjacency) -> None:
    """Raise RefusedError unless the statement promises something under this adjacency."""
    if not math.isfinite(statement.epsilons.of(adjacency)):
        raise RefusedError(f"the model's statement promises nothing under {adjacency}: its epsilon is infinite")
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the model's statement tells the true number of records, so that nothing hides whether one was added: ask"
            ' for adjacency="zero_out" (a real record or an empty one in its place, at the same epsilon), or train'
            ' DPLogisticRegression(adjacency="add_remove")'
        )


def is_read_whole(model: Any) -> bool:
    """Whether `search_recourse` reads this model as a whole: a Pipeline, a tree ensemble, a perceptron."""
    return isinstance(model, Pipeline | BaseSearchCV | MLPClassifier) or Forest.reads(model)


def _whole(model: Any, statement: Any, favourable: Any, adjacency: Adjacency, search: SearchOptions) -> PrivateModel:
    """A model that answers through `search_recourse`, if a statement is bound to all of it.

    Raises:
        RefusedError: no statement, or one that is not about the whole model.
        ConfigurationError: not fitted, or a model that cannot be read.
    """
    steps, estimator = steps_of(model)
    check_readable(estimator)
    for name, step in [*steps, ("", estimator)]:
        fitted(step, f"step {name!r}" if name else "the estimator")
    found = getattr(model, "best_estimator_", model)
    kind = type(estimator).__name__
    inner = getattr(estimator, "privacy_", None)
    about_part = isinstance(statement, PrivacyStatement) and statement.weights == trained_digest(estimator)
    if steps and (about_part or (statement is None and inner is not None)):
        learnt = ", ".join(f"{name!r} ({type(step).__name__})" for name, step in steps)
        raise RefusedError(
            f"the privacy statement is about the {kind} alone, and the steps before it were fitted on the same records:"
            f" {learnt}; every answer would publish what they have learned (means, ranges, categories). Put a public"
            " Preprocessing(numeric={name: (low, high)}, ...) in their place, which learns nothing:"
            " DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y)"
        )
    if not isinstance(statement, PrivacyStatement):
        why = (
            "the thresholds of its trees are values of training records and its leaves are averages of a few of them"
            if Forest.reads(estimator)
            else "its weights and what its steps have learned follow the training records"
        )
        raise RefusedError(
            f"{kind if not steps else f'a Pipeline that ends in {kind}'} comes without a PrivacyStatement, and has no"
            f" private release here: {why}, and answers lie on its decision boundary. Train"
            " DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y), which answers privately; or, if the"
            " training data are public or answers may tell about them, ask search_recourse(model, frame), which"
            " promises nothing. A training of your own that is private: privacy=statement.bound_to(model)"
        )
    statement.check_model(found)
    _check_promise(statement, adjacency)
    labels, column = classes_of(estimator, favourable)
    pair = (labels[1 - column], labels[column]) if len(labels) == 2 else ()
    return PrivateModel(found, statement, None, column=column, labels=pair, search=search, asked=labels[column])


def _linear(model: Any, statement: PrivacyStatement, favourable: Any, search: SearchOptions) -> PrivateModel:
    labels = np.asarray(getattr(model, "classes_", ())).tolist()
    weights = dense(model.coef_)
    bias = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64).ravel(), len(weights))
    if len(labels) == len(weights) == 2:  # a score for each
        weights, bias = np.diff(weights, axis=0), np.diff(bias)
    pairwise = hasattr(model, "support_vectors_") and len(labels) > 2
    if len(labels) < 2 or len(weights) != (1 if len(labels) == 2 else len(labels)) or pairwise:
        raise ConfigurationError(
            f"model: expected a linear classifier with one score for each class, got {type(model).__name__} with"
            f" {len(labels)} classes and {len(weights)} rows of coefficients{', each for a pair of classes' * pairwise}"
        )
    column, width = labels.index(wanted_label(labels, favourable)), weights.shape[1]
    if len(labels) == 2:
        sign = 1.0 if column == 1 else -1.0
        pair = (labels[1 - column], labels[column])
        return PrivateModel(model, statement, width, sign * weights[0], float(sign * bias[0]), labels=pair)
    layer = linear_layer(weights, bias)
    return PrivateModel(model, statement, width, network=layer, column=column, search=search)


def _network(
    network: nn.Module, given: Any, statement: PrivacyStatement, favourable: Any, search: SearchOptions
) -> PrivateModel:
    column = 1 if favourable is None else whole_number("favourable: a column of the network's output", favourable, 0)
    return PrivateModel(
        given, statement, None, network=without_hooks(deepcopy(network)).eval(), column=column, search=search
    )


class _FromTable(nn.Module):
    """A layer before a network: rows of the table, in float64 as `Preprocessing.transform` reads them, become what the
    network was trained on, in its type."""

    def __init__(self, people: Preprocessing, like: torch.Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.from_numpy(people.offset.copy()).to(like.device), requires_grad=False)
        self.scale = nn.Parameter(torch.from_numpy(people.scale.copy()).to(like.device), requires_grad=False)
        self.dtype = like.dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return ((rows - self.offset) / self.scale).to(self.dtype)


def on_table(found: PrivateModel, people: Preprocessing | None) -> PrivateModel:
    """A model of scaled rows as one of rows of the table; the same scores, but for rounding.

    Raises:
        ConfigurationError: a model of another number of columns.
    """
    if people is None:
        return found
    if found.width not in (None, len(people.columns)):
        raise ConfigurationError(
            f"model: trained on {found.width} columns, but the preprocessing gives {len(people.columns)}; train it on"
            " preprocessing.transform(frame)"
        )
    if found.weights is not None:
        weights = found.weights / people.scale
        return replace(found, weights=weights, bias=found.bias - float(people.offset @ weights))
    like = next((p for p in found.network.parameters() if p.is_floating_point()), torch.zeros(()))
    layer = _FromTable(people, like.detach())
    return replace(found, width=len(people.columns), network=nn.Sequential(layer, found.network).eval())


@dataclass(eq=False, kw_only=True)
class PrivateModelRecourse(DiverseAnswers):
    """Recourse from a private model: its guarantee is the training's, by post-processing, however many answers follow.

    Statement. If training is (epsilon, delta)-private, so is any number of answers to any queries, together.

    Proof. Answers are functions of the released model, of the queries and of public costs and constraints: direction,
    length, sign and the decision whether there is anything to change all come from the private model, and no record is
    looked at again. Post-processing (Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy,
    proposition 2.1).

    Args:
        delta: of the training; in [1e-12, 1), smaller than one over the number of records. 0 where the mechanism offers
            pure epsilon.
        favourable: the label that is wanted; None: the second of `classes`, of which there are two.
        plausibility: answers are no outliers among its PUBLIC rows, or `valid` is False; see `Plausibility`. Rows that
            the model was trained on must not be among them.
        shift: by how much the weights and the intercept may move, all together, in the columns that training sees, when
            the model is trained anew: answers stay valid under every such shift, see `safexplain.recourse.robustness`.
            For linear models with two classes. `measured_shift` says how much to ask for.

    Raises:
        ConfigurationError: a value out of range.
    """

    training: ClassVar[str] = ""

    delta: float = 1e-5
    favourable: Any = None
    plausibility: Plausibility | None = None
    shift: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plausibility(self.plausibility)
        if self.plausibility is not None:
            own = self.preprocessing
            self._set(plausible=self.plausibility if own is None else self.plausibility.of(own))
        check_number("shift", self.shift, minimum=0)
        if check_number("delta", self.delta) != 0:
            check_delta(self.delta)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the private model, which spends the budget; answers spend nothing.

        Raises:
            ConfigurationError: `norm_bound` is missing, a parameter is out of range, it is not said which of several
                classes is favourable, or the model is trained already; nothing is spent.
            InputError: a label that `classes` does not list, or columns in another order than the constraints'.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.

        Warns:
            WeakDeltaWarning: delta is at least one over the number of records.
        """
        wanted = wanted_label(list(self.classes), self.favourable)
        rows, labels = self._training(X, y)
        self._check_plausible(np.shape(rows)[1] if np.ndim(rows) == 2 else None)  # before the budget is spent
        trained = self._trainer().fit(rows, labels)
        model = self._checked(on_table(private_model(trained, None, wanted), self.preprocessing))
        self._set(width=trained.n_features_in_, columns=self._columns_of(X), model=model)
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
        seeded = self.random_state is not None if statement is None else None
        assumed = assumptions(seeded=seeded, preprocessed=self.preprocessing is not None)
        assumed += () if self.plausibility is None else (PUBLIC_ROWS,)
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
            assumptions=tuple(dict.fromkeys(assumed + (statement.assumptions if statement else ()))),
            preprocessing=None if self.preprocessing is None else self.preprocessing.digest,
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
            RefusedError: its weights were changed since, so that the statement is not about them.
        """
        _ = self.features
        found: PrivateModel = self._get("model")
        found.statement.check_model(getattr(found.model, "model", found.model))
        return found.model

    def _solver(self, rows: Floats) -> Callable[[Frozen], Recourse]:
        shift, plausible = float(self.shift), self._get("plausible")
        if plausible is None:
            return lambda frozen: self._answers(rows, frozen, shift)
        model: PrivateModel = self._get("model")

        def accepts(public: Floats) -> NDArray[np.bool_]:
            need = shift * self._lengths(public) if shift else 0.0
            return np.asarray(model.scores(public) >= self.target + need)

        def solve(frozen: Frozen) -> Recourse:
            def part(at: NDArray[np.intp], within: Within) -> Recourse:
                return self._answers(rows[at], None if frozen is None else frozen[at], shift, within)

            found: Recourse = plausible.answers(
                rows, part, accepts, cost=self.column_cost, constraints=self.column_constraints, frozen=frozen
            )
            return found

        return solve

    def _answers(self, rows: Floats, frozen: Frozen, shift: float, within: Within = None) -> Recourse:
        """Answers, each within its box, that withstand a shift of the weights."""
        model: PrivateModel = self._get("model")

        def solve(at: NDArray[np.intp], margin: Floats | None) -> Recourse:
            return model.solve(
                rows[at],
                target=self.target,
                cost=self.column_cost,
                constraints=self.column_constraints,
                frozen=None if frozen is None else frozen[at],
                within=None if within is None else (within[0][at], within[1][at]),
                margin=margin,
            )

        if not shift:
            return solve(np.arange(len(rows)), None)
        return withstanding(solve, model.scores, self._lengths, rows, shift, float(self.target))

    def _lengths(self, rows: Floats) -> Floats:
        return lengths(self._scaled(rows))

    def _checked(self, model: PrivateModel) -> PrivateModel:
        """The model, if it can answer as it was asked to."""
        if self.shift and model.weights is None:
            raise ConfigurationError(
                "shift: answers withstand a shift of the weights of a linear model with two classes; for a network, or"
                " more classes, ask for a margin on the score: target="
            )
        if model.asked is None:
            self._check_plausible(model.width)
        return model

    def _check_plausible(self, width: int | None) -> None:
        """Whether the public rows can be compared with rows of this many columns."""
        if self.plausibility is not None:
            self._get("plausible").of(self.preprocessing, width)

    def _linear_model(self, method: str) -> PrivateModel:
        _ = self.features
        model: PrivateModel = self._get("model")
        if model.weights is None:
            raise ConfigurationError(f"{method}: for linear models with two classes, and this one is not")
        return model

    def shift_tolerated(self, answer: Recourse) -> Floats:
        """(n,) how far the weights may move before an answer of this mechanism may stop being valid; 0 where none is.

        The distance is that of `shift`: Euclidean, of weights and intercept together, in the columns that training
        sees. It is exact: shifts that are shorter turn no decision, and one that is longer does.

        Raises:
            ConfigurationError: `fit` has not been called, or the model is not linear with two classes.
            InputError: an answer of other columns.
        """
        model, width = self._linear_model("shift_tolerated"), self.features
        if answer.counterfactual.shape[1] != width:
            raise InputError(f"answer: expected {width} columns, got {answer.counterfactual.shape[1]}")
        found = tolerated(model.scores(answer.counterfactual), self._lengths(answer.counterfactual), float(self.target))
        return np.where(answer.valid, found, 0.0)

    def measured_shift(self, retrained: PrivateModelRecourse, x: ArrayLike, *, share: float = 0.95) -> float:
        """The shift to ask for, so that answers stay valid under the next training: measured on two trainings.

        Train twice on samples of PUBLIC data with the epsilon, the number of records and the parameters that you train
        with, or take two private models that were released: what is computed from these costs nothing more. It is a
        measurement of one pair of trainings; take the largest of several.

        Args:
            retrained: a mechanism with the same columns, whose model must accept the answers of this one.
            x: queries, of which those that are turned down count; public, or of people about whom answers may tell.
            share: of the answers that are to stay valid.

        Returns:
            A shift for which at least this share stays valid, and about the smallest one.

        Raises:
            InputError: nobody is turned down, or too few have an answer that would stay valid.
            ConfigurationError: not fitted, not linear, other columns, or a share out of range.
        """
        model = self._linear_model("measured_shift")
        if not isinstance(retrained, PrivateModelRecourse) or retrained.preprocessing != self.preprocessing:
            raise ConfigurationError("retrained: expected a mechanism with a private model and the same preprocessing")
        if retrained.features != self.features:
            raise ConfigurationError(f"retrained: it has {retrained.features} columns, and this one {self.features}")
        other, rows = retrained._linear_model("measured_shift"), self.rows(x)
        held = self._held(rows)
        gap = float(np.median(np.abs(self.target - model.scores(rows)) / self._lengths(rows)))
        return measured_shift(
            lambda shift: self._answers(rows, held, shift),
            lambda found: other.scores(found) >= retrained.target,
            (gap or 1.0) / 64,
            share,
        )

    def _returned(self, found: Recourse, x: Any) -> Recourse:
        """With how it may be put in words, which the released model tells; see `advised`."""
        answer, model = super()._returned(found, x), self._get("model")
        if model.weights is None:
            return answer
        return advised(
            answer,
            cost=self.column_cost,
            constraints=self.column_constraints,
            frozen=self._held(answer.x),
            accepts=lambda rows, _: model.scores(rows) >= self.target + self.shift * self._lengths(rows),
            weights=model.weights,
            bias=model.bias,
            target=self.target,
            ranges=None if self.preprocessing is None else self.preprocessing.constraints(),
        )

    def _trainer(self, **options: Any) -> DPLogisticRegression:
        """The unfitted private model."""
        return DPLogisticRegression(
            float(self.epsilon),
            self.delta,
            self.adjacency,
            norm_bound=self._get("bound"),
            classes=list(self.classes),
            intercept_scaling=self.intercept_scaling,
            random_state=self.random_state,
            **options,
        )

    def _planned_delta(self) -> float:
        return float(self.delta)


@dataclass(eq=False, kw_only=True)
class DPModelRecourse(PrivateModelRecourse):
    """The default: recourse from a private model, linear or a network; see `PrivateModelRecourse` for statement, proof.

    Args:
        model: a fitted `DPLogisticRegression`, a `DPFineTuned`, a network or a linear model with `privacy`; None: `fit`
            trains a `DPLogisticRegression` by noisy gradient descent. With a preprocessing, a model that was trained on
            `preprocessing.transform(frame)`. A Pipeline of a `Preprocessing` and such a model is both. Any other
            Pipeline, tree ensemble or perceptron only with a statement about all of it (`statement.bound_to(model)`):
            this package trains none of these privately.
        privacy: the statement of a model that does not carry its own; it names the model's weights.
        favourable: the label that is wanted, for a network the column of its output; None: the second of two.
        search: `SearchOptions` for networks and for more than two classes.

    Raises:
        RefusedError: a model without a statement, with one about other weights or about none, or one that promises
            nothing.
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
    search: SearchOptions = DEFAULT

    def __post_init__(self) -> None:
        steps = self.model.steps if isinstance(self.model, Pipeline) else []
        if len(steps) == 2 and isinstance(steps[0][1], Preprocessing):  # public, so that the classifier is the model
            if self.preprocessing not in (None, steps[0][1]):
                raise ConfigurationError("preprocessing: the pipeline begins with another one; leave it out")
            object.__setattr__(self, "preprocessing", steps[0][1])
            object.__setattr__(self, "model", steps[1][1])
        super().__post_init__()
        if self.model is None:
            if self.privacy is not None:
                raise ConfigurationError("privacy: a statement without a model; fit() makes its own")
            check_delta(self.delta)  # 0 is for mechanisms with pure epsilon
            return
        found = private_model(self.model, self.privacy, self.favourable, self.adjacency, self.search)
        columns = None if found.asked is not None else training_columns(self.model)
        if found.asked is not None:
            object.__setattr__(self, "model", found.model)
        elif self.preprocessing is not None:
            found = on_table(found, self.preprocessing)
            known = self.preprocessing.columns
            if columns not in (None, known):
                raise ConfigurationError(
                    f"model: trained on the columns {', '.join(columns or ())}, but the preprocessing gives"
                    f" {', '.join(known)}; train it on preprocessing.transform(frame)"
                )
            columns = None
        elif found.width is not None:
            self._check_width(found.width)
        features = None if self.constraints is None else self.constraints.features
        if columns is not None and isinstance(features, tuple) and features != columns:
            raise ConfigurationError(
                f"constraints: for the columns {', '.join(features)}, but the model was trained on"
                f" {', '.join(columns)}, in this order"
            )
        if len(found.labels) == 2:
            object.__setattr__(self, "classes", found.labels)
        width = (
            found.width if self.preprocessing is None or found.asked is not None else len(self.preprocessing.columns)
        )
        self._set(model=self._checked(found), width=width, columns=columns)

    def rows(self, x: ArrayLike) -> Floats:
        """See `RecourseMechanism.rows`; of a Pipeline or a tree ensemble, rows of the table that it is read as."""
        found = self._get("model")
        if found is None or found.asked is None:
            return super().rows(x)
        return rows_of(self.model, x, self.preprocessing, found.asked)

    def explain(self, x: ArrayLike, *, infeasible: Infeasible = "raise") -> Recourse:
        """See `RecourseMechanism.explain`; a Pipeline or a tree ensemble is asked as by `search_recourse`."""
        found = self._get("model")
        if found is None or found.asked is None:
            return super().explain(x, infeasible=infeasible)
        check_infeasible(infeasible)
        answer = self._searched(x)
        return answer.required() if infeasible == "raise" else answer

    def explain_diverse(self, x: ArrayLike, answers: int) -> tuple[Recourse, ...]:
        """See `DiverseAnswers.explain_diverse`."""
        found = self._get("model")
        if found is None or found.asked is None:
            return super().explain_diverse(x, answers)
        wanted = whole_number("answers", answers, 1)
        first = self._searched(x)
        table = first.table if isinstance(first.table, Preprocessing) else None
        return diverse(
            lambda frozen: self._searched(x, frozen) if frozen.any() else first,
            first.x,
            wanted,
            cost=self.cost if table is None else table.cost(self.cost),
            constraints=self.constraints if table is None else table.constraints(None),
        )

    def _searched(self, x: Any, frozen: Frozen = None) -> Recourse:
        return search_recourse(
            self.model,
            x,
            constraints=self.constraints,
            cost=self.cost,
            target=self.target,
            favourable=self._get("model").asked,
            frozen=frozen,
            options=self.search,
            preprocessing=self.preprocessing,
            plausibility=self.plausibility,
        )

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """See `PrivateModelRecourse.fit`."""
        if self.model is not None:
            raise ConfigurationError("fit: the model is trained already; leave `model` out to train one")
        return super().fit(X, y)

    def _trainer(self, **options: Any) -> DPLogisticRegression:
        """Public ranges are wide against what people differ by: the model learns from rows minus their noised mean."""
        centre = self.preprocessing is not None and self.intercept_scaling > 0
        return super()._trainer(centre=centre, **options)


@dataclass(eq=False, kw_only=True)
class _PerturbedRecourse(PrivateModelRecourse):
    """A row over `DPLogisticRegression`.

    Args:
        logit_noise: standard deviation of the noise on the logit of a record of norm `norm_bound`, which sets the
            regularization. Smaller is safer for few records, larger follows the data closer. None: the default of
            `DPLogisticRegression`.
    """

    mechanism: ClassVar[Literal["output", "objective"]]

    logit_noise: float | None = None

    def _trainer(self, **options: Any) -> DPLogisticRegression:
        return super()._trainer(mechanism=self.mechanism, logit_noise=self.logit_noise, **options)


@dataclass(eq=False, kw_only=True)
class OutputPerturbation(_PerturbedRecourse):
    """Weights and intercept with noise for their stability, released once; any number of answers from them.

    Statement and proof: `safexplain.dp.linear.mechanisms` for the weights (Chaudhuri, Monteleoni and Sarwate 2011,
    algorithm 1), then post-processing, see `PrivateModelRecourse`.

    Args:
        delta: 0 for radial noise and pure epsilon; above 0 for Gaussian noise, which is smaller in many dimensions.
    """

    mechanism: ClassVar[Literal["output", "objective"]] = "output"
    training: ClassVar[str] = "logistic regression by output perturbation"


@dataclass(eq=False, kw_only=True)
class ObjectivePerturbation(_PerturbedRecourse):
    """Weights and intercept that minimise a noised objective, released once; any number of answers from them.

    Statement and proof: `safexplain.dp.linear.mechanisms` for the weights (Chaudhuri, Monteleoni and Sarwate 2011,
    algorithm 2), then post-processing, see `PrivateModelRecourse`. Pure epsilon: `delta` is not used.
    """

    mechanism: ClassVar[Literal["output", "objective"]] = "objective"
    training: ClassVar[str] = "logistic regression by objective perturbation"

    def _planned_delta(self) -> float:
        return 0.0
