"""How a network trains, whatever the budget: optimizer, loss, clipping, mode and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from safexplain._validate import check_number, whole_number
from safexplain.dp.models.checks import Mode
from safexplain.dp.sgd.clipping import Clipping, check_clipping
from safexplain.dp.sgd.records import Loss
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}

NETWORK_LR = 5e-4
"""Learning rate of networks where none is given; of linear heads, see `safexplain.dp.heads.finetune_head`."""

OptimizerChoice = Literal["adam", "adamw", "sgd"] | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example, (rows, classes) and (rows,) -> (rows,).

    Raises:
        InputError: the outputs are no tensor of scores of classes, or the targets no class indices.
    """
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        raise InputError(
            f"cross-entropy needs outputs (rows, classes) and class indices (rows,), got"
            f" {tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__} and {targets.dtype}"
            f" {tuple(targets.shape)}; for another task pass loss="
        )
    return functional.cross_entropy(outputs, targets.long(), reduction="none")


@dataclass(frozen=True)
class TrainingConfig:
    """The choices that do not enter the guarantee, and the clipping rule, which bounds each example.

    Args:
        clipping: of each example's gradient.
        optimizer: a name of `OPTIMIZERS`, or a function of the list of parameters.
        lr: learning rate of a named optimizer; None: `NETWORK_LR`, or of heads what `finetune_head` measures.
        loss: outputs and targets -> the loss of each example.
        mode: how per-example gradients are computed.
        piece: most examples in memory at a time.
        seed: makes batches and noise reproducible; None: secret ones.

    Raises:
        ConfigurationError: an unknown optimizer, or pieces of less than one row.
    """

    clipping: Clipping
    optimizer: OptimizerChoice
    lr: float | None
    loss: Loss
    mode: Mode
    piece: int
    seed: int | None

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and self.optimizer not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise ConfigurationError(f"optimizer: expected one of {known} or a function, got {self.optimizer!r}")
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
        """What a checkpoint must agree with."""
        named = {k: getattr(f, "__qualname__", f) for k, f in (("optimizer", self.optimizer), ("loss", self.loss))}
        return {**named, "clipping": repr(self.clipping), "lr": self.lr, "seed": self.seed}
