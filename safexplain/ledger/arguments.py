"""Arguments of a ledger's methods, checked before anything is begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safexplain.errors import ConfigurationTypeError, InputError


def named(principal: str) -> str:
    """A principal's name.

    Raises:
        InputError: no database keeps it as it is.
    """
    if not isinstance(principal, str):
        raise ConfigurationTypeError(f"principal: expected a name, got {type(principal).__name__}")
    try:
        size = len(principal.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= 500 or "\0" in principal:
        raise InputError(f"principal: expected 1 to 500 bytes of UTF-8 without NUL, got {principal[:40]!r}")
    return principal


def text(name: str, value: Any) -> str:
    """Text that every database keeps as it is.

    Raises:
        InputError: it has a NUL, or characters that UTF-8 does not.
    """
    found = str(value)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name}: expected text that UTF-8 can hold, got {found[:40]!a}") from None
    if "\0" in found:
        raise InputError(f"{name}: expected text without NUL, got {found[:40]!r}")
    return found


def number(name: str, value: Any) -> float:
    """A number as a float, infinite or NaN too.

    Raises:
        ConfigurationTypeError: not a number.
    """
    try:
        if isinstance(value, bool | str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationTypeError(f"{name}: expected a number, got {value!r}") from None


def described(mechanism: str, parameters: Mapping[str, Any] | None) -> tuple[str, str]:
    """What is recorded beside a release."""
    try:
        written = json.dumps(dict(parameters), sort_keys=True, allow_nan=False) if parameters else "{}"
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"parameters: expected a mapping of JSON types without NaN or infinity ({error})") from None
    return text("mechanism", mechanism), written
