"""SGD and Adam on one tensor, as `torch.optim` computes them; for small heads its bookkeeping is a sixth of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Update", "adam", "sgd"]

Update = Callable[[Tensor], None]
"""Moves the parameters by one step along a gradient, which it may overwrite."""

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


def sgd(theta: Tensor, lr: float, momentum: float) -> Update:
    """Gradient descent, with momentum as in `torch.optim.SGD`: the buffer starts as the first gradient.

    Args:
        theta: changed in place.
        lr: learning rate.
        momentum: 0 for none.
    """
    buffer = torch.zeros_like(theta) if momentum else None

    def step(gradient: Tensor) -> None:
        theta.sub_(gradient if buffer is None else buffer.mul_(momentum).add_(gradient), alpha=lr)

    return step


def adam(theta: Tensor, lr: float) -> Update:
    """Adam (Kingma and Ba 2015, 1412.6980) with the defaults of `torch.optim.Adam`.

    Args:
        theta: changed in place.
        lr: learning rate.
    """
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    steps = 0

    def step(gradient: Tensor) -> None:
        nonlocal steps
        steps += 1
        first.lerp_(gradient, 1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        root = second.sqrt().div_((1 - _BETA2**steps) ** 0.5).add_(_EPS)
        theta.addcdiv_(first, root, value=-lr / (1 - _BETA1**steps))

    return step
