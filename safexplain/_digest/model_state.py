"""What a model computes with, wherever it keeps it: what the digest of a model is made of.

network_of   the network behind wrappers that compute nothing: DataParallel, torch.compile, `lambda x: net(x)`, ...
state_of     its parts one by one: classes, tensors, packed weights, numbers, graphs and their constants
bytes_of     a tensor's values, whatever class, device and memory format hold them
gist         what a function does, told from its code

Of the attributes of modules, tensors and numbers count, and texts, tuples, lists, dicts and functions that the code
which `forward` reaches reads by name. What this code itself writes does not: a cache, a counter of calls or a kept
activation would make the digest, and with it the noise, another one at each query. Of Python code, the names of classes
stand for it.
"""

from __future__ import annotations

import dis
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

_WIDEST = 1000
"""Items of a list or dict that are looked at."""

_DEEPEST = 8

_MODES = frozenset({"training", "inplace"})
"""Attributes that change no answer of a model in evaluation mode."""

_CHANGERS = frozenset(
    {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove"}
)
_SETTERS = frozenset({"register_buffer", "setattr", "__setattr__"})
_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


Kind = Literal["tensor", "array", "packed", "estimator", "plain"]


class Part(NamedTuple):
    """One thing that a model computes with.

    Args:
        path: where it is in the model.
        kind: "tensor", "array" (of NumPy), "packed" (an object of TorchScript, such as packed weights), "estimator" (of
            scikit-learn), or "plain" for texts, numbers and tuples of these.
        value: the thing.
        visible: whether it tells this model from another one of its class.
    """

    path: str
    kind: Kind
    value: Any
    visible: bool = True


def is_module(value: object) -> TypeGuard[nn.Module]:
    """Whether a value is a torch module; imports nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


# Wrappers


def network_of(forward_func: object) -> nn.Module | None:
    """The module that does the work: wrappers that only hand inputs on and answers back are taken off.

    Known are `nn.DataParallel` and `DistributedDataParallel`, what `torch.compile` gives, modules of this package whose
    class says so in `_network`, an `nn.Sequential` of one, bound methods `forward` and `__call__`, `functools.partial`
    without arguments, and functions and modules whose code is nothing but `return net(x)`.

    Args:
        forward_func: a module or any callable.

    Returns:
        The module, or None where the callable is no module and does more than call one.
    """
    found: Any = forward_func
    module = None
    for _ in range(_DEEPEST * 4):
        if is_module(found):
            module = found
        found = _inside_module(found) if is_module(found) else _inside_callable(found)
        if found is None:
            break
    return module


def _inside_module(module: Any) -> Any:
    kind = type(module)
    children = module._modules
    if name := getattr(kind, "_network", None):
        return children.get(name)
    if kind.__module__.startswith("torch.") and kind.__name__ in _TORCH_WRAPPERS:
        return children.get(_TORCH_WRAPPERS[kind.__name__])
    if module._forward_hooks or module._forward_pre_hooks or module._parameters or module._buffers:
        return None
    if kind.__name__ == "Sequential" and kind.__module__ == "torch.nn.modules.container":
        return next(iter(children.values())) if len(children) == 1 else None
    if kind.__module__.startswith("torch."):
        return None
    forward = vars(module).get("forward", kind.forward)
    if not isinstance(forward, types.FunctionType):
        return None
    inner = _called_by(forward, module)
    return inner if is_module(inner) else _inside_callable(inner)


_TORCH_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}


def _inside_callable(value: Any) -> Any:
    if isinstance(value, partial):
        return None if value.args or value.keywords else value.func
    if isinstance(value, types.MethodType):
        owner, function = value.__self__, value.__func__
        if is_module(owner) and function in (type(owner).forward, type(owner).__call__):
            return owner
        return _called_by(function, owner) if isinstance(function, types.FunctionType) else None
    return _called_by(value) if isinstance(value, types.FunctionType) else None


_SILENT = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS", "PUSH_NULL", "PRECALL", "EXTENDED_ARG", "NOT_TAKEN"}


def _called_by(function: types.FunctionType, *owner: object) -> Any:
    """What a function calls with its own arguments, if it does nothing else; otherwise None.

    Args:
        function: read instruction by instruction.
        owner: of a method.
    """
    if (names := _callee_of(function.__code__, len(owner))) is None:
        return None
    first, *rest = names
    callee = owner[0] if owner and first == function.__code__.co_varnames[0] else _references(function).get(first)
    for name in rest:
        callee = getattr(callee, name, None)
    return callee


@lru_cache(maxsize=4096)
def _callee_of(code: CodeType, owners: int) -> tuple[str, ...] | None:
    """("net", "forward") for `lambda x: net.forward(x)`, and None for all code that does anything else."""
    taken = code.co_varnames[owners : code.co_argcount]
    if code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or not taken:
        return None
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    if len(steps) < 4 or steps[-1].opname != "RETURN_VALUE" or steps[-2].opname != "CALL":
        return None
    first, *rest = steps[:-2]
    own = owners and first.opname.startswith("LOAD_FAST") and first.argval == code.co_varnames[0]
    if not own and first.opname not in ("LOAD_DEREF", "LOAD_GLOBAL"):
        return None
    names = [first.argval]
    while rest and rest[0].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        names.append(rest.pop(0).argval)
    given: list[str] = []
    for step in rest:
        if not step.opname.startswith("LOAD_FAST"):
            return None
        given += step.argval if isinstance(step.argval, tuple) else [step.argval]
    return tuple(names) if tuple(given) == taken else None


# What modules hold


def state_of(module: nn.Module) -> list[Part]:
    """The parts of a module that its answers depend on, in a fixed order.

    Args:
        module: as `network_of` gives it; wrappers inside it are taken off too.
    """
    walk = _Walk(_names_in(module))
    walk.module("", module)
    return walk.parts


def plain_parts(path: str, value: object) -> list[Part]:
    """The parts of a value as an attribute that is read would have them."""
    walk = _Walk(_NO_NAMES)
    walk.value(path, value)
    return walk.parts


class _Names(NamedTuple):
    """Of attributes: those that the code which `forward` reaches reads, and those that it writes."""

    reads: frozenset[str]
    writes: frozenset[str]


_NO_NAMES = _Names(frozenset(), frozenset())


_LEFT_BY_CAPTUM = frozenset({"input", "output"})
"""What Captum's own DeepLift leaves on activation modules of torch: what ran through them last."""


class _Walk:
    """Goes through a model once and lists its parts."""

    def __init__(self, names: _Names) -> None:
        self.parts: list[Part] = []
        self._names = names
        self._ignored = names.writes | _base_names() | _MODES
        self._seen: set[int] = set()

    def _add(self, path: str, kind: Kind, value: Any, visible: bool = True) -> None:
        self.parts.append(Part(path, kind, value, visible))

    def module(self, path: str, module: nn.Module) -> None:
        """A module, and those inside it that were not met yet."""
        kind: Any = type(module)
        if _may_wrap(kind):
            module = network_of(module) or module
            kind = type(module)
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        if _is_script(module):
            self._add(path, "plain", "TorchScript", visible=False)
            self._script(path, module)
            return
        torchs = _is_torchs(kind)
        graph = kind.__qualname__.startswith("GraphModule.")  # torch makes a class for each
        self._add(path, "plain", "GraphModule" if graph else kind.__qualname__, visible=False)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                self._add(f"{path}.{name}", "tensor", parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None and not (name in self._names.writes and name in module._non_persistent_buffers_set):
                self._add(f"{path}.{name}", "tensor", buffer)
        if graph:
            self._add(path, "plain", module.code)
        self._attributes(path, module, torchs)
        for name, child in module._modules.items():
            if child is not None:
                self.module(f"{path}.{name}" if path else name, child)

    def _attributes(self, path: str, module: nn.Module, torchs: bool) -> None:
        own, numbers = vars(module), list[Any]()
        for name in sorted(own.keys() - self._ignored):
            value = own[name]
            kind = type(value)
            if value is None or (torchs and name in _LEFT_BY_CAPTUM):
                continue
            if torchs and name[0] == "_":  # derived from the public ones
                counts = _is_torch(value, "Tensor", "ScriptObject")
            elif kind in _FAST:
                counts = False
                numbers.append((name, kind.__name__, value))
            elif kind is tuple and _FAST.issuperset(kinds := tuple(map(type, value))):
                counts = False
                if name in self._names.reads:
                    numbers.append((name, kinds, value))
            else:
                counts = name in self._names.reads or _always_counts(value)
            if counts:
                self.value(f"{path}.{name}", value, visible=not torchs)
        if numbers:
            self._add(path, "plain", tuple(numbers), visible=not torchs)

    def value(self, path: str, value: Any, depth: int = 0, visible: bool = True) -> None:
        """What an attribute, a closure or a graph holds, as far as it can be told."""
        if depth > _DEEPEST or value is None:
            return
        if _is_torch(value, "Tensor"):
            self._add(path, "tensor", value)
        elif is_module(value):
            self.module(path, value)
        elif _is_torch(value, "ScriptObject"):
            self._add(path, "packed", value)
        elif _is_estimator(value):
            self._add(path, "estimator", value)
        elif isinstance(value, Enum):
            self._add(path, "plain", (type(value).__qualname__, value.name), visible)
        elif isinstance(value, np.ndarray):
            if not value.dtype.hasobject:
                self._add(path, "array", value)
        elif isinstance(value, (*_NUMBERS, str, bytes, range, slice)):
            plain = value.item() if isinstance(value, np.generic) else value
            self._add(path, "plain", (type(plain).__name__, plain), visible)
        elif _is_torch(value, "dtype", "memory_format"):
            self._add(path, "plain", str(value), visible)
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            self.function(path, value, depth)
        else:
            self._container(path, value, depth, visible)

    def _container(self, path: str, value: Any, depth: int, visible: bool) -> None:
        if isinstance(value, Mapping) and len(value) <= _WIDEST:
            self._add(path, "plain", "mapping", visible=False)
            for key in sorted(value, key=repr):
                if isinstance(key, (*_NUMBERS, str, bytes, tuple)):
                    self.value(f"{path}[{key!r}]", value[key], depth + 1, visible)
        elif isinstance(value, set | frozenset) and len(value) <= _WIDEST:
            plain = (repr(item) for item in value if isinstance(item, (*_NUMBERS, str, bytes, tuple)))
            self._add(path, "plain", ("set", *sorted(plain)), visible)
        elif isinstance(value, list | tuple) and len(value) <= _WIDEST:
            self._add(path, "plain", ("sequence", len(value)), visible=False)
            for i, item in enumerate(value):
                self.value(f"{path}[{i}]", item, depth + 1, visible)
        elif isinstance(value, partial):
            self.value(f"{path}()", (value.func, value.args, value.keywords), depth + 1, visible)
        elif isinstance(value, types.SimpleNamespace) or (is_dataclass(value) and not isinstance(value, type)):
            names = [f.name for f in fields(value)] if is_dataclass(value) else [*vars(value)]
            for name in sorted({*names} - self._names.writes):
                self.value(f"{path}.{name}", getattr(value, name, None), depth + 1, visible)

    def function(self, path: str, function: Any, depth: int = 0) -> None:
        """Name and gist of a function, and numbers, texts and tensors of its closure, defaults and globals."""
        self._add(path, "plain", ("function", function.__module__, function.__qualname__), visible=False)
        if not isinstance(function, types.FunctionType) or _is_librarys(function):
            return
        self._add(path, "plain", gist(function.__code__), visible=False)
        found = {**_references(function), "()": function.__defaults__, "(*)": function.__kwdefaults__}
        for name in sorted(found.keys() - _names_of_code(function.__code__).writes):
            if not isinstance(found[name], _NOT_IN_FUNCTIONS) and not is_module(found[name]):
                self.value(f"{path}:{name}", found[name], depth + 1)

    def _script(self, path: str, module: Any) -> None:
        if (script := _scripts.get(module)) is None:
            _scripts[module] = script = _read_script(module)
        self._add(path, "plain", script.text)
        for i, constant in enumerate(script.constants):
            self.value(f"{path}#{i}", constant)
        for names in script.paths:
            value: Any = module
            for name in names:
                value = getattr(value, name)
            self.value(f"{path}.{'.'.join(names)}", value)


_FAST = frozenset({bool, int, float, complex})
_NOT_IN_FUNCTIONS = (types.ModuleType, type, types.FunctionType, list, dict)


def _always_counts(value: object) -> bool:
    if isinstance(value, (*_NUMBERS, np.ndarray)):
        return True
    return _is_torch(value, "Tensor", "ScriptObject") or _is_estimator(value)


def _is_librarys(function: types.FunctionType) -> bool:
    """Name and version stand for the code of libraries, and their globals lead everywhere."""
    return (function.__module__ or "").partition(".")[0] in ("torch", "captum", "numpy", "sklearn")


@lru_cache(maxsize=1024)
def _is_torchs(kind: Any) -> bool:
    return str(kind.__module__).startswith("torch.")


@lru_cache(maxsize=1024)
def _may_wrap(kind: Any) -> bool:
    return not _is_torchs(kind) or kind.__name__ in _TORCH_WRAPPERS or kind.__name__ == "Sequential"


@lru_cache(maxsize=1)
def _base_names() -> frozenset[str]:
    """What every module holds, and what `compile` in place and loaders leave in it."""
    torch = sys.modules["torch"]
    return frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "_is_hf_initialized", "forward"}


def _is_torch(value: object, *kinds: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, tuple([getattr(torch, kind) for kind in kinds]))


def _is_estimator(value: object) -> bool:
    kind: Any = type(value)
    return _is_estimators(kind)


@lru_cache(maxsize=1024)
def _is_estimators(kind: Any) -> bool:
    return any(base.__name__ == "BaseEstimator" and base.__module__ == "sklearn.base" for base in kind.__mro__)


# Names that code reads and writes


def _names_in(module: nn.Module) -> _Names:
    """Over all classes in a model, and functions set as `forward` or as hooks of its modules."""
    kinds, loose = set(), set[CodeType]()
    for part in module.modules():
        kinds.add(type(part))
        own = vars(part)
        hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values()) if "_forward_hooks" in own else ()
        for function in (own.get("forward"), *hooks):
            function = getattr(function, "__func__", function)
            if isinstance(function, types.FunctionType):
                loose.add(function.__code__)
    return _names_of(frozenset(kinds), frozenset(loose))


