"""Is a method itself on this model? The model must be in evaluation mode, DeepLift's rule must reach all of its
activations, and GuidedBackprop and Deconvolution need ReLU modules to change.

Captum gives DeepLift's rescale rule to the activation modules that it knows. On all others (GELU, ReLU6, normalisation
layers, attention, functions called in place of modules) it uses the plain gradient, says nothing, and returns something
else under DeepLift's name. GuidedBackprop and Deconvolution without any nn.ReLU module are the plain gradient.

Modules are looked at when an explainer is made. Functions in place of modules show only with data: in DeepLift's sum,
which must be the difference from the baseline (arXiv 1704.02685, "summation-to-delta"), and in which ReLUs run. That is
looked at once for each model, at its first call.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

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
from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from safexplain._digest import modules_of
from safexplain.errors import RefusedError, TrainingModeWarning
from safexplain.native_maps import inside
from safexplain.outputs import EstimatorModule, Logits, Probability

__all__ = ["check_first_call", "check_mode", "check_modes", "check_modules", "in_training_mode", "is_estimator"]

_KINDS = (DeepLift, LayerDeepLift, NeuronDeepLift, NeuronDeepLiftShap)
_RELU_KINDS = (GuidedBackprop, Deconvolution)
_UNSUPPORTED: tuple[type[nn.Module], ...] = (
    *(nn.GELU, nn.SiLU, nn.Mish, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh),
    *(nn.SELU, nn.CELU, nn.PReLU, nn.GLU),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase),
)
_CHANGED_BY_TRAINING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
_RELU_FUNCTIONS = frozenset({nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
_TOLERANCE = 1e-3
_TWO_LINES = """
    from safexplain.explain import rewrite_functional
    model = rewrite_functional(model, inputs=x)"""
"""What gives a model modules in place of functions, as messages show it."""

_SHELLS = frozenset(
    {nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.DataParallel, nn.parallel.DistributedDataParallel}
    | {Probability, Logits}
)
"""Modules that only hold or call others, so that their own flag tells nothing."""

_FIXED = ("torch.fx", "torch.export", "torch._dynamo", "torch.ao.nn.quantized")
"""Where the classes of modules come from that compute the same in both modes, or wrap others: exported graphs, what
torch.compile makes, and quantized layers."""

_warned: WeakSet[nn.Module] = WeakSet()
_checked: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Model -> what was looked at in a call and found good."""


def in_training_mode(model: nn.Module) -> list[str]:
    """Names of the parts of a model that are in training mode.

    Any part counts, since nobody can see what a part of somebody's own does in training mode, and `model.eval()` sets
    them all. What has no mode does not: containers and wrappers that only pass numbers on, activations and the like of
    torch.nn, which are often put after a model that is in evaluation mode, and exported graphs.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    >>> in_training_mode(nn.Sequential(net, nn.Softmax(1))), in_training_mode(Probability(net.train()))
    ([], ['model.0', 'model.1'])
    """
    if True not in [part.training for part in model.modules()]:
        return []
    return [name or type(part).__name__ for name, part in model.named_modules() if part.training and _has_mode(part)]


def _has_mode(part: nn.Module) -> bool:
    kind = type(part)
    if kind in _SHELLS or kind.__module__.startswith(_FIXED):
        return False
    holds = bool(part._parameters or part._buffers or part._modules)
    return holds or isinstance(part, _CHANGED_BY_TRAINING) or not kind.__module__.startswith("torch.nn.modules")


def check_mode(explained: object, *, stacklevel: int = 4) -> None:
    """Warn, once for each model that an object holds (see `safexplain._digest.modules_of`), of training mode.

    Warns:
        TrainingModeWarning: a part of a model is in training mode.
    """
    check_modes(modules_of(explained), stacklevel=stacklevel + 1)


def check_modes(models: tuple[nn.Module, ...], *, stacklevel: int = 4) -> bool:
    """Warn as `check_mode` does; whether a part of one of these models is in training mode."""
    trains = False
    for network in map(inside, models):  # a new wrapper may be made for each explainer
        if not (names := in_training_mode(network)):
            continue
        trains = True
        if network in _warned:
            continue
        _warned.add(network)
        warnings.warn(
            f"{type(network).__name__} is in training mode ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}):"
            " with dropout or batch statistics every answer is another one, and asking again averages the noise away."
            " Call model.eval() before it is explained",
            TrainingModeWarning,
            stacklevel=stacklevel,
        )
    return trains


def check_modules(explainer: Attribution) -> None:
    """Look for modules that DeepLift's rule does not reach, and for those that the methods of ReLUs change.

    Raises:
        RefusedError: the explainer is a DeepLift, and there are some, or the model is an exported graph without
            modules; or it needs ReLU modules and there are none.
    """
    if isinstance(explainer, _RELU_KINDS) and not _relus(explainer.model):
        raise RefusedError(_nothing_to_change(explainer, "has no nn.ReLU module"))
    if not isinstance(explainer, _KINDS):
        return
    parts = list(explainer.forward_func.modules())
    found = {type(part).__name__ for part in parts if isinstance(part, _UNSUPPORTED)}
    if not any(isinstance(part, tuple(SUPPORTED_NON_LINEAR)) for part in parts):
        found |= {"an exported graph" for part in parts if isinstance(part, GraphModule)}
    if found:
        raise RefusedError(
            f"DeepLift has no rule for {', '.join(sorted(found))} in {_name(explainer.forward_func)}: the answer would"
            " silently be another one, whose values do not add up to the difference from the baseline. Use HardenedIG"
        )


