"""The clauses: what any hardened explainer has to keep, each a generator of what is broken.

A clause yields a sentence for each thing that is broken, and `Untried` for what could not be tried; the first line of
its documentation is the promise. Where it does not apply, it raises `Skip`.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from captum.attr import LayerAttribution, NoiseTunnel
from torch import Tensor

from safexplain._digest import modules_of
from safexplain.errors import InputError
from safexplain.hardening.clips import RangeClip
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.case import (
    KEY,
    Case,
    Query,
    Skip,
    Untried,
    accepts,
    as_tuple,
    attempt,
    difference,
    flat,
    released_tensors,
    seeded,
    tensors_of,
)
from safexplain.testing.markers import MARKER_NUMBER, PLANTS, VALUES, Plant, find_markers, planted
from safexplain.testing.snapshot import Snapshot, tensors_in

THREADS = 8
PATIENCE = 1.0
"""Seconds that an explanation waits for a question in its middle."""


# --- numbers and types -----------------------------------------------------------------------------------------------


def answers(case: Case) -> Iterator[str]:
    """It can be made and asked."""
    case.answer  # noqa: B018 - asks
    if not hasattr(case.hardened, "hardening"):
        yield f"expected an attribute `hardening`, {case.kind.__name__} has none"


def equals_native_without_hardening(case: Case) -> Iterator[str]:
    """With Hardening.none() the answer is the native one: numbers, bit for bit, types, shapes, precision and device."""
    tensors_of(case.native_answer, "results")
    released = case.ask(case.plain)
    if fault := difference(case.native_answer, released):
        again = case.ask(case.make_native(case.plain))
        if difference(case.native_answer, again) and not difference(case.native_answer, released, 1e-4 * case.scale):
            yield Untried(f"bit for bit: natively two calls differ as well; here {fault}")
        else:
            yield fault


def no_examples_no_answers(case: Case) -> Iterator[str]:
    """An empty batch gives empty tensors of the right shape."""
    expected = [(0, *t.shape[1:]) for t in tensors_of(case.native_answer, "results")]
    released = attempt(lambda: case.ask(case.hardened, case.part([])))
    if isinstance(released, Exception):
        yield f"expected empty tensors for an empty batch, got {type(released).__name__}: {released!s:.120}"
    elif (got := [tuple(t.shape) for t in released_tensors(released)]) != expected:
        yield f"expected the shapes {expected} for an empty batch, got {got}"


def works_in_any_gradient_mode(case: Case) -> Iterator[str]:
    """Under torch.no_grad() and torch.inference_mode() the answers are the same."""
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            query = case.query
            if all(isinstance(t, Tensor) for t in as_tuple(case.inputs)):
                query = query._replace(inputs=case.like_inputs([t.clone() for t in case.tensors]))
            released = attempt(partial(case.ask, case.hardened, query))
        if isinstance(released, Exception):
            yield f"torch.{mode.__name__}(): expected the same answer, got {type(released).__name__}: {released!s:.120}"
        elif found := difference(case.answer, released, case.scale * 1e-5):
            yield f"torch.{mode.__name__}(): {found}"


def nan_and_infinity_do_not_leave(case: Case) -> Iterator[str]:
    """NaN and infinity in the native numbers come out as finite numbers, and raise no error."""
    tensors_of(case.native_answer, "results")
    if case.native_class is None:
        raise Skip("nobody says what the native class is: pass native=")
    with planted(case.native_class, case.entry, _poison) as planting:
        released = attempt(lambda: case.ask(case.hardened))
    if isinstance(released, Exception):
        yield f"where some native numbers are NaN or infinite, it raises {type(released).__name__}: {released!s:.120}"
    elif not planting.calls:
        yield case.never_ran
    elif bad := int((~flat(released).isfinite()).sum()):
        yield f"where some native numbers are NaN or infinite, {bad} of the released ones are not finite"


def _poison(result: Any, explainer: Any) -> Any:
    """NaN and infinities among zeros, over and over, in place of the native numbers."""
    poisoned = []
    for t in as_tuple(result):
        numbers = torch.tensor([math.nan, 0, math.inf, -math.inf, 0]).repeat(t.numel() // 5 + 1)[: t.numel()]
        poisoned.append(numbers.to(t.detach()).view(t.shape) if t.is_floating_point() else t)
    return tuple(poisoned) if isinstance(result, tuple) else poisoned[0]


# --- noise -----------------------------------------------------------------------------------------------------------


def asking_again_gives_the_same_answer(case: Case) -> Iterator[str]:
    """Asking again gives the same answer, also an explainer made anew (random methods: with the same seeds)."""
    again = {"asked again, it": (case.hardened, 0), "asked again, one made anew": (case.make(), 0)}
    if not case.stochastic:
        again["asked with other seeds of the global generators, it"] = (case.hardened, 1)
    for who, (explainer, seed) in again.items():
        if found := difference(case.answer, case.ask(explainer, seed=seed), 1e-5 * case.scale):
            yield f"{who} answers otherwise: {found}"


def clips_then_masks_then_noises(case: Case) -> Iterator[str]:
    """Every coordinate is clipped, then masked, then noised, masked ones too."""
    scale = case.scale
    steps = {"clip": RangeClip(-scale / 4, scale / 4), "mask": ThresholdMask(scale / 8)}
    native = tuple(t.detach() for t in tensors_of(case.native_answer, "results"))
    try:
        expected = flat(Hardening(**steps)(native if isinstance(case.native_answer, tuple) else native[0]))
        noise = GaussianNoise(scale / 64, key=KEY)
        explainer = case.make(Hardening(**steps, noise=noise, grid=scale * 2.0**-20))
    except InputError as error:
        raise Skip(f"the native results cannot be hardened: {error}") from None
    noises = flat(case.ask(explainer)) - expected
    if noises.shape != expected.shape or noises.numel() < 8:
        raise Skip("there are too few numbers to tell")
    untouched = int((noises == 0).sum())
    if untouched > max(1, noises.numel() // 100):
        yield f"expected noise on every coordinate, {untouched} of {noises.numel()} have none"
    elif float(noises.abs().max()) > 8 * scale / 64:
        yield f"expected clip, then mask, then noise of std {scale / 64:g}; came as far as {noises.abs().max():.3g} off"


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
    """The noise of an example depends neither on the examples around it nor on its place."""
    n = case.batch
    if n < 2:
        raise Skip("it takes two examples to tell; there is one")
    base = case.own_noise
    if len(base) != n:
        raise Skip("natively there is not one result for each example")
    questions = {"in another order": [*range(1, n, 2), *range(0, n, 2)][::-1], "twice over": [0, *range(n), n - 1]}
    questions |= {f"example {i} alone": [i] for i in (0, n - 1)}
    for name, index in questions.items():
        query = case.part(index)
        native = attempt(partial(case.ask, case.make_native(case.hardened), query))
        if isinstance(native, Exception):
            yield Untried(f"{name}: natively {type(native).__name__}: {native!s:.80}")
        elif (furthest := float((case.noise(query, raw=native) - base[index]).abs().max())) > case.atol:
            yield f"{name}: the same examples get other noise, by up to {furthest:.3g} (std {case.scale:g})"


def _other_noises(case: Case) -> Iterator[tuple[str, Callable[[], Tensor | None]]]:
    """What is changed, and the noise then; None where nothing could be changed."""
    other_key = case.noisy.with_key(b"another key of contract tests...")
    yield "key", lambda: case.noise(explainer=case.make(other_key))
    moved = [t.detach() * 1.01 + 0.01 if t.is_floating_point() else t.flip(-1) for t in case.tensors]
    yield "input", lambda: case.noise(case.with_inputs(case.like_inputs(moved)))
    asked = case.query._replace(target=_other_target(case.query.target))
    if asked.target is not None:
        yield "target", lambda: case.noise(asked) if _uses_target(case, asked) else None
    yield "model", lambda: _noise_of_another_model(case)


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


# --- what leaves beside the numbers ----------------------------------------------------------------------------------


def only_listed_arrays_leave(case: Case) -> Iterator[str]:
    """Only the listed arrays leave: markers planted around the native result are not found in the released one."""
    if case.native_class is None:
        raise Skip("nobody says what the native class is: pass native=")
    plants: Mapping[str, Plant] = PLANTS if case.plant is None else {"what plant= changed": case.plant}
    if case.plant is None:
        try:
            tensors_of(case.native_answer, "results")
        except Skip as error:
            raise Skip(f"{error}: say with plant=(result, explainer) -> result where markers go") from None
    usual = 0 if case.plant else len(released_tensors(case.answer))
    for where, plant in plants.items():
        explainer = case.make(_LOUD if where == VALUES or "beside" in where else None)
        with planted(case.native_class, case.entry, plant) as planting:
            released = attempt(partial(case.ask, explainer))
        if not planting.calls:
            yield case.never_ran
            return
        if isinstance(released, Exception) and "beside" not in where:
            yield f"with markers in {where}, it raises {type(released).__name__}: {released!s:.120}"
            continue
        found = find_markers(released, name="error" if isinstance(released, Exception) else "released")
        if case.is_captum and "explainer" not in where:
            found += find_markers(vars(explainer), name="vars(explainer)")
        several = isinstance(case.hardened, LayerAttribution)  # layers may have several outputs, nobody knows how many
        if found:
            yield f"markers in {where} can be read at {', '.join(found[:4])}{' ...' if found[4:] else ''}"
        elif "beside" in where and isinstance(released, tuple) and len(released) != usual and not several:
            yield f"{where} leaves: expected {usual} tensors or an error, got {len(released)}"


_LOUD = Hardening(noise=GaussianNoise(MARKER_NUMBER / 2, key=KEY))
"""Noise as large as the marker: where the marker is taken for an attribution, it leaves as another number."""


def released_arrays_are_detached(case: Case) -> Iterator[str]:
    """Released arrays belong to no graph, need no gradient and have memory of their own, without a byte more."""
    inputs = [value for _, value in tensors_in(case.inputs)]
    queries = [case.query]
    if inputs and all(isinstance(t, Tensor) and t.is_floating_point() for t in inputs):
        queries.append(case.with_inputs(case.like_inputs([t.detach().clone().requires_grad_() for t in inputs])))
    for query in queries:
        first, second = case.ask(case.hardened, query), case.ask(case.hardened, query)
        leaves = dict(tensors_in(first, "released"))
        if not leaves:
            raise Skip(f"results are no arrays but {type(first).__name__}")
        parameters = [p for root in modules_of(case.model) for p in (*root.parameters(), *root.buffers())]
        held = (second, case.inputs, query.inputs, parameters, dict(vars(case.hardened)))
        addresses = {_address(t) for value in held for _, t in tensors_in(value) if t.nbytes}
        for way, array in leaves.items():
            yield from (f"{way} {fault}" for fault in _faults(array))
            if array.nbytes and _address(array) in addresses:
                yield f"{way} shares its memory with the inputs, the model, the explainer or another answer"


def _faults(array: Any) -> Iterator[str]:
    if isinstance(array, np.ndarray):
        if array.base is not None:
            yield "is a view of another array, which can be read at .base"
        return
    if array.grad_fn is not None:
        yield f"has a grad_fn ({type(array.grad_fn).__name__}), from which the native map can be read back"
    elif array.requires_grad:
        yield "has requires_grad=True"
    own = array.numel() * array.element_size()
    if array._base is not None:
        yield "is a view of another tensor, which can be read at ._base"
    elif array.untyped_storage().nbytes() > own:
        yield f"has a storage of {array.untyped_storage().nbytes()} bytes where its numbers take {own}"


def _address(array: Any) -> int:
    return array.untyped_storage().data_ptr() if isinstance(array, Tensor) else array.__array_interface__["data"][0]


def no_way_around_the_hardening(case: Case) -> Iterator[str]:
    """Captum's other ways in are closed: `__wrapped__`, NoiseTunnel around it, convergence deltas, attribute_future."""
    if not case.is_captum:
        raise Skip("it is no Captum explainer")
    explainer, query = case.hardened, case.query
    native = getattr(case.native_class, case.entry, None)
    inner = getattr(getattr(type(explainer), case.entry), "__wrapped__", None)
    untunneled = query._replace(options={k: v for k, v in query.options.items() if not k.startswith("nt_")})
    if inner is not None and inner in (native, getattr(native, "__wrapped__", native)):
        yield f"{case.entry}.__wrapped__ is the native method, which NoiseTunnel and the layer wrappers call"
    elif inner is not None and _answers(lambda: case.ask(explainer, entry=partial(inner, explainer))):
        yield f"{case.entry}.__wrapped__ answers; NoiseTunnel would average its noise away: it has to refuse"
    elif _answers(lambda: case.ask(explainer, untunneled, entry=NoiseTunnel(explainer).attribute)):
        yield "NoiseTunnel around it answers, and averages the noise away: it has to refuse"
    has_delta = native is not None and accepts(native, "return_convergence_delta")
    ends = tuple(t for t in as_tuple(query.inputs) if isinstance(t, Tensor))
    zeros = tuple(map(torch.zeros_like, ends))
    delta = getattr(explainer, "compute_convergence_delta", None)
    if has_delta and _answers(lambda: case.ask(explainer, return_convergence_delta=True)):
        yield "return_convergence_delta=True is answered; with the map it tells the noise on the map's sum"
    if delta and _answers(lambda: delta(zeros, zeros, ends, target=query.target)):
        yield "compute_convergence_delta answers; with the map it tells the noise on the map's sum"
    future = getattr(explainer, "attribute_future", None)
    if future and _answers(lambda: case.ask(explainer, entry=future)):
        yield "attribute_future answers; natively it returns native maps"


