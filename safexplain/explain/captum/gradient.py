"""The signed gradient as a Captum explainer, on which SmoothGrad and VarGrad are defined."""

from __future__ import annotations

from typing import Any

from captum.attr import Saliency
from captum.log import log_usage
from torch import Tensor

__all__ = ["Gradient"]


class Gradient(Saliency):  # type: ignore[misc]
    """The signed gradient of the output with respect to the input: Captum's Saliency with `abs=False` by
    default.

    SmoothGrad and VarGrad are defined on this (arXiv 1706.03825 and 1810.03307): averaging
    magnitudes instead lets the noise that the average should remove add up.
    """

    @log_usage()  # type: ignore[untyped-decorator]
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        target: Any = None,
        abs: bool = False,
        additional_forward_args: object = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Gradients of the same structure and shapes as `inputs`; arguments as in `captum.attr.Saliency`."""
        gradients: Tensor | tuple[Tensor, ...] = Saliency.attribute.__wrapped__(
            self, inputs, target, abs, additional_forward_args
        )
        return gradients
