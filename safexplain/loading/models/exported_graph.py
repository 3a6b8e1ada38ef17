"""What the graph of an exported program says about how it was exported and how its parameters are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import Tensor, fx, nn

_NORMALISATION = "batch_norm"
_DROPOUT = "dropout"


@dataclass(frozen=True)
class _Operation:
    """One ATen call: its name, its arguments by name, and whether it works on what the model was given."""

    name: str
    values: dict[str, Any]
    node: fx.Node
    on_input: bool

    @property
    def trains(self) -> bool:
        return bool(self.values.get("training", self.values.get("train", False)))

    @property
    def depends_on_mode(self) -> bool:
        """Batch normalisation or a dropout that drops; of the input, not of a weight to standardise."""
        return self.on_input and (_NORMALISATION in self.name or (_DROPOUT in self.name and bool(self.values.get("p"))))


def _operations(module: nn.Module) -> Iterator[_Operation]:
    """Every ATen call of every graph inside `module`."""
    for graph_module in module.modules():
        if not isinstance(graph_module, fx.GraphModule):
            continue
        given: set[fx.Node] = set()
        for node in graph_module.graph.nodes:
            if node.op == "placeholder" or given.intersection(node.all_input_nodes):
                given.add(node)
            schema = getattr(node.target, "_schema", None)
            if node.op != "call_function" or schema is None:
                continue
            values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
            values.update(zip((a.name for a in schema.arguments), node.args, strict=False))
            name = str(schema.name).removeprefix("aten::")
            yield _Operation(name, values | node.kwargs, node, node in given)


def training_operation(module: nn.Module) -> str | None:
    """The first operation exported in training mode ("batch_norm", "dropout"), or None.

    With such an operation a prediction depends on chance or on the other rows of the batch.
    """
    return next((o.name for o in _operations(module) if o.depends_on_mode and o.trains), None)


def inference_operation(module: nn.Module) -> str | None:
    """The first operation frozen in inference mode that would act otherwise in training, or None.

    What leaves no trace in an inference graph, such as stochastic depth, cannot be found.
    """
    return next((o.name for o in _operations(module) if o.depends_on_mode and not o.trains), None)


def embeddings(module: nn.Module) -> set[int]:
    """`id` of each parameter that a graph inside `module` uses as an embedding table."""
    found: set[int] = set()
    for operation in _operations(module):
        table = operation.values.get("weight")
        if operation.name == "embedding" and isinstance(table, fx.Node) and table.op == "get_attr":
            owner = operation.node.graph.owning_module
            tensor = attrgetter(str(table.target))(owner) if owner is not None else None
            if isinstance(tensor, Tensor):
                found.add(id(tensor))
    return found
