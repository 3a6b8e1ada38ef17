"""Hardened explainers: the methods of Captum, Alibi, AIX360, lime and shap with hardened answers.

`catalog` has a row for each method, and `harden` wraps an existing explainer. A native explainer on private modules
(`isolation`) computes the map, and `hardened` hardens it. `certified` loads audited explainers, and `served` what a
service releases.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

from captum.attr import Attribution

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360 import AIX360
from safexplain.explain.alibi import ALIBI, anchor_hardening, kind_of
from safexplain.explain.captum import GradCAM as GradCAM
from safexplain.explain.captum import GradCAMPlusPlus as GradCAMPlusPlus
from safexplain.explain.captum import TokenIG as TokenIG
from safexplain.explain.captum import default_embedding as default_embedding
from safexplain.explain.captum import default_layer
from safexplain.explain.captum import rewrite_functional as rewrite_functional
from safexplain.explain.catalog import CATALOG, REFUSED, Row, find_row
from safexplain.explain.feature_groups import grid_segments
from safexplain.explain.feature_groups import show_set as show_set
from safexplain.explain.feature_groups import words as words
from safexplain.explain.hardened import HARDENED, Direction, Hardened, build
from safexplain.explain.isolation import fresh_state
from safexplain.explain.shap import SHAP
from safexplain.explain.tables import TableExplainer
from safexplain.explain.tables import near_cutoff as near_cutoff
from safexplain.hardening.hardening import Hardening

__all__ = ["CATALOG", "anchor_hardening", "default_layer", "find_row", "grid_segments"]

_NATIVES = {row.native: row for row in CATALOG.values() if row.in_base and row.nt_type is None}

_OTHERS = {"alibi": ALIBI, "aix360": AIX360, "lime": AIX360, "shap": SHAP}
"""Library -> its name of an explainer of tables -> the hardened class."""


def harden(
    native: Any,
    hardening: Hardening | None = None,
    *,
    model_digest: bytes | None = None,
    direction: Direction | None = None,
    **options: Any,
) -> Any:
    """A hardened version of an explainer of Captum, Alibi, AIX360, lime or shap.

    A hardened Captum explainer is an instance of a subclass of the native class. Captum classes outside the catalog run
    on a private copy of the model, weights included. Explainers of Alibi and shap are held from then on.

    Args:
        native: the explainer, for example `captum.attr.LayerGradCam(model, model.layer4)`; it is not changed.
        hardening: None for the method's own default: `Hardening.recommended()` for attributions, ordered for tables;
            `anchor_hardening()` for anchors, `Hardening.ranked()` for ProtoDash.
        model_digest: at least 16 bytes that name the model and its version, where no model can be found in it.
        direction: of a Captum explainer, where the model's one output is a number: "up" or "down".
        **options: further arguments of the hardened class: `public` (required) for ProtoDash, `bins` for LIME.

    Raises:
        ConfigurationTypeError: not an explainer of these libraries, or hardened already.
        RefusedError: the model silently turns the method into another one, it holds a hardened explainer, or no
            hardening makes its answers safe to release.
    """
    if isinstance(native, Hardened | TableExplainer):
        raise ConfigurationTypeError(f"already hardened: {native!r}; harden the native explainer once")
    if (table := _table_class(native)) is not None:
        named = {} if model_digest is None else {"model_digest": model_digest}
        return table.around(native, hardening, **named, **options)
    if options:
        raise TypeError(f"harden got unexpected options {sorted(options)} for {type(native).__name__}")
    hardened = _harden_captum(native, hardening, model_digest)
    hardened.direction = direction
    return hardened


def _table_class(native: Any) -> type[TableExplainer] | None:
    """The hardened class of an explainer of `_OTHERS`; None: of another library."""
    kinds = [(base.__module__.partition(".")[0], base.__name__) for base in type(native).__mro__]
    library = next((library for library, _ in kinds if library in _OTHERS), None)
    if library is None:
        return None
    if library == "alibi":
        return ALIBI[kind_of(native)]
    for own, name in kinds if library == "shap" else kinds[:1]:  # subclasses of the others may return more
        if name in _OTHERS.get(own, ()):
            return _OTHERS[own][name]
    raise RefusedError(
        f"expected one of {', '.join(sorted(_OTHERS[library]))}, got {type(native).__name__}, which cannot be hardened:"
        " docs/libraries.md gives the reason"
    )


def _harden_captum(native: Attribution, hardening: Hardening | None, model_digest: bytes | None) -> Hardened:
    kind = type(native)
    if kind.__module__.startswith("captum.") and (why := REFUSED.get(kind.__name__)):
        raise RefusedError(f"{kind.__name__} cannot be hardened: {why}")
    if not isinstance(native, Attribution):
        raise ConfigurationTypeError(
            "expected an explainer of Captum, Alibi, AIX360, lime or shap, as captum.attr.IntegratedGradients(model),"
            f" got {kind.__name__}"
        )
    hardened = _blank(kind)
    hardened.__dict__.update(fresh_state(vars(native)))
    hardened._adopt(hardening, model_digest)
    return hardened


@cache
def _hardened_class(native: Any) -> type[Hardened]:
    if native in _NATIVES:
        return HARDENED[_NATIVES[native].name]
    summary = (inspect.getdoc(native) or native.__name__).partition("\n\n")[0]
    known = next((_NATIVES[base] for base in native.__mro__ if base in _NATIVES), None)  # the nearest class's facts
    unknown = Row(native.__name__, native, family="other", citation="", summary=summary)
    kind = build(replace(known, name=native.__name__, source=native, summary=summary) if known else unknown)
    kind.__reduce__ = lambda self: (_blank, (native,), dict(vars(self)))  # type: ignore[method-assign]
    return kind


def _blank(native: Any) -> Hardened:
    kind = _hardened_class(native)
    return kind.__new__(kind)
