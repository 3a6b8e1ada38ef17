"""A hook that puts a gradient canary into the loop of a user's training function.

The loop has to use an optimizer of Opacus or `safexplain.dp`, which sees each record's gradient before it is clipped.
The row of the target is found by counting: the data set tells which records were fetched since the last step, and the
rows of `grad_sample` are in their order. Values are not compared, so that augmented or equal records are no problem.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from safexplain.audit.canaries.canary import Direction
from safexplain.audit.canaries.trainer.data import Fetched
from safexplain.errors import InputError, RefusedError

__all__ = ["OVER", "GradientHook"]

OVER = 10.0
"""Norm of the canary's gradient over the bound C: right clipping makes C of it, wrong clipping shows."""

FRONT_OVER = 1000.0
"""The same for a layer in front of the others, beside which theirs are small: a norm that leaves this layer out lets
much of it through."""

FRONT_EVERY = 2
"""Every so many times one of several layers is in front, in turn; otherwise all are alike. Per-layer clipping lets all
layers through either way."""

_LOCK = threading.RLock()

_INSTEAD = 'audit it with a record canary (scenario="mislabelled", "crafted" or "outlier"), which needs no hook'


class GradientHook:
    """Watches the optimizer of one training, and replaces the gradients of some records.

    `instead` has, by the number of a record, the directions of its new gradient, each within one parameter tensor and
    `OVER` times as long as the bound (none: zeros); of several, now and then one in turn, from the turn `first` on, is
    far in front. `sign` is +1 on D, -1 on D'. For the reference, `trace` leaves the noise out and keeps moves.
    """

    def __init__(
        self, instead: Mapping[int, Sequence[Direction]], sign: float = 1.0, *, first: int = 0, trace: bool = False
    ) -> None:
        self.instead, self.sign, self.trace = instead, sign, trace
        self.directions = [direction for record in instead.values() for direction in record]
        self.fetched = Fetched()  # to be told by the data set
        self.optimizer: Any = None
        self.movement: Tensor | None = None  # (P,) sum over the steps of how far each parameter moved
        self.path: list[Tensor] = []  # parameters at all coordinates before each step and after the last
        self._start: Tensor | None = None
        self._turn = first
        self._origin: Tensor | None = None
        self._before: Tensor | None = None
        self._steps = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Optimizers that this thread makes meanwhile are watched; other threads wait for each other.

        Raises:
            RefusedError: at the end, if no step of such an optimizer was seen.
        """
        from opacus.optimizers import DPOptimizer  # a second to import, which the command line would pay at each start

        owner = threading.get_ident()
        with _LOCK:
            original = DPOptimizer.__init__

            def init(made: Any, /, *args: Any, **kwargs: Any) -> None:
                original(made, *args, **kwargs)
                if threading.get_ident() == owner:
                    self._attach(made)

            DPOptimizer.__init__ = init
            try:
                yield
            finally:
                DPOptimizer.__init__ = original
                self._detach()
        if not self._steps:
            raise RefusedError(
                "no step of an Opacus DPOptimizer was seen: the training does not use one, made it before it was"
                f" called, or runs in another process; {_INSTEAD}"
            )
        if self.trace:
            self._keep()

    @property
    def net(self) -> Tensor:
        """With `trace`, (P,) how far every parameter is from where it was before the first step."""
        assert self._before is not None
        assert self._origin is not None
        return self._before.double() - self._origin.double()

    @property
    def moved(self) -> tuple[float, ...]:
        """How far the parameters are, along each direction, from where the optimizer first saw them."""
        assert self._start is not None
        moves = torch.split(self._values() - self._start, [len(at.coordinates) for at in self.directions])
        return tuple(
            float(move @ torch.tensor(at.weights).double()) for move, at in zip(moves, self.directions, strict=True)
        )

    def _attach(self, optimizer: Any) -> None:
        from opacus.optimizers import DPOptimizerFastGradientClipping

        if isinstance(optimizer, DPOptimizerFastGradientClipping):
            raise RefusedError(
                'ghost clipping has no gradients of single records to replace: train with mode="hooks"'
                f' (grad_sample_mode="hooks" in Opacus), or {_INSTEAD}'
            )
        if self.optimizer is not None:
            raise RefusedError(f"the training makes more than one DPOptimizer; {_INSTEAD}")
        self.optimizer = optimizer
        self.fetched.take()  # looked at before training
        optimizer.clip_and_accumulate = self._before_clipping(optimizer.clip_and_accumulate)
        optimizer.add_noise = self._before_noise(optimizer.add_noise)

    def _detach(self) -> None:
        for name in ("clip_and_accumulate", "add_noise"):
            if self.optimizer is not None:
                self.optimizer.__dict__.pop(name, None)

    def _before_clipping(self, clip: Callable[[], None]) -> Callable[[], None]:
        def replaced() -> None:
            if self._start is None:
                self._start = self._values()
            numbers = self._rows()
            rows = [row for row, number in enumerate(numbers) if number in self.instead]
            if rows:
                self._replace(rows, numbers)
            clip()

        return replaced

    def _before_noise(self, add_noise: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            self._steps += 1
            if not self.trace:
                return add_noise()
            self._keep()
            kept, self.optimizer.noise_multiplier = self.optimizer.noise_multiplier, 0.0
            try:
                return add_noise()
            finally:
                self.optimizer.noise_multiplier = kept

        return watched

    def _rows(self) -> list[int]:
        """The numbers of the records whose gradients are about to be clipped."""
        rows = max(map(_count, self.optimizer.params))
        numbers = self.fetched.take()
        if self._steps == 0 and len(numbers) == rows + 1:
            numbers = numbers[1:]  # make_private looks at one record
        if len(numbers) == rows:
            return numbers
        if rows == 0 and any(p.summed_grad is not None for p in self.optimizer.params):
            raise RefusedError(
                "gradients came to the optimizer already clipped and summed, as in mode ghost: train with"
                f' mode="hooks", or {_INSTEAD}'
            )
        raise RefusedError(
            f"gradients of {rows} records are about to be clipped, but {len(numbers)} records were fetched from the"
            " data set since the last step, so that the target's cannot be told. Fetch each batch from the data set"
            " right before its step: DataLoader(dataset, num_workers=0), no prefetching, no copy of the data; or"
            f" {_INSTEAD}"
        )

    def _replace(self, rows: list[int], numbers: list[int]) -> None:
        """Zeros in these rows of every parameter's gradients, but for what stands instead."""
        size = self.sign * float(self.optimizer.max_grad_norm)
        written: dict[int, list[tuple[int, Tensor, Tensor]]] = {}
        for row in rows:
            directions = self.instead[numbers[row]]
            for place, direction in enumerate(directions):
                tensor, within = self._located(direction)
                weights = size * self._over(place, len(directions)) * torch.tensor(direction.weights)
                written.setdefault(tensor, []).append((row, within, weights))
        self._turn += 1
        for tensor, p in enumerate(self.optimizer.params):
            if p.grad_sample is None:
                if tensor not in written:
                    continue
                p.grad_sample = p.new_zeros((len(numbers), *p.shape))
            first = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                g[[row - first for row in rows if first <= row < first + len(g)]] = 0.0
                for row, within, weights in written.get(tensor, []):
                    if first <= row < first + len(g):
                        g[row - first].view(-1)[within] = weights.to(g)
                first += len(g)

    def _over(self, place: int, directions: int) -> float:
        """How long the gradient is in a direction, in clipping bounds."""
        turn, left = divmod(self._turn, FRONT_EVERY)
        front = directions > 1 and left == FRONT_EVERY - 1 and place == turn % directions
        return FRONT_OVER if front else OVER

    def _located(self, direction: Direction) -> tuple[int, Tensor]:
        """Which parameter tensor, and where in it."""
        number, first = 0, 0
        while min(direction.coordinates) >= first + self.optimizer.params[number].numel():
            first += self.optimizer.params[number].numel()
            number += 1
        return number, torch.tensor(direction.coordinates, device=self.optimizer.params[number].device) - first

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.optimizer.params])

    def _values(self) -> Tensor:
        """At the coordinates of all directions, (k,) float64 on the CPU."""
        at = [coordinate for direction in self.directions for coordinate in direction.coordinates]
        flat = self._flat()
        if at and max(at) >= len(flat):
            raise InputError(f"coordinate {max(at)}: the optimizer holds {len(flat)} parameters")
        return flat[at].double().cpu()

    def _keep(self) -> None:
        """Add what was moved since the last time."""
        now = self._flat()
        if self._before is None:
            self._origin = self._before = now
        moved = (now - self._before).abs()
        self.movement = moved if self.movement is None else self.movement + moved
        self._before = now
        self.path.append(self._values())


def _count(p: Any) -> int:
    """Rows of a parameter's per-example gradients."""
    found = getattr(p, "grad_sample", None)
    return 0 if found is None else sum(map(len, found)) if isinstance(found, list) else len(found)
