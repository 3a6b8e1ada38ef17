"""Captum's explainers, hardened: each class is a row of `safexplain.explain.catalog` put through `build`."""

from __future__ import annotations

from safexplain.explain.catalog import CATALOG
from safexplain.explain.hardened import Hardened
from safexplain.explain.wrap import build

__all__ = [
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
]

HardenedIG: type[Hardened] = build(CATALOG["IG"], module=__name__)
HardenedSaliency: type[Hardened] = build(CATALOG["Saliency"], module=__name__)
HardenedInputXGradient: type[Hardened] = build(CATALOG["InputXGradient"], module=__name__)
HardenedGuidedBackprop: type[Hardened] = build(CATALOG["GuidedBackprop"], module=__name__)
HardenedDeconvolution: type[Hardened] = build(CATALOG["Deconvolution"], module=__name__)
HardenedDeepLift: type[Hardened] = build(CATALOG["DeepLift"], module=__name__)
HardenedSmoothGrad: type[Hardened] = build(CATALOG["SmoothGrad"], module=__name__)
HardenedVarGrad: type[Hardened] = build(CATALOG["VarGrad"], module=__name__)
HardenedGradientShap: type[Hardened] = build(CATALOG["GradientShap"], module=__name__)
HardenedOcclusion: type[Hardened] = build(CATALOG["Occlusion"], module=__name__)
