"""What the hardened AIX360 explainers share: how AIX360 is imported, and the attributes that every one has.

Nothing here imports AIX360 before it is used. Its ProtoDash module imports `xport`, which it needs for one loader of a
public data set only and which does not build on current setuptools; it is imported around that.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

from safexplain.errors import MissingExtraError
from safexplain.hardening.hardening import Hardening, hardening_or_default

__all__ = ["HardenedAIX360", "load", "load_protodash"]

_EXTRA = frozenset({"aix360", "cvxpy", "lime", "osqp", "requests", "skimage", "tqdm"})
_PROTODASH = "aix360.algorithms.protodash"
_importing = threading.RLock()


class HardenedAIX360:
    """A hardened AIX360 explainer: it holds what the native one needs, and is not one itself.

    Attributes:
        hardening: what is done to each explanation.
    """

    hardening: Hardening
    _native: Any
    _entry: ClassVar[str]

    def __init__(self, hardening: Hardening | None, default: Callable[[], Hardening] = Hardening.recommended) -> None:
        self.hardening = hardening_or_default(hardening, default)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hardening={self.hardening!r})"


def load(name: str) -> Any:
    """Import a module of the extra `aix360`.

    Raises:
        MissingExtraError: a distribution of the extra is not installed. Any other failure of the import stays as it is.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise MissingExtraError(
            f'{name} needs {error.name}, which is not installed: pip install "safexplain[aix360]"', name=error.name
        ) from error


def load_protodash() -> Any:
    """`aix360.algorithms.protodash`, with or without xport; raises as `load` does."""
    with _importing, _without_xport():
        return load(_PROTODASH)


@contextmanager
def _without_xport() -> Iterator[None]:
    """Let one `import xport` succeed where there is none; afterwards nothing is left of what it got."""
    if _PROTODASH in sys.modules or "xport" in sys.modules or find_spec("xport") is not None:
        yield
        return
    stand_in = sys.modules["xport"] = ModuleType("xport")
    try:
        yield
    finally:
        if sys.modules.get("xport") is stand_in:
            del sys.modules["xport"]
        for name, module in list(sys.modules.items()):
            if name.startswith(_PROTODASH) and getattr(module, "xport", None) is stand_in:
                del module.xport
