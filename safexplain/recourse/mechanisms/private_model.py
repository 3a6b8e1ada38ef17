"""Models that carry a privacy statement, and what answers queries from them."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from safexplain._validate import whole_number
from safexplain.adjacency import Adjacency
from safexplain.errors import ConfigurationError, RefusedError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import Cost
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.arguments import wanted_label
from safexplain.recourse.mechanisms.mechanism import Frozen
from safexplain.recourse.result import Floats, Recourse
from safexplain.verdict.privacy_statement import PrivacyStatement


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """A model, its statement, and the score that is wanted high.

    Args:
        model: as it was given.
        statement: of its training.
        width: number of features; None for a network, which says so itself.
        weights: (d,) of a linear logit; None: a network.
        bias: of the same.
        network: a torch module, where there is no single linear logit; a copy, as the statement is about these weights.
        column: of the network's output.
        labels: (unfavourable, favourable) of a linear model with two classes.
        search: options of the search.
    """

    model: Any
    statement: PrivacyStatement
    width: int | None
    weights: Floats | None = None
    bias: float = 0.0
    network: Any = None
    column: int = 1
    labels: tuple[Any, ...] = ()
    search: Any = None

    def solve(
        self, rows: Floats, *, target: float, cost: Cost, constraints: Constraints | None, frozen: Frozen
    ) -> Recourse:
        """Answers by geometry for a linear logit, by search for anything else."""
        if self.weights is not None:
            return linear_recourse(
                self.weights, self.bias, rows, target=target, cost=cost, constraints=constraints, frozen=frozen
            )
        from safexplain.recourse.networks.search import search_recourse

        options = {} if self.search is None else {"options": self.search}
        return search_recourse(
            self.network,
            rows,
            target=target,
            favourable=self.column,
            cost=cost,
            constraints=constraints,
            frozen=frozen,
            **options,
        )


def private_model(
    model: Any,
    privacy: PrivacyStatement | None,
    favourable: Any,
    adjacency: Adjacency = "substitute",
    search: Any = None,
) -> PrivateModel:
    """What answers from a model, if it is private.

    Args:
        model: linear with `coef_` and `intercept_`, a `DPFineTuned`, or a torch module.
        privacy: the statement, where the model has none of its own.
        favourable: the label, or the column of a network; None: the second of two.
        adjacency: under which the statement must promise something.
        search: options of the search.

    Raises:
        RefusedError: no statement, one about other weights, one without a finite epsilon, or under add/remove one that
            tells the number of records.
        ConfigurationError: not a model, not fitted, or it is not clear which class is favourable.
    """
    own = getattr(model, "privacy_", None) or getattr(model, "statement", None)
    if own is not None and privacy is not None and own != privacy:
        raise ConfigurationError("privacy: the model carries a statement of its own, and it is another one")
    statement = own or privacy
    linear = hasattr(model, "coef_") and hasattr(model, "intercept_")
    if not linear and hasattr(model, "fit") and hasattr(model, "get_params"):
        raise ConfigurationError(f"model: {type(model).__name__} is not fitted, or is not a linear model; fit it first")
    if not isinstance(statement, PrivacyStatement):
        raise RefusedError(
            f"{type(model).__name__} comes without a PrivacyStatement: answers from a model that was not trained with"
            " differential privacy publish its training data's influence, its direction above all. Train it with"
            " safexplain.dp, or pass privacy=statement"
        )
    if not math.isfinite(statement.epsilons.of(adjacency)):
        raise RefusedError(f"the model's statement promises nothing under {adjacency}: its epsilon is infinite")
    if adjacency == "add_remove" and not statement.count_noised:
        raise RefusedError(
            "the model's statement tells the true number of records, so that nothing hides whether one was added: ask"
            ' for adjacency="zero_out" (a real record or an empty one in its place, at the same epsilon), or train'
            ' DPLogisticRegression(adjacency="add_remove")'
        )
    if linear:
        return _linear(model, statement, favourable, search)
    return _network(getattr(model, "model", model), model, statement, favourable, search)


def _linear(model: Any, statement: PrivacyStatement, favourable: Any, search: Any) -> PrivateModel:
    labels = np.asarray(model.classes_).tolist()
    weights = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    bias = np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64).ravel(), len(weights))
    column, width = labels.index(wanted_label(labels, favourable)), weights.shape[1]
    if len(labels) == 2:
        sign = 1.0 if column == 1 else -1.0
        pair = (labels[1 - column], labels[column])
        return PrivateModel(model, statement, width, sign * weights[0], float(sign * bias[0]), labels=pair)
    import torch

    layer = torch.nn.Linear(width, len(labels), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weights.copy()))
        layer.bias.copy_(torch.from_numpy(bias.copy()))
    return PrivateModel(model, statement, width, network=layer, column=column, search=search)


def _network(network: Any, given: Any, statement: PrivacyStatement, favourable: Any, search: Any) -> PrivateModel:
    from torch import nn

    if not isinstance(network, nn.Module):
        raise ConfigurationError(
            f"model: expected a fitted linear model or a torch module, got {type(network).__name__}"
        )
    if statement.weights:
        from safexplain.weights import weights_digest

        if weights_digest(network) != statement.weights:
            raise RefusedError(
                "the statement is about other weights than the model has; it was trained or changed since"
            )
    column = 1 if favourable is None else whole_number("favourable: a column of the network's output", favourable, 0)
    return PrivateModel(given, statement, None, network=deepcopy(network).eval(), column=column, search=search)
