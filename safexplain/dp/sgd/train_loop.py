"""Training by per-example gradients: Poisson batches in pieces that fit in memory, checkpoints, processes."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from torch import Tensor, nn

from safexplain._files import atomic_file
from safexplain._progress import Progress, silent
from safexplain.dp.sgd.plan import TrainingConfig, TrainingPlan
from safexplain.dp.sgd.records import Inputs, Persons, Records, RowsPiece
from safexplain.dp.sgd.sampling import PoissonSampler, random_source, shared_sampler, step_seed
from safexplain.dp.sgd.steps import ClippedOptimizer, make_step
from safexplain.errors import InputError

CHECKS = 50
"""How often a training checks its weights for NaN and reports progress."""


def train_network(
    model: nn.Module,
    records: Records,
    plan: TrainingPlan,
    config: TrainingConfig,
    saver: Saver,
    progress: Progress,
    persons: Persons | None,
) -> int:
    """Train in place, continuing from a checkpoint of the same purpose; returns the number of gradients left out.

    Under torch.distributed, each process takes its share of every batch, and the first one saves. With `persons`,
    batches and `plan` are of persons. Progress reports contain the mean loss of the last batch, which no guarantee
    covers.

    Raises:
        InputError: the weights became NaN or infinite, or the checkpoint is of another training.
    """
    device = next(model.parameters()).device
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank, processes = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else (0, 1)
    sampler = PoissonSampler(config.seed)
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
        generator=random_source(config.seed, device),
        distributed=distributed,
    )
    try:
        start = saver.resume(model, step.optimizer)
        if distributed:
            _check_same_start(start, device)
        if rank:
            saver.path, progress = None, silent

        @lru_cache(maxsize=8)  # called twice for each step; loading processes run a little ahead
        def batch(t: int) -> list[RowsPiece]:
            whole = sampler.batch(t, plan.records, plan.sample_rate)
            drawn = whole[whole % processes == rank].tolist()  # a record always goes to the same process
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
                for _, persons_of_rows in batch(t):
                    x, y = next(pieces)
                    count += len(y)
                    owners = torch.tensor(persons_of_rows, device=device) if persons_of_rows else None
                    with _memory_advice(config.piece):
                        total += step.accumulate(_to(x, device), y.to(device, non_blocking=True), owners).sum()
                with saver.step():
                    step.step()
                if saver.steps % max(plan.steps // CHECKS, 1) == 0 or saver.steps == plan.steps:
                    _check_finite(model)
                    if progress is not silent:
                        note = plan.spent_text(saver.steps) + (f", loss {float(total) / count:.2f}" if count else "")
                        progress("training with DP", saver.steps, plan.steps, note)
                saver.save_if_due()
        saver.save()
    finally:
        step.close()
    return step.optimizer.skipped


@contextmanager
def _memory_advice(piece: int) -> Iterator[None]:
    """Add advice to an out-of-memory error."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            error.add_note(
                f"safexplain: per-example gradients do not fit into memory; lower piece, now {piece}, which changes"
                " neither the training nor the guarantee"
            )
        raise


def _to(x: Inputs, device: torch.device) -> Inputs:
    if isinstance(x, Tensor):
        return x.to(device, non_blocking=True)
    return tuple(part.to(device, non_blocking=True) for part in x)


def _reseed(generator: torch.Generator, seed: int, step: int) -> None:
    """Seed noise and dropout for a step; `torch.manual_seed` would record a traceback for a GPU that is not in use."""
    generator.manual_seed(step_seed(seed, step))
    torch.default_generator.manual_seed(step_seed(seed + 1, step))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(step_seed(seed + 1, step))


def _check_finite(model: nn.Module) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad):
        raise InputError(
            "training diverged: weights became NaN or infinite; lower the learning rate. A checkpoint, if there is one,"
            " holds an earlier state"
        )


def _check_same_start(start: int, device: torch.device) -> None:
    """Raise InputError unless all processes continue from the same step."""
    mine = torch.tensor([start], device=device)
    least, most = mine.clone(), mine
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    if int(least) != int(most):
        raise InputError(
            f"checkpoint: expected the same file for all processes, got files of steps {int(least)} to {int(most)}; put"
            " it in a folder that they share"
        )


# --- checkpoint ------------------------------------------------------------------------------------------------------

FORMAT = 1


class Saver:
    """Saves and resumes a training with an equal `purpose`; InputError: the file cannot be written.

    A checkpoint holds the trained parameters, the optimizer's state and the number of steps taken, but no key or
    generator: batches and noise of later steps are drawn anew. It is as private as the final model, but two trainings
    continued from one checkpoint are two releases and spend twice.
    """

    def __init__(self, path: str | Path | None, purpose: dict[str, Any], seconds: float) -> None:
        self.path, self.purpose, self.seconds = None if path is None else Path(path), purpose, seconds
        self.steps, self._between_steps, self._saved = 0, True, time.monotonic()
        if self.path is not None:
            with _write_errors(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=self.path.parent).close()

    def resume(self, model: nn.Module, optimizer: ClippedOptimizer) -> int:
        """Load the checkpoint, without unpickling code, and save this training from now on; returns steps taken."""
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = optimizer
        if self.path is None or not self.path.exists():
            return 0
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise ValueError("written by another version of safexplain")
            saved, self.steps, optimizer.skipped = content["purpose"], content["step"], content["skipped"]
            parameters, state = content["parameters"], content["optimizer"]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"cannot read the checkpoint {self.path}: {reason}; delete it to start again") from None
        now = self.purpose
        if different := sorted(k for k in now.keys() | saved.keys() if now.get(k) != saved.get(k)):
            changes = "; ".join(f"{k}: saved {saved.get(k)!r:.60}, now {now.get(k)!r:.60}" for k in different)
            raise InputError(
                f"the checkpoint {self.path} is of another training ({changes}); use another path, or delete it to"
                " start again"
            )
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(parameters[name])
        optimizer.original_optimizer.load_state_dict(state)
        return self.steps

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around an optimizer's step; the state of an interrupted one may reveal its batch and is never saved."""
        self._between_steps = False
        yield
        self.steps += 1
        self._between_steps = True

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Save when interrupted, unless in the middle of a step or because the training diverged."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._between_steps and not isinstance(error, InputError):
                self.save()
            raise

    def save_if_due(self) -> None:
        """Save if the last save was `seconds` ago."""
        if time.monotonic() - self._saved >= self.seconds:
            self.save()

    def save(self) -> None:
        """Save now, all or nothing; InputError: it cannot be written."""
        if self.path is not None:
            content = {
                "format": FORMAT,
                "purpose": self.purpose,
                "step": self.steps,
                "parameters": {name: p.detach().cpu() for name, p in self.trained.items()},
                "optimizer": self.optimizer.original_optimizer.state_dict(),
                "skipped": self.optimizer.skipped,
            }
            with _write_errors(self.path), atomic_file(self.path) as partial, partial.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
        self._saved = time.monotonic()


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
