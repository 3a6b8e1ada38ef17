"""Hardened explainers: Captum's methods whose answers are clipped, masked and noised before they leave."""

from safexplain.explain.captum import (
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
)
from safexplain.explain.catalog import CATALOG, find_row
from safexplain.explain.wrap import harden

__all__ = [
    "CATALOG",
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
    "find_row",
    "harden",
]
