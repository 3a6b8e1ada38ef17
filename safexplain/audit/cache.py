"""Finished reference models on disk, under a key of everything that made them.

Only tensors are stored and only tensors are loaded (`weights_only=True`): a cache directory that somebody else can
write to cannot run code here.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from safexplain.errors import InputError

_TRAINING_CODE = ("cache.py", "recipe.py", "shadows.py", "training.py")


class Undigestable(Exception):
    """A callable depends on something whose identity across runs cannot be told."""


class ModelCache:
    """A directory of state dicts named by digest.

    Args:
        folder: made when missing.

    Raises:
        InputError: the folder cannot be made or written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the cache folder {self.folder}: {error.strerror or error}") from None

    def load(self, key: str, model: nn.Module) -> bool:
        """Fill `model` with the stored weights; False when there are none, or they are damaged or do not fit."""
        try:
            state = torch.load(self._path(key), map_location="cpu", weights_only=True)
            model.load_state_dict(state)
        except Exception:
            return False
        model.eval()
        return True

    def save(self, key: str, model: nn.Module) -> None:
        """Store the weights, all or nothing.

        Raises:
            InputError: the disk is full or not writable; what was stored before stays.
        """
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            torch.save({k: v.detach().cpu() for k, v in model.state_dict().items()}, partial)
            partial.replace(path)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            raise InputError(
                f"cannot store a trained model in {self.folder} ({error}); free some space and resume:"
                " the models stored before are kept"
            ) from None

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.pt"


def code_version() -> str:
    """Digest of the training code and the torch version: a changed one does not reuse old models."""
    h = hashlib.sha256(torch.__version__.encode())
    for name in _TRAINING_CODE:
        h.update(Path(__file__).with_name(name).read_bytes())
    return h.hexdigest()


def digest(*parts: Any) -> str:
    """SHA-256 over nested plain values, arrays, tensors and functions (their source and what they refer to).

    Raises:
        Undigestable: a part has no stable identity.
    """
    h = hashlib.sha256()
    for part in parts:
        _feed(h, part, 0)
    return h.hexdigest()


def _feed(h: Any, value: Any, depth: int) -> None:
    if depth > 6:
        raise Undigestable("too deeply nested")
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise Undigestable("an array of objects")
        h.update(f"array{value.dtype}{value.shape}".encode())
        h.update(np.ascontiguousarray(value))
    elif value is None or isinstance(value, str | bytes | int | float | complex | bool | np.generic):
        h.update(f"{type(value).__name__}{value!r};".encode())
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
        _feed(h, [repr(value), dict(value.state_dict())], depth + 1)
    elif inspect.ismodule(value) or inspect.isclass(value) or inspect.isbuiltin(value):
        h.update(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)};".encode())
    elif inspect.ismethod(value):
        _feed(h, [value.__func__, value.__self__], depth + 1)
    elif inspect.isfunction(value):
        _feed_function(h, value, depth)
    elif hasattr(value, "__dict__"):
        _feed(h, [type(value), vars(value)], depth + 1)
    else:
        raise Undigestable(f"a {type(value).__name__}")


def _feed_function(h: Any, function: Callable[..., Any], depth: int) -> None:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise Undigestable(f"the source of {function!r} is not at hand") from None
    seen = inspect.getclosurevars(function)
    h.update(source.encode())
    _feed(h, [function.__defaults__, function.__kwdefaults__], depth + 1)
    for name, value in sorted({**seen.globals, **seen.nonlocals}.items()):
        h.update(name.encode())
        if value is not function:
            _feed(h, value, depth + 1)
