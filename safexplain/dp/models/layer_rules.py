"""Rules for per-sample gradients that Opacus 1.6 lacks or has wrong, layer by layer.

Import enters the rules for gradients in Opacus' registry, for every user of Opacus in the process. Norms without the
gradients (mode ghost) are those of `nn.Linear`: its gradient for one example with t positions is G^T A, from inputs A
(t, in) and gradients of outputs G (t, out). Its squared norm is the sum of the elements of (A A^T) * (G G^T) (Li et al.
2022, arXiv 2110.05679, section 4), which takes t^2 numbers instead of in * out; the smaller of the two is computed (Bu
et al. 2022, arXiv 2205.10683).
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler, register_norm_sampler
from opacus.grad_sample.conv import compute_conv_grad_sample
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleHooksFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional

from safexplain.dp.sgd.clipping import sample_norms


def linear_norms(layer: nn.Linear, activations: list[Tensor], backprops: Tensor) -> dict[Tensor, Tensor]:
    """Norms of shape (batch,) of the per-example gradients of a linear layer's trainable parameters.

    In the sum of (A A^T) * (G G^T), products that nearly cancel are lost to rounding, so that the norm could be too
    small; for such examples the gradients are computed. `activations` holds the input (batch, ..., in), `backprops` is
    the gradient with respect to the output (batch, ..., out).
    """
    gradients = backprops.flatten(1, -2) if backprops.dim() > 2 else backprops[:, None]
    inputs = activations[0].to(gradients.dtype).reshape(*gradients.shape[:2], -1)
    norms: dict[Tensor, Tensor] = {}
    if layer.bias is not None and layer.bias.requires_grad:
        norms[layer.bias] = torch.linalg.vector_norm(gradients.sum(dim=1), dim=1)
    if layer.weight.requires_grad:
        norms[layer.weight] = _weight_norms(gradients, inputs)
    return norms


def _weight_norms(gradients: Tensor, inputs: Tensor) -> Tensor:
    """Norms of G^T A for each example, from (batch, t, out) and (batch, t, in)."""
    positions = gradients.shape[1]
    sizes = [torch.linalg.vector_norm(t, dim=2) for t in (gradients, inputs)]
    if positions == 1:
        norms: Tensor = sizes[0] * sizes[1]
        return norms[:, 0]
    if 2 * positions**2 > gradients.shape[2] * inputs.shape[2]:
        return sample_norms(gradients.mT @ inputs)
    squares = ((gradients @ gradients.mT) * (inputs @ inputs.mT)).sum(dim=(1, 2))
    largest = (sizes[0] * sizes[1]).sum(dim=1).square()
    norms = squares.clamp(min=0).sqrt()
    cancelled = squares < torch.finfo(squares.dtype).eps ** 0.5 * largest
    if cancelled.any():
        norms[cancelled] = sample_norms(gradients[cancelled].mT @ inputs[cancelled])
    return norms


class GhostHooks(GradSampleHooksFastGradientClipping):  # type: ignore[misc]
    """Opacus' hooks for norms without gradients, with `linear_norms` for `nn.Linear`."""

    NORM_SAMPLERS: ClassVar[Mapping[type[nn.Module], Callable[..., Any]]] = ChainMap(
        {nn.Linear: linear_norms}, GradSampleHooksFastGradientClipping.NORM_SAMPLERS
    )


class _FreshOutput(nn.Module):
    """Returns a copy, which the network may change in place; Opacus' hooks forbid that for a layer's own output."""

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

    Opacus' rule assumes that a 2-D input is contiguous (channels_last images are not) and always pads with zeros.
    Arguments as for `linear_norms`; gradients of a parameter are of shape (batch, *its shape).
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
