"""Recourse whose privacy promise holds: what would have to change for a decision to turn out well.

A person's frame becomes columns by a public `preprocessing`; rows of numbers are read as they are (`result`), their
columns are matched by name (`feature_names`) and held to `constraints`; a `cost` says what a change costs. The nearest
change that reaches the target is found by geometry where the score is `linear`, by search for `networks`, and is kept
among public rows by `plausibility`. The
`mechanisms` say which score may be used so that answers are differentially private, and `counterfactual` offers them
under the call of Alibi's explainer.
"""

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2, MAD, Percentile
from safexplain.recourse.feasibility import fairness, feasibility, flipset
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.dp_model import DPModelRecourse, ObjectivePerturbation, OutputPerturbation
from safexplain.recourse.mechanisms.laplace_score import LaplaceScore
from safexplain.recourse.mechanisms.mechanism import diverse
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.mechanisms.public_direction import PublicDirection
from safexplain.recourse.networks.search import SearchOptions
from safexplain.recourse.plausibility import Plausibility
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse
from safexplain.recourse.search import search_recourse

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
    "Percentile",
    "Plausibility",
    "Preprocessing",
    "PublicDirection",
    "Recourse",
    "Rule",
    "SearchOptions",
    "diverse",
    "fairness",
    "feasibility",
    "flipset",
    "linear_recourse",
    "search_recourse",
]
