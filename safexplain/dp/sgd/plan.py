"""Plan of a training: steps and noise multiplier for a budget, computed without reading any record.

`TrainingConfig` holds the other options: optimizer, loss, clipping, mode and memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain._privacy_loss import Adjacency, Sampling, Steps, check_adjacency, check_delta, epsilon_of
from safexplain._secure_random import GENERATOR
from safexplain._validate import check_number, whole_number
from safexplain.dp.accounting import noise_multiplier as calibrated
from safexplain.dp.accounting import steps_within
from safexplain.dp.models.checks import Mode
from safexplain.dp.sgd.clipping import Clipping, check_clipping
from safexplain.dp.sgd.records import Loss
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.verdict.privacy_statement import PrivacyStatement

MECHANISM = (
    "DP-SGD: clipped gradients of Poisson batches, summed, with Gaussian noise (Abadi et al. 2016, arXiv 1607.00133)"
)


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
                f"epsilon: expected a finite number above 0, got {self.epsilon!r}; for training without a guarantee,"
                " pass epsilon=None, noise_multiplier=0"
            )
        for name, least in (("epsilon", {"above": 0.0}), ("delta", {}), ("noise_multiplier", {"minimum": 0.0})):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_number(name, value, **least))


@dataclass(frozen=True)
class TrainingPlan:
    """The parameters of a training that determine its guarantee; the budget may allow fewer steps than requested."""

    budget: TrainingBudget
    records: int
    expected_batch_size: float
    steps: int
    requested_steps: int
    noise_multiplier: float

    @property
    def sample_rate(self) -> float:
        """The probability that a record is in a batch: expected batch size over records."""
        return self.expected_batch_size / self.records

    @property
    def sampling(self) -> Sampling:
        """How batches are drawn."""
        return "full-batch" if self.sample_rate == 1 else "poisson"

    def phase(self, steps: int | None = None) -> Steps:
        """The first `steps` steps, or all."""
        count = self.steps if steps is None else steps
        return Steps(self.noise_multiplier, self.sample_rate, count, self.sampling)

    def statement(self, *, clipping: Clipping, trained: str, pretrained: bool, seeded: bool) -> PrivacyStatement:
        """The guarantee of all steps, without the digest of the weights; arguments as for `PrivacyStatement`."""
        return PrivacyStatement(
            mechanism=MECHANISM,
            records=self.records,
            delta=self.budget.delta,
            phases=(self.phase(),),
            clipping=repr(clipping),
            expected_batch_size=self.expected_batch_size,
            trained=trained,
            pretrained=pretrained,
            seeded=seeded,
            generator="" if seeded else GENERATOR,
        )

    def spent(self, steps: int) -> float:
        """Epsilon under the budget's adjacency after this number of steps."""
        return epsilon_of([self.phase(steps)], self.budget.delta, self.budget.adjacency)

    def spent_text(self, steps: int) -> str:
        """`spent` as text, for progress reports."""
        return f"epsilon {self.spent(steps):.2f} ({self.budget.adjacency})"


def plan_training(
    budget: TrainingBudget, records: int, batch_size: float, *, epochs: float | None = None, steps: int | None = None
) -> TrainingPlan:
    """Steps and noise for a budget; arguments as for `DPFineTuner`, and the number of `records` in the training data.

    Raises:
        ConfigurationError: batches larger than the data, both or neither of epochs and steps, or a budget that does not
            allow a single step.
    """
    check_number("batch_size", batch_size)
    for name, value in (("epochs", epochs), ("steps", steps)):
        if value is not None:
            check_number(name, value)
    if not 0 < batch_size <= records:
        raise ConfigurationError(
            f"batch_size: expected a number above 0 and at most the {records:,} records, got {batch_size:g}; it is the"
            " expected size of a Poisson batch"
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
            f" {budget.epsilon:g}; raise noise_multiplier, or leave it out to have it calibrated"
        )
    return replace(plan, steps=count)


# --- config ----------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}

NETWORK_LR = 5e-4
"""Default learning rate of networks; for linear heads see `safexplain.dp.heads.finetune_head`."""

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