def check_first_call(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """What only data can show, once for each model: DeepLift's sum, and that a ReLU runs where the method needs one.
    The explainer's model is a copy of the original, and may be hooked.

    Raises:
        RefusedError: the method would silently be another one on this model.
    """
    if isinstance(explainer, _KINDS):
        _check_sum(explainer, original, options)
    elif isinstance(explainer, _RELU_KINDS):
        _check_relus_run(explainer, original, options)


def _check_sum(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """Compare the sum of DeepLift's attributions with f(x) - f(baseline), for each model in evaluation mode once
    without baselines (they are zero) and once with some; methods of neurons, which have no target, at the first output.
    The sums may differ by 0.1 % of the attributions' total size (and by what rounding explains).
    """
    model, given = explainer.forward_func, options.get("baselines")
    case = "given baselines" if given is not None and not callable(given) else "zeros"
    if case in _checked.get(original, ()) or _trains(model):
        return
    rows, arguments = tuple(x.requires_grad_() for x in _rows(options)), options.get("additional_forward_args")
    target = options.get("target")
    if isinstance(explainer, NeuronAttribution):
        target = (0,) * (_output(model, rows, arguments).dim() - 1) or None
    found, delta = DeepLift(model).attribute(
        rows,
        baselines=_one_for_each(given, len(rows[0])) if case == "given baselines" else None,
        target=target,
        additional_forward_args=arguments,
        return_convergence_delta=True,
    )
    size = torch.stack([f.detach().abs().flatten(1).sum(1) for f in found]).sum(0)
    off, eps = delta.detach().abs(), torch.finfo(size.dtype).eps
    if bool((off > max(_TOLERANCE, 64 * eps) * size + 8 * eps).any()):
        share = float((off / size.clamp_min(torch.finfo(size.dtype).tiny)).max())
        raise RefusedError(
            f"DeepLift's values do not add up on {_name(model)}: the sum is off by {share:.1%} of their size."
            " The model calls functions as activations (torch.nn.functional.relu, softmax), calls one activation module"
            " several times, or has other parts that Captum's DeepLift has no right rule for, nn.Softmax among them,"
            " and max pooling where the baseline is not flat. Give it modules for them, explain logits, or use"
            f" HardenedIG. Modules in place of functions, one for each call:{_TWO_LINES}"
        )
    if bool(((size > 0) & off.isfinite()).any()):  # inputs like the baseline tell nothing
        _checked.setdefault(original, set()).add(case)


def _trains(model: nn.Module) -> bool:
    """Whether a part that training mode changes is in it; wrappers, or a softmax at the end, are often left in it."""
    return any(part.training for part in model.modules() if isinstance(part, _CHANGED_BY_TRAINING))


def _one_for_each(baselines: Any, batch: int) -> Any:
    """Of a set of baselines the last (the first is often zero), for methods that average over such a set."""
    if isinstance(baselines, tuple):
        return tuple(_one_for_each(b, batch) for b in baselines)
    return baselines[-1:] if isinstance(baselines, Tensor) and len(baselines) not in (1, batch) else baselines


def _rows(options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    inputs = options["inputs"]
    return tuple(x.detach().clone() for x in (inputs if isinstance(inputs, tuple) else (inputs,)))


def _output(model: nn.Module, rows: tuple[Tensor, ...], arguments: Any) -> Tensor:
    extra = arguments if isinstance(arguments, tuple) else () if arguments is None else (arguments,)
    with torch.no_grad():
        output: Tensor = model(*rows, *extra)
    return output


def _check_relus_run(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """Look whether the model calls a ReLU module that it has."""
    if "ReLU" in _checked.get(original, ()):
        return
    ran: list[int] = []
    handles = [relu.register_forward_hook(lambda *_: ran.append(1)) for relu in _relus(explainer.model)]
    rows, counted = _rows(options), _Relus()
    try:
        with torch.random.fork_rng(sorted({x.get_device() for x in rows if x.is_cuda})), counted:  # dropout may draw
            _output(explainer.model, rows, options.get("additional_forward_args"))
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise RefusedError(_nothing_to_change(explainer, "called none of its nn.ReLU modules"))
    if counted.calls > len(ran):
        some = f"called {counted.calls - len(ran)} of {counted.calls} ReLUs as functions"
        raise RefusedError(_nothing_to_change(explainer, some))
    _checked.setdefault(original, set()).add("ReLU")


class _Relus(TorchFunctionMode):
    """Counts calls of ReLU, by modules and as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls += func in _RELU_FUNCTIONS
        return func(*args, **(kwargs or {}))


def _relus(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, nn.ReLU)]


def is_estimator(model: object) -> bool:
    """Whether it is a scikit-learn classifier, of which each row is predicted by itself."""
    return isinstance(inside(model), EstimatorModule)


def _name(model: nn.Module) -> str:
    """Of the network's class."""
    return type(inside(model)).__name__


def _nothing_to_change(explainer: Attribution, fact: str) -> str:
    kind = next(kind for kind in _RELU_KINDS if isinstance(explainer, kind))
    return (
        f"{kind.__name__} changes the gradient of nn.ReLU modules, and {_name(explainer.model)} {fact} (ReLU6,"
        " GELU and torch.nn.functional.relu are not changed), so the answer would silently be a plain gradient."
        f" Use HardenedSaliency, or, where it calls such functions, give each call a module of its own:{_TWO_LINES}"
    )
