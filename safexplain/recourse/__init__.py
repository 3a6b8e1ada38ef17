"""Recourse whose privacy promise holds: what would have to change for a decision to turn out well.

A person's frame (`frames`) becomes columns of numbers by a public `preprocessing`. Queries are held to `constraints`,
and a `cost` says what a change costs. The nearest change that reaches the target is found by geometry where the score
is `linear`, by a `program` of whole numbers where that leaves something open and for `trees`, by gradients for
`networks`; `search` chooses among them for any model and takes `pipelines` apart. `plausibility` keeps answers among
public rows, `robustness` keeps them valid after a retraining. The `mechanisms` say which score may be used so that
answers are differentially private. A `result` tells its answers as a frame and in words (`reasons`); `feasibility`
counts who has recourse, and at which cost, by group; `counterfactual` offers mechanisms under the call of Alibi's
explainer.
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
