"""What a user's training function gets: the records of D or D', and a hook that puts a gradient canary into its loop.

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
from torch.utils.data import Dataset

from safexplain._digest import digest
from safexplain.dp.sgd.records import InMemory, records_of
from safexplain.errors import InputError, RefusedError

__all__ = ["OVER", "Fetched", "GradientHook", "NeighbouringData", "Pair", "digest_of", "records", "stacked"]

Record = tuple[Tensor, Tensor]


class NeighbouringData(Dataset[Record]):
    """The records of D or of D': they differ in one record, in those of a poison, or, for a gradient canary, in none.

    Args:
        data: see `records`.
        instead: what stands in the place of which records.
        fetched: told about every record that is fetched; None: nobody is.
    """

    def __init__(self, data: Any, instead: Mapping[int, Record] | None = None, fetched: Fetched | None = None) -> None:
        self.data, self.instead, self.fetched = data, dict(instead or {}), fetched

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Record:
        number = self._checked(number)
        if self.fetched:
            self.fetched.one(number)
        return self._record(number)

    def __getitems__(self, numbers: Sequence[int]) -> list[Record]:
        """What a DataLoader asks for a batch."""
        found = [self._checked(number) for number in numbers]
        if self.fetched:
            self.fetched.batch(found)
        return [self._record(number) for number in found]

    def _checked(self, number: int) -> int:
        at = int(number)
        if not -len(self) <= at < len(self):
            raise IndexError(f"record {at} of {len(self)}")
        return at % len(self)

    def _record(self, number: int) -> Record:
        x, y = self.instead[number] if number in self.instead else self.data[number]
        return x.clone(), y.clone()  # training may change in place what it gets


def records(data: Any) -> Any:
    """A sequence of records (x, y) of tensors, from a pair of tensors or arrays, or a map-style data set of (x, y).

    Raises:
        InputError: something else, no records, or several inputs a record.
    """
    found = records_of(data)
    if isinstance(found, InMemory):
        if not isinstance(found.x, Tensor):
            raise InputError("data: expected one input tensor a record, got several; put them into one")
        return Pair(found.x, found.y)
    return _OnDemand(data)


def stacked(data: Any) -> tuple[Tensor, Tensor]:
    """All records as x (n, ...) and y (n,)."""
    if isinstance(data, Pair):
        return data.x, data.y
    found = [data[i] for i in range(len(data))]
    return torch.stack([x for x, _ in found]), torch.stack([y for _, y in found])


def digest_of(data: Any) -> str:
    """Of all records in order. A map-style data set is read once."""
    return digest(*((data.x, data.y) if isinstance(data, Pair) else (digest(*data[i]) for i in range(len(data)))))


class Pair:
    """Tensors as records."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int) -> Record:
        return self.x[number], self.y[number]


class _OnDemand:
    """Records of a map-style data set as tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Record:
        found = self.dataset[number]
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"data: expected records (x, y), got {type(found).__name__} from the data set")
        return torch.as_tensor(found[0]), torch.as_tensor(found[1])


class Fetched:
    """Numbers of the records that were fetched for the next step, in order.

    Batches of a `torch.utils.data.DataLoader` arrive whole. Records that were fetched one at a time count only where
    no batch was. What is fetched without gradients, as for an evaluation, does not count.
    """

    def __init__(self) -> None:
        self._batches: list[int] | None = None
        self._single: list[int] = []

    def batch(self, numbers: Sequence[int]) -> None:
        """A loader fetched these."""
        if torch.is_grad_enabled():
            self._batches = [*(self._batches or []), *numbers]

    def one(self, number: int) -> None:
        """A record was fetched by itself."""
        if torch.is_grad_enabled():
            self._single.append(number)

    def take(self) -> list[int]:
        """The records since the last call."""
        found = self._single if self._batches is None else self._batches
        self._batches, self._single = None, []
        return found


OVER = 10.0
"""Norm of the canary's gradient over the bound C: right clipping makes C of it, wrong clipping shows."""

