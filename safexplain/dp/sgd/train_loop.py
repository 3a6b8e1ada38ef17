"""The plan of a training by per-example gradients, and its loop: batches in pieces, checkpoints, processes."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain._files import atomic_file
from safexplain._privacy_loss import Adjacency, Sampling, Steps, check_adjacency, check_delta, epsilon_of, steps_within
from safexplain._privacy_loss import noise_multiplier as calibrated
from safexplain._progress import Progress, silent
from safexplain._validate import check_number, whole_number
from safexplain.dp.models.prepare import Mode
from safexplain.dp.sgd.clipping import Clipping, check_clipping
from safexplain.dp.sgd.sampling import (
    Inputs,
    Loss,
    Persons,
    PoissonSampler,
    Records,
    RowsPiece,
    random_source,
    shared_sampler,
    step_seed,
)
from safexplain.dp.sgd.steps import ClippedOptimizer, make_step
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError


@dataclass(frozen=True)
class TrainingBudget:
    """The privacy budget of a training; arguments as for `DPFineTuner`."""

    epsilon: float | None
    delta: float
    adjacency: Adjacency = "substitute"
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        check_delta(self.delta)
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigurationError(
                "expected epsilon (the noise is then calibrated), noise_multiplier or both, got neither"
            )
        if self.epsilon in (0, math.inf):
            raise ConfigurationError(
                f"epsilon: expected a finite number above 0, got {self.epsilon!r}; without a guarantee, pass"
                " epsilon=None, noise_multiplier=0"
            )
        for name, least in (("epsilon", {"above": 0.0}), ("delta", {}), ("noise_multiplier", {"minimum": 0.0})):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_number(name, value, **least))


@dataclass(frozen=True)
class TrainingPlan:
    """The parameters that determine a training's guarantee; the budget may allow fewer steps than requested."""

    budget: TrainingBudget
    records: int
    expected_batch_size: float
    steps: int
    requested_steps: int
    noise_multiplier: float

    @property
    def sample_rate(self) -> float:
        """The probability that a record is in a batch."""
        return self.expected_batch_size / self.records

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn."""
        return "full-batch" if self.sample_rate == 1 else "poisson"

    def phase(self, steps: int | None = None) -> Steps:
        """The first `steps` steps, or all."""
        count = self.steps if steps is None else steps
        return Steps(self.noise_multiplier, self.sample_rate, count, self.sampling)

    def spent(self, steps: int) -> float:
        """Epsilon under the budget's adjacency after this number of steps."""
        return epsilon_of([self.phase(steps)], self.budget.delta, self.budget.adjacency)

    def spent_text(self, steps: int) -> str:
        """`spent` as text."""
        return f"epsilon {self.spent(steps):.2f} ({self.budget.adjacency})"


def plan_training(
    budget: TrainingBudget, records: int, batch_size: float, *, epochs: float | None = None, steps: int | None = None
) -> TrainingPlan:
    """Steps and noise for a budget; arguments as for `DPFineTuner`. ConfigurationError: batches larger than the data,
    both or neither of epochs and steps, or a budget that does not allow a single step."""
    check_number("batch_size", batch_size)
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            check_number(name, value)
    if not 0 < batch_size <= records:
        raise ConfigurationError(
            f"batch_size: expected a number above 0 and at most the {records:,} records, got {batch_size:g}"
        )
    if (epochs is None) == (steps is None):
        raise ConfigurationError("expected either epochs or steps, got " + ("neither" if steps is None else "both"))
    requested = steps if steps is not None else math.ceil((epochs or 0) * records / batch_size - 1e-9)
    if requested < 1 or requested != int(requested):
        name = "steps" if epochs is None else "epochs"
        raise ConfigurationError(f"{name}: expected at least one whole step, got {requested}")
    check_delta(budget.delta, records)
    count = int(requested)
    plan = TrainingPlan(budget, records, float(batch_size), count, count, budget.noise_multiplier or 0.0)
    q, sampling = plan.sample_rate, plan.sampling
    if budget.epsilon is None:
        return plan
    sigma = budget.noise_multiplier
    if sigma is None:
        sigma = calibrated(budget.epsilon, q, count, budget.delta, budget.adjacency, sampling=sampling)
        return replace(plan, noise_multiplier=sigma)
    if plan.spent(count) > budget.epsilon:
        count = steps_within(budget.epsilon, sigma, q, budget.delta, budget.adjacency, sampling=sampling)
    if count < 1:
        raise ConfigurationError(
            f"epsilon: a single step with noise multiplier {sigma:g} and sample rate {q:.4g} spends more than"
            f" {budget.epsilon:g}; raise noise_multiplier, or leave it out"
        )
    return replace(plan, steps=count)


