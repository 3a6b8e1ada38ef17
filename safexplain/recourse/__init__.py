"""Recourse whose privacy promise holds: geometry, search, and what may be released."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2, MAD
from safexplain.recourse.diverse import diverse
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.result import Recourse

if TYPE_CHECKING:
    from safexplain.recourse.counterfactual import HardenedCounterfactual
    from safexplain.recourse.mechanisms.dp_model import DPModelRecourse
    from safexplain.recourse.mechanisms.guarantee import Guarantee
    from safexplain.recourse.mechanisms.laplace_score import LaplaceScore, NoisyScores
    from safexplain.recourse.mechanisms.metered import MeteredRecourse
    from safexplain.recourse.mechanisms.perturbation import ObjectivePerturbation, OutputPerturbation
    from safexplain.recourse.mechanisms.public_direction import PublicDirection
    from safexplain.recourse.networks.search import SearchOptions, search_recourse

_LATER = {
    "DPModelRecourse": "mechanisms.dp_model",
    "Guarantee": "mechanisms.guarantee",
    "HardenedCounterfactual": "counterfactual",
    "LaplaceScore": "mechanisms.laplace_score",
    "MeteredRecourse": "mechanisms.metered",
    "NoisyScores": "mechanisms.laplace_score",
    "ObjectivePerturbation": "mechanisms.perturbation",
    "OutputPerturbation": "mechanisms.perturbation",
    "PublicDirection": "mechanisms.public_direction",
    "SearchOptions": "networks.search",
    "search_recourse": "networks.search",
}
"""Names that are imported when they are asked for: geometry needs neither torch nor scikit-learn."""

__all__ = [
    "L1",
    "L2",
    "MAD",
    "Constraints",
    "DPModelRecourse",
    "Guarantee",
    "HardenedCounterfactual",
    "LaplaceScore",
    "MeteredRecourse",
    "NoisyScores",
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
