"""Clauses about what is returned: numbers, types, shapes, precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from safexplain.errors import InputError
from safexplain.hardening.clips import RangeClip
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask
from safexplain.hardening.noise import GaussianNoise
from safexplain.testing.case import (
    KEY,
    Case,
    Skip,
    Untried,
    attempt,
    difference,
    flat,
    released_tensors,
    tensors_of,
)
from safexplain.testing.markers import planted

__all__ = [
    "answers",
    "clips_then_masks_then_noises",
    "equals_native_without_hardening",
    "memory_layout_changes_nothing",
    "nan_and_infinity_do_not_leave",
    "no_examples_no_answers",
    "returns_native_types",
]


def answers(case: Case) -> Iterator[str]:
    """It can be made and asked."""
    case.answer  # noqa: B018 - asks
    if not hasattr(case.hardened, "hardening"):
        yield f"expected an attribute `hardening`, {case.kind.__name__} has none"


def equals_native_without_hardening(case: Case) -> Iterator[str]:
    """With Hardening.none() the numbers are the native ones, bit for bit."""
    native = tensors_of(case.native_answer, "results")
    released = released_tensors(case.ask(case.plain))
    if len(released) != len(native):
        yield f"expected {len(native)} tensors, got {len(released)}"
    for i, (got, expected) in enumerate(zip(released, native, strict=False)):
        if got.shape != expected.shape:
            yield f"tensor {i}: expected shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        elif wrong := int((~_equal(got.to(expected.dtype), expected)).sum()):
            furthest = float((got - expected).detach().abs().nan_to_num().max())
            if furthest <= case.scale * 1e-4 and difference(case.native_answer, case.ask(case.make_native(case.plain))):
                yield Untried(f"bit for bit: natively two calls differ as well; here by {furthest:.3g}")
                continue
            yield f"tensor {i}: {wrong} of {got.numel()} numbers are not the native ones, by up to {furthest:.3g}"


def returns_native_types(case: Case) -> Iterator[str]:
    """Tensors come back as tensors and tuples as tuples, with the native dtype, device and shape."""
    yield from _types(case.answer, case.native_answer, "")
    if isinstance(case.inputs, tuple):
        return
    query = case.with_inputs((tensors_of(case.inputs, "inputs")[0],))
    native = attempt(lambda: case.ask(case.make_native(case.plain), query))
    if isinstance(native, Exception):
        yield Untried(f"a tuple of one input: natively {type(native).__name__}: {native!s:.80}")
    else:
        yield from _types(case.ask(case.hardened, query), native, "for a tuple of one input, ")


def no_examples_no_answers(case: Case) -> Iterator[str]:
    """An empty batch gives empty tensors of the right shape."""
    native = tensors_of(case.native_answer, "results")
    released = attempt(lambda: case.ask(case.hardened, case.part([])))
    if isinstance(released, Exception):
        yield f"expected empty tensors for an empty batch, got {type(released).__name__}: {released!s:.120}"
        return
    got = [tuple(t.shape) for t in released_tensors(released)]
    expected = [(0, *t.shape[1:]) for t in native]
    if got != expected:
        yield f"expected the shapes {expected} for an empty batch, got {got}"


def memory_layout_changes_nothing(case: Case) -> Iterator[str]:
    """Inputs laid out otherwise in memory, or that are part of larger tensors, get the answers of contiguous ones."""
    layouts = {name: [lay_out(t.detach()) for t in case.tensors] for name, lay_out in _LAYOUTS.items()}
    layouts = {name: inputs for name, inputs in layouts.items() if not all(map(_is_alone, inputs))}
    for name, inputs in layouts.items():
        query = case.with_inputs(case.like_inputs(inputs))
        native = attempt(lambda q=query: case.ask(case.make_native(case.hardened), q))  # type: ignore[misc]
        if isinstance(native, Exception):
            yield Untried(f"{name} inputs: natively {type(native).__name__}: {native!s:.60}")
            continue
        released = attempt(lambda q=query, raw=native: case.noise(q, raw=raw))  # type: ignore[misc]
        moved = name == "expanded"  # other numbers than those of the question
        contiguous = case.with_inputs(case.like_inputs([t.contiguous() for t in inputs])) if moved else None
        expected = case.noise(contiguous) if moved else case.own_noise
        if isinstance(released, Exception):
            yield f"{name} inputs: expected an answer, as natively, got {type(released).__name__}: {released!s:.120}"
        elif (furthest := _furthest(released, expected)) > case.atol:
            yield f"{name} inputs get other noise than contiguous ones, by up to {furthest:.3g}"


def nan_and_infinity_do_not_leave(case: Case) -> Iterator[str]:
    """NaN and infinity, in the attributions or in the inputs, come out as finite numbers, and raise no error."""
    yield from _of_bad_inputs(case)
    tensors_of(case.native_answer, "results")
    if case.native_class is None:
        raise Skip("nobody says what the native class is: pass native=")
    nan, inf = float("nan"), float("inf")
    poisons = {
        "all native numbers are NaN": [nan],
        "all are infinite": [inf],
        "some are either": [nan, 0, inf, -inf, 0],
    }
    for what, numbers in poisons.items():
        with planted(case.native_class, case.entry, _poison(numbers)) as planting:
            released = attempt(lambda: case.ask(case.hardened))
        if isinstance(released, Exception):
            yield f"where {what}, it raises {type(released).__name__}: {released!s:.120}"
        elif not planting.calls:
            yield case.never_ran
            return
        elif bad := int((~flat(released).isfinite()).sum()):
            yield f"where {what}, {bad} of the released ones are not finite"


def _of_bad_inputs(case: Case) -> Iterator[str]:
    try:
        inputs = case.tensors
    except Skip as error:
        yield Untried(f"inputs with NaN: {error}")
        return
    for number in (math.nan, math.inf):
        bad = [t.detach().clone() for t in inputs]
        for t in bad:
            if t.is_floating_point():
                t.view(len(t), -1)[:, :1] = number
        query = case.with_inputs(case.like_inputs(bad))
        native = attempt(lambda q=query: case.ask(case.make_native(case.hardened), q))  # type: ignore[misc]
        released = attempt(lambda q=query: case.ask(case.hardened, q))  # type: ignore[misc]
        if isinstance(native, Exception):
            yield Untried(f"inputs with {number}: natively {type(native).__name__}: {native!s:.60}")
        elif isinstance(released, Exception):
            yield f"for inputs with {number} it raises {type(released).__name__}: {released!s:.120}"
        elif wrong := int((~flat(released).isfinite()).sum()):
            yield f"for inputs with {number}, {wrong} of the released numbers are not finite"


def clips_then_masks_then_noises(case: Case) -> Iterator[str]:
    """Every coordinate is clipped, then masked, then noised, masked ones too."""
    scale = case.scale
    clip, mask = RangeClip(-scale / 4, scale / 4), ThresholdMask(scale / 8)
    noise = GaussianNoise(scale / 64, key=KEY)
    try:
        expected = flat(Hardening(clip=clip, mask=mask)(_detached(case.native_answer)))
        explainer = case.make(Hardening(clip=clip, mask=mask, noise=noise, grid=scale * 2.0**-20))
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


def _types(released: Any, native: Any, where: str) -> Iterator[str]:
    expected = tensors_of(native, "results")
    if isinstance(native, tuple) != isinstance(released, tuple):
        yield f"{where}expected {type(native).__name__}, got {type(released).__name__}"
    got = released_tensors(released)
    if len(got) != len(expected):
        yield f"{where}expected {len(expected)} tensors, got {len(got)}"
    for a, b in zip(got, expected, strict=False):
        if type(a) is not Tensor:
            yield f"{where}expected torch.Tensor itself, got its subclass {type(a).__name__}"
        for name in ("dtype", "device", "shape"):
            if getattr(a, name) != getattr(b, name):
                yield f"{where}expected {name} {getattr(b, name)}, got {getattr(a, name)}"


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b


def _furthest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.numel() else 0.0


def _detached(result: Any) -> Any:
    tensors = tuple(t.detach() for t in tensors_of(result, "results"))
    return tensors if isinstance(result, tuple) else tensors[0]


def _poison(numbers: list[float]) -> Callable[[Any, Any], Any]:
    """The numbers, over and over, in place of the native ones."""

    def one(tensor: Tensor) -> Tensor:
        repeated = torch.tensor(numbers).repeat(tensor.numel() // len(numbers) + 1)[: tensor.numel()]
        return repeated.to(tensor.detach()).view(tensor.shape) if tensor.is_floating_point() else tensor

    return lambda result, explainer: tuple(map(one, result)) if isinstance(result, tuple) else one(result)


_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t,
    "transposed": lambda t: (
        t.transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 2 else t.t().contiguous().t()
    ),
    "expanded": lambda t: t[:1].expand_as(t),
    "every other column of a larger tensor's": lambda t: torch.stack([t, t + 1], -1)[..., 0],
    "every other example of a larger batch's": lambda t: torch.stack([t, t + 1], 1)[:, 0],
    "the end of a larger batch's": lambda t: torch.cat([t + 1, t])[len(t) :],
}


def _is_alone(t: Tensor) -> bool:
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()
