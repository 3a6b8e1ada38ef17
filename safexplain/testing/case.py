"""What is checked: a way to make the explainer, a question to ask it, and the native explainer to compare with.

Everything is asked under fixed seeds of the global generators, and what comes back is read as tensors where it can be;
results are compared whatever they are made of.
"""

from __future__ import annotations

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

from safexplain.explain.isolation import own_state
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.markers import parts_of

KEY = b"the key of contract tests, fixed"


class Skip(Exception):
    """Raised by a clause that does not apply; says why."""


class Broken(Exception):
    """Raised by a clause that cannot go on; says what is broken."""


class Untried(str):
    """Yielded by a clause: a part of it that could not be tried, and why."""


class Query(NamedTuple):
    """One question to an explainer: inputs as its entry takes them, a target or None, and more keyword arguments."""

    inputs: Any
    target: Any
    options: Mapping[str, Any]


def attempt(run: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raised."""
    try:
        return run()
    except (Skip, Broken):
        raise
    except Exception as error:
        return error


def tensors_of(value: Any, what: str) -> tuple[Tensor, ...]:
    """A tensor or a tuple of tensors as a tuple.

    Raises:
        Skip: it is something else.
    """
    tensors = as_tuple(value)
    if not tensors or not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise Skip(f"{what} are no tensors but {type(value).__name__}")
    return tensors


def released_tensors(value: Any) -> tuple[Tensor, ...]:
    """What was released where natively there are tensors.

    Raises:
        Broken: it is something else.
    """
    try:
        return tensors_of(value, "results")
    except Skip as error:
        raise Broken(f"natively they are tensors; released {error}") from None


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple as it is; anything else in a tuple of one."""
    return value if isinstance(value, tuple) else (value,)


def flat(result: Any) -> Tensor:
    """Results as one float64 tensor (batch, features) on the CPU."""
    tensors = released_tensors(result)
    return torch.cat([t.detach().cpu().double().reshape(len(t), -1) for t in tensors], 1)


def accepts(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python; afterwards they are as they were."""
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
    """Some examples of a value that has a row for each; anything else stays as it is."""
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
    """The first difference of two results as a sentence, or None.

    Args:
        a: the expected one: tensors, arrays, numbers, text, or containers and other objects of such.
        b: what came.
        atol: how far numbers may lie apart, in their own units. NaN equals NaN.
        path: what the sentence calls them.
        within: ids of what they are parts of, where a cycle ends.

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


@dataclass(frozen=True)
class Case:
    """An explainer under test; the arguments are those of `check_explainer`."""

    factory: Callable[..., Any]
    model: Any
    inputs: Any
    target: Any = None
    options: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    native: type | None = None
    native_factory: Callable[[Any], Any] | None = None
    entry_name: str | None = None
    plant: Callable[[Any, Any], Any] | None = None
    given_hardening: Hardening | None = None

    # How explainers are made and asked.

    def make(self, hardening: Hardening | None = None) -> Any:
        """A new explainer (None: with noise), from whatever kind of factory."""
        hardening = self.noisy if hardening is None else hardening
        if accepts(self.factory, "hardening"):
            return self.factory(self.model, hardening=hardening)
        if len(inspect.signature(self.factory).parameters) > 1:
            return self.factory(self.model, hardening)
        explainer = self.factory(self.model)
        explainer.hardening = hardening
        return explainer

    def make_native(self, explainer: Any) -> Any:
        """The native explainer behind a hardened one.

        Raises:
            Skip: nobody says what it is.
        """
        if self.native_factory is not None:
            return self.native_factory(self.model)
        if not self.is_captum or not issubclass(self.native_class, Attribution):
            raise Skip("there is no native explainer to compare with: pass native_factory=")
        native = object.__new__(self.native_class)
        state = {name: value for name, value in vars(explainer).items() if name != "hardening"}
        native.__dict__.update(own_state(state))
        return native

    def ask(self, explainer: Any, query: Query | None = None, *, seed: int = 0, **more: Any) -> Any:
        """What an explainer answers, with every global generator seeded for the time of the call."""
        with seeded(seed):
            return self.ask_unseeded(explainer, query, **more)

    def ask_unseeded(
        self, explainer: Any, query: Query | None = None, *, entry: Callable[..., Any] | None = None, **more: Any
    ) -> Any:
        """What an explainer answers, or another way into it; for threads, which share the global generators."""
        query, entry = query or self.query, entry or getattr(explainer, self.entry)
        target = {"target": query.target} if query.target is not None and accepts(entry, "target") else {}
        return entry(query.inputs, **{**target, **query.options, **more})

    # What is asked.

    @functools.cached_property
    def query(self) -> Query:
        """The whole question."""
        return Query(self.inputs, self.target, self._options(self.inputs, None))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs.

        Raises:
            Skip: they are no tensors.
        """
        return tensors_of(self.inputs, "inputs")

    @property
    def batch(self) -> int:
        """Number of examples."""
        return len(self.tensors[0])

    def part(self, index: Sequence[int]) -> Query:
        """The question about some of the examples, in this order."""
        of = functools.partial(take, index=list(index), batch=self.batch)
        inputs = self.like_inputs([t[list(index)] for t in self.tensors])
        return Query(inputs, of(self.target), self._options(inputs, list(index)))

    def with_inputs(self, inputs: Any) -> Query:
        """The question about other inputs of the same batch size."""
        return self.query._replace(inputs=inputs, options=self._options(inputs, None))

    def like_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors in the structure of the inputs."""
        return tuple(tensors) if isinstance(self.inputs, tuple) else tensors[0]

    def _options(self, inputs: Any, index: list[int] | None) -> Mapping[str, Any]:
        if callable(self.options):
            return self.options(inputs)
        if self.options is not None:
            if index is None:
                return self.options
            return {name: take(value, index, self.batch) for name, value in self.options.items()}
        row = getattr(self.kind, "_row", None)
        return row.options(inputs) if row is not None and isinstance(inputs, Tensor | tuple) else {}

    # What it is.

    @functools.cached_property
    def plain(self) -> Any:
        """The explainer without hardening."""
        return self.make(Hardening.none())

    @functools.cached_property
    def hardened(self) -> Any:
        """The explainer with noise."""
        return self.make()

    @property
    def kind(self) -> type:
        """The explainer's class."""
        return type(self.plain)

    @property
    def is_captum(self) -> bool:
        """Whether it follows Captum's interface."""
        return isinstance(self.plain, Attribution)

    @functools.cached_property
    def native_class(self) -> Any:
        """The native class, or None where nobody says it."""
        found = self.native or getattr(self.plain, "_native", None)
        if found is None and self.native_factory is not None:
            found = self.native_factory(self.model)
        return found if isinstance(found, type) or found is None else type(found)

    @functools.cached_property
    def entry(self) -> str:
        """Name of the method that explains."""
        return str(self.entry_name or getattr(self.plain, "_entry", "attribute"))

    @functools.cached_property
    def native_answer(self) -> Any:
        """What the native explainer says to the whole question."""
        return self.ask(self.make_native(self.plain))

    @functools.cached_property
    def answer(self) -> Any:
        """What the explainer with noise says to the whole question."""
        return self.ask(self.hardened)

    @functools.cached_property
    def stochastic(self) -> bool:
        """Whether the method draws from the global generators, so that other seeds give another answer."""
        try:
            asked = self.make_native(self.plain)
        except Skip:
            asked = self.plain
        first = self.ask(asked)
        return any(difference(first, self.ask(asked, seed=seed), 1e-5 * self.scale) for seed in (1, 2))

    @functools.cached_property
    def scale(self) -> float:
        """A power of two of the size of the native numbers; 1 where they are no tensors or all zero."""
        try:
            answer = tensors_of(self.native_answer, "results")
        except Skip:
            return 1.0
        largest = max((float(t.detach().abs().max()) for t in answer if t.numel()), default=0.0)
        return 2.0 ** round(math.log2(largest)) if 0 < largest < math.inf else 1.0

    @functools.cached_property
    def noisy(self) -> Hardening:
        """The hardening that most clauses use: noise alone, as large as the native numbers."""
        if self.given_hardening is not None:
            return self.given_hardening
        return Hardening(noise=GaussianNoise(self.scale, key=KEY), grid=self.scale * 2.0**-20)

    @property
    def never_ran(self) -> str:
        """The sentence for an entry in which something was planted and that was not run."""
        return (
            f"{self.native_class.__name__}.{self.entry} was never run, so that nothing could be planted in its results;"
            " say with native= and entry= which class and method it runs"
        )

    @property
    def atol(self) -> float:
        """How far two answers may lie apart where the arithmetic is done in another order."""
        kinds = [t.dtype for t in tensors_of(self.native_answer, "results") if t.is_floating_point()]
        return self.scale * max([1e-3, *(16 * torch.finfo(kind).eps for kind in kinds)])

    @functools.cached_property
    def own_noise(self) -> Tensor:
        """The noise on the answer to the whole question."""
        return self.noise()

    def noise(self, query: Query | None = None, *, explainer: Any = None, raw: Any = None, seed: int = 0) -> Tensor:
        """(batch, features): what was released minus what is native (`raw` where it is known), with the same seeds.

        Raises:
            Skip: there are no tensors, no native explainer, or the hardening is more than noise.
        """
        if self.noisy.clip is not None or self.noisy.mask is not None or self.noisy.noise is None:
            raise Skip("noise can be told from the map only under a hardening of noise alone")
        tensors_of(self.native_answer, "results")
        explainer = explainer or self.hardened
        raw = self.ask(self.make_native(explainer), query, seed=seed) if raw is None else raw
        return flat(self.ask(explainer, query, seed=seed)) - flat(raw)
