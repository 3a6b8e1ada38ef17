"""What the noise on an explanation is a function of, beside key and configuration: the query, read from a call.

Whatever asks another question has other noise, and whatever only estimates the same answer again has the same.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from captum.attr import (
    Attribution,
    DeepLiftShap,
    GradientShap,
    LayerDeepLiftShap,
    LayerGradientShap,
    NeuronDeepLiftShap,
    NeuronGradientShap,
)
from torch import Tensor, nn

from safexplain._digest import model_digest, modules_of
from safexplain.explain.captum.explainers import Gradient
from safexplain.explain.isolation import explainers_in

__all__ = ["SELECTS", "query_of"]

SELECTS = frozenset(
    {"abs", "nt_type", "neuron_selector", "attribute_to_layer_input", "attribute_to_neuron_input"}
    | {"relu_attributions", "interpolate_mode"}
)
"""Arguments that select what is explained, among few choices: each choice has its own noise. All others
say how well the same thing is estimated, and share the noise, which could be averaged away otherwise."""

_DRAW_BASELINES = (GradientShap, LayerGradientShap, NeuronGradientShap)
_AVERAGE_BASELINES = (DeepLiftShap, LayerDeepLiftShap, NeuronDeepLiftShap)

Tensors = tuple[Tensor, ...]


def query_of(explainer: Attribution, inputs: Tensors, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Hardening.__call__` for a call of a hardened explainer.

    Args:
        explainer: the hardened explainer.
        inputs: of the call, as a tuple.
        options: all arguments of the call by name.
    """
    explainers = (explainer, *explainers_in(vars(explainer)))
    parts = [_method(explainer), *_selected(explainers, options)]
    rows, words = _references(explainers, inputs, options)
    more, others = _arguments(options.get("additional_forward_args"), inputs)
    return {
        "inputs": (*inputs, *rows, *more),
        "target": options.get("target"),
        "model_digest": model_digest(explainer.forward_func),
        "method": " ".join([*parts, *words, *others]),
    }


def _selected(explainers: tuple[Attribution, ...], options: Mapping[str, Any]) -> list[str]:
    selects = SELECTS - {"interpolate_mode"} if explainers[0]._enlarges else SELECTS  # enlarging comes after the noise
    chosen = {name: value for name, value in options.items() if name in selects}
    for explainer in explainers:
        for name, parameter in inspect.signature(type(explainer).attribute).parameters.items():
            if name in selects and parameter.default is not parameter.empty:
                chosen.setdefault(name, parameter.default)
    return [f"{name}={getattr(value, '__qualname__', value)}" for name, value in sorted(chosen.items())]


def _references(
    explainers: tuple[Attribution, ...], inputs: Tensors, options: Mapping[str, Any]
) -> tuple[Tensors, list[str]]:
    """Baselines that are not zero, one row for each example, or in words: another baseline asks another question.

    Under shared noise, a baseline for which the map is known (the input itself) would show the noise. Baselines that
    are drawn from a set only estimate again and stay out.
    """
    drawn = any(isinstance(e, _DRAW_BASELINES) for e in explainers) or options.get("draw_baseline_from_distrib")
    rows: Tensors = ()
    words = []
    for name in ("baselines", "layer_baselines"):
        value = options.get(name)
        given = value if isinstance(value, tuple) else (value,)
        if value is None or drawn or callable(value) or not any(bool(torch.as_tensor(b).any()) for b in given):
            continue
        averaged = any(isinstance(e, _AVERAGE_BASELINES) for e in explainers)
        if averaged or name != "baselines" or len(given) != len(inputs):
            words.append(_digest_of(given))
            continue
        try:
            tensors = [torch.as_tensor(b, dtype=x.dtype, device=x.device) for b, x in zip(given, inputs, strict=True)]
            rows = tuple(t.expand_as(x) for t, x in zip(tensors, inputs, strict=True))
        except RuntimeError:  # a shape that the method will refuse
            words.append(_digest_of(given))
    return rows, words


def _arguments(extra: Any, inputs: Tensors) -> tuple[Tensors, list[str]]:
    """Additional forward arguments: rows where there is one for each example, else words."""
    rows: Tensors = ()
    words = []
    for value in extra if isinstance(extra, tuple) else (extra,):
        if isinstance(value, Tensor) and value.shape[:1] == inputs[0].shape[:1]:
            rows = (*rows, value)
        elif isinstance(value, Tensor):
            words.append(_digest_of((value,)))
        elif isinstance(value, bool | int | float | str):
            words.append(repr(value))
    return rows, words


def _digest_of(values: tuple[Any, ...]) -> str:
    digest = hashlib.blake2b()
    for value in values:
        digest.update(torch.as_tensor(value).detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()


def _method(explainer: Attribution) -> str:
    """Name of the method, those inside it and its layer; a native and a hardened explainer have the same."""
    native = _native(explainer)
    name = "Saliency" if native is Gradient else native.__name__
    inner = [_method(value) for value in vars(explainer).values() if isinstance(value, Attribution)]
    layers = getattr(explainer, "layer", None)
    for layer in layers if isinstance(layers, list) else [layers]:
        if isinstance(layer, nn.Module):
            for i, module in enumerate(modules_of(explainer.forward_func)):
                inner += [f"{i or ''}{path}" for path, part in module.named_modules() if part is layer]
    local = "" if explainer.multiplies_by_inputs else " local"
    return f"{name}({', '.join(inner)}){local}"


def _native(explainer: Attribution) -> Any:
    return getattr(explainer, "_native", type(explainer))