# --- config ----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}

NETWORK_LR = 5e-4
"""Default learning rate of networks; for linear heads see `safexplain.dp.sgd.finetune`."""

OptimizerChoice = Literal["adam", "adamw", "sgd"] | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example, (rows, classes) and (rows,) class indices -> (rows,); InputError: other shapes."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        raise InputError(
            f"cross-entropy: expected outputs (rows, classes) and class indices (rows,), got"
            f" {tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__} and {targets.dtype}"
            f" {tuple(targets.shape)}; for another task, pass loss="
        )
    return functional.cross_entropy(outputs, targets.long(), reduction="none")


@dataclass(frozen=True)
class TrainingConfig:
    """Options that do not affect epsilon, and the clipping rule; arguments as for `DPFineTuner`."""

    clipping: Clipping
    optimizer: OptimizerChoice
    lr: float | None
    loss: Loss
    mode: Mode
    piece: int
    seed: int | None

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            names = ", ".join(OPTIMIZERS)
            raise ConfigurationError(f"optimizer: expected one of {names} or a function, got {self.optimizer!r}")
        check_clipping(self.clipping)
        whole_number("piece", self.piece, 1)
        if self.seed is not None and not isinstance(self.seed, int | np.integer):
            raise ConfigurationTypeError(f"seed: expected a whole number or None, got {self.seed!r}")
        if self.lr is not None:
            object.__setattr__(self, "lr", check_number("lr", self.lr, above=0.0))
        object.__setattr__(self, "seed", None if self.seed is None else int(self.seed))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        if callable(self.optimizer):
            return self.optimizer(parameters)
        return OPTIMIZERS[self.optimizer](parameters, lr=self.lr or NETWORK_LR)

    def purpose(self) -> dict[str, Any]:
        """The options that a checkpoint must have been trained with."""
        named = {k: getattr(f, "__qualname__", f) for k, f in (("optimizer", self.optimizer), ("loss", self.loss))}
        return {**named, "clipping": repr(self.clipping), "lr": self.lr, "seed": self.seed}


# --- the loop ---------------------------------------------------------------------------------------------------------


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
    batches and `plan` are of persons. No guarantee covers the mean loss in progress reports.
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
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            error.add_note(
                f"safexplain: lower piece, now {piece}, which changes neither the training nor the guarantee"
            )
        raise


def _to(x: Inputs, device: torch.device) -> Inputs:
    if isinstance(x, Tensor):
        return x.to(device, non_blocking=True)
    return tuple(part.to(device, non_blocking=True) for part in x)


def _reseed(generator: torch.Generator, seed: int, step: int) -> None:
    """Seed noise and dropout for a step; `torch.manual_seed` would record a traceback for an unused GPU."""
    generator.manual_seed(step_seed(seed, step))
    torch.default_generator.manual_seed(step_seed(seed + 1, step))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(step_seed(seed + 1, step))


def _check_finite(model: nn.Module) -> None:
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters() if p.requires_grad):
        raise InputError(
            "training diverged: weights became NaN or infinite; lower the learning rate (a checkpoint holds an earlier"
            " state)"
        )


def _check_same_start(start: int, device: torch.device) -> None:
    mine = torch.tensor([start], device=device)
    least, most = mine.clone(), mine
    torch.distributed.all_reduce(least, op=torch.distributed.ReduceOp.MIN)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX)
    if int(least) != int(most):
        raise InputError(
            f"checkpoint: expected one file for all processes, got files of steps {int(least)} to {int(most)}; put it"
            " in a folder that they share"
        )


# --- checkpoint ------------------------------------------------------------------------------------------------------

FORMAT = 1


class Saver:
    """Saves and resumes a training with an equal `purpose`.

    A checkpoint holds no key or generator: batches and noise of later steps are drawn anew. It is as private as the
    final model, but two trainings continued from it spend twice.
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
                f"the checkpoint {self.path} is of another training ({changes}); delete it, or use another path"
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
