"""The reference pages, one for each explainer, attack and mechanism, made when the site is built (`docs/hooks.py`).

`explainers`, `attacks` and `mechanisms` each give pages from the code and from audit/results; `parts` has what they
share. A new row of the catalog, a new attack or a new class in a slot of `Hardening` has a page without anybody writing
one; its picture is made by docs/figures/make_pictures.py, and its figures by audit.suites.explainers.
"""

from collections.abc import Mapping

from .attacks import attack_pages
from .explainers import explainer_pages, thumbnails
from .mechanisms import mechanism_pages
from .parts import ReferencePage

__all__ = ["ReferencePage", "sections", "thumbnails"]


def sections() -> Mapping[str, list[ReferencePage]]:
    """Folder below docs/reference -> its pages, the overview first."""
    return {"explainers": explainer_pages(), "attacks": attack_pages(), "mechanisms": mechanism_pages()}
