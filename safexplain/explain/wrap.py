"""`harden`, which wraps an explainer that exists already."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

from captum.attr import Attribution

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360 import harden_aix360
from safexplain.explain.alibi import harden_alibi
from safexplain.explain.alibi.explainers import HardenedAlibi
from safexplain.explain.catalog import CATALOG, REFUSED, Row
from safexplain.explain.hardened import HARDENED, AuditExplainer, ExplainerFactory, Hardened, build
from safexplain.explain.isolation import fresh_state
from safexplain.explain.libraries import defined_in
from safexplain.explain.orientation import Direction
from safexplain.explain.shap import harden_shap
from safexplain.explain.tables import TableExplainer
from safexplain.hardening.hardening import Hardening

__all__ = ["HARDENED", "AuditExplainer", "ExplainerFactory", "build", "harden"]


_NATIVES = {row.native: row for row in CATALOG.values() if row.in_base and row.nt_type is None}
"""Native class -> its row, except NoiseTunnel, which has several."""


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
    on a private copy of the model, weights included, because they may write to it. See `harden_alibi`,
    `harden_aix360` and `harden_shap` for the other libraries.

    Args:
        native: the explainer, for example `captum.attr.LayerGradCam(model, model.layer4)`; it is not changed.
        hardening: None for the method's own default: `Hardening.recommended()` for attributions, ordered for tables.
        model_digest: at least 16 bytes that name the model and its version, where no model can be found in it.
        direction: of a Captum explainer, where the model's one output is a number: "up" or "down".
        **options: further arguments of the hardened class, as `public=` for ProtoDash.

    Raises:
        ConfigurationTypeError: not an explainer of these libraries, or hardened already.
        RefusedError: the model silently turns the method into another one, it holds a hardened explainer, or no
            hardening makes its answers safe to release.
    """
    if isinstance(native, Hardened | HardenedAlibi | TableExplainer):
        raise ConfigurationTypeError(f"already hardened: {native!r}; harden the native explainer once")
    others = {"alibi": harden_alibi, "aix360": harden_aix360, "lime": harden_aix360, "shap": harden_shap}
    for library, harden_other in others.items():
        if defined_in(type(native), library):
            named = {} if model_digest is None else {"model_digest": model_digest}
            return harden_other(native, hardening, **named, **options)
    if options:
        raise TypeError(f"harden got unexpected options {sorted(options)} for {type(native).__name__}")
    hardened = _harden_captum(native, hardening, model_digest)
    hardened.direction = direction
    return hardened


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
