"""Captum's explainers of inputs and Grad-CAM, hardened: each class is a row of `safexplain.explain.catalog` put through
`build`."""

from __future__ import annotations

from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import build

__all__ = [
    "HardenedDeconvolution",
    "HardenedDeepLift",
    "HardenedDeepLiftShap",
    "HardenedFeatureAblation",
    "HardenedFeaturePermutation",
    "HardenedGradCAM",
    "HardenedGradCAMPlusPlus",
    "HardenedGradientShap",
    "HardenedGuidedBackprop",
    "HardenedGuidedGradCam",
    "HardenedIG",
    "HardenedInputXGradient",
    "HardenedKernelShap",
    "HardenedLRP",
    "HardenedLime",
    "HardenedOcclusion",
    "HardenedSaliency",
    "HardenedShapleyValueSampling",
    "HardenedShapleyValues",
    "HardenedSmoothGrad",
    "HardenedVarGrad",
]

HardenedIG: type[Hardened] = build(CATALOG["IG"], module=__name__)
HardenedSaliency: type[Hardened] = build(CATALOG["Saliency"], module=__name__)
HardenedInputXGradient: type[Hardened] = build(CATALOG["InputXGradient"], module=__name__)
HardenedGuidedBackprop: type[Hardened] = build(CATALOG["GuidedBackprop"], module=__name__)
HardenedDeconvolution: type[Hardened] = build(CATALOG["Deconvolution"], module=__name__)
HardenedDeepLift: type[Hardened] = build(CATALOG["DeepLift"], module=__name__)
HardenedDeepLiftShap: type[Hardened] = build(CATALOG["DeepLiftShap"], module=__name__)
HardenedLRP: type[Hardened] = build(CATALOG["LRP"], module=__name__)
HardenedSmoothGrad: type[Hardened] = build(CATALOG["SmoothGrad"], module=__name__)
HardenedVarGrad: type[Hardened] = build(CATALOG["VarGrad"], module=__name__)
HardenedGradientShap: type[Hardened] = build(CATALOG["GradientShap"], module=__name__)
HardenedOcclusion: type[Hardened] = build(CATALOG["Occlusion"], module=__name__)
HardenedFeatureAblation: type[Hardened] = build(CATALOG["FeatureAblation"], module=__name__)
HardenedFeaturePermutation: type[Hardened] = build(CATALOG["FeaturePermutation"], module=__name__)
HardenedShapleyValueSampling: type[Hardened] = build(CATALOG["ShapleyValueSampling"], module=__name__)
HardenedShapleyValues: type[Hardened] = build(CATALOG["ShapleyValues"], module=__name__)
HardenedKernelShap: type[Hardened] = build(CATALOG["KernelShap"], module=__name__)
HardenedLime: type[Hardened] = build(CATALOG["Lime"], module=__name__)
HardenedGradCAM: type[Hardened] = build(CATALOG["GradCAM"], module=__name__)
HardenedGradCAMPlusPlus: type[Hardened] = build(CATALOG["GradCAMPlusPlus"], module=__name__)
HardenedGuidedGradCam: type[Hardened] = build(CATALOG["GuidedGradCam"], module=__name__)
