"""Hardened explainers: the methods of Captum, Alibi, AIX360, lime and shap with hardened answers.

`catalog` has a row for each method. A call goes through `hardened`: a native explainer on private modules (`isolation`)
computes the map, `query` finds what its noise is a function of, and `hardening` hardens it. `certified` loads audited
explainers, and `served` what a service releases.
"""

from safexplain.explain.alibi import anchor_hardening
from safexplain.explain.captum.explainers import GradCAM as GradCAM
from safexplain.explain.captum.explainers import GradCAMPlusPlus as GradCAMPlusPlus
from safexplain.explain.captum.explainers import TokenIG as TokenIG
from safexplain.explain.captum.explainers import default_embedding as default_embedding
from safexplain.explain.captum.explainers import default_layer
from safexplain.explain.captum.rewrite import rewrite_functional as rewrite_functional
from safexplain.explain.catalog import CATALOG, find_row
from safexplain.explain.feature_groups import grid_segments
from safexplain.explain.feature_groups import show_set as show_set
from safexplain.explain.feature_groups import words as words
from safexplain.explain.tables import near_cutoff as near_cutoff
from safexplain.explain.wrap import harden as harden

__all__ = ["CATALOG", "anchor_hardening", "default_layer", "find_row", "grid_segments"]
