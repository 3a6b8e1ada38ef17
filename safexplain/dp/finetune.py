"""Fine-tuning that keeps a privacy budget: model, data and (epsilon, delta, adjacency) in, model and statement out."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain.dp.adjacency import Adjacency
from safexplain.dp.batches import Coins, shared_coins
from safexplain.dp.checkpoint import Saver
from safexplain.dp.clipping import AutoSClipping, Clipping
from safexplain.dp.finetune_head import linear_that_trains, train_head
from safexplain.dp.gaussian import fresh_generator
from safexplain.dp.head_recipe import HeadOptimizer
from safexplain.dp.loop import Progress, Share, progress_bar, run
from safexplain.dp.lora import merge_lora
from safexplain.dp.make_step import Mode, make_step
from safexplain.dp.modules import prepare, train_mode
from safexplain.dp.parameters import Trainable, select
from safexplain.dp.per_sample import Loss
from safexplain.dp.plan import Budget, plan
from safexplain.dp.records import InMemory, records_of
from safexplain.dp.row_checks import check_rows
from safexplain.dp.statement import PrivacyStatement
from safexplain.dp.weights import weights_digest
from safexplain.errors import ConfigurationError, PrivacyWarning
from safexplain.identity import model_digest

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
MECHANISM = (
    "DP-SGD: clipped gradients of Poisson batches, summed, with Gaussian noise (Abadi et al. 2016, arXiv 1607.00133)"
)


@dataclass(frozen=True, eq=False)
class DPFineTuned:
    """What a training gave.

    Args:
        model: in eval mode, on the device where it was trained.
        statement: the guarantee; for certificates and model cards.
        skipped: examples whose gradient was not finite and did not count. Like the losses, it is not covered by the
            guarantee: keep it to yourself.
        seconds: of this call.
        peak_memory: bytes on the GPU, or of the whole process on the CPU.
    """

    model: nn.Module
    statement: PrivacyStatement
    skipped: int
    seconds: float
    peak_memory: int


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example, (rows, classes) and (rows,) -> (rows,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


class DPFineTuner:
    """Trains a model with differential privacy.

    Noise is calibrated so that all steps together spend at most (epsilon, delta) under the adjacency; the sample rate
    is the expected batch size over the records of `data`. Where the classifier alone trains and is linear, features are
    computed once and the head is trained in closed form. Under torch.distributed each process takes its share of every
    batch.

    Args:
        model: left as it is; a copy is trained. BatchNorm that would train is replaced by GroupNorm.
        data: a pair (x, y) of tensors or a map-style data set of (x, y); all of it counts as trained on.
        epsilon: the budget; None with `noise_multiplier` for no limit.
        delta: smaller than one over the number of records.
        adjacency: under which the budget is meant.
        epochs: expected passes over the data; or
        steps: of the optimizer.
        batch_size: expected; Poisson batches differ in size. Large ones need less noise for the same accuracy.
        noise_multiplier: keep this one; training stops before the budget would be passed.
        clipping: of each example's gradient.
        trainable: "all", "head", "last-block", "bias", "lora" or name patterns; see `safexplain.dp.parameters`.
        optimizer: "adam", "adamw", "sgd", or a function of the list of parameters.
        lr: learning rate of a named optimizer.
        loss: outputs and targets -> the loss of each example; cross-entropy by default.
        mode: how per-example gradients are got; "ghost" (least memory) unless clipping is per layer.
        piece: most examples in memory at a time, whatever the batch.
        device: where to train; a GPU if there is one.
        pretrained: whether the starting weights have seen other data, which the statement then calls unprotected.
        workers: processes that load a data set.
        seed: makes batches and noise reproducible, for experiments: who knows it can undo the noise.
        checkpoint: file to save to, and to go on from if it exists.
        checkpoint_seconds: how often.
        progress: told how far training is; None shows a bar on a terminal.

    Raises:
        ConfigurationError: options that contradict each other or cannot be kept.
        InputError: data or a model that cannot be trained with DP; unsupported layers are listed with the fix.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        epsilon: float | None,
        delta: float,
        adjacency: Adjacency = "substitute",
        epochs: float | None = None,
        steps: int | None = None,
        batch_size: float = 256,
        noise_multiplier: float | None = None,
        clipping: Clipping | None = None,
        trainable: Trainable = "all",
        optimizer: Literal["adam", "adamw", "sgd"] | Callable[[list[nn.Parameter]], torch.optim.Optimizer] = "adam",
        lr: float = 5e-4,
        loss: Loss = cross_entropy,
        mode: Mode | None = None,
        piece: int = 64,
        device: str | torch.device | None = None,
        pretrained: bool = True,
        workers: int = 0,
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        progress: Progress | None = None,
    ) -> None:
        if not callable(optimizer) and optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ConfigurationError(f"optimizer: expected one of {known} or a function, got {optimizer!r}")
        if piece < 1:
            raise ConfigurationError(f"piece: expected at least 1 row, got {piece}")
        self.records = records_of(data, workers)
        budget = Budget(epsilon, delta, adjacency, noise_multiplier)
        self.plan = plan(budget, len(self.records), batch_size, epochs=epochs, steps=steps)
        self.clipping = clipping or AutoSClipping()
        self.mode: Mode = mode or ("hooks" if self.clipping.per_layer else "ghost")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.optimizer, self.lr, self.loss, self.piece = optimizer, lr, loss, piece
        self.trainable, self.pretrained, self.seed = trainable, pretrained, seed
        self.checkpoint, self.checkpoint_seconds, self.progress = checkpoint, checkpoint_seconds, progress
        self._start = model

    @property
    def statement(self) -> PrivacyStatement:
        """The guarantee that `fit` will give, known before any training; without the digest of the weights."""
        return PrivacyStatement(
            mechanism=MECHANISM,
            records=self.plan.records,
            delta=self.plan.budget.delta,
            phases=(self.plan.phase(),),
            clipping=repr(self.clipping),
            expected_batch_size=self.plan.expected_batch_size,
            trained=self._trained(),
            pretrained=self.pretrained,
        )

    def fit(self) -> DPFineTuned:
        """Train, going on from the checkpoint if there is one.

        Raises:
            InputError: the weights became NaN or infinite, or the checkpoint is of another training.
            KeyboardInterrupt: it was interrupted; the checkpoint, if asked for, is saved first.

        Warns:
            PrivacyWarning: layers were replaced, the budget ends before the steps that were asked for, or gradients
                were not finite.
        """
        began = time.monotonic()
        if self.plan.steps < self.plan.wanted:
            _warn(
                f"epsilon {self.plan.budget.epsilon:g} is spent after {self.plan.steps} of {self.plan.wanted} steps"
                f" with noise multiplier {self.plan.noise_multiplier:g}: training stops there"
            )
        model = self._prepared()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        with ExitStack() as stack:
            progress = self.progress or stack.enter_context(progress_bar())
            skipped = self._train_head(model, progress) if self._only_head(model) else self._train(model, progress)
        if skipped:
            _warn(f"{skipped} gradients of single examples were not finite and did not count; look at the data")
        if self.trainable == "lora":
            model = merge_lora(model)
        model.requires_grad_(True).eval()
        memory = (
            torch.cuda.max_memory_allocated(self.device)
            if self.device.type == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        statement = replace(self.statement, weights=weights_digest(model))
        return DPFineTuned(model, statement, skipped, time.monotonic() - began, memory)

    def _trained(self) -> str:
        """Which parameters train, in words."""
        if self.trainable == "lora":
            return "low-rank adapters and the head"
        sizes = {name: p.numel() for name, p in self._start.named_parameters()}
        count = sum(sizes[name] for name in select(self._start, self.trainable))
        chosen = self.trainable if isinstance(self.trainable, str) else ", ".join(map(str, self.trainable))
        return f"{chosen}: {count:,} of {sum(sizes.values()):,} parameters"

    def _prepared(self) -> nn.Module:
        """A copy of the model with what trains requiring gradients, on the device."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            if self.seed is not None:
                torch.manual_seed(self.seed)
            model = prepare(self._start, self.trainable, mode=self.mode).to(self.device)
            x, _ = next(self.records.pieces([list(range(min(3, len(self.records))))]))
            parts = x if isinstance(x, tuple) else (x,)
            rows = tuple(torch.randn_like(p) if p.is_floating_point() else p for p in parts)
            if len(rows[0]) > 1:
                check_rows(model, tuple(row.to(self.device) for row in rows), mode=self.mode)
        return train_mode(model)

    def _only_head(self, model: nn.Module) -> bool:
        """Whether a linear layer alone trains, in a way that has a closed form."""
        return (
            linear_that_trains(model) is not None
            and self.loss is cross_entropy
            and self.optimizer in ("adam", "sgd")
            and not self.clipping.per_layer
            and isinstance(self.records, InMemory)
            and isinstance(self.records.x, Tensor)
            and not torch.distributed.is_initialized()
        )

    def _train_head(self, model: nn.Module, progress: Progress) -> int:
        """Train the head in place; returns how many examples were skipped."""
        train_head(
            model,
            cast(InMemory, self.records),
            self.plan,
            clipping=self.clipping,
            optimizer=cast(HeadOptimizer, self.optimizer),
            lr=self.lr,
            seed=self.seed,
            cache=None if self.checkpoint is None else Path(f"{self.checkpoint}.features"),
            progress=progress,
        )
        return 0

    def _train(self, model: nn.Module, progress: Progress) -> int:
        """Take all steps, in place; returns how many examples were skipped."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        share = Share(torch.distributed.get_rank(), torch.distributed.get_world_size()) if distributed else Share()
        coins = Coins.from_seed(self.seed)
        parameters = [p for p in model.parameters() if p.requires_grad]
        make = self.optimizer if callable(self.optimizer) else partial(OPTIMIZERS[self.optimizer], lr=self.lr)
        optimizer = make(parameters)
        step = make_step(
            model,
            optimizer,
            clipping=self.clipping,
            noise_multiplier=self.plan.noise_multiplier,
            expected_batch_size=self.plan.expected_batch_size,
            loss=self.loss,
            mode=self.mode,
            generator=fresh_generator(self.device),
            distributed=distributed,
        )
        saver = Saver(
            self.checkpoint,
            self._purpose(),
            self.checkpoint_seconds,
            model,
            optimizer,
            lambda: step.optimizer.skipped,
        )
        try:
            start, step.optimizer.skipped = saver.resume()
            if share.rank:
                saver.path = None
            run(
                step,
                model,
                self.records,
                self.plan,
                shared_coins(coins, self.device) if distributed else coins,
                start=start,
                piece=self.piece,
                share=share,
                seed=self.seed,
                saver=saver,
                progress=progress if share.rank == 0 else None,
            )
        finally:
            step.close()
        return step.optimizer.skipped

    def _purpose(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be continued."""
        return {
            "model": model_digest(self._start).hex(),
            "data": self.records.digest(),
            "statement": self.statement.to_dict(),
            "optimizer": getattr(self.optimizer, "__qualname__", self.optimizer),
            "lr": self.lr,
            "loss": getattr(self.loss, "__qualname__", repr(self.loss)),
            "seed": self.seed,
        }


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyWarning, stacklevel=3)
