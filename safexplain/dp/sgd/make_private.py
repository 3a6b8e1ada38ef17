"""For people who have a training loop already: model, optimizer and loader in, private ones out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sized
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from opacus.data_loader import wrap_collate_with_empty
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from safexplain._digest import weights_digest
from safexplain._privacy_loss import Adjacency
from safexplain.dp.models.checks import check_rows, unsupported
from safexplain.dp.models.replacements import is_pinned, trains
from safexplain.dp.sgd.clipping import AutoSClipping, Clipping
from safexplain.dp.sgd.optimizers import ClippedOptimizer, DistributedClippedOptimizer
from safexplain.dp.sgd.plan import TrainingBudget, TrainingPlan, plan_training
from safexplain.dp.sgd.sampling import PoissonBatchSampler, PoissonSampler, seed_of, shared_sampler
from safexplain.errors import InputError, PrivacyWarning, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement


class BudgetSpent(RefusedError):
    """The next optimizer step would pass the privacy budget; it was not taken."""


class Privacy:
    """Counts an optimizer's steps, and refuses the one that would pass the budget.

    Attributes:
        steps: taken so far; keep it with your own checkpoints, and give it to `make_private` when you go on.
    """

    def __init__(
        self, model: nn.Module, plan: TrainingPlan, clipping: Clipping, *, pretrained: bool, seeded: bool, steps: int
    ) -> None:
        self.model, self.plan, self.clipping = model, plan, clipping
        self.pretrained, self.seeded, self.steps = pretrained, seeded, steps

    def before_step(self, optimizer: Any) -> None:
        """Called by the optimizer between noise and step.

        Raises:
            BudgetSpent: the plan's steps have been taken.
        """
        if optimizer.accumulated_iterations > 1:
            optimizer.zero_grad(set_to_none=True)
            raise RefusedError(
                "several backward passes before one step: a record in each of them would count several times. Call"
                " step() and zero_grad() after each; for large batches use DPFineTuner or Opacus' BatchMemoryManager"
            )
        if self.plan.budget.epsilon is not None and self.steps >= self.plan.steps:
            optimizer.zero_grad(set_to_none=True)
            raise BudgetSpent(
                f"all {self.plan.steps} steps of the budget are taken ({self.statement.epsilons}); stop training, or"
                " plan for more epochs, which takes more noise"
            )
        self.steps += 1

    @property
    def statement(self) -> PrivacyStatement:
        """The guarantee of what was trained so far."""
        stated = self.plan.statement(
            self.steps,
            clipping=self.clipping,
            trained="all parameters that require gradients",
            pretrained=self.pretrained,
            seeded=self.seeded,
        )
        return replace(stated, weights=weights_digest(self.model))


class PrivateTraining(NamedTuple):
    """What `make_private` gives; it unpacks as `model, optimizer, loader, privacy`.

    Args:
        model: computes per-example gradients.
        optimizer: clips, adds noise, steps.
        loader: an epoch of Poisson batches; empty ones have tensors without rows.
        privacy: what was spent.
    """

    model: GradSampleModule
    optimizer: ClippedOptimizer
    loader: DataLoader[Any]
    privacy: Privacy


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epsilon: float | None,
    delta: float,
    epochs: float,
    adjacency: Adjacency = "substitute",
    noise_multiplier: float | None = None,
    clipping: Clipping | None = None,
    pretrained: bool = True,
    steps_taken: int = 0,
    seed: int | None = None,
) -> PrivateTraining:
    """Make a loop of one's own private, as Opacus' `PrivacyEngine.make_private` does, within a budget.

    The loop stays: `optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()`, with a
    loss that is the plain mean over the batch of each example's own loss: no class weights, no sum, no penalty on
    parameters (use weight_decay). Nothing can check that. Evaluate under `torch.no_grad()`. The loader's batch size
    becomes the expected size of Poisson batches; it over the size of the data set is the sample rate, and the constant
    that sums are divided by. The step after the last one that the budget allows raises `BudgetSpent`.

    Args:
        model: in training mode, without layers that mix examples (`safexplain.dp.prepare` replaces them, before the
            optimizer is made); or wrapped in Opacus' DifferentiallyPrivateDistributedDataParallel.
        optimizer: of its parameters that require gradients.
        loader: over a map-style data set, with a batch size.
        epsilon: the budget; None with `noise_multiplier` for no limit.
        delta: smaller than one over the number of records.
        epochs: that will be trained.
        adjacency: under which the budget is meant.
        noise_multiplier: keep this one; `BudgetSpent` then comes when the budget is used up.
        clipping: of each example's gradient; AUTO-S by default.
        pretrained: whether the starting weights have seen other data.
        steps_taken: `privacy.steps` of the run that this one goes on from; they are spent.
        seed: makes batches and noise reproducible, for experiments: who knows it can undo the noise.

    Raises:
        InputError: unsupported layers, all listed; a model that mixes examples; a loader without data set or batch
            size, or with a sampler of its own.
        ConfigurationError: a budget or batch size that cannot be kept.
    """
    size = _batch_size(loader)
    _check_model(model, loader)
    budget = TrainingBudget(epsilon, delta, adjacency, noise_multiplier)
    records = len(cast(Sized, loader.dataset))
    steps = math.ceil(epochs * len(PoissonBatchSampler(records, size / records)))
    planned = plan_training(budget, records, size, steps=steps)
    clipping = clipping or AutoSClipping()
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # of torch, where Opacus watches first layers
    device = next(model.parameters()).device
    distributed = isinstance(model, DifferentiallyPrivateDistributedDataParallel)
    kind = DistributedClippedOptimizer if distributed else ClippedOptimizer
    private = kind(
        optimizer,
        clipping=clipping,
        noise_multiplier=planned.noise_multiplier,
        expected_batch_size=planned.expected_batch_size,
        generator=None if seed is None else torch.Generator(device).manual_seed(seed_of(seed, steps_taken)),
    )
    if planned.steps < planned.wanted:
        warnings.warn(
            f"epsilon {epsilon:g} is spent after {planned.steps} of {planned.wanted} steps with noise multiplier"
            f" {planned.noise_multiplier:g}: BudgetSpent comes then",
            PrivacyWarning,
            stacklevel=2,
        )
    privacy = Privacy(model, planned, clipping, pretrained=pretrained, seeded=seed is not None, steps=steps_taken)
    private.attach_step_hook(privacy.before_step)
    sampler = PoissonSampler.from_seed(seed)
    share: dict[str, Any] = {"sampler": sampler, "on_start": private.drop_accumulated}
    if distributed:
        share |= {
            "sampler": shared_sampler(sampler, device),
            "rank": torch.distributed.get_rank(),
            "processes": torch.distributed.get_world_size(),
        }
    batches = PoissonBatchSampler(planned.records, planned.sample_rate, **share)
    batches.step = steps_taken
    return PrivateTraining(GradSampleModule(model), private, _over(loader, batches), privacy)


def _batch_size(loader: DataLoader[Any]) -> int:
    size = loader.batch_size
    if size is None or not hasattr(loader.dataset, "__len__"):
        raise InputError("loader: expected one with batch_size over a data set with a length; its batches are redrawn")
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        raise InputError(
            f"loader: its {type(loader.sampler).__name__} would be ignored, as Poisson batches are drawn from the whole"
            " data set; pass the records to train on as torch.utils.data.Subset"
        )
    return int(size)


def _check_model(model: nn.Module, loader: DataLoader[Any]) -> None:
    """Raise unless the model's per-example gradients can be computed and are right."""
    problems = unsupported(model, "hooks")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        problems.append("- DistributedDataParallel sums gradients before they are clipped; use Opacus'"
                        " DifferentiallyPrivateDistributedDataParallel")  # fmt: skip
    problems += [
        f"- {name} ({type(m).__name__}): its statistics would be taken from the batch, or updated from the records"
        for name, m in model.named_modules()
        if isinstance(m, _BatchNorm) and not trains(m) and not is_pinned(m)
    ]
    if problems:
        raise InputError(
            "cannot train with differential privacy (safexplain.dp.prepare(model) replaces what it can; make the"
            " optimizer after it):\n" + "\n".join(problems)
        )
    dataset: Any = loader.dataset
    if len(dataset) < 2:
        return
    batch = (loader.collate_fn or default_collate)([dataset[i] for i in range(min(3, len(dataset)))])
    if not isinstance(batch, list | tuple) or not isinstance(batch[0], torch.Tensor):
        return
    rows = torch.randn_like(batch[0]) if batch[0].is_floating_point() else batch[0]
    if not isinstance(model, DifferentiallyPrivateDistributedDataParallel):
        with torch.random.fork_rng(devices=[]):
            check_rows(model, rows.to(next(model.parameters()).device), mode="hooks")


def _over(loader: DataLoader[Any], batches: PoissonBatchSampler) -> DataLoader[Any]:
    """The same loader with other batches."""
    first = loader.collate_fn([loader.dataset[0]])
    shapes = [(0, *t.shape[1:]) if isinstance(t, torch.Tensor) else (0,) for t in first]
    dtypes = [t.dtype if isinstance(t, torch.Tensor) else type(t) for t in first]
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        collate_fn=wrap_collate_with_empty(collate_fn=loader.collate_fn, sample_empty_shapes=shapes, dtypes=dtypes),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
    )
