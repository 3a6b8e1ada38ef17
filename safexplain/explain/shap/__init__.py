"""Hardened explainers of the shap package, of which only hardened values leave.

Natively a SHAP explanation adds up to the output: base value plus values are what the model said about the instance, as
exactly as the arithmetic allows. So whoever gets both knows the model's confidence, on which membership inference works
best. A hardened explainer releases the values alone, hardened; no base value and no background.
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
        RefusedError: another explainer.
        ConfigurationTypeError: no explainer of shap.
    """
    if not defined_in(type(native), "shap"):
        raise ConfigurationTypeError(f"expected an explainer of shap, got {type(native).__name__}")
    for base in type(native).__mro__:
        if base.__module__.startswith("shap.") and base.__name__ in SHAP:
            return SHAP[base.__name__].around(native, hardening, model_digest)
    raise RefusedError(
        f"{type(native).__name__} of shap is not hardened: {', '.join(sorted(SHAP))} are."
        " TreeExplainer explains forests and boosted trees, KernelExplainer any model"
    )