@lru_cache(maxsize=64)
def _names_of(kinds: frozenset[type], loose: frozenset[CodeType]) -> _Names:
    found = [*map(_names_of_class, kinds), *map(_names_of_code, loose)]
    return _Names(*(frozenset().union(*sets) for sets in zip(*found, strict=True)))


_by_class: WeakKeyDictionary[type, _Names] = WeakKeyDictionary()


def _names_of_class(kind: type) -> _Names:
    """Of `forward` and the methods of its class whose names it reads, and those that these read, and so on."""
    if (known := _by_class.get(kind)) is not None:
        return known
    module = sys.modules["torch"].nn.Module
    reads, writes = set[str](), set[str]()
    waiting, met = ["forward", "__call__"], set[str]()
    while waiting:
        name = waiting.pop()
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if name in met or owner in (None, module, object):
            continue
        met.add(name)
        member = vars(owner)[name]
        for inner in ("fget", "func", "__func__"):  # of a property, a cached one, a class method
            member = getattr(member, inner, member)
        if isinstance(member := _unwrapped(member), types.FunctionType):
            found = _names_of_code(member.__code__)
            reads |= found.reads
            writes |= found.writes
            waiting += found.reads
    _by_class[kind] = _Names(frozenset(reads), frozenset(writes))
    return _by_class[kind]


