"""Hardened AIX360: ProtoDash over public rows, and LIME whose answers hold only weights.

`protodash` and `lime` run the native explainers and fill new answers; here they have AIX360's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360.lime import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.aix360.protodash import HardenedProtoDash
from safexplain.explain.libraries import defined_in
from safexplain.explain.tables import TableExplainer
from safexplain.hardening.hardening import Hardening

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


def harden_aix360(native: object, hardening: Hardening | None = None, **options: Any) -> TableExplainer:
    """A hardened version of an AIX360 explainer, or of one of the `lime` package; `native` is not changed.

    Args:
        native: a `ProtodashExplainer` or a LIME explainer for tables, texts or images.
        hardening: None for `Hardening.recommended()`, ordered for tables, or `Hardening.ranked()` for ProtoDash.
        **options: further arguments of the hardened class: `public` (required) for ProtoDash, `bins` for tables.

    Raises:
        RefusedError: another explainer.
        ConfigurationTypeError: hardened already, no AIX360 explainer, or ProtoDash without `public`.
    """
    kind = type(native)
    if not defined_in(kind, "aix360", "lime"):
        raise ConfigurationTypeError(f"expected an AIX360 or LIME explainer, got {kind.__name__}")
    hardened: Any = AIX360.get(kind.__name__)
    if hardened is None or kind.__module__.partition(".")[0] not in ("aix360", "lime"):
        raise RefusedError(
            f"expected ProtoDash, or LIME for tables, texts or images, got {kind.__name__}, which cannot be hardened:"
            " docs/libraries.md gives the reason"
        )
    return cast("TableExplainer", hardened.around(native, hardening, **options))
