"""What is asked of an Alibi explainer, as the tensors and text that keyed noise is a function of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Query", "query_tensors", "selection"]


@dataclass(frozen=True)
class Query:
    """What the noise of a call is a function of, beside key, configuration and field.

    Args:
        inputs: tensors of shape (batch, ...).
        method: name of the explainer and what is selected of it.
        model_digest: of the explained model, see `safexplain._digest`.
    """

    inputs: tuple[Tensor, ...]
    method: str
    model_digest: bytes

    @property
    def batch(self) -> int:
        """Number of examples."""
        return int(self.inputs[0].shape[0])


def query_tensors(values: Iterable[Any], *, per_row: bool) -> tuple[Tensor, ...]:
    """What is explained as tensors of shape (batch, ...): numbers as they are, text as its UTF-8 bytes.

    Args:
        values: arrays, data frames, sparse matrices or text; None is left out.
        per_row: the first of them holds one example a row, if it has two dimensions; otherwise all are one example.

    >>> [tuple(t.shape) for t in query_tensors([np.ones((3, 4)), None, np.ones(3)], per_row=True)]
    [(3, 4), (3,)]
    >>> query_tensors(["no"], per_row=False)
    (tensor([[110, 111]], dtype=torch.uint8),)
    """
    arrays = [_numbers(value) for value in values if value is not None]
    rows = per_row and arrays[0].ndim > 1
    return tuple(torch.from_numpy(array if rows else array[None]) for array in arrays)


def selection(options: Mapping[str, Any], names: Iterable[str]) -> str:
    """Those of the options that select what is explained, as text.

    >>> selection({"features": [0], "kind": "average", "n_repeats": 5}, ("features", "kind"))
    '{"features": [0], "kind": "average"}'
    """
    chosen = {name: options[name] for name in names if name in options}
    chosen = {
        name: {str(key): item for key, item in value.items()} if isinstance(value, dict) else value
        for name, value in chosen.items()
    }
    return json.dumps(chosen, sort_keys=True, default=lambda value: np.asarray(value).tolist())


def _numbers(value: Any) -> NDArray[Any]:
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8).copy()
    array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            return _numbers(repr(array.tolist()))
    return np.array(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64)
