"""Turn an exported graph into a network of layers, as training with differential privacy needs.

A `torch.export` graph applies its weights in bare operations, in which per-example gradients are not available. Each
operation that equals a layer of torch is replaced by it; outputs stay the same, bit for bit.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, fx, nn

from safexplain.loading.models.exported import ExportedModel, operation_of

_CONVOLUTIONS = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}
_OPERATIONS = ("linear", *_CONVOLUTIONS, "batch_norm", "layer_norm", "group_norm")


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of inputs with any number of dimensions, which the graph does not give."""

    def _check_input_dim(self, input: Tensor) -> None: ...


def _layer(name: str, weight: Tensor, values: dict[str, Any]) -> nn.Module:
    """The layer for one of `_OPERATIONS`, with the size of a weight and the operation's other arguments."""
    bias = values["bias"] is not None
    with torch.device("meta"):
        if name == "linear":
            return nn.Linear(weight.shape[1], weight.shape[0], bias)
        if name == "batch_norm":
            return _AnyBatchNorm(len(weight), values["eps"], values["momentum"])
        if name == "layer_norm":
            return nn.LayerNorm(tuple(values["normalized_shape"]), values["eps"], bias=bias)
        if name == "group_norm":
            return nn.GroupNorm(values["num_groups"], len(weight), values["eps"])
        sizes = {n: values[n] for n in ("stride", "padding", "dilation")}
        sizes = {n: v if isinstance(v, str) else tuple(v) if len(v) > 1 else v[0] for n, v in sizes.items()}
        kernel: Any = tuple(weight.shape[2:])
        groups = values["groups"]
        return _CONVOLUTIONS[name](weight.shape[1] * groups, len(weight), kernel, groups=groups, bias=bias, **sizes)


def with_layers(model: nn.Module, *, batch_norm: bool = False) -> nn.Module:
    """A copy of an exported model that calls layers and can be put into training mode; it computes the same, and has
    the same names of parameters and buffers. Other models are returned unchanged.

    Plain modules hold the parameters of other operations, see `without_layer`. With `batch_norm`, batch normalisation
    is replaced too, which then normalises by the batch in training mode.
    """
    if not isinstance(model, ExportedModel) or not isinstance(model.program, fx.GraphModule):
        return model
    root = copy.deepcopy(model.program)
    graph = root.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users and str(node.target).startswith("_guards"):
            graph.erase_node(node)
    uses: dict[str, dict[fx.Node, nn.Module]] = {}  # module with parameters -> operations on them, and their layers
    for node in graph.nodes:
        if (use := _use(root, node)) is not None and (batch_norm or not isinstance(use[1], _AnyBatchNorm)):
            uses.setdefault(use[0], {})[node] = use[1]
    for holder, calls in uses.items():
        held = [n for n in graph.nodes if n.op == "get_attr" and str(n.target).rpartition(".")[0] == holder]
        if len(set(map(repr, calls.values()))) > 1 or any(user not in calls for n in held for user in n.users):
            continue
        layer = next(iter(calls.values()))
        for name, parameter in root.get_submodule(holder).named_parameters(recurse=False):
            layer.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            own = getattr(root.get_submodule(holder), name, None)
            layer.register_buffer(name, torch.zeros_like(buffer, device="cpu") if own is None else own)
        parent, _, name = holder.rpartition(".")
        setattr(root.get_submodule(parent), name, layer)
        for node in calls:
            with graph.inserting_before(node):
                call = graph.call_module(holder, (node.all_input_nodes[0],))
            node.replace_all_uses_with(call)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    layered = fx.GraphModule(root, graph, class_name="ExportedNetwork")
    return layered.train(model.training)


def without_layer(model: nn.Module) -> list[str]:
    """Names of the parameters outside layers, used by bare operations of an exported graph."""
    plain = {name for name, module in model.named_modules() if type(module) is nn.Module}
    return [name for name, _ in model.named_parameters() if name.rpartition(".")[0] in plain]


def _use(root: fx.GraphModule, node: fx.Node) -> tuple[str, nn.Module] | None:
    """Name of the module with the parameters of an operation, and the layer that can replace it; None: none can."""
    name, values = operation_of(node)
    if name not in _OPERATIONS:
        return None
    held = {n: values[n] for n in ("weight", "bias", "running_mean", "running_var") if n in values}
    if held["bias"] is None:
        del held["bias"]
    holder = str(getattr(held["weight"], "target", "")).rpartition(".")[0]
    places = {n: isinstance(v, fx.Node) and v.op == "get_attr" and v.target for n, v in held.items()}
    others = [v for n, v in values.items() if n not in ("input", *held)]
    if not holder or places != {n: f"{holder}.{n}" for n in held} or not isinstance(values["input"], fx.Node):
        return None
    if any(isinstance(part, fx.Node) for v in others for part in (v if isinstance(v, list) else [v])):
        return None
    module = root.get_submodule(holder)
    parameters = dict(module.named_parameters(recurse=False))
    if type(module) is not nn.Module or parameters.keys() != held.keys() & {"weight", "bias"} or module._modules:
        return None
    return holder, _layer(name, parameters["weight"], values)
