"""Recourse with a privacy guarantee: the changes that would turn a decision around.

A public `preprocessing` turns the frame of a person into columns of numbers. `constraints` limit the changes, and a
`cost` compares them. A mechanism (`mechanisms`) provides a score from which answers are differentially private. The
cheapest change that reaches the target is found by geometry and integer programs for `linear` scores, and by gradients
for `networks`. Every answer (`result`) has its `guarantee`; `letters` put it into words. `robustness` keeps answers
valid after a retraining, `plausibility` reports how many are outliers.

From a person's row to a letter: mechanisms.mechanism -> preprocessing -> mechanisms.dp_model ->
mechanisms.private_model -> linear.solve -> result -> letters. If each answer costs budget, mechanisms.metered comes
first, and mechanisms.laplace_score replaces the private model.
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
