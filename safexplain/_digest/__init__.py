"""Digests of files, values, code and models, without importing torch: BLAKE2b (RFC 7693) for models and estimators,
SHA-256 for all others; `model_state` finds everything that a model computes with."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
import operator
import sys
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path, PurePath
from types import EllipsisType, GenericAlias, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray

from safexplain._digest.model_state import (
    Part,
    Writer,
    bytes_of,
    codes_of,
    find_reachable,
    function_of,
    gist,
    is_module,
    is_plain,
    is_torch,
    names_in,
    network_of,
    parts_of,
    references,
    source_of,
    state_of,
)
from safexplain._digest.model_state import is_estimator as is_estimator
from safexplain._digest.model_state import modules_of as modules_of
from safexplain.errors import ConfigurationError, OpaqueModelWarning, RefusedError

if TYPE_CHECKING:
    from torch import Tensor, nn

_BY_REPR = (PurePath, range, slice, EllipsisType, GenericAlias, UnionType)
_CONSTANTS = (str, bytes, int, float)

_blake2b = partial(hashlib.blake2b, digest_size=32, person=b"safexplain model")  # person: at most 16 bytes
OPAQUE_DIGEST = _blake2b(b"no module found").digest()  # of a callable in which no module is found

_NAME_THE_MODEL = "Pass model_digest=, at least 16 bytes that name the model and its version"
_SAMPLES = 8

_digests: WeakKeyDictionary[nn.Module, _CachedDigest] = WeakKeyDictionary()
_warned: WeakSet[Any] = WeakSet()
_guard = threading.Lock()


def sha256(content: bytes | str) -> str:
    """Hexadecimal digest of bytes, or of a text in UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_sha256(path: str | Path) -> str:
    """Hexadecimal digest of a file, or of the concatenated `weight_files` of a folder."""
    found = hashlib.sha256()
    for part in weight_files(Path(path)) or [Path(path)]:
        with part.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """The weight files in a folder written by `save_pretrained` of transformers; [] for other paths."""
    kinds = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin")
    found = (sorted(folder.glob(pattern)) for pattern in kinds if (folder / "config.json").is_file())
    return next(filter(None, found), [])


class Undigestable(Exception):
    """A part cannot be identified across runs."""


@functools.cache
def code_digest(*modules: str, package: Path = Path(__file__).parents[1]) -> str:
    """SHA-256 of the code of these modules, of all modules of the package that they import, and of torch's version."""
    waiting, found_code = [*modules], dict[str, bytes]()
    for name in waiting:  # grows meanwhile
        if (source := _source_of(name, package)) is None:
            raise FileNotFoundError(f"no module {name} in {package}")
        if name not in found_code:
            found_code[name] = source.read_bytes()
            waiting += [imported for imported in _imports(found_code[name]) if _source_of(imported, package)]
    h = hashlib.sha256(version("torch").encode())
    for name in sorted(found_code):
        h.update(f"{name} {len(found_code[name])} ".encode())
        h.update(found_code[name])
    return h.hexdigest()


def _source_of(name: str, package: Path) -> Path | None:
    first, *rest = name.split(".")
    path = package.joinpath(*rest)
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if first == "safexplain" and file.is_file()), None)


