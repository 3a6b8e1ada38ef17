"""Recourse with a privacy guarantee: the changes that would turn a decision around.

A public `preprocessing` reads people, `mechanisms` provide private scores, and `linear` or `networks` find the cheapest
change within `constraints` at a `cost`. Every answer (`result`) has a `guarantee`, and `letters` put it into words.
"""

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2, MAD
from safexplain.recourse.mechanisms.dp_model import DPModelRecourse
from safexplain.recourse.mechanisms.laplace_score import LaplaceScore
from safexplain.recourse.mechanisms.metered import MeteredRecourse
from safexplain.recourse.networks.search import SearchOptions
from safexplain.recourse.plausibility import Plausibility
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.recourse.result import Guarantee, Recourse

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
