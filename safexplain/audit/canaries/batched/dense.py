"""One linear layer of many networks, and its gradients one example at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from safexplain._validate import check_whole


def affine(matrices: Tensor, x: Tensor, bias: bool) -> Tensor:
    """(runs, out, columns) and (n, d) -> (runs, n, out)."""
    weight = matrices[..., : x.shape[1]]
    flat = (x @ weight.reshape(-1, x.shape[1]).T).view(len(x), *matrices.shape[:2]).transpose(0, 1)
    return flat + matrices[:, None, :, -1] if bias else flat


def residual(logits: Tensor, y: Tensor) -> Tensor:
    """Gradient of the cross-entropy with respect to the logits (n, outputs)."""
    if logits.shape[1] == 1:
        return logits.sigmoid() - y[:, None]
    return logits.softmax(1) - torch.nn.functional.one_hot(y, logits.shape[1])


def outer(delta: Tensor, x: Tensor, bias: bool) -> Tensor:
    """(n, out) and (n, in) -> (n, out * (in + bias)) gradients of one layer."""
    inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1) if bias else x
    return (delta[:, :, None] * inputs[:, None]).flatten(1)


def check_sizes(features: int, hidden: tuple[int, ...], classes: int) -> None:
    """Raise ConfigurationError unless these are sizes of a network."""
    for name, value, least in (("features", features, 1), *(("hidden", h, 1) for h in hidden), ("classes", classes, 2)):
        check_whole(name, value, least)