FAR_OVER = 1000.0
"""The same for the layer whose turn it is, where the canary is in all layers: beside it the others are small, so that a
bound which leaves this layer out, or its norm, lets much of it through."""

_LOCK = threading.RLock()

_INSTEAD = 'audit it with a record canary (scenario="mislabelled", "crafted" or "natural"), which needs no hook'


class GradientHook:
    """Watches the optimizer of one training, and replaces the gradient of one record.

    Args:
        target: number of the record.
        coordinates: in the flat tensor of the optimizer's parameters; none: the gradient is replaced by zeros. At one,
            the new gradient is `OVER` times as long as the bound. At several, it is so at each, but `FAR_OVER` times as
            long at one of them, another one each time.
        sign: of the gradient at the coordinates, +1 on D, -1 on D', or 0.
        first: of several coordinates, whose turn it is first.
        trace: for the reference: leave the noise out, and keep how far every parameter moves.

    Attributes:
        fetched: to be told by the data set.
        optimizer: the one seen; None before.
        movement: with `trace`, (P,) sum over the steps of how far each parameter moved, its absolute value.
        path: with `trace` and one coordinate, its parameter before each step and after the last one.
    """

    def __init__(
        self, target: int, coordinates: Sequence[int], sign: float, *, first: int = 0, trace: bool = False
    ) -> None:
        self.target, self.coordinates, self.sign, self.trace = target, tuple(coordinates), sign, trace
        self.fetched = Fetched()
        self.optimizer: Any = None
        self.movement: Tensor | None = None
        self.path: list[float] = []
        self._initial: tuple[float, ...] = ()
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
        """How far the canary's parameters are from where the optimizer first saw them."""
        return tuple(now - then for now, then in zip(self._values(), self._initial, strict=True))

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
            if not self._initial:
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
        sizes: dict[Any, list[tuple[int, float]]] = {}
        for place, index in enumerate(self.coordinates):
            several = len(self.coordinates) > 1
            over = FAR_OVER if several and place == self._turn % len(self.coordinates) else OVER
            held, within = self._located(index)
            sizes.setdefault(held, []).append((within, self.sign * over * float(self.optimizer.max_grad_norm)))
        self._turn += 1
        for p in self.optimizer.params:
            if p.grad_sample is None:
                if p not in sizes:
                    continue
                p.grad_sample = p.new_zeros((rows, *p.shape))
            first = 0
            for g in p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]:
                own = [row - first for row in at if first <= row < first + len(g)]
                g[own] = 0.0
                for within, size in sizes.get(p, []) if own else []:
                    g.view(len(g), -1)[own, within] = size
                first += len(g)

    def _located(self, index: int) -> tuple[Any, int]:
        within = index
        for p in self.optimizer.params:
            if 0 <= within < p.numel():
                return p, within
            within -= p.numel()
        total = sum(p.numel() for p in self.optimizer.params)
        raise InputError(f"coordinate {index}: the optimizer holds {total} parameters")

    def _values(self) -> tuple[float, ...]:
        located = map(self._located, self.coordinates)
        return tuple(float(p.detach().reshape(-1)[within]) for p, within in located)

    def _keep(self) -> None:
        """Add what was moved since the last time."""
        now = torch.cat([p.detach().flatten() for p in self.optimizer.params])
        moved = torch.zeros_like(now) if self._before is None else (now - self._before).abs()
        self.movement = moved if self.movement is None else self.movement + moved
        self._before = now
        if len(self.coordinates) == 1:
            self.path.append(float(now[self.coordinates[0]]))


def _count(p: Any) -> int:
    """Rows of a parameter's per-example gradients."""
    found = getattr(p, "grad_sample", None)
    return 0 if found is None else sum(map(len, found)) if isinstance(found, list) else len(found)
