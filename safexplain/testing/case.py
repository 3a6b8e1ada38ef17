"""The subject of a contract test: the explainer, its queries, the native explainer, and the state to restore."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from captum.attr import Attribution
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.explain.isolation import fresh_state
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.markers import as_tuple, parts_of

KEY = b"the key of contract tests, fixed"


class Skip(Exception):
    """The reason why a clause does not apply."""


class Untried(str):
    """A part that a clause could not try, with the reason."""


class Query(NamedTuple):
    """Inputs as the explainer takes them, a target or None, and more keyword arguments."""

    inputs: Any
    target: Any
    options: Mapping[str, Any]


def attempt(run: Callable[[], Any]) -> Any:
    """The result of a call, or the error that it raised."""
    try:
        return run()
    except Skip:
        raise
    except Exception as error:
        return error


def tensors_of(value: Any, what: str, error: type[Exception] = Skip) -> tuple[Tensor, ...]:
    """A tensor or a tuple of tensors as a tuple; raises `error` for anything else."""
    tensors = as_tuple(value)
    if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise error(f"{what}: expected tensors, got {type(value).__name__}")
    return tensors


def flat(result: Any) -> Tensor:
    """Results as one float64 tensor (batch, features) on the CPU."""
    tensors = tensors_of(result, "released results", TypeError)
    return torch.cat([t.detach().cpu().double().reshape(len(t), -1) for t in tensors], 1)


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python, and restore them afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global one is meant
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def take(value: Any, index: list[int], batch: int) -> Any:
    """Some examples of a value with a row for each; anything else stays as it is."""
    if isinstance(value, tuple):
        return tuple(take(part, index, batch) for part in value)
    if isinstance(value, list) and len(value) == batch > 1:
        return [value[i] for i in index]
    if isinstance(value, Tensor) and value.dim() and len(value) == batch > 1:
        return value[index]
    return value


def difference(
    a: Any, b: Any, atol: float = 0.0, *, path: str = "result", within: frozenset[int] = frozenset()
) -> str | None:
    """The first difference of the expected result `a` and `b`, objects of any kind, as a sentence; None: there is none.
    Numbers have an absolute tolerance, and NaN equals NaN; `within` are ids of the containing objects, to end cycles.

    >>> difference({"anchor": np.ones(3)}, {"anchor": np.ones(3)}), difference((1.0, "a"), [1.0, "a"])
    (None, 'result: expected tuple, got list')
    """
    if type(a) is not type(b):
        return f"{path}: expected {type(a).__name__}, got {type(b).__name__}"
    if a is b or id(a) in within:
        return None
    if isinstance(a, np.ndarray) and a.dtype.kind in "fciub":
        a, b = torch.from_numpy(a.copy()), torch.from_numpy(b.copy())
    if isinstance(a, Tensor | float | complex | np.number):
        try:
            torch.testing.assert_close(b, a, rtol=0, atol=atol, equal_nan=True)
        except AssertionError as error:
            return f"{path}: {' '.join(str(error).split())}"
        return None
    parts, others = ({step: part for step, part in parts_of(value) if step != ".keys()"} for value in (a, b))
    if callable(a) or isinstance(a, Set) or not (parts or others or hasattr(a, "__dict__")):
        alike = a == b or (callable(a) and getattr(a, "__qualname__", 0) == getattr(b, "__qualname__", 1))
        return None if alike else f"{path}: expected {a!r:.80}, got {b!r:.80}"
    if parts.keys() != others.keys():
        return f"{path}: expected {', '.join(parts) or 'nothing'}, got {', '.join(others) or 'nothing'}"
    within |= {id(a)}
    found = (difference(parts[key], others[key], atol, path=path + key, within=within) for key in parts)
    return next((sentence for sentence in found if sentence), None)


@dataclass
class Case:
    """An explainer under test; the arguments are those of `check_explainer`.

    `prepare` sets `plain` and `hardened`, the explainer without hardening and with `noisy`; `answer`, the latter's to
    the full `query`; and `scale`, a power of two near the size of the native numbers, or 1.
    """

    factory: Callable[..., Any]
    model: Any
    inputs: Any
    target: Any
    options: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None
    native: type | None
    native_factory: Callable[[Any], Any] | None
    given_entry: str | None
    plant: Callable[[Any, Any], Any] | None
    given_hardening: Hardening | None

    def prepare(self) -> None:
        """Create the explainer, with and without noise, and query it."""
        self.plain = self.make(Hardening.none())
        self.is_captum = isinstance(self.plain, Attribution)
        found: Any = self.native or getattr(self.plain, "_native", None)
        if found is None and self.native_factory is not None:
            found = self.native_factory(self.model)
        self.native_class: Any = found if isinstance(found, type) or found is None else type(found)
        self.entry = str(self.given_entry or getattr(self.plain, "_entry", "attribute"))
        self.query = Query(self.inputs, self.target, self._options(self.inputs, None))
        try:
            largest = max((float(t.detach().abs().max()) for t in self.native_tensors() if t.numel()), default=0.0)
        except Skip:
            largest = 0.0
        self.scale = 2.0 ** round(math.log2(largest)) if 0 < largest < math.inf else 1.0
        noise = Hardening(noise=GaussianNoise(self.scale, key=KEY), grid=self.scale * 2.0**-20)
        self.noisy = self.given_hardening or noise
        self.hardened = self.make(self.noisy)
        self.answer = self.ask(self.hardened)

    def make(self, hardening: Hardening) -> Any:
        """A new explainer."""
        if accepts(self.factory, "hardening"):
            return self.factory(self.model, hardening=hardening)
        if len(inspect.signature(self.factory).parameters) > 1:
            return self.factory(self.model, hardening)
        explainer = self.factory(self.model)
        explainer.hardening = hardening
        return explainer

    def make_native(self, explainer: Any) -> Any:
        """The native explainer behind a hardened one; raises `Skip` if it is unknown."""
        if self.native_factory is not None:
            return self.native_factory(self.model)
        if not self.is_captum or not issubclass(self.native_class, Attribution):
            raise Skip("there is no native explainer to compare with: pass native_factory=")
        native = object.__new__(self.native_class)
        state = {name: value for name, value in vars(explainer).items() if name != "hardening"}
        native.__dict__.update(fresh_state(state))
        return native

    def ask(
        self,
        explainer: Any,
        query: Query | None = None,
        *,
        seed: int | None = 0,
        entry: Callable[..., Any] | None = None,
        **more: Any,
    ) -> Any:
        """An explainer's answer. `seed` is that of the global generators (None: as they are, for threads, which share
        them), and `entry` replaces the method that explains."""
        if seed is not None:
            with seeded(seed):
                return self.ask(explainer, query, seed=None, entry=entry, **more)
        query, entry = query or self.query, entry or getattr(explainer, self.entry)
        target = {"target": query.target} if query.target is not None and accepts(entry, "target") else {}
        return entry(query.inputs, **{**target, **query.options, **more})

    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs as a tuple; raises `Skip` if they are no tensors."""
        return tensors_of(self.inputs, "inputs")

    def part(self, index: Sequence[int]) -> Query:
        """The query about some of the examples, in this order."""
        of = functools.partial(take, index=list(index), batch=len(self.tensors()[0]))
        inputs = self.like_inputs([t[list(index)] for t in self.tensors()])
        return Query(inputs, of(self.target), self._options(inputs, of))

    def with_inputs(self, inputs: Sequence[Tensor]) -> Query:
        """The query about other inputs of the same batch size."""
        others = self.like_inputs(inputs)
        return self.query._replace(inputs=others, options=self._options(others, None))

    def like_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors in the structure of the inputs."""
        return tuple(tensors) if isinstance(self.inputs, tuple) else tensors[0]

    def _options(self, inputs: Any, of: Callable[[Any], Any] | None) -> Mapping[str, Any]:
        if callable(self.options):
            return self.options(inputs)
        if self.options is not None:
            return {name: of(value) if of else value for name, value in self.options.items()}
        row = getattr(self.plain, "_row", None)
        return row.options(inputs) if row is not None and isinstance(inputs, Tensor) else {}

    @functools.cached_property
    def native_answer(self) -> Any:
        """The native explainer's answer to the full query."""
        return self.ask(self.make_native(self.plain))

    def native_tensors(self) -> tuple[Tensor, ...]:
        """The native answer as a tuple; raises `Skip` if it has no tensors, or there is no native explainer."""
        return tensors_of(self.native_answer, "results")

    @functools.cached_property
    def stochastic(self) -> bool:
        """Whether the method draws from the global generators, so that its answer depends on their seeds."""
        first, *others = (self.ask(self.plain, seed=seed) for seed in (0, 1, 2))
        return any(difference(first, other, 1e-5 * self.scale) for other in others)

    @property
    def atol(self) -> float:
        """Absolute tolerance between answers whose arithmetic runs in another order."""
        kinds = [t.dtype for t in self.native_tensors() if t.is_floating_point()]
        return self.scale * max([1e-3, *(16 * torch.finfo(kind).eps for kind in kinds)])

    def noise(self, query: Query | None = None, *, explainer: Any = None, raw: Any = None, seed: int = 0) -> Tensor:
        """(batch, features) released minus native numbers (`raw` if known), with the same seeds; `Skip` if unknown."""
        if self.noisy.clip is not None or self.noisy.mask is not None or self.noisy.noise is None:
            raise Skip("noise can be separated from the map only if the hardening is noise alone")
        self.native_tensors()
        explainer = explainer or self.hardened
        raw = self.ask(self.make_native(explainer), query, seed=seed) if raw is None else raw
        return flat(self.ask(explainer, query, seed=seed)) - flat(raw)


