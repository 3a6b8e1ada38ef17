"""Modules in place of functions: what DeepLift and the guided methods need to see a network's activations.

These methods change what activation modules pass back. A function such as `torch.nn.functional.relu` has no module to
change, and a module that is called twice keeps only its last call. `rewrite_functional` gives each call a module of its
own. It follows the calls by symbolic tracing (torch.fx), so the network must call the same things for all inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from safexplain.errors import InputError, RefusedError

__all__ = ["rewrite_functional"]


class _Activation(NamedTuple):
    """A module, and the functions and methods of tensors that compute the same.

    Args:
        module: takes the arguments of the function, but for the input, by name.
        arguments: names of the function's arguments behind the input, in order.
        functions: by any of their names.
        methods: of tensors.
    """

    module: type[nn.Module]
    arguments: tuple[str, ...]
    functions: tuple[Any, ...]
    methods: tuple[str, ...] = ()


_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_ACTIVATIONS = (
    _Activation(nn.ReLU, ("inplace",), (F.relu, F.relu_, torch.relu, torch.relu_), ("relu", "relu_")),
    _Activation(nn.ReLU6, ("inplace",), (F.relu6,)),
    _Activation(nn.LeakyReLU, ("negative_slope", "inplace"), (F.leaky_relu, F.leaky_relu_)),
    _Activation(nn.ELU, ("alpha", "inplace"), (F.elu, F.elu_)),
    _Activation(nn.SELU, ("inplace",), (F.selu, torch.selu)),
    _Activation(nn.CELU, ("alpha", "inplace"), (F.celu, torch.celu)),
    _Activation(nn.GELU, ("approximate",), (F.gelu,)),
    _Activation(nn.SiLU, ("inplace",), (F.silu,)),
    _Activation(nn.Mish, ("inplace",), (F.mish,)),
    _Activation(nn.Hardswish, ("inplace",), (F.hardswish,)),
    _Activation(nn.Hardsigmoid, ("inplace",), (F.hardsigmoid,)),
    _Activation(nn.Hardtanh, ("min_val", "max_val", "inplace"), (F.hardtanh,)),
    _Activation(nn.Softplus, ("beta", "threshold"), (F.softplus,)),
    _Activation(
        nn.Sigmoid, (), (torch.sigmoid, F.sigmoid, torch.special.expit, torch.sigmoid_), ("sigmoid", "sigmoid_")
    ),
    _Activation(nn.Tanh, (), (torch.tanh, F.tanh, torch.tanh_), ("tanh", "tanh_")),
    _Activation(nn.Softmax, ("dim", "_stacklevel", "dtype"), (F.softmax,)),
    _Activation(nn.Softmax, ("dim", "dtype"), (torch.softmax,), ("softmax",)),
    _Activation(nn.MaxPool1d, _POOL, (F.max_pool1d, torch.max_pool1d)),
    _Activation(nn.MaxPool2d, _POOL, (F.max_pool2d, torch.max_pool2d)),
    _Activation(nn.MaxPool3d, _POOL, (F.max_pool3d, torch.max_pool3d)),
)
_CLAMPS = (torch.clamp, torch.clip, torch.clamp_, "clamp", "clip", "clamp_", "clip_")
_CLAMPS_BELOW = (torch.clamp_min, torch.clamp_min_, "clamp_min", "clamp_min_")
_IGNORED: Mapping[str, tuple[object, ...]] = {"_stacklevel": (3, 5), "dtype": (None,), "return_indices": (False,)}
"""Arguments that modules do not have -> values at which nothing is lost by that."""

_SPLIT = tuple(row.module for row in _ACTIVATIONS)
"""Modules of which each call gets its own."""


def rewrite_functional(model: nn.Module, inputs: Tensor | tuple[Tensor, ...] | None = None) -> nn.Module:
    """The same network with a module for each call of an activation or of max pooling.

        from safexplain.explain import rewrite_functional
        model = rewrite_functional(model, inputs=x)
        HardenedDeepLift(model).attribute(x, target=y)

    Functions (`F.relu`, `torch.relu`, `x.relu()`, `x.clamp(min=0)`, `F.max_pool2d`, ...) become modules, and activation
    modules that are called several times become several. The new network is a `torch.fx.GraphModule` that shares all
    parameters and buffers with the old one, under the same names; parts that its `forward` does not call are left out.
    What depends on the mode is fixed as it was: dropout as a function stays off in a network in evaluation mode.

    The digest is another one than the model's, and the same each time: audit the rewritten network, and rewrite the
    network that a certificate is loaded for.

    Args:
        model: any, in evaluation mode; or in training mode, where it calls the same functions in both.
        inputs: on which the outputs of both are compared, (batch, ...) or several such. None: they are not compared,
            and you should see that they are the same.

    Returns:
        The new network, in the same mode; `model` itself where there is nothing to rewrite.

    Raises:
        RefusedError: the calls depend on the input, so that they cannot be followed; or the new network's outputs are
            not those of the old one bit by bit.
        InputError: the model does not take the inputs.
    """
    graph, root = _traced(model)
    if model.training:
        with _mode(model, False):
            other, _ = _traced(model)
        if str(graph) != str(other):
            raise RefusedError(
                f"{type(model).__name__} calls other functions in training mode (dropout as a function, perhaps), which"
                " a rewritten network cannot. Call model.eval() first, or give it modules for them"
            )
    if not _rewrite(graph, root):
        return model
    rewritten = fx.GraphModule(root, graph)
    rewritten.graph = _AllLeaves().trace(rewritten)  # with the names that it has after pickling
    own = dict(model.named_modules())
    for name, part in rewritten.named_modules():
        part.training = own[name].training if name in own else model.training
    if inputs is not None:
        _compare(model, rewritten, inputs if isinstance(inputs, tuple) else (inputs,))
    return rewritten


class _AllLeaves(fx.Tracer):
    """Follows no module's calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _traced(model: nn.Module) -> tuple[fx.Graph, nn.Module]:
    """The calls of a network, and a copy of it that shares its tensors."""
    tensors = (*model.parameters(), *model.buffers())
    try:
        root = copy.deepcopy(model, {id(t): t for t in tensors})
        tracer = fx.Tracer()
        return tracer.trace(root), root
    except Exception as error:  # whatever a network does with what stands for its input
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise RefusedError(
            f"the calls of {type(model).__name__} cannot be followed ({reason}): what it calls depends on its input."
            " Write its activations as modules by hand, one for each call, or use HardenedIG"
        ) from error


