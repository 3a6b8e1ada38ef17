"""From rows to classes: `build` makes a hardened class of every row of the catalog, which `safexplain.captum` has under
Captum's name, and `harden` wraps an explainer that exists already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from captum.attr import Attribution

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360 import harden_aix360
from safexplain.explain.alibi import harden_alibi
from safexplain.explain.alibi.explainers import HardenedAlibi
from safexplain.explain.catalog import CATALOG, REFUSED, Row
from safexplain.explain.hardened import Asked, Catalogued, Hardened
from safexplain.explain.isolation import own_state
from safexplain.explain.libraries import defined_in
from safexplain.explain.orientation import Direction
from safexplain.explain.shap import harden_shap
from safexplain.explain.tables import OfTables
from safexplain.hardening.hardening import Hardening

__all__ = ["HARDENED", "Asked", "Catalogued", "build", "harden"]


def build(row: Row) -> type[Hardened]:
    """The hardened class of a row: `Hardened` and the native class, with the native signatures.

    Raises:
        RefusedError: the native class has no `inputs` to tie the noise to.
    """
    native, name = row.native, row.hardened_name
    signature = inspect.signature(native.attribute)
    if "inputs" not in signature.parameters:
        raise RefusedError(f"{native.__name__}.attribute has no `inputs`, so that its answers cannot be hardened")
    if row.nt_type:
        tunnel = signature.parameters["nt_type"].replace(default=row.nt_type)
        signature = signature.replace(parameters=list((signature.parameters | {"nt_type": tunnel}).values()))
    parameters = list(signature.parameters.values())[1:]
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "")
    attribute = _as_native(Hardened.attribute, native.attribute, signature, name)
    constructor = _with_hardening(inspect.signature(native.__init__))
    attribute.__wrapped__ = Hardened._refuse_inside
    namespace = {
        "__module__": __name__,
        "__doc__": _class_doc(row),
        "__init__": _as_native(Hardened.__init__, native.__init__, constructor, name),
        "attribute": attribute,
        "_row": row,
        "_native": native,
        "_signature": signature,
        "_names": tuple(p.name for p in named if p.kind is not p.KEYWORD_ONLY),
        "_defaults": {p.name: p.default for p in named if p.default is not p.empty},
        "_required": frozenset(p.name for p in named if p.default is p.empty),
        "_rest": rest,
        "_by_place": bool(rest) or any(p.kind is p.POSITIONAL_ONLY for p in parameters),
        "_open": any(p.kind is p.VAR_KEYWORD for p in parameters),
    }
    return type(name, (Hardened, native), namespace)


def _with_hardening(constructor: inspect.Signature) -> inspect.Signature:
    """A native constructor's signature with `hardening=None` and `model_digest=None` as keywords."""
    kinds = {"hardening": Hardening | None, "model_digest": bytes | None}
    only = inspect.Parameter.KEYWORD_ONLY
    extra = [inspect.Parameter(name, only, default=None, annotation=kind) for name, kind in kinds.items()]
    parameters = list(constructor.parameters.values())
    at = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_KEYWORD), len(parameters))
    return constructor.replace(parameters=[*parameters[:at], *extra, *parameters[at:]])


def _as_native(
    function: Callable[..., Any], native: Callable[..., Any], signature: inspect.Signature, owner: str
) -> Any:
    """A method of the class `owner` that does what `function` does and looks like the native one."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    name = function.__name__
    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__name__, method.__qualname__, method.__module__ = name, f"{owner}.{name}", __name__
    native_doc = (inspect.getdoc(native) or "").partition("Examples::")[0].replace(">>> ", "").rstrip()
    method.__doc__ = f"{inspect.getdoc(function)}\n\nThe native documentation:\n\n{native_doc}"
    return method


def _class_doc(row: Row) -> str:
    parts = [f"Hardened {row.name}. {row.summary}", f"Source: {row.citation}." if row.citation else ""]
    if row.nt_type:
        parts.append(
            "Takes any Captum explainer, as NoiseTunnel does, or a model, which stands for its signed"
            f" gradient (`Gradient`). `nt_type` is {row.nt_type!r}. The hardening comes after the tunnel."
        )
    if row.library == "captum" and not row.nt_type and row.name in CATALOG:
        parts.append(f"The same class as `safexplain.captum.{row.native.__name__}`.")
    parts.append(
        f"Takes the arguments of `{row.native.__name__}`, and three more.\n\n"
        "Args:\n"
        "    hardening: what happens to an explanation before it is released; None for `Hardening.recommended()`,"
        " of a scikit-learn classifier with the order.\n"
        "    model_digest: 16 bytes or more that name the model and its version, for a model whose weights cannot be"
        " read; None for `safexplain.model_digest` of it.\n"
        '    direction: "up" or "down", of a model whose one output is a number; None: it is about two classes.'
    )
    return "\n\n".join(filter(None, parts))


HARDENED: Mapping[str, type[Hardened]] = MappingProxyType(
    {row.name: build(row) for row in CATALOG.values() if row.in_base}
)
"""Name of a row -> its hardened class, for all rows that the base install brings. Each is made here, once."""

globals().update({kind.__name__: kind for kind in HARDENED.values()})  # where pickle looks for them

_NATIVES = {row.native: row for row in CATALOG.values() if row.in_base and row.nt_type is None}
"""Native class -> its row; a NoiseTunnel may stand for several."""


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
    on a private copy of the model, weights included, because nobody has read what they do to it. See `harden_alibi`,
    `harden_aix360` and `harden_shap` for the other libraries.

    Args:
        native: the explainer, for example `captum.attr.LayerGradCam(model, model.layer4)`; it is left as it is.
        hardening: None for the method's own default, `Hardening.recommended()` for all that give attributions,
            with the order for tables.
        model_digest: 16 bytes or more that name the model and its version, where nothing in it can be seen.
        direction: of a Captum explainer, where the model's one output is a number: "up" or "down".
        **options: what the hardened class takes beside, as `public=` for ProtoDash.

    Raises:
        ConfigurationTypeError: not an explainer of these libraries, or hardened already.
        RefusedError: the method would silently be another one on this model, holds a hardened explainer, or gives
            answers that no hardening makes fit to leave.
    """
    if isinstance(native, Hardened | HardenedAlibi | OfTables):
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
    hardened.__dict__.update(own_state(vars(native)))
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
