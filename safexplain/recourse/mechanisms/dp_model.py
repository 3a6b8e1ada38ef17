"""Recourse from a model trained with differential privacy: by geometry if it is linear, otherwise by search."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline
from torch import nn

from safexplain._privacy_loss import Adjacency, check_delta
from safexplain._validate import check_number, whole_number
from safexplain.dp.heads import evaluation_mode
from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.dp.sgd.finetune import DPFineTuned
from safexplain.dp.sgd.steps import without_hooks
from safexplain.errors import ConfigurationError, InputError, RefusedError
from safexplain.recourse.features import training_columns
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import Accepts, Frozen, RecourseMechanism, favourable_label
from safexplain.recourse.networks.boundary_search import NetworkScore
from safexplain.recourse.networks.search import DEFAULT, SearchOptions, network_recourse
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import VOUCHED, Guarantee, Per, assumptions
from safexplain.recourse.solution import Floats, Solution
from safexplain.verdict.privacy_statement import PrivacyStatement


@dataclass(eq=False, kw_only=True)
class DPModelRecourse(RecourseMechanism):
    """The default: recourse from a private model, with the guarantee of its training for any number of answers.

    Statement. If training is (epsilon, delta)-private, so is any number of answers to any queries, together.

    Proof. Answers are functions of the released model, of the queries and of public costs and constraints, and no
    record is used again: post-processing (Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy,
    proposition 2.1).

    Args:
        model: a fitted `DPLogisticRegression`, a `DPFineTuned`, a network or a linear model with `privacy`; None: `fit`
            trains a `DPLogisticRegression`. With a preprocessing, the model must be trained on
            `preprocessing.transform(frame)`; a Pipeline of a `Preprocessing` and such a model provides both.
        privacy: the statement of a model that does not carry one; it identifies the model's weights. Its content is its
            owner's word, as every guarantee says.
        delta: of the training by `fit`; in [1e-12, 1), below one over the number of records.
        favourable: the favourable label, for a network the column of its output; None: the second of two.
        shift: Euclidean norm by which a retraining may move weights and intercept, in scaled columns: answers stay
            valid under every such shift. For linear models with two classes; `measured_shift` measures it.
        search: `SearchOptions` for networks and for more than two classes.

    Raises:
        RefusedError: a model without a statement, or with one that is not about its weights, has no finite epsilon, or
            under add/remove reveals the number of records.
        ConfigurationError: an unfitted model, or a value out of range.
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
        if not isinstance(self.search, SearchOptions):
            raise ConfigurationError(f"search: expected SearchOptions(...), got {self.search!r}")
        if self.model is not None:
            self._use_model(private_model(self.model, self.privacy, self.favourable, self.adjacency, self.search))
        elif self.privacy is not None:
            raise ConfigurationError("privacy: a statement needs a model; leave privacy= out, as fit() creates its own")

    def _use_model(self, found: PrivateModel) -> None:
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
        if found.labels:
            object.__setattr__(self, "classes", found.labels)
        self._set(model=self._checked(found), width=found.width, columns=columns)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the private model, which spends the budget; answers spend nothing. With a preprocessing, it learns from
        rows minus their noised mean, as public ranges are wide compared to differences between people.

        Raises:
            ConfigurationError: no `norm_bound`, a parameter out of range, no favourable class, or a model that is
                trained already; nothing is spent.
            InputError: a label outside `classes`, or columns in another order than the constraints'.
            ValueError: X or y has a wrong shape, or holds NaN or infinity.

        Warns:
            WeakDeltaWarning: delta is at least one over the number of records.
        """
        if self.model is not None:
            raise ConfigurationError("fit: a trained model was given; leave `model` out to train one")
        wanted = favourable_label(list(self.classes), self.favourable)
        trained = DPLogisticRegression(
            float(self.epsilon),
            self.delta,
            self.adjacency,
            norm_bound=self._get("bound"),
            classes=list(self.classes),
            intercept_scaling=self.intercept_scaling,
            centre=self.preprocessing is not None and self.intercept_scaling > 0,
            random_state=self.random_state,
        ).fit(*self._training_data(X, y))
        model = self._checked(on_table(private_model(trained, None, wanted), self.preprocessing))
        self._set(width=trained.n_features_in_, columns=self._columns_of(X), model=model)
        return self

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
        return self._guarantee(
            assumed,
            mechanism=f"recourse from a private model (DPModelRecourse): {name}",
            epsilon=epsilon,
            delta=delta,
            released="anything about the trained model: its weights, its decisions and any number of answers",
            why="answers are computed from the private model alone (post-processing, Dwork and Roth 2014, prop. 2.1)",
            statement=statement,
            vouched=vouched,
        )

    @property
    def statement(self) -> PrivacyStatement | None:
        """The statement of the training; None before it."""
        model = self._get("model")
        return None if model is None else model.statement

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
        model: PrivateModel = self._get("model")

        def solve(at: NDArray[np.intp], margin: float | Floats = 0.0) -> Solution:
            return model.solve(
                rows[at],
                margin,
                target=self.target,
                cost=self.column_cost,
                constraints=self.column_constraints,
                frozen=None if frozen is None else frozen[at],
            )

        if not shift:
            return solve(np.arange(len(rows)))
        return robust_answers(solve, model.scores, self._lengths, rows, shift, float(self.target))

    def _lengths(self, rows: Floats) -> Floats:
        return lengths(self._scaled(rows))

    def _checked(self, model: PrivateModel) -> PrivateModel:
        if self.shift and model.weights is None:
            raise ConfigurationError(
                "shift: expected a linear model with two classes; for a network, or more classes, require a margin on"
                " the score: target="
            )
        return model

    def _linear_model(self) -> PrivateModel:
        _ = self.features
        model: PrivateModel = self._get("model")
        if model.weights is None:
            raise ConfigurationError("measured_shift: expected a linear model with two classes, got another model")
        return model

    def measured_shift(self, retrained: DPModelRecourse, x: ArrayLike, *, share: float = 0.95) -> float:
        """Measure on two trainings the `shift` that keeps answers valid after a retraining.

        Train twice on samples of PUBLIC data with production's parameters and number of records, or use two released
        private models, which costs no further budget. Take the largest result of several pairs.

        Args:
            retrained: a mechanism with the same columns, whose model must accept the answers of this one.
            x: queries, of which the unfavourable ones count.
            share: of the answers that must stay valid.

        Returns:
            About the smallest shift for which at least this share stays valid.

        Raises:
            InputError: no unfavourable queries, or too few with an answer that would stay valid.
            ConfigurationError: not fitted, not linear, other columns, or a share out of range.
        """
        model = self._linear_model()
        if not isinstance(retrained, DPModelRecourse) or retrained.preprocessing != self.preprocessing:
            raise ConfigurationError("retrained: expected a mechanism with a private model and the same preprocessing")
        if retrained.features != self.features:
            raise ConfigurationError(f"retrained: expected {self.features} columns, got {retrained.features}")
        other, rows = retrained._linear_model(), self.rows(x)
        held = self._frozen_columns(rows)
        gap = float(np.median(np.abs(self.target - model.scores(rows)) / self._lengths(rows)))
        return measured_shift(
            lambda shift: self._answers(rows, held, shift),
            lambda found: other.scores(found) >= retrained.target,
            (gap or 1.0) / 64,
            share,
        )

    def _released(self, found: Solution) -> tuple[Floats | None, float | Floats, Accepts]:
        model: PrivateModel = self._get("model")

        def accepts(rows: Floats, _: NDArray[np.intp]) -> NDArray[np.bool_]:
            return np.asarray(model.scores(rows) >= self.target + self.shift * self._lengths(rows))

        return model.weights, model.bias, accepts


# --- models with a privacy statement --------------------------------------------------------------------------------


@dataclass
class PrivateModel:
    """A given model, its statement, and the score of the favourable outcome: a linear logit with (d,) weights, a bias
    and labels (unfavourable, favourable), or a column of the output of a network, a copy. `vouched`: whether the
    statement is only the owner's word."""

    model: Any
    statement: PrivacyStatement
    vouched: bool
    width: int | None
    weights: Floats | None = None
    bias: float = 0.0
    network: Any = None
    column: int = 1
    labels: tuple[Any, ...] = ()
    search: SearchOptions = DEFAULT

    def solve(self, rows: Floats, margin: float | Floats, **options: Any) -> Solution:
        """Cheapest rows, for a linear logit with (n,) margins beyond the target; options as for `linear_recourse`."""
        if self.weights is not None:
            return linear_recourse(self.weights, self.bias - margin, rows, **options)
        return network_recourse(self.network, rows, favourable=self.column, options=self.search, **options)

    def scores(self, rows: Floats) -> Floats:
        """(n,) score of the favourable outcome."""
        if self.weights is not None:
            return np.asarray(rows @ self.weights + self.bias)
        score = NetworkScore(self.network, favourable=self.column, batch_size=self.search.batch_size)
        with evaluation_mode(self.network):
            return np.asarray(score.values(torch.from_numpy(rows).to(score.home)).cpu().numpy())


