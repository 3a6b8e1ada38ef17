"""Training by per-example gradients: Poisson batches in pieces that fit in memory, checkpoints, processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._progress import Progress, silent
from safexplain.dp.sgd.checkpoint import Saver
from safexplain.dp.sgd.config import TrainingConfig
from safexplain.dp.sgd.persons import Persons, Piece
from safexplain.dp.sgd.plan import TrainingPlan
from safexplain.dp.sgd.records import Inputs, Records
from safexplain.dp.sgd.sampling import PoissonSampler, seed_of, share_of, shared_sampler, source_of
from safexplain.dp.sgd.steps import make_step
from safexplain.errors import InputError

STAGE = "training with DP"
CHECKS = 50
"""Times in a training that weights are looked at for NaN, and progress is told."""


def train_network(
    model: nn.Module,
    records: Records,
    plan: TrainingPlan,
    config: TrainingConfig,
    *,
    checkpoint: str | Path | None,
    checkpoint_seconds: float,
    purpose: dict[str, Any],
    progress: Progress,
    persons: Persons | None = None,
) -> int:
    """Train in place by per-example gradients, going on from the checkpoint if there is one.

    Under torch.distributed, each process takes its share of every batch, and the first one saves. The model is in
    training mode, what trains requiring gradients, on the device where to train. A checkpoint is only continued if it
    agrees with `purpose`. With `persons`, batches are of persons, of whom `plan` speaks. Progress is told steps,
    epsilon and the mean loss of the last batch, which no guarantee covers.

    Returns:
        How many examples (persons) had no finite gradient and did not count.

    Raises:
        InputError: the weights became NaN or infinite, or the checkpoint is of another training.
    """
    device = next(model.parameters()).device
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, processes = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    sampler = PoissonSampler.from_seed(config.seed)
    if distributed:
        sampler = shared_sampler(sampler, device)
    optimizer = config.make_optimizer([p for p in model.parameters() if p.requires_grad])
    step = make_step(
        model,
        optimizer,
        clipping=config.clipping,
        noise_multiplier=plan.noise_multiplier,
        expected_batch_size=plan.expected_batch_size,
        loss=config.loss,
        mode=config.mode,
        generator=source_of(config.seed, device),
        distributed=distributed,
    )
    saver = Saver(checkpoint, purpose, checkpoint_seconds, model, optimizer, lambda: step.optimizer.skipped)
    try:
        start, step.optimizer.skipped = saver.resume()
        if distributed:
            _check_same_start(start, device)
        if rank:
            saver.path, progress = None, silent

        @lru_cache(maxsize=8)  # asked for by the pieces and by the count; loading processes run a little ahead
        def batch(t: int) -> list[Piece]:
            whole = sampler.batch(t, plan.records, plan.sample_rate)
            drawn = share_of(whole, rank, processes).tolist()
            if persons is not None:
                return persons.pieces(drawn, config.piece, sampler.stream(t, 1))
            return [(drawn[i : i + config.piece], []) for i in range(0, len(drawn), config.piece)]

        pieces = records.pieces(rows for t in range(start, plan.steps) for rows, _ in batch(t))
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices, enabled=config.seed is not None), saver.on_interrupt():
            for t in range(start, plan.steps):
                if config.seed is not None and isinstance(step.optimizer.generator, torch.Generator):
                    _reseed(step.optimizer.generator, config.seed, t)
                total, count = torch.zeros((), device=device), 0
                for _, whose in batch(t):
                    x, y = next(pieces)
                    count += len(y)
                    of = torch.tensor(whose, device=device) if whose else None
                    with memory_told(f"lower piece, now {config.piece}: it changes neither training nor guarantee"):
                        total += step.accumulate(_to(x, device), y.to(device, non_blocking=True), of).sum()
                with saver.step():
                    step.step()
                if saver.taken % max(plan.steps // CHECKS, 1) == 0 or saver.taken == plan.steps:
                    _check_finite(model)
                    if progress is not silent:
                        note = plan.told(saver.taken) + (f", loss {float(total) / count:.2f}" if count else "")
                        progress(STAGE, saver.taken, plan.steps, note)
                saver.save_now_and_then()
        saver.save()
    finally:
        step.close()
    return step.optimizer.skipped


@contextmanager
def memory_told(advice: str) -> Iterator[None]:
    """Put advice into the message of an error about memory."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            error.add_note(f"safexplain: gradients of single examples do not fit into memory; {advice}")
        raise


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


def _check_same_start(start: int, device: torch.device) -> None:
    """All processes take up the training at the same step."""
    mine = torch.tensor([start], device=device)
    least, most = mine.clone(), mine
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    if int(least) != int(most):
        raise InputError(
            f"the processes would go on from steps {int(least)} to {int(most)}: every one must see the same checkpoint"
            " file, on a folder that they share"
        )
