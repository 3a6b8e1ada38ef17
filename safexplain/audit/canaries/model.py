"""What canaries are made for: one of the batched networks, or any module through `ModuleNetwork`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from safexplain.dp.heads.head_step import Rows
from safexplain.dp.sgd.clipping import Clipping

__all__ = ["Model"]


class Model(Protocol):
    """A classifier whose parameters are a row of a tensor, trained by cross-entropy; see `networks.Network`."""

    @property
    def classes(self) -> int:
        """How many there are."""

    @property
    def parameters(self) -> int:
        """P."""

    @property
    def bias(self) -> bool:
        """Whether the rows that `clipped_sum` takes end with a constant 1."""

    def initial(self, runs: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(runs, P) where training starts."""

    def clipped_sum(self, theta: Tensor, rows: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
        """Theta (1, P) -> (1, P) sum of clipped gradients over the batch."""

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Theta (1, P) and x (n, ...) -> (1, n, outputs)."""

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Theta (P,), x (n, ...) and y (n,) -> (n, P), differentiable in x."""
