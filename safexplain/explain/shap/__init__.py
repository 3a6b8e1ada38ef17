"""Hardened explainers of the shap package, which release hardened values without base value and background.

Natively, base value and values add up to the model's output, on which membership inference works best.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from safexplain.explain.shap.explainers import (
    HardenedKernelExplainer,
    HardenedLinearExplainer,
    HardenedShap,
    HardenedTreeExplainer,
)

__all__ = ["HardenedKernelExplainer", "HardenedLinearExplainer", "HardenedTreeExplainer"]

SHAP: Mapping[str, type[HardenedShap]] = MappingProxyType(
    {kind._name: kind for kind in (HardenedTreeExplainer, HardenedLinearExplainer, HardenedKernelExplainer)}
)
"""shap's name of an explainer -> the hardened class."""
