"""The modules behind a callable, and everything that a model computes with, which its digest is made of.

Tensors and numbers in attributes count, and other values that code reached by `forward` reads by name; not those that
it writes, as a cache. Python code counts by the names of classes.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

WIDEST = 1000  # lists and dicts with more items are not searched

_DEEPEST = 8
_DEEPEST_MODULE = 6
_ATOMS = (str, bytes, bytearray, int, float, complex, np.ndarray, type)
_TORCH_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}

_CHANGERS = {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove"}
_SETTERS = {"register_buffer", "setattr", "__setattr__"}
_FAST = frozenset({bool, int, float, complex})
_NOT_IN_FUNCTIONS = (types.ModuleType, type, types.FunctionType, list, dict)
_NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)

PLAIN = (str, bytes, bool, int, float, complex, np.generic)

Kind = Literal["tensor", "array", "packed", "estimator", "plain"]


class Part(NamedTuple):
    """A part of a model, at a path in it; `visible`: it can differ between models of one class."""

    path: str
    kind: Kind
    value: Any
    visible: bool = True


def is_torch(value: object, *kinds: str) -> bool:
    """Whether a value is of one of these torch classes, such as "Tensor"; imports nothing."""
    return "torch" in sys.modules and isinstance(value, _of_torch(kinds))


@lru_cache
def _of_torch(names: tuple[str, ...]) -> tuple[type, ...]:
    return tuple(attrgetter(name)(sys.modules["torch"]) for name in names)


def is_module(value: object) -> TypeGuard[nn.Module]:
    """Whether a value is a torch module; imports nothing."""
    return is_torch(value, "nn.Module")


class Writer:
    """Visits nested values in a fixed order and writes plain ones; arrays of numbers go to `array`, and values that are
    no containers to `other`, with the ids of their containers."""

    def write(self, text: str) -> None: ...

    def array(self, value: NDArray[Any]) -> None: ...

    def other(self, value: Any, above: tuple[int, ...]) -> None: ...

    def feed(self, value: Any, above: tuple[int, ...] = ()) -> None:
        """Write a value; a container within itself by the distance."""
        inside = (*above, id(value))
        if value is None or isinstance(value, PLAIN):
            plain = value.item() if isinstance(value, np.generic) else value
            self.write(f"{type(plain).__name__} {plain!r};")
        elif id(value) in above:
            self.write(f"up {len(above) - above.index(id(value))};")
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject and not value.dtype.names:
            self.array(value)
        elif isinstance(value, Mapping | list | tuple | set | frozenset | partial | np.ndarray):
            self.write(f"{type(value).__qualname__}(")
            for item in _items(value):
                self.feed(item, inside)
            self.write(")")
        else:
            self.other(value, inside)


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=lambda key: (type(key).__name__, repr(key))):
            yield from (key, value[key])
    elif isinstance(value, set | frozenset):
        yield from sorted(value, key=repr)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, np.ndarray) and value.dtype.names:  # by field: bytes between fields are undefined
        yield from (np.ascontiguousarray(value[name]) for name in value.dtype.names)
    else:
        yield from value.reshape(-1).tolist() if isinstance(value, np.ndarray) else value


# From a forward function to its modules


def modules_of(forward_func: object) -> tuple[nn.Module, ...]:
    """The outermost torch modules that a forward function reaches, in a fixed order, through owners of methods,
    functools.partial, closures, defaults, globals, attributes and containers."""
    if is_module(forward_func):
        return (forward_func,)
    found = find_reachable(forward_func, is_module)
    inner = {id(part) for module in found for part in module.modules() if part is not module and len(found) > 1}
    return tuple(module for module in found if id(module) not in inner)


def find_reachable(value: object, wanted: Callable[[object], bool]) -> list[Any]:
    """The wanted objects that a callable holds, in a fixed order; they are not searched themselves."""
    seen, found, waiting = set[int](), [], [(value, 0)]
    for one, depth in waiting:  # grows meanwhile; keeps objects alive, so that ids stay unique
        if one is None or isinstance(one, _ATOMS) or is_torch(one, "Tensor") or id(one) in seen:
            continue
        seen.add(id(one))
        if wanted(one):
            found.append(one)
        elif depth <= _DEEPEST_MODULE:
            waiting += [(part, depth + 1) for part in _held_by(one)]
    return found


def _held_by(value: object) -> Iterator[object]:
    if isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, dict | list | tuple | set | frozenset):
        held = value.values() if isinstance(value, dict) else value
        yield from held if len(value) <= WIDEST else ()
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif not isinstance(value, types.ModuleType | types.BuiltinFunctionType):
        own = getattr(value, "__dict__", {})
        yield from own.values() if isinstance(own, Mapping) else ()  # some objects have every attribute
        for owner in type(value).__mro__:
            names = owner.__dict__.get("__slots__", ())
            yield from (getattr(value, name, None) for name in ([names] if isinstance(names, str) else names))
        calls = (owner.__dict__.get("__call__") for owner in type(value).__mro__)
        yield from (call for call in calls if isinstance(call, types.FunctionType))


def _held_by_function(function: types.FunctionType) -> Iterator[object]:
    libraries = (function.__module__ or "").partition(".")[0] in ("torch", "captum")  # whose globals hold no model
    found = references(function)
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in (found[name] for name in (function.__code__.co_freevars if libraries else found)):
        if isinstance(value, types.ModuleType):
            yield from filter(is_module, map(value.__dict__.get, names_in(function.__code__)))
        else:
            yield value


# Wrappers


def network_of(forward_func: object) -> nn.Module | None:
    """The module that computes the answer, without wrappers that only pass inputs and outputs on (`DataParallel`,
    `torch.compile`, modules of this package with `_network`, an `nn.Sequential` of one, functions and modules that only
    `return net(x)`); None: the callable is no module, and does more than call one."""
    found: Any = forward_func
    module = None
    for _ in range(_DEEPEST * 4):
        if is_module(found):
            module, found = found, _inside_module(found)
        elif found is None:
            break
        else:
            found = _inside_callable(found)
    return module


def _inside_module(module: Any) -> Any:
    kind, children = type(module), module._modules
    wraps = _TORCH_WRAPPERS.get(kind.__name__) if _is_torch_class(kind) else None
    if name := getattr(kind, "_network", None) or wraps:
        return children.get(name)
    if module._forward_hooks or module._forward_pre_hooks or module._parameters or module._buffers:
        return None
    if kind.__name__ == "Sequential" and kind.__module__ == "torch.nn.modules.container":
        return next(iter(children.values())) if len(children) == 1 else None
    forward = vars(module).get("forward", kind.forward)
    if _is_torch_class(kind) or not isinstance(forward, types.FunctionType):
        return None
    inner = _called_by(forward, module)
    return inner if is_module(inner) else _inside_callable(inner)


def _inside_callable(value: Any) -> Any:
    if isinstance(value, partial):
        return None if value.args or value.keywords else value.func
    if isinstance(value, types.MethodType):
        owner, function = value.__self__, value.__func__
        if is_module(owner) and function in (type(owner).forward, type(owner).__call__):
            return owner
        return _called_by(function, owner) if isinstance(function, types.FunctionType) else None
    return _called_by(value) if isinstance(value, types.FunctionType) else None


def _called_by(function: types.FunctionType, *owner: object) -> Any:
    if (names := _callee_of(function.__code__, len(owner))) is None:
        return None
    first = owner and names[0] == function.__code__.co_varnames[0]
    found = owner[0] if first else references(function).get(names[0])
    for name in names[1:]:
        found = getattr(found, name, None)
    return found


@lru_cache(maxsize=4096)
def _callee_of(code: CodeType, owners: int) -> tuple[str, ...] | None:
    """("net", "forward") for `lambda x: net.forward(x)`, and None for code that does anything else."""
    taken = code.co_varnames[: code.co_argcount]
    names = (*code.co_freevars, *code.co_names)
    if code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or not taken[owners:]:
        return None
    for path in (names, (*taken[:owners], *names)):
        source = f"lambda {', '.join(taken)}: {'.'.join(path)}({', '.join(taken[owners:])})"
        with contextlib.suppress(SyntaxError):
            *_, made = codes_of(compile(f"lambda {', '.join(code.co_freevars)}: {source}", "", "eval"))
            if made.co_code == code.co_code and path:
                return path
    return None


# What modules hold


def state_of(module: nn.Module) -> list[Part]:
    """The parts of a module (from `network_of`) that its answers depend on, in a fixed order."""
    walk = _Walk(_names_in(module))
    walk.module("", module)
    return walk.parts


def parts_of(value: object) -> list[Part]:
    """The parts of another value, such as a function's closure and globals."""
    walk = _Walk(_Names())
    walk.attribute("", getattr(value, "__func__", value))
    return walk.parts


