"""Alibi's explainers, hardened: a new explanation is built from the fields that `rules` lists."""

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
