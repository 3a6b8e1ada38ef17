"""How alike the gradients of two records are under one model: their cosine, and their norms.

The gradient of a linear head is the outer product of the residual p - y and (x, 1), so the cosine of two gradients is
that of the residuals times that of the (x, 1), and no gradient has to be formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain.audit.canaries.batched.dense import residual
from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.model import Model

__all__ = ["Similarity", "Target"]

_NUMBERS = 2**24
"""Numbers of gradients, or of the data for a linear head, that are held together."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """Of the gradients of n records to that of the target.

    Args:
        cosine: (n,); 0 where a gradient is 0.
        norm: (n,) of the gradients of the n records.
    """

    cosine: Tensor
    norm: Tensor


@dataclass(frozen=True, eq=False)
class Target:
    """A record z under one model.

    Args:
        network: the shape of the model.
        theta: (P,) its parameters.
        x: (...) input of z.
        y: label of z.
    """

    network: Model
    theta: Tensor
    x: Tensor
    y: int

    @property
    def norm(self) -> float:
        """Of the gradient of z."""
        return float(self.to_all(self.x[None], self.label[None]).norm)

    @property
    def label(self) -> Tensor:
        """() long."""
        return torch.tensor(self.y, device=self.x.device)

    def to(self, x: Tensor, y: Tensor) -> Similarity:
        """Similarity to records x (n, ...), y (n,), differentiable in `x`."""
        both = torch.cat([self.x[None], x]), torch.cat([self.label[None], y])
        if isinstance(self.network, LinearHead):
            delta = residual(self.network.logits(self.theta[None], both[0])[0], both[1])
            dots = (delta @ delta[0]) * (both[0] @ self.x + self.network.bias)
            squares = delta.square().sum(1) * (both[0].square().sum(1) + self.network.bias)
            norms = (squares + torch.finfo(squares.dtype).tiny).sqrt()
        else:
            gradients = self.network.gradients(self.theta, *both)
            dots = gradients @ gradients[0]
            norms = (gradients.square().sum(1) + torch.finfo(gradients.dtype).tiny).sqrt()
        return Similarity(dots[1:] / (norms[0] * norms[1:]), norms[1:])

    def to_all(self, x: Tensor, y: Tensor) -> Similarity:
        """The same in pieces, for many records; not differentiable."""
        numbers = x[0].numel() if isinstance(self.network, LinearHead) else self.network.parameters
        size = max(1, _NUMBERS // numbers)
        with torch.no_grad():
            pieces = [self.to(*piece) for piece in zip(torch.split(x, size), torch.split(y, size), strict=True)]
        return Similarity(torch.cat([p.cosine for p in pieces]), torch.cat([p.norm for p in pieces]))
