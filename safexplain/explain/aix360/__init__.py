"""Hardened AIX360.

`protodash` chooses from public rows, and `lime` fills new answers that hold only weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from safexplain.explain.aix360.lime import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.aix360.protodash import HardenedProtoDash
from safexplain.explain.tables import TableExplainer

__all__ = ["HardenedLimeImage", "HardenedLimeTabular", "HardenedLimeText", "HardenedProtoDash"]

LIME: Mapping[str, type[TableExplainer]] = MappingProxyType(
    {
        "LimeTabularExplainer": HardenedLimeTabular,
        "LimeImageExplainer": HardenedLimeImage,
        "LimeTextExplainer": HardenedLimeText,
    }
)
"""lime's name of an explainer -> the hardened class."""

AIX360: Mapping[str, type[TableExplainer]] = MappingProxyType({"ProtodashExplainer": HardenedProtoDash, **LIME})
"""AIX360's name of an explainer -> the hardened class."""
