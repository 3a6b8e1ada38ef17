"""What leaves an Alibi explanation: a row of fields for each native class, and the new explanation built from them.

Nothing is copied that no row names, neither fields nor metadata nor attributes, and nothing released refers to a native
object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.libraries import defined_in

__all__ = ["META", "PARAMS", "REFUSED", "ROWS", "Leave", "Rules", "kind_of", "maps_of", "query_tensors", "release"]


class Leave(Enum):
    """How a field leaves."""

    AS_IS = "as it is"
    """Copied: a rule, names, or what is computed from the query alone."""
    FRACTION = "fraction"
    """Numbers in [0, 1], hardened together as one vector and kept in [0, 1]."""
    HARDENED = "hardened"
    """A list of arrays (batch, ...), one for each output, each hardened by itself."""


@dataclass(frozen=True)
class Rules:
    """What leaves an explanation of one native class.

    Args:
        fields: name of a field of `Explanation.data` -> how it leaves.
        inputs: arguments of `explain` that are what is explained.
        anchors: an anchor explainer, asked about one example; the others are asked about one in each row.
        alone: one call at a time in a process, because calls share an object that cannot be copied.
    """

    fields: Mapping[str, Leave]
    inputs: tuple[str, ...] = ("X",)
    anchors: bool = False
    alone: bool = False


META = ("name", "type", "explanations", "version", "task")
"""Keys of `Explanation.meta` that leave, beside `params`."""

PARAMS = frozenset(
    {"threshold", "delta", "tau", "batch_size", "coverage_samples", "beam_size", "stop_on_first", "max_anchor_size"}
    | {"min_samples_start", "n_covered_ex", "binary_cache_size", "cache_margin", "verbose", "verbose_every"}
    | {"disc_perc", "p_sample", "image_shape", "segmentation_fn", "segmentation_kwargs", "custom_segmentation"}
    | {"sample_proba", "top_n", "temperature", "use_proba", "filling", "frac_mask_templates", "batch_size_lm"}
    | {"sample_punctuation", "summarise_background", "summarise_result", "link", "group_names", "grouped", "groups"}
    | {"transpose", "model_output", "approximate", "interactions", "explain_loss", "algorithm"}
)
"""Names in `Explanation.meta["params"]` that leave, if their values are plain numbers, text or containers of such."""

_ANCHOR = {"anchor": Leave.AS_IS, "precision": Leave.FRACTION, "coverage": Leave.FRACTION}
_SHAP = {"shap_values": Leave.HARDENED, "feature_names": Leave.AS_IS, "categorical_names": Leave.AS_IS}

ROWS: Mapping[str, Rules] = MappingProxyType(
    {
        "AnchorTabular": Rules(_ANCHOR, anchors=True),
        "AnchorImage": Rules({**_ANCHOR, "segments": Leave.AS_IS}, inputs=("image",), anchors=True),
        "AnchorText": Rules(_ANCHOR, inputs=("text",), anchors=True, alone=True),
        "KernelShap": Rules(_SHAP),
        "TreeShap": Rules(_SHAP, inputs=("X", "y")),
    }
)
"""Every Alibi explainer that can be hardened, by the name of its class."""

_GLOBAL = ("ALE", "PartialDependence", "TreePartialDependence", "PartialDependenceVariance", "PermutationImportance")
_PLOTS = ("plot_ale", "plot_pd", "plot_pd_variance", "plot_permutation_importance")

REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (*_GLOBAL, *_PLOTS),
        "it describes the model over a whole data set, not one decision, and no audit says what that tells about the"
        " rows of the data set",
    )
)
"""Alibi's explainers of whole data sets, and their plots -> why they are not hardened."""


def kind_of(native: Any) -> str:
    """The name of the row that an Alibi explainer, or an instance of a subclass of one, falls under.

    Raises:
        ConfigurationTypeError: not an explainer of alibi.
        RefusedError: it falls under none.
    """
    if not defined_in(type(native), "alibi"):
        raise ConfigurationTypeError(f"expected an alibi explainer, got {type(native).__name__}")
    names = [kind.__name__ for kind in type(native).__mro__ if kind.__module__.partition(".")[0] == "alibi"]
    if "DistributedAnchorTabular" not in names:  # an AnchorTabular with its rows and random numbers in Ray workers
        for name in names:
            if name in ROWS:
                return name
    why = next(
        (REFUSED[name] for name in names if name in REFUSED),
        "no rule says which of its fields may leave. What returns training rows, or instances made from them, has none,"
        " because no noise on numbers hides a row: use HardenedProtoDash over a set of public examples",
    )
    raise RefusedError(f"{type(native).__name__} is refused: {why}. There are rules for {', '.join(ROWS)}")


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


