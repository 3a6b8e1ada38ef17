"""Inputs made so that, under the target's label, their gradient opposes the target's (scenario S3).

Algorithm 3 of arXiv 2511.21804 minimises the cosine of the two gradients plus their mean squared difference, which asks
for the opposite of the cosine: it is 0 where the gradients are equal. Its text wants z' "similar in scale", so here the
second term is the squared difference of the norms, relative to the norm that is wanted.

For a linear head the residuals p - y of two inputs under one label agree in sign, so the cosine is low where that of
(x, 1) and (x', 1) is. Where it can be negative, it is least on the path clamp(-a x) through the box for some a > 0: the
inputs with a cosine below any negative number are convex, and there the stationary points lie on this path. Where all
features have one sign, corners of the box that share few features with x do best. The descent starts from both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from safexplain.audit.canaries.bounds import Ball, Box
from safexplain.audit.canaries.similarity import Similarity, Target

__all__ = ["as_published", "crafted", "loss"]

_SCALES = 64
_RECORDS = 128
_RATE = 0.02
"""Of Adam, in widths of a feature."""
PUBLISHED_RATE, PUBLISHED_STEPS = 0.01, 5000
"""Of the released code, by default."""


def loss(found: Similarity, norm: float) -> Tensor:
    """Cosine plus squared relative difference of the norm from the one that is wanted: (n,)."""
    return found.cosine + (found.norm / norm - 1).square()


def crafted(target: Target, within: Box | Ball, records: Tensor, *, norm: float, steps: int, starts: int) -> Tensor:
    """The input with the least loss that projected Adam reaches, from the best of many inputs.

    Args:
        target: z and the model.
        within: the inputs that are allowed.
        records: (k, ...) inputs of the data, also tried as starts.
        norm: of the gradient that is wanted.
        steps: of Adam.
        starts: how many of the inputs are descended from.

    Returns:
        The input, of the shape of one record.
    """
    tried = _candidates(target.x, within, records)
    losses = loss(target.to_all(tried, target.label.expand(len(tried))), norm)
    chosen = losses.topk(min(starts, len(tried)), largest=False).indices
    best, least = tried[chosen], losses[chosen]
    x, width = best.clone(), within.width.to(best)
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, steps + 1):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            now = loss(target.to(leaf, target.label.expand(len(leaf))), norm)
            gradient = torch.autograd.grad(now.sum(), leaf)[0].nan_to_num(0.0) * width
        better = now.detach() < least
        least = torch.where(better, now.detach(), least)
        best = torch.where(better.view(-1, *[1] * (x.dim() - 1)), x, best)
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.001)
        move = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-12)
        x = within.project(x - _RATE * (1 - step / (steps + 1)) * width * move)
    return best[least.argmin()]


def as_published(target: Target, *, steps: int = PUBLISHED_STEPS, lr: float = PUBLISHED_RATE) -> Tensor:
    """Algorithm 3 as it is printed: from 0, by gradient descent on cosine plus mean squared difference, without bounds.

    Args:
        target: z and the model.
        steps: of gradient descent.
        lr: learning rate.

    Returns:
        The input after the last step.
    """
    x, own, label = torch.zeros_like(target.x), target.norm, target.label[None]
    for _ in range(steps):
        with torch.enable_grad():
            leaf = x.requires_grad_()
            found = target.to(leaf[None], label)
            squared = own**2 + found.norm.square() - 2 * own * found.norm * found.cosine
            value = (found.cosine + squared / target.network.parameters).sum()
            x = leaf.detach() - lr * torch.autograd.grad(value, leaf)[0]
    return x


def _candidates(x: Tensor, within: Box | Ball, records: Tensor) -> Tensor:
    """(k, ...): inputs from 0 to the opposite of x, corners at several scales, records, and the mirror image of x."""
    scales = torch.logspace(-2, 3, _SCALES, dtype=x.dtype, device=x.device)
    weights = torch.logspace(-2, 2, 16, dtype=x.dtype, device=x.device) * x.abs().mean() / within.width.to(x).mean()
    corners = within.corners(x, weights)
    mirrored = [within.low + within.high - x] if isinstance(within, Box) else []
    shape = [-1, *[1] * x.dim()]
    found = [-scales.view(shape) * x, *(corners * c for c in (1.0, 0.5, 0.25, 0.125)), records]
    return within.project(torch.cat([*found, *(m[None] for m in mirrored)]))
