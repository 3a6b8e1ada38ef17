"""Importing alibi, AIX360, lime and shap when they are needed, and keeping the calls of alibi apart from each other.

AIX360's ProtoDash module imports `xport` and alibi imports ray, both for things that nobody asks for here; where they
are missing, the libraries are imported around them.

Alibi's explainers keep state in attributes while they run, and draw from NumPy's global generator. So each call gets a
copy of the explainer's own objects (arrays, predictors and pipelines stay shared: nothing writes to them), and
`np.random` in the modules of alibi is the generator of the hardened call that runs, if one runs: NumPy's own is neither
read nor moved.
"""

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
from types import FrameType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import NotHardenedError, needs_extra
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import query_seeds, resolve_key

ONE_AT_A_TIME = threading.RLock()
"""Held by calls that share an object which cannot be copied, as spaCy pipelines."""

_generator: ContextVar[np.random.RandomState | None] = ContextVar("safexplain_alibi_generator", default=None)


class _Numpy(ModuleType):
    """NumPy for the modules of alibi: all as ever, but `random` is the running call's generator."""

    @property
    def random(self) -> Any:
        generator = _generator.get()
        return np.random if generator is None else generator


_numpy = _Numpy("numpy")
_numpy.__dict__.update({name: value for name, value in vars(np).items() if name != "random"})


def _give_own_generators() -> None:
    """Let every loaded module of alibi, and shap's kernel method, draw from the running call's generator; again does no
    harm."""
    for name, module in list(sys.modules.items()):
        ours = name.partition(".")[0] == "alibi" or name == "shap.explainers._kernel"
        if ours and getattr(module, "np", None) is np:
            module.np = _numpy  # type: ignore[attr-defined]
        if name == "alibi.explainers.anchors.anchor_tabular":  # which prints in which bins an instance lies
            vars(module)["print"] = lambda *args, **kwargs: print(*args, **kwargs) if _generator.get() is None else None


@contextmanager
def draw_from(generator: np.random.RandomState | None) -> Iterator[None]:
    """Within, this thread's calls of alibi draw from `generator`; None: from NumPy's global one, as natively."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def seeded_generators(
    hardening: Hardening, inputs: tuple[Tensor, ...], model_digest: bytes, method: str
) -> list[np.random.RandomState]:
    """A generator for each example of `inputs`: a function of the noise key (of none, where there is no noise), the
    model, the method, the configuration and the example."""
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
    """Torch's global generators, those of the tensors' devices too, and NumPy's, as they are or from a seed of 32
    bytes; afterwards they are as before."""
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
    """A copy of an explainer in which alibi's own objects and plain containers are new, and all else is shared."""
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
    """Whether a class, or one that it derives from, is of one of these libraries; imports none of them."""
    return any((base.__module__ or "").partition(".")[0] in libraries for base in kind.__mro__)


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


_NOT_NEEDED = {"alibi": "ray", "aix360": "xport"}
"""Library -> what it imports and only needs for things that nobody asks it for here."""

_PARTS = {"alibi": "alibi.explainers", "shap": "shap.explainers._tree"}
"""Library -> a module of it that is imported with it."""

_LAST_APACHE = (0, 9, 4)
_importing = threading.RLock()


class AlibiLicenceWarning(UserWarning):
    """The installed alibi is under the Business Source Licence 1.1, which is no open-source licence."""


@cache
def load(name: str) -> Any:
    """Import a module of alibi, aix360, lime or shap; what of it draws random numbers draws the running call's.

    Raises:
        MissingExtraError: it, or something that it needs, is not installed. Any other failure stays as it is.

    Warns:
        AlibiLicenceWarning: once a process, for releases of alibi after 0.9.4.
    """
    library = name.partition(".")[0]
    with (
        _importing,
        needs_extra("aix360" if library == "lime" else library),
        _without(_NOT_NEEDED.get(library), library),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)
        module, last = import_module(name), import_module(_PARTS.get(name, name))
    _give_own_generators()
    if name == "alibi" and tuple(map(int, re.findall(r"\d+", module.__version__)[:3])) > _LAST_APACHE:
        warnings.warn(
            f"alibi {module.__version__} is under the Business Source Licence 1.1: production use needs a licence from"
            " Seldon, except by non-profit educational institutions. 0.9.4 is the last release under the Apache"
            " Licence 2.0.",
            AlibiLicenceWarning,
            stacklevel=2,
        )
    if (decode := getattr(last, "decode_ubjson_buffer", None)) is not None:
        vars(last)["decode_ubjson_buffer"] = lambda file: _with_one_base_score(decode(file))
    return module


@contextmanager
def _without(name: str | None, library: str) -> Iterator[None]:
    """Let `import name` succeed within a library where there is none; afterwards nothing is left of what it got."""
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
    """XGBoost's own format with a base score that shap 0.49 can read.

    XGBoost 3.1 and later write a list of them, "[5E-1]", of which shap 0.50 and later take the first. It moves the base
    value, which does not leave, and no Shapley value.
    """
    parameters = model.get("learner", {}).get("learner_model_param", {})
    if isinstance(score := parameters.get("base_score"), str) and score.startswith("["):
        parameters["base_score"] = score.strip("[]").partition(",")[0]
    return model


_NONE: Mapping[str, str] = MappingProxyType({})


def drop_in(
    module: str,
    classes: Mapping[str, Any],
    others: Callable[[str], Any] | None = None,
    refused: Mapping[str, str] = _NONE,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module named after a library.

    For a name that is not there, the first raises AttributeError, which says that it is not hardened and what is.
    Python replaces such an error in `from safexplain.alibi import CEM` by one that says nothing, so that there it is
    `NotHardenedError`, which is an ImportError. `classes` are by the library's names, `others` gives what stands there
    beside explainers, or None, and `refused` says why an explainer cannot be hardened.
    """

    def find(name: str) -> Any:
        if name in classes:
            return classes[name]
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        if others is not None and (found := others(name)) is not None:
            return found
        why = f": {refused[name]}" if name in refused else ""
        message = f"{module}.{name} is not hardened{why}. Hardened are {', '.join(sorted(classes))}"
        if _imports_from(sys._getframe(1)):
            raise NotHardenedError(message, name=name)
        raise AttributeError(message, name=name)

    return find, lambda: list(sys.modules[module].__all__)


def _imports_from(frame: FrameType) -> bool:
    """Whether a frame is at the import of a name from a module."""
    return frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]
