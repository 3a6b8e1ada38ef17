"""The steps of a DP training: Poisson batches in pieces that fit in memory, checkpoints, and what was spent so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from torch import Tensor, nn

from safexplain.dp.sgd.checkpoint import Saver
from safexplain.dp.sgd.plan import TrainingPlan
from safexplain.dp.sgd.records import Inputs, Records
from safexplain.dp.sgd.sampling import PoissonSampler, seed_of, share_of
from safexplain.dp.sgd.steps import PerSampleStep
from safexplain.errors import InputError

CHECKS = 50
"""Times in a training that weights are looked at for NaN, and progress is shown."""


@dataclass(frozen=True)
class Moment:
    """How far a training is.

    Args:
        plan: what it keeps to.
        step: steps taken and spent.
        loss: mean loss of the last batch, NaN if it was empty; no guarantee covers it.
    """

    plan: TrainingPlan
    step: int
    loss: float

    @property
    def epsilon(self) -> float:
        """Spent so far, under the adjacency of the budget."""
        return self.plan.spent(self.step)


Progress = Callable[[Moment], None]
"""Told after some steps how far training is."""


@dataclass(frozen=True)
class Share:
    """Which part of each batch this process computes.

    Args:
        rank: of this process.
        processes: how many there are.
    """

    rank: int = 0
    processes: int = 1


def train_loop(
    step: PerSampleStep,
    model: nn.Module,
    records: Records,
    plan: TrainingPlan,
    sampler: PoissonSampler,
    *,
    start: int,
    piece: int,
    share: Share,
    seed: int | None,
    saver: Saver,
    progress: Progress | None,
) -> None:
    """Take the steps from `start` to the end of the plan.

    Args:
        step: accumulates and steps.
        model: in training mode.
        records: all of the data.
        plan: how many steps, which sample rate.
        sampler: chooses the batches.
        start: steps that were taken before.
        piece: most rows at a time.
        share: of this process.
        seed: makes noise and dropout reproducible; None leaves them to their generators.
        saver: keeps the state now and then, at the end, and when interrupted between two steps.
        progress: called now and then.

    Raises:
        InputError: the weights became NaN or infinite.
    """
    device = next(model.parameters()).device

    @lru_cache(maxsize=8)  # asked for by the pieces and by the count; loading processes run a little ahead
    def rows(t: int) -> NDArray[np.int64]:
        return share_of(sampler.batch(t, plan.records, plan.sample_rate), share.rank, share.processes)

    def wanted() -> Iterator[list[int]]:
        for t in range(start, plan.steps):
            chosen = rows(t)
            for first in range(0, len(chosen), piece):
                yield chosen[first : first + piece].tolist()

    pieces = records.pieces(wanted())
    every = max(plan.steps // CHECKS, 1)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices, enabled=seed is not None), saver.on_interrupt():
        for t in range(start, plan.steps):
            if seed is not None:
                _reseed(step.optimizer.generator, seed, t)
            total, count = torch.zeros((), device=device), len(rows(t))
            for _ in range(math.ceil(count / piece)):
                x, y = next(pieces)
                total += step.accumulate(_to(x, device), y.to(device, non_blocking=True)).sum()
            with saver.step():
                step.step()
            if saver.taken % every == 0 or saver.taken == plan.steps:
                _check_finite(model)
                if progress:
                    progress(Moment(plan, saver.taken, float(total) / count if count else math.nan))
            saver.save_now_and_then()
    saver.save()


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with the epsilon spent, on standard error if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"))
    bars = Bars(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console)
    with bars if console.is_terminal else _nothing():
        task = bars.add_task("training with DP", total=None)

        def show(moment: Moment) -> None:
            if console.is_terminal:
                told = f"epsilon {moment.epsilon:.2f} ({moment.plan.budget.adjacency})"
                bars.update(task, completed=moment.step, total=moment.plan.steps, description=told)

        yield show


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _to(x: Inputs, device: torch.device) -> Inputs:
    if isinstance(x, Tensor):
        return x.to(device, non_blocking=True)
    return tuple(part.to(device, non_blocking=True) for part in x)


def _reseed(generator: torch.Generator, seed: int, step: int) -> None:
    """Of the noise, and of dropout; `torch.manual_seed` would note a traceback for a GPU that is not in use."""
    generator.manual_seed(seed_of(seed, step))
    torch.default_generator.manual_seed(seed_of(seed + 1, step))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed_of(seed + 1, step))


def _check_finite(model: nn.Module) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad):
        raise InputError(
            "training diverged: weights became NaN or infinite; lower the learning rate. A checkpoint, if one was"
            " asked for, holds the last state before"
        )