def _answers(run: Callable[[], Any]) -> bool:
    return not isinstance(attempt(run), Exception)


# --- what stays behind, and other threads ----------------------------------------------------------------------------


def leaves_nothing_behind(case: Case) -> Iterator[str]:
    """Model, inputs and global generators are as before, also in training mode and after a call that fails."""
    explainer, roots = case.make(), modules_of(case.model)
    if case.stochastic:
        yield Untried("the global generators: the method draws from them, as natively")
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
        before = _global_state()
    with seeded(0):
        attempt(partial(case.ask_unseeded, explainer))
        after = _global_state()
    yield from (f"{when}{sentence}" for sentence in snapshot.differences())
    changed = [name for name in before if before[name] != after[name]]
    yield from (f"{when}{name} is another than before" for name in changed if name in _MODES or not case.stochastic)
    snapshot.restore()


_MODES = ("torch's gradient mode", "torch's default dtype")


def _global_state() -> dict[str, Any]:
    """Torch's modes, and the next number of each global generator."""
    drawn = (float(torch.rand(())), np.random.rand(), random.random())  # noqa: NPY002 - the global one is meant
    modes = (torch.is_grad_enabled(), torch.get_default_dtype())
    generators = (f"the global generator of {name}" for name in ("torch", "NumPy", "Python"))
    return dict(zip((*_MODES, *generators), (*modes, *drawn), strict=True))


