"""How a model is trained, as data: what reference models must repeat to stand in for the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from safexplain._validate import from_toml
from safexplain.errors import ConfigurationError, ConfigurationTypeError

OptimizerName = Literal["adam", "adamw", "sgd"]
ScheduleName = Literal["constant", "cosine"]
AugmentationName = Literal["none", "flip", "crop-flip"]


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule, epochs, batch, augmentation and seed of a training with cross-entropy.

    Args:
        optimizer: adam, adamw or sgd.
        lr: peak learning rate.
        momentum: of sgd.
        weight_decay: as the optimizer applies it (L2 for adam and sgd, decoupled for adamw).
        epochs: passes over the members.
        batch_size: examples a step; the members are permuted anew each epoch, the last batch may be smaller. A single
            one left over joins the batch before it: BatchNorm cannot train on one.
        schedule: constant, or cosine to zero over all steps.
        augmentation: none, flip (horizontal), or crop-flip (reflect-pad by 1/8 and crop, then flip); images only.
        seed: the base of every random choice (initial weights, order, augmentation), together with a model's index.

    Raises:
        ConfigurationError, ConfigurationTypeError: a value is of the wrong type or out of range.
    """

    optimizer: OptimizerName = "adam"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    epochs: int = 50
    batch_size: int = 64
    schedule: ScheduleName = "constant"
    augmentation: AugmentationName = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("optimizer", get_args(OptimizerName)),
            ("schedule", get_args(ScheduleName)),
            ("augmentation", get_args(AugmentationName)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"recipe: {name} is one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        for name in ("lr", "momentum", "weight_decay", "epochs", "batch_size", "seed"):
            value = getattr(self, name)
            whole = name in ("epochs", "batch_size", "seed")
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise ConfigurationTypeError(
                    f"recipe: {name} must be {'a whole' if whole else 'a'} number, got {value!r}"
                )
            smallest = 1 if name in ("epochs", "batch_size") else 0
            if not smallest <= value < float("inf"):
                raise ConfigurationError(f"recipe: {name} must be at least {smallest} and finite, got {value!r}")

    @classmethod
    def from_toml(cls, path: str | Path) -> Recipe:
        """Read a recipe: one `name = value` a line, names as the arguments, left-out ones at their defaults.

        Raises:
            InputError: the file cannot be read or is not TOML.
            ConfigurationError: an unknown name, or as the constructor.
        """
        return from_toml(cls, path, "recipe")

    def to_toml(self) -> str:
        """The recipe as TOML text that `from_toml` reads."""
        return "".join(f"{k} = {_toml(v)}\n" for k, v in asdict(self).items())

    def make_optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer over these tensors; all three work elementwise, so stacked models train as single ones do."""
        match self.optimizer:
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
            case "sgd":
                return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def make_schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The learning rate over `steps` steps, to be stepped after each."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    def steps_per_epoch(self, members: int) -> int:
        """Batches an epoch over this many members."""
        return len(self.batch_sizes(members))

    def batch_sizes(self, members: int) -> list[int]:
        """Examples in each batch of an epoch over this many members."""
        full, rest = divmod(members, self.batch_size)
        if rest == 1 and full:
            return [self.batch_size] * (full - 1) + [self.batch_size + 1]
        return [self.batch_size] * full + [rest] * (rest > 0)


Train = Callable[[Tensor, Tensor, torch.Generator], nn.Module]
"""What `train_shadows` also takes: `train(x, y, generator)` returns a trained module."""


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(float(value) if isinstance(value, float) else int(value))
