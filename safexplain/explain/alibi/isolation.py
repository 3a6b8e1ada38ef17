"""What keeps one hardened call of an Alibi explainer apart from all others in the process.

Alibi's explainers keep state in attributes while they run, and draw from NumPy's global generator. So each call gets a
copy of the explainer's own objects (arrays, predictors and pipelines stay shared: nothing writes to them), and, in the
modules of alibi, `np.random` is the generator of the call that runs, if one runs. NumPy's global generator is then
neither read nor moved: other threads can neither change an answer nor be disturbed. Alibi outside hardened calls draws
from the global generator, as ever.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

__all__ = ["ONE_AT_A_TIME", "draw_from", "give_own_generators", "private_copy"]

ONE_AT_A_TIME = threading.RLock()
"""Held by calls that share an object which cannot be copied, as spaCy pipelines."""

_generator: ContextVar[np.random.RandomState | None] = ContextVar("safexplain_alibi_generator", default=None)


class _Numpy(types.ModuleType):
    """NumPy for the modules of alibi: all as ever, but `random` is the running call's generator."""

    @property
    def random(self) -> Any:
        generator = _generator.get()
        return np.random if generator is None else generator


_numpy = _Numpy("numpy")
_numpy.__dict__.update({name: value for name, value in vars(np).items() if name != "random"})


def give_own_generators() -> None:
    """Let every loaded module of alibi draw from the running call's generator; again does no harm."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "alibi" and getattr(module, "np", None) is np:
            module.np = _numpy  # type: ignore[attr-defined]


@contextmanager
def draw_from(generator: np.random.RandomState | None) -> Iterator[None]:
    """Within, this thread's calls of alibi draw from `generator`; None: from NumPy's global one, as natively."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def private_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of an explainer in which alibi's own objects and plain containers are new, and all else is shared."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if type(value) in (list, tuple, set):
        copied = type(value)(private_copy(item, memo) for item in value)
    elif isinstance(value, dict):
        copied = value.copy()  # keeps a default factory
        copied.update((key, private_copy(item, memo)) for key, item in value.items())
    elif _keeps_state(type(value)):
        copied = memo[id(value)] = object.__new__(type(value))
        copied.__dict__.update((name, private_copy(item, memo)) for name, item in vars(value).items() if name != "mab")
    else:
        copied = value
    memo[id(value)] = copied
    return copied


def _keeps_state(kind: type) -> bool:
    ours = any((base.__module__ or "").partition(".")[0] in ("alibi", "shap") for base in kind.__mro__)
    return ours and kind.__dictoffset__ != 0  # it has attributes
