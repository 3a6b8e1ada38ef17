"""Linear heads of which many stand side by side in one flat tensor, with the clipped gradient sums of all at once.

theta has the shape (runs, P). A run's parameters are a matrix (out, in + 1) in row-major order whose last column is the
bias, or (out, in) without one. Another network that has the same attributes and methods can be trained in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain._validate import check_whole
from safexplain.dp.heads.closed_form import Rows, clipped_sum
from safexplain.dp.sgd.clipping import Clipping
from safexplain.errors import ConfigurationError

__all__ = ["LinearHead"]


@dataclass(frozen=True)
class LinearHead:
    """One linear layer."""

    features: int
    classes: int
    bias: bool = True
    one_logit: bool = False  # for two classes, one vector of weights (logistic regression) instead of two

    def __post_init__(self) -> None:
        check_whole("features", self.features, 1)
        check_whole("classes", self.classes, 2)
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
        """(runs, P): for each run, sum over the batch of the clipped gradients of each example's cross-entropy.

        Rows are the same for all runs; weights (runs, b), or (1, b), are factors on the examples.
        """
        return clipped_sum(self._matrices(theta), rows, weight, clipping).flatten(1)

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (runs, P) and x (n, d) -> (runs, n, outputs)."""
        return affine(self._matrices(theta), x, self.bias)

    def _matrices(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.outputs, self.features + self.bias)


def affine(matrices: Tensor, x: Tensor, bias: bool) -> Tensor:
    """(runs, out, columns) and (n, d) -> (runs, n, out)."""
    weight = matrices[..., : x.shape[1]]
    flat = (x @ weight.reshape(-1, x.shape[1]).T).view(len(x), *matrices.shape[:2]).transpose(0, 1)
    return flat + matrices[:, None, :, -1] if bias else flat
