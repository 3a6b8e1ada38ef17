"""Checks that a method is correct on a model: evaluation mode, activations that DeepLift has a rule for, ReLU modules.

Modules are checked when an explainer is made. Functions, for which Captum silently uses the plain gradient, are found
at the first call, by DeepLift's sum, which must be the difference from the baseline (arXiv 1704.02685,
"summation-to-delta"), and by counting the ReLUs that run; `rewrite_functional` turns them into modules.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from captum import attr
from captum.attr import Attribution, DeepLift
from captum.attr._core.deep_lift import SUPPORTED_NON_LINEAR
from torch import Tensor, fx, nn
from torch.fx import GraphModule
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from safexplain._digest import modules_of
from safexplain.errors import InputError, RefusedError, TrainingModeWarning
from safexplain.native_maps import unwrapped
from safexplain.outputs import EstimatorModule, Logits, Probability

_KINDS = (DeepLift, attr.LayerDeepLift, attr.NeuronDeepLift, attr.NeuronDeepLiftShap)
_RELU_KINDS = (attr.GuidedBackprop, attr.Deconvolution)
_UNSUPPORTED: tuple[type[nn.Module], ...] = (
    *(nn.GELU, nn.SiLU, nn.Mish, nn.ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh),
    *(nn.SELU, nn.CELU, nn.PReLU, nn.GLU),
    *(nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase),
)
_CHANGED_BY_TRAINING = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)
_RELU_FUNCTIONS = frozenset({nn.functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
_TOLERANCE = 1e-3
_REWRITE_EXAMPLE = """
    from safexplain.explain import rewrite_functional
    model = rewrite_functional(model, inputs=x)"""

_CONTAINERS = frozenset(
    {nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.DataParallel, nn.parallel.DistributedDataParallel}
    | {Probability, Logits}
)
"""Modules that only hold or call others."""

_MODELESS_PACKAGES = ("torch.fx", "torch.export", "torch._dynamo", "torch.ao.nn.quantized")
"""Of modules that compute the same in both modes, or wrap others."""

_warned: WeakSet[nn.Module] = WeakSet()
_checked: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Model -> checks that it has passed in a call."""


def in_training_mode(model: nn.Module) -> list[str]:
    """Names of the parts of a model that are in training mode, unknown classes included; modules without a mode do not
    count: containers, wrappers, activations, and exported graphs.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval()
    >>> in_training_mode(nn.Sequential(net, nn.Softmax(1))), in_training_mode(Probability(net.train()))
    ([], ['model.0', 'model.1'])
    """
    if True not in [part.training for part in model.modules()]:
        return []
    return [
        name or type(part).__name__ for name, part in model.named_modules() if part.training and _depends_on_mode(part)
    ]


def _depends_on_mode(part: nn.Module) -> bool:
    kind = type(part)
    if kind in _CONTAINERS or kind.__module__.startswith(_MODELESS_PACKAGES):
        return False
    holds = bool(part._parameters or part._buffers or part._modules)
    return holds or isinstance(part, _CHANGED_BY_TRAINING) or not kind.__module__.startswith("torch.nn.modules")


def check_mode(explained: object, *, stacklevel: int = 4) -> None:
    """Warn once (TrainingModeWarning) for each model in an object, see `modules_of`, that is in training mode."""
    check_modes(modules_of(explained), stacklevel=stacklevel + 1)


def check_modes(models: tuple[nn.Module, ...], *, stacklevel: int = 4) -> bool:
    """Warn like `check_mode`; return whether a part of one of these models is in training mode."""
    trains = False
    for network in map(unwrapped, models):  # a new wrapper may be made for each explainer
        if not (names := in_training_mode(network)):
            continue
        trains = True
        if network in _warned:
            continue
        _warned.add(network)
        warnings.warn(
            f"{type(network).__name__} is in training mode ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}):"
            " every answer differs, and repeating a query averages the noise away. Call model.eval() first",
            TrainingModeWarning,
            stacklevel=stacklevel,
        )
    return trains


