"""The explanation methods as rows of a table: what each one is, where it comes from and what it needs.

A row holds facts only. `safexplain.explain.wrap` turns rows into the Hardened classes, and whoever tunes or
audits reads the same rows for options to search and for arguments that a method cannot do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from captum.attr import (
    Attribution,
    Deconvolution,
    DeepLift,
    GradientShap,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    NoiseTunnel,
    Occlusion,
    Saliency,
)
from captum.log import log_usage
from torch import Tensor

from safexplain.errors import ConfigurationError

__all__ = ["CATALOG", "Gradient", "Row", "find_row"]


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


@dataclass(frozen=True)
class Row:
    """One explanation method.

    Args:
        name: key in `CATALOG`; the hardened class is called Hardened + name.
        native: Captum's class.
        family: "gradient", "reference" (gradients along the way from a baseline), "sampling" or
            "perturbation".
        citation: where the method was published.
        summary: one sentence.
        hooks: it registers hooks on the model's modules, so that it must run on a private copy.
        needs_relu: it changes what nn.ReLU modules do, and without any it silently is the plain gradient.
        leaf_inputs: Captum wants inputs that require gradients, and warns about others.
        stochastic: it draws from torch's global generator (GradientShap also from NumPy's), as natively.
        delta: natively it can return a convergence delta, which the hardened class refuses.
        nt_type: for a NoiseTunnel, the one aggregate that the class stands for.
        search_space: options of `attribute` and of the constructor that do not change what is asked for; a
            tuple lists values, a pair in a list is a range. DeepLeak's choice (arXiv 2601.03429, Table
            VIII), plus sample counts.
        needs: (inputs as a tuple) -> arguments without which `attribute` cannot be called, a plain choice of
            them.
    """

    name: str
    native: type[Attribution]
    family: str
    citation: str
    summary: str
    hooks: bool = False
    needs_relu: bool = False
    leaf_inputs: bool = False
    stochastic: bool = False
    delta: bool = False
    nt_type: str | None = None
    search_space: Mapping[str, tuple[Any, ...] | list[float]] = field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )
    needs: Callable[[tuple[Tensor, ...]], dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)

    @property
    def hardened_name(self) -> str:
        """Name of the hardened class."""
        return f"Hardened{self.name}"

    def explainer(self, forward_func: Callable[..., Any]) -> Attribution:
        """The native explainer of a forward function (a NoiseTunnel is put over `Gradient`)."""
        return self.native(Gradient(forward_func) if self.nt_type else forward_func)

    def options(self, inputs: Tensor | tuple[Tensor, ...]) -> dict[str, Any]:
        """Arguments that the native `attribute` needs for these inputs, beside them and the target."""
        options = self.needs(inputs if isinstance(inputs, tuple) else (inputs,))
        if not isinstance(inputs, tuple):
            options = {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}
        return options | ({"nt_type": self.nt_type} if self.nt_type else {})


def _zero_baselines(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    return {"baselines": tuple(torch.zeros_like(x[:1]) for x in inputs)}


def _windows(inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Windows of a quarter of each axis at steps of an eighth; the first of several axes stays whole."""
    windows, strides = [], []
    for x in inputs:
        channels, axes = (x.shape[1:2], x.shape[2:]) if x.dim() > 2 else ((), x.shape[1:])
        windows.append((*channels, *(max(1, n // 4) for n in axes)))
        strides.append((*channels, *(max(1, n // 8) for n in axes)))
    return {"sliding_window_shapes": tuple(windows), "strides": tuple(strides)}


_RULES = ("gausslegendre", "riemann_right", "riemann_left", "riemann_middle", "riemann_trapezoid")
_TUNNEL: dict[str, tuple[Any, ...] | list[float]] = {"nt_samples": (5, 10, 25, 50), "stdevs": [0.01, 2.0]}

_ROWS = (
    Row(
        "IG",
        IntegratedGradients,
        family="reference",
        citation="Sundararajan, Taly, Yan: Axiomatic Attribution for Deep Networks, arXiv 1703.01365",
        summary="Integral of gradients from a baseline straight to the input, times their difference.",
        delta=True,
        search_space={"n_steps": (10, 25, 50, 100), "method": _RULES, "multiply_by_inputs": (True, False)},
    ),
    Row(
        "Saliency",
        Saliency,
        family="gradient",
        citation="Simonyan, Vedaldi, Zisserman: Deep Inside Convolutional Networks, arXiv 1312.6034",
        summary="Magnitude (or, with abs=False, value) of the gradient with respect to the input.",
        leaf_inputs=True,
        search_space={"abs": (True, False)},
    ),
    Row(
        "InputXGradient",
        InputXGradient,
        family="gradient",
        citation="Shrikumar, Greenside, Shcherbina, Kundaje: Not Just a Black Box, arXiv 1605.01713",
        summary="Input times the gradient with respect to it.",
        leaf_inputs=True,
    ),
    Row(
        "GuidedBackprop",
        GuidedBackprop,
        family="gradient",
        citation="Springenberg, Dosovitskiy, Brox, Riedmiller: Striving for Simplicity, arXiv 1412.6806",
        summary="Gradient in which each ReLU also stops negative gradients.",
        hooks=True,
        needs_relu=True,
        leaf_inputs=True,
    ),
    Row(
        "Deconvolution",
        Deconvolution,
        family="gradient",
        citation="Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
        summary="Gradient in which each ReLU stops negative gradients and passes all others.",
        hooks=True,
        needs_relu=True,
        leaf_inputs=True,
    ),
    Row(
        "DeepLift",
        DeepLift,
        family="reference",
        citation="Shrikumar, Greenside, Kundaje: Learning Important Features, arXiv 1704.02685",
        summary="Differences from a baseline carried back through the activations (the rescale rule).",
        hooks=True,
        leaf_inputs=True,
        delta=True,
        search_space={"multiply_by_inputs": (True, False), "eps": [1e-10, 1e-4]},
    ),
    Row(
        "SmoothGrad",
        NoiseTunnel,
        family="sampling",
        citation="Smilkov, Thorat, Kim, Viegas, Wattenberg: SmoothGrad, arXiv 1706.03825",
        summary="Mean of an explanation over inputs with Gaussian noise.",
        stochastic=True,
        delta=True,
        nt_type="smoothgrad",
        search_space=_TUNNEL,
    ),
    Row(
        "VarGrad",
        NoiseTunnel,
        family="sampling",
        citation="Adebayo, Gilmer, Goodfellow, Kim: Local Explanation Methods, arXiv 1810.03307",
        summary="Variance of an explanation over inputs with Gaussian noise.",
        stochastic=True,
        delta=True,
        nt_type="vargrad",
        search_space=_TUNNEL,
    ),
    Row(
        "GradientShap",
        GradientShap,
        family="sampling",
        citation="Lundberg, Lee: A Unified Approach to Interpreting Model Predictions, arXiv 1705.07874",
        summary="Mean gradient at random points between noisy inputs and baselines, times their difference.",
        stochastic=True,
        delta=True,
        search_space={
            "n_samples": (5, 10, 25, 50),
            "stdevs": [0.0, 1.0],
            "multiply_by_inputs": (True, False),
        },
        needs=_zero_baselines,
    ),
    Row(
        "Occlusion",
        Occlusion,
        family="perturbation",
        citation="Zeiler, Fergus: Visualizing and Understanding Convolutional Networks, arXiv 1311.2901",
        summary="Change of the output when a window of the input is replaced by a baseline.",
        search_space={"sliding_window_shapes": ((3, 1, 1), (3, 32, 32)), "strides": ((3, 1, 1), (3, 32, 32))},
        needs=_windows,
    ),
)

CATALOG: Mapping[str, Row] = MappingProxyType({row.name: row for row in _ROWS})
"""Every method of this version, by name."""


def find_row(name: str) -> Row:
    """The row of a method, whatever the spelling: "IG", "integrated_gradients", "IntegratedGradients",
    "HardenedIG".

    Raises:
        ConfigurationError: no such method; the message lists all.

    >>> find_row("integrated-gradients").name, find_row("smoothgrad").name
    ('IG', 'SmoothGrad')
    """
    names = {_plain(row.name): row for row in _ROWS}
    natives = {_plain(row.native.__name__): row for row in _ROWS if row.nt_type is None}
    wanted = _plain(name)
    for key in (wanted, wanted.removeprefix("hardened")):
        if row := (names | natives).get(key):
            return row
    raise ConfigurationError(f"expected one of {', '.join(CATALOG)}; got {name!r}")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
