"""How much of one example's gradient is kept: three rules, each bounding the 2-norm of what one example contributes.

| rule | factor on the gradient of an example | bound on its contribution |
|---|---|---|
| `FlatClipping` | min(1, C / norm) | C |
| `PerLayerClipping` | min(1, C_l / norm of layer l), a layer being one parameter tensor | C, the 2-norm of all C_l |
| `AutoSClipping` | C / (norm + gamma) | C, never reached |

An example whose gradient norm is not finite gets factor 0 everywhere: it contributes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from safexplain._validate import keep_number
from safexplain.errors import ConfigurationTypeError


class Clipping(Protocol):
    """Turns gradient norms into factors on the gradients."""

    per_layer: ClassVar[bool]
    """Whether `factors` takes one norm for each parameter tensor, rather than one for the whole gradient."""

    @property
    def bound(self) -> float:
        """Largest 2-norm of one example's clipped gradient, over all parameters."""

    def factors(self, norms: Tensor) -> Tensor:
        """Factor in [0, inf) for each norm, of the same shape: (batch,), or (batch, layers) where `per_layer`."""


@dataclass(frozen=True)
class _OneBound:
    max_grad_norm: float = 1.0
    per_layer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        keep_number(self, "max_grad_norm", above=0.0)

    @property
    def bound(self) -> float:
        """C."""
        return self.max_grad_norm


@dataclass(frozen=True)
class FlatClipping(_OneBound):
    """Scale a gradient down to norm C where it is longer (Abadi et al. 2016, arXiv 1607.00133, Algorithm 1).

    Args:
        max_grad_norm: C, greater than 0.

    >>> import torch
    >>> FlatClipping(1.0).factors(torch.tensor([0.0, 0.5, 4.0, float("nan")]))
    tensor([1.0000, 1.0000, 0.2500, 0.0000])
    """

    def factors(self, norms: Tensor) -> Tensor:
        """The min(1, C / norm) of norms of shape (batch,), 0 where the norm is not finite."""
        return _where_finite(norms, (self.max_grad_norm / norms).clamp(max=1.0))


@dataclass(frozen=True)
class PerLayerClipping(_OneBound):
    """Scale the gradient of each parameter tensor down to a bound of its own (McMahan et al. 2018, arXiv 1710.06963).

    Args:
        max_grad_norm: the total bound C, split evenly into C / sqrt(number of parameter tensors).
    """

    per_layer: ClassVar[bool] = True

    def factors(self, norms: Tensor) -> Tensor:
        """The min(1, C_l / norm) of norms of shape (batch, layers); a row of 0 where any norm is not finite."""
        return _where_finite(norms, (self.max_grad_norm / math.sqrt(norms.shape[-1]) / norms).clamp(max=1.0))


@dataclass(frozen=True)
class AutoSClipping(_OneBound):
    """Normalise every gradient, short ones less (Bu et al. 2022, arXiv 2206.07136, equation 4.1).

    Args:
        max_grad_norm: C, greater than 0. With gamma it sets the scale of the step, so with Adam it hardly matters.
        gamma: stability constant, greater than 0; a gradient of norm gamma is scaled to C / 2.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_number(self, "gamma", above=0.0)

    def factors(self, norms: Tensor) -> Tensor:
        """The C / (norm + gamma) of norms of shape (batch,), 0 where the norm is not finite."""
        return _where_finite(norms, self.max_grad_norm / (norms + self.gamma))


@dataclass(frozen=True)
class NoClipping:
    """Every gradient as it is, for training without a guarantee, to compare with."""

    per_layer: ClassVar[bool] = False
    bound: ClassVar[float] = 1.0

    def factors(self, norms: Tensor) -> Tensor:
        """Ones, 0 where the norm is not finite."""
        return _where_finite(norms, norms.new_ones(norms.shape))


def check_clipping(clipping: object) -> None:
    """Raise ConfigurationTypeError unless it is a clipping rule."""
    if not hasattr(clipping, "factors"):
        raise ConfigurationTypeError(
            f"clipping: expected a rule such as AutoSClipping() or FlatClipping(1.0), got {clipping!r}"
        )


def sample_norms(gradients: Tensor) -> Tensor:
    """2-norms of shape (batch,) of gradients (batch, ...), summed in two levels: ten times as exact as in one."""
    gradients = gradients.to(torch.promote_types(gradients.dtype, torch.float32))
    if gradients.dim() > 2:
        gradients = torch.linalg.vector_norm(gradients.flatten(2), dim=2)
    norms: Tensor = torch.linalg.vector_norm(gradients.reshape(len(gradients), -1), dim=1)
    return norms


def _where_finite(norms: Tensor, factors: Tensor) -> Tensor:
    """The factors, 0 for examples with a norm that is not finite."""
    finite = norms.isfinite()
    if norms.dim() > 1:
        finite = finite.all(dim=-1, keepdim=True)
    return factors.where(finite, factors.new_zeros(()))
