"""Whether two results say the same, whatever they are made of: tensors, arrays, containers, objects with attributes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["difference", "same"]


def same(a: Any, b: Any, atol: float = 0.0) -> bool:
    """Whether two results have the same structure and the same values.

    Args:
        a: tensors, arrays, numbers, text, or containers, dataclasses or other objects of such; cycles are followed
            once.
        b: the other.
        atol: how far numbers may lie apart, in their own units. NaN equals NaN.

    >>> same({"anchor": np.ones(3)}, {"anchor": np.ones(3)}), same((1.0, "a"), [1.0, "a"])
    (True, False)
    """
    return difference(a, b, atol) is None


def difference(a: Any, b: Any, atol: float = 0.0, *, path: str = "result") -> str | None:
    """The first difference of two results as a sentence, or None; arguments as for `same`.

    Args:
        a: the expected one.
        b: what came.
        atol: see `same`.
        path: what the sentence calls them.
    """
    return _difference(a, b, atol, path, set())


def _difference(a: Any, b: Any, atol: float, path: str, seen: set[tuple[int, int]]) -> str | None:
    if type(a) is not type(b):
        return f"{path}: expected {type(a).__name__}, got {type(b).__name__}"
    if a is b or (id(a), id(b)) in seen:
        return None
    if isinstance(a, Tensor | np.ndarray):
        return _arrays(a, b, atol, path)
    if isinstance(a, float | complex | np.number):
        return None if _near(a, b, atol) else f"{path}: expected {a!r}, got {b!r}"
    if a is None or isinstance(a, str | bytes | bytearray | int | np.generic | type | torch.dtype | torch.device):
        return None if a == b else f"{path}: expected {a!r:.80}, got {b!r:.80}"
    seen.add((id(a), id(b)))
    parts, others = _parts(a), _parts(b)
    if parts is None or others is None:
        return None if a == b or _name(a) == _name(b) is not None else f"{path}: expected {a!r:.80}, got {b!r:.80}"
    if parts.keys() != others.keys():
        return f"{path}: expected {_names(parts)}, got {_names(others)}"
    found = (_difference(parts[key], others[key], atol, f"{path}{key}", seen) for key in parts)
    return next((sentence for sentence in found if sentence), None)


def _arrays(a: Any, b: Any, atol: float, path: str) -> str | None:
    for name in ("dtype", "device", "shape"):
        expected, got = getattr(a, name, None), getattr(b, name, None)
        if expected != got:
            shown = f"expected {name} {expected}, got {got}"
            return f"{path}: " + (f"expected shape {(*a.shape,)}, got {(*b.shape,)}" if name == "shape" else shown)
    if isinstance(a, Tensor):
        a, b = (t.detach().cpu().to(torch.float64 if t.is_floating_point() else t.dtype).numpy() for t in (a, b))
    if a.dtype == object:
        found = (_difference(x, y, atol, path, set()) for x, y in zip(a.ravel(), b.ravel(), strict=True))
        return next((sentence for sentence in found if sentence), None)
    if np.array_equal(a, b):
        return None
    if a.dtype.kind not in "fc":
        return f"{path}: {int((a != b).sum())} of {a.size} values differ"
    with np.errstate(invalid="ignore"):  # infinity minus itself
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | (abs(a - b) <= atol))
        if not wrong.any():
            return None
        furthest = np.nan_to_num(abs(a - b), posinf=np.inf).max()
        return f"{path}: {int(wrong.sum())} of {a.size} values differ, by up to {furthest:.3g}"


def _near(a: Any, b: Any, atol: float) -> bool:
    both_nan = isinstance(a, float) and math.isnan(a) and math.isnan(b)
    return both_nan or a == b or bool(abs(a - b) <= atol)


def _parts(value: Any) -> dict[str, Any] | None:
    """What a value is made of, by the way to it; None: it has no parts."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, Sequence):
        return {f"[{i}]": part for i, part in enumerate(value)}
    if isinstance(value, Set):
        return {f" has {part!r}": None for part in value}
    if hasattr(value, "to_numpy") and not isinstance(value, type):  # pandas
        columns = [str(column) for column in getattr(value, "columns", ())]
        return {".columns": columns, ".values": np.asarray(value.to_numpy())}
    if dataclasses.is_dataclass(value):
        return {f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if hasattr(value, "__dict__") and not callable(value):
        return {f".{name}": part for name, part in vars(value).items()}
    return None


def _name(value: Any) -> str | None:
    """Functions that were made anew, as those of a rebuilt object are, are told by their names."""
    return getattr(value, "__qualname__", None) if callable(value) else None


def _names(parts: Mapping[str, Any]) -> str:
    return ", ".join(parts) or "nothing"
