"""Clauses about what a call leaves behind, and about other threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.testing.asking import Query, Skip, Untried, attempt, seeded, tensors_of
from safexplain.testing.case import Case
from safexplain.testing.compare import difference
from safexplain.testing.snapshot import Snapshot, tensors_in

__all__ = ["leaves_nothing_behind", "threads_get_right_answers"]

THREADS = 8


def leaves_nothing_behind(case: Case) -> Iterator[str]:
    """Model, inputs and global generators are as before, also in training mode and after a call that fails."""
    explainer = case.make()
    yield from _left_behind(case, "", lambda: case.ask(explainer))
    yield from _generators(case, explainer)
    roots = modules_of(case.model)
    if all(isinstance(t, Tensor) for t in _each(case.inputs)):
        needing = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in case.tensors]
        query = case.with_inputs(case.like_inputs(needing))
        yield from _left_behind(case, "with inputs that require gradients: ", lambda: case.ask(explainer, query), query)
        wrong = case.with_inputs(case.like_inputs([_misshapen(t) for t in case.tensors]))
        yield from _left_behind(case, "after inputs of a wrong shape: ", lambda: case.ask(explainer, wrong), wrong)
    if not roots:
        yield Untried("training mode and a failing model: there is no torch module")
        return
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
    questions: dict[str, Callable[[], Any]] = {"a prediction": predict} if predict else {}
    if case.stochastic and not predict:
        raise Skip("the method draws from the global generators, which threads share")
    if case.stochastic:
        yield Untried("explanations in several threads: the method draws from the global generators, which they share")
    else:
        queries = _parts(case)
        questions["another explanation"] = lambda: case.ask_unseeded(explainer, queries[-1])
        yield from _at_once(case, explainer, queries, predict)
    for name, question in questions.items():
        yield from _in_between(case, explainer, name, question)


def _at_once(case: Case, explainer: Any, queries: list[Query], predict: Callable[[], Any] | None) -> Iterator[str]:
    """Eight threads, and one that predicts."""
    expected = [case.ask_unseeded(explainer, query) for query in queries]
    right, done = predict and predict(), threading.Event()
    wrong: list[str] = []

    def predict_on() -> None:
        while predict and not done.is_set() and not wrong:
            wrong.extend(filter(None, [_unlike(right, attempt(predict))]))

    beside = threading.Thread(target=predict_on)
    beside.start()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            asked = [i % len(queries) for i in range(THREADS)]
            answers = list(pool.map(lambda i: attempt(lambda: case.ask_unseeded(explainer, queries[i])), asked))
    finally:
        done.set()
        beside.join()
    faults = [fault for i, answer in zip(asked, answers, strict=True) if (fault := _unlike(expected[i], answer))]
    if faults:
        yield f"{len(faults)} of {len(asked)} explanations in {THREADS} threads at once are wrong: {faults[0]}"
    if wrong:
        yield f"a prediction beside {THREADS} threads that explain is wrong: {wrong[0]}"


def _in_between(case: Case, explainer: Any, name: str, question: Callable[[], Any]) -> Iterator[str]:
    """A question asked while an explanation in another thread is in the middle of the model."""
    started = time.perf_counter()
    expected, explanation = question(), case.ask(explainer)
    patience = min(max(1.0, 10 * (time.perf_counter() - started)), 5.0)
    entered, passed, asking = threading.Event(), threading.Event(), set[int]()
    answers: list[Any] = []

    def gate(*_: Any) -> None:  # may reach no module: a private copy of the model holds it
        if threading.get_ident() in asking and not entered.is_set():
            entered.set()
            passed.wait(patience)

    def explain() -> None:
        asking.add(threading.get_ident())
        answers.append(attempt(lambda: case.ask_unseeded(explainer)))

    thread = threading.Thread(target=explain)
    with ExitStack() as stack:
        for root in modules_of(case.model):
            stack.callback(root.register_forward_hook(gate).remove)
        with seeded(case.seed):
            thread.start()
            try:
                while not entered.wait(0.005) and thread.is_alive():
                    pass
                answer = attempt(question) if entered.is_set() else None
            finally:
                passed.set()
                thread.join()
    if not entered.is_set():
        yield Untried(f"{name} in the middle of an explanation: the explanation runs no torch module")
        return
    if fault := _unlike(expected, answer):
        yield f"{name} asked for in the middle of an explanation is wrong: {fault}"
    if not case.stochastic and (fault := _unlike(explanation, answers[0])):
        yield f"an explanation in whose middle {name} is asked for is wrong: {fault}"


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
        before = _generator_states()
        case.ask_unseeded(explainer)
        drawn = [name for name, state in _generator_states().items() if state != before[name]]
    if drawn:
        yield f"the global generator of {' and '.join(drawn)} was drawn from or seeded, natively it is not"


def _generator_states() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is meant
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "NumPy": (numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"], numpy_state["gauss"]),
        "Python": random.getstate(),
    }


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


def _misshapen(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor], -1).detach()


def _fail(*_: Any) -> None:
    raise ArithmeticError("a model that fails, for a test")


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
