"""What something is made of, as one digest: plain values, arrays, modules, functions and all that these refer to."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from types import CodeType, EllipsisType, GenericAlias, UnionType
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["Undigestable", "digest", "sources_digest"]

DEEPEST = 16
"""Levels of nested values that are followed; an object within itself has no end."""

_PLAIN = (str, bytes, int, float, complex, bool, np.generic, PurePath, range, slice, EllipsisType)
_BY_REPR = (*_PLAIN, GenericAlias, UnionType, torch.device, torch.dtype)
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


class Undigestable(Exception):
    """A callable depends on something whose identity across runs cannot be told."""


def sources_digest(paths: Iterable[Path]) -> str:
    """SHA-256 of source files and of the torch version: what other code computed is not taken for this code's."""
    h = hashlib.sha256(torch.__version__.encode())
    for path in paths:
        h.update(path.read_bytes())
    return h.hexdigest()


def digest(*parts: Any) -> str:
    """SHA-256 over nested plain values, arrays, tensors, and functions and classes with all that they refer to.

    Those of Python and of installed packages stand by their name; classes of safexplain by their own code.

    Raises:
        Undigestable: a part has no stable identity.
    """
    h = _Walk()
    for part in parts:
        _feed(h, part, 0)
    for code in h.met:  # grows meanwhile
        h.update(b"|")
        (_feed_class if inspect.isclass(code) else _feed_function)(h, code)
    return h.hash.hexdigest()


class _Walk:
    """A hash, and the functions and classes that were met: each is fed once, later, so that circles have an end."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.update: Callable[[Any], None] = self.hash.update
        self.met: list[Any] = []
        self._numbers: dict[int, int] = {}

    def refer(self, code: Any) -> None:
        number = self._numbers.setdefault(id(code), len(self.met))
        if number == len(self.met):
            self.met.append(code)
        self.update(f"code{number};".encode())


def _feed(h: _Walk, value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise Undigestable("too deeply nested")
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:  # unknown to NumPy
            h.update(b"bfloat16")
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise Undigestable("an array of objects")
        h.update(f"array{value.dtype}{value.shape}".encode())
        h.update(np.ascontiguousarray(value))
    elif value is None or isinstance(value, _BY_REPR) or type(value).__module__ == "typing":
        h.update(f"{type(value).__name__}{value!r};".encode())
    elif isinstance(value, logging.Logger):
        h.update(f"logger {value.name};".encode())
    elif isinstance(value, Mapping):
        h.update(b"{")
        for k in sorted(value, key=repr):
            _feed(h, k, depth + 1)
            _feed(h, value[k], depth + 1)
        h.update(b"}")
    elif isinstance(value, list | tuple | set | frozenset):
        h.update(b"[")
        for v in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            _feed(h, v, depth + 1)
        h.update(b"]")
    elif isinstance(value, functools.partial):
        _feed(h, [value.func, value.args, value.keywords], depth + 1)
    elif isinstance(value, nn.Module):
        _feed(h, [repr(value), dict(value.state_dict()), {type(m) for m in value.modules()}], depth + 1)
    elif inspect.ismodule(value) or inspect.isbuiltin(value):
        h.update(_name(value))
    elif inspect.ismethod(value):
        _feed(h, [value.__func__, value.__self__], depth + 1)
    elif inspect.isfunction(value) and _installed(value.__module__):
        h.update(_name(value))
    elif inspect.isclass(value) or inspect.isfunction(value):
        h.refer(value)
    elif hasattr(value, "__dict__"):
        _feed(h, [type(value), vars(value)], depth + 1)
    else:
        raise Undigestable(f"a {type(value).__name__}")


def _feed_function(h: _Walk, function: Any) -> None:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise Undigestable(f"the source of {function!r} is not at hand") from None
    h.update(source.encode())
    _feed_references(h, function)


def _feed_references(h: _Walk, function: Any, *, strict: bool = True) -> None:
    """Defaults, globals and closure; unless `strict`, what has no identity stands by its type."""
    found = {"": [function.__defaults__, function.__kwdefaults__], **_refers_to(function)}
    for name, value in sorted(found.items()):
        h.update(name.encode())
        try:
            _feed(h, value, 0)
        except Undigestable:
            if strict:
                raise
            h.update(_name(type(value)))


def _refers_to(function: Any) -> dict[str, Any]:
    """Globals and closure variables that a function and its inner ones use, and numbers and functions of modules."""
    codes = list(_codes(function.__code__))
    names = {name for code in codes for name in code.co_names}
    loaded = {i.argval for code in codes for i in dis.get_instructions(code) if i.opname in _LOADS}
    found = {name: function.__globals__[name] for name in loaded if name in function.__globals__}
    for module in [v for v in found.values() if inspect.ismodule(v)]:
        members = {f"{module.__name__}.{name}": vars(module).get(name) for name in names}
        found |= {k: v for k, v in members.items() if isinstance(v, str | bytes | int | float) or inspect.isfunction(v)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            found[name] = None
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """That of a function and of its inner ones."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _name(value: Any) -> bytes:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)};".encode()


def _feed_class(h: _Walk, kind: Any) -> None:
    """Name of a class, and its methods and bases with what they refer to, unless they are of an installed package."""
    h.update(_name(kind))
    for one in inspect.getmro(kind):
        own = one.__module__.partition(".")[0] == "safexplain"
        for name, member in sorted(vars(one).items()) if not _installed(one.__module__) else ():
            for inner in ("fget", "func", "__func__"):  # of a property, a cached one, a class method
                member = getattr(member, inner, member)
            if inspect.isfunction(member):
                h.update(f"{name}{_code(member.__code__)}".encode())
                if name != "__repr__" and not own and not _installed(member.__module__):
                    _feed_references(h, member, strict=not issubclass(kind, nn.Module))
        h.update(_constants(one))


@functools.cache
def _constants(kind: type) -> bytes:
    """Numbers and texts of a class as they were first seen: a class may count its own calls."""
    if _installed(kind.__module__):
        return b""
    found = {k: v for k, v in vars(kind).items() if isinstance(v, str | bytes | int | float) and not k.startswith("__")}
    return repr(sorted(found.items())).encode()


def _code(code: CodeType) -> str:
    """What a function does, without where it stands."""
    consts = [
        _code(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return f"{code.co_code!r}{code.co_names}{code.co_varnames}{consts}"


def _installed(module: str | None) -> bool:
    """Whether a module comes with Python or from site-packages: its name and version stand for its code."""
    root = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file
