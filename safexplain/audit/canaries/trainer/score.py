"""One training by the user's function, and the score of what it gives.

Checks of a probe's options before anything is trained, and the names of its functions in the cache.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from operator import index
from typing import Any

import torch
from torch import nn

from safexplain._digest import Undigestable, digest
from safexplain.audit.canaries.canary import Canary, GradientCanary, RecordCanary
from safexplain.audit.canaries.run import Threshold
from safexplain.audit.canaries.score import record_scores
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import World
from safexplain.audit.canaries.trainer.hook import GradientHook
from safexplain.errors import ConfigurationError, InputError

__all__ = [
    "ScoreOf",
    "Train",
    "call",
    "check_confidence",
    "check_threshold",
    "check_train",
    "name_of",
    "takes",
    "whole",
]

Train = Callable[..., Any]
"""(dataset, generator) -> model, or (dataset, generator, device) -> model."""


class ScoreOf:
    """Trains and scores.

    Args:
        train: the user's function.
        data: records of world a.
        canary: in world b.
        score: of what `train` returns; None: from logits, or from the parameter of a gradient canary.
    """

    def __init__(self, train: Train, data: Any, canary: Canary, score: Callable[[Any], float] | None) -> None:
        self.train, self.data, self.score, self.canary = train, data, score, canary
        if isinstance(canary, RecordCanary):  # on the CPU, whatever it was crafted on
            self.canary = replace(canary, x=canary.x.cpu())

    def __call__(self, world: str, seed: int, device: str | None) -> float:
        """Train and score one model.

        Raises:
            InputError: what was returned cannot be scored.
            RefusedError: a gradient canary cannot be put into this loop.
        """
        canary = self.canary
        z = self.data[canary.target]
        if isinstance(canary, GradientCanary):
            hook = GradientHook(canary.target, canary.coordinate, 1.0 if world == "a" else -1.0)
            with hook.watching():
                call(self.train, World(self.data, canary.target, fetched=hook.fetched), seed, device)
            return (0.0 if canary.drift is None else float(canary.drift[-1])) - hook.moved
        instead = (canary.x.to(z[0]), torch.as_tensor(canary.y).to(z[1]).reshape(z[1].shape))
        model = call(self.train, World(self.data, canary.target, instead if world == "b" else None), seed, device)
        if self.score is not None:
            return float(self.score(model))
        if not isinstance(model, nn.Module):
            raise InputError(f"train must return a torch.nn.Module, got {type(model).__name__}; or pass score=")
        logits = logits_of(model, torch.stack([z[0], instead[0]]))
        return float(record_scores(logits[:1], logits[1:], int(z[1]), canary.y, canary.scenario))


def call(train: Train, world: World, seed: int, device: str | None) -> Any:
    """One call of a training function."""
    generator = torch.Generator().manual_seed(seed)
    return train(world, generator) if device is None else train(world, generator, device)


def takes(train: Train, arguments: int) -> bool:
    """Whether it can be called with so many arguments."""
    try:
        inspect.signature(train).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # no signature, as of some compiled functions
        return callable(train)
    return True


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
