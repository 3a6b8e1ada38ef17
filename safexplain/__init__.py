"""Hardened explainers and an audit that proves or refutes that their explanations leak the training set."""

from safexplain.explain import (
    HardenedDeconvolution,
    HardenedDeepLift,
    HardenedGradientShap,
    HardenedGuidedBackprop,
    HardenedIG,
    HardenedInputXGradient,
    HardenedOcclusion,
    HardenedSaliency,
    HardenedSmoothGrad,
    HardenedVarGrad,
    harden,
)
from safexplain.hardening import (
    GaussianNoise,
    Hardening,
    NormClip,
    RangeClip,
    RankNorm,
    Relative,
    ThresholdMask,
    TopKMask,
    UnitNorm,
)
from safexplain.outputs import Probability

__version__ = "0.1.0"

__all__ = [
    "GaussianNoise",
    "HardenedDeconvolution",
    "HardenedDeepLift",
    "HardenedGradientShap",
    "HardenedGuidedBackprop",
    "HardenedIG",
    "HardenedInputXGradient",
    "HardenedOcclusion",
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
]
