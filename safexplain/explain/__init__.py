"""Hardened explainers: the methods of Captum, Alibi and AIX360 with answers that are clipped, masked and noised.

`catalog` has a `row` for each method, and `wrap` makes the hardened classes from the rows. A call goes through
`hardened`: a native explainer on private modules (`isolation`) computes the map, `query` says what its noise is a
function of, `feature_groups` at which resolution it is hardened, and `hardening` hardens it. `certified` loads what was
audited, `served` what a service serves. `captum` has the methods that Captum lacks and the checks of models; `alibi`,
`aix360` and `shap` are whole adapters, and `libraries` imports theirs when they are used.
"""

from safexplain.explain.alibi.explainers import anchor_hardening
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

__all__ = [
    "CATALOG",
    "anchor_hardening",
    "default_layer",
    "find_row",
    "grid_segments",
]
