"""The contract: its clauses, the explainer under test, the function that checks it, and its report.

A clause is a generator that yields a sentence for each fault and `Untried` for untried parts, and raises `Skip` if it
does not apply; the first line of its docstring is the promise."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import random
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from captum.attr import Attribution, NoiseTunnel
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.errors import ConfigurationError, SafexplainError
from safexplain.explain.isolation import fresh_state
from safexplain.hardening.clips import RangeClip, ThresholdMask
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.markers import MARKER_NUMBER, PLANTS, VALUES, Plant, as_tuple, find_markers, parts_of, planted

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
    """The first difference of the expected result `a` and `b`, of any kind, as a sentence; None: there is none. Numbers
    have an absolute tolerance, and NaN equals NaN; `within` are ids of the containing objects.

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
    """An explainer under test; arguments as of `check_explainer`. `prepare` sets `plain` and `hardened`, the explainer
    without hardening and with `noisy`; its `answer`; and `scale`, a power of two near the native numbers, or 1."""

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
        """An explainer's answer, with this seed of the global generators (None: as they are)."""
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
    """Attributes, hooks and modes of a model, and its tensors and those in other values, with their gradients."""

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


THREADS = 8
LONGEST_WAIT = 1.0  # seconds that an explanation waits for a query in its middle


def answers(case: Case) -> Iterator[str]:
    """The explainer can be created and called."""
    case.prepare()
    if not hasattr(case.hardened, "hardening"):
        yield f"expected an attribute `hardening`, {type(case.hardened).__name__} has none"


def equals_native_without_hardening(case: Case) -> Iterator[str]:
    """With Hardening.none(), the answer is the native one bit for bit, with its types, shapes, precision and device."""
    case.native_tensors()
    released = case.ask(case.plain)
    if fault := difference(case.native_answer, released):
        repeated = case.ask(case.make_native(case.plain))
        if difference(case.native_answer, repeated) and not difference(case.native_answer, released, 1e-4 * case.scale):
            yield Untried(f"bit for bit: two native calls differ as well; here {fault}")
        else:
            yield fault


def no_examples_no_answers(case: Case) -> Iterator[str]:
    """An empty batch gives empty tensors of the right shape."""
    expected = [(0, *t.shape[1:]) for t in case.native_tensors()]
    released = case.ask(case.hardened, case.part([]))
    if (got := [tuple(t.shape) for t in as_tuple(released)]) != expected:
        yield f"expected the shapes {expected} for an empty batch, got {got}"


def works_in_any_gradient_mode(case: Case) -> Iterator[str]:
    """Under torch.no_grad() and torch.inference_mode() the answers are the same."""
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            query = case.query
            if all(isinstance(t, Tensor) for t in as_tuple(case.inputs)):
                query = query._replace(inputs=case.like_inputs([t.clone() for t in case.tensors()]))
            released = attempt(partial(case.ask, case.hardened, query))
        if isinstance(released, Exception):
            yield f"torch.{mode.__name__}(): expected the same answer, got {type(released).__name__}: {released!s:.120}"
        elif found := difference(case.answer, released, case.scale * 1e-5):
            yield f"torch.{mode.__name__}(): {found}"


def asking_again_gives_the_same_answer(case: Case) -> Iterator[str]:
    """Repeating a query gives the same answer, also from a new explainer (random methods: with the same seeds)."""
    again = {"a repeated query": (case.hardened, 0), "a new explainer": (case.make(case.noisy), 0)}
    if not case.stochastic:
        again["a query under other seeds of the global generators"] = (case.hardened, 1)
    for name, (explainer, seed) in again.items():
        if found := difference(case.answer, case.ask(explainer, seed=seed), 1e-5 * case.scale):
            yield f"{name} gets another answer: {found}"


