"""Making an explainer, asking it under fixed seeds, and reading what comes back as tensors."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.hardening.hardening import Hardening

__all__ = [
    "Broken",
    "Query",
    "Skip",
    "Untried",
    "accepts",
    "attempt",
    "build",
    "flat",
    "released_tensors",
    "seeded",
    "take",
    "tensors_of",
    "untried_parts",
]


class Skip(Exception):
    """Raised by a clause that does not apply; says why."""


class Broken(Exception):
    """Raised by a clause that cannot go on; says what is broken."""


class Untried(str):
    """Yielded by a clause: a part of it that could not be tried, and why."""


@dataclass(frozen=True)
class Query:
    """One question to an explainer.

    Args:
        inputs: as its entry takes them.
        target: None where it has none.
        options: more keyword arguments.
    """

    inputs: Any
    target: Any
    options: Mapping[str, Any]


def build(factory: Callable[..., Any], model: Any, hardening: Hardening) -> Any:
    """The explainer that a factory makes: called with `hardening=`, with it as the second of two arguments without
    default, or without it, and then it is set as an attribute.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return factory(model, hardening=hardening)
    kinds = [p.kind for p in parameters.values()]
    required = [p for p in parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, _BOTH)]
    if "hardening" in parameters and parameters["hardening"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return factory(model, hardening=hardening)
    if len(required) == 2:
        return factory(model, hardening)
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return factory(model, hardening=hardening)
    explainer = factory(model)
    explainer.hardening = hardening
    return explainer


def attempt(run: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raised."""
    try:
        return run()
    except (Skip, Broken):
        raise
    except Exception as error:
        return error


def untried_parts(reasons: Sequence[str], parts: int) -> Iterator[str]:
    """What to yield for parts of a clause that could not be tried.

    Raises:
        Skip: none of the parts could be.
    """
    if len(reasons) == parts:
        raise Skip("; ".join(reasons))
    yield from map(Untried, reasons)


def tensors_of(value: Any, what: str) -> tuple[Tensor, ...]:
    """A tensor or a tuple of tensors as a tuple.

    Raises:
        Skip: it is something else.
    """
    tensors = value if isinstance(value, tuple) else (value,)
    if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise Skip(f"{what} are no tensors but {type(value).__name__}")
    return tensors


def released_tensors(value: Any) -> tuple[Tensor, ...]:
    """What was released where natively there are tensors.

    Raises:
        Broken: it is something else.
    """
    try:
        return tensors_of(value, "results")
    except Skip as error:
        raise Broken(f"natively they are tensors; released {error}") from None


def flat(result: Any) -> Tensor:
    """Results as one float64 tensor (batch, features) on the CPU."""
    tensors = released_tensors(result)
    return torch.cat([t.detach().cpu().double().reshape(len(t), -1) for t in tensors], 1)


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python; afterwards they are as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global one is meant
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def take(value: Any, index: list[int], batch: int) -> Any:
    """Some examples of a value that has a row for each; anything else stays as it is."""
    if isinstance(value, tuple):
        return tuple(take(part, index, batch) for part in value)
    if isinstance(value, list) and len(value) == batch > 1:
        return [value[i] for i in index]
    if isinstance(value, Tensor) and value.dim() and len(value) == batch > 1:
        return value[index]
    return value


_BOTH = inspect.Parameter.POSITIONAL_OR_KEYWORD
