"""The argument `hardening` that every hardened class takes, whatever library its native class is of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NoReturn

from safexplain.errors import ConfigurationTypeError
from safexplain.hardening.hardening import Hardening

__all__ = ["given_or", "refuse_twice", "with_hardening"]


def with_hardening(constructor: inspect.Signature) -> inspect.Signature:
    """A native constructor's signature with `hardening=None` as a keyword."""
    extra = inspect.Parameter("hardening", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Hardening | None)
    parameters = list(constructor.parameters.values())
    at = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_KEYWORD), len(parameters))
    return constructor.replace(parameters=[*parameters[:at], extra, *parameters[at:]])


def given_or(default: Callable[[], Hardening], hardening: object) -> Hardening:
    """The hardening that was given, or the default for None.

    Raises:
        ConfigurationTypeError: something else was given.
    """
    if hardening is None:
        return default()
    if not isinstance(hardening, Hardening):
        raise ConfigurationTypeError(f"hardening must be a Hardening or None, got {type(hardening).__name__}")
    return hardening


def refuse_twice(hardened: object) -> NoReturn:
    """Refuse to harden what is hardened."""
    raise ConfigurationTypeError(f"already hardened: {hardened!r}; harden the native explainer once")