def _fail(*_: Any) -> None:
    raise ArithmeticError("a model that fails, for a test")


def threads_get_right_answers(case: Case) -> Iterator[str]:
    """Threads that explain and predict at the same time get the answers of a single thread."""
    explainer, predict = case.make(), _prediction(case)
    questions: list[Callable[[], Any]] = [predict] if predict else []
    if case.stochastic and not predict:
        raise Skip("the method draws from the global generators, which threads share")
    if case.stochastic:
        yield Untried("explanations in several threads: the method draws from the global generators, which they share")
    else:
        explanations = [partial(case.ask_unseeded, explainer, query) for query in (case.query, *_of_one_example(case))]
        questions += [question for question in explanations if _answers(question)]
        expected = [question() for question in questions]
        with ThreadPoolExecutor(THREADS) as pool:
            given = list(pool.map(attempt, questions * THREADS))
        if faults := [fault for pair in zip(expected * THREADS, given, strict=True) if (fault := _unlike(*pair))]:
            yield f"{len(faults)} of {len(given)} answers in {THREADS} threads at once are wrong: {faults[0]}"
    for question in questions:
        yield from _in_between(case, explainer, question)


def _of_one_example(case: Case) -> list[Query]:
    try:
        return [case.part([0])]
    except Skip:
        return []