def _unwrapped(function: Any) -> Any:
    """A function behind decorators such as `torch.no_grad`."""
    for _ in range(_DEEPEST):
        function = getattr(function, "__wrapped__", function)
    return function


@lru_cache(maxsize=4096)
def _names_of_code(code: CodeType) -> _Names:
    """Names that a function and its inner ones load or hold as texts, and those of which it changes what they name."""
    texts = {c for c in code.co_consts if isinstance(c, str) and c.isidentifier()}
    reads, writes = {*code.co_names, *code.co_freevars, *texts}, set[str]()
    if _SETTERS & {*code.co_names}:
        writes |= texts
    steps = [step for step in dis.get_instructions(code) if step.opname not in _SILENT]
    for i, (step, after) in enumerate(zip(steps, [*steps[1:], None], strict=True)):
        if step.opname in ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
            writes.add(step.argval)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):  # the last one from Python 3.12 on
            writes |= _container(steps, i, 2 if step.opname == "STORE_SLICE" else 1)
        elif step.opname.startswith("LOAD_") and after and after.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            method = str(after.argval)
            if _is_called(after) and (method in _CHANGERS or (method.endswith("_") and not method.endswith("__"))):
                writes |= {step.argval} if isinstance(step.argval, str) else set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_of_code(constant)
            reads, writes = reads | inner.reads, writes | inner.writes
    return _Names(frozenset(reads), frozenset(writes))


