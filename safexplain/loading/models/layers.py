"""An exported graph as a network of layers, for trainings that look at layers: with differential privacy, for example.

A graph of `torch.export` multiplies by its weights in bare operations, so that nobody can tell one example's part in
the gradient of a layer. Where an operation is what a layer of torch does with parameters of its own, the layer takes
its place, under the name that the parameters have in the graph; outputs stay the same, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from safexplain.loading.models.exported import ExportedModel

Values = Mapping[str, Any]
"""Name -> value of an operation's arguments."""


def _linear(weight: torch.Tensor, bias: bool, _: Values) -> nn.Module:
    return nn.Linear(weight.shape[1], weight.shape[0], bias=bias, device="meta")


def _convolution(kind: type[nn.Module]) -> Callable[[torch.Tensor, bool, Values], nn.Module]:
    def made(weight: torch.Tensor, bias: bool, values: Values) -> nn.Module:
        groups, padding = values["groups"], values["padding"]
        sizes = {n: tuple(values[n]) if len(values[n]) > 1 else values[n][0] for n in ("stride", "dilation")}
        if not isinstance(padding, str):
            padding = tuple(padding) if len(padding) > 1 else padding[0]
        return kind(weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), padding=padding, groups=groups,
                    bias=bias, device="meta", **sizes)  # fmt: skip

    return made


def _layer_norm(_: torch.Tensor, bias: bool, values: Values) -> nn.Module:
    return nn.LayerNorm(tuple(values["normalized_shape"]), values["eps"], bias=bias, device="meta")


def _group_norm(weight: torch.Tensor, _: bool, values: Values) -> nn.Module:
    return nn.GroupNorm(values["num_groups"], len(weight), values["eps"], device="meta")


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Of inputs of any number of dimensions, which the graph does not tell."""

    def _check_input_dim(self, input: torch.Tensor) -> None: ...


def _batch_norm(weight: torch.Tensor, _: bool, values: Values) -> nn.Module:
    return _AnyBatchNorm(len(weight), values["eps"], values["momentum"], device="meta")


LAYERS: dict[str, Callable[[torch.Tensor, bool, Values], nn.Module]] = {
    "aten::linear": _linear,
    "aten::conv1d": _convolution(nn.Conv1d),
    "aten::conv2d": _convolution(nn.Conv2d),
    "aten::conv3d": _convolution(nn.Conv3d),
    "aten::batch_norm": _batch_norm,
    "aten::layer_norm": _layer_norm,
    "aten::group_norm": _group_norm,
}
"""Name of an operation -> makes the layer that does it, from its weight, whether there is a bias, and its arguments."""


@dataclass(frozen=True)
class _Use:
    """A call, `node`, of an operation that `layer` can take over; `holder` is the name of the module with its
    parameters, `settings` all that tells the layer from others."""

    node: fx.Node
    holder: str
    layer: nn.Module
    settings: str


def with_layers(model: nn.Module, *, batch_norm: bool = False) -> nn.Module:
    """A copy of an exported model that calls layers; any other model as it is.

    Args:
        model: left as it is.
        batch_norm: layers also take over batch normalisation, and normalise by the batch in training mode.

    Returns:
        A module that computes the same, whose parameters and buffers have the names of the exported network. It can be
        put into training mode. Parameters that are used in other operations than layers are held by plain modules, see
        `without_layer`.
    """
    if not isinstance(model, ExportedModel) or not isinstance(model.program, fx.GraphModule):
        return model
    root = copy.deepcopy(model.program)
    graph = root.graph
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users and str(node.target).startswith("_guards"):
            graph.erase_node(node)
    uses: dict[str, list[_Use]] = {}
    for node in graph.nodes:
        if (use := _use(root, node)) is not None and (batch_norm or not isinstance(use.layer, _AnyBatchNorm)):
            uses.setdefault(use.holder, []).append(use)
    for holder, found in uses.items():
        calls = {use.node for use in found}
        held = [n for n in graph.nodes if n.op == "get_attr" and str(n.target).rpartition(".")[0] == holder]
        if len({use.settings for use in found}) > 1 or any(user not in calls for n in held for user in n.users):
            continue
        layer = found[0].layer
        for name, parameter in root.get_submodule(holder).named_parameters(recurse=False):
            layer.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            own = getattr(root.get_submodule(holder), name, None)
            layer.register_buffer(name, torch.zeros_like(buffer, device="cpu") if own is None else own)
        parent, _, name = holder.rpartition(".")
        setattr(root.get_submodule(parent), name, layer)
        for use in found:
            with graph.inserting_before(use.node):
                call = graph.call_module(holder, (use.node.all_input_nodes[0],))
            use.node.replace_all_uses_with(call)
            graph.erase_node(use.node)
    graph.eliminate_dead_code()
    layered = fx.GraphModule(root, graph, class_name="ExportedNetwork")
    return layered.train(model.training)


def without_layer(model: nn.Module) -> list[str]:
    """Names of the parameters that no layer holds: those of bare operations of an exported graph."""
    plain = {name for name, module in model.named_modules() if type(module) is nn.Module}
    return [name for name, _ in model.named_parameters() if name.rpartition(".")[0] in plain]


def _use(root: fx.GraphModule, node: fx.Node) -> _Use | None:
    """What a layer can take over of a call, if that is so."""
    schema = getattr(node.target, "_schema", None)
    make = LAYERS.get(str(schema.name)) if schema is not None and node.op == "call_function" else None
    if make is None or schema is None:
        return None
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values.update(zip((a.name for a in schema.arguments), node.args, strict=False))
    values |= dict(node.kwargs)
    given, weight, bias = values["input"], values["weight"], values["bias"]
    buffers = [n for n in ("running_mean", "running_var") if n in values]
    others = [v for n, v in values.items() if n not in ("input", "weight", "bias", *buffers)]
    holder = _holder(weight, "weight")
    fits = isinstance(given, fx.Node) and holder and (bias is None or _holder(bias, "bias") == holder)
    fits = fits and all(_holder(values[n], n) == holder for n in buffers)
    if not fits or any(isinstance(part, fx.Node) for v in others for part in (v if isinstance(v, list) else [v])):
        return None
    module = root.get_submodule(holder)
    names = {name for name, _ in module.named_parameters(recurse=False)}
    if (
        type(module) is not nn.Module
        or names != ({"weight"} if bias is None else {"weight", "bias"})
        or len(list(module.children()))
    ):
        return None
    layer = make(module.weight, bias is not None, values)  # type: ignore[arg-type]
    return _Use(node, holder, layer, repr(layer))


def _holder(node: Any, name: str) -> str:
    """Name of the module whose parameter of this name a node reads; "" for anything else."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return ""
    holder, _, last = str(node.target).rpartition(".")
    return holder if last == name else ""