def _in_between(case: Case, explainer: Any, question: Callable[[], Any]) -> Iterator[str]:
    """A question asked while an explanation in another thread is in the middle of the model."""
    expected, explanation = question(), case.ask(explainer)
    entered, passed, here = threading.Event(), threading.Event(), threading.get_ident()

    def gate(*_: Any) -> None:  # may reach no module: a private copy of the model holds it
        if threading.get_ident() != here and not entered.is_set():
            entered.set()
            passed.wait(PATIENCE)

    with ExitStack() as stack, seeded(0), ThreadPoolExecutor(1) as pool:
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


def _prediction(case: Case) -> Callable[[], Any] | None:
    """The model asked for its outputs; None where it wants other arguments, or has no two times the same answer."""
    given = (*as_tuple(case.inputs), *as_tuple(case.query.options.get("additional_forward_args", ())))

    @torch.no_grad()
    def predict() -> Any:
        return case.model(*given)

    first = attempt(predict)
    return None if isinstance(first, Exception) or difference(first, predict()) else predict


def _unlike(expected: Any, got: Any) -> str | None:
    """What is wrong with an answer, beyond rounding."""
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got!s:.120}"
    numbers = [torch.as_tensor(array).detach().abs() for _, array in tensors_in(expected) if array.dtype != object]
    largest = max((float(array.max()) for array in numbers if array.numel()), default=0.01)
    return difference(expected, got, 1e-4 * largest)
