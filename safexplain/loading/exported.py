"""Load an untrusted `torch.export` file as a module, without running any code in it.

`torch.export.load` unpickles, evaluates expressions and executes guards, so the archive is first rewritten (`rewrite`).
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from safexplain.errors import InputError
from safexplain.loading.files import as_input_error, without_logs

_CURRENT = re.compile(
    r"[^/]+/("
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|version|"
    r"data/weights/weight_\d+|data/constants/tensor_\d+|"
    r"data/(weights/model_weights|constants/model_constants)_config\.json|"
    r"models/model\.json|data/sample_inputs/model\.pt)"
)
_FIRST = re.compile(  # the layout of PyTorch 2.5 to 2.7
    r"version|serialized_exported_program\.json|serialized_(state_dict|constants|example_inputs)\.pt"
)
_IGNORED = re.compile(r"([^/]+/)?(extra|extra_files)/.*|.*/")
_EXAMPLES = re.compile(r"data/sample_inputs/model\.pt$|^serialized_example_inputs\.pt$")

_NAME = re.compile(r"[\w.\-]*", re.ASCII)
_VERSION = re.compile(r"[\w.+<=\-]*", re.ASCII)
_OPERATION = re.compile(
    r"torch\.ops\.aten\.(?!from_file\.|save\.)_?[a-zA-Z]\w*\.[a-zA-Z]\w*|"
    r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)|"
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|pow|neg|eq|ne|lt|le|gt|ge|and_|or_|not_)|"
    r"torch\.sym_(max|min|not|float|int|ite|sum)|math\.(trunc|ceil|floor)",
    re.ASCII,
)
_SIZE_PART = re.compile(  # as SymPy writes sizes; every character must belong to one of these
    r"Symbol\('[su]\d+'(, [a-z]+=(True|False))*\)|[-+*/(), <>=]|"
    r"\b([su]\d+|\d{1,18}|oo|true|false|Integer|Rational|Add|Mul|Pow|Max|Min|Mod|Abs|PythonMod|ModularIndexing|"
    r"FloorDiv|CeilDiv|CleanDiv|CeilToInt|FloorToInt|IntTrueDiv|PowByNatural|ToFloat|Identity|Equality|Unequality|"
    r"StrictLessThan|LessThan|StrictGreaterThan|GreaterThan)\b",
    re.ASCII,
)
_LONGEST_SIZE = 2000
_TREE_TYPES = {"builtins.tuple", "builtins.list", "builtins.dict", None}


def is_exported(names: list[str]) -> bool:
    """Whether the members of an archive are those of a `torch.export` file."""
    endings = {name.partition("/")[2] for name in names}
    return "archive_format" in endings or "serialized_exported_program.json" in names


def rewrite(raw: bytes) -> io.BytesIO:
    """A new archive with the checked content of `raw`, for `torch.export.load`: without metadata, guards and extra
    files, on the CPU, and with empty example inputs. InputError: it holds anything that could run code, or that a plain
    exported network lacks."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as source, zipfile.ZipFile(packed, "w") as target:
        names = [name for name in source.namelist() if not _IGNORED.fullmatch(name)]
        if len(set(names)) != len(names):
            raise _refusal("two of its members have the same name")
        for name in names:
            if not (_CURRENT.fullmatch(name) or _FIRST.fullmatch(name)):
                raise _refusal(f"it holds {name!r}, which a plain exported network does not need")
            target.writestr(name, b"" if _EXAMPLES.search(name) else _checked(name, source.read(name)))
    packed.seek(0)
    return packed


def _refusal(reason: str) -> InputError:
    return InputError(
        f"expected a torch.export file of a plain network, but loading this one might run code: {reason}; export the"
        " plain network again, pass its state_dict with --arch, or pass --trust-pickle if you trust the author of the"
        " file"
    )