def _is_called(step: dis.Instruction) -> bool:
    """Whether an attribute is loaded to be called: `x.add_(1)`, and not `estimator.classes_`."""
    if sys.version_info >= (3, 12):
        return bool((step.arg or 0) & 1)
    return step.opname == "LOAD_METHOD"


def _container(steps: list[dis.Instruction], at: int, keys: int) -> set[str]:
    """Name of what `container[key] = value` writes into: its load comes before all that makes the key (of a slice, its
    two ends)."""
    depth = 0
    for i in range(at - 1, 0, -1):
        depth += dis.stack_effect(steps[i].opcode, steps[i].arg if steps[i].opcode >= dis.HAVE_ARGUMENT else None)
        if depth == keys:
            before = steps[i - 1]
            return {before.argval} if before.opname.startswith("LOAD_") and isinstance(before.argval, str) else set()
    return set()


# Functions


@lru_cache(maxsize=4096)
def gist(code: CodeType) -> str:
    """What a function does, in few words: names, constants and operations in their order, inner functions too.

    It does not say where the code stands, nor how its variables are called.
    """
    words = []
    for step in dis.get_instructions(code):
        if step.opname.startswith("LOAD_CONST") or step.opname in ("LOAD_SMALL_INT", "RETURN_CONST"):
            if isinstance(step.argval, CodeType):
                words.append(f"({gist(step.argval)})")
            elif step.argval is not None:
                words.append(
                    repr(sorted(map(repr, step.argval)) if isinstance(step.argval, frozenset) else step.argval)
                )
        elif step.opname in ("BINARY_OP", "COMPARE_OP", "IS_OP", "CONTAINS_OP"):
            words.append(step.argrepr)
        elif step.opname.startswith(("UNARY_", "BINARY_")):
            words.append(step.opname)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "STORE_ATTR"):
            words.append(str(step.argval))
    return " ".join(words)


