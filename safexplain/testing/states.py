"""Clauses about what a call leaves behind, which a `Snapshot` before it shows, and about other threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain._digest import modules_of
from safexplain.testing.case import Case, Query, Skip, Untried, attempt, difference, seeded, tensors_of

__all__ = ["Snapshot", "leaves_nothing_behind", "tensors_in", "threads_get_right_answers"]

THREADS = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_MISSING = object()


class Snapshot:
    """What a model and some values are at the moment when this is made.

    Parameters and buffers (which, values, `requires_grad`, `.grad`), hooks, training mode and attributes of each
    submodule; tensors and arrays in the values.

    Args:
        model: anything in which modules can be found, see `safexplain._digest.modules_of`.
        values: inputs and options: tensors and arrays in tuples, lists and dictionaries.

    >>> net, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
    >>> before = Snapshot(net, {"inputs": x})
    >>> _ = x.mul_(2), net.eval()
    >>> before.differences()
    ['training of Linear changed', 'inputs were written to']
    >>> before.restore(); bool(net.training), before.differences()
    (True, [])
    """

    def __init__(self, model: object, values: Mapping[str, Any] | None = None) -> None:
        parts = [(f"{type(r).__name__}.{n}".rstrip("."), p) for r in modules_of(model) for n, p in r.named_modules()]
        self._modules = [(name, part, _attributes(part)) for name, part in parts]
        arrays = [pair for name, value in (values or {}).items() for pair in tensors_in(value, name)]
        for name, part in parts:
            arrays += [(f"{key} of {name}", t) for key, t in {**part._parameters, **part._buffers}.items()]
        self._arrays = [(name, array, _facts(array)) for name, array in arrays if array is not None]

    def differences(self) -> list[str]:
        """What is not as it was, a sentence each."""
        found = []
        for name, part, before in self._modules:
            now = _attributes(part)
            found += [
                f"{key.lstrip('_')} of {name} changed"
                for key in sorted(before.keys() | now.keys())
                if not _unchanged(before.get(key, _MISSING), now.get(key, _MISSING))
            ]
        for name, array, (values, requires_grad, grad, numbers) in self._arrays:
            if not _same_numbers(array, values):
                found.append(f"{name} were written to")
            if not isinstance(array, Tensor):
                continue
            if array.requires_grad != requires_grad:
                found.append(f"{name} had requires_grad={requires_grad} and have {array.requires_grad}")
            if array.is_leaf and not (array.grad is grad and _same_numbers(grad, numbers)):
                found.append(f"{name} have another .grad than before")
        return found

    def restore(self) -> None:
        """Put everything back: attributes, hooks, modes, values, gradients."""
        for _, part, before in self._modules:
            kept = {key: vars(part).get(key) for key in before}
            vars(part).clear()
            for key, value in before.items():
                if isinstance(value, dict) and isinstance(kept[key], dict):  # the same dictionary, filled as before
                    kept[key].clear()
                    kept[key].update(value)
                    value = kept[key]
                vars(part)[key] = value
        with torch.no_grad():
            for _, array, (values, requires_grad, grad, numbers) in self._arrays:
                if isinstance(array, Tensor):
                    if not _same_numbers(array, values):
                        array.detach().copy_(values)
                    if array.is_leaf:
                        array.requires_grad_(requires_grad)
                        array.grad = grad if grad is None else grad.copy_(numbers)
                elif array.flags.writeable:
                    array[...] = values


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {key: value.copy() if isinstance(value, dict) else value for key, value in vars(part).items()}


def _facts(array: Any) -> tuple[Any, bool, Any, Any]:
    """Values, whether it needs a gradient, the gradient and its values."""
    if not isinstance(array, Tensor):
        return array.copy(), False, None, None
    grad = array.grad if array.is_leaf else None
    return array.detach().clone(), array.requires_grad, grad, None if grad is None else grad.detach().clone()


def _unchanged(before: Any, now: Any) -> bool:
    """The same object, equal plain values, or dictionaries with the same objects in the same order."""
    if isinstance(before, dict) and isinstance(now, dict):
        return list(before) == list(now) and all(before[key] is now[key] for key in before)
    return before is now or (isinstance(before, _PLAIN) and type(before) is type(now) and bool(before == now))


def _same_numbers(a: Any, b: Any) -> bool:
    """Equal shapes and types, values equal, NaN equal to NaN; None equal to None."""
    if a is None or b is None:
        return a is b
    return difference(b.detach() if isinstance(b, Tensor) else b, a.detach() if isinstance(a, Tensor) else a) is None


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