def clips_then_masks_then_noises(case: Case) -> Iterator[str]:
    """Every coordinate is clipped, then masked, then noised, masked ones too."""
    scale = case.scale
    steps: dict[str, Any] = {"clip": RangeClip(-scale / 4, scale / 4), "mask": ThresholdMask(scale / 8)}
    native = tuple(t.detach() for t in case.native_tensors())
    expected = flat(Hardening(**steps)(native if isinstance(case.native_answer, tuple) else native[0]))
    noise = GaussianNoise(scale / 64, key=KEY)
    explainer = case.make(Hardening(**steps, noise=noise, grid=scale * 2.0**-20))
    noises = flat(case.ask(explainer)) - expected
    if (untouched := int((noises == 0).sum())) > max(1, noises.numel() // 100):
        yield f"expected noise on every coordinate, {untouched} of {noises.numel()} have none"
    elif float(noises.abs().max()) > 8 * scale / 64:
        yield f"expected clip, mask, and noise of std {scale / 64:g}; numbers differ by up to {noises.abs().max():.3g}"


def noise_belongs_to_the_query(case: Case) -> Iterator[str]:
    """Another key, example, input, target or model gets other noise."""
    base = case.noise()
    if base.numel() < 8:
        raise Skip("the explanation has fewer than 8 numbers, too few to test its noise")
    for change, noise in _other_noises(case):
        found = attempt(noise)
        if found is None or isinstance(found, Exception):
            why = f"{type(found).__name__}: {found!s:.80}" if found else "the native answer does not depend on it"
            yield Untried(f"another {change}: {why}")
        elif _alike(base, found):
            yield f"another {change} gets the same noise"
    if float((base - case.noise(seed=1)).abs().max()) > case.atol:
        yield "other seeds of the global generators give other noise, so the noise is drawn from them"
    first = case.tensors()[0]
    if len(base) > 1 and base.shape[1] >= 8 and not torch.equal(first[0], first[1]) and _alike(base[0], base[1]):
        yield "another example of the same batch gets the same noise"


def noise_ignores_the_batch(case: Case) -> Iterator[str]:
    """The noise of an example depends neither on the other examples of the batch nor on its position."""
    if (n := len(case.tensors()[0])) < 2:
        raise Skip(f"expected two or more examples, got {n}")
    base = case.noise()
    if len(base) != n:
        raise Skip("the native explainer does not give one result for each example")
    questions = {"in another order": [*range(1, n, 2), *range(0, n, 2)][::-1], "twice over": [0, *range(n), n - 1]}
    questions |= {f"example {i} alone": [i] for i in (0, n - 1)}
    for name, index in questions.items():
        query = case.part(index)
        noise = attempt(partial(case.noise, query))
        if isinstance(noise, Exception):
            yield Untried(f"{name}: {type(noise).__name__}: {noise!s:.80}")
        elif (furthest := float((noise - base[index]).abs().max())) > case.atol:
            yield f"{name}: the same examples get other noise, by up to {furthest:.3g} (std {case.scale:g})"


def _other_noises(case: Case) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
    """(change, noise after it); the noise is None if nothing changed, or the native answer does not depend on it."""
    other_key = case.noisy.with_key(b"another key of contract tests...")
    moved = [t.detach() * 1.01 + 0.01 if t.is_floating_point() else t.flip(-1) for t in case.tensors()]
    other = case.query._replace(target=_other_target(case.query.target))
    native = case.make_native(case.hardened)  # methods for neurons take no target
    yield "key", lambda: case.noise(explainer=case.make(other_key))
    yield "input", lambda: case.noise(case.with_inputs(moved))
    if other.target is not None:
        yield "target", lambda: case.noise(other) if difference(case.native_answer, case.ask(native, other)) else None
    yield "model", lambda: _noise_of_another_model(case)


def _other_target(target: Any) -> Any:
    if isinstance(target, Tensor):
        return (target == 0).to(target.dtype)
    if isinstance(target, tuple | list):
        return type(target)(_other_target(t) for t in target)
    return None if target is None else int(target == 0)


def _noise_of_another_model(case: Case) -> Tensor | None:
    before = Snapshot(case.model)
    try:
        with torch.no_grad():
            for parameter in (p for root in modules_of(case.model) for p in root.parameters() if p.is_floating_point()):
                parameter.mul_(1.01).add_(1e-3)
        return case.noise(explainer=case.make(case.noisy)) if before.differences() else None
    finally:
        before.restore()


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two noises are equal, or correlated by six standard errors (of distinct values: groups share a noise)."""
    if a.shape != b.shape:
        return False
    a, b = a.flatten(), b.flatten()
    size = float(a.std())
    if float(((a - b).abs() <= 0.01 * size).double().mean()) > 0.5:
        return True
    n = min(len(set((noise / size * 1e3).round().tolist())) for noise in (a, b))
    return n >= 50 and abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) > 6 / math.sqrt(n)


def only_listed_arrays_leave(case: Case) -> Iterator[str]:
    """Only the listed arrays leave: markers planted around the native result are not found in the released one."""
    if case.native_class is None:
        raise Skip("the native class is unknown: pass native=")
    plants: Mapping[str, Plant] = PLANTS if case.plant is None else {"what plant= changed": case.plant}
    if case.plant is None:
        try:
            case.native_tensors()
        except Skip as error:
            raise Skip(f"{error}: pass plant=(result, explainer) -> result with markers") from None
    for where, plant in plants.items():
        explainer = case.make(_LOUD if where == VALUES or "returned with" in where else case.noisy)
        with planted(case.native_class, case.entry, plant) as planting:
            released = attempt(partial(case.ask, explainer))
        if not planting.calls:
            yield (
                f"{case.native_class.__name__}.{case.entry} was never run, so nothing could be planted in its results;"
                " pass the class and method that it runs as native= and entry="
            )
            return
        if isinstance(released, Exception) and "returned with" not in where:
            yield f"with markers in {where}, it raises {type(released).__name__}: {released!s:.120}"
            continue
        found = find_markers(released, name="error" if isinstance(released, Exception) else "released")
        if case.is_captum and "explainer" not in where:
            found += find_markers(vars(explainer), name="vars(explainer)")
        if found:
            yield f"markers in {where} can be read at {', '.join(found[:4])}{' ...' if found[4:] else ''}"


_LOUD = Hardening(noise=GaussianNoise(MARKER_NUMBER / 2, key=KEY))  # makes another number of a marker in the map


def released_arrays_are_detached(case: Case) -> Iterator[str]:
    """Released arrays belong to no graph, need no gradient and are not part of a larger memory."""
    inputs, queries = as_tuple(case.inputs), [case.query]
    if all(isinstance(t, Tensor) and t.is_floating_point() for t in inputs):
        queries.append(case.with_inputs([t.detach().clone().requires_grad_() for t in inputs]))
    for query in queries:
        released = case.ask(case.hardened, query)
        leaves = dict(tensors_in(released, "released"))
        if not leaves:
            raise Skip(f"results: expected arrays, got {type(released).__name__}")
        yield from (f"{way} {fault}" for way, array in leaves.items() for fault in _faults(array))


def _faults(array: Any) -> Iterator[str]:
    if isinstance(array, np.ndarray):
        if array.base is not None:
            yield "is a view of another array, readable at .base"
        return
    if array.grad_fn is not None:
        yield f"has a grad_fn ({type(array.grad_fn).__name__}), from which the native map can be read back"
    elif array.requires_grad:
        yield "has requires_grad=True"
    if array._base is not None:
        yield "is a view of another tensor, readable at ._base"
    elif (bytes_held := array.untyped_storage().nbytes()) > array.nbytes:
        yield f"has a storage of {bytes_held} bytes although its numbers take {array.nbytes}"


def no_way_around_the_hardening(case: Case) -> Iterator[str]:
    """Captum's other entry points are closed: `__wrapped__`, NoiseTunnel, convergence deltas, attribute_future."""
    if not case.is_captum:
        raise Skip("it is not a Captum explainer")
    explainer, query = case.hardened, case.query
    native = getattr(case.native_class, case.entry, None)
    inner = getattr(getattr(type(explainer), case.entry), "__wrapped__", None)
    untunneled = query._replace(options={k: v for k, v in query.options.items() if not k.startswith("nt_")})
    if inner is not None and inner in (native, getattr(native, "__wrapped__", native)):
        yield f"{case.entry}.__wrapped__ is the native method, which NoiseTunnel and the layer wrappers call"
    elif _succeeds(lambda: case.ask(explainer, untunneled, entry=NoiseTunnel(explainer).attribute)):
        yield f"NoiseTunnel around it answers, and averages the noise away: {case.entry}.__wrapped__ must refuse"
    has_delta = native is not None and accepts(native, "return_convergence_delta")
    ends = tuple(t for t in as_tuple(query.inputs) if isinstance(t, Tensor))
    zeros = tuple(map(torch.zeros_like, ends))
    delta = getattr(explainer, "compute_convergence_delta", None)
    if has_delta and _succeeds(lambda: case.ask(explainer, return_convergence_delta=True)):
        yield "return_convergence_delta=True is answered; with the map it reveals the noise on the map's sum"
    if delta and _succeeds(lambda: delta(zeros, zeros, ends, target=query.target)):
        yield "compute_convergence_delta answers; with the map it reveals the noise on the map's sum"
    future = getattr(explainer, "attribute_future", None)
    if future and _succeeds(lambda: case.ask(explainer, entry=future)):
        yield "attribute_future answers; Captum's returns native maps"


def _succeeds(run: Callable[[], Any]) -> bool:
    return not isinstance(attempt(run), Exception)


def leaves_nothing_behind(case: Case) -> Iterator[str]:
    """Model, inputs and global generators are unchanged, also in training mode and after a call that fails."""
    explainer, roots = case.make(case.noisy), modules_of(case.model)
    yield from _left_behind(case, explainer, "")
    with ExitStack() as stack:
        for root in roots:
            stack.callback(root.register_forward_hook(_fail).remove)
        yield from _left_behind(case, explainer, "after a model that fails: ")
    before = Snapshot(case.model)
    for root in roots:
        root.train()
    yield from _left_behind(case, explainer, "in training mode: ")
    before.restore()


def _left_behind(case: Case, explainer: Any, when: str) -> Iterator[str]:
    query = case.query
    snapshot = Snapshot(case.model, {"inputs": query.inputs, "target": query.target, "options": dict(query.options)})
    with seeded(0):
        before = _global_state(case)
    with seeded(0):
        attempt(partial(case.ask, explainer, seed=None))
        after = _global_state(case)
    yield from (f"{when}{sentence}" for sentence in snapshot.differences())
    if before != after:
        yield f"{when}torch's modes or the global generators changed: expected {before}, got {after}"
    snapshot.restore()


def _global_state(case: Case) -> tuple[Any, ...]:
    """Torch's modes, and the next number of each global generator unless the method draws from them."""
    modes = (torch.is_grad_enabled(), torch.get_default_dtype())
    return modes if case.stochastic else (*modes, float(torch.rand(())), np.random.rand(), random.random())  # noqa: NPY002


def _fail(*_: Any) -> None:
    raise ArithmeticError("a model that fails, for a test")


def threads_get_right_answers(case: Case) -> Iterator[str]:
    """Threads that explain and predict at the same time get the answers of a single thread."""
    explainer, predict = case.make(case.noisy), _prediction(case)
    questions: list[Callable[[], Any]] = [predict] if predict else []
    if case.stochastic and not predict:
        raise Skip("the method draws from the global generators, which all threads share")
    if case.stochastic:
        yield Untried("explanations in several threads: the method draws from the global generators, which they share")
    else:
        queries = [case.query]
        with suppress(Skip):
            queries.append(case.part([0]))
        explanations = [partial(case.ask, explainer, query, seed=None) for query in queries]
        questions += [question for question in explanations if _succeeds(question)]
        expected = [question() for question in questions]
        with ThreadPoolExecutor(THREADS) as pool:
            given = list(pool.map(attempt, questions * THREADS))
        if faults := [fault for pair in zip(expected * THREADS, given, strict=True) if (fault := _fault(*pair))]:
            yield f"{len(faults)} of {len(given)} answers in {THREADS} threads at once are wrong: {faults[0]}"
    for question in questions:
        yield from _during_explanation(case, explainer, question)


def _during_explanation(case: Case, explainer: Any, question: Callable[[], Any]) -> Iterator[str]:
    """A query while an explanation in another thread is in the middle of the model."""
    expected, explanation = question(), case.ask(explainer)
    entered, passed, here = threading.Event(), threading.Event(), threading.get_ident()

    def gate(*_: Any) -> None:  # must not reference a module, because a private copy of the model holds it
        if threading.get_ident() != here and not entered.is_set():
            entered.set()
            passed.wait(LONGEST_WAIT)

    with ExitStack() as stack, seeded(0), ThreadPoolExecutor(1) as pool:
        for root in modules_of(case.model):
            stack.callback(root.register_forward_hook(gate).remove)
        running = pool.submit(attempt, partial(case.ask, explainer, seed=None))
        while not entered.wait(0.005) and not running.done():
            pass
        answer = attempt(question)
        passed.set()
    if not entered.is_set():
        yield Untried("a query in the middle of an explanation: the explanation runs no torch module")
    elif fault := _fault(expected, answer):
        yield f"the answer to a query in the middle of an explanation is wrong: {fault}"
    elif not case.stochastic and (fault := _fault(explanation, running.result())):
        yield f"an explanation that another query interrupts is wrong: {fault}"


def _prediction(case: Case) -> Callable[[], Any] | None:
    """A call of the model; None: it needs other arguments, or does not repeat its answer."""
    given = (*as_tuple(case.inputs), *as_tuple(case.query.options.get("additional_forward_args", ())))
    predict = torch.no_grad()(partial(case.model, *given))
    return predict if _succeeds(predict) and not difference(predict(), predict()) else None


def _fault(expected: Any, got: Any) -> str | None:
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got!s:.120}"
    arrays = [torch.as_tensor(array).detach() for _, array in tensors_in(expected) if array.dtype != object]
    return difference(expected, got, 1e-4 * max((float(t.abs().max()) for t in arrays if t.numel()), default=0.01))


