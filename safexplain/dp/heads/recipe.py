"""How linear heads are trained: every choice but the noise and the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from safexplain._validate import check_whole, keep_number
from safexplain.dp.heads.head_optimizer import Update, adam, sgd
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

__all__ = ["HeadOptimizer", "HeadRecipe"]

HeadOptimizer = Literal["sgd", "adam"]


@dataclass(frozen=True)
class HeadRecipe:
    """Training of a linear head by DP-SGD.

    Args:
        classes: how many there are, a public number that is not read off the labels.
        steps: of the optimizer.
        sample_rate: probability of each row that a head trains on to be in a batch; 1: full batches.
        expected_batch_size: what the noisy sum of gradients is divided by, a public constant; normally sample_rate
            times the rows that a head trains on.
        clipping: `FlatClipping` or `AutoSClipping`; None only for training without noise.
        lr: learning rate.
        optimizer: as in `torch.optim`.
        momentum: of SGD.
        l2: this multiple of the parameters, the bias included, is added to the noisy gradient; it reads no data.
        bias: whether there is a constant.
        one_logit: for two classes, one vector of weights (logistic regression) instead of two.

    Raises:
        ConfigurationError: a value is out of range.
    """

    classes: int
    steps: int
    sample_rate: float
    expected_batch_size: float
    clipping: Clipping | None
    lr: float
    optimizer: HeadOptimizer = "sgd"
    momentum: float = 0.0
    l2: float = 0.0
    bias: bool = True
    one_logit: bool = False

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("steps", 1)):
            check_whole(name, getattr(self, name), least)
        keep_number(self, "sample_rate", above=0.0)
        if self.sample_rate > 1:
            raise ConfigurationError(f"sample_rate: expected a probability in (0, 1], got {self.sample_rate!r}")
        for name in ("expected_batch_size", "lr"):
            keep_number(self, name, above=0.0)
        for name in ("momentum", "l2"):
            keep_number(self, name, minimum=0.0)
        if self.optimizer not in get_args(HeadOptimizer):
            raise ConfigurationError(f"optimizer: expected one of {get_args(HeadOptimizer)}, got {self.optimizer!r}")
        if self.momentum >= 1 or (self.momentum and self.optimizer != "sgd"):
            raise ConfigurationError(f"momentum: expected a number in [0, 1), and 0 for Adam, got {self.momentum!r}")
        if self.clipping is not None and self.clipping.per_layer:
            raise ConfigurationError("a head is clipped as a whole: use FlatClipping or AutoSClipping")
        if self.one_logit and self.classes != 2:
            raise ConfigurationError(f"one_logit is for 2 classes, got {self.classes}")

    @property
    def outputs(self) -> int:
        """Rows of a head's weight matrix."""
        return 1 if self.one_logit else self.classes

    def make_update(self, theta: Tensor) -> Update:
        """Elementwise, so that heads in one tensor do not meet."""
        step = adam(theta, self.lr) if self.optimizer == "adam" else sgd(theta, self.lr, self.momentum)
        return (lambda gradient: step(gradient.add_(theta, alpha=self.l2))) if self.l2 else step
