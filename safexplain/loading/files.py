"""What loaders share: errors in one sentence, imports of libraries and of functions of the user, seeds, prefixes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from safexplain.errors import InputError, MissingExtraError, needs_extra


def read_bytes(path: str | Path, what: str) -> bytes:
    """Content of a file, read once so that the hashed bytes are the loaded ones. InputError: unreadable or empty; the
    message calls it `what`."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"the {what} file {path} cannot be read: {error.strerror or error}; check the path") from None
    if not raw:
        raise InputError(f"the {what} file {path} is empty (0 bytes); save it again")
    return raw


def is_safetensors(raw: bytes) -> bool:
    """Whether the bytes begin with the length of a JSON header, and the header."""
    return raw[8:9] == b"{" and int.from_bytes(raw[:8], "little") <= len(raw) - 8


def one_line(error: BaseException | str, limit: int = 200) -> str:
    """The first line of an error message, shortened."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def as_input_error(what: str, remedy: str = "") -> Iterator[None]:
    """Turn any error of third-party code into a one-line InputError: what failed, the error, what to do."""
    try:
        yield
    except (InputError, MissingExtraError):
        raise
    except Exception as error:
        raise InputError(f"{what}: {type(error).__name__}: {one_line(error)}{remedy}") from None


@contextmanager
def without_logs(level: int = logging.CRITICAL) -> Iterator[None]:
    """Suppress log lines up to a level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def require(module: str, extra: str) -> Any:
    """Import a module that needs an extra of this package; MissingExtraError: it cannot be imported."""
    try:
        with needs_extra(extra):
            return importlib.import_module(module)
    except MissingExtraError:
        raise
    except ImportError as error:  # installed, but incompatible with other versions
        hint = f'install the extra again: pip install "safexplain[{extra}]"'
        raise MissingExtraError(f"{module} cannot be imported: {one_line(error)}; {hint}") from None


def imported(spec: str, what: str, forms: str = "package.module:function") -> Callable[..., Any]:
    """Import a function `package.module:function` as `python -m` does, the current directory first. InputError: there
    is none; the message names the option `what` and its `forms`."""
    module_name, _, name = spec.partition(":")
    if not module_name or not name:
        raise InputError(f"{what}: expected {forms}, got {spec!r}")
    remedy = "; it must be importable from the current directory, as with python -m"
    with as_input_error(f"{what} {spec} cannot be imported", remedy), current_directory_importable():
        function: Any = attrgetter(name)(importlib.import_module(module_name))
        inspect.signature(function)
    return cast(Callable[..., Any], function)


@contextmanager
def current_directory_importable() -> Iterator[None]:
    """Put the current directory first on `sys.path`, and remove it afterwards."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


@contextmanager
def importable_in_workers() -> Iterator[None]:
    """The same, also for processes started meanwhile, through PYTHONPATH."""
    path = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    with patch.dict(os.environ, PYTHONPATH=path), current_directory_importable():
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's CPU generator, and restore its state afterwards. The seed is hashed, so that no reference model
    starts as the audited one may have, at `torch.manual_seed(0)`."""
    digest = hashlib.sha256(b"safexplain fresh weights" + str(seed).encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        yield


_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")


def without_prefix(state: Mapping[str, Tensor], expected: set[str]) -> dict[str, Tensor]:
    """The tensors without known prefixes that all names share and the network lacks."""
    found = dict(state)
    while found and not expected & set(found):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in found)), None)
        if prefix is None:
            break
        found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found