class _Names(NamedTuple):
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


class _Walk(Writer):
    def __init__(self, names: _Names) -> None:
        self.parts: list[Part] = []
        self._names = names
        self._ignored = names.writes | _base_names()
        self._seen: set[int] = set()
        self._path, self._texts, self._visible = "", list[str](), False

    def _add(self, path: str, kind: Kind, value: Any, visible: bool = True) -> None:
        self.parts.append(Part(path, kind, value, visible))

    def module(self, path: str, module: nn.Module) -> None:
        kind: Any = type(module)
        if not _is_torch_class(kind) or kind.__name__ in {"Sequential", *_TORCH_WRAPPERS}:
            module = network_of(module) or module
            kind = type(module)
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        if isinstance(module, sys.modules["torch"].jit.ScriptModule):
            raise InputError(
                f"expected no TorchScript model, got {kind.__name__}; use torch.export.export in its place"
            )
        torchs = _is_torch_class(kind)
        graph = kind.__qualname__.startswith("GraphModule.")  # torch makes a class for each graph
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
        own, numbers, reads = vars(module), list[Any](), self._names.reads
        for name in sorted(own.keys() - self._ignored):
            value = own[name]
            kind = type(value)
            if value is None or (torchs and name in ("input", "output")):  # left by Captum's DeepLift
                continue
            if torchs and name[0] == "_":  # derived from the public ones
                counts = is_torch(value, "Tensor", "ScriptObject")
            elif kind in _FAST:
                counts = False
                numbers.append((name, kind.__name__, value))
            elif kind is tuple and _FAST.issuperset(kinds := tuple(map(type, value))):
                counts = False
                if name in reads:
                    numbers.append((name, kinds, value))
            else:
                counts = name in reads or isinstance(value, _NUMBERS) or _kind_of(value) is not None
            if counts:
                self.attribute(f"{path}.{name}", value, visible=not torchs)
        if numbers:
            self._add(path, "plain", tuple(numbers), visible=not torchs)

    def attribute(self, path: str, value: Any, visible: bool = True) -> None:
        before, self._path, self._texts, self._visible = (self._path, self._texts, self._visible), path, [], False
        self.feed(value)
        self._add(path, "plain", "".join(self._texts), visible and self._visible)
        self._path, self._texts, self._visible = before

    def write(self, text: str) -> None:
        self._texts.append(text)

    def array(self, value: NDArray[Any]) -> None:
        self._add(self._path, "array", value)

    def feed(self, value: Any, above: tuple[int, ...] = ()) -> None:
        self._visible |= value is not None and isinstance(value, PLAIN)
        if len(above) <= _DEEPEST and not (isinstance(value, Collection) and len(value) > WIDEST):
            super().feed(value, above)

    def other(self, value: Any, above: tuple[int, ...]) -> None:
        if kind := _kind_of(value):
            self._add(self._path, kind, value)
        elif is_module(value):
            self.module(self._path, value)
        elif isinstance(value, Enum | range | slice) or is_torch(value, "dtype", "memory_format"):
            self._visible |= not is_torch(value, "dtype")
            self.write(f"{type(value).__qualname__} {value!s};")
        elif isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            self._function(value, above)
        elif isinstance(value, types.SimpleNamespace) or (is_dataclass(value) and not isinstance(value, type)):
            names = [f.name for f in fields(value)] if is_dataclass(value) else [*vars(value)]
            if type(value).__module__.startswith("transformers."):  # saving turns this type into text
                names = [name for name in names if name != "dtype"]
            self.feed({name: getattr(value, name, None) for name in names if name not in self._names.writes}, above)

    def _function(self, function: Any, above: tuple[int, ...]) -> None:
        self.write(f"function {function.__module__} {function.__qualname__};")
        library = (function.__module__ or "").partition(".")[0]  # its name and version identify its code
        if not isinstance(function, types.FunctionType) or library in ("torch", "captum", "numpy", "sklearn"):
            return
        self.write(gist(function.__code__))
        found = {**references(function), "()": function.__defaults__, "(*)": function.__kwdefaults__}
        for name in sorted(found.keys() - _names_of_code(function.__code__).writes):
            if not isinstance(found[name], _NOT_IN_FUNCTIONS) and not is_module(found[name]):
                self.write(f":{name} ")
                self.feed(found[name], above)