def _checked(name: str, content: bytes) -> bytes:
    if name.endswith(".pt"):
        try:
            torch.load(io.BytesIO(content), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
            raise _refusal(f"its member {name!r} pickles more than tensors") from None
        return content
    if not name.endswith(".json"):
        return content
    with as_input_error(f"its member {name!r} is damaged", "; export it again"):
        document = json.loads(content)
    if name.endswith(("model.json", "serialized_exported_program.json")) and isinstance(document, dict):
        document["guards_code"] = []
    return json.dumps(_clean(document, key="")).encode()


def _clean(value: Any, *, key: str) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"type", "index"} and isinstance(value["type"], str):
            return {"type": "cpu", "index": None}
        for name in value:
            _check_string(name, key="")
        return {name: {} if name == "metadata" else _clean(inner, key=name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner, key=key) for inner in value]
    if isinstance(value, str):
        _check_string(value, key=key)
    if key == "use_pickle" and value is not False:
        raise _refusal("one of its weights must be unpickled")
    return value


def _check_string(value: str, *, key: str) -> None:
    if key in ("target", "as_operator"):
        allowed = _OPERATION.fullmatch(value) is not None and "__" not in value
    elif key == "expr_str":
        allowed = len(value) <= _LONGEST_SIZE and _SIZE_PART.sub("", value) == ""
    elif key in ("in_spec", "out_spec"):
        allowed = value == "" or _is_specification(value)
    elif key == "torch_version":
        allowed = _VERSION.fullmatch(value) is not None
    else:
        allowed = key in ("as_string", "as_strings") or _NAME.fullmatch(value) is not None
    if not allowed:
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise _refusal(f"its graph holds {shown!r} as {key or 'a name'}")


def _is_specification(serialized: str) -> bool:
    try:
        protocol, spec = json.loads(serialized)
        return protocol == 1 and _is_plain_tree(spec)
    except (TypeError, ValueError, KeyError, RecursionError):
        return False


def _is_plain_tree(spec: Any) -> bool:
    keys = json.loads(spec["context"] or "[]") or []  # of a dict
    plain = isinstance(keys, list) and all(isinstance(key, str) and _NAME.fullmatch(key) for key in keys)
    known = len(spec) == 3 and spec["type"] in _TREE_TYPES
    return plain and known and all(map(_is_plain_tree, spec["children_spec"]))


def operation_of(node: fx.Node) -> tuple[str, dict[str, Any]]:
    """The ATen operation that a node calls, and its arguments by name; ("", {}): none."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return "", {}
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values.update(zip((a.name for a in schema.arguments), node.args, strict=False))
    return str(schema.name).removeprefix("aten::"), values | node.kwargs


def _graphs(module: nn.Module) -> Iterator[fx.GraphModule]:
    return (inner for inner in module.modules() if isinstance(inner, fx.GraphModule))


def frozen_operation(module: nn.Module, *, training: bool) -> str | None:
    """The first operation frozen in training or inference mode that the other mode changes ("batch_norm", "dropout");
    None: none that leaves a trace, unlike stochastic depth."""
    for inner in _graphs(module):
        from_input: set[fx.Node] = set()  # standardised weights do not count
        for node in inner.graph.nodes:
            if node.op != "placeholder" and not from_input.intersection(node.all_input_nodes):
                continue
            from_input.add(node)
            name, values = operation_of(node)
            depends_on_mode = "batch_norm" in name or ("dropout" in name and bool(values.get("p")))
            if depends_on_mode and bool(values.get("training", values.get("train", False))) == training:
                return name
    return None


def embeddings(module: nn.Module) -> set[int]:
    """`id` of each parameter that a graph in `module` uses as an embedding table."""
    found: set[int] = set()
    for inner in _graphs(module):
        for name, values in map(operation_of, inner.graph.nodes):
            if name == "embedding" and isinstance(values["weight"], fx.Node) and values["weight"].op == "get_attr":
                found.add(id(attrgetter(str(values["weight"].target))(inner)))
    return found


HOW_TO_EXPORT = (
    "torch.export.export(model.eval(), (torch.randn(4, ...),), dynamic_shapes=({0: torch.export.Dim('batch')},))"
)
_LARGEST_BATCH = 1024


class ExportedModel(nn.Module):
    """An exported program as a module; `input_shape` is the shape of one example, with None where it varies. Its export
    fixes its mode: `train()` and `eval()` only change the `training` flag."""

    _network = "program"

    def __init__(self, program: nn.Module, input_shape: tuple[int | None, ...]) -> None:
        super().__init__()
        self.program = program
        self.input_shape = input_shape

    def forward(self, x: Tensor) -> Tensor:
        """The program's output for a batch (n, ...)."""
        return cast("Tensor", self.program(x))

    def train(self, mode: bool = True) -> ExportedModel:
        """Set only the flag."""
        self.training = mode
        return self


