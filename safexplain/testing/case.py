"""What is checked: a way to make the explainer, a question to ask it, and the native explainer to compare it with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from captum.attr import Attribution
from torch import Tensor

from safexplain.errors import ConfigurationError
from safexplain.explain.catalog import find_row
from safexplain.explain.isolation import own_state
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.asking import Query, Skip, accepts, build, flat, seeded, take, tensors_of
from safexplain.testing.compare import same

__all__ = ["KEY", "Case"]

KEY = b"the key of contract tests, fixed"


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
    seed: int = 0

    # How explainers are made and asked.

    def make(self, hardening: Hardening | None = None) -> Any:
        """A new explainer; None: with noise."""
        return build(self.factory, self.model, self.noisy if hardening is None else hardening)

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
        with seeded(self.seed + seed):
            return self.ask_unseeded(explainer, query, **more)

    def ask_unseeded(self, explainer: Any, query: Query | None = None, **more: Any) -> Any:
        """What an explainer answers; for threads, which share the global generators."""
        query = query or self.query
        entry = getattr(explainer, self.entry)
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
        return replace(self.query, inputs=inputs, options=self._options(inputs, None))

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
        try:
            row = find_row(self.kind.__name__)
        except ConfigurationError:
            return {}
        if not isinstance(inputs, Tensor | tuple):
            return {}
        return row.options(inputs)

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
        return not all(same(first, self.ask(asked, seed=seed), atol=1e-5 * self.scale) for seed in (1, 2))

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

    def needs_tensors(self) -> None:
        """Raise `Skip` unless natively results are tensors."""
        tensors_of(self.native_answer, "results")

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
        self.needs_tensors()
        explainer = explainer or self.hardened
        raw = self.ask(self.make_native(explainer), query, seed=seed) if raw is None else raw
        return flat(self.ask(explainer, query, seed=seed)) - flat(raw)