def _kind_of(value: object) -> Kind | None:
    if is_torch(value, "Tensor", "ScriptObject"):
        return "tensor" if is_torch(value, "Tensor") else "packed"
    return "estimator" if is_estimator(value) else None


def _is_torch_class(kind: type) -> bool:
    return kind.__module__.startswith("torch.")


@lru_cache(maxsize=1)
def _base_names() -> frozenset[str]:
    """Attributes of every module, and those that `compile`, loaders and modes leave."""
    left = {"_compiled_call_impl", "_is_hf_initialized", "forward", "training", "inplace"}
    return frozenset(vars(sys.modules["torch"].nn.Module())) | left


def is_estimator(value: object) -> bool:
    """Whether an object is a scikit-learn estimator; imports nothing."""
    base = sys.modules.get("sklearn.base")
    return base is not None and isinstance(value, base.BaseEstimator)


# Names that code reads and writes


def _names_in(module: nn.Module) -> _Names:
    kinds, loose = set(), set[CodeType]()
    for part in module.modules():
        kinds.add(type(part))
        own = vars(part)
        hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values()) if "_forward_hooks" in own else ()
        for function in (own.get("forward"), *hooks):
            if code := getattr(getattr(function, "__func__", function), "__code__", None):
                loose.add(code)
    return _union(frozenset(kinds), frozenset(loose))


