"""Markers, and the search for them in everything that can be reached from an object.

A marker is put where secrets are: into training rows, raw maps, a graph, the rest of a storage. Then the object that
leaves is searched: attributes, slots, containers, closures, whole storages, autograd graphs, array bases, pickles,
copies, texts. What is found is a way by which whoever holds the object reads the secret.
"""

from __future__ import annotations

import copy
import ctypes
import pickle
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["MARKER_NUMBER", "MARKER_TEXT", "find_markers", "reachable_markers"]

MARKER_TEXT = "marker-that-must-not-leave-6f1d"
"""What to plant where text goes."""

MARKER_NUMBER = 7391.4658203125
"""What to plant where numbers go; float32 holds it exactly, and with 4 decimals it still is like no other."""

_DIGITS = "7391.46"
_TEXTS = (MARKER_TEXT, _DIGITS)
_BYTES = (
    MARKER_TEXT.encode(),
    MARKER_TEXT.encode("utf-16-le"),
    MARKER_TEXT.encode("utf-32-le"),
    _DIGITS.encode(),
    *(np.array(MARKER_NUMBER, kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")),
    np.full(4, MARKER_NUMBER, "<f2").tobytes(),  # two bytes alone are like many others
    torch.full((4,), MARKER_NUMBER, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes(),
)
_MOST = 500_000
_LIBRARIES = ("builtins", "torch", "numpy", "collections", "abc", "typing")

Way = tuple[str, Any]


def find_markers(obj: object, *, name: str = "released") -> list[str]:
    """The ways by which `MARKER_TEXT` or `MARKER_NUMBER` can be read from an object.

    Modules, the globals of functions and the code of classes are not searched: they are the program, not its answer.

    Args:
        obj: anything: a tensor, a tuple of arrays, an explanation object of any library.
        name: what the ways start with.

    Returns:
        Python-like expressions, one for each place, empty when nothing was found.

    >>> find_markers({"scores": np.array([1.0, MARKER_NUMBER])[:1]})
    ["released['scores'].base.tobytes()"]
    """
    found = reachable_markers(obj, name)
    views: dict[str, Callable[[], str | bytes]] = {f"pickle.dumps({name})": lambda: pickle.dumps(obj)}
    if type(obj) is not Tensor:  # its text shows nothing that its storage does not hold, and takes long
        views |= {f"repr({name})": lambda: repr(obj), f"str({name})": lambda: str(obj)}
    for way, view in views.items():
        try:
            seen = view()
        except Exception:  # what cannot be pickled or printed tells nothing that way
            continue
        found += [way] if _in_plain(seen) else []
    try:
        copied = copy.deepcopy(obj)
    except Exception:
        return found
    already = {way.removeprefix(name) for way in found}
    again = reachable_markers(copied, "")
    return found + [f"copy.deepcopy({name}){way}" for way in again if way not in already]


def reachable_markers(obj: object, name: str) -> list[str]:
    """As `find_markers`, without pickling, copying or printing the object."""
    found, waiting = list[str](), [(name, obj)]
    seen: dict[int, object] = {}  # holds what was seen, so that no id is used twice
    while waiting:
        way, value = waiting.pop()
        if isinstance(value, str | bytes | bytearray | memoryview | float | complex | int | np.generic):
            found += [way] if _in_plain(value) else []
        elif value is not None and id(value) not in seen:
            if len(seen) > _MOST:
                raise RecursionError(f"more than {_MOST} objects are reachable; search a part of it")
            seen[id(value)] = value
            for step, part in _parts(value):
                waiting.append((way + step, part))
    return sorted(found)


def _in_plain(value: Any) -> bool:
    if isinstance(value, str):
        return any(text in value for text in _TEXTS)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return any(pattern in data for pattern in _BYTES)
    if isinstance(value, np.generic):
        return _in_plain(value.item()) if not isinstance(value.item(), np.generic) else False
    if isinstance(value, complex):
        return MARKER_NUMBER in (value.real, value.imag)
    return bool(value == MARKER_NUMBER)


def _parts(value: Any) -> Iterator[Way]:
    """What can be reached from a value in one step, with how it is written."""
    if isinstance(value, types.ModuleType):
        return
    if isinstance(value, Tensor):
        yield from _parts_of_tensor(value)
    elif isinstance(value, torch.UntypedStorage):
        yield "", _bytes_of(value)
    elif isinstance(value, np.ndarray):
        yield from _parts_of_array(value)
    elif isinstance(value, torch.autograd.graph.Node):
        yield from _parts_of_node(value)
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r:.40}]", part) for key, part in value.items())
        yield from ((".keys()", key) for key in value)
    elif isinstance(value, Sequence):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, Set):
        yield from (("{...}", part) for part in value)
    elif isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.GeneratorType):
        yield ".gi_frame.f_locals", dict(value.gi_frame.f_locals) if value.gi_frame else None
    elif isinstance(value, weakref.ref):
        yield "()", value()
    elif isinstance(value, BaseException):
        yield from ((".args", value.args), (".__cause__", value.__cause__), (".__context__", value.__context__))
    elif hasattr(value, "to_numpy") and not isinstance(value, type):  # pandas
        yield ".to_numpy()", np.asarray(value.to_numpy())
    yield from _attributes(value)


