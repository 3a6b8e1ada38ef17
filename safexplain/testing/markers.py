"""Markers, planted around the results of a native explainer in place of secrets, and the search for them."""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import ConfigurationError

MARKER_TEXT = "marker-that-must-not-leave-6f1d"
MARKER_NUMBER = 7391.4658203125  # float32 holds it exactly, and it stays unique with 2 decimals

_TEXT = re.compile(rf"{MARKER_TEXT}|(?<![\d.])7391\.[45]|(?<![\d.])7\.39\d*[eE]\+?0*3")
_PACKED = tuple(np.array(MARKER_NUMBER, kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8"))


def find_markers(obj: object, *, name: str = "released") -> list[str]:
    """The places where `MARKER_TEXT` or `MARKER_NUMBER` can be read in an answer, outside of its functions and classes,
    as Python-like expressions that start with `name`.

    >>> find_markers({"scores": np.array([1.0, MARKER_NUMBER]), "note": "2 scores"})
    ["released['scores']"]
    """
    found, waiting = list[str](), [(name, obj)]
    seen: dict[int, object] = {}  # holds what was seen, so that no id is used twice
    while waiting:
        place, value = waiting.pop()
        if id(value) in seen or isinstance(value, type | FunctionType | ModuleType):
            continue
        seen[id(value)] = value
        marked = _is_marked(value)
        found += [place] if marked else []
        behind = () if marked else _behind(value)
        waiting += [(place + step, part) for step, part in (*parts_of(value), *behind)]
    return sorted(found)


def _is_marked(value: Any) -> bool:
    if isinstance(value, str):
        return bool(_TEXT.search(value))
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return bool(_TEXT.search(raw.decode("latin-1"))) or any(packed in raw for packed in _PACKED)
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
            return bool((dense == torch.tensor(MARKER_NUMBER).to(dense.dtype)).any())
    if isinstance(value, np.ndarray | np.generic):
        plain = np.asarray(value)  # for a masked array, also what is under the mask
        return plain.dtype.kind in "fc" and bool((plain == np.asarray(MARKER_NUMBER, plain.dtype)).any())
    if isinstance(value, int | float | complex):
        return value == MARKER_NUMBER
    return not isinstance(value, Mapping | Sequence | Set) and bool(_TEXT.search(repr(value)))


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """(suffix, part) of everything that a value holds."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r:.40}]", part) for key, part in value.items())
        yield from ((".keys()", key) for key in value)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, Set):
        yield from (("{...}", part) for part in value)
    elif isinstance(value, np.ndarray | np.void) and value.dtype.kind not in "fciub":  # objects, texts, records
        yield from ((f".flat[{i}]", part) for i, part in enumerate(value.ravel().tolist()))
    elif isinstance(value, BaseException):
        yield from ((".args", value.args), (".__cause__", value.__cause__), (".__context__", value.__context__))
    elif hasattr(value, "to_numpy"):  # pandas
        yield ".to_numpy()", np.asarray(value.to_numpy())
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())
    slots = (name for owner in type(value).__mro__ for name in vars(owner).get("__slots__", ()))
    yield from ((f".{name}", getattr(value, name)) for name in slots if hasattr(value, name))


def _behind(value: Any) -> Iterator[tuple[str, Any]]:
    """(suffix, object) of what can be reached from a value without being part of it."""
    if isinstance(value, np.ndarray):
        yield ".base", value.base
    elif isinstance(value, Tensor):
        yield from (("._base", value._base), (".grad", value.grad if value.is_leaf else None))


Plant = Callable[[Any, Any], Any]
"""(native result, native explainer) -> the result with something planted in it."""


@contextmanager
def planted(native: type, entry: str, transform: Plant) -> Iterator[SimpleNamespace]:
    """A context in which results of the method `entry` of a class, and of its `__wrapped__`, pass through `transform`,
    in all threads. It gives an object whose `calls` counts calls, without nested ones. ConfigurationError: there is no
    such method."""
    method = getattr(native, entry, None)
    if not inspect.isfunction(method):
        raise ConfigurationError(f"expected the name of a method of {native.__name__}, got {entry!r}")
    inherited = entry not in vars(native)
    planting, inside = SimpleNamespace(calls=0), threading.local()

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
        delattr(native, entry)
        if not inherited:
            setattr(native, entry, method)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple as it is; anything else in a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def _in_each(plant: Callable[[Tensor], Tensor]) -> Plant:
    return lambda result, explainer: tuple(map(plant, result)) if isinstance(result, tuple) else plant(result)


def _appended(extra: Callable[[Tensor], Any]) -> Plant:
    return lambda result, explainer: (*as_tuple(result), extra(as_tuple(result)[0]))


def _mark(result: Any, explainer: Any) -> Any:
    explainer.secret, explainer.raw = MARKER_TEXT, torch.full((8,), MARKER_NUMBER)
    return result


VALUES = "the native numbers themselves"
PLANTS: Mapping[str, Plant] = MappingProxyType(
    {
        VALUES: _in_each(lambda t: torch.full_like(t, MARKER_NUMBER, requires_grad=False)),
        "Python attributes of the native tensor": _in_each(lambda t: _mark(marked := t.detach().clone(), marked)),
        "a delta for each example, returned with the map": _appended(lambda t: t.new_full((len(t),), MARKER_NUMBER)),
        "an object returned with the map": _appended(lambda t: SimpleNamespace(notes=[MARKER_TEXT, MARKER_NUMBER])),
        "attributes of the native explainer": _mark,
    }
)
"""Place -> how the contract puts markers there."""