def check_modules(explainer: Attribution) -> None:
    """RefusedError for a DeepLift if the model has modules without a rule, or is an exported graph without modules; and
    for a method that needs ReLU modules if there are none."""
    if isinstance(explainer, _RELU_KINDS) and not _relus(explainer.model):
        raise RefusedError(_without_relus(explainer, "has none"))
    if not isinstance(explainer, _KINDS):
        return
    parts = list(explainer.forward_func.modules())
    found = {type(part).__name__ for part in parts if isinstance(part, _UNSUPPORTED)}
    if not any(isinstance(part, tuple(SUPPORTED_NON_LINEAR)) for part in parts):
        found |= {"an exported graph" for part in parts if isinstance(part, GraphModule)}
    if found:
        raise RefusedError(
            f"DeepLift has no rule for {', '.join(sorted(found))} in {_class_name(explainer.forward_func)}: its values"
            " would not add up. Use HardenedIG"
        )


def check_first_call(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """The checks that need data, once for each model; RefusedError if the model silently turns the method into another
    one. The explainer's model is a copy, and may be hooked."""
    if isinstance(explainer, _KINDS):
        _check_sum(explainer, original, options)
    elif isinstance(explainer, _RELU_KINDS):
        _check_relus_run(explainer, original, options)


def _check_sum(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    """Compare the sum of DeepLift's attributions with f(x) - f(baseline), for each model in evaluation mode once
    without baselines (zeros) and once with some; for methods of neurons, which have no target, at the first output.
    They may differ by 0.1 % of the attributions' total size, plus rounding errors."""
    model, given = explainer.forward_func, options.get("baselines")
    case = "given baselines" if given is not None and not callable(given) else "zeros"
    if case in _checked.get(original, ()) or _changed_by_training(model):
        return
    rows = tuple(x.requires_grad_() for x in _detached_inputs(options))
    arguments, target = options.get("additional_forward_args"), options.get("target")
    if isinstance(explainer, attr.NeuronAttribution):
        target = (0,) * (_run_model(model, rows, arguments).dim() - 1) or None
    found, delta = DeepLift(model).attribute(
        rows,
        baselines=_matching_baselines(given, len(rows[0])) if case == "given baselines" else None,
        target=target,
        additional_forward_args=arguments,
        return_convergence_delta=True,
    )
    size = torch.stack([f.detach().abs().flatten(1).sum(1) for f in found]).sum(0)
    off, eps = delta.detach().abs(), torch.finfo(size.dtype).eps
    if bool((off > max(_TOLERANCE, 64 * eps) * size + 8 * eps).any()):
        share = float((off / size.clamp_min(torch.finfo(size.dtype).tiny)).max())
        raise RefusedError(
            f"DeepLift's values do not add up on {_class_name(model)}: the sum is off by {share:.1%} of their size."
            " It calls functions as activations or one module several times, or has parts without a correct rule"
            " (nn.Softmax; max pooling if the baseline is not flat). Explain logits, use HardenedIG, or turn functions"
            f" into modules, one for each call:{_REWRITE_EXAMPLE}"
        )
    if bool(((size > 0) & off.isfinite()).any()):  # inputs equal to the baseline prove nothing
        _checked.setdefault(original, set()).add(case)


def _changed_by_training(model: nn.Module) -> bool:
    return any(part.training for part in model.modules() if isinstance(part, _CHANGED_BY_TRAINING))


def _matching_baselines(baselines: Any, batch: int) -> Any:
    """The last of a set of baselines (the first is often zero), for methods that average over the set."""
    if isinstance(baselines, tuple):
        return tuple(_matching_baselines(b, batch) for b in baselines)
    return baselines[-1:] if isinstance(baselines, Tensor) and len(baselines) not in (1, batch) else baselines


def _detached_inputs(options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    inputs = options["inputs"]
    return tuple(x.detach().clone() for x in (inputs if isinstance(inputs, tuple) else (inputs,)))


def _run_model(model: nn.Module, rows: tuple[Tensor, ...], arguments: Any) -> Tensor:
    extra = arguments if isinstance(arguments, tuple) else () if arguments is None else (arguments,)
    with torch.no_grad():
        output: Tensor = model(*rows, *extra)
    return output


def _check_relus_run(explainer: Attribution, original: nn.Module, options: Mapping[str, Any]) -> None:
    if "ReLU" in _checked.get(original, ()):
        return
    ran: list[int] = []
    handles = [relu.register_forward_hook(lambda *_: ran.append(1)) for relu in _relus(explainer.model)]
    rows, counted = _detached_inputs(options), _ReluCounter()
    try:
        with torch.random.fork_rng(sorted({x.get_device() for x in rows if x.is_cuda})), counted:  # dropout may draw
            _run_model(explainer.model, rows, options.get("additional_forward_args"))
    finally:
        for handle in handles:
            handle.remove()
    if not ran:
        raise RefusedError(_without_relus(explainer, "calls none of its own"))
    if counted.calls > len(ran):
        some = f"calls {counted.calls - len(ran)} of {counted.calls} ReLUs as functions"
        raise RefusedError(_without_relus(explainer, some))
    _checked.setdefault(original, set()).add("ReLU")


class _ReluCounter(TorchFunctionMode):
    """By modules and as functions."""

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
    """Whether a model is a scikit-learn classifier, which predicts each row independently."""
    return isinstance(unwrapped(model), EstimatorModule)


def _class_name(model: nn.Module) -> str:
    return type(unwrapped(model)).__name__


def _without_relus(explainer: Attribution, fact: str) -> str:
    kind = next(kind for kind in _RELU_KINDS if isinstance(explainer, kind))
    return (
        f"{kind.__name__} changes the gradient of nn.ReLU modules, and {_class_name(explainer.model)} {fact}: the"
        f" answer would be a plain gradient. Use HardenedSaliency, or turn functions into modules:{_REWRITE_EXAMPLE}"
    )


# Functions as modules, by symbolic tracing

_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_ACTIVATIONS: tuple[tuple[type[nn.Module], tuple[str, ...], tuple[Any, ...]], ...] = (
    (nn.ReLU, ("inplace",), (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")),
    (nn.LeakyReLU, ("negative_slope", "inplace"), (F.leaky_relu, F.leaky_relu_)),
    (nn.ELU, ("alpha", "inplace"), (F.elu, F.elu_)),
    (nn.Softplus, ("beta", "threshold"), (F.softplus,)),
    (nn.Sigmoid, (), (torch.sigmoid, F.sigmoid, torch.sigmoid_, "sigmoid", "sigmoid_")),
    (nn.Tanh, (), (torch.tanh, F.tanh, torch.tanh_, "tanh", "tanh_")),
    (nn.MaxPool1d, _POOL, (F.max_pool1d, torch.max_pool1d)),
    (nn.MaxPool2d, _POOL, (F.max_pool2d, torch.max_pool2d)),
    (nn.MaxPool3d, _POOL, (F.max_pool3d, torch.max_pool3d)),
)
"""Modules with rules in DeepLift; their arguments behind the input, in order; and the functions, and methods of tensors
by name, that compute the same."""


def rewrite_functional(model: nn.Module, inputs: Tensor | tuple[Tensor, ...] | None = None) -> nn.Module:
    """The same network with a module for each call of an activation or of max pooling.

        from safexplain.explain import rewrite_functional
        model = rewrite_functional(model, inputs=x)
        HardenedDeepLift(model).attribute(x, target=y)

    Functions (`F.relu`, `torch.relu`, `x.relu()`, `F.max_pool2d`, ...) become modules, and such modules that are called
    several times become several. The new network is a `torch.fx.GraphModule` that shares all parameters and buffers
    with the old one, under the same names; parts that its `forward` does not call are left out, and dropout functions
    are off. Its digest differs from the model's, and is the same each time: rewrite again to load a certificate.

    Args:
        model: in evaluation mode, the same calls for all inputs.
        inputs: on which both networks' outputs are compared, (batch, ...) or several of these. None: no comparison.

    Returns:
        The new network, in evaluation mode; `model` itself if there is nothing to rewrite.

    Raises:
        RefusedError: the calls depend on the input and cannot be traced; or the outputs differ in any bit.
        InputError: the model is in training mode, or does not accept the inputs.
    """
    if model.training:
        raise InputError(
            f"expected a network in evaluation mode, got {type(model).__name__} in training mode: call eval()"
        )
    tensors = (*model.parameters(), *model.buffers())
    try:
        root = copy.deepcopy(model, {id(t): t for t in tensors})
        graph = fx.Tracer().trace(root)
    except Exception as error:  # anything that a network does with a symbolic input
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RefusedError(
            f"the calls of {type(model).__name__} depend on its input and cannot be traced ({reason}). Write its"
            " activations as modules by hand, one for each call, or use HardenedIG"
        ) from error
    if not _rewrite(graph, root):
        return model
    rewritten = fx.GraphModule(root, graph)
    rewritten.graph = _AllLeaves().trace(rewritten)  # with its names after pickling
    if inputs is not None:
        _compare(model, rewritten.eval(), inputs if isinstance(inputs, tuple) else (inputs,))
    return rewritten.eval()


class _AllLeaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _rewrite(graph: fx.Graph, root: nn.Module) -> bool:
    """Replace each function by a module; return whether there was one, or a module that is called again."""
    changed, called = False, set[str]()
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op == "call_module":
            part = root.get_submodule(str(node.target))
            if isinstance(part, tuple(kind for kind, _, _ in _ACTIVATIONS)) and node.target in called:
                node.target = _added(root, copy.deepcopy(part))
                changed = True
            called.add(str(node.target))
            continue
        made, in_place = _module_of(node) if node.op in ("call_function", "call_method") else (None, False)
        if made is None:
            continue
        given = node.args[0]
        with graph.inserting_before(node):
            new = graph.call_module(_added(root, made), (given,))
        node.replace_all_uses_with(new)
        if in_place and isinstance(given, fx.Node):  # later users of the changed tensor use its new numbers
            later = {user for user, place in order.items() if place > order[node]}
            given.replace_all_uses_with(new, later.__contains__)
        graph.erase_node(node)
        order[new] = order[node]
        changed = True
    graph.lint()
    return changed


def _added(root: nn.Module, module: nn.Module) -> str:
    kind = type(module).__name__.lower()
    name = next(n for n in (f"{kind}_{i}" for i in count(1)) if not hasattr(root, n))
    root.add_module(name, module)
    return name


def _module_of(node: fx.Node) -> tuple[nn.Module | None, bool]:
    """The module that replaces a call, if there is one, and whether the call changes its input."""
    for kind, names, calls in _ACTIVATIONS:
        if node.args and node.target in calls:
            options = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
            in_place = options.pop("inplace", False) or getattr(node.target, "__name__", str(node.target)).endswith("_")
            if not any(isinstance(value, fx.Node) for value in options.values()):
                return kind(**options), bool(in_place)
    return None, False


def _compare(model: nn.Module, rewritten: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Both must return the same bits for the inputs, one row of them, and ten and minus one times them."""
    given = tuple(x.detach() for x in inputs)
    batches = [given, tuple(x[:1] for x in given)]
    if all(x.is_floating_point() for x in given):
        batches += [tuple(factor * x for x in given) for factor in (10.0, -1.0)]
    with torch.no_grad():
        for rows in batches:
            try:
                expected, found = (network(*(x.clone() for x in rows)) for network in (model, rewritten))
            except Exception as error:  # any error of the network
                raise InputError(
                    f"{type(model).__name__} fails for inputs of shape {[tuple(x.shape) for x in rows]}:"
                    f" {(str(error) or type(error).__name__).splitlines()[0]}; give inputs= that it accepts"
                ) from None
            if not torch.allclose(expected, found, 0, 0, equal_nan=True):
                raise RefusedError(
                    f"expected the same outputs after rewriting {type(model).__name__}, got others. Write its"
                    " activations as modules by hand, or use HardenedIG"
                )
