"""The released fields of Alibi explanations, listed for each native class, and the new explanation built from them.

No other fields, metadata or attributes are copied, and nothing released refers to a native object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.libraries import defined_in

META = ("name", "type", "explanations", "version", "task")
"""Released keys of `Explanation.meta`, beside `params`."""

PARAMS = frozenset(
    {"threshold", "delta", "tau", "batch_size", "coverage_samples", "beam_size", "stop_on_first", "max_anchor_size"}
    | {"min_samples_start", "n_covered_ex", "binary_cache_size", "cache_margin", "verbose", "verbose_every"}
    | {"disc_perc", "p_sample", "image_shape", "segmentation_fn", "segmentation_kwargs", "custom_segmentation"}
    | {"sample_proba", "top_n", "temperature", "use_proba", "filling", "frac_mask_templates", "batch_size_lm"}
    | {"sample_punctuation", "summarise_background", "link", "group_names", "grouped", "groups", "model_output"}
    | {"algorithm"}
)
"""Released names of `Explanation.meta["params"]`, if their values are numbers, text or containers of these."""

FRACTIONS = ("precision", "coverage")
"""Fields of anchors that are hardened together as one vector in [0, 1]."""

_ANCHOR, _SHAP = ("anchor", *FRACTIONS), ("shap_values", "feature_names", "categorical_names")

ROWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AnchorTabular": _ANCHOR,
        "AnchorImage": (*_ANCHOR, "segments"),
        "AnchorText": _ANCHOR,
        "KernelShap": _SHAP,
        "TreeShap": _SHAP,
    }
)
"""Class name of an Alibi explainer that can be hardened -> released fields of `Explanation.data`. They are copied (a
rule, names, functions of the query alone), except for `FRACTIONS` and for Shapley values, which are hardened."""

_GLOBAL = ("ALE", "PartialDependence", "TreePartialDependence", "PartialDependenceVariance", "PermutationImportance")
_PLOTS = ("plot_ale", "plot_pd", "plot_pd_variance", "plot_permutation_importance")

REFUSED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        (*_GLOBAL, *_PLOTS),
        "it describes the model over a data set, not one decision, and no audit measures what that reveals about the"
        " rows of the data set",
    )
)
"""Alibi's explainers of whole data sets, and their plots -> why they are not hardened."""


def kind_of(native: Any) -> str:
    """The name of an Alibi explainer's class, or of the base class, in `ROWS`; RefusedError: no such class."""
    if not defined_in(type(native), "alibi"):
        raise ConfigurationTypeError(f"expected an alibi explainer, got {type(native).__name__}")
    names = [kind.__name__ for kind in type(native).__mro__ if kind.__module__.partition(".")[0] == "alibi"]
    known = next((name for name in names if name in ROWS), None)
    if known and "DistributedAnchorTabular" not in names:  # which keeps rows and random numbers in Ray workers
        return known
    why = next(
        (REFUSED[name] for name in names if name in REFUSED),
        "no rule lists the fields that may be released. Explainers that return training rows, or instances made from"
        " them, have none, because noise on numbers does not hide a row: use HardenedProtoDash over public examples",
    )
    raise RefusedError(f"{type(native).__name__} is refused: {why}. Use one of {', '.join(ROWS)}")


def query_tensor(value: Any) -> Tensor:
    """The instance as a tensor (1, ...): numbers as they are, text as its UTF-8 bytes.

    >>> query_tensor("no")
    tensor([[110, 111]], dtype=torch.uint8)
    """
    if isinstance(value, str):
        return torch.tensor([list(value.encode())], dtype=torch.uint8)
    array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            return query_tensor(repr(array.tolist()))
    return torch.from_numpy(array[None].astype(np.float64 if array.dtype.kind == "f" else np.int64))


def release(native: Any, fields: Iterable[str], harden: Callable[[Tensor], Tensor] | None = None) -> Any:
    """A new `alibi.api.interfaces.Explanation` with these fields of the native one; RefusedError: one holds something
    else than plain values. `harden` hardens the `FRACTIONS` (1, 2) among them; None releases them as they are."""
    given = {name: native.data[name] for name in fields if name in native.data}
    if harden is not None:
        numbers = [float(np.ravel(given[name])[0]) for name in FRACTIONS]
        hardened = harden(torch.tensor([numbers], dtype=torch.float64)).clamp(0.0, 1.0)[0].tolist()
        for name, number in zip(FRACTIONS, hardened, strict=True):  # in the native types
            given[name] = np.full(np.shape(given[name]), number)[()] if isinstance(given[name], _NUMPYS) else number
    meta = {key: _plain(native.meta[key], arrays=False) for key in META if key in native.meta}
    meta["params"] = {}
    for name, value in native.meta.get("params", {}).items():
        with suppress(RefusedError):
            if name in PARAMS:
                meta["params"][name] = _plain(value, arrays=False)
    data = {name: _plain(value) for name, value in given.items()}
    return import_module("alibi.api.interfaces").Explanation(meta=meta, data=data)


_NUMPYS = (np.ndarray, np.generic)

_STORED = frozenset("biufU")
"""Kinds of NumPy arrays without references; an array of objects could hold anything."""


def _plain(value: Any, *, arrays: bool = True) -> Any:
    """A deep copy of plain values; RefusedError for other values."""
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
    raise RefusedError(f"expected numbers, strings or containers of these, got {type(value).__name__}")
