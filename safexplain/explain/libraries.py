"""Imports of alibi, AIX360, lime and shap on first use, the modules named after libraries, and isolation of alibi's
calls: each has a private copy of the explainer's state, and its own generator."""

from __future__ import annotations

import hashlib
import logging
import opcode
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import NotHardenedError, needs_extra
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key

SHARED_PIPELINE_LOCK = threading.RLock()
"""Held by calls that share what cannot be copied, such as a spaCy pipeline."""

_generator: ContextVar[np.random.RandomState | None] = ContextVar("safexplain_alibi_generator", default=None)


class _Numpy(ModuleType):
    """NumPy, but `random` is the generator of the running call."""

    @property
    def random(self) -> Any:
        generator = _generator.get()
        return np.random if generator is None else generator


_numpy = _Numpy("numpy")
_numpy.__dict__.update({name: value for name, value in vars(np).items() if name != "random"})


def _redirect_generators() -> None:
    """Make every loaded module of alibi, and shap's kernel method, draw from the running call's generator."""
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] == "alibi" or name == "shap.explainers._kernel"
        if ours and getattr(module, "np", None) is np:
            module.np = _numpy  # type: ignore[attr-defined]
        if name == "alibi.explainers.anchors.anchor_tabular":  # it prints the bins of an instance
            vars(module)["print"] = lambda *args, **kwargs: print(*args, **kwargs) if _generator.get() is None else None


@contextmanager
def draw_from(generator: np.random.RandomState | None) -> Iterator[None]:
    """Make this thread's calls draw from `generator`; None: from NumPy's global one, as natively."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def seeded_generators(
    hardening: Hardening, inputs: tuple[Tensor, ...], model_digest: bytes, method: str
) -> list[np.random.RandomState]:
    """One for each example, seeded by the noise key (if there is noise) and the query."""
    noise = hardening.noise
    seeds = query_seeds(
        b"no noise, no key" if noise is None else resolve_key(noise.key),
        inputs=inputs,
        target=None,
        model_digest=b"" if noise is None else model_digest,
        method=f"samples of {method}",
        configuration=hardening.to_json(),
    )
    return [np.random.RandomState(np.frombuffer(hashlib.blake2b(seed).digest(), np.uint32)) for seed in seeds]


@contextmanager
def global_generators(tensors: tuple[Tensor, ...], seed: bytes | None = None) -> Iterator[None]:
    """Seed torch's global generators (also of the tensors' devices) and NumPy's with 32 bytes (None: not at all), and
    restore them afterwards."""
    state = np.random.get_state()  # noqa: NPY002 - what Captum's GradientShap draws from
    try:
        with torch.random.fork_rng(sorted({x.get_device() for x in tensors if x.is_cuda})):
            if seed is not None:
                torch.manual_seed(int.from_bytes(seed[:8], "little", signed=True))
                np.random.seed(np.frombuffer(seed, "<u4"))  # noqa: NPY002
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def private_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A copy of an explainer in which alibi's objects and plain containers are new, and all else is shared."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if type(value) in (list, tuple, set):
        copied = type(value)(private_copy(item, memo) for item in value)
    elif isinstance(value, dict):
        copied = value.copy()  # keeps a default factory
        copied.update((key, private_copy(item, memo)) for key, item in value.items())
    elif defined_in(type(value), "alibi") and type(value).__dictoffset__ != 0:  # it has attributes
        copied = memo[id(value)] = object.__new__(type(value))
        copied.__dict__.update((name, private_copy(item, memo)) for name, item in vars(value).items() if name != "mab")
    else:
        copied = value
    memo[id(value)] = copied
    return copied


def defined_in(kind: type, *libraries: str) -> bool:
    """Whether a class or one of its bases is of one of these libraries; imports none of them."""
    return any((base.__module__ or "").partition(".")[0] in libraries for base in kind.__mro__)


@contextmanager
def quiet_failed_searches() -> Iterator[None]:
    """Do not log this thread's anchors that are not precise enough, as their precision states."""
    log, thread = logging.getLogger("alibi.explainers.anchors.anchor_base"), threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread or not str(record.msg).startswith("Could not find an anchor")

    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


_NOT_NEEDED = {"alibi": "ray", "aix360": "xport"}
"""Library -> a module that it imports for functions that are not used here."""

_PARTS = {"alibi": "alibi.explainers", "shap": "shap.explainers._tree"}
"""Library -> a module of it to import too."""

_LAST_APACHE = (0, 9, 4)
_importing = threading.RLock()


class AlibiLicenceWarning(UserWarning):
    """The installed alibi is under the Business Source Licence 1.1, not an open-source licence."""


@cache
def load(name: str) -> Any:
    """Import a module of alibi, aix360, lime or shap, and make it draw from the running call's generator.

    Raises:
        MissingExtraError: it, or a dependency, is not installed. Other import errors are not changed.

    Warns:
        AlibiLicenceWarning: once a process, for releases of alibi after 0.9.4.
    """
    library = name.partition(".")[0]
    with (
        _importing,
        needs_extra("aix360" if library == "lime" else library),
        _stand_in_for(_NOT_NEEDED.get(library), library),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)
        module, last = import_module(name), import_module(_PARTS.get(name, name))
    _redirect_generators()
    if name == "alibi" and tuple(map(int, re.findall(r"\d+", module.__version__)[:3])) > _LAST_APACHE:
        warnings.warn(
            f"alibi {module.__version__} is under the Business Source Licence 1.1: production use needs a licence from"
            " Seldon, except by non-profit educational institutions. 0.9.4 is the last under the Apache Licence 2.0.",
            AlibiLicenceWarning,
            stacklevel=2,
        )
    if (decode := getattr(last, "decode_ubjson_buffer", None)) is not None:
        vars(last)["decode_ubjson_buffer"] = lambda file: _with_one_base_score(decode(file))
    return module


@contextmanager
def _stand_in_for(name: str | None, library: str) -> Iterator[None]:
    """Let a library import an empty module in place of a missing one."""
    if name is None or name in sys.modules or find_spec(name) is not None:
        yield
        return
    stand_in = sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        for path, module in list(sys.modules.items()):
            if path.startswith(library) and getattr(module, name, None) is stand_in:
                delattr(module, name)


def _with_one_base_score(model: Any) -> Any:
    """XGBoost 3.1 and later write a list, "[5E-1]", which shap 0.49 cannot read."""
    parameters = model.get("learner", {}).get("learner_model_param", {})
    if isinstance(score := parameters.get("base_score"), str) and score.startswith("["):
        parameters["base_score"] = score.strip("[]").partition(",")[0]
    return model


def drop_in(
    module: str,
    classes: Mapping[str, Any],
    others: Callable[[str], Any] = lambda name: None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module named after a library, so that users only change the import.

    The error for a missing name lists the hardened ones; in `from safexplain.alibi import CEM` it is a
    `NotHardenedError`, an ImportError, as Python would hide an AttributeError.

    Args:
        module: its name.
        classes: hardened classes by the library's names.
        others: finds other objects of the library; returns None if there is no such name.
        refused: name -> why an explainer cannot be hardened.
    """

    def find(name: str) -> Any:
        if name in classes:
            return classes[name]
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        if (found := others(name)) is not None:
            return found
        why = f": {refused[name]}" if name in refused else ""
        message = f"{module}.{name} is not hardened{why}. The hardened explainers are {', '.join(sorted(classes))}"
        caller = sys._getframe(1)
        if caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            raise NotHardenedError(message, name=name)
        raise AttributeError(message, name=name)

    return find, lambda: list(sys.modules[module].__all__)
