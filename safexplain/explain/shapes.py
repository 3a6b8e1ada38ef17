"""What a model makes of the shape of its inputs, and how many outputs it has: asked of the model, once for each shape.

The same numbers can be sent in many shapes. A model that begins by flattening them gives one explanation for all of
them, so that all of them must have one noise, or asking in 400 shapes averages it away. A model that can tell shapes
apart gives different explanations; under one noise their differences would be free of noise, so there each shape has
its own. Which of the two holds is looked at with numbers that nobody outside chooses.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from captum.attr import Attribution
from torch import Tensor, nn

from safexplain._digest import OPAQUE_DIGEST

__all__ = ["Seen", "look"]

Shape = tuple[int, ...]
Lend = Callable[[], AbstractContextManager[Attribution]]

ROWS = 2
"""Examples of a question to the model; batch normalisation in training mode refuses a single one."""

MOST_MERGES = 32
MOST_KEPT = 4096


@dataclass(frozen=True)
class Seen:
    """What a model showed for inputs of certain shapes.

    Args:
        shapes: for each input its axes, neighbours merged as far as the model does not notice, without axes of size 1
            and without the first, which the count of numbers tells; empty where the model flattens it.
        outputs: shape of the output for one example; None where the model gives no tensor with a row for each.
        neurons: the same of the input and the output of the explained layer, where there is one.
    """

    shapes: tuple[Shape, ...]
    outputs: Shape | None = None
    neurons: tuple[Shape | None, Shape | None] = (None, None)


_seen: OrderedDict[Any, Seen] = OrderedDict()
_guard = threading.Lock()


def look(lend: Lend, digest: bytes, method: str, inputs: tuple[Tensor, ...], extra: tuple[Any, ...]) -> Seen:
    """Ask the model of this digest about inputs, (batch, ...) each, and additional forward arguments, or remember what
    it answered; `lend` gives the native explainer, with a model that may be run and hooked."""
    if digest == OPAQUE_DIGEST or any(x.dim() == 0 or len(x) == 0 for x in inputs):
        return Seen(((),) * len(inputs))
    others = tuple((tuple(v.shape[1:]), v.dtype) if isinstance(v, Tensor) else type(v) for v in extra)
    key = (digest, method, tuple((tuple(x.shape[1:]), x.dtype) for x in inputs), others)
    with _guard:
        if (known := _seen.get(key)) is not None:
            _seen.move_to_end(key)
            return known
    with lend() as explainer:
        found = _look(explainer, inputs, extra)
    with _guard:
        _seen[key] = found
        while len(_seen) > MOST_KEPT:
            _seen.popitem(last=False)
    return found


def _look(explainer: Attribution, inputs: tuple[Tensor, ...], extra: tuple[Any, ...]) -> Seen:
    batch = len(inputs[0])
    extra = tuple(_rows(v) if isinstance(v, Tensor) and v.dim() and len(v) == batch else v for v in extra)
    layer, neurons = getattr(explainer, "layer", None), list[tuple[Shape | None, Shape | None]]()

    def ask(rows: tuple[Tensor, ...]) -> Tensor | None:
        try:
            devices = sorted({x.get_device() for x in rows if x.is_cuda})
            with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices):
                torch.manual_seed(0)  # dropout, where it is on, drops the same
                answer = explainer.forward_func(*(x.clone() for x in rows), *extra)
        except Exception:  # whatever a model raises for a shape or numbers that it does not take
            return None
        return answer if isinstance(answer, Tensor) and answer.dim() and len(answer) == ROWS else None

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        neurons.append((_shape_of(given), _shape_of(output)))

    handle = layer.register_forward_hook(keep) if isinstance(layer, nn.Module) else None
    try:
        rows = tuple(_probe(x) for x in inputs)
        answer = ask(rows)
        outputs = ask(tuple(_rows(x) for x in inputs)) if answer is None else answer
    finally:
        if handle is not None:
            handle.remove()
    shapes = []
    for i, x in enumerate(rows):
        shape: Shape = ()
        if answer is not None:
            shape = next(
                (s for s in _merges(tuple(x.shape[1:])) if _alike(answer, ask(_with(rows, i, s)))), x.shape[1:]
            )
        shapes.append(tuple(n for n in shape if n != 1)[1:])
    return Seen(
        tuple(shapes), None if outputs is None else tuple(outputs.shape[1:]), neurons[0] if neurons else (None, None)
    )


def _shape_of(value: Any) -> Shape | None:
    value = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return tuple(value.shape[1:]) if isinstance(value, Tensor) else None


def _probe(x: Tensor) -> Tensor:
    """Two examples of an input's shape, the same for the same count of numbers: normal, or zeros and ones."""
    shape, generator = (ROWS, *x.shape[1:]), torch.Generator().manual_seed(0)
    if x.is_floating_point() or x.is_complex():
        return torch.randn(math.prod(shape), generator=generator).to(x.device, x.dtype).reshape(shape)
    return torch.randint(0, 2, (math.prod(shape),), generator=generator).to(x.device, x.dtype).reshape(shape)


def _rows(x: Tensor) -> Tensor:
    return x.detach()[:1].expand(ROWS, *x.shape[1:]).clone()


def _with(rows: tuple[Tensor, ...], i: int, shape: Shape) -> tuple[Tensor, ...]:
    return (*rows[:i], rows[i].reshape(ROWS, *shape), *rows[i + 1 :])


def _merges(shape: Shape) -> Iterator[Shape]:
    """A shape with runs of neighbouring axes made one, fewest axes first, without the shape itself.

    >>> list(_merges((2, 3, 4)))
    [(24,), (2, 12), (6, 4)]
    """
    n = len(shape)
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, n), k) for k in range(n - 1))
    for cut in itertools.islice(cuts, MOST_MERGES):
        edges = (0, *cut, n)
        yield tuple(math.prod(shape[a:b]) for a, b in itertools.pairwise(edges))


def _alike(one: Tensor, other: Tensor | None) -> bool:
    """Whether two answers of a model are the same numbers, up to the rounding of another order of sums."""
    return other is not None and one.shape == other.shape and torch.allclose(one, other, 1e-4, 0.0, equal_nan=True)
