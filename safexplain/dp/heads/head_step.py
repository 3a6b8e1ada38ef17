"""One step of DP-SGD for linear heads: per-example gradients clipped in closed form.

The gradient of the cross-entropy of a linear head for one example is the outer product of p - y and (x, 1), so its norm
is ||p - y|| ||(x, 1)|| (Goodfellow 2015, 1510.01799, section 4): no example's gradient has to be formed to clip it, and
independent heads are slices of one batched matrix product.

A head is a slice of theta, of shape (runs, outputs, columns). Columns are the features and, with a bias, a last one for
the constant 1. Outputs are the classes, or one logit for class 1 of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from safexplain.dp.sgd.clipping import Clipping

__all__ = ["Rows", "clipped_sum", "head_step", "logit_gradient"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Examples as the step reads them, the same for all runs (n, ...) or each run's own (runs, n, ...).

    Args:
        x: (n, columns) or (runs, n, columns), the constant included.
        labels: (n,) or (runs, n) class indices.
        norms: 2-norms of the rows of `x`, (n,) or (runs, n).
    """

    x: Tensor
    labels: Tensor
    norms: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, *, bias: bool) -> Rows:
        """From features (n, d) or (runs, n, d) and labels; `bias` adds the column of ones."""
        x = torch.cat([features, torch.ones_like(features[..., :1])], -1) if bias else features
        return cls(x, labels, torch.linalg.vector_norm(x, dim=-1))

    def take(self, index: Tensor) -> Rows:
        """Rows (b,) for all runs, or (runs, b) of each run, out of common ones."""
        x = self.x.index_select(0, index.reshape(-1)).view(*index.shape, *self.x.shape[1:])
        return Rows(x, self.labels[index], self.norms[index])


def head_step(
    theta: Tensor,
    batch: Rows,
    weight: Tensor | None,
    noise: Tensor | None,
    clipping: Clipping | None,
    expected_batch_size: float,
) -> Tensor:
    """The noisy mean gradient of one step: (sum of clipped gradients + noise) / expected batch size.

    Args:
        theta: (runs, outputs, columns).
        batch: the examples; none at all is allowed and gives noise only.
        weight: (runs, b), or (1, b) for all runs: 1 for examples in the run's batch, otherwise 0; None: 1.
        noise: like theta, of standard deviation noise multiplier times clipping bound; None: none, not private.
        clipping: of each example's gradient; None: none, not private.
        expected_batch_size: a public constant, whatever the number of examples.

    Returns:
        A gradient like theta.
    """
    total = clipped_sum(theta, batch, weight, clipping)
    return (total if noise is None else total.add_(noise)).div_(expected_batch_size)


def clipped_sum(theta: Tensor, batch: Rows, weight: Tensor | None, clipping: Clipping | None) -> Tensor:
    """Sum over the batch of the clipped gradients of each example's cross-entropy; arguments as in `head_step`."""
    runs, outputs, columns = theta.shape
    common = batch.x.dim() == 2
    flat = theta.reshape(runs * outputs, columns)
    logits = (flat @ batch.x.T).view(runs, outputs, len(batch.x)) if common else theta @ batch.x.mT
    residual = logit_gradient(logits, batch.labels)
    factors: Tensor | None = weight
    if clipping is not None:
        norms = residual.square().sum(1).sqrt_().mul_(batch.norms)
        kept = clipping.factors(norms.flatten()).view_as(norms)
        factors = kept if weight is None else kept * weight
    if factors is not None:
        residual = residual.mul_(factors[:, None]).nan_to_num_(0.0)  # 0 times NaN is NaN
    if common:
        return (residual.view(runs * outputs, len(batch.x)) @ batch.x).view_as(theta)
    return residual @ batch.x


def logit_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the cross-entropy with respect to the logits, p - y: (runs, outputs, b)."""
    if logits.shape[1] == 1:
        return logits.sigmoid() - labels.unsqueeze(-2)
    index = labels.unsqueeze(-2).expand(len(logits), 1, -1)
    return logits.softmax(1).scatter_add_(1, index, logits.new_full((), -1.0).expand_as(index))
