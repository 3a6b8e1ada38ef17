"""Alibi's explainers, hardened: an explanation is built anew from the fields that may leave.

A native anchor explanation carries rows of the training set (in `raw`), and one of an image the background images (in
`meta`). `base` runs a private copy of the native explainer, `rules` lists what leaves, and `tables` has the explainers
of rows as they are audited and certified.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from safexplain.explain.alibi.base import FromArguments, HardenedAlibi
from safexplain.explain.alibi.base import anchor_hardening as anchor_hardening
from safexplain.explain.alibi.rules import kind_of
from safexplain.explain.alibi.tables import HardenedAlibiKernelShap, HardenedTreeShap
from safexplain.explain.alibi.tables import HardenedAnchors as HardenedAnchors
from safexplain.hardening.hardening import Hardening

__all__ = ["HardenedAnchorImage", "HardenedAnchorTabular", "HardenedAnchorText"]


class HardenedAnchorTabular(FromArguments, HardenedAnchors):
    """Hardened AnchorTabular: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind = "AnchorTabular"


class HardenedAnchorImage(FromArguments, HardenedAnchors):
    """Hardened AnchorImage: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind, _row = "AnchorImage", None


class HardenedAnchorText(FromArguments, HardenedAnchors):
    """Hardened AnchorText: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind, _row = "AnchorText", None


_ANCHORS: tuple[type[FromArguments], ...] = (HardenedAnchorTabular, HardenedAnchorImage, HardenedAnchorText)

ALIBI: Mapping[str, type[HardenedAlibi]] = MappingProxyType(
    {kind._kind: kind for kind in (*_ANCHORS, HardenedAlibiKernelShap, HardenedTreeShap)}
)
"""Alibi's name of an explainer -> the hardened class: every one that has a row in `rules.ROWS`."""


def harden_alibi(
    native: Any, hardening: Hardening | None = None, *, model_digest: bytes | None = None
) -> HardenedAlibi:
    """A hardened version of an Alibi explainer, fitted or not, which it holds from then on.

    Args:
        native: an explainer of one of the classes in `safexplain.explain.alibi.rules.ROWS`.
        hardening: None for `anchor_hardening()` with an anchor explainer, `Hardening.recommended()` with another.
        model_digest: see `HardenedShap`.

    Raises:
        ConfigurationTypeError: not an alibi explainer, or hardened already.
        ConfigurationError: an anchor explainer, and a hardening that does not fit it, see `HardenedAnchors`.
        RefusedError: no hardening makes what it returns fit to leave, or nobody has said what may.
    """
    hardened = object.__new__(ALIBI[kind_of(native)])
    hardened._adopt(native, hardening, model_digest)
    return hardened
