"""What a model and some tensors are at one moment, to be compared with a later one and put back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.testing.case import difference


class Snapshot:
    """What a model and some values are at the moment when this is made: attributes, hooks and training mode of each
    submodule; values, `requires_grad` and `.grad` of parameters, buffers and of the tensors and arrays in the values.

    Args:
        model: anything in which modules can be found, see `safexplain._digest.modules_of`.
        values: inputs and options: tensors and arrays in tuples, lists and dictionaries.
    """

    def __init__(self, model: object, values: Mapping[str, Any] | None = None) -> None:
        parts = [(f"{type(r).__name__}.{n}".rstrip("."), p) for r in modules_of(model) for n, p in r.named_modules()]
        self._parts = [
            (name, vars(part), {k: (v, v.copy() if isinstance(v, dict) else v) for k, v in vars(part).items()})
            for name, part in parts
        ]
        arrays = [pair for name, value in (values or {}).items() for pair in tensors_in(value, name)]
        for name, part in parts:
            arrays += [(f"{key} of {name}", t) for key, t in {**part._parameters, **part._buffers}.items()]
        self._arrays = [(name, array, _facts(array)) for name, array in arrays if array is not None]

    def differences(self) -> list[str]:
        """What is not as it was, a sentence each."""
        found = []
        for name, now, before in self._parts:
            changed = {k for k, (v, items) in before.items() if now.get(k) is not v or _ids(v) != _ids(items)}
            found += [f"{key.lstrip('_')} of {name} changed" for key in sorted(changed | (now.keys() - before.keys()))]
        for name, array, facts in self._arrays:
            found += [f"{fact} of {name} changed" for fact, v in _facts(array).items() if difference(facts[fact], v)]
        return found

    def restore(self) -> None:
        """Put everything back: attributes, hooks, modes, values, gradients."""
        for _, now, before in self._parts:
            now.clear()
            for key, (value, items) in before.items():
                if isinstance(value, dict):  # the same dictionary, filled as before
                    value.clear()
                    value.update(items)
                now[key] = value
        for _, array, facts in self._arrays:
            if not difference(facts, _facts(array)):
                continue
            if isinstance(array, np.ndarray):
                array[...] = facts["values"]
                continue
            array.detach().copy_(facts["values"])
            if array.is_leaf:
                array.requires_grad_(facts["requires_grad"])
                array.grad = copy.deepcopy(facts["grad"])


def _ids(value: Any) -> Any:
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)


def _facts(array: Any) -> dict[str, Any]:
    if isinstance(array, np.ndarray):
        return {"values": array.copy()}
    grad = copy.deepcopy(array.grad) if array.is_leaf else None
    return {"values": array.detach().clone(), "requires_grad": array.requires_grad, "grad": grad}


def tensors_in(value: Any, name: str = "value") -> Iterator[tuple[str, Any]]:
    """The tensors and arrays in tuples, lists and dictionaries, each with its way."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}[{key!r}]")
