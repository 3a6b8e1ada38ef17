"""Putting something into what a native explainer returns, for as long as a test runs."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from safexplain.errors import ConfigurationError
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT

__all__ = ["PLANTS", "VALUES", "Plant", "Planting", "planted"]

Plant = Callable[[Any, Any], Any]
"""(native result, native explainer) -> the result with something planted in it."""


class Planting:
    """How often a planted entry was run.

    Attributes:
        calls: number of calls; calls that the entry makes to itself are not counted.
    """

    def __init__(self) -> None:
        self.calls = 0


@contextmanager
def planted(native: type, entry: str, transform: Plant) -> Iterator[Planting]:
    """Within, what `native.entry` returns goes through `transform`, in all threads; afterwards all is as before.

    An entry that has a `__wrapped__` (Captum's have one, which NoiseTunnel and the layer wrappers call) keeps one,
    planted as well.

    Args:
        native: the native explainer's class.
        entry: name of its method.
        transform: (result, native explainer) -> result.

    Raises:
        ConfigurationError: the class has no such method.
    """
    method = getattr(native, entry, None)
    if not inspect.isfunction(method):
        raise ConfigurationError(f"expected the name of a method of {native.__name__}, got {entry!r}")
    inherited = entry not in vars(native)
    planting, inside = Planting(), threading.local()

    def around(function: Any) -> Any:
        @functools.wraps(function)
        def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "entry", False):
                return function(self, *args, **kwargs)
            inside.entry = True
            try:
                result = function(self, *args, **kwargs)
            finally:
                inside.entry = False
            planting.calls += 1
            return transform(result, self)

        replaced.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        if hasattr(function, "__wrapped__"):
            replaced.__wrapped__ = around(function.__wrapped__)
        else:
            del replaced.__wrapped__
        return replaced

    setattr(native, entry, around(method))
    try:
        yield planting
    finally:
        if inherited:
            delattr(native, entry)
        else:
            setattr(native, entry, method)


class Marked(Tensor):
    """A tensor with something attached that every operation hands on, as libraries of image types do."""

    secret: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function and attach the marker to what it returns."""
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        for part in result if isinstance(result, tuple | list) else (result,):
            if isinstance(part, Marked):
                part.secret = MARKER_TEXT
        return result


def _attributes(tensor: Tensor) -> Tensor:
    marked = tensor.detach().clone()
    marked.secret = MARKER_TEXT  # type: ignore[attr-defined]
    marked.raw = torch.full_like(marked, MARKER_NUMBER)  # type: ignore[attr-defined]
    return marked


def _graph(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device, requires_grad=True)
        return tensor.detach().clone() + zeros * torch.full_like(zeros, MARKER_NUMBER, requires_grad=False)


def _gradient(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False):
        marked = tensor.detach().clone().requires_grad_()
        marked.grad = torch.full_like(marked, MARKER_NUMBER, requires_grad=False)
        return marked


def _storage(tensor: Tensor) -> Tensor:
    larger = tensor.new_full((tensor.numel() + 64,), MARKER_NUMBER).detach()
    return larger[: tensor.numel()].copy_(tensor.detach().reshape(-1)).view(tensor.shape)


def _subclass(tensor: Tensor) -> Tensor:
    marked = tensor.detach().clone().as_subclass(Marked)
    marked.secret = MARKER_TEXT
    return marked


def _values(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, MARKER_NUMBER, requires_grad=False)


def _each(plant: Callable[[Tensor], Tensor]) -> Plant:
    """The plant in every tensor of a result."""

    def transform(result: Any, explainer: Any) -> Any:
        return tuple(plant(t) for t in result) if isinstance(result, tuple) else plant(result)

    return transform


def _extra(extra: Callable[[Tensor], Any]) -> Plant:
    def transform(result: Any, explainer: Any) -> Any:
        results = result if isinstance(result, tuple) else (result,)
        return (*results, extra(results[0]))

    return transform


def _explainer(result: Any, explainer: Any) -> Any:
    explainer.secret = MARKER_TEXT
    explainer.raw = torch.full((8,), MARKER_NUMBER)
    return result


VALUES = "the native numbers themselves"
PLANTS: Mapping[str, Plant] = MappingProxyType(
    {
        VALUES: _each(_values),
        "Python attributes of the native tensor": _each(_attributes),
        "the graph of the native tensor": _each(_graph),
        "the .grad of the native tensor": _each(_gradient),
        "the rest of the native tensor's storage": _each(_storage),
        "a tensor subclass": _each(_subclass),
        "a delta for each example, returned beside the map": _extra(
            lambda t: torch.full((len(t),), MARKER_NUMBER, device=t.device)
        ),
        "text returned beside the map": _extra(lambda t: {"secret": MARKER_TEXT}),
        "attributes of the native explainer": _explainer,
    }
)
"""Where the contract puts markers in the results of Captum's explainers; the keys say it."""