@lru_cache(maxsize=64)
def _union(kinds: frozenset[type], codes: frozenset[CodeType]) -> _Names:
    found = [*map(_names_of_class, kinds), *map(_names_of_code, codes)]
    return _Names(*(frozenset().union(*sets) for sets in zip(*found, strict=True)))


_by_class: WeakKeyDictionary[type, _Names] = WeakKeyDictionary()


def _names_of_class(kind: type) -> _Names:
    if kind not in _by_class:
        codes, waiting = set[CodeType](), dict.fromkeys(("forward", "__call__"))
        while waiting:
            name, _ = waiting.popitem()
            owner = next((base for base in kind.__mro__ if name in vars(base)), None)
            ours = owner not in (None, sys.modules["torch"].nn.Module, object)
            function = function_of(vars(owner)[name]) if ours else None
            if isinstance(function, types.FunctionType) and function.__code__ not in codes:
                codes.add(function.__code__)
                waiting |= dict.fromkeys(_names_of_code(function.__code__).reads)
        _by_class[kind] = _union(frozenset(), frozenset(codes))
    return _by_class[kind]


def function_of(member: Any) -> Any:
    """The function of a property, a cached one, a class method, or behind decorators such as `torch.no_grad`."""
    for inner in ("fget", "func", "__func__"):
        member = getattr(member, inner, member)
    return inspect.unwrap(member) if callable(member) else member


