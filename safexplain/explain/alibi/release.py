"""From a native Alibi explanation to the one that is released: new objects, built from the fields that a row lists.

Nothing is copied that no row of `safexplain.explain.alibi.rules` names, neither fields nor metadata nor attributes, and
nothing released refers to a native object. The numbers are hardened; their noise is a function of the `Query`, what was
asked as tensors and text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.errors import RefusedError
from safexplain.explain.alibi.rules import META, Leave, Rules
from safexplain.hardening.hardening import Hardening

__all__ = ["Query", "maps_of", "query_tensors", "release", "selection"]


@dataclass(frozen=True)
class Query:
    """What the noise of a call is a function of, beside key, configuration and field: inputs (batch, ...), the name of
    the explainer with what is selected of it, and the digest of the explained model."""

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
    """Those of the options that select what is explained, as text; the same numbers of any type give the same.

    >>> selection({"features": [0], "kind": "average", "n_repeats": 5}, ("features", "kind"))
    '{"features": [0], "kind": "average"}'
    >>> selection({"features": (np.int64(0), 1.0)}, ("features",))
    '{"features": [0, 1]}'
    """
    return json.dumps({name: _written(options[name]) for name in names if name in options}, sort_keys=True)


def _written(value: Any) -> Any:
    """Plain JSON, with whole numbers as such."""
    if isinstance(value, Mapping):
        return {str(_written(key)): _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    if value is None or isinstance(value, str):
        return value
    plain = np.asarray(value).tolist()
    if isinstance(plain, list):
        return [_written(item) for item in plain]
    return int(plain) if isinstance(plain, bool | int) or (isinstance(plain, float) and plain.is_integer()) else plain


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


_STORED = frozenset("biufU")
"""NumPy's kinds of arrays that hold their elements themselves; an array of objects could hold anything."""


def release(native: Any, rules: Rules, hardening: Hardening, query: Query, options: Mapping[str, Any]) -> Any:
    """A new `alibi.api.interfaces.Explanation` with what may leave the native one, where `options` are the arguments of
    `explain` by name.

    Raises:
        RefusedError: a field holds something else than its rule expects, or nothing that was asked for leaves.
    """
    data, gridded = dict(native.data), _is_grid_given(options)
    if gridded and rules.on_grid:
        data |= _on_grid(data, rules.on_grid, options)
    listed = {name: leave for name, leave in rules.fields.items() if name in data}
    fractions = [name for name, leave in listed.items() if leave is Leave.FRACTION]
    known = _fractions({name: data[name] for name in fractions}, hardening, query)
    released: dict[str, Any] = {}
    for name, leave in listed.items():
        if leave is Leave.FRACTION:
            released[name] = known[name]
        elif leave is Leave.HARDENED:
            released[name] = _hardened(name, data[name], rules, hardening, query)
        elif leave is Leave.AS_IS or (leave is Leave.GRID and gridded):
            released[name] = _plain(data[name])
        elif leave is not Leave.GRID:
            released[name] = _emptied(data[name]) if leave is Leave.EMPTY else None
    wanted = [name for name, leave in listed.items() if leave in (Leave.HARDENED, Leave.FRACTION)]
    if all(released[name] is None or (isinstance(released[name], list) and not released[name]) for name in wanted):
        raise RefusedError(
            f"nothing that was asked for may leave: {', '.join(wanted) or 'no listed field'} came out empty (of"
            " kind='individual', one curve for each row of X, nothing does; use kind='average')"
        )
    explanation = import_module("alibi.api.interfaces").Explanation
    return explanation(meta=_meta(native.meta, rules), data=released)


