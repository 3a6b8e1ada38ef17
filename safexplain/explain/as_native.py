"""What a hardened class takes over from the native one: signatures, documentation, and `hardening` beside them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from safexplain.errors import ConfigurationTypeError
from safexplain.hardening.hardening import Hardening

__all__ = ["as_native", "refuse_twice", "with_hardening"]


def with_hardening(constructor: inspect.Signature) -> inspect.Signature:
    """A native constructor's signature with `hardening=None` as a keyword."""
    extra = inspect.Parameter("hardening", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Hardening | None)
    parameters = list(constructor.parameters.values())
    at = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_KEYWORD), len(parameters))
    return constructor.replace(parameters=[*parameters[:at], extra, *parameters[at:]])


def as_native(
    function: Callable[..., Any],
    native: Callable[..., Any],
    *,
    signature: inspect.Signature | None = None,
    owner: str = "",
    module: str = "",
) -> Any:
    """A method that does what `function` does and looks like the native one.

    Args:
        function: what is run; its documentation comes first.
        native: whose name, signature and documentation the method has; a constructor gets `hardening` beside.
        signature: instead of the native one.
        owner: name of the class that it is a method of.
        module: the module of that class.
    """

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    signature = signature or inspect.signature(native)
    name = function.__name__
    method.__signature__ = with_hardening(signature) if name == "__init__" else signature  # type: ignore[attr-defined]
    method.__name__, method.__qualname__ = name, f"{owner}.{name}" if owner else function.__qualname__
    method.__module__ = module or function.__module__
    native_doc = (inspect.getdoc(native) or "").partition("Examples::")[0].replace(">>> ", "").rstrip()
    method.__doc__ = f"{inspect.getdoc(function)}\n\nThe native documentation:\n\n{native_doc}"
    return method


def refuse_twice(hardened: object) -> NoReturn:
    """Refuse to harden what is hardened."""
    raise ConfigurationTypeError(f"already hardened: {hardened!r}; harden the native explainer once")
