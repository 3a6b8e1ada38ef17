"""For people who have a training loop already: model, optimizer and loader in, private ones out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sized
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from opacus.data_loader import wrap_collate_with_empty
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from safexplain._digest import weights_digest
from safexplain._privacy_loss import Adjacency, Steps, epsilon_of
from safexplain._validate import whole_number
from safexplain.dp.models.checks import awake, check_rows, unsupported
from safexplain.dp.models.replacements import is_pinned, trains
from safexplain.dp.sgd.clipping import AutoSClipping, Clipping
from safexplain.dp.sgd.loop_loss import LossWatch, check_loop_loss
from safexplain.dp.sgd.optimizers import ClippedOptimizer, DistributedClippedOptimizer
from safexplain.dp.sgd.plan import TrainingBudget, TrainingPlan, plan_training
from safexplain.dp.sgd.sampling import PoissonBatchSampler, PoissonSampler, seed_of, shared_sampler
from safexplain.dp.sgd.spent import KEY, Spent, found_on, put_on, remember, runs_of
from safexplain.dp.sgd.train_loop import memory_told
from safexplain.errors import ConfigurationError, InputError, PrivacyWarning, RefusedError
from safexplain.verdict.privacy_statement import PrivacyStatement


class BudgetSpent(RefusedError):
    """The next optimizer step would pass the privacy budget; it was not taken."""


class Privacy:
    """Counts an optimizer's steps, and refuses the one that would pass the budget.

    Attributes:
        spent: the steps so far, with those of earlier runs that came with the model, its state or the optimizer's.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        clipping: Clipping,
        spent: Spent,
        watch: LossWatch,
        *,
        pretrained: bool,
        seeded: bool,
    ) -> None:
        self.model, self.plan, self.clipping = model, plan, clipping
        self.pretrained, self.seeded, self.spent = pretrained, seeded, spent
        self._watch = watch
        self._allowed: int | None = None

    @property
    def steps(self) -> int:
        """Taken so far, in earlier runs too."""
        return self.spent.steps

    @property
    def allowed(self) -> int | None:
        """How many steps may be taken in all, those of earlier runs included; None: no limit."""
        if self.plan.budget.epsilon is not None and self._allowed is None:
            self._allowed = self._most()
        return self._allowed

    def earlier_runs_joined(self) -> None:
        """Count anew, and say so where an earlier run had other noise or batches.

        Warns:
            PrivacyWarning: it had; the budget then ends at another step than was planned.
        """
        self._allowed = None
        if any(p.records not in (None, self.plan.records) for p in self.spent.phases):
            raise ConfigurationError(
                "truncated batches of an earlier run were drawn of another number of records than"
                f" {self.plan.records:,}, and no statement can be about both; go on with the same data"
            )
        if self.plan.budget.epsilon is not None and self._others():
            left = max((self.allowed or 0) - self.steps, 0)
            _warn(
                f"{self.steps} steps were taken before, with other noise or batches than now planned"
                f" ({'; '.join(map(str, self._others()))}): the budget allows {left}"
                " more. Give make_private the options of the first run, with epochs= of the whole training, to go on as"
                " planned"
            )

    def _others(self) -> tuple[Steps, ...]:
        """Steps of runs with other noise or batches."""
        kind = self.plan.phase(0)
        return tuple(p for p in self.spent.phases if replace(p, steps=0) != kind)

    def _most(self) -> int:
        budget, others = self.plan.budget, self._others()
        elsewhere = sum(p.steps for p in others)
        if not others:
            return self.plan.steps

        def within(steps: int) -> bool:
            phases = (*others, self.plan.phase(steps)) if steps else others
            return epsilon_of(phases, budget.delta, budget.adjacency) <= (budget.epsilon or 0)

        fits, too_many = -1, self.plan.wanted + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if within(middle) else (fits, middle)
        return elsewhere + max(fits, 0)

    def before_step(self, optimizer: Any) -> None:
        """Called by the optimizer between noise and step.

        Raises:
            BudgetSpent: the plan's steps have been taken.
            RefusedError: several backward passes, or a loss that is no plain mean.
        """
        if optimizer.accumulated_iterations > 1:
            optimizer.zero_grad(set_to_none=True)
            raise RefusedError(
                "several backward passes before one step: a record in each of them would count several times. Call"
                " step() and zero_grad() after each; for large batches use DPFineTuner or Opacus' BatchMemoryManager"
            )
        if self._watch.problem:
            optimizer.zero_grad(set_to_none=True)
            raise RefusedError(self._watch.problem)
        if self.allowed is not None and self.steps >= self.allowed:
            optimizer.zero_grad(set_to_none=True)
            raise BudgetSpent(
                f"all {self.allowed} steps of the budget are taken ({self.statement.epsilons}); stop training, or plan"
                " for more epochs from the first step on, which takes more noise. Steps of earlier runs on this model"
                " count: to train anew, build the model anew"
            )
        self.spent.count()

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
        phases = self.spent.phases or stated.phases
        same = all(p.sample_rate == self.plan.sample_rate for p in phases)
        remember(self.model, self.spent)
        return replace(
            stated,
            phases=phases,
            expected_batch_size=stated.expected_batch_size if same else None,
            own_loop=True,
            weights=weights_digest(self.model),
        )


