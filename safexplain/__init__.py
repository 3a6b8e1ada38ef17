"""Hardened explainers and an audit that proves or refutes that their explanations leak the training set."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from safexplain.explain import (
    HardenedAnchors,
    HardenedDeconvolution,
    HardenedDeepLift,
    HardenedGradCAM,
    HardenedGradCAMPlusPlus,
    HardenedGradientShap,
    HardenedGuidedBackprop,
    HardenedIG,
    HardenedInputXGradient,
    HardenedKernelShap,
    HardenedLime,
    HardenedOcclusion,
    HardenedProtoDash,
    HardenedSaliency,
    HardenedSmoothGrad,
    HardenedVarGrad,
    harden,
    superpixels,
)
from safexplain.hardening.amounts import Relative
from safexplain.hardening.clips import NormClip, RangeClip, RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise
from safexplain.outputs import Probability

if TYPE_CHECKING:
    from safexplain.recourse.counterfactual import HardenedCounterfactual

__version__ = "0.1.0"

__all__ = [
    "GaussianNoise",
    "HardenedAnchors",
    "HardenedCounterfactual",
    "HardenedDeconvolution",
    "HardenedDeepLift",
    "HardenedGradCAM",
    "HardenedGradCAMPlusPlus",
    "HardenedGradientShap",
    "HardenedGuidedBackprop",
    "HardenedIG",
    "HardenedInputXGradient",
    "HardenedKernelShap",
    "HardenedLime",
    "HardenedOcclusion",
    "HardenedProtoDash",
    "HardenedSaliency",
    "HardenedSmoothGrad",
    "HardenedVarGrad",
    "Hardening",
    "NormClip",
    "Probability",
    "RangeClip",
    "RankNorm",
    "Relative",
    "ThresholdMask",
    "TopKMask",
    "UnitNorm",
    "__version__",
    "harden",
    "superpixels",
]


def __getattr__(name: str) -> Any:
    if name == "HardenedCounterfactual":  # when it is asked for: it brings the accounting of differential privacy
        return import_module("safexplain.recourse.counterfactual").HardenedCounterfactual
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
