"""The names of shap, hardened: `from safexplain import shap`; plots, maskers and datasets are shap's own."""

from __future__ import annotations

from typing import Any

from safexplain.explain.libraries import drop_in, load
from safexplain.explain.shap import SHAP

_OWN = ("Cohorts", "Explanation", "datasets", "initjs", "kmeans", "links", "maskers", "plots", "sample", "summary_plot")

__all__ = [*sorted(SHAP), *_OWN]


def _own(name: str) -> Any:
    return getattr(load("shap"), name, None) if name in _OWN or name.endswith("_plot") else None


__getattr__, __dir__ = drop_in(__name__, SHAP, _own)
