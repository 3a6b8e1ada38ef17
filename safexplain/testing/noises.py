"""Clauses about noise: a function of the query and the key, and of nothing else."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.errors import InputError
from safexplain.testing.case import Case, Query, Skip, Untried, attempt, difference
from safexplain.testing.states import Snapshot

__all__ = [
    "a_pickled_copy_answers_alike",
    "asking_again_gives_the_same_answer",
    "double_precision_is_no_way_around",
    "noise_belongs_to_the_query",
    "noise_ignores_the_batch",
    "works_in_any_gradient_mode",
]


def asking_again_gives_the_same_answer(case: Case) -> Iterator[str]:
    """Asking again gives the same answer, also an explainer made anew (random methods: with the same seeds)."""
    first = case.answer
    again = {"asked again, it": (case.hardened, 0), "asked again, one made anew": (case.make(), 0)}
    if not case.stochastic:
        again["asked with other seeds of the global generators, it"] = (case.hardened, 1)
    for who, (explainer, seed) in again.items():
        if found := difference(first, case.ask(explainer, seed=seed), 1e-5 * case.scale):
            yield f"{who} answers otherwise: {found}"


def noise_belongs_to_the_query(case: Case) -> Iterator[str]:
    """Another key, example, input, target or model gets other noise."""
    base = case.own_noise
    if base.numel() < 8:
        raise Skip("there are too few numbers to tell")
    for change, noise in _other_noises(case):
        found = attempt(noise)
        if found is None or isinstance(found, Exception):
            why = f"{type(found).__name__}: {found!s:.80}" if found is not None else "natively it makes no difference"
            yield Untried(f"another {change}: {why}")
        elif _alike(base, found):
            yield f"another {change} gets the same noise"
    if float((base - case.noise(seed=1)).abs().max()) > case.atol:
        yield "other seeds of the global generators get other noise, which is drawn from them"
    first = case.tensors[0]
    if len(base) > 1 and base.shape[1] >= 8 and not torch.equal(first[0], first[1]) and _alike(base[0], base[1]):
        yield "another example of the same batch gets the same noise"


def noise_ignores_the_batch(case: Case) -> Iterator[str]:
    """The noise of an example depends neither on the examples around it nor on its place, also among many."""
    n = case.batch
    if n < 2:
        raise Skip("it takes two examples to tell; there is one")
    base = case.own_noise
    if len(base) != n:
        raise Skip("natively there is not one result for each example")
    questions = {"in another order": [*range(1, n, 2), *range(0, n, 2)][::-1], "twice over": [0, *range(n), n - 1]}
    questions |= {f"example {i} alone": [i] for i in (0, n - 1)}
    questions |= {f"among {LARGEST_BATCH} examples": [i % n for i in range(LARGEST_BATCH)]}
    for name, index in questions.items():
        native = attempt(lambda i=index: case.ask(case.make_native(case.hardened), case.part(i)))  # type: ignore[misc]
        if isinstance(native, Exception):
            yield Untried(f"{name}: natively {type(native).__name__}: {native!s:.80}")
            continue
        noise = attempt(lambda i=index, raw=native: case.noise(case.part(i), raw=raw))  # type: ignore[misc]
        if isinstance(noise, InputError):
            yield Untried(f"{name}: {noise!s:.80}")
            continue
        if isinstance(noise, Exception):
            raise noise
        furthest = float((noise - base[index]).abs().max())
        if furthest > case.atol:
            yield f"{name}: the same examples get other noise, by up to {furthest:.3g} (std {case.scale:g})"


def double_precision_is_no_way_around(case: Case) -> Iterator[str]:
    """In double precision there is the same noise, and inputs that are one number in float32 get one answer."""
    case.needs_tensors()
    roots, inputs = modules_of(case.model), case.tensors
    if not roots or not any(t.is_floating_point() for t in inputs):
        raise Skip("neither the model nor its inputs have a precision")
    expected = case.own_noise
    if not bool(expected.any()):
        raise Skip("there is no noise")
    with _in_double(roots):
        wide = replace(case, inputs=case.like_inputs([_double(t) for t in inputs]), options=_double(case.options))
        native = attempt(lambda: wide.native_answer)
        if isinstance(native, Exception):
            raise Skip(f"natively {type(native).__name__}: {native!s:.80}")
        noise = attempt(lambda: wide.noise(raw=native))
        if isinstance(noise, Exception):
            yield f"expected an answer, as natively, got {type(noise).__name__}: {noise!s:.120}"
            return
        size = float(noise.pow(2).mean() / expected.pow(2).mean()) ** 0.5
        if not 0.5 < size * case.scale / wide.scale < 2:
            yield f"expected noise as in single precision, got {size:.3g} times as much"
        untouched = int((noise == 0).sum())
        if untouched > max(1, noise.numel() // 100):
            yield f"expected noise on every coordinate, {untouched} of {noise.numel()} have none"
        if any(bool((t == 0).all()) for t in wide.tensors):
            return
        near = wide.with_inputs(
            wide.like_inputs([t * (1 + 1e-12) if t.is_floating_point() else t for t in wide.tensors])
        )
        moved = attempt(lambda: wide.noise(near))
        if isinstance(moved, Exception):
            yield f"inputs a little larger: expected an answer, got {type(moved).__name__}: {moved!s:.80}"
        elif (furthest := float((moved - noise).abs().max())) > wide.atol:
            yield f"inputs that float32 cannot tell apart get other noise, by up to {furthest:.3g}: it averages away"


LARGEST_BATCH = 129


@contextmanager
def _in_double(roots: tuple[torch.nn.Module, ...]) -> Iterator[None]:
    """All parameters and buffers in double precision; afterwards they are the very tensors that they were."""
    tensors = [t for root in roots for t in (*root.parameters(), *root.buffers()) if t.is_floating_point()]
    before = [t.data for t in tensors]
    try:
        for t in tensors:
            t.data = t.data.double()
        yield
    finally:
        for t, data in zip(tensors, before, strict=True):
            t.data = data


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(map(_double, value))
    return {key: _double(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def works_in_any_gradient_mode(case: Case) -> Iterator[str]:
    """Under torch.no_grad() and torch.inference_mode() the answers are the same."""
    expected, query = case.answer, case.query
    modes: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "torch.no_grad()": torch.no_grad,
        "torch.inference_mode()": torch.inference_mode,
    }
    for name, mode in modes.items():
        with mode():
            released = attempt(lambda: case.ask(case.hardened))
        if isinstance(released, Exception):
            if name == "torch.no_grad()" and isinstance(_native_in(case, mode), type(released)):
                yield Untried(f"{name}: natively {type(released).__name__}")
            else:
                yield f"{name}: expected the same answer, got {type(released).__name__}: {released!s:.120}"
        elif found := difference(expected, released, case.scale * 1e-5):
            yield f"{name}: {found}"
    given = query.inputs if isinstance(query.inputs, tuple) else (query.inputs,)
    if not all(isinstance(t, Tensor) for t in given):
        return
    with torch.inference_mode():
        inside = replace(query, inputs=case.like_inputs([t.clone() for t in case.tensors]))
        released = attempt(lambda: case.ask(case.hardened, inside))
    if isinstance(released, Exception):
        yield f"inputs made in inference mode: expected an answer, got {type(released).__name__}: {released!s:.120}"
    elif found := difference(expected, released, case.scale * 1e-5):
        yield f"inputs made in inference mode: {found}"


def a_pickled_copy_answers_alike(case: Case) -> Iterator[str]:
    """It pickles and copies where the native explainer does, and the copy gives the same answers."""
    expected = case.answer
    for how, twin_of in (("pickle", lambda o: pickle.loads(pickle.dumps(o))), ("copy.deepcopy", copy.deepcopy)):
        twin = attempt(lambda f=twin_of: f(case.hardened))  # type: ignore[misc]
        if isinstance(twin, Exception):
            try:
                native = attempt(lambda f=twin_of: f(case.make_native(case.hardened)))  # type: ignore[misc]
            except Skip as error:
                yield Untried(f"{how}: {type(twin).__name__}, and {error}")
                continue
            if not isinstance(native, Exception):
                yield f"{how}: expected a copy, as natively, got {type(twin).__name__}: {twin!s:.120}"
            else:
                yield Untried(f"{how}: {type(native).__name__}, as natively")
        elif type(twin) is not type(case.hardened):
            yield f"{how}: expected {case.kind.__name__}, got {type(twin).__name__}"
        elif found := difference(expected, case.ask(twin), 1e-5 * case.scale):
            yield f"{how}: the copy answers otherwise: {found}"


def _native_in(case: Case, mode: Callable[[], AbstractContextManager[Any]]) -> Any:
    with mode():
        return attempt(lambda: case.ask(case.make_native(case.hardened)))


def _other_noises(case: Case) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
    """What is changed, and the noise then; None where nothing could be changed."""
    other_key = case.noisy.with_key(b"another key of contract tests...")
    yield "key", lambda: case.noise(explainer=case.make(other_key))
    yield "input", lambda: case.noise(case.with_inputs(case.like_inputs([_moved(t) for t in case.tensors])))
    target = _other_target(case.query.target)
    asked = replace(case.query, target=target)
    if target is not None:
        yield "target", lambda: case.noise(asked) if _uses_target(case, asked) else None
    yield "model", lambda: _noise_of_another_model(case)


def _moved(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.flip(-1) if tensor.dim() > 1 else tensor
    step = 0.01 * float(tensor.detach().abs().mean()) + 0.01
    return tensor.detach() + step * torch.linspace(0.5, 1, tensor.numel(), device=tensor.device).view_as(tensor).to(
        tensor
    )


def _other_target(target: Any) -> Any:
    """Class 0 where another was asked for, 1 where it was 0."""
    if isinstance(target, Tensor):
        return (target == 0).to(target.dtype)
    if isinstance(target, tuple | list):
        return type(target)(_other_target(t) for t in target)
    return None if target is None else int(target == 0)


def _uses_target(case: Case, asked: Query) -> bool:
    """Whether natively the target makes a difference: methods for neurons take none."""
    native = case.make_native(case.hardened)
    return difference(case.ask(native), case.ask(native, asked)) is not None


def _noise_of_another_model(case: Case) -> Tensor | None:
    """The noise while the model's parameters are a little different; they are put back."""
    parameters = [p for root in modules_of(case.model) for p in root.parameters() if p.is_floating_point()]
    if not parameters:
        return None
    before = Snapshot(case.model)
    try:
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1.01).add_(1e-3)
        return case.noise(explainer=case.make())
    finally:
        before.restore()


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two noises are the same or correlated (six standard errors, for as many numbers as are distinct: methods
    that explain groups of features have one noise for each group).
    """
    if a.shape != b.shape:
        return False
    a, b = a.flatten(), b.flatten()
    size = float(a.std())
    if float(((a - b).abs() <= 0.01 * size).double().mean()) > 0.5:
        return True
    n = min(len(set((noise / size * 1e3).round().tolist())) for noise in (a, b))
    return n >= 50 and abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) > 6 / math.sqrt(n)