def private_model(
    model: Any,
    privacy: PrivacyStatement | None,
    favourable: Any,
    adjacency: Adjacency = "substitute",
    search: SearchOptions = DEFAULT,
) -> PrivateModel:
    """A `PrivateModel`, if the model is private; arguments and errors as for `DPModelRecourse`."""
    own = getattr(model, "privacy_", None) or getattr(model, "statement", None)
    if own is not None and privacy is not None and own != privacy:
        raise RefusedError("privacy: the model carries a different statement of its own; leave privacy= out")
    if isinstance(model, Pipeline):
        learnt = ", ".join(f"{name!r} ({type(step).__name__})" for name, step in model.steps[:-1])
        raise RefusedError(
            f"model: the steps before the {type(model.steps[-1][1]).__name__} were fitted on the same records"
            f" ({learnt}), and answers would reveal what they learned. Use a public Preprocessing(numeric={{name: (low,"
            " high)}, ...) instead: DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y)"
        )
    linear = hasattr(model, "coef_") and hasattr(model, "intercept_")
    network = getattr(model, "model", model)
    if not linear and not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"model: expected a fitted linear model or a torch module trained with differential privacy, got"
            f" {type(model).__name__}. Train DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y); DiCE, Alibi"
            " and OCEAN explain other models, but do not protect their training records"
        )
    statement = own or privacy
    if not isinstance(statement, PrivacyStatement):
        raise RefusedError(
            f"model: expected a PrivacyStatement, but {type(model).__name__} has none, and without differential privacy"
            " answers reveal training data; train it with safexplain.dp, or pass privacy=statement"
        )
    statement.check_model(model if linear else network)
    if not math.isfinite(statement.epsilons.of(adjacency)):
        raise RefusedError(f"the model's statement has no finite epsilon under {adjacency}; use another adjacency")
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the model's statement reveals the exact number of records, and so whether one was added; use"
            ' adjacency="zero_out" (at the same epsilon), or train DPLogisticRegression(adjacency="add_remove")'
        )
    vouched = own is None or statement.own_loop or not isinstance(model, DPLogisticRegression | DPFineTuned)
    if linear:
        return _linear(PrivateModel(model, statement, vouched, None, search=search), favourable)
    column = 1 if favourable is None else whole_number("favourable: a column of the network's output", favourable, 0)
    copied = without_hooks(deepcopy(network)).eval()
    return PrivateModel(model, statement, vouched, None, network=copied, column=column, search=search)