def _imports(source: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def digest(*parts: Any) -> str:
    """SHA-256 over nested plain values, arrays, tensors, and functions and classes with everything that they refer to.

    Those of Python and of installed packages count by their names; classes of safexplain by their own code, its
    functions by that of their module and its imports. Undigestable: a part cannot be identified across runs.
    """
    h = _CodeHash()
    for part in parts:
        h.feed(part)
    for code in h.found_code:  # grows meanwhile
        h.write("|")
        (h.feed_class if inspect.isclass(code) else h.feed_function)(code)
    return str(h.hash.hexdigest())


class _Hash(Writer):
    def __init__(self, hash_of: Any) -> None:
        self.hash = hash_of

    def add(self, *parts: Any) -> None:
        for part in parts:
            self.hash.update(len(part).to_bytes(8, "little"))
            self.hash.update(part)

    def write(self, text: str) -> None:
        self.add(text.encode("utf-8", "surrogatepass"))

    def array(self, value: NDArray[Any]) -> None:
        self.write(f"array {value.dtype.str} {value.shape};")
        self.add(np.ascontiguousarray(value).tobytes())


class _CodeHash(_Hash):
    """A hash of anything; functions and classes are fed once, at the end, so that cycles terminate."""

    def __init__(self) -> None:
        super().__init__(hashlib.sha256())
        self.found_code: list[Any] = []
        self._numbers: dict[int, int] = {}

    def other(self, value: Any, above: tuple[int, ...]) -> None:
        if is_torch(value, "Tensor"):
            self.write(f"tensor {value.dtype} {tuple(value.shape)};")
            self.add(*bytes_of(value))
        elif isinstance(value, _BY_REPR) or is_torch(value, "device", "dtype") or type(value).__module__ == "typing":
            self.write(f"{type(value).__name__}{value!r};")
        elif isinstance(value, logging.Logger):
            self.write(f"logger {value.name};")
        elif is_module(value):
            self.feed([repr(value), dict(value.state_dict()), [*dict.fromkeys(map(type, value.modules()))]], above)
        elif inspect.ismethod(value):
            self.feed([value.__func__, value.__self__], above)
        elif inspect.ismodule(value) or inspect.isbuiltin(value) or (inspect.isfunction(value) and _is_named(value)):
            own = getattr(value, "__module__", None) or ""
            self.write(_qualified_name(value) + (code_digest(own) if own.startswith("safexplain.") else ""))
        elif inspect.isclass(value) or inspect.isfunction(value):
            number = self._numbers.setdefault(id(value), len(self.found_code))
            self.found_code += [value] if number == len(self.found_code) else []
            self.write(f"code{number};")
        elif hasattr(value, "__dict__"):
            self.feed([type(value), vars(value)], above)
        else:
            raise Undigestable(f"a {type(value).__name__}")

    def feed_function(self, function: Any) -> None:
        try:
            self.write(source_of(function))
        except (OSError, TypeError):
            raise Undigestable(f"the source of {function!r} is not available") from None
        self._feed_references(function)

    def feed_class(self, kind: Any) -> None:
        self.write(_qualified_name(kind))
        torchs = "torch" in sys.modules and issubclass(kind, sys.modules["torch"].nn.Module)
        for one in inspect.getmro(kind):
            own = one.__module__.partition(".")[0] == "safexplain"
            for name, member in sorted(vars(one).items()) if not _installed(one.__module__) else ():
                if inspect.isfunction(member := function_of(member)):
                    self.write(
                        f"{name}{[(c.co_code, c.co_names) for c in codes_of(member.__code__)]}{gist(member.__code__)}"
                    )
                    if name != "__repr__" and not own and not _installed(member.__module__):
                        self._feed_references(member, strict=not torchs)
            self.write(_constants(one))

    def _feed_references(self, function: Any, *, strict: bool = True) -> None:
        """Defaults, globals and closure; unless `strict`, unidentifiable values count by their type."""
        found = {"": [function.__defaults__, function.__kwdefaults__], **references(function)}
        names = names_in(function.__code__)
        for module in [value for value in found.values() if inspect.ismodule(value)]:
            members = {f"{module.__name__}.{name}": vars(module).get(name) for name in names}
            found |= {k: v for k, v in members.items() if isinstance(v, _CONSTANTS) or inspect.isfunction(v)}
        for name, value in sorted(found.items()):
            self.write(name)
            try:
                self.feed(value)
            except Undigestable:
                if strict:
                    raise
                self.write(_qualified_name(type(value)))


def _qualified_name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)};"


@functools.cache
def _constants(kind: type) -> str:
    """Numbers and texts of a class at the first call, as a class may count its calls."""
    if _installed(kind.__module__):
        return ""
    return repr(sorted((k, v) for k, v in vars(kind).items() if isinstance(v, _CONSTANTS) and not k.startswith("__")))


def _installed(module: str | None) -> bool:
    """Whether the name and version of a module identify its code, as of those of Python and in site-packages."""
    root = (module or "").partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file


def _is_named(function: Any) -> bool:
    own = (function.__module__ or "").startswith("safexplain.") and function.__closure__ is None
    return _installed(function.__module__) or (own and "<locals>" not in function.__qualname__)


_estimator_digests: WeakKeyDictionary[Any, tuple[tuple[Any, ...], list[bytes], bytes | None]] = WeakKeyDictionary()


def estimator_digest(estimator: Any) -> bytes | None:
    """32 bytes that name a fitted estimator, or None if a part of it cannot be pickled.

    Cached until an attribute is assigned or a sample of 8 numbers of one of its arrays changes, as in `fit` and
    `partial_fit`; a single number written into an array may be missed.
    """
    kept = tuple(_estimator_parts(estimator))
    numbers = (part for part in kept if isinstance(part, np.ndarray) and part.dtype.kind in "biuf")
    samples = [_sample_of_array(array) for array in numbers]
    with _guard:
        known = _estimator_digests.get(estimator)
    if known and len(known[0]) == len(kept) and all(map(operator.is_, known[0], kept)) and known[1] == samples:
        return known[2]
    found = _hash_estimator(estimator)
    with _guard:
        _estimator_digests[estimator] = (kept, samples, found)
    return found


