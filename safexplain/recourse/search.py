"""Recourse for the model at hand: one call, whichever solver the model's kind needs."""

from __future__ import annotations

from typing import Any

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import EUCLIDEAN, Cost
from safexplain.recourse.networks.search import DEFAULT, SearchOptions, network_recourse
from safexplain.recourse.result import Recourse


def search_recourse(
    model: Any,
    x: Any,
    *,
    target: float = 0.0,
    favourable: Any = None,
    cost: Cost = EUCLIDEAN,
    constraints: Constraints | None = None,
    frozen: Any = None,
    options: SearchOptions = DEFAULT,
) -> Recourse:
    """Nearest rows that a model decides favourably.

    Args:
        model: a torch network, or a differentiable function of a tensor of rows; see `network_recourse`.
        x: (n, d) queries, or one (d,).
        target: score that a counterfactual has to reach; queries that reach it already are favourable.
        favourable: the wanted class; None: 1.
        cost: what a change costs; public.
        constraints: what may change; public. None: everything.
        frozen: (n, d) or (d,) bool, what must not change besides.
        options: effort and memory of the search in a network.

    Returns:
        One answer a query; `valid` is False where none was found within the constraints.

    Raises:
        InputError: as `network_recourse`.
        ConfigurationError: as `network_recourse`.
    """
    return network_recourse(
        model,
        x,
        target=target,
        favourable=1 if favourable is None else favourable,
        cost=cost,
        constraints=constraints,
        frozen=frozen,
        options=options,
    )
