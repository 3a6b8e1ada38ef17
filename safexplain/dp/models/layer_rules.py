"""Rules for per-sample gradients that Opacus 1.6 lacks or has wrong, entered in its registry on import.

They hold for every user of Opacus in the process, by its public `register_grad_sampler`.
"""

from __future__ import annotations

import copy
from typing import Any

from opacus.grad_sample import GradSampleModule, register_grad_sampler, register_norm_sampler
from opacus.grad_sample.conv import compute_conv_grad_sample
from torch import Tensor, nn
from torch.nn import functional

from safexplain.dp.models.ghost import linear_norms

__all__ = ["FreshGroupNorm", "FreshLinear", "convolution_gradients"]


class _FreshOutput(nn.Module):
    """Returns a copy, which the network may change in place: Opacus' hooks forbid that for a layer's own output."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs).clone()


class FreshGroupNorm(_FreshOutput, nn.GroupNorm):
    """`nn.GroupNorm` before a residual sum in place (`out += x`), as in torchvision's and timm's ResNets."""

    plain = nn.GroupNorm


class FreshLinear(_FreshOutput, nn.Linear):
    """`nn.Linear` before a sum in place, as in timm's BEiT."""

    plain = nn.Linear


def convolution_gradients(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Per-sample gradients of a convolution, for inputs in any memory format and any `padding_mode`.

    Opacus' rule reads a 2-D input as if it were contiguous (channels_last images are not) and pads with zeros whatever
    the `padding_mode`. Its gradients are then others, without an error, and in mode "ghost" its norms bound nothing.

    Args:
        layer: the layer.
        activations: its input, in a list; shape (batch, channels, ...).
        backprops: gradient with respect to its output; shape (batch, channels, ...).

    Returns:
        Parameter -> gradients of shape (batch, *its shape).
    """
    inputs = activations[0].contiguous()
    if layer.padding_mode != "zeros":
        inputs = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        layer = copy.copy(layer)  # with the same parameters
        layer.padding = (0,) * len(layer.kernel_size)
    gradients: dict[nn.Parameter, Tensor] = compute_conv_grad_sample(layer, [inputs], backprops)
    return gradients


register_grad_sampler([nn.Conv1d, nn.Conv2d, nn.Conv3d])(convolution_gradients)
register_grad_sampler(FreshGroupNorm)(GradSampleModule.GRAD_SAMPLERS[nn.GroupNorm])
register_grad_sampler(FreshLinear)(GradSampleModule.GRAD_SAMPLERS[nn.Linear])
register_norm_sampler(FreshLinear)(linear_norms)
