"""Importing alibi when it is needed, its licence stated once, and keeping its calls apart from each other.

Alibi's explainers keep state in attributes while they run, and draw from NumPy's global generator. So each call gets a
copy of the explainer's own objects (arrays, predictors and pipelines stay shared: nothing writes to them), and, in the
modules of alibi, `np.random` is the generator of the call that runs, if one runs. NumPy's global generator is then
neither read nor moved: other threads can neither change an answer nor be disturbed. Alibi outside hardened calls draws
from the global generator, as ever.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from safexplain.errors import MissingExtraError

__all__ = [
    "ONE_AT_A_TIME",
    "AlibiLicenceWarning",
    "draw_from",
    "give_own_generators",
    "listing_outputs",
    "load_alibi",
    "no_failed_searches",
    "private_copy",
]

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
    """Let every loaded module of alibi, and shap's kernel method, draw from the running call's generator; again does no
    harm."""
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] == "alibi" or name == "shap.explainers._kernel"
        if ours and getattr(module, "np", None) is np:
            module.np = _numpy  # type: ignore[attr-defined]
        if name == "alibi.explainers.anchors.anchor_tabular":
            module.print = _print  # type: ignore[attr-defined]


def _print(*args: Any, **kwargs: Any) -> None:
    """`print` for the module of anchors of tables, which says there in which bins an instance lies."""
    if _generator.get() is None:
        print(*args, **kwargs)


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


def listing_outputs(explainer: Any) -> Any:
    """A private copy of an Alibi explainer whose Shapley values are a list with an array for each output.

    Alibi expects such a list, as shap gave it before 0.45; since then it gives one array, outputs last.
    """
    inner = getattr(explainer, "_explainer", None)
    for name, dimensions in (("get_explanation", 3), ("shap_values", 3), ("shap_interaction_values", 4)):
        if hasattr(inner, name):
            vars(inner)[name] = _listed(getattr(inner, name), dimensions)
    return explainer


def _listed(method: Callable[..., Any], dimensions: int) -> Callable[..., Any]:
    def listed(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        if isinstance(found, np.ndarray) and found.ndim == dimensions:
            return [found[..., j] for j in range(found.shape[-1])]
        return found

    return listed


_LAST_APACHE = (0, 9, 4)
_log = logging.getLogger(__name__)
_importing = threading.RLock()


@contextmanager
def no_failed_searches() -> Iterator[None]:
    """Anchors that are not precise enough are not logged, once for each of thousands of rows of an audit.

    Their precision is a part of the answer. What else Alibi logs, and what other threads and callers log, is left.
    """
    log, thread = logging.getLogger("alibi.explainers.anchors.anchor_base"), threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread or not str(record.msg).startswith("Could not find an anchor")

    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


class AlibiLicenceWarning(UserWarning):
    """The installed alibi is under the Business Source Licence 1.1, which is no open-source licence."""


def load_alibi() -> ModuleType:
    """The module alibi, with `alibi.explainers` imported.

    Raises:
        MissingExtraError: it is not installed, or cannot be imported; the message says which.

    Warns:
        AlibiLicenceWarning: once a process, for releases after 0.9.4.
    """
    with _importing:
        return _loaded()


@cache
def _loaded() -> ModuleType:
    try:
        with warnings.catch_warnings(), _without_ray():
            warnings.simplefilter("ignore", DeprecationWarning)
            alibi = import_module("alibi")
            import_module("alibi.explainers")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "alibi":
            raise MissingExtraError(
                'Alibi\'s explainers need alibi, which is not installed: pip install "safexplain[alibi]"', name="alibi"
            ) from None
        raise MissingExtraError(
            f"alibi is installed, but importing it fails: {type(error).__name__}: {error}. The extra safexplain[alibi]"
            " brings what it needs",
            name=getattr(error, "name", None),
        ) from error
    give_own_generators()
    _state_licence(str(alibi.__version__))
    return alibi


@contextmanager
def _without_ray() -> Iterator[None]:
    """Let `import ray` succeed where there is none.

    Beside shap, alibi 0.9.4 does not import without it, and uses it only for explainers spread over processes.
    """
    if "ray" in sys.modules or find_spec("ray") is not None:
        yield
        return
    sys.modules["ray"] = types.ModuleType("ray")
    try:
        yield
    finally:
        del sys.modules["ray"]


def _state_licence(version: str) -> None:
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) <= _LAST_APACHE:
        _log.info("alibi %s is under the Apache Licence 2.0", version)
        return
    warnings.warn(
        f"alibi {version} is under the Business Source Licence 1.1: production use needs a licence from Seldon, except"
        " by non-profit educational institutions. 0.9.4 is the last release under the Apache Licence 2.0.",
        AlibiLicenceWarning,
        stacklevel=2,
    )