def _estimator_parts(value: Any) -> Iterator[Any]:
    inside = vars(value) if is_estimator(value) else value
    for part in inside.values() if isinstance(inside, dict) else inside:
        yield part
        if isinstance(part, dict | list | tuple) or is_estimator(part):
            yield from _estimator_parts(part)


def _hash_estimator(estimator: Any) -> bytes | None:
    h = _EstimatorHash(_blake2b(person=b"sklearn digest"))
    try:
        h.feed(estimator)
    except Exception:  # attributes that cannot be pickled, such as locks and files
        return None
    return bytes(h.hash.digest())


class _EstimatorHash(_Hash):
    def other(self, value: Any, above: tuple[int, ...]) -> None:
        if isinstance(value, np.dtype):
            self.write(f"dtype {value.str};")
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType | np.ufunc):
            if "<lambda>" in (name := _qualified_name(value)) or "<locals>" in name:
                raise TypeError(f"{name} has no name that identifies it")
            self.write(f"name {name}")
        else:
            self.write(f"{_qualified_name(type(value))}(")
            made = value.__reduce_ex__(2)
            if type(value).__module__ in ("sklearn.neighbors._kd_tree", "sklearn.neighbors._ball_tree"):
                counted = made[2]  # arrays, 3 sizes, trims, leaves, splits, calls of its queries, metric, weights
                made = (*made[:2], (*counted[:7], *counted[11:]))
            for part in made:
                self.feed(list(part) if isinstance(part, Iterator) else part, above)
            self.write(")")


def model_digest(forward_func: object) -> bytes:
    """32 bytes that name the model behind a forward function: equal after a restart and on any device.

    Everything that its answers depend on counts; wrappers that compute nothing do not (`network_of`), nor does float64
    if float32 holds the same weights. Digests are cached; a single number written through `.data` may be missed.

    Raises:
        RefusedError: a module of a custom class without any state to identify it by.
        InputError: a TorchScript model.

    Warns:
        OpaqueModelWarning: no model is found, once for each callable; `OPAQUE_DIGEST` is returned.
    """
    if (network := network_of(forward_func)) is not None:
        return _digest_of_module(network)
    found: list[bytes | None] = [*map(_digest_of_module, modules_of(forward_func))]
    found = found or [*map(estimator_digest, find_reachable(forward_func, is_estimator))]
    if not found or None in found:
        _warn_once(forward_func)
        return OPAQUE_DIGEST
    h = _Hash(_blake2b())
    h.write(_name(forward_func))
    h.add(*found)
    return _hash_parts(h, parts_of(forward_func))


def explained_digest(forward_func: object, given: bytes | None = None) -> bytes:
    """The digest that noise depends on: the model's, or the given one, and whether the probability is explained."""
    digest = model_digest(forward_func) if given is None else given
    read = getattr(type(forward_func), "_explains", None)
    return digest if read is None else _blake2b(digest + read).digest()


def _name(forward_func: Any) -> str:
    while isinstance(forward_func, partial):
        forward_func = forward_func.func
    return getattr(forward_func, "__qualname__", None) or type(forward_func).__qualname__


def _warn_once(forward_func: object) -> None:
    owner = forward_func.__self__ if isinstance(forward_func, types.MethodType) else forward_func  # methods are new
    with suppress(TypeError), _guard:  # neither hashable nor weakly referenceable: warnings' own filter must do
        if owner in _warned:
            return
        _warned.add(owner)
    warnings.warn(
        f"expected a torch module or scikit-learn estimator behind {_name(forward_func)}, found none: its answers keep"
        f" their noise when the model changes. {_NAME_THE_MODEL}",
        OpaqueModelWarning,
        stacklevel=3,
    )


class _CachedDigest(NamedTuple):
    """A digest of a module, and what is compared before it is used; `packed` weights are kept alive."""

    places: list[Any]
    views: list[list[Tensor]]
    marks: list[Any]
    packed: list[Any]
    digest: bytes


def _digest_of_module(module: nn.Module) -> bytes:
    import torch

    module = network_of(module) or module
    marks, tensors, packed = list[Any](), list[Any](), list[Any]()
    for path, kind, value, _ in state_of(module):
        if kind == "tensor":
            version = 0 if value.is_inference() else value._version
            marks.append((path, id(value), version, value.shape, value.dtype))
            tensors += [value] if is_plain(value) else []
        elif kind == "array":
            marks.append((path, id(value), value.shape, _sample_of_array(value)))
        elif kind == "packed":
            packed.append(value)
            marks.append((path, id(value)))
        else:
            marks.append((path, estimator_digest(value) if kind == "estimator" else value))
    places = [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tensors]
    with _guard:
        known = _digests.get(module)
    if known is None or known.places != places:
        views: dict[Any, list[Tensor]] = {}
        for tensor in tensors:
            views.setdefault((tensor.device, tensor.dtype), []).append(_sample(tensor))
        known = _CachedDigest(places, list(views.values()), [], packed, b"")
    with torch.no_grad():
        marks += [torch.cat(alike).cpu().view(torch.uint8).numpy().tobytes() for alike in known.views]
    if known.marks != marks or not known.digest:
        known = _CachedDigest(places, known.views, marks, packed, _hash(module))
        with _guard:
            _digests[module] = known
    return known.digest