def _linear(found: PrivateModel, favourable: Any) -> PrivateModel:
    model = found.model
    labels = np.asarray(getattr(model, "classes_", ())).tolist()
    dense = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
    weights = np.atleast_2d(np.asarray(dense, dtype=np.float64))
    bias = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64).ravel(), len(weights))
    if len(labels) == len(weights) == 2:  # a score for each
        weights, bias = np.diff(weights, axis=0), np.diff(bias)
    pairwise = hasattr(model, "support_vectors_") and len(labels) > 2
    if len(labels) < 2 or len(weights) != (1 if len(labels) == 2 else len(labels)) or pairwise:
        raise ConfigurationError(
            f"model: expected a linear classifier with one score per class, got {type(model).__name__} with"
            f" {len(labels)} classes and {len(weights)} rows of coefficients{', each for a pair of classes' * pairwise}"
        )
    column, width = labels.index(favourable_label(labels, favourable)), weights.shape[1]
    if len(labels) == 2:
        sign, pair = (1.0 if column == 1 else -1.0), (labels[1 - column], labels[column])
        return replace(found, width=width, weights=sign * weights[0], bias=float(sign * bias[0]), labels=pair)
    layer = nn.Linear(width, len(weights), dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(np.array(weights)))
    layer.bias.copy_(torch.from_numpy(np.array(bias)))
    return replace(found, width=width, network=layer, column=column)


class _FromTable(nn.Module):
    """Scales rows of the table, like `Preprocessing.transform`, and converts them to the type of a network."""

    def __init__(self, people: Preprocessing, like: torch.Tensor) -> None:
        super().__init__()
        self.offset, self.scale = (
            nn.Parameter(torch.tensor(n, device=like.device)) for n in (people.offset, people.scale)
        )
        self.dtype = like.dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return ((rows - self.offset) / self.scale).to(self.dtype)


