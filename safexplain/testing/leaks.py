"""Clauses about what leaves beside the released numbers, and what is open beside the entry."""

from __future__ import annotations

import inspect
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch
from captum.attr import Attribution, LayerAttribution, NoiseTunnel
from torch import Tensor

from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.case import KEY, Case, Skip, accepts, attempt, released_tensors
from safexplain.testing.markers import MARKER_NUMBER, PLANTS, VALUES, Plant, find_markers, planted, says_marker
from safexplain.testing.states import tensors_in

__all__ = [
    "keeps_native_signatures",
    "no_way_around_the_hardening",
    "nothing_is_said_beside_the_answer",
    "only_listed_arrays_leave",
    "released_arrays_are_detached",
]


def _plants_of(case: Case) -> Mapping[str, Plant]:
    """Where -> how markers are planted around the native result.

    Raises:
        Skip: nothing says what the native result is, or where markers go in it.
    """
    if case.native_class is None:
        raise Skip("nobody says what the native class is: pass native=")
    if case.plant:
        return {"what plant= changed": case.plant}
    try:
        case.needs_tensors()
    except Skip as error:
        raise Skip(f"{error}: say with plant=(result, explainer) -> result where markers go") from None
    return PLANTS


def only_listed_arrays_leave(case: Case) -> Iterator[str]:
    """Only the listed arrays leave: markers planted around the native result are not found in the released one."""
    plants = _plants_of(case)
    usual = 0 if case.plant else len(released_tensors(case.answer))
    for where, plant in plants.items():
        explainer = case.make(_LOUD if where == VALUES or "beside" in where else None)
        with planted(case.native_class, case.entry, plant) as planting:
            released = attempt(lambda e=explainer: case.ask(e))  # type: ignore[misc]
        if not planting.calls:
            yield case.never_ran
            return
        if isinstance(released, Exception) and "beside" not in where:
            yield f"with markers in {where}, it raises {type(released).__name__}: {released!s:.120}"
            continue
        found = find_markers(released, name="error" if isinstance(released, Exception) else "released")
        if case.is_captum and "explainer" not in where:
            found += find_markers(vars(explainer), name="vars(explainer)")
        if found:
            yield f"markers in {where} can be read at {', '.join(found[:4])}{' ...' if found[4:] else ''}"
        elif "beside" in where and isinstance(released, tuple) and len(released) != usual and not _is_layer(case):
            yield f"{where} leaves: expected {usual} tensors or an error, got {len(released)}"


def nothing_is_said_beside_the_answer(case: Case) -> Iterator[str]:
    """Warnings, printed text, log records and errors tell nothing of what is planted around the native result."""
    plants = _plants_of(case)
    if not case.plant:
        plants = {where: plant for where, plant in plants.items() if where == VALUES or "beside" in where}
    for where, plant in plants.items():
        explainer = case.make(_LOUD)
        with planted(case.native_class, case.entry, plant) as planting, overhearing() as heard:
            released = attempt(lambda e=explainer: case.ask(e))  # type: ignore[misc]
        if not planting.calls:
            yield case.never_ran
            return
        told = [*heard, *([("an error", str(released))] if isinstance(released, Exception) else [])]
        for channel in dict.fromkeys(channel for channel, text in told if says_marker(text)):
            yield f"markers in {where} can be read in {channel}"


def released_arrays_are_detached(case: Case) -> Iterator[str]:
    """Released arrays belong to no graph, need no gradient and have memory of their own, without a byte more."""
    inputs = [value for _, value in tensors_in(case.inputs)]
    for requires_grad in (False, True):
        query = case.query
        if requires_grad:
            if not inputs or not all(isinstance(t, Tensor) and t.is_floating_point() for t in inputs):
                return
            query = case.with_inputs(case.like_inputs([t.detach().clone().requires_grad_() for t in inputs]))
        first, second = case.ask(case.hardened, query), case.ask(case.hardened, query)
        leaves = dict(tensors_in(first, "released"))
        if not leaves:
            raise Skip(f"results are no arrays but {type(first).__name__}")
        kept = [*(t for _, t in tensors_in(second)), *inputs, *_arrays_of(vars(case.hardened), case.model)]
        addresses = {_address(t) for t in kept if t.nbytes}
        for way, array in leaves.items():
            yield from (f"{way} {fault}" for fault in _faults(array))
            if array.nbytes and _address(array) in addresses:
                yield f"{way} shares its memory with the inputs, the model, the explainer or another answer"


def keeps_native_signatures(case: Case) -> Iterator[str]:
    """It is a subclass of the native class, with its signatures and a keyword-only `hardening` in the constructor."""
    native = case.native_class
    if native is None or not issubclass(native, Attribution):
        raise Skip("the native class is none of Captum's")
    if not issubclass(case.kind, native):
        yield f"expected a subclass of {native.__name__}, so that isinstance holds; {case.kind.__name__} is none"
    for name, label in (("__init__", "the constructor"), (case.entry, case.entry)):
        parameters = dict(inspect.signature(getattr(case.kind, name)).parameters)
        if name == "__init__":
            kind = getattr(parameters.pop("hardening", None), "kind", None)
            parameters.pop("model_digest", None)  # which names a model where nothing in it can be seen
            if kind is not inspect.Parameter.KEYWORD_ONLY:
                came = "none" if kind is None else kind.description
                yield f"expected a keyword-only `hardening` in the constructor, got {came}"
        got = [(p.name, p.kind) for p in parameters.values()]
        wanted = [(p.name, p.kind) for p in inspect.signature(getattr(native, name)).parameters.values()]
        if got != wanted:
            shown = [", ".join(n for n, _ in names) for names in (wanted, got)]
            yield f"{label}: expected the arguments ({shown[0]}), got ({shown[1]})"