def _rewrite(graph: fx.Graph, root: nn.Module) -> int:
    """Put a module in the place of each function; the number of changes."""
    changes, called = 0, set[str]()
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op == "call_module":
            part = root.get_submodule(str(node.target))
            if isinstance(part, _SPLIT) and node.target in called:
                node.target = _added(root, _owner(node, root), copy.deepcopy(part))
                changes += 1
            called.add(str(node.target))
            continue
        made, in_place = _module_of(node) if node.op in ("call_function", "call_method") else (None, False)
        if made is None:
            continue
        given = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_before(node):
            new = graph.call_module(_added(root, _owner(node, root), made), (given,))
        node.replace_all_uses_with(new)
        if in_place and isinstance(given, fx.Node):  # who used the changed tensor later, used its new numbers
            later = {user for user, place in order.items() if place > order[node]}
            given.replace_all_uses_with(new, later.__contains__)
        graph.erase_node(node)
        order[new] = order[node]
        changes += 1
    graph.lint()
    return changes


def _added(root: nn.Module, owner: str, module: nn.Module) -> str:
    """The name under which a module was added to the one that calls it."""
    place, kind = root.get_submodule(owner), type(module).__name__.lower()
    name = next(n for n in (f"{kind}_{i}" for i in count(1)) if not hasattr(place, n))
    place.add_module(name, module)
    return f"{owner}.{name}" if owner else name


def _module_of(node: fx.Node) -> tuple[nn.Module | None, bool]:
    """The module that computes what a call computes, if there is one, and whether the call changes its input."""
    target: Any = node.target
    given, named = node.args[1:], {k: v for k, v in node.kwargs.items() if k not in ("input", "self")}
    if not node.args and "input" not in node.kwargs:
        return None, False
    if (limits := _limits(target, given, named)) is not None:
        in_place = (target if isinstance(target, str) else target.__name__).endswith("_")
        return {(0, None): nn.ReLU, (0, 6): nn.ReLU6}.get(limits, lambda: None)(), in_place
    for row in _ACTIVATIONS:
        if not (target in row.methods if isinstance(target, str) else any(target is f for f in row.functions)):
            continue
        options = {**dict(zip(row.arguments, given, strict=False)), **named}
        if len(given) > len(row.arguments) or any(v not in _IGNORED[k] for k, v in options.items() if k in _IGNORED):
            return None, False
        name = target if isinstance(target, str) else getattr(target, "__name__", "")
        in_place = bool(options.pop("inplace", False)) or name.endswith("_")
        plain = {k: v for k, v in options.items() if k not in _IGNORED}
        if any(isinstance(v, fx.Node) for v in plain.values()):
            return None, False
        try:
            return row.module(**plain), in_place
        except TypeError:  # an argument that the module does not have
            return None, False
    return None, False


def _limits(target: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Lower and upper limit of a clamp; None: it is none."""
    if any(target is known or target == known for known in _CLAMPS):
        options = {**dict(zip(("min", "max"), given, strict=False)), **named}
    elif any(target is known or target == known for known in _CLAMPS_BELOW):
        options = {**dict(zip(("min",), given, strict=False)), **named}
    else:
        return None
    low, high = options.get("min"), options.get("max")
    return (low, high) if all(v is None or isinstance(v, int | float) for v in (low, high)) else None


def _owner(node: fx.Node, root: nn.Module) -> str:
    """The module in whose `forward` a call stands."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    if node.op == "call_module":
        return str(node.target).rpartition(".")[0]
    return stack[-1] if stack and stack[-1] in dict(root.named_modules()) else ""


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """All parts in one mode, and as they were afterwards."""
    before = {part: part.training for part in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for part, was in before.items():
            part.training = was


def _compare(model: nn.Module, rewritten: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """See that both give the same numbers, bit by bit, in evaluation mode: on the inputs, on one row of them, and on
    them ten times as large and with other signs."""
    given = tuple(x.detach() for x in inputs)
    batches = [given, tuple(x[:1] for x in given)]
    if all(x.is_floating_point() for x in given):
        batches += [tuple(factor * x for x in given) for factor in (10.0, -1.0)]
    with _mode(model, False), _mode(rewritten, False), torch.no_grad():
        for rows in batches:
            try:
                expected = model(*(x.clone() for x in rows))
                found = rewritten(*(x.clone() for x in rows))
            except Exception as error:  # any error of a stranger's network
                raise InputError(
                    f"{type(model).__name__} does not take inputs of shape {[tuple(x.shape) for x in rows]}:"
                    f" {(str(error) or type(error).__name__).splitlines()[0]}; give inputs= that it takes"
                ) from None
            if not _same(expected, found):
                raise RefusedError(
                    f"the rewritten {type(model).__name__} gives other outputs than the network itself, which computes"
                    " something that cannot be followed (a number that it reads from its input, perhaps). Write its"
                    " activations as modules by hand, or use HardenedIG"
                )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, 0, 0, True)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
