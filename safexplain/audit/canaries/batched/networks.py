"""Networks of which many stand side by side in one flat tensor, with the clipped gradient sums of all at once.

theta has the shape (runs, P). A run's parameters are its layers in order, each a matrix (out, in + 1) in row-major
order whose last column is the bias; a `LinearHead` without a bias is (out, in). The gradient of a linear layer for one
example is the outer product of delta, the gradient with respect to its outputs, and its inputs (a, 1), so the squared
norm of an example's gradient is the sum over layers of ||delta||^2 ||(a, 1)||^2 (Goodfellow 2015, 1510.01799, section
4), and no example's gradient has to be formed to clip it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from safexplain.audit.canaries.batched.mlp import affine, check_sizes, outer, residual
from safexplain.dp.heads.closed_form import Rows, clipped_sum
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

__all__ = ["LinearHead", "Network"]


class Network(Protocol):
    """What `train_runs` trains: any number of networks of one shape as the rows of one tensor."""

    @property
    def features(self) -> int | None:
        """Columns of the inputs; None: they are of another shape."""

    @property
    def classes(self) -> int:
        """How many there are."""

    @property
    def outputs(self) -> int:
        """Logits of one example: the classes, or 1."""

    @property
    def parameters(self) -> int:
        """P, of one network."""

    @property
    def bias(self) -> bool:
        """Whether the first layer has one."""

    @property
    def one_logit(self) -> bool:
        """Whether two classes have one logit between them."""

    @property
    def numbers_per_row(self) -> int:
        """Numbers that `clipped_sum` holds at once for each run and each row of the batch."""

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) where training starts."""

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """(runs, P) sums of clipped gradients over the batch."""

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """theta (runs, P) and x (n, d) -> (runs, n, outputs)."""

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """theta (P,), x (n, d) and y (n,) -> (n, P)."""


@dataclass(frozen=True)
class LinearHead:
    """One linear layer.

    Args:
        features: d, columns of the inputs.
        classes: at least 2.
        bias: whether there is a constant.
        one_logit: for two classes, one vector of weights (logistic regression) instead of two.

    Raises:
        ConfigurationError: a size is out of range.
    """

    features: int
    classes: int
    bias: bool = True
    one_logit: bool = False

    def __post_init__(self) -> None:
        check_sizes(self.features, (), self.classes)
        if self.one_logit and self.classes != 2:
            raise ConfigurationError(f"one_logit is for 2 classes, got {self.classes}")

    @property
    def outputs(self) -> int:
        """Rows of the weight matrix."""
        return 1 if self.one_logit else self.classes

    @property
    def parameters(self) -> int:
        """P."""
        return self.outputs * (self.features + self.bias)

    @property
    def numbers_per_row(self) -> int:
        """Logits, residuals and what is scaled, norms and factors."""
        return 3 * self.outputs + 4

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) zeros; the generator is not used."""
        return torch.zeros(runs, self.parameters, device=device, dtype=dtype)

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """Sum over the batch of the clipped gradients of each example's cross-entropy, for each run.

        Args:
            theta: (runs, P).
            rows: the batch, by `Rows.of(x, y, bias=self.bias)`: the same for all runs, or each run's own.
            weight: (runs, b), or (1, b) for all runs, factors on the examples; None: 1.
            clipping: of each example's gradient; None: none.

        Returns:
            (runs, P).
        """
        return clipped_sum(self._matrices(theta), rows, weight, clipping).flatten(1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (runs, P) and x (n, d) -> (runs, n, outputs)."""
        return affine(self._matrices(theta), x, self.bias)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradients of each example's cross-entropy, not clipped, differentiable in `x`.

        Args:
            theta: (P,), of one run.
            x: (n, d).
            y: (n,) class indices.

        Returns:
            (n, P).
        """
        return outer(residual(self.logits(theta[None], x)[0], y), x, self.bias)

    def _matrices(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.outputs, self.features + self.bias)
