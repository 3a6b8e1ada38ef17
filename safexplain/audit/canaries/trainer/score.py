"""One training by the user's function, and the score of what it gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from safexplain.audit.canaries.canary import Canary, GradientCanary, RecordCanary
from safexplain.audit.canaries.score import record_scores
from safexplain.audit.canaries.trainer.canary import logits_of
from safexplain.audit.canaries.trainer.data import World
from safexplain.audit.canaries.trainer.hook import GradientHook
from safexplain.errors import InputError

__all__ = ["ScoreOf", "Train", "call", "takes"]

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
