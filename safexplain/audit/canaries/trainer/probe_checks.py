"""Checks of a probe's options before anything is trained, and the names of its functions in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from operator import index
from typing import Any

from safexplain.audit.canaries.run import Threshold
from safexplain.audit.canaries.trainer.score import takes
from safexplain.digests import Undigestable, digest
from safexplain.errors import ConfigurationError

__all__ = ["check_confidence", "check_threshold", "check_train", "name_of", "whole"]


def whole(name: str, value: Any, least: int) -> int:
    """The value, if it is a whole number of at least `least`.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        found = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise ConfigurationError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return found


def check_confidence(confidence: Any) -> None:
    """Raise ConfigurationError unless it is a probability between 0 and 1."""
    if isinstance(confidence, bool) or not isinstance(confidence, Real) or not 0 < float(confidence) < 1:
        raise ConfigurationError(f"confidence: expected a number between 0 and 1, got {confidence!r}")


def check_threshold(threshold: Any) -> Threshold:
    """The threshold, if it is "auto", "split" or a finite number; None is "auto".

    Raises:
        ConfigurationError: it is none of these.
    """
    if threshold is None or (isinstance(threshold, str) and threshold in ("auto", "split")):
        return "split" if threshold == "split" else "auto"
    if isinstance(threshold, bool) or not isinstance(threshold, Real) or not math.isfinite(threshold):
        raise ConfigurationError(f'threshold: expected "auto", "split" or a finite number, got {threshold!r}')
    return float(threshold)


def check_train(train: Any, devices: Any) -> None:
    """Raise ConfigurationError unless it can be called with a data set and a generator, and a device if there are."""
    if devices and not takes(train, 3):
        raise ConfigurationError("devices: train(dataset, generator, device) must take the device")
    if not devices and not takes(train, 2):
        raise ConfigurationError(
            "train: expected a function that can be called as train(dataset, generator) and returns the model; one"
            f" that takes a device as well needs devices=; got {train!r}"
        )


def name_of(what: str, function: Callable[..., Any] | None, version: str | None) -> str:
    """A function in the cache: digest of its source and what it refers to; where that fails, its name with `version`.

    Raises:
        ConfigurationError: it cannot be digested, and there is no version.
    """
    try:
        return digest(function)
    except Undigestable as reason:
        if version is None:
            raise ConfigurationError(
                f"cache: {what} cannot be told from other functions ({reason}); give version=, a name that changes"
                " whenever the function does"
            ) from None
    kind = type(function)
    return getattr(function, "__qualname__", f"{kind.__module__}.{kind.__qualname__}")
