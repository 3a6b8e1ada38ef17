"""Hardened AIX360: ProtoDash over public rows, and LIME whose answers hold only weights.

`protodash` and `lime` run the native explainers and fill answers made anew; here they are by AIX360's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from safexplain.errors import ConfigurationTypeError, RefusedError
from safexplain.explain.aix360.lime import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.aix360.protodash import HardenedProtoDash
from safexplain.explain.libraries import defined_in
from safexplain.explain.tables import OfTables
from safexplain.hardening.hardening import Hardening

__all__ = ["HardenedLimeImage", "HardenedLimeTabular", "HardenedLimeText", "HardenedProtoDash"]

LIME: Mapping[str, type[OfTables]] = MappingProxyType(
    {
        "LimeTabularExplainer": HardenedLimeTabular,
        "LimeImageExplainer": HardenedLimeImage,
        "LimeTextExplainer": HardenedLimeText,
    }
)
"""lime's name of an explainer -> the hardened class."""

AIX360: Mapping[str, type[OfTables]] = MappingProxyType({"ProtodashExplainer": HardenedProtoDash, **LIME})
"""AIX360's name of an explainer -> the hardened class."""


def harden_aix360(native: object, hardening: Hardening | None = None, **options: Any) -> OfTables:
    """A hardened version of an AIX360 explainer, or of one of the `lime` package; `native` is left as it is.

    Args:
        native: a `ProtodashExplainer` or a LIME explainer for tables, texts or images.
        hardening: None for `Hardening.recommended()`, of tables with the order, or `Hardening.ranked()` for ProtoDash.
        **options: what the hardened class takes beside `hardening`: `public` (needed) for ProtoDash, `bins` for tables.

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
            f"{kind.__name__} is not supported: ProtoDash, and LIME for tables, texts and images, give answers that"
            " hardening makes fit to leave. docs/libraries.md gives the reason for each of the others"
        )
    return cast("OfTables", hardened.around(native, hardening, **options))