def no_way_around_the_hardening(case: Case) -> Iterator[str]:
    """Captum's other ways in are closed: `__wrapped__`, NoiseTunnel around it, convergence deltas, attribute_future."""
    if not case.is_captum:
        raise Skip("it is no Captum explainer")
    explainer, query = case.hardened, case.query
    entry = getattr(type(explainer), case.entry)
    native = getattr(case.native_class, case.entry, None)
    inner = getattr(entry, "__wrapped__", None)
    if inner is not None and inner in (native, getattr(native, "__wrapped__", native)):
        yield f"{case.entry}.__wrapped__ is the native method, which NoiseTunnel and the layer wrappers call"
    elif inner is not None and _answers(lambda: case.ask_unseeded(_Inner(explainer, inner, case.entry), query)):
        yield f"{case.entry}.__wrapped__ answers; NoiseTunnel would average its noise away: it has to refuse"
    elif _answers(lambda: NoiseTunnel(explainer).attribute(query.inputs, target=query.target, **_rest(query.options))):
        yield "NoiseTunnel around it answers, and averages the noise away: it has to refuse"
    has_delta = native is not None and accepts(native, "return_convergence_delta")
    if has_delta and _answers(lambda: case.ask(explainer, return_convergence_delta=True)):
        yield "return_convergence_delta=True is answered; with the map it tells the noise on the map's sum"
    given = [t for t in (query.inputs if isinstance(query.inputs, tuple) else (query.inputs,)) if isinstance(t, Tensor)]
    zeros, ends = tuple(torch.zeros_like(t) for t in given), tuple(given)
    delta = getattr(explainer, "compute_convergence_delta", None)
    if delta and _answers(lambda: delta(zeros, zeros, ends, target=query.target)):
        yield "compute_convergence_delta answers; with the map it tells the noise on the map's sum"
    future = getattr(explainer, "attribute_future", None)
    if future and _answers(lambda: future(query.inputs, target=query.target, **query.options)):
        yield "attribute_future answers; natively it returns native maps"


@contextmanager
def overhearing() -> Iterator[list[tuple[str, str]]]:
    """Within, warnings, printed text and log records are kept from where they go; afterwards they are in the list.

    Loggers that do not hand their records to the root logger are not heard.
    """
    heard: list[tuple[str, str]] = []
    root, listener = logging.getLogger(), _Listener(heard)
    level, handlers = root.level, root.handlers
    streams = {"standard output": io.StringIO(), "standard error": io.StringIO()}
    with (
        warnings.catch_warnings(record=True) as told,
        redirect_stdout(streams["standard output"]),
        redirect_stderr(streams["standard error"]),
        _descriptor(1, "standard output", heard),
        _descriptor(2, "standard error", heard),
    ):
        warnings.simplefilter("always")
        root.handlers = [listener]
        root.setLevel(1)
        try:
            yield heard
        finally:
            root.handlers = handlers
            root.setLevel(level)
    heard += [("a warning", f"{w.message}") for w in told]
    heard += [(name, stream.getvalue()) for name, stream in streams.items()]


class _Listener(logging.Handler):
    def __init__(self, heard: list[tuple[str, str]]) -> None:
        super().__init__(1)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        extra = {name: value for name, value in vars(record).items() if name not in ("msg", "args")}
        self.heard.append(("a log record", f"{record.getMessage()} {extra}"))


@contextmanager
def _descriptor(number: int, name: str, heard: list[tuple[str, str]]) -> Iterator[None]:
    """What is written to a file descriptor, by whatever way; nothing where there is no such descriptor."""
    try:
        before = os.dup(number)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            os.dup2(before, number)
            os.close(before)
            file.seek(0)
            heard.append((name, file.read().decode("utf-8", "replace")))


_LOUD = Hardening(noise=GaussianNoise(MARKER_NUMBER / 2, key=KEY))
"""Noise as large as the marker: where the marker is taken for an attribution, it leaves as another number."""


class _Inner:
    """The function that wrappers call, asked like an explainer."""

    def __init__(self, explainer: Any, function: Callable[..., Any], entry: str) -> None:
        setattr(self, entry, lambda *args, **kwargs: function(explainer, *args, **kwargs))


def _answers(run: Callable[[], Any]) -> bool:
    return not isinstance(attempt(run), Exception)


def _rest(options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not name.startswith("nt_")}


def _is_layer(case: Case) -> bool:
    """Layers may have several outputs, so that nobody knows how many tensors there should be."""
    return isinstance(case.hardened, LayerAttribution)


def _faults(array: Any) -> Iterator[str]:
    if isinstance(array, np.ndarray):
        if array.base is not None:
            yield "is a view of another array, which can be read at .base"
        return
    if array.grad_fn is not None:
        yield f"has a grad_fn ({type(array.grad_fn).__name__}), from which the native map can be read back"
    elif array.requires_grad:
        yield "has requires_grad=True"
    if array.grad is not None:
        yield "has a .grad"
    own = array.numel() * array.element_size()
    if array._base is not None:
        yield "is a view of another tensor, which can be read at ._base"
    elif array.untyped_storage().nbytes() > own:
        yield f"has a storage of {array.untyped_storage().nbytes()} bytes where its numbers take {own}"


def _address(array: Any) -> int:
    return array.untyped_storage().data_ptr() if isinstance(array, Tensor) else array.__array_interface__["data"][0]


def _arrays_of(state: dict[str, Any], model: Any) -> list[Any]:
    parameters = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    return [*parameters, *(t for value in state.values() for _, t in tensors_in(value))]