MEMORY = (
    "pass largest_batch= to make_private, which cuts the largest Poisson batches, or lower the loader's batch_size, or"
    " split batches with Opacus' BatchMemoryManager"
)


class _Watched(GradSampleModule):  # type: ignore[misc]
    """Says what helps where a batch is too large for the memory."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with memory_told(MEMORY):
            return super().forward(*args, **kwargs)

    def capture_backprops_hook(self, *args: Any, **kwargs: Any) -> None:
        with memory_told(MEMORY):
            super().capture_backprops_hook(*args, **kwargs)


class _Counted:
    """An optimizer whose state carries the record of steps."""

    privacy: Privacy

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, with the count of the steps that were taken."""
        remember(self.privacy.model, self.privacy.spent)
        inner: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return {**inner, KEY: self.privacy.spent.to_state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; the steps that it counts are spent.

        Raises:
            InputError: it counts none, as the state of another optimizer.
            ConfigurationError: it counts other steps than `make_private` was told of.
        """
        state = dict(state_dict)
        record = state.pop(KEY, None)
        if record is None and not self.privacy.spent.told:
            raise InputError(
                "the optimizer's state has no count of the steps that were taken privately: it was saved by another"
                " optimizer than make_private's (optimizer.original_optimizer, or one of Opacus). Save"
                " optimizer.state_dict() of the one that make_private gave; or say how many steps were taken:"
                " make_private(..., steps_taken=)"
            )
        runs = {} if record is None else runs_of(record)
        self.privacy.spent.join(runs)
        super().load_state_dict(state)  # type: ignore[misc]


class _CountedOptimizer(_Counted, ClippedOptimizer):
    pass


class _CountedDistributedOptimizer(_Counted, DistributedClippedOptimizer):
    pass


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
    largest_batch: int | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    pretrained: bool = True,
    steps_taken: int | None = None,
    seed: int | None = None,
) -> PrivateTraining:
    """Make a loop of one's own private, as Opacus' `PrivacyEngine.make_private` does, within a budget.

    The loop stays: `optimizer.zero_grad(); loss = criterion(model(x), y); loss.backward(); optimizer.step()`, with a
    loss that is the plain mean over the batch of each example's own loss: no sum, no class weights that a mean divides
    by, no penalty on parameters (use weight_decay). Sums and class weights of the usual losses for classes are noticed
    in the first steps and refused, any loss that is given as `loss` before the first. Evaluate under `torch.no_grad()`.
    The loader's batch size becomes the expected size of Poisson batches; it over the size of the data set is the sample
    rate, and the constant that sums are divided by. The step after the last one that the budget allows raises
    `BudgetSpent`.

    To go on later, save `model.state_dict()` and `optimizer.state_dict()` as in any loop, call `make_private` with the
    same options (`epochs` of the whole training), and load both: either carries the steps that were taken, and they are
    spent. They are also known in the module itself, its parameters, and weights that this process has trained. What
    nothing can see is a new process that loads nothing but weights, and before `make_private`: then say `steps_taken`.

    Args:
        model: in training mode, without layers that mix examples (`safexplain.dp.prepare` replaces them, before the
            optimizer is made); or wrapped in Opacus' DifferentiallyPrivateDistributedDataParallel.
        optimizer: of its parameters that require gradients.
        loader: over a map-style data set, with a batch size.
        epsilon: the budget; None with `noise_multiplier` for no limit.
        delta: smaller than one over the number of records.
        epochs: that will be trained, in earlier runs too.
        adjacency: under which the budget is meant.
        noise_multiplier: keep this one; `BudgetSpent` then comes when the budget is used up.
        clipping: of each example's gradient; AUTO-S by default.
        largest_batch: cut larger Poisson batches down to so many records, for a fixed amount of memory; the noise pays
            for it, next to nothing where it is eight times the square root of the batch size above the batch size.
            Opacus' BatchMemoryManager, which splits batches, is the other way.
        loss: what the loop calls backward() on, as a function of outputs and targets; it is tried on a few rows.
        pretrained: whether the starting weights have seen other data.
        steps_taken: `privacy.steps` of the run that this one goes on from, where its count cannot be loaded.
        seed: makes batches and noise reproducible, for experiments: who knows it can undo the noise.

    Raises:
        InputError: unsupported layers, all listed; a model that mixes examples; a loader without data set or batch
            size, or with a sampler of its own.
        ConfigurationError: a budget or batch size that cannot be kept, a loss that is no plain mean, or `steps_taken`
            contradicts what the model carries.

    Warns:
        PrivacyWarning: the budget ends before the steps that were asked for, or the model was trained before.
    """
    if steps_taken is not None:
        whole_number("steps_taken", steps_taken, 0)
    size = _batch_size(loader)
    model = without_hooks(model)
    _check_model(model, loader)
    budget = TrainingBudget(epsilon, delta, adjacency, noise_multiplier)
    records = len(cast(Sized, loader.dataset))
    steps = math.ceil(epochs * len(PoissonBatchSampler(records, size / records)))
    planned = plan_training(budget, records, size, steps=steps, largest_batch=largest_batch)
    clipping = clipping or AutoSClipping()
    warnings.filterwarnings("ignore", "Full backward hook is firing")  # of torch, where Opacus watches first layers
    device = next(model.parameters()).device
    distributed = isinstance(model, DifferentiallyPrivateDistributedDataParallel)
    if loss is not None:
        _check_loss(loss, model, loader)
    kind = _CountedDistributedOptimizer if distributed else _CountedOptimizer
    private = kind(
        optimizer,
        clipping=clipping,
        noise_multiplier=planned.noise_multiplier,
        expected_batch_size=planned.expected_batch_size,
        generator=None if seed is None else torch.Generator(device),
    )
    if planned.steps < planned.wanted:
        _warn(
            f"epsilon {epsilon:g} is spent after {planned.steps} of {planned.wanted} steps with noise multiplier"
            f" {planned.noise_multiplier:g}: BudgetSpent comes then"
        )
    sampler = PoissonSampler.from_seed(seed)
    share: dict[str, Any] = {
        "sampler": sampler,
        "on_start": private.drop_accumulated,
        "largest": planned.largest_batch,
    }
    run = None
    if distributed:
        share |= {
            "sampler": shared_sampler(sampler, device),
            "rank": torch.distributed.get_rank(),
            "processes": torch.distributed.get_world_size(),
        }
        run = shared_sampler(PoissonSampler(), device).key.hex()
    batches = PoissonBatchSampler(planned.records, planned.sample_rate, **share)
    spent = Spent(steps_taken, planned.phase(0), run)
    watched = _Watched(model)
    privacy = Privacy(
        model, planned, clipping, spent, LossWatch(watched), pretrained=pretrained, seeded=seed is not None
    )
    private.privacy = privacy
    private.attach_step_hook(privacy.before_step)

    def joined() -> None:
        """Earlier steps became known: neither their batches nor their noise are drawn again."""
        batches.step = spent.steps
        if seed is not None and isinstance(private.generator, torch.Generator):
            private.generator.manual_seed(seed_of(seed, spent.steps))
        privacy.earlier_runs_joined()

    joined()
    spent.changed = joined
    earlier = found_on(model)
    for record in earlier:
        spent.join(record, with_weights=True)
    if earlier:
        _warn(
            f"make_private trained these weights before: {spent.steps} steps are counted as spent on the same records."
            " To train anew, build the model anew"
        )
    put_on(model, spent)
    return PrivateTraining(watched, private, _over(loader, batches), privacy)


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyWarning, stacklevel=3)


def without_hooks(model: nn.Module) -> nn.Module:
    """The model without what Opacus left on it when it was made private before; that loop ends."""
    if isinstance(model, GradSampleModule):
        model = model._module
    for module in model.modules():
        for hooks in (module._forward_hooks, module._backward_hooks):
            for number, hook in list(hooks.items()):
                if isinstance(getattr(getattr(hook, "func", hook), "__self__", None), AbstractGradSampleHooks):
                    del hooks[number]
        for name in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
            module.__dict__.pop(name, None)
    return model


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
    rows, _ = _first_rows(loader)
    if rows is None or isinstance(model, DifferentiallyPrivateDistributedDataParallel):
        return
    rows = torch.randn_like(rows) if rows.is_floating_point() else rows
    with torch.random.fork_rng(devices=[]):
        check_rows(model, rows.to(next(model.parameters()).device), mode="hooks")


def _first_rows(loader: DataLoader[Any]) -> tuple[Tensor | None, Any]:
    """Inputs and the rest of the first records, at most three; None where there is one, or no tensor."""
    dataset: Any = loader.dataset
    if len(dataset) < 2:
        return None, None
    batch = (loader.collate_fn or default_collate)([dataset[i] for i in range(min(3, len(dataset)))])
    if not isinstance(batch, list | tuple) or not isinstance(batch[0], Tensor):
        return None, None
    return batch[0], batch[1:]


def _check_loss(loss: Callable[[Any, Any], Tensor], model: nn.Module, loader: DataLoader[Any]) -> None:
    """Try the loss on what the model gives for a few rows of noise, and on their records' targets."""
    rows, rest = _first_rows(loader)
    if rows is None or len(rest) != 1 or not isinstance(rest[0], Tensor):
        raise InputError("loss: it can be tried on records (x, y) of tensors, at least two; leave it out otherwise")
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        outputs = awake(model)((torch.randn_like(rows) if rows.is_floating_point() else rows).to(device))
    if not isinstance(outputs, Tensor):
        raise InputError(f"loss: the model gives a {type(outputs).__name__}, not a tensor; leave it out")
    check_loop_loss(loss, outputs, rest[0].to(device))


def _over(loader: DataLoader[Any], batches: PoissonBatchSampler) -> DataLoader[Any]:
    """The same loader with other batches."""
    first = loader.collate_fn([loader.dataset[0]])
    shapes = [(0, *t.shape[1:]) if isinstance(t, Tensor) else (0,) for t in first]
    dtypes = [t.dtype if isinstance(t, Tensor) else type(t) for t in first]
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