def maps_of(native: Any, rules: Rules) -> dict[str, list[Tensor]]:
    """The native numbers of the fields that are hardened, floating point, (batch, ...) for each output.

    Raises:
        RefusedError: a field holds something else than numbers.
    """
    found: dict[str, list[Tensor]] = {}
    for name in (name for name, leave in rules.fields.items() if leave is Leave.HARDENED and name in native.data):
        arrays = [np.asarray(value) for value in native.data[name]]
        if any(array.dtype.kind not in "biuf" for array in arrays):
            raise RefusedError(f"expected numbers in {name}, got arrays of {', '.join(str(a.dtype) for a in arrays)}")
        floats = [np.array(a, dtype=np.float32 if a.dtype == np.float32 else np.float64, ndmin=2) for a in arrays]
        found[name] = [torch.from_numpy(array) for array in floats]
    return found


def release(native: Any, rules: Rules, harden: Callable[[Tensor, str, int | None], Tensor] | None) -> Any:
    """A new `alibi.api.interfaces.Explanation` with what may leave the native one.

    Args:
        native: the native explanation.
        rules: of the explainer's class.
        harden: hardens numbers (batch, ...) of a field and an output; None to release the native ones.

    Raises:
        RefusedError: a field holds something else than its rule expects.
    """
    listed = {name: leave for name, leave in rules.fields.items() if name in native.data}
    if harden is None:
        data = {name: _plain(native.data[name]) for name in listed}
    else:
        maps = maps_of(native, rules)
        fractions = {name: native.data[name] for name, leave in listed.items() if leave is Leave.FRACTION}
        hardened = _fractions(fractions, harden) | {
            name: [
                harden(tensor, name, output).numpy().reshape(np.shape(value)).copy()
                for output, (tensor, value) in enumerate(zip(maps[name], native.data[name], strict=True))
            ]
            for name in maps
        }
        data = {name: hardened[name] if name in hardened else _plain(native.data[name]) for name in listed}
    meta = {key: _plain(native.meta[key], arrays=False) for key in META if key in native.meta}
    meta["params"] = {}
    for name, value in native.meta.get("params", {}).items():
        with suppress(RefusedError):
            if name in PARAMS:
                meta["params"][name] = _plain(value, arrays=False)
    return import_module("alibi.api.interfaces").Explanation(meta=meta, data=data)


def _fractions(values: Mapping[str, Any], harden: Callable[[Tensor, str, int | None], Tensor]) -> dict[str, Any]:
    """Numbers in [0, 1] as one vector, hardened and kept in [0, 1], in the native types."""
    if not values:
        return {}
    numbers = [float(np.asarray(value, np.float64).reshape(-1)[0]) for value in values.values()]
    out = harden(torch.tensor([numbers], dtype=torch.float64), ",".join(values), None).clamp(0.0, 1.0)[0].tolist()
    return {name: _like(value, number) for (name, value), number in zip(values.items(), out, strict=True)}


def _like(native: Any, number: float) -> Any:
    if isinstance(native, np.ndarray):
        return np.full(native.shape, number)
    return type(native)(number) if isinstance(native, np.floating) else number


_STORED = frozenset("biufU")
"""NumPy's kinds of arrays that hold their elements themselves; an array of objects could hold anything."""


def _plain(value: Any, *, arrays: bool = True) -> Any:
    """A copy of plain values that shares nothing with them.

    Raises:
        RefusedError: the value is, or holds, something else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in _STORED:
        return value.copy()
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(_plain(item, arrays=arrays) for item in value)
    if isinstance(value, dict):
        return {_plain(key, arrays=False): _plain(item, arrays=arrays) for key, item in value.items()}
    if arrays and isinstance(value, np.ndarray) and value.dtype.kind in _STORED:
        return np.array(value, copy=True, subok=False)
    raise RefusedError(f"expected numbers, strings or containers of such, got {type(value).__name__}")
