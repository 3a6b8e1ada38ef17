"""Hardened explainers of the shap package, which release only hardened values.

A native SHAP explanation adds up to the output: base value plus values are the model's output for the instance, so they
reveal its confidence, on which membership inference works best. A hardened explainer releases hardened values without
base value and background.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.libraries import defined_in
from safexplain.explain.shap.explainers import (
    HardenedKernelExplainer,
    HardenedLinearExplainer,
    HardenedShap,
    HardenedTreeExplainer,
)
from safexplain.hardening.hardening import Hardening

__all__ = ["HardenedKernelExplainer", "HardenedLinearExplainer", "HardenedTreeExplainer"]

SHAP: Mapping[str, type[HardenedShap]] = MappingProxyType(
    {kind._name: kind for kind in (HardenedTreeExplainer, HardenedLinearExplainer, HardenedKernelExplainer)}
)
"""shap's name of an explainer -> the hardened class."""


def harden_shap(native: Any, hardening: Hardening | None = None, *, model_digest: bytes | None = None) -> HardenedShap:
    """A hardened version of an explainer of shap, which it holds from then on.

    Raises:
        RefusedError: another explainer of shap.
        ConfigurationTypeError: not an explainer of shap.
    """
    if not defined_in(type(native), "shap"):
        raise ConfigurationTypeError(f"expected an explainer of shap, got {type(native).__name__}")
    for base in type(native).__mro__:
        if base.__module__.startswith("shap.") and base.__name__ in SHAP:
            return SHAP[base.__name__].around(native, hardening, model_digest)
    raise RefusedError(
        f"expected one of shap's {', '.join(sorted(SHAP))}, got {type(native).__name__}, which cannot be hardened."
        " TreeExplainer explains forests and boosted trees, KernelExplainer any model"
    )