def values_of_function(function: Any) -> list[Part]:
    """What a function computes with beside the modules in it: numbers, texts and tensors of closure and globals."""
    walk = _Walk(_NO_NAMES)
    function = getattr(function, "__func__", function)
    while isinstance(function, partial):
        walk.value("partial", (function.args, function.keywords))
        function = function.func
    if isinstance(function, types.FunctionType):
        walk.function("", function)
    return walk.parts


def _references(function: types.FunctionType) -> dict[str, Any]:
    """Closure variables, and the globals that a function names."""
    found = {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


# TorchScript

_MANGLED = re.compile(r"___torch_mangle_\d+\.")


class _Script(NamedTuple):
    """The graph of a scripted module as a text, its tensor constants, and the attributes that it reads, as paths."""

    text: str
    constants: tuple[Any, ...]
    paths: tuple[tuple[str, ...], ...]


_scripts: WeakKeyDictionary[nn.Module, _Script] = WeakKeyDictionary()


def _is_script(module: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(module, torch.jit.ScriptModule)


def _read_script(module: Any) -> _Script:
    """The inlined graph of `forward`, in which constants and attributes stand where they are used.

    Names of values and the order of constants, which saving and loading change, leave no trace.
    """
    reader = _ScriptReader(module)
    reader.read(module.inlined_graph, 0)
    return _Script(_MANGLED.sub("", "\n".join(reader.lines)), tuple(reader.constants), tuple(reader.paths))


class _ScriptReader:
    """Writes a graph line by line; constants and attributes are looked at where they are used first."""

    def __init__(self, module: Any) -> None:
        self.lines: list[str] = []
        self.constants: list[Any] = []
        self.paths: list[tuple[str, ...]] = []
        self._root = module
        self._shown: dict[str, str] = {}
        self._constants: dict[str, Any] = {}
        self._attributes: dict[str, tuple[str, ...]] = {next(module.inlined_graph.inputs()).debugName(): ()}

    def read(self, block: Any, level: int) -> None:
        for value in block.inputs():
            self._shown[value.debugName()] = f"%{len(self.lines)}:{value.offset()}"
        for node in block.nodes():
            kind, outputs = node.kind(), list(node.outputs())
            if kind == "prim::GetAttr" and (owner := next(node.inputs()).debugName()) in self._attributes:
                self._attributes[outputs[0].debugName()] = (*self._attributes[owner], node.s("name"))
                continue
            if kind == "prim::Constant":
                try:
                    self._constants[outputs[0].debugName()] = outputs[0].toIValue()
                except RuntimeError:  # a function
                    self._shown[outputs[0].debugName()] = outputs[0].type().str()
                continue
            self.lines.append(f"{level} {kind}({', '.join(map(self._use, node.inputs()))})")
            for value in outputs:
                self._shown[value.debugName()] = f"%{len(self.lines)}.{value.offset()}"
            for inner in node.blocks():
                self.read(inner, level + 1)
        self.lines.append(f"{level} return({', '.join(map(self._use, block.outputs()))})")

    def _use(self, value: Any) -> str:
        name = value.debugName()
        if name in self._constants:
            content = self._constants.pop(name)
            content = content.item() if _is_torch(content, "Tensor") and content.dim() == 0 else content
            if isinstance(content, (bool, int, float, complex, str, type(None))):
                self._shown[name] = repr(content)
            else:
                self.constants.append(content)
                self._shown[name] = f"#{len(self.constants)}"
        elif name in self._attributes and name not in self._shown:
            self.paths.append(self._attributes[name])
            self._shown[name] = f".{'.'.join(self.paths[-1])}"
        return self._shown[name]


# Tensors


def bytes_of(tensor: Tensor) -> Iterator[Any]:
    """The values of a tensor, in pieces: dtype and shape as a text, then the numbers.

    float64 values that float32 holds exactly are written as float32: the same weights in another precision are the
    same model. Quantised tensors are their integers, scales and zero points; sparse ones and those of subclasses (as of
    torchao) what they are made of.
    """
    import torch

    tensor = tensor.detach()
    if _flattens(tensor):
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        yield f"{type(tensor).__qualname__} {tuple(tensor.shape)} {context!r}".encode()
        for name in names:
            yield from bytes_of(getattr(tensor, name))
    elif tensor.is_quantized:
        yield f"quantised {tensor.dtype} {tensor.qscheme()}".encode()
        yield from bytes_of(tensor.int_repr())
        if "channel" in str(tensor.qscheme()):
            yield f"axis {tensor.q_per_channel_axis()}".encode()
            yield from bytes_of(tensor.q_per_channel_scales())
            yield from bytes_of(tensor.q_per_channel_zero_points())
        else:
            yield f"{tensor.q_scale()!r} {tensor.q_zero_point()}".encode()
    elif tensor.layout is not torch.strided:
        yield f"{tensor.layout}".encode()
        yield from bytes_of(tensor.cpu().to_dense())
    else:
        flat = tensor.cpu().contiguous().reshape(-1)
        if flat.dtype == torch.float64:
            single = flat.float()
            flat = single if torch.equal(single.double(), flat) else flat
        yield f"{flat.dtype} {tuple(tensor.shape)}".encode()
        flat = flat.resolve_conj().resolve_neg()
        yield flat.view(torch.uint8).numpy() if flat.numel() else b""


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie in one piece of memory of its own."""
    import torch

    return not _flattens(tensor) and tensor.layout is torch.strided and not tensor.is_quantized


def _flattens(tensor: Tensor) -> bool:
    return hasattr(tensor, "__tensor_flatten__")
