"""What a module named after a library has: its explainers, hardened, under its own names, and an error for the rest.

`safexplain.captum`, `alibi`, `aix360`, `lime` and `shap` are such modules, so that the import is all that a user
changes.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import Any

from safexplain.errors import NotHardenedError

__all__ = ["drop_in"]

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