def load_exported(raw: bytes, *, where: str, trusted: bool) -> tuple[ExportedModel, dict[str, Tensor]]:
    """Load a `torch.export` archive on the CPU: the model, and its weights under their original names; all of it if
    `trusted`, else what `rewrite` keeps. InputError: it is damaged, of another PyTorch version, might run code, takes
    other inputs than one batch of float32, has a fixed or narrow batch dimension, or was exported in training mode."""
    here = f"PyTorch {torch.__version__}"
    try:
        what = f"the torch.export file is damaged or cannot be loaded with {here}"
        with as_input_error(what, f"; export it with {here}"), without_logs():
            program = torch.export.load(io.BytesIO(raw) if trusted else rewrite(raw))
            module = program.module()
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if (operation := frozen_operation(module, training=True)) is not None:
        raise InputError(
            f"expected a model in evaluation mode, but {where} was exported in training mode ({operation} is active);"
            f" export it again: {HOW_TO_EXPORT}"
        )
    model = ExportedModel(module, _example_shape(program, where))
    model.training = False
    return model.cpu(), {name: tensor.detach() for name, tensor in program.state_dict.items()}


def _example_shape(program: ExportedProgram, where: str) -> tuple[int | None, ...]:
    given = program.graph_signature.user_inputs
    inputs = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder" and n.name in given]
    if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
        raise InputError(f"{where}: expected a model of one tensor (n, ...), got one with {len(inputs)} inputs")
    batch = inputs[0]
    shape = f"({', '.join(map(str, batch.shape))})"
    if batch.dtype != torch.float32 or batch.ndim < 2:
        raise InputError(
            f"{where}: expected a model of a batch (n, ...) of torch.float32, got one of {shape} of {batch.dtype};"
            " export model.float(), or the part of the model after its integer inputs"
        )
    size: Any = batch.shape[0]
    if isinstance(size, int):
        low, high, rows = size, size, f"exactly {size}"
    else:
        limits = program.range_constraints.get(size.node.expr)
        low, high = (2, _LARGEST_BATCH) if limits is None else (limits.lower, limits.upper)
        rows = f"{low} to {high}"
    if low > 2 or high < _LARGEST_BATCH:
        raise InputError(
            f"{where}: expected a model of batches of 1 to {_LARGEST_BATCH} rows, got one of {rows} rows; export it"
            f" again: {HOW_TO_EXPORT}"
        )
    return tuple(dim if isinstance(dim, int) else None for dim in batch.shape[1:])


# --- layers in place of operations -----------------------------------------------------------------------------------

_CONVOLUTIONS = {"conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d}
_OPERATIONS = ("linear", *_CONVOLUTIONS, "batch_norm", "layer_norm", "group_norm")


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of inputs with any number of dimensions, which the graph does not give."""

    def _check_input_dim(self, input: Tensor) -> None: ...


def _layer(name: str, weight: Tensor, values: dict[str, Any]) -> nn.Module:
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
    """A copy of an exported model in which layers of torch replace operations that equal them, bit for bit, as training
    with differential privacy needs; names stay. Other models are returned unchanged. With `batch_norm`, batch
    normalisation is replaced too, which then normalises by the batch in training mode."""
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
    """Names of the parameters that bare operations of an exported graph use."""
    plain = {name for name, module in model.named_modules() if type(module) is nn.Module}
    return [name for name, _ in model.named_parameters() if name.rpartition(".")[0] in plain]


def _use(root: fx.GraphModule, node: fx.Node) -> tuple[str, nn.Module] | None:
    """Name of the module with an operation's parameters, and the layer that can replace it; None: none can."""
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
