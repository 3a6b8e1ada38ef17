"""Does DeepLift's rule work on this model? If it does, the attributions add up to the difference from the baseline.

Captum gives DeepLift's rescale rule to the activation modules that it knows. On all others (GELU, ReLU6, normalisation
layers, attention, functions called in place of modules) it uses the plain gradient, says nothing, and returns something
else under DeepLift's name. Known modules are looked for when an explainer is made; the rest shows in the sum (arXiv
1704.02685, "summation-to-delta"), which is looked at once for each model, at the first call.

GuidedBackprop and Deconvolution change what nn.ReLU modules pass back; without any they are the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from captum.attr import (
    Attribution,
    Deconvolution,
    DeepLift,
    GuidedBackprop,
    LayerDeepLift,
    NeuronAttribution,
    NeuronDeepLift,
    NeuronDeepLiftShap,
)
from torch import Tensor, nn
from torch.fx import GraphModule

from safexplain.errors import RefusedError
from safexplain.explain.isolation import explainers_in

__all__ = ["check_deeplift", "check_relus", "check_sum", "must_run"]

_KINDS = (DeepLift, LayerDeepLift, NeuronDeepLift, NeuronDeepLiftShap)
_UNSUPPORTED: tuple[type[nn.Module], ...] = (
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.ReLU6,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.SELU,
    nn.CELU,
    nn.PReLU,
    nn.GLU,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)
_SUPPORTED: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Sigmoid,
    nn.Tanh,
    nn.Softplus,
    nn.Softmax,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
)
_CHANGED_BY_TRAINING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
_TOLERANCE = 1e-3
_complete: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()
"""Model -> whether baselines were given, for the cases that were looked at and add up."""


def check_deeplift(explainer: Attribution) -> None:
    """Look for modules that the rule does not reach.

    Raises:
        RefusedError: the explainer is a DeepLift, and there are some, or the model is an exported graph without
            modules.
    """
    if not isinstance(explainer, _KINDS):
        return
    model = explainer.forward_func
    parts = list(model.modules())
    known = any(isinstance(part, _SUPPORTED) for part in parts)
    if any(isinstance(part, GraphModule) for part in parts) and not known:
        raise RefusedError(
            "DeepLift changes what activation modules pass back, and an exported graph has none, so the answer would"
            " silently be input x gradient. Use HardenedInputXGradient, or load the model from its state_dict and"
            " architecture"
        )
    if found := sorted({type(part).__name__ for part in parts if isinstance(part, _UNSUPPORTED)}):
        raise RefusedError(
            f"DeepLift has no rule for {', '.join(found)} in {type(model).__name__}: the answer would silently be"
            " another one, whose values do not add up to the difference from the baseline. Use HardenedIG"
        )


def check_sum(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """Compare the sum of DeepLift's attributions with f(x) - f(baseline), for each model in evaluation mode once
    without baselines (they are zero) and once with some.

    Args:
        explainer: any; only DeepLift's kinds are looked at. Its model may be hooked.
        original: the module that its model is a copy of.
        options: arguments of `attribute` by name. Methods of neurons, which have no target, are checked at any output.

    Raises:
        RefusedError: the sums differ by more than 0.1 % of the attributions' total size (and than rounding explains).
    """
    if not isinstance(explainer, _KINDS):
        return
    model, given = explainer.forward_func, options.get("baselines")
    case = given is not None and not callable(given)
    if case in _complete.get(original, ()) or _trains(model):
        return
    inputs, arguments = options["inputs"], options.get("additional_forward_args")
    rows = tuple(x.detach().clone().requires_grad_() for x in (inputs if isinstance(inputs, tuple) else (inputs,)))
    of_neuron = isinstance(explainer, NeuronAttribution)
    target = _first_output(model, rows, arguments) if of_neuron else options.get("target")
    found, delta = DeepLift(model).attribute(
        rows,
        baselines=_one_for_each(given, len(rows[0])) if case else None,
        target=target,
        additional_forward_args=arguments,
        return_convergence_delta=True,
    )
    size = torch.stack([f.detach().abs().flatten(1).sum(1) for f in found]).sum(0)
    off, eps = delta.detach().abs(), torch.finfo(size.dtype).eps
    if bool((off > max(_TOLERANCE, 64 * eps) * size + 8 * eps).any()):
        share = float((off / size.clamp_min(torch.finfo(size.dtype).tiny)).max())
        raise RefusedError(
            f"DeepLift's values do not add up on {type(model).__name__}: the sum is off by {share:.1%} of their size."
            " The model calls functions as activations (torch.nn.functional.relu, softmax), or has other parts that"
            " Captum's DeepLift has no right rule for, nn.Softmax among them, and max pooling where the baseline is not"
            " flat. Give it modules for them, explain logits, or use HardenedIG"
        )
    if bool(((size > 0) & off.isfinite()).any()):  # inputs like the baseline tell nothing
        _complete.setdefault(original, set()).add(case)


def _trains(model: nn.Module) -> bool:
    """Whether a part that training mode changes is in it; wrappers, or a softmax at the end, are often left in it."""
    return any(part.training for part in model.modules() if isinstance(part, _CHANGED_BY_TRAINING))


def _one_for_each(baselines: Any, batch: int) -> Any:
    """Of a set of baselines the last (the first is often zero), for methods that average over such a set."""
    if isinstance(baselines, tuple):
        return tuple(_one_for_each(b, batch) for b in baselines)
    return baselines[-1:] if isinstance(baselines, Tensor) and len(baselines) not in (1, batch) else baselines


def _first_output(model: nn.Module, rows: tuple[Tensor, ...], arguments: Any) -> tuple[int, ...] | None:
    """The first output as a target; None where there is one output."""
    extra = arguments if isinstance(arguments, tuple) else () if arguments is None else (arguments,)
    with torch.no_grad():
        return (0,) * (model(*rows, *extra).dim() - 1) or None


_RELU_KINDS = (GuidedBackprop, Deconvolution)


def check_relus(explainer: Attribution) -> None:
    """Look for ReLU modules.

    Raises:
        RefusedError: the method needs some and the model has none.
    """
    if isinstance(explainer, _RELU_KINDS) and not _relus(explainer.model):
        raise RefusedError(_nothing_to_change(explainer, "has no nn.ReLU module"))


@contextmanager
def must_run(explainer: Attribution) -> Iterator[None]:
    """Raise unless a ReLU module runs within, for the methods that are nothing without one."""
    concerned = [e for e in (explainer, *explainers_in(vars(explainer))) if isinstance(e, _RELU_KINDS)]
    ran: list[int] = []
    relus = {id(relu): relu for e in concerned for relu in _relus(e.model)}
    handles = [relu.register_forward_hook(lambda *_: ran.append(1)) for relu in relus.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    if concerned and not ran:
        raise RefusedError(_nothing_to_change(concerned[0], "called none of its nn.ReLU modules"))


def _relus(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.ReLU)]


def _nothing_to_change(explainer: Attribution, fact: str) -> str:
    kind = next(kind for kind in _RELU_KINDS if isinstance(explainer, kind))
    return (
        f"{kind.__name__} changes the gradient of nn.ReLU modules, and {type(explainer.model).__name__} {fact} (ReLU6,"
        " GELU and torch.nn.functional.relu are not changed), so the answer would silently be a plain gradient."
        " Use HardenedSaliency, or give the model nn.ReLU modules"
    )
