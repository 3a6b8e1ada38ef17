"""Alibi's explainers, hardened: a new explanation is built from the fields that may leave.

A native anchor explanation carries rows of the training set (in `raw`), and one of an image the background images (in
`meta`). `explainers` runs a private copy of the native explainer, and `rules` lists the released fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

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
from safexplain.explain.alibi.rules import kind_of
from safexplain.hardening.hardening import Hardening

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


def harden_alibi(
    native: Any, hardening: Hardening | None = None, *, model_digest: bytes | None = None
) -> HardenedAlibi:
    """A hardened version of an Alibi explainer, fitted or not, which it holds from then on.

    Args:
        native: an explainer of one of the classes in `safexplain.explain.alibi.rules.ROWS`.
        hardening: None for `anchor_hardening()` with an anchor explainer, else `Hardening.recommended(ordered=True)`.
        model_digest: see `HardenedShap`.

    Raises:
        ConfigurationTypeError: not an alibi explainer, or hardened already.
        ConfigurationError: a hardening that does not fit an anchor explainer, see `HardenedAnchors`.
        RefusedError: no hardening makes its answers safe to release, or no rule lists its fields.
    """
    hardened = object.__new__(ALIBI[kind_of(native)])
    hardened._adopt(native, hardening, model_digest)
    return hardened
