"""From a row to a class: `build` makes HardenedX, `harden` wraps an explainer that exists already."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn

from captum.attr import Attribution

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360 import harden_aix360, is_aix360
from safexplain.explain.aix360.base import HardenedAIX360
from safexplain.explain.alibi import HardenedAlibi, harden_alibi, is_alibi
from safexplain.explain.captum.gradient import Gradient
from safexplain.explain.catalog import CATALOG, REFUSED
from safexplain.explain.hardened import Hardened, refuse_inside
from safexplain.explain.hardening_or_default import refuse_twice, with_hardening
from safexplain.explain.isolation import own_state
from safexplain.explain.row import Row
from safexplain.hardening.hardening import Hardening

__all__ = ["build", "harden"]


_NATIVES = {row.native: row for row in CATALOG.values() if row.in_base and row.nt_type is None}
"""Native class -> its row; a NoiseTunnel may stand for several."""


def build(row: Row, *, module: str) -> type[Hardened]:
    """The hardened class of a row, to be assigned to `row.hardened_name` in the module of that name.

    Raises:
        RefusedError: the native class has no `inputs` to tie the noise to.
    """
    native = row.native
    constructor = inspect.signature(native.__init__)
    signature = inspect.signature(native.attribute)
    if "inputs" not in signature.parameters:
        raise RefusedError(f"{native.__name__}.attribute has no `inputs`, so that its answers cannot be hardened")
    if row.nt_type:
        tunnel = signature.parameters["nt_type"].replace(default=row.nt_type)
        parameters = {**signature.parameters, "nt_type": tunnel}
        signature = signature.replace(parameters=list(parameters.values()))

    def __init__(self: Hardened, *args: Any, hardening: Hardening | None = None, **kwargs: Any) -> None:
        bound = constructor.bind(self, *args, **kwargs)
        method = bound.arguments.get("attribution_method")
        if row.nt_type and not isinstance(method, Attribution):
            if not callable(method):
                raise ConfigurationTypeError(
                    f"{row.hardened_name} takes a Captum explainer or a model, got {type(method).__name__}"
                )
            bound.arguments["attribution_method"] = Gradient(method)
        native.__init__(*bound.args, **bound.kwargs)
        self._adopt(hardening)

    def attribute(self: Hardened, *args: Any, **kwargs: Any) -> Any:
        return self._release(args, kwargs)

    def refuse(self: Hardened, *args: Any, **kwargs: Any) -> NoReturn:
        refuse_inside(type(self), "NoiseTunnel, TCAV and the layer wrappers")

    _dress(__init__, native.__init__, with_hardening(constructor), row, module)
    _dress(attribute, native.attribute, signature, row, module)
    attribute.__wrapped__ = refuse  # type: ignore[attr-defined]
    namespace = {
        "__module__": module,
        "__qualname__": row.hardened_name,
        "__doc__": _class_doc(row),
        "__init__": __init__,
        "attribute": attribute,
        "_row": row,
        "_native": native,
        "_signature": signature,
    }
    return type(row.hardened_name, (Hardened, native), namespace)


def harden(native: Any, hardening: Hardening | None = None, **options: Any) -> Any:
    """A hardened version of an explainer of Captum, Alibi, AIX360 or lime.

    A hardened Captum explainer is an instance of a subclass of the native class. Captum classes outside the catalog run
    on a private copy of the model, weights included, because nobody has read what they do to it. See `harden_alibi` and
    `harden_aix360` for the other libraries.

    Args:
        native: the explainer, for example `captum.attr.LayerGradCam(model, model.layer4)`; it is left as it is.
        hardening: None for the method's own default, `Hardening.recommended()` for all that give attributions.
        **options: what the hardened class takes beside, as `public=` for ProtoDash.

    Raises:
        ConfigurationTypeError: not an explainer of these libraries, or hardened already.
        RefusedError: the method would silently be another one on this model, holds a hardened explainer, or gives
            answers that no hardening makes fit to leave.
    """
    if isinstance(native, Hardened | HardenedAlibi | HardenedAIX360):
        refuse_twice(native)
    if is_alibi(native):
        return harden_alibi(native, hardening, **options)
    if is_aix360(native):
        return harden_aix360(native, hardening, **options)
    if options:
        raise TypeError(f"harden got unexpected options {sorted(options)} for {type(native).__name__}")
    return _harden_captum(native, hardening)


def _harden_captum(native: Attribution, hardening: Hardening | None) -> Hardened:
    kind = type(native)
    if kind.__module__.startswith("captum.") and (why := REFUSED.get(kind.__name__)):
        raise RefusedError(f"{kind.__name__} cannot be hardened: {why}")
    if not isinstance(native, Attribution):
        raise ConfigurationTypeError(
            "expected an explainer of Captum, Alibi, AIX360 or lime, as captum.attr.IntegratedGradients(model), got"
            f" {type(native).__name__}"
        )
    hardened = _blank(type(native))
    hardened.__dict__.update(own_state(vars(native)))
    hardened._adopt(hardening)
    return hardened


@cache
def _hardened_class(native: Any) -> type[Hardened]:
    from safexplain import explain

    if native in _NATIVES:
        public: type[Hardened] = getattr(explain, _NATIVES[native].hardened_name)
        return public
    summary = (inspect.getdoc(native) or native.__name__).partition("\n\n")[0]
    kind = build(_row_of(native, summary), module=__name__)
    kind.__reduce__ = lambda self: (_blank, (native,), dict(vars(self)))  # type: ignore[method-assign]
    return kind


def _row_of(native: Any, summary: str) -> Row:
    """What is known of a class outside the catalog: the facts of the nearest class that it derives from."""
    for base in native.__mro__:
        if base in _NATIVES:
            return replace(_NATIVES[base], name=native.__name__, source=native, summary=summary)
    return Row(native.__name__, native, family="other", citation="", summary=summary)


def _blank(native: Any) -> Hardened:
    kind = _hardened_class(native)
    return kind.__new__(kind)


def _dress(function: Any, native: Any, signature: inspect.Signature, row: Row, module: str) -> None:
    function.__signature__ = signature
    function.__name__ = native.__name__
    function.__qualname__ = f"{row.hardened_name}.{native.__name__}"
    function.__module__ = module
    native_doc = (inspect.getdoc(native) or "").partition("Examples::")[0].replace(">>> ", "").rstrip()
    function.__doc__ = f"As natively, hardened: see the class. The native documentation:\n\n{native_doc}"


def _class_doc(row: Row) -> str:
    lines = [f"Hardened {row.name}. {row.summary}", ""]
    if row.citation:
        lines += [f"Source: {row.citation}.", ""]
    if row.nt_type:
        lines += [
            "Takes any Captum explainer, as NoiseTunnel does, or a model, which stands for its signed"
            f" gradient (`Gradient`). `nt_type` is {row.nt_type!r}. The hardening comes after the tunnel.",
            "",
        ]
    if row.hooks:
        lines += [
            "Runs on a private copy of the model, so that other threads may use the model meanwhile.",
            "",
        ]
    lines += [
        "Args:",
        f"    as {row.native.__name__}'s constructor.",
        "    hardening: None for Hardening.recommended().",
    ]
    return "\n".join(lines)
