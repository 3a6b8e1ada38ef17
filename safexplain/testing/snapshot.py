"""A picture of a model and its inputs, to see what a call changed in them, and to put it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from safexplain._digest import modules_of

__all__ = ["Snapshot", "tensors_in"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Snapshot:
    """What a model and some values are at the moment when this is made.

    Parameters and buffers (which, bits, `requires_grad`, `.grad`), hooks of every kind, also global ones, training
    mode, attributes of each submodule; tensors and arrays in the values.

    Args:
        model: anything in which modules can be found, see `safexplain._digest.modules_of`.
        values: inputs and options: tensors and arrays in tuples, lists and dictionaries.

    >>> net, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
    >>> before = Snapshot(net, {"inputs": x})
    >>> _ = x.mul_(2), net.eval()
    >>> before.differences()
    ['training of Linear changed from True to False', 'inputs were written to']
    >>> before.restore(); bool(net.training), before.differences()
    (True, [])
    """

    def __init__(self, model: object, values: Mapping[str, Any] | None = None) -> None:
        self._modules = {
            (name if i == 0 and name else f"{type(root).__name__}{i or ''}.{name}".rstrip(".")): part
            for i, root in enumerate(modules_of(model))
            for name, part in root.named_modules()
        }
        self._values = {way: value for name, part in (values or {}).items() for way, value in tensors_in(part, name)}
        self._attributes = {name: dict(vars(part)) for name, part in self._modules.items()}
        self._containers = {
            (name, key): value.copy()
            for name, part in self._modules.items()
            for key, value in vars(part).items()
            if isinstance(value, dict)
        }
        self._tensors = {
            id(t): (t, t.detach().clone(), t.requires_grad, t.grad, None if t.grad is None else t.grad.clone())
            for t in self._all_tensors()
        }
        self._arrays = {name: v.copy() for name, v in self._values.items() if isinstance(v, np.ndarray)}
        self._global_hooks = {key: hooks.copy() for key, hooks in _global_hooks().items()}

    def differences(self) -> list[str]:
        """What is not as it was, a sentence each."""
        found = [sentence for name in self._modules for sentence in self._changes(name)]
        for name, hooks in _global_hooks().items():
            if list(hooks) != list(self._global_hooks[name]):
                found.append(f"global {name} were left on torch.nn.Module")
        for name, value in self._named_tensors():
            if isinstance(value, Tensor) and id(value) in self._tensors:
                found += [f"{name} {what}" for what in self._tensor_changes(value)]
        for name, array in self._arrays.items():
            if self._values[name].tobytes() != array.tobytes():
                found.append(f"{name} were written to")
        return found

    def restore(self) -> None:
        """Put everything back: attributes, hooks, modes, tensors, gradients."""
        for name, part in self._modules.items():
            vars(part).clear()
            vars(part).update(self._attributes[name])
        for (name, key), before in self._containers.items():
            _refill(self._attributes[name][key], before)
        for name, hooks in _global_hooks().items():
            _refill(hooks, self._global_hooks[name])
        with torch.no_grad():
            for tensor, value, requires_grad, grad, numbers in self._tensors.values():
                if not _same_bits(tensor, value):
                    tensor.detach().copy_(value)
                if tensor.is_leaf:
                    tensor.requires_grad_(requires_grad)
                    tensor.grad = grad if grad is None or numbers is None else grad.copy_(numbers)
        for name, array in self._arrays.items():
            if self._values[name].flags.writeable:
                self._values[name][...] = array

    def _changes(self, name: str) -> Iterator[str]:
        before, now = self._attributes[name], vars(self._modules[name])
        for key in sorted(before.keys() ^ now.keys()):
            yield f"attribute {key} of {name} {'came' if key in now else 'went'}"
        for key in sorted(before.keys() & now.keys()):
            old, new = before[key], now[key]
            if isinstance(old, dict) and isinstance(new, dict):
                kept = self._containers[name, key]
                if list(kept) != list(new) or any(kept[k] is not new[k] for k in kept):
                    yield f"{key.lstrip('_')} of {name} changed: {len(kept)} before, {len(new)} after"
            elif isinstance(old, _PLAIN) and old is not new and not (type(old) is type(new) and old == new):
                yield f"{key} of {name} changed from {old!r} to {new!r}"
            elif not isinstance(old, _PLAIN) and old is not new:
                yield f"{key} of {name} is another object than before"

    def _tensor_changes(self, tensor: Tensor) -> Iterator[str]:
        _, value, requires_grad, grad, numbers = self._tensors[id(tensor)]
        if tensor.requires_grad != requires_grad:
            yield f"had requires_grad={requires_grad} and have {tensor.requires_grad}"
        if tensor.is_leaf and (
            tensor.grad is not grad or (numbers is not None and not _same_bits(tensor.grad, numbers))
        ):
            yield "have another .grad than before"
        if not _same_bits(tensor, value):
            yield "were written to"

    def _named_tensors(self) -> Iterator[tuple[str, Any]]:
        for name, part in self._modules.items():
            own = [*part._parameters.items(), *part._buffers.items()]
            yield from ((f"{key} of {name}", tensor) for key, tensor in own if tensor is not None)
        yield from self._values.items()

    def _all_tensors(self) -> Iterator[Tensor]:
        yield from (value for _, value in self._named_tensors() if isinstance(value, Tensor))


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


def _refill(container: Any, before: Any) -> None:
    container.clear()
    container.update(before)


def _same_bits(a: Any, b: Tensor) -> bool:
    """Equal values, NaN equal to NaN, and the same shape and type."""
    if not isinstance(a, Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    a = a.detach()
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())


def _global_hooks() -> dict[str, Any]:
    """The hooks that torch runs for every module."""
    names = [name for name in vars(torch_module) if name.startswith("_global") and name.endswith("hooks")]
    return {name.lstrip("_"): getattr(torch_module, name) for name in names}
