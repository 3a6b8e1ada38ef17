"""Recourse whose privacy promise holds: what would have to change for a decision to turn out well.

A query is read (`result`), its columns are matched by name (`feature_names`) and held to `constraints`; a `cost` says
what a change costs. The nearest change that reaches the target is found by geometry where the score is `linear`, by
search for `networks`. The `mechanisms` say which score may be used so that answers are differentially private, and
`counterfactual` offers them under the call of Alibi's explainer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2, MAD
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.result import Recourse

if TYPE_CHECKING:
    from safexplain.recourse.mechanisms.dp_model import DPModelRecourse, ObjectivePerturbation, OutputPerturbation
    from safexplain.recourse.mechanisms.laplace_score import LaplaceScore
    from safexplain.recourse.mechanisms.mechanism import diverse
    from safexplain.recourse.mechanisms.metered import MeteredRecourse
    from safexplain.recourse.mechanisms.public_direction import PublicDirection
    from safexplain.recourse.networks.search import SearchOptions, search_recourse

_LATER = {
    "DPModelRecourse": "mechanisms.dp_model",
    "LaplaceScore": "mechanisms.laplace_score",
    "MeteredRecourse": "mechanisms.metered",
    "ObjectivePerturbation": "mechanisms.dp_model",
    "OutputPerturbation": "mechanisms.dp_model",
    "PublicDirection": "mechanisms.public_direction",
    "SearchOptions": "networks.search",
    "diverse": "mechanisms.mechanism",
    "search_recourse": "networks.search",
}
"""Names that are imported when they are asked for: geometry needs neither torch nor scikit-learn."""

__all__ = [
    "L1",
    "L2",
    "MAD",
    "Constraints",
    "DPModelRecourse",
    "LaplaceScore",
    "MeteredRecourse",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PublicDirection",
    "Recourse",
    "SearchOptions",
    "diverse",
    "linear_recourse",
    "search_recourse",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"safexplain.recourse.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
