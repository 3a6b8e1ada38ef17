"""Hardened explainers and an audit that proves or refutes that their explanations leak the training set."""

from importlib import import_module
from typing import Any

from safexplain._versions import VERSION as __version__

__all__ = [
    "Features",
    "GaussianNoise",
    "HardenedAnchors",
    "HardenedDeconvolution",
    "HardenedDeepLift",
    "HardenedGradCAM",
    "HardenedGradCAMPlusPlus",
    "HardenedGradientShap",
    "HardenedGuidedBackprop",
    "HardenedIG",
    "HardenedInputXGradient",
    "HardenedKernelExplainer",
    "HardenedKernelShap",
    "HardenedLime",
    "HardenedOcclusion",
    "HardenedProtoDash",
    "HardenedSaliency",
    "HardenedSmoothGrad",
    "HardenedTokenIG",
    "HardenedTreeExplainer",
    "HardenedVarGrad",
    "Hardening",
    "Levels",
    "NormClip",
    "Probability",
    "RangeClip",
    "RankNorm",
    "Reason",
    "Relative",
    "ThresholdMask",
    "TopKMask",
    "TopKSet",
    "UnitNorm",
    "__version__",
    "harden",
    "model_digest",
    "superpixels",
]

_HOMES = {
    "Features": "hardening.features",
    "Reason": "hardening.features",
    "HardenedAnchors": "explain.alibi",
    "HardenedKernelExplainer": "explain.shap",
    "HardenedProtoDash": "explain.aix360",
    "HardenedTreeExplainer": "explain.shap",
    "Probability": "outputs",
    "harden": "explain",
    "model_digest": "_digest",
    "superpixels": "explain.feature_groups",
}
"""Name -> module, except for the hardened classes of Captum (explain.hardened) and parts of a hardening.

Type checkers read `__init__.pyi`.
"""


def __getattr__(name: str) -> Any:
    """Names are imported on first use: a certificate is read without torch, and `--help` is quick."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "explain.hardened" if name.startswith("Hardened") else "hardening")
    return getattr(import_module(f"safexplain.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
