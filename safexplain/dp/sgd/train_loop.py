"""Training by per-example gradients: Poisson batches in pieces that fit in memory, checkpoints, processes.

With a checkpoint, interrupted training goes on where it stopped, with the accountant's state. It holds the trained
parameters, the optimizer's state and how many steps were spent. It holds no key and no generator: batches and noise of
the steps to come are drawn anew, from the operating system. It is not protected any less than the final model, but two
trainings continued from one checkpoint are two releases, and spend twice.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
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
        def batch(t: int) -> list[RowsPiece]:
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


# --- checkpoint ------------------------------------------------------------------------------------------------------

FORMAT = 1


class Saver:
    """Saves a training now and then, and takes it up again.

    Args:
        path: the file; None saves nothing.
        purpose: what is being trained, on which data, how; a training goes on only with an equal one.
        seconds: between saves.
        model: its parameters that require gradients are saved.
        optimizer: of these.
        skipped: tells how many examples had no finite gradient so far.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(
        self,
        path: str | Path | None,
        purpose: dict[str, Any],
        seconds: float,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        skipped: Callable[[], int],
    ) -> None:
        self.path, self.purpose, self.seconds = None if path is None else Path(path), purpose, seconds
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer, self.skipped = optimizer, skipped
        self.taken, self._whole, self._saved = 0, True, time.monotonic()
        if self.path is not None:
            with _told_unwritable(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                TemporaryFile(dir=self.path.parent).close()

    def resume(self) -> tuple[int, int]:
        """Load what was saved: steps taken and examples skipped, zeros if nothing was. Nothing pickled is executed.

        Raises:
            InputError: the file cannot be read or is of another training.
        """
        if self.path is None or not self.path.exists():
            return 0, 0
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise ValueError("written by another version of safexplain")
            then, self.taken, skipped = content["purpose"], content["step"], content["skipped"]
            parameters, optimizer = content["parameters"], content["optimizer"]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            told = str(error).partition("\n")[0]
            raise InputError(f"cannot read the checkpoint {self.path}: {told}; delete it to start anew") from None
        now = self.purpose
        if different := sorted(k for k in now.keys() | then.keys() if now.get(k) != then.get(k)):
            told = "; ".join(f"{k}: {then.get(k)!r:.60} then, {now.get(k)!r:.60} now" for k in different)
            raise InputError(
                f"the checkpoint {self.path} is of another training ({told}); use another path, or delete it to start"
                " anew"
            )
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(parameters[name])
        self.optimizer.load_state_dict(optimizer)
        return self.taken, skipped

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around an optimizer's step. One that is interrupted may have told of its batch: it is never saved."""
        self._whole = False
        yield
        self.taken += 1
        self._whole = True

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Save when interrupted, unless in the middle of a step or because the training diverged."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self._whole and not isinstance(error, InputError):
                self.save()
            raise

    def save_now_and_then(self) -> None:
        """Save if it is time."""
        if time.monotonic() - self._saved >= self.seconds:
            self.save()

    def save(self) -> None:
        """Save now, all or nothing.

        Raises:
            InputError: it cannot be written.
        """
        if self.path is not None:
            content = {
                "format": FORMAT,
                "purpose": self.purpose,
                "step": self.taken,
                "parameters": {name: p.detach().cpu() for name, p in self.trained.items()},
                "optimizer": self.optimizer.state_dict(),
                "skipped": self.skipped(),
            }
            with _told_unwritable(self.path), atomic_file(self.path) as partial, partial.open("wb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
        self._saved = time.monotonic()


@contextmanager
def _told_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write the checkpoint {path}: {error.strerror or error}") from None
