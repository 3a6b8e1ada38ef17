"""Turns functions into modules by symbolic tracing (torch.fx), for methods that change what activation modules pass
back."""

from __future__ import annotations

import copy
from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from safexplain.errors import InputError, RefusedError

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


def _rewrite(graph: fx.Graph, root: nn.Module) -> int:
    """Replace each function by a module; return the number of changes."""
    changes, called = 0, set[str]()
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.op == "call_module":
            part = root.get_submodule(str(node.target))
            if isinstance(part, tuple(kind for kind, _, _ in _ACTIVATIONS)) and node.target in called:
                node.target = _added(root, copy.deepcopy(part))
                changes += 1
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
        changes += 1
    graph.lint()
    return changes


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
