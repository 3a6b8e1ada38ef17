"""What the operator is told of native Captum maps: see `safexplain.native_maps`; and whether values add up.

The values of integrated gradients, DeepLift, GradientShap and Shapley values sum to f(x) - f(baseline) ("completeness",
arXiv 1703.01365, section 3; "efficiency" of Shapley values). Where they do not, the explainer is not the method that it
is called, or the model's gradients are not those of its outputs (rounding, a `detach`). It is looked at in the first
calls of a model. The answer stays as it is.

Right methods miss the sum, too: by too few steps of the integral, or by chance. On a ResNet-20, IG with 10 steps is off
by half of the difference, GradientShap with 5 samples by .8 of it. So sums that are off by more than a quarter are
looked at again: with more steps, or, where a method draws at random, by how much its own sums vary.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from captum._utils.common import _run_forward
from captum.attr import (
    Attribution,
    DeepLift,
    DeepLiftShap,
    GradientShap,
    IntegratedGradients,
    LayerDeepLift,
    LayerDeepLiftShap,
    LayerGradientShap,
    LayerIntegratedGradients,
    ShapleyValues,
    ShapleyValueSampling,
)
from captum.attr._utils.common import _format_callable_baseline
from torch import Tensor

from safexplain.explain.libraries import global_generators
from safexplain.native_maps import watch

__all__ = ["look_at"]

_INTEGRALS = (IntegratedGradients, LayerIntegratedGradients)
_RANDOM = (GradientShap, LayerGradientShap)
_OVER_BASELINES = (*_RANDOM, DeepLiftShap, LayerDeepLiftShap)
_SHAPLEY = (ShapleyValues, ShapleyValueSampling)
_COMPLETE = (*_INTEGRALS, *_OVER_BASELINES, *_SHAPLEY, DeepLift, LayerDeepLift)

_OFF = 0.25
"""Of the differences: sums that are off by more are looked at again."""

_STEPS, _MORE = 50, 10
"""Steps of the second look at an integral, at least, and times the steps of the first."""

_ROWS, _DRAWS = 4, 32
"""Examples of the second look at an integral; maps of that at a random method."""

_BY_CHANCE = 5.0
"""Standard errors by which the sums of a random method are off by chance."""

_MOST_BASELINES = 32
"""Of a set of baselines; of a larger one the mean output is not computed."""

_OF_EXAMPLES = ("inputs", "target", "baselines", "feature_mask")
"""Arguments with something for each example."""

_logger = logging.getLogger(__name__)


def look_at(explainer: Attribution, original: object, method: str, native: Any, options: Mapping[str, Any]) -> None:
    """Look at what an explainer, which may be asked again, returned of a copy of the original model: one tensor, or
    several, (batch, ...); never raises."""
    inputs, told = _tensors(options["inputs"]), watch()
    if not all(isinstance(t, Tensor) for t in (*_tensors(native), *inputs)):
        return
    told.add(
        original,
        method,
        _tensors(native),
        inputs=inputs,
        baselines=options.get("baselines"),
        outputs=lambda: _explained(explainer, inputs, options),
        grouped=options.get("feature_mask") is not None,
        squared=options.get("nt_type") in ("vargrad", "smoothgrad_sq"),
    )
    if not isinstance(explainer, _COMPLETE) or not getattr(explainer, "multiplies_by_inputs", True):
        return
    if options.get("additional_forward_args") is not None or not told.to_be_summed(original, method):
        return
    try:
        with global_generators(inputs):
            expected, error = _differences(explainer, options)
            off = _off(native, options, expected, error)
            if math.isfinite(off):
                adds_up = off <= _OFF or _adds_up_after_all(explainer, options, expected, off, error)
                told.summed(original, method, adds_up, len(expected))
    except Exception as failure:  # the answer to the client does not depend on this
        _logger.debug("whether the values of %s add up could not be seen: %s", method, type(failure).__name__)


def _adds_up_after_all(
    explainer: Attribution, options: Mapping[str, Any], expected: Tensor, off: float, error: float
) -> bool:
    """By a second look, with more steps or more draws."""
    batch, arguments = len(expected), _given(explainer, options)
    if isinstance(explainer, _INTEGRALS):
        steps, rows = int(options.get("n_steps", _STEPS)), min(batch, _ROWS)
        more = {"n_steps": max(_STEPS, _MORE * steps), "internal_batch_size": max(1, steps) * batch}
        few = _rows(arguments, batch, rows) | _given(explainer, more)
        return _off(explainer.attribute(**few), few, expected[:rows], error) <= max(_OFF, off / 2)
    if isinstance(explainer, _RANDOM):
        rows = min(batch, _DRAWS // 4)
        few, wanted = _rows(arguments, batch, rows), expected[:rows]
        sums = torch.stack([_sums(explainer.attribute(**few), few) for _ in range(max(4, -(-_DRAWS // rows)))])
        size = float(wanted.abs().mean())
        by_chance = float(sums.var(0).mean().sqrt()) / math.sqrt(sums.numel()) / size
        found = float((sums.mean(0) * wanted.sign()).mean()) / size
        return abs(found - 1) <= _OFF + _BY_CHANCE * by_chance
    return False


def _off(native: Any, options: Mapping[str, Any], expected: Tensor, error: float) -> float:
    """How far the sums of maps are off, as a share of the differences; NaN where differences are rounding errors.

    Where values nearly cancel in the sum, it is a share of their total size, of the thousandth of it or what rounding
    leaves.
    """
    total = float(expected.abs().sum())
    maps = _tensors(native)
    size = sum(float(t.detach().double().abs().sum()) for t in maps)
    scale = max(total, max(1e-3, 16 * torch.finfo(maps[0].dtype).eps) * size)
    if total <= error * len(expected):
        return math.nan
    return float((_sums(native, options) - expected).abs().sum()) / scale


def _differences(explainer: Attribution, options: Mapping[str, Any]) -> tuple[Tensor, float]:
    """(batch,) f(x) - f(baseline), or the mean of the latter over a set of baselines; and what rounding makes of it.

    Raises:
        ValueError: it is another sum that the values of this call add up to.
    """
    inputs = tuple(x.detach() for x in _tensors(options["inputs"]))
    if isinstance(getattr(explainer, "layer", None), list) or np.any(options.get("stdevs", 0.0)):
        raise ValueError("several layers, or noise on the inputs")
    given, batch = options.get("baselines"), len(inputs[0])
    several = isinstance(explainer, _OVER_BASELINES)
    if several and given is not None:
        given = _format_callable_baseline(given, inputs if isinstance(options["inputs"], tuple) else inputs[0])
    each = _tensors(given) if given is not None else (0.0,) * len(inputs)
    number = max((len(b) for b in each if isinstance(b, Tensor)), default=1) if several else 1
    if number > (_MOST_BASELINES if len(inputs) == 1 else 1):
        raise ValueError("many baselines")

    explained = _explained(explainer, inputs, options)
    nothing = torch.zeros_like(explained)
    for j in range(number):
        rows = (b[j : j + 1] if several and isinstance(b, Tensor) else b for b in each)
        like = tuple(torch.zeros_like(x) + row for x, row in zip(inputs, rows, strict=True))
        nothing += _explained(explainer, like, options)
    if len(explained) != batch:
        raise ValueError("no output for each example")
    eps = torch.finfo(inputs[0].dtype if inputs[0].is_floating_point() else torch.float32).eps
    return explained - nothing / number, 100 * eps * float(explained.abs().mean())


def _explained(explainer: Attribution, rows: tuple[Tensor, ...], options: Mapping[str, Any]) -> Tensor:
    """(batch,) the outputs that are explained."""
    with torch.no_grad():
        found: Tensor = _run_forward(
            explainer.forward_func, rows, options.get("target"), options.get("additional_forward_args")
        )
    return found.double().reshape(-1)


def _sums(native: Any, options: Mapping[str, Any]) -> Tensor:
    """(batch,) sums of the values of maps; the value of a group of features counts once."""
    groups, total = options.get("feature_mask"), torch.zeros(())
    for maps, of in zip(_tensors(native), _tensors(groups) if groups is not None else (None,) * 99, strict=False):
        values = maps.detach().double().flatten(1)
        if of is not None:
            ids = of.expand_as(maps).flatten(1).long()
            sizes = values.new_zeros(len(values), int(ids.max()) + 1).scatter_add_(1, ids, torch.ones_like(values))
            values = values / sizes.gather(1, ids)
        total = total.to(values) + values.sum(1)
    return total


def _given(explainer: Attribution, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that `attribute` takes by name."""
    parameters = inspect.signature(explainer.attribute).parameters.values()
    names = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    others = any(p.kind is p.VAR_KEYWORD for p in parameters)
    fixed = {p.name for p in parameters} - names | {"self"}
    return {name: value for name, value in options.items() if name in names or (others and name not in fixed)}


def _rows(options: Mapping[str, Any], batch: int, rows: int) -> dict[str, Any]:
    """Arguments for the first examples."""

    def first(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and len(value) == batch:
            return value[:rows].detach().requires_grad_(value.requires_grad)
        if isinstance(value, list) and len(value) == batch:
            return value[:rows]
        return tuple(map(first, value)) if isinstance(value, tuple) else value

    return {name: first(value) if name in _OF_EXAMPLES else value for name, value in options.items()}


def _tensors(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
