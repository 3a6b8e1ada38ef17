"""Clauses about what a call leaves behind, which a `Snapshot` before it shows, and about other threads."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.testing.case import Case, Query, Skip, Untried, attempt, difference, seeded, tensors_of

__all__ = ["Snapshot", "leaves_nothing_behind", "tensors_in", "threads_get_right_answers"]

THREADS = 8
PATIENCE = 1.0


class Snapshot:
    """What a model and some values are at the moment when this is made.

    Attributes, hooks and training mode of each submodule; values, `requires_grad` and `.grad` of parameters, buffers
    and the tensors and arrays in the values.

    Args:
        model: anything in which modules can be found, see `safexplain._digest.modules_of`.
        values: inputs and options: tensors and arrays in tuples, lists and dictionaries.

    >>> net, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
    >>> before = Snapshot(net, {"inputs": x})
    >>> _ = x.mul_(2), net.eval()
    >>> before.differences()
    ['training of Linear changed', 'values of inputs changed']
    >>> before.restore(); bool(net.training), before.differences()
    (True, [])
    """

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
        """What is not as it was, a sentence each."""
        found = []
        for name, now, before in self._parts:
            changed = {k for k, (v, items) in before.items() if now.get(k) is not v or _ids(v) != _ids(items)}
            found += [f"{key.lstrip('_')} of {name} changed" for key in sorted(changed | (now.keys() - before.keys()))]
        for name, array, facts in self._arrays:
            found += [f"{fact} of {name} changed" for fact, v in _facts(array).items() if difference(facts[fact], v)]
        return found

    def restore(self) -> None:
        """Put everything back: attributes, hooks, modes, values, gradients."""
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
            if isinstance(array, Tensor):
                array.detach().copy_(facts["values"])
                if array.is_leaf:
                    array.requires_grad_(facts["requires_grad"])
                    array.grad = copy.deepcopy(facts["grad"])
            elif array.flags.writeable:
                array[...] = facts["values"]


def _ids(value: Any) -> Any:
    return {key: id(item) for key, item in value.items()} if isinstance(value, dict) else id(value)


def _facts(array: Any) -> dict[str, Any]:
    if not isinstance(array, Tensor):
        return {"values": array.copy()}
    grad = array.grad if array.is_leaf else None
    return {
        "values": array.detach().clone(),
        "requires_grad": array.requires_grad,
        "grad": None if grad is None else grad.detach().clone(),
    }


def tensors_in(value: Any, name: str = "value") -> Iterator[tuple[str, Any]]:
    """The tensors and arrays in tuples, lists and dictionaries, each with its way."""
    if isinstance(value, Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            yield from tensors_in(part, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_in(part, f"{name}[{key!r}]")


def leaves_nothing_behind(case: Case) -> Iterator[str]:
    """Model, inputs and global generators are as before, also in training mode and after a call that fails."""
    explainer = case.make()
    yield from _left_behind(case, "", lambda: case.ask(explainer))
    yield from _generators(case, explainer)
    if all(isinstance(t, Tensor) for t in _each(case.inputs)):
        needing = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in case.tensors]
        query = case.with_inputs(case.like_inputs(needing))
        yield from _left_behind(case, "with inputs that require gradients: ", lambda: case.ask(explainer, query), query)
        wrong = case.with_inputs(case.like_inputs([torch.cat([t, t], -1).detach() for t in case.tensors]))
        yield from _left_behind(case, "after inputs of a wrong shape: ", lambda: case.ask(explainer, wrong), wrong)
    roots = modules_of(case.model)
    with ExitStack() as stack:
        for root in roots:
            stack.callback(root.register_forward_hook(_fail).remove)
        yield from _left_behind(case, "after a model that fails: ", lambda: case.ask(explainer))
    before = Snapshot(case.model)
    for root in roots:
        root.train()
    yield from _left_behind(case, "in training mode: ", lambda: case.ask(explainer))
    before.restore()


def threads_get_right_answers(case: Case) -> Iterator[str]:
    """Threads that explain and predict at the same time get the answers of a single thread."""
    explainer, predict = case.make(), _prediction(case)
    questions: list[Callable[[], Any]] = [predict] if predict else []
    if case.stochastic and not predict:
        raise Skip("the method draws from the global generators, which threads share")
    if case.stochastic:
        yield Untried("explanations in several threads: the method draws from the global generators, which they share")
    else:
        explanations = [partial(case.ask_unseeded, explainer, query) for query in _parts(case)]
        questions.append(explanations[-1])
        asked: list[Callable[[], Any]] = [*questions, *explanations] * 4
        expected = [question() for question in asked]
        with ThreadPoolExecutor(THREADS) as pool:
            answers = list(pool.map(attempt, asked))
        if faults := [fault for pair in zip(expected, answers, strict=True) if (fault := _unlike(*pair))]:
            yield f"{len(faults)} of {len(asked)} answers in {THREADS} threads at once are wrong: {faults[0]}"
    for question in questions:
        yield from _in_between(case, explainer, question)


def _in_between(case: Case, explainer: Any, question: Callable[[], Any]) -> Iterator[str]:
    """A question asked while an explanation in another thread is in the middle of the model."""
    expected, explanation = question(), case.ask(explainer)
    entered, passed, here = threading.Event(), threading.Event(), threading.get_ident()

    def gate(*_: Any) -> None:  # may reach no module: a private copy of the model holds it
        if threading.get_ident() != here and not entered.is_set():
            entered.set()
            passed.wait(PATIENCE)

    with ExitStack() as stack, seeded(case.seed), ThreadPoolExecutor(1) as pool:
        for root in modules_of(case.model):
            stack.callback(root.register_forward_hook(gate).remove)
        running = pool.submit(attempt, partial(case.ask_unseeded, explainer))
        while not entered.wait(0.005) and not running.done():
            pass
        answer = attempt(question)
        passed.set()
    if not entered.is_set():
        yield Untried("a question in the middle of an explanation: the explanation runs no torch module")
    elif fault := _unlike(expected, answer):
        yield f"what is asked for in the middle of an explanation is wrong: {fault}"
    elif not case.stochastic and (fault := _unlike(explanation, running.result())):
        yield f"an explanation in whose middle another question is asked is wrong: {fault}"


def _left_behind(case: Case, when: str, run: Callable[[], Any], query: Query | None = None) -> Iterator[str]:
    asked = query or case.query
    snapshot = Snapshot(case.model, {"inputs": asked.inputs, "target": asked.target, "options": dict(asked.options)})
    modes = torch.is_grad_enabled(), torch.get_default_dtype()
    attempt(run)
    yield from (f"{when}{sentence}" for sentence in snapshot.differences())
    if (torch.is_grad_enabled(), torch.get_default_dtype()) != modes:
        yield f"{when}torch's gradient mode or default dtype is another than before"
    snapshot.restore()


def _generators(case: Case, explainer: Any) -> Iterator[str]:
    if case.stochastic:
        yield Untried("the global generators: the method draws from them, as natively")
        return
    with seeded(case.seed):
        expected = _draws()
    with seeded(case.seed):
        case.ask_unseeded(explainer)
        drawn = [name for name, number in _draws().items() if number != expected[name]]
    if drawn:
        yield f"the global generator of {' and '.join(drawn)} was drawn from or seeded, natively it is not"


def _draws() -> dict[str, float]:
    """The next number of each global generator."""
    return {"torch": float(torch.rand(())), "NumPy": np.random.rand(), "Python": random.random()}  # noqa: NPY002


def _prediction(case: Case) -> Callable[[], Any] | None:
    """The model asked for its outputs; None where it wants other arguments, or has no two times the same answer."""
    extra = case.query.options.get("additional_forward_args", ())
    given = (*_each(case.inputs), *(extra if isinstance(extra, tuple) else (extra,)))

    @torch.no_grad()
    def predict() -> Any:
        return case.model(*given)

    first = attempt(predict)
    return None if isinstance(first, Exception) or difference(first, predict()) else predict


def _parts(case: Case) -> list[Query]:
    """The question, and a few about single examples where it can be taken apart."""
    try:
        tensors_of(case.inputs, "inputs")
        case.needs_tensors()
    except Skip:
        return [case.query]
    parts = [case.part([i]) for i in range(min(3, case.batch))]
    answered = (part for part in parts if not isinstance(attempt(partial(case.ask, case.hardened, part)), Exception))
    return [case.query, *answered]


def _unlike(expected: Any, got: Any) -> str | None:
    """What is wrong with an answer, beyond rounding."""
    if isinstance(got, Exception) and not isinstance(expected, Exception):
        return f"{type(got).__name__}: {got!s:.120}"
    numbers = [torch.as_tensor(array).detach().abs() for _, array in tensors_in(expected) if array.dtype != object]
    largest = max((float(array.max()) for array in numbers if array.numel()), default=0.01)
    return difference(expected, got, 1e-4 * largest)


def _fail(*_: Any) -> None:
    raise ArithmeticError("a model that fails, for a test")


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