def maps_of(native: Any, rules: Rules, batch: int) -> Iterator[Tensor]:
    """The native numbers of fields with a map for each example, (batch, ...) each."""
    for name, leave in rules.fields.items():
        if rules.per_row and leave is Leave.HARDENED and name in native.data:
            for leaf in _leaves(native.data[name], rules.parts):
                yield torch.from_numpy(leaf.reshape(batch, leaf.size // max(batch, 1)))


def _fractions(values: Mapping[str, Any], hardening: Hardening, query: Query) -> dict[str, Any]:
    """Numbers in [0, 1] as one vector, hardened and kept in [0, 1], in the native types."""
    if hardening.is_none or not values:
        return {name: _plain(value) for name, value in values.items()}
    numbers = [float(np.asarray(value, np.float64).reshape(-1)[0]) for value in values.values()]
    vector = torch.tensor([numbers], dtype=torch.float64)
    out = _apply(hardening, (vector,), query, ",".join(values), None)[0].clamp(0.0, 1.0)
    return {name: _like(value, x) for (name, value), x in zip(values.items(), out[0].tolist(), strict=True)}


def _like(native: Any, number: float) -> Any:
    if isinstance(native, np.ndarray):
        return np.full(native.shape, number)
    return type(native)(number) if isinstance(native, np.floating) else number


def _hardened(name: str, value: Any, rules: Rules, hardening: Hardening, query: Query) -> Any:
    """The arrays of a field: each of them where the inputs are rows, together where all inputs are one example."""
    leaves = list(_leaves(value, rules.parts))
    groups = [[leaf] for leaf in leaves] if rules.per_row else [leaves] if leaves else []
    done: list[NDArray[Any]] = []
    for target, group in enumerate(groups):
        rows = [leaf.reshape(query.batch, leaf.size // max(query.batch, 1)) for leaf in group]
        tensors = tuple(torch.from_numpy(row) for row in rows)
        out = _apply(hardening, tensors, query, name, target)
        done += [tensor.numpy().reshape(leaf.shape).copy() for tensor, leaf in zip(out, group, strict=True)]
    return _rebuilt(value, rules.parts, iter(done))


def _apply(
    hardening: Hardening, tensors: tuple[Tensor, ...], query: Query, field: str, target: int | None
) -> tuple[Tensor, ...]:
    return hardening(
        tensors,
        inputs=query.inputs,
        target=target,
        model_digest=query.model_digest,
        method=f"{query.method} {field}",
    )


def _leaves(value: Any, parts: frozenset[str]) -> Iterator[NDArray[Any]]:
    """The numbers in a nested value as floating-point arrays, in a fixed order."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item, parts)
    elif isinstance(value, dict):
        for key in sorted(parts & value.keys()):
            yield from _leaves(value[key], parts)
    elif value is not None:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise RefusedError(f"expected numbers where the native explanation has {type(value).__name__}")
        yield np.array(array, dtype=np.float32 if array.dtype == np.float32 else np.float64, order="C")


def _rebuilt(value: Any, parts: frozenset[str], leaves: Iterator[NDArray[Any]]) -> Any:
    """The same nesting around other numbers."""
    if isinstance(value, list | tuple):
        return [_rebuilt(item, parts, leaves) for item in value]
    if isinstance(value, dict):
        return {key: _rebuilt(value[key], parts, leaves) for key in sorted(parts & value.keys())}
    if value is None:
        return None
    return next(leaves) if isinstance(value, np.ndarray) else _like(value, float(next(leaves)))


def _plain(value: Any, *, arrays: bool = True) -> Any:
    """A copy of plain values that shares nothing with them.

    Raises:
        RefusedError: the value is, or holds, something else.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind) and not isinstance(value, np.generic):
            return kind(value)
    if isinstance(value, np.generic) and value.dtype.kind in _STORED:
        return value.copy()
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(item, arrays=arrays) for item in value)
    if isinstance(value, dict):
        return {_plain(key, arrays=False): _plain(item, arrays=arrays) for key, item in value.items()}
    if arrays and isinstance(value, np.ndarray) and value.dtype.kind in _STORED:
        return np.array(value, copy=True, subok=False)
    raise RefusedError(f"expected numbers, strings or containers of such, got {type(value).__name__}")


def _emptied(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_emptied(item) for item in value]
    return None if value is None else np.empty(0)


def _meta(meta: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    kept = {key: _plain(meta[key], arrays=False) for key in META if key in meta}
    params = {}
    for name, value in meta.get("params", {}).items():
        with suppress(RefusedError):
            if name in rules.params:
                params[name] = _plain(value, arrays=False)
    return {**kept, "params": params}


def _is_grid_given(options: Mapping[str, Any]) -> bool:
    """Whether the caller gave grid points for every feature that is explained."""
    given = options.get("grid_points") or {}
    return bool(given) and all(f in given for entry in _features(options) for f in np.atleast_1d(entry).tolist())


def _features(options: Mapping[str, Any]) -> list[Any]:
    return list(options["features"] or range(np.shape(options["X"])[1]))


def _on_grid(data: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Curves read at the caller's grid points, each curve straight between its own points.

    ALE leaves out grid points where X has no values and adds the least and the greatest value of X: which points a
    curve has would tell which intervals hold a row.
    """
    grids = [np.sort(np.asarray(options["grid_points"][f], np.float64)) for f in _features(options)]
    curves = [
        np.stack([np.interp(grid, points, column) for column in np.asarray(curve).T], axis=1)
        for grid, points, curve in zip(grids, data["feature_values"], data[name], strict=True)
    ]
    return {"feature_values": grids, name: curves}