def on_table(found: PrivateModel, people: Preprocessing | None) -> PrivateModel:
    """A model of scaled rows, turned into one of rows of the table with the same scores."""
    if people is None:
        return found
    if found.width not in (None, len(people.columns)):
        raise ConfigurationError(
            f"model: expected {len(people.columns)} columns, as in the preprocessing, but it was trained on"
            f" {found.width}; train it on preprocessing.transform(frame)"
        )
    if found.weights is not None:
        weights = found.weights / people.scale
        return replace(found, weights=weights, bias=found.bias - float(people.offset @ weights))
    like = next((p for p in found.network.parameters() if p.is_floating_point()), torch.zeros(()))
    layer = _FromTable(people, like.detach())
    return replace(found, width=len(people.columns), network=nn.Sequential(layer, found.network).eval())


# --- answers that stay valid after a retraining -----------------------------------------------------------------------
#
# Let the weights w and the intercept b of a linear score, in the scaled columns z of training, move by at most `shift`
# together, in the Euclidean norm. By Cauchy and Schwarz, the least score of a row is then w.z + b - shift |(z, 1)|.
# Upadhyay, Joshi and Lakkaraju 2021 (ROAR, arXiv 2102.13620) search by gradients for answers that withstand the worst.

_ROUNDS = 100
"""Largest number of raises of the target; each is a contraction unless the shift is about as long as the weights."""

_ROOM = 1e-9
"""Share by which a target is raised further, for rounding."""

_MOST = 1e6
"""Largest margin, in gaps of the query, up to which the target is raised."""

_HALVINGS = 12
"""Bisections in `measured_shift`."""


def lengths(scaled: Floats) -> Floats:
    """(n,) |(z, 1)| of rows (n, d)."""
    return np.asarray(np.hypot(1.0, np.linalg.norm(scaled, axis=1)))


def robust_answers(
    solve: Callable[[NDArray[np.intp], Floats], Solution],
    score: Callable[[Floats], Floats],
    length: Callable[[Floats], Floats],
    rows: Floats,
    shift: float,
    target: float,
) -> Solution:
    """Verified answers to `rows` (n, d) whose score still reaches the target after the worst shift of the weights.
    Favourable queries do not change, and may not withstand it.

    `solve`: (k,) positions of queries and (k,) margins -> cheapest answers whose score is at least target + margin. The
    margin rises to shift |(z, 1)| of the previous answer until the answer withstands the shift. A shorter row that does
    may cost less, so that only results of the first round are `proven`.
    """
    margin = np.zeros(len(rows))
    found = solve(np.arange(len(rows)), margin)
    counterfactual, distance = found.counterfactual.copy(), found.distance.copy()
    valid, proven = found.valid.copy(), found.proven.copy()
    short = np.flatnonzero(valid & ~found.favourable)
    most = _MOST * (target - found.score + shift * length(rows))
    for _ in range(_ROUNDS):
        need = shift * length(counterfactual[short])
        missing = valid[short] & (score(counterfactual[short]) - target < need)
        hopeless = missing & (margin[short] > most[short])
        valid[short[hopeless]] = False
        short, need = short[missing & ~hopeless], need[missing & ~hopeless]
        if not len(short):
            break
        margin[short] = np.maximum(need, margin[short]) * (1 + _ROOM)
        again = solve(short, margin[short])
        counterfactual[short], distance[short], valid[short] = again.counterfactual, again.distance, again.valid
        proven[short] = False
    valid[short] = False
    counterfactual[~valid], distance[~valid] = found.x[~valid], 0.0
    return replace(found, counterfactual=counterfactual, distance=distance, valid=valid, proven=proven)


def measured_shift(
    answers: Callable[[float], Solution], accepts: Callable[[Floats], NDArray[np.bool_]], start: float, share: float
) -> float:
    """About the smallest shift for which this share of the `answers` (a function of the shift) stays valid under
    another model, which `accepts` rows; by doubling of `start`, and bisection."""
    if not 0 < check_number("share", share) <= 1:
        raise ConfigurationError(f"share: expected a number in (0, 1], got {share!r}")

    def share_valid(shift: float) -> float:
        found = answers(shift)
        declined = ~found.favourable
        if not declined.any():
            raise InputError("x: expected some unfavourable queries, but all are favourable; pass other queries")
        if found.valid[declined].mean() < 0.5:
            raise InputError(
                f"x: at a shift of {shift:.3g} fewer than half of the queries have an answer, and at smaller shifts"
                f" fewer than {share:.0%} of the answers stay valid; pass a smaller share, or loosen the constraints"
            )
        return float(accepts(found.counterfactual[declined & found.valid]).mean())

    if share_valid(0.0) >= share:
        return 0.0
    low, high = 0.0, start
    while share_valid(high) < share:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if share_valid(middle) < share else (low, middle)
    return high
