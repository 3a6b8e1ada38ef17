"""Alibi's explainers, hardened.

`explainers` runs a private copy of the native one, and `rules` builds the answer from the fields that may be released.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from safexplain.explain.alibi.explainers import (
    HardenedAlibi,
    HardenedAlibiKernelShap,
    HardenedAnchorImage,
    HardenedAnchorTabular,
    HardenedAnchorText,
    HardenedTreeShap,
)
from safexplain.explain.alibi.explainers import HardenedAnchors as HardenedAnchors
from safexplain.explain.alibi.explainers import anchor_hardening as anchor_hardening

__all__ = ["HardenedAnchorImage", "HardenedAnchorTabular", "HardenedAnchorText"]

ALIBI: Mapping[str, type[HardenedAlibi]] = MappingProxyType(
    {
        "AnchorTabular": HardenedAnchorTabular,
        "AnchorImage": HardenedAnchorImage,
        "AnchorText": HardenedAnchorText,
        "KernelShap": HardenedAlibiKernelShap,
        "TreeShap": HardenedTreeShap,
    }
)
"""Alibi's name of an explainer -> the hardened class: every one that has a row in `rules.ROWS`."""
