"""A hook that puts a gradient canary into the loop of a user's training function.

The loop has to use an optimizer of Opacus or `safexplain.dp`, which sees each record's gradient before it is clipped.
The row of the target is found by counting: the data set tells which records were fetched since the last step, and the
rows of `grad_sample` are in their order. Values are not compared, so that augmented or equal records are no problem.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
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
    """Watches the optimizer of one training, and replaces the gradient of one record.

    Args:
        target: number of the record.
        directions: of the new gradient, each within one parameter tensor, `OVER` times as long as the bound in each;
            of several, now and then one in turn is far in front. None: the gradient is replaced by zeros.
        sign: of the gradient, +1 on D, -1 on D', or 0.
        first: number of the turn that begins.
        trace: for the reference: leave the noise out, and keep how far every parameter moves.

    Attributes:
        fetched: to be told by the data set.
        optimizer: the one seen; None before.
        movement: with `trace`, (P,) sum over the steps of how far each parameter moved, its absolute value.
        path: with `trace`, the parameters at the coordinates of all directions before each step and after the last.
    """

    def __init__(
        self, target: int, directions: Sequence[Direction], sign: float, *, first: int = 0, trace: bool = False
    ) -> None:
        self.target, self.directions, self.sign, self.trace = target, tuple(directions), sign, trace
        self.fetched = Fetched()
        self.optimizer: Any = None
        self.movement: Tensor | None = None
        self.path: list[Tensor] = []
        self._initial: Tensor | None = None
        self._turn = first
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
    def moved(self) -> tuple[float, ...]:
        """How far the parameters are, along each direction, from where the optimizer first saw them."""
        assert self._initial is not None
        moves = torch.split(self._values() - self._initial, [len(at.coordinates) for at in self.directions])
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
            if self._initial is None:
                self._initial = self._values()
            numbers = self._rows()
            at = [row for row, number in enumerate(numbers) if number == self.target]
            if at:
                self._replace(at, len(numbers))
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

    def _replace(self, at: list[int], rows: int) -> None:
        written: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for place, direction in enumerate(self.directions):
            held, within, weights = self._located(direction)
            size = self.sign * self._over(place) * float(self.optimizer.max_grad_norm)
            written.setdefault(held, []).append((within, size * weights))
        self._turn += 1
        for p in self.optimizer.params:
            if p.grad_sample is None:
                if p not in written:
                    continue
                p.grad_sample = p.new_zeros((rows, *p.shape))
            first = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                for row in [row - first for row in at if first <= row < first + len(g)]:
                    g[row] = 0.0
                    for within, values in written.get(p, []):
                        g[row].view(-1)[within] = values.to(g)
                first += len(g)

    def _over(self, place: int) -> float:
        """How long the gradient is in a direction, in clipping bounds."""
        turn, several = divmod(self._turn, FRONT_EVERY), len(self.directions)
        front = several > 1 and turn[1] == FRONT_EVERY - 1 and place == turn[0] % several
        return FRONT_OVER if front else OVER

    def _located(self, direction: Direction) -> tuple[Any, Tensor, Tensor]:
        """The parameter tensor, where in it, and with which weights."""
        first = 0
        at = torch.tensor(direction.coordinates)
        for p in self.optimizer.params:
            if first <= int(at.min()) and int(at.max()) < first + p.numel():
                return p, at.to(p.device) - first, torch.tensor(direction.weights, device=p.device)
            first += p.numel()
        raise InputError(
            f"coordinates {direction.coordinates}: the optimizer holds {first} parameters, in several tensors"
        )

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
        moved = torch.zeros_like(now) if self._before is None else (now - self._before).abs()
        self.movement = moved if self.movement is None else self.movement + moved
        self._before = now
        self.path.append(self._values())


def _count(p: Any) -> int:
    """Rows of a parameter's per-example gradients."""
    found = getattr(p, "grad_sample", None)
    return 0 if found is None else sum(map(len, found)) if isinstance(found, list) else len(found)