class Snapshot:
    """Attributes, hooks and mode of each submodule of a model at creation, and values, `requires_grad` and `.grad` of
    its parameters and buffers, and of the tensors and arrays in other values."""

    def __init__(self, model: object, values: Mapping[str, Any] | None = None) -> None:
        parts = [(f"{type(r).__name__}.{n}".rstrip("."), p) for r in modules_of(model) for n, p in r.named_modules()]
        self._parts = [
            (name, vars(part), {k: (v, v.copy() if isinstance(v, dict) else v) for k, v in vars(part).items()})
            for name, part in parts
        ]
        arrays = [pair for name, value in (values or {}).items() for pair in tensors_in(value, name)]
        for name, part in parts:
            arrays += [(f"{key} of {name}", t) for key, t in {**part._parameters, **part._buffers}.items()]
        self._arrays = [(name, array, _facts(array)) for name, array in arrays if array is not None]

    def differences(self) -> list[str]:
        """The differences to the present state, a sentence each."""
        found = []
        for name, now, before in self._parts:
            changed = {k for k, (v, items) in before.items() if now.get(k) is not v or _ids(v) != _ids(items)}
            found += [f"{key.lstrip('_')} of {name} changed" for key in sorted(changed | (now.keys() - before.keys()))]
        for name, array, facts in self._arrays:
            found += [f"{fact} of {name} changed" for fact, v in _facts(array).items() if difference(facts[fact], v)]
        return found

    def restore(self) -> None:
        """Restore attributes, hooks, modes, values and gradients."""
        for _, now, before in self._parts:
            now.clear()
            for key, (value, items) in before.items():
                if isinstance(value, dict):  # the same dictionary, filled as before
                    value.clear()
                    value.update(items)
                now[key] = value
        for _, array, facts in self._arrays:
            if not difference(facts, _facts(array)):
                continue
            if isinstance(array, np.ndarray):
                array[...] = facts["values"]
                continue
            array.detach().copy_(facts["values"])
            if array.is_leaf:
                array.requires_grad_(facts["requires_grad"])
                array.grad = copy.deepcopy(facts["grad"])


def _ids(value: Any) -> Any:
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)


def _facts(array: Any) -> dict[str, Any]:
    if isinstance(array, np.ndarray):
        return {"values": array.copy()}
    grad = copy.deepcopy(array.grad) if array.is_leaf else None
    return {"values": array.detach().clone(), "requires_grad": array.requires_grad, "grad": grad}


def tensors_in(value: Any, name: str = "value") -> Iterator[tuple[str, Any]]:
    """(path, array) of the tensors and arrays in tuples, lists and dictionaries."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}[{key!r}]")
