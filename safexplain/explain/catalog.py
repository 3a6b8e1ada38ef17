"""The explanation methods as rows of a table: what each one is, where it comes from and what it needs.

A row holds facts only. `safexplain.explain.wrap` turns rows into the Hardened classes, and whoever tunes or audits
reads the same rows for options to search and for arguments that a method cannot do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from safexplain.errors import ConfigurationError
from safexplain.explain.captum.layer_rows import LAYER_ROWS
from safexplain.explain.captum.rows import ROWS
from safexplain.explain.row import Row

__all__ = ["CATALOG", "REFUSED", "find_row"]

CATALOG: Mapping[str, Row] = MappingProxyType({row.name: row for row in (*ROWS, *LAYER_ROWS)})
"""Every method, by name."""

_NO_METHOD = "it is an abstract base without a method of its own: harden an explainer made from it"
_TEXT = "its result holds the tokens of a text that the model generated, beside the attributions"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "Attribution": _NO_METHOD,
        "GradientAttribution": _NO_METHOD,
        "PerturbationAttribution": _NO_METHOD,
        "LayerAttribution": _NO_METHOD,
        "NeuronAttribution": _NO_METHOD,
        "DataLoaderAttribution": "it explains a metric over a whole data set and has no `inputs` to tie noise to",
        "LLMAttribution": _TEXT,
        "LLMGradientAttribution": _TEXT,
        "RemoteLLMAttribution": _TEXT,
    }
)
"""Captum's explainers that `harden` refuses -> why."""


def find_row(name: str) -> Row:
    """The row of a method, whatever the spelling: "IG", "integrated_gradients", "IntegratedGradients",
    "HardenedIG".

    Raises:
        ConfigurationError: no such method; the message lists all.

    >>> find_row("integrated-gradients").name, find_row("smoothgrad").name, find_row("Grad-CAM++").name
    ('IG', 'SmoothGrad', 'GradCAMPlusPlus')
    """
    names = {_plain(row.name): row for row in CATALOG.values()}
    natives = {_plain(row.source.__name__): row for row in CATALOG.values() if row.nt_type is None and row.in_base}
    wanted = _plain(name)
    for key in (wanted, wanted.removeprefix("hardened")):
        if row := (natives | names).get(key):
            return row
    raise ConfigurationError(f"expected one of {', '.join(CATALOG)}; got {name!r}")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower().replace("++", "plusplus") if character.isalnum())
