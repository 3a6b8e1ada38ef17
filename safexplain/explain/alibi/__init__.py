"""Alibi's explainers, hardened: an explanation is built anew from the fields that may leave.

A native anchor explanation carries rows of the training set (in `raw`), and one of an image the background images (in
`meta`). A hardened explainer (`base`) holds a native one and is no instance of its class; a call runs a private copy of
it with random numbers of its own (`library`, which imports Alibi when the first one is made); `rules` has a row for
each native class that lists what leaves, and `release` builds the answer from it, its numbers with keyed noise.
`tables` has the explainers of rows as they are audited and certified.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.alibi.base import FromArguments, HardenedAlibi, is_alibi
from safexplain.explain.alibi.base import anchor_hardening as anchor_hardening
from safexplain.explain.alibi.rules import ROWS, kind_of
from safexplain.explain.alibi.tables import AnchorsOfRows, HardenedAlibiKernelShap, HardenedTreeShap
from safexplain.explain.catalog import CATALOG
from safexplain.explain.tables import MadeOf
from safexplain.hardening.hardening import Hardening

__all__ = [
    "HardenedAnchorImage",
    "HardenedAnchorTabular",
    "HardenedAnchorText",
]


class HardenedAnchors(HardenedAlibi):
    """Hardened anchors: wraps an AnchorTabular, AnchorImage or AnchorText that exists already.

    The rule leaves as it is, precision and coverage leave hardened; training rows, predictions and background images do
    not leave. Source: Ribeiro, Singh, Guestrin: Anchors, AAAI 2018 (doi 10.1609/aaai.v32i1.11491).

    Args:
        native: the native explainer, fitted or not.
        hardening: None for `anchor_hardening()`.

    Raises:
        ConfigurationTypeError: not an anchor explainer of alibi.
        ConfigurationError: a hardening that weighs precision against coverage: RankNorm, UnitNorm, NormClip, TopKMask.
    """

    def _adopt(self, native: Any, hardening: Hardening | None, model_digest: bytes | None = None) -> None:
        if is_alibi(native) and not ROWS[kind_of(native)].anchors:
            raise ConfigurationTypeError(f"expected an anchor explainer, got {kind_of(native)}; use harden_alibi")
        super()._adopt(native, hardening, model_digest)

    @classmethod
    def catalogued(cls, public: Any = None, **made: Any) -> MadeOf:
        """Anchors of rows of tables as an audit asks them, see `HardenedAnchorTabular`.

        Args:
            public: (n, d) rows that may be known to everybody.
            **made: more that the explainer is made with.

        Raises:
            RefusedError: of images and texts.
        """
        return _of_rows(cls).catalogued(public, **made)

    @classmethod
    def from_certificate(cls, model: Any, path: str | Path, **given: Any) -> HardenedAnchors:
        """The anchors of rows of tables that a certificate is about, a `HardenedAnchorTabular`.

        Args:
            model: see `safexplain.explain.tables.OfTables.from_certificate`, as the rest.
            path: likewise.
            **given: likewise.

        Raises:
            RefusedError: of images and texts; and what that raises.
        """
        return _of_rows(cls).from_certificate(model, path, **given)


def _of_rows(kind: type[HardenedAnchors]) -> type[HardenedAnchorTabular]:
    if kind is not HardenedAnchors:
        raise RefusedError(f"{kind.__name__} cannot be certified: of anchors, those of rows of tables can")
    return HardenedAnchorTabular


class HardenedAnchorTabular(AnchorsOfRows, FromArguments, HardenedAnchors):
    """Hardened AnchorTabular: takes its arguments, and `hardening`. See `HardenedAnchors`, and `AnchorsOfRows`."""

    _kind, _row = "AnchorTabular", CATALOG["Anchors"]


class HardenedAnchorImage(FromArguments, HardenedAnchors):
    """Hardened AnchorImage: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind = "AnchorImage"


class HardenedAnchorText(FromArguments, HardenedAnchors):
    """Hardened AnchorText: takes its arguments, and `hardening`. See `HardenedAnchors`."""

    _kind = "AnchorText"


class HardenedALE(FromArguments):
    """Hardened ALE: its arguments, and `hardening`. Curves leave at grid points that you give."""

    _kind = "ALE"


class HardenedPartialDependence(FromArguments):
    """Hardened PartialDependence: its arguments, and `hardening`. Curves leave at grid points that you give."""

    _kind = "PartialDependence"


class HardenedTreePartialDependence(FromArguments):
    """Hardened TreePartialDependence: its arguments, and `hardening`. Curves leave at grid points that you give."""

    _kind = "TreePartialDependence"


class HardenedPartialDependenceVariance(FromArguments):
    """Hardened PartialDependenceVariance: its arguments, and `hardening`. Curves leave at grid points that you give."""

    _kind = "PartialDependenceVariance"


class HardenedPermutationImportance(FromArguments):
    """Hardened PermutationImportance: its arguments, and `hardening`. Curves leave at grid points that you give."""

    _kind = "PermutationImportance"


ALIBI: Mapping[str, type[HardenedAlibi]] = MappingProxyType(
    {
        kind._kind: kind
        for kind in (
            *(HardenedAnchorTabular, HardenedAnchorImage, HardenedAnchorText),
            *(HardenedALE, HardenedPartialDependence, HardenedTreePartialDependence),
            *(HardenedPartialDependenceVariance, HardenedPermutationImportance),
            *(HardenedAlibiKernelShap, HardenedTreeShap),
        )
    }
)
"""Alibi's name of an explainer -> the hardened class: every one that has a row in `rules.ROWS`."""


def harden_alibi(
    native: Any, hardening: Hardening | None = None, *, model_digest: bytes | None = None
) -> HardenedAlibi:
    """A hardened version of an Alibi explainer, fitted or not, which it holds from then on.

    Args:
        native: an explainer of one of the classes in `safexplain.explain.alibi.rules.ROWS`.
        hardening: None for `anchor_hardening()` with an anchor explainer, `Hardening.recommended()` for values of each
            row, and `Hardening.ranked()` for curves and importances over all rows.
        model_digest: 16 bytes or more that name the model and its version, where nothing in it can be seen.

    Raises:
        ConfigurationTypeError: not an alibi explainer, or hardened already.
        ConfigurationError: an anchor explainer, and a hardening that does not fit it, see `HardenedAnchors`.
        RefusedError: no hardening makes what it returns fit to leave, or nobody has said what may.
    """
    kind = ALIBI.get(kind_of(native), HardenedAlibi) if is_alibi(native) else HardenedAlibi
    hardened = kind.__new__(kind)
    hardened._adopt(native, hardening, model_digest)
    return hardened
