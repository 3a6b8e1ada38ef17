"""Clipping of one example's gradient to a 2-norm of at most C; one whose norm is not finite gets factor 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from safexplain._validate import keep_number
from safexplain.errors import ConfigurationTypeError


@dataclass(frozen=True)
class Clipping:
    """Maps gradient norms to factors on the gradients.

    Args:
        max_grad_norm: C, greater than 0.
    """

    max_grad_norm: float = 1.0
    per_layer: ClassVar[bool] = False
    """Whether `factors` takes one norm for each parameter tensor instead of one for the whole gradient."""

    def __post_init__(self) -> None:
        keep_number(self, "max_grad_norm", above=0.0)

    @property
    def bound(self) -> float:
        """C, the largest possible 2-norm of one example's clipped gradient, over all parameters."""
        return self.max_grad_norm

    def factors(self, norms: Tensor) -> Tensor:
        """Factor in [0, inf) for each norm, of the same shape: (batch,), or (batch, layers) where `per_layer`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FlatClipping(Clipping):
    """Scale longer gradients down to norm C, `max_grad_norm` (Abadi et al. 2016, arXiv 1607.00133, Algorithm 1).

    >>> import torch
    >>> FlatClipping(1.0).factors(torch.tensor([0.0, 0.5, 4.0, float("nan")]))
    tensor([1.0000, 1.0000, 0.2500, 0.0000])
    """

    def factors(self, norms: Tensor) -> Tensor:
        """min(1, C / norm) for norms of shape (batch,); 0 if the norm is not finite."""
        return _where_finite(norms, (self.max_grad_norm / norms).clamp(max=1.0))


@dataclass(frozen=True)
class PerLayerClipping(Clipping):
    """Scale the gradient of each parameter tensor down to its own bound (McMahan et al. 2018, arXiv 1710.06963).

    Args:
        max_grad_norm: the total bound C, split evenly into C_l = C / sqrt(number of parameter tensors).
    """

    per_layer: ClassVar[bool] = True

    def factors(self, norms: Tensor) -> Tensor:
        """min(1, C_l / norm) for norms of shape (batch, layers); a row of 0 if any of its norms is not finite."""
        return _where_finite(norms, (self.max_grad_norm / math.sqrt(norms.shape[-1]) / norms).clamp(max=1.0))


@dataclass(frozen=True)
class AutoSClipping(Clipping):
    """Normalise every gradient, short ones less (Bu et al. 2022, arXiv 2206.07136, equation 4.1).

    Args:
        max_grad_norm: C, greater than 0; it scales the step, so it hardly matters with Adam.
        gamma: greater than 0; a gradient of norm gamma is scaled to C / 2.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_number(self, "gamma", above=0.0)

    def factors(self, norms: Tensor) -> Tensor:
        """C / (norm + gamma) for norms of shape (batch,); 0 if the norm is not finite."""
        return _where_finite(norms, self.max_grad_norm / (norms + self.gamma))


class NoClipping(Clipping):
    """No clipping, for a comparison without a guarantee."""

    def factors(self, norms: Tensor) -> Tensor:
        """Ones; 0 if the norm is not finite."""
        return _where_finite(norms, norms.new_ones(norms.shape))


def check_clipping(clipping: object) -> None:
    """Raise ConfigurationTypeError unless it is a clipping rule."""
    if not isinstance(clipping, Clipping):
        raise ConfigurationTypeError(
            f"clipping: expected a rule such as AutoSClipping() or FlatClipping(1.0), got {clipping!r}"
        )


def sample_norms(gradients: Tensor) -> Tensor:
    """2-norms (batch,) of gradients (batch, ...), summed in two levels, which is ten times as exact as in one."""
    gradients = gradients.to(torch.promote_types(gradients.dtype, torch.float32))
    if gradients.dim() > 2:
        gradients = torch.linalg.vector_norm(gradients.flatten(2), dim=2)
    norms: Tensor = torch.linalg.vector_norm(gradients.reshape(len(gradients), -1), dim=1)
    return norms


def _where_finite(norms: Tensor, factors: Tensor) -> Tensor:
    """The factors, set to 0 for examples with a norm that is not finite."""
    finite = norms.isfinite()
    if norms.dim() > 1:
        finite = finite.all(dim=-1, keepdim=True)
    return factors.where(finite, factors.new_zeros(()))
