"""A model with a privacy statement, which answers by geometry if it is linear, otherwise by search."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import nn

from safexplain._privacy_loss import Adjacency
from safexplain._validate import whole_number
from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.dp.sgd.finetune import DPFineTuned
from safexplain.dp.sgd.opacus_engine import without_hooks
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import Frozen, favourable_label
from safexplain.recourse.networks.score import scores_of
from safexplain.recourse.networks.search import DEFAULT, SearchOptions, network_recourse
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.solution import Floats, Solution
from safexplain.verdict.privacy_statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """A given model, its statement, and the score of the favourable outcome.

    The score is a linear logit with (d,) weights, a bias and labels (unfavourable, favourable), or comes from a column
    of a network's output, whose width d is unknown. The network is a copy, as the statement is about these weights.
    """

    model: Any
    statement: PrivacyStatement
    vouched: bool
    """Whether the statement is only the owner's word: passed separately, or about a training by another package."""
    width: int | None
    weights: Floats | None = None
    bias: float = 0.0
    network: Any = None
    column: int = 1
    labels: tuple[Any, ...] = ()
    search: SearchOptions = DEFAULT

    def solve(
        self,
        rows: Floats,
        *,
        target: float,
        cost: Cost,
        constraints: Constraints | None,
        frozen: Frozen,
        margin: Floats | None = None,
    ) -> Solution:
        """Cheapest rows, by geometry for a linear logit with (n,) margins beyond the target, otherwise by search."""
        options: dict[str, Any] = {"target": target, "cost": cost, "constraints": constraints, "frozen": frozen}
        if self.weights is not None:
            return linear_recourse(self.weights, self.bias if margin is None else self.bias - margin, rows, **options)
        return network_recourse(self.network, rows, favourable=self.column, options=self.search, **options)

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
    """A `PrivateModel`, if the model is private; arguments as in `DPModelRecourse`.

    Raises:
        RefusedError: no statement, one about other weights, no weights or a part of the model, one without a finite
            epsilon, or under add/remove one that reveals the number of records.
        ConfigurationError: not a fitted linear model or a torch module, or no favourable class among several.
    """
    own = getattr(model, "privacy_", None) or getattr(model, "statement", None)
    if own is not None and privacy is not None and own != privacy:
        raise RefusedError("privacy: the model carries a different statement of its own; leave privacy= out")
    if isinstance(model, Pipeline):
        learnt = ", ".join(f"{name!r} ({type(step).__name__})" for name, step in model.steps[:-1])
        raise RefusedError(
            f"model: the steps before the {type(model.steps[-1][1]).__name__} were fitted on the same records"
            f" ({learnt}), and every answer would reveal what they learned (means, ranges, categories). Use a public"
            " Preprocessing(numeric={name: (low, high)}, ...) instead, which learns nothing:"
            " DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y)"
        )
    linear = hasattr(model, "coef_") and hasattr(model, "intercept_")
    network = getattr(model, "model", model)
    if not linear and not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"model: expected a fitted linear model or a torch module trained with differential privacy, got"
            f" {type(model).__name__}. Train DPModelRecourse(epsilon=..., preprocessing=...).fit(frame, y), or use"
            " another library for other models (DiCE, Alibi, OCEAN), which does not protect their training records"
        )
    statement = own or privacy
    if not isinstance(statement, PrivacyStatement):
        raise RefusedError(
            f"model: expected a PrivacyStatement, but {type(model).__name__} has none, and answers from a model trained"
            " without differential privacy reveal its training data; train it with safexplain.dp, or pass"
            " privacy=statement"
        )
    statement.check_model(model if linear else network)
    _check_promise(statement, adjacency)
    vouched = own is None or statement.own_loop or not isinstance(model, DPLogisticRegression | DPFineTuned)
    if linear:
        return _linear(model, statement, vouched, favourable, search)
    column = 1 if favourable is None else whole_number("favourable: a column of the network's output", favourable, 0)
    copied = without_hooks(deepcopy(network)).eval()
    return PrivateModel(model, statement, vouched, None, network=copied, column=column, search=search)


def _check_promise(statement: PrivacyStatement, adjacency: Adjacency) -> None:
    """Raise RefusedError unless the statement promises something under this adjacency."""
    if not math.isfinite(statement.epsilons.of(adjacency)):
        raise RefusedError(f"the model's statement has no finite epsilon under {adjacency}; use another adjacency")
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the model's statement reveals the exact number of records, so that it does not hide whether one was added;"
            ' use adjacency="zero_out" (a real record or an empty one in its place, at the same epsilon), or train'
            ' DPLogisticRegression(adjacency="add_remove")'
        )


def _linear(
    model: Any, statement: PrivacyStatement, vouched: bool, favourable: Any, search: SearchOptions
) -> PrivateModel:
    labels = np.asarray(getattr(model, "classes_", ())).tolist()
    weights = _dense(model.coef_)
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
        sign = 1.0 if column == 1 else -1.0
        pair = (labels[1 - column], labels[column])
        return PrivateModel(model, statement, vouched, width, sign * weights[0], float(sign * bias[0]), labels=pair)
    layer = nn.Linear(width, len(weights), dtype=torch.float64).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(np.array(weights)))
    layer.bias.copy_(torch.from_numpy(np.array(bias)))
    return PrivateModel(model, statement, vouched, width, network=layer, column=column, search=search)


def _dense(coefficients: Any) -> Floats:
    """(rows, d) coefficients of a scikit-learn model, which may be sparse, or a single row."""
    dense = coefficients.toarray() if hasattr(coefficients, "toarray") else coefficients
    return np.atleast_2d(np.asarray(dense, dtype=np.float64))


class _FromTable(nn.Module):
    """A layer before a network that scales rows of the table in float64, like `Preprocessing.transform`, and converts
    them to the network's type."""

    def __init__(self, people: Preprocessing, like: torch.Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.from_numpy(people.offset.copy()).to(like.device), requires_grad=False)
        self.scale = nn.Parameter(torch.from_numpy(people.scale.copy()).to(like.device), requires_grad=False)
        self.dtype = like.dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return ((rows - self.offset) / self.scale).to(self.dtype)


def on_table(found: PrivateModel, people: Preprocessing | None) -> PrivateModel:
    """A model of scaled rows, turned into one of rows of the table with the same scores, up to rounding.

    Raises:
        ConfigurationError: a model of another number of columns.
    """
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