State = Literal["passed", "skipped", "broken"]


@dataclass(frozen=True)
class Outcome:
    """The result of one clause."""

    clause: str
    promise: str
    state: State
    details: tuple[str, ...] = ()  # why it was skipped; each fault; or, if it passed, the parts that were not tried

    def __str__(self) -> str:
        return "\n".join([f"{self.state:<8}{self.clause}: {self.promise}", *(f"          {d}" for d in self.details)])


@dataclass(frozen=True)
class ContractReport:
    """The outcomes of all clauses for one explainer."""

    explainer: str  # name of its class
    outcomes: tuple[Outcome, ...]  # in the order of `CLAUSES`

    def __getitem__(self, clause: str) -> Outcome:
        return {outcome.clause: outcome for outcome in self.outcomes}[clause]

    def __str__(self) -> str:
        states = [outcome.state for outcome in self.outcomes]
        counts = ", ".join(f"{states.count(state)} {state}" for state in get_args(State) if state in states)
        rest = ["no clause can check:", *(f"          {sentence}" for sentence in self.unchecked)]
        return "\n".join([f"{self.explainer}: {counts}", *map(str, self.outcomes), *rest])

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What no clause can check: an explainer that keeps the contract may still leak this way."""
        return UNCHECKED

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the clauses that hold."""
        return self._in_state("passed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the clauses that do not apply."""
        return self._in_state("skipped")

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the clauses that do not hold."""
        return self._in_state("broken")

    def _in_state(self, state: State) -> tuple[str, ...]:
        return tuple(outcome.clause for outcome in self.outcomes if outcome.state == state)


class ContractError(SafexplainError, AssertionError):
    """An explainer breaks clauses of the contract; the message lists each, `report` is the whole `ContractReport`."""

    def __init__(self, report: ContractReport) -> None:
        self.report = report
        broken = [str(outcome) for outcome in report.outcomes if outcome.state == "broken"]
        head = f"{report.explainer} breaks {len(broken)} of {len(report.outcomes)} clauses of the contract"
        super().__init__("\n".join([head, *broken]))


_NOISE = ("equals_native_without_hardening", "asking_again_gives_the_same_answer")

CLAUSES: Mapping[Callable[[Case], Iterable[str]], tuple[str, ...]] = {
    answers: (),
    equals_native_without_hardening: (),
    no_examples_no_answers: (),
    asking_again_gives_the_same_answer: (),
    clips_then_masks_then_noises: _NOISE,
    noise_belongs_to_the_query: _NOISE,
    noise_ignores_the_batch: _NOISE,
    only_listed_arrays_leave: (),
    released_arrays_are_detached: (),
    no_way_around_the_hardening: (),
    leaves_nothing_behind: (),
    threads_get_right_answers: _NOISE[1:],
    works_in_any_gradient_mode: _NOISE[1:],
}
"""Clause -> clauses that must hold for it to be checked, in the order of checking."""

UNCHECKED: tuple[str, ...] = (
    "whether the noise is large enough: `safexplain audit` measures what an attacker finds",
    "time and memory of an answer, which can depend on secrets",
    "output, logs, warnings, files, network connections and other processes",
    "functions, classes and modules within an answer, and what they refer to",
    "shapes, types, devices, memory layouts, precisions, batch sizes and options other than the given ones",
    "near-duplicate queries, and native numbers that are NaN or infinite",
    "behaviour after a certain time, for certain inputs, or after more calls than are made here",
    "an explainer that recognises this test",
)


def check_explainer(
    explainer_factory: Callable[..., Any],
    model: Any,
    inputs: Any,
    target: Any = None,
    *,
    options: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
    native: type | None = None,
    native_factory: Callable[[Any], Any] | None = None,
    entry: str | None = None,
    plant: Callable[[Any, Any], Any] | None = None,
    hardening: Hardening | None = None,
    skip: Collection[str] = (),
) -> ContractReport:
    """Check a hardened explainer against every clause of the contract; the report has the outcome of each.

    It makes a few hundred calls, and temporarily changes the model, the native class and the global generators, which
    nothing else should use meanwhile.

    Args:
        explainer_factory: (model, hardening=...) -> explainer, like a hardened class; or (model, hardening); or
            (model), whose attribute `hardening` is then set.
        model: a small model is enough; dropout or batch normalisation tests more.
        inputs: a tensor (batch, ...), a tuple of such, or any type of its library. Without two different examples, the
            clauses about batches are skipped.
        target: None if the explainer takes none.
        options: more keyword arguments for each call, or a function from inputs to them. None: those in the catalog.
        native: the native class; None: the explainer's `_native`.
        native_factory: model -> the native explainer to compare with. None: rebuilt from a hardened Captum explainer;
            for others, the clauses that compare are skipped.
        entry: name of the method that explains; None: the explainer's `_entry`, or "attribute".
        plant: (native result, native explainer) -> the result with `MARKER_TEXT` and `MARKER_NUMBER` in place of
            secrets. Needed if results are no tensors.
        hardening: of most clauses. None: noise alone, as large as the native numbers, with a fixed key.
        skip: names of clauses to skip.

    Raises:
        ContractError: a clause is broken; the message lists all broken ones, `report` holds the outcomes.
        ConfigurationError: `skip` has an unknown name.
    """
    names = [clause.__name__ for clause in CLAUSES][1:]
    if unknown := set(skip) - set(names):
        raise ConfigurationError(f"skip: expected some of {', '.join(names)}; got {sorted(unknown)}")
    case = Case(explainer_factory, model, inputs, target, options, native, native_factory, entry, plant, hardening)
    outcomes: dict[str, Outcome] = {}
    before = Snapshot(model, {"inputs": inputs, "target": target})
    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Captum's, about hooks and leaf tensors
        for clause, needs in CLAUSES.items():
            name, promise = clause.__name__, (inspect.getdoc(clause) or "").partition("\n")[0]
            cannot = [n for n in ("answers", *needs) if n in outcomes and outcomes[n].state == "broken"]
            if name in skip:
                outcomes[name] = Outcome(name, promise, "skipped", ("skipped by skip=",))
            elif cannot:
                outcomes[name] = Outcome(name, promise, "skipped", (f"cannot be checked while {cannot[0]} is broken",))
            else:
                outcomes[name] = Outcome(name, promise, *_result(clause, case))
            if before.differences():  # a broken clause must not affect the next one
                before.restore()
    made = type(case.plain) if outcomes["answers"].state != "broken" else explainer_factory
    report = ContractReport(getattr(made, "__name__", type(made).__name__), tuple(outcomes.values()))
    if report.broken:
        raise ContractError(report)
    return report


def _result(clause: Callable[[Case], Iterable[str]], case: Case) -> tuple[State, tuple[str, ...]]:
    details: list[str] = []
    try:
        for sentence in clause(case):
            details.append(sentence)
    except Skip as reason:
        if not details:
            return "skipped", (str(reason),)
        details.append(Untried(reason))
    except Exception as error:
        details.append(f"expected an answer, got {type(error).__name__}: {error!s:.200}")
    if broken := [d for d in details if not isinstance(d, Untried)]:
        return "broken", tuple(broken)
    return "passed", tuple(f"not tried: {d}" for d in details)