def _hash(module: nn.Module) -> bytes:
    parts = state_of(module)
    ours = (part for part in module.modules() if not type(part).__module__.startswith("torch."))
    if not any(part.visible for part in parts) and next(ours, None) is not None:
        raise RefusedError(
            f"expected a model with state of its own, found none in {type(module).__name__}: its noise would stay when"
            f" it changes. {_NAME_THE_MODEL}, or keep its weights in the module"
        )
    return _hash_parts(_Hash(_blake2b()), parts)


def _hash_parts(h: _Hash, parts: Iterable[Part]) -> bytes:
    for path, kind, value, _ in parts:
        h.write(f"{kind} {path}")
        if kind == "plain":
            h.write(str(value))
        elif kind == "tensor":
            h.add(*bytes_of(value))
        elif kind == "array":
            h.array(value)
        elif kind == "estimator":
            h.add(estimator_digest(value) or OPAQUE_DIGEST)
        else:
            try:
                inside = value.__getstate__()
            except Exception as error:  # any error of an extension
                what = f"{path} is a {type(value).__name__} whose state cannot be read ({error!s:.80})"
                raise RefusedError(f"{what}. {_NAME_THE_MODEL}") from None
            _hash_parts(h, parts_of(inside))
    return bytes(h.hash.digest())


def _sample_of_array(array: NDArray[Any]) -> bytes:
    return array.reshape(-1)[:: max(1, array.size // _SAMPLES)][:_SAMPLES].tobytes()


def _sample(tensor: Tensor) -> Tensor:
    held = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    count = min(tensor.numel(), held)
    return tensor.detach().as_strided((min(_SAMPLES, count),), (max(1, count // _SAMPLES),))


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over the sorted SHA-256 of the type, shape and bytes of each parameter, whatever names and classes."""
    import torch

    each = []
    for parameter in model.parameters():
        found = hashlib.sha256(f"{parameter.dtype} {tuple(parameter.shape)} ".encode())
        found.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        each.append(found.digest())
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def trained_digest(model: Any) -> str:
    """64 hexadecimal digits that name a trained model, computed at each call: one changed number changes them.

    A torch module: `weights_digest`, or of the estimator in it; a model with `coef_` and `intercept_`: of these and
    `classes_`, whatever its class; any other fitted estimator: of all its parts. ConfigurationError: one cannot be
    read.
    """
    if is_module(model):
        inner = getattr(model, "estimator", None)
        alone = inner is not None and next(iter(model.parameters()), None) is None
        return trained_digest(inner) if alone else weights_digest(model)
    linear = hasattr(model, "coef_") and hasattr(model, "intercept_")
    if not (linear or is_estimator(model)):
        raise ConfigurationError(
            f"expected a torch module, a fitted linear model or estimator, got {type(model).__name__}"
        )
    try:
        if linear:
            labels = repr(np.asarray(getattr(model, "classes_", ())).tolist())  # in any kind of array
            return _hexadecimal("linear", *_coefficients(model), labels.encode("utf-8", "surrogatepass"))
        import_module("sklearn.utils.validation").check_is_fitted(model)
    except (ValueError, AttributeError) as error:  # sklearn's NotFittedError is both
        raise ConfigurationError(f"{type(model).__name__} is not fitted; fit it first ({error})") from None
    if (found := _hash_estimator(model)) is None:
        raise ConfigurationError(f"{type(model).__name__} has a part that cannot be read (a lock, a file)")
    return _hexadecimal("estimator", found)


def _hexadecimal(kind: str, *parts: bytes) -> str:
    h = _Hash(hashlib.sha256(kind.encode()))
    h.add(*parts)
    return str(h.hash.hexdigest())


def _coefficients(model: Any) -> Iterator[bytes]:
    held = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_
    weights = np.atleast_2d(np.asarray(held, dtype=np.float64))
    intercepts = np.broadcast_to(np.ravel(np.asarray(model.intercept_, dtype=np.float64)), weights.shape[:1])
    for array in (weights, intercepts):
        yield repr(array.shape).encode() + (array + 0.0).astype("<f8").tobytes()
