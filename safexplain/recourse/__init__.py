"""Recourse with a privacy guarantee: what would have to change for a decision to turn out well.

A person's frame becomes columns of numbers by a public `preprocessing`. Queries are held to `constraints`, and a
`cost` says what a change costs. A mechanism (`mechanisms`) gives the score that may be used, so that answers are
differentially private; the nearest change that reaches the target is then found by geometry where the score is
`linear`, by a `program` of whole numbers where that leaves something open, by gradients for `networks`. Every answer
(a `result`) has its `guarantee`, and is put in words by `letters`. `robustness` keeps answers valid after a retraining,
`plausibility` reports how many are outliers.

From a person's row to a letter: mechanisms.mechanism -> preprocessing -> mechanisms.dp_model ->
mechanisms.private_model -> linear.solve -> result -> letters. If each answer costs budget, mechanisms.metered comes
first, and mechanisms.laplace_score takes the place of the private model.
"""

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2, MAD
from safexplain.recourse.guarantee import Guarantee
from safexplain.recourse.mechanisms.dp_model import DPModelRecourse
from safexplain.recourse.mechanisms.laplace_score import LaplaceScore
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.networks.search import SearchOptions
from safexplain.recourse.plausibility import Plausibility
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Recourse

__all__ = [
    "L1",
    "L2",
    "MAD",
    "Constraints",
    "DPModelRecourse",
    "Guarantee",
    "LaplaceScore",
    "MeteredRecourse",
    "Plausibility",
    "Preprocessing",
    "Recourse",
    "Rule",
    "SearchOptions",
]