def source_of(function: Any) -> str:
    """The source of a function or of code; OSError where there is none, as for what `exec` made."""
    if getattr(function, "__code__", function).co_filename == "<string>":  # 3.13 shows the text after `python -c`
        raise OSError("no source")
    return inspect.getsource(function)


@lru_cache(maxsize=4096)
def _names_of_code(code: CodeType) -> _Names:
    """Names that a function loads or holds as texts, and those whose objects it changes (without a source, all)."""
    texts = {text for one in codes_of(code) for text in one.co_consts if isinstance(text, str) and text.isidentifier()}
    reads = {name for one in codes_of(code) for name in (*one.co_names, *one.co_freevars)} | texts
    try:
        tree = ast.parse(textwrap.dedent(source_of(code)))
    except (OSError, TypeError):
        return _Names(frozenset(reads), frozenset(reads))
    except SyntaxError:  # a lambda within other code, which assigns nothing
        return _Names(frozenset(reads))
    writes = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            writes.add(_name_in(node))
        elif isinstance(node, ast.Global | ast.Nonlocal):
            writes |= {*node.names}
        elif isinstance(node, ast.Call):
            method = _name_in(node.func)
            if method in _SETTERS:
                writes |= texts & {*code.co_consts}
            elif isinstance(node.func, ast.Attribute) and (method in _CHANGERS or re.search("[^_]_$", method)):
                writes.add(_name_in(node.func.value))
    return _Names(frozenset(reads), frozenset(writes))


def _name_in(node: ast.AST) -> str:
    """`b` of `a.b`, of `a.b[0]` and of `b`; "" of anything else."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# Functions


@lru_cache(maxsize=4096)
def gist(code: CodeType) -> str:
    """Names, constants and operations in a function and its inner functions, in their order."""
    words = []
    for step in dis.get_instructions(code):
        value = step.argval
        if step.opname.startswith("LOAD_CONST") or step.opname in ("LOAD_SMALL_INT", "RETURN_CONST"):
            plain = sorted(map(repr, value)) if isinstance(value, frozenset) else value
            inner = isinstance(value, CodeType)
            words += [] if value is None else [f"({gist(value)})" if inner else repr(plain)]
        elif step.opname.startswith(("UNARY_", "BINARY_")) or step.opname in ("COMPARE_OP", "IS_OP", "CONTAINS_OP"):
            words.append(step.argrepr or step.opname)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "STORE_ATTR"):
            words.append(str(value))
    return " ".join(words)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of its inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def names_in(code: CodeType) -> dict[str, None]:
    """Names of globals and attributes in a function and its inner functions, in their order."""
    return dict.fromkeys(name for one in codes_of(code) for name in one.co_names)


def references(function: types.FunctionType) -> dict[str, Any]:
    """Closure variables and globals that a function and its inner functions use; None: not assigned yet."""
    free, code = function.__code__.co_freevars, function.__code__
    found: dict[str, Any] = dict.fromkeys(free)
    for name, cell in zip(free, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    held = function.__globals__
    return found | {name: held[name] for name in _globals_in(code) if name in held and name not in found}


@lru_cache(maxsize=4096)
def _globals_in(code: CodeType) -> tuple[str, ...]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    steps = (step for one in codes_of(code) for step in dis.get_instructions(one))
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in loads))


# Tensors


def bytes_of(tensor: Tensor) -> Iterator[Any]:
    """Dtype and shape of a tensor, then the numbers: float64 that float32 holds exactly as float32, quantised tensors
    as integers, scales and zero points, subclasses (as of torchao) as their parts."""
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "__tensor_flatten__"):
        names, context = tensor.__tensor_flatten__()
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
    strided = sys.modules["torch"].strided
    return not hasattr(tensor, "__tensor_flatten__") and tensor.layout is strided and not tensor.is_quantized
