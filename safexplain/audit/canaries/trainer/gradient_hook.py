"""A hook that puts a gradient canary into the loop of a user's training function.

The loop must use an optimizer of Opacus or `safexplain.dp`, which has each record's gradient before clipping. The row
of the target is found by counting the records fetched since the last step, so records may be augmented or equal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from safexplain.audit.canaries.trainer.data import Fetched
from safexplain.errors import InputError, RefusedError

OVER = 10.0  # norm of the canary's gradient over the bound C; correct clipping reduces it to C

_LOCK = threading.RLock()

_INSTEAD = 'audit it with a record canary (scenario="mislabelled", "crafted" or "outlier"), which needs no hook'


@contextmanager
def watched_optimizers(attach: Callable[[Any], None]) -> Iterator[None]:
    """Call `attach` on private optimizers that this thread creates meanwhile; other threads wait.

    Their `clip_and_accumulate` and `add_noise`, which `attach` may replace, are restored afterwards.
    """
    from opacus.optimizers import DPOptimizer  # a second to import, which the command line would pay at each start

    owner, attached = threading.get_ident(), list[Any]()
    with _LOCK:
        original = DPOptimizer.__init__

        def init(made: Any, /, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            if threading.get_ident() == owner:
                attached.append(made)
                attach(made)

        DPOptimizer.__init__ = init
        try:
            yield
        finally:
            DPOptimizer.__init__ = original
            for made in attached:
                for name in ("clip_and_accumulate", "add_noise"):
                    made.__dict__.pop(name, None)


def rows_of(p: Any) -> int:
    """Rows of a parameter's per-example gradients."""
    found = getattr(p, "grad_sample", None)
    return 0 if found is None else sum(map(len, found)) if isinstance(found, list) else len(found)


class GradientHook:
    """Watches the optimizer of one training, and replaces the gradient of the record `target`.

    The new gradient lies along the parameter `coordinate`, `OVER` times as long as the bound, up for `sign` +1 (D) and
    down for -1 (D'). For the reference (coordinate None) it is 0, there is no noise, and movement is recorded.
    """

    def __init__(self, target: int, coordinate: int | None = None, sign: float = 1.0) -> None:
        self.target, self.coordinate, self.sign = target, coordinate, sign
        self.fetched = Fetched()  # filled by the data set
        self.optimizer: Any = None
        self.movement: Tensor | None = None  # (P,) sum over the steps of how far each parameter moved
        self._start: Tensor | None = None
        self._before: Tensor | None = None
        self._steps = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch optimizers that are created meanwhile.

        Raises:
            RefusedError: at the end, if no step of such an optimizer was observed.
        """
        with watched_optimizers(self._attach):
            yield
        if not self._steps:
            raise RefusedError(
                "expected steps of an Opacus DPOptimizer, observed none: the training does not use one, created it"
                f" before it was called, or runs in another process; {_INSTEAD}"
            )
        if self.coordinate is None:
            self._add_movement()

    @property
    def moved(self) -> Tensor:
        """(P,) movement of every parameter since before the first step."""
        assert self._start is not None
        return self._flat().double() - self._start.double()

    def _attach(self, optimizer: Any) -> None:
        from opacus.optimizers import DPOptimizerFastGradientClipping

        if isinstance(optimizer, DPOptimizerFastGradientClipping):
            raise RefusedError(
                'ghost clipping has no gradients of single records to replace; train with mode="hooks"'
                f' (grad_sample_mode="hooks" in Opacus), or {_INSTEAD}'
            )
        if self.optimizer is not None:
            raise RefusedError(f"expected one DPOptimizer, got several; {_INSTEAD}")
        self.optimizer = optimizer
        self.fetched.take()  # looked at before training
        clip, add_noise = optimizer.clip_and_accumulate, optimizer.add_noise

        def replaced() -> None:
            if self._start is None:
                self._start = self._flat()
            numbers = self._rows()
            if rows := [row for row, number in enumerate(numbers) if number == self.target]:
                self._replace(rows, len(numbers))
            clip()

        def watched() -> None:
            self._steps += 1
            if self.coordinate is not None:
                add_noise()
                return
            self._add_movement()
            multiplier, optimizer.noise_multiplier = optimizer.noise_multiplier, 0.0
            try:
                add_noise()
            finally:
                optimizer.noise_multiplier = multiplier

        optimizer.clip_and_accumulate, optimizer.add_noise = replaced, watched

    def _rows(self) -> list[int]:
        """The numbers of the records whose gradients are about to be clipped."""
        rows = max(map(rows_of, self.optimizer.params))
        numbers = self.fetched.take()
        if len(numbers) == rows:
            return numbers
        if rows == 0 and any(p.summed_grad is not None for p in self.optimizer.params):
            raise RefusedError(
                "the optimizer received gradients that were already clipped and summed, as in mode ghost; train with"
                f' mode="hooks", or {_INSTEAD}'
            )
        raise RefusedError(
            f"expected gradients of the {len(numbers)} records fetched from the data set since the last step, got"
            f" {rows}, so the target's row is unknown. Fetch each batch from the data set right before its step:"
            f" DataLoader(dataset, num_workers=0), no prefetching, no copy of the data; or {_INSTEAD}"
        )

    def _replace(self, rows: list[int], batch: int) -> None:
        """Replace these rows of every parameter's gradients: by zeros, except for the canary's coordinate."""
        size = self.sign * OVER * float(self.optimizer.max_grad_norm)
        at, first = self.coordinate, 0
        for p in self.optimizer.params:
            inside = at is not None and first <= at < first + p.numel()
            if p.grad_sample is None and inside:
                p.grad_sample = p.new_zeros((batch, *p.shape))
            start = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                if g is None:
                    continue
                own = [row - start for row in rows if start <= row < start + len(g)]
                g[own] = 0.0
                if inside and at is not None:
                    g.view(len(g), -1)[own, at - first] = size
                start += len(g)
            first += p.numel()
        if at is not None and at >= first:
            raise InputError(f"coordinate {at}: expected less than {first}, as the optimizer holds {first} parameters")

    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.optimizer.params])

    def _add_movement(self) -> None:
        """Add the movement since the last call."""
        now = self._flat()
        moved = torch.zeros_like(now) if self._before is None else (now - self._before).abs()
        self.movement = moved if self.movement is None else self.movement + moved
        self._before = now