def _attributes(value: Any) -> Iterator[Way]:
    if isinstance(value, type):
        return
    own = getattr(value, "__dict__", None)
    if isinstance(own, Mapping):
        yield from ((f".{name}", part) for name, part in list(own.items()))
    for owner in type(value).__mro__:
        slots = vars(owner).get("__slots__", ())
        names = [slots] if isinstance(slots, str) else list(slots)
        names = [f"_{owner.__name__.lstrip('_')}{n}" if n[:2] == "__" != n[-2:] else n for n in names]
        yield from ((f".{name}", getattr(value, name, None)) for name in names if name not in ("__dict__",))
        if owner.__module__.partition(".")[0] not in _LIBRARIES:
            data = (str, bytes, float, Tensor, np.ndarray, list, tuple, dict, set)
            yield from ((f".{n}", v) for n, v in vars(owner).items() if isinstance(v, data) and n != "__doc__")


def _parts_of_tensor(tensor: Tensor) -> Iterator[Way]:
    with torch._C.DisableTorchFunctionSubclass():
        yield ".grad_fn", tensor.grad_fn
        yield "._base", tensor._base
        yield ".grad", tensor.grad if tensor.is_leaf else None
        yield "._backward_hooks", getattr(tensor, "_backward_hooks", None)
        if tensor.layout is not torch.strided:
            names = ("indices", "values", "crow_indices", "col_indices", "ccol_indices", "row_indices")
            yield from ((f".{name}()", _try(getattr(tensor, name))) for name in names if hasattr(tensor, name))
        else:
            yield ".untyped_storage()", _try(tensor.untyped_storage)


def _bytes_of(storage: torch.UntypedStorage) -> bytes:
    """All bytes of a storage, those that no tensor shows included."""
    if storage.device.type == "meta" or storage.nbytes() == 0:
        return b""
    on_cpu = storage.cpu()  # type: ignore[no-untyped-call]
    return ctypes.string_at(on_cpu.data_ptr(), on_cpu.nbytes())


def _parts_of_array(array: Any) -> Iterator[Way]:
    yield ".base", array.base
    plain = array.view(np.ndarray)
    if plain.dtype.hasobject:
        yield from ((f".flat[{i}]", part) for i, part in enumerate(plain.ravel().tolist()))
    else:
        yield ".tobytes()", plain.tobytes()


def _parts_of_node(node: Any) -> Iterator[Way]:
    """An autograd node: what it saved for the backward pass, and the nodes before it."""
    for name in dir(node):
        if name.startswith("_saved_") or name in ("saved_tensors", "variable", "metadata"):
            yield f".{name}", _try(partial(getattr, node, name))
    yield from ((f".next_functions[{i}]", before) for i, (before, _) in enumerate(node.next_functions))


def _parts_of_function(function: types.FunctionType) -> Iterator[Way]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f".__closure__[{name}]", _try(partial(getattr, cell, "cell_contents"))
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__


def _try(read: Any) -> Any:
    """What reading gives, or None where it cannot be read: freed graphs, empty cells, storages that are elsewhere."""
    try:
        return read()
    except Exception:
        return None
