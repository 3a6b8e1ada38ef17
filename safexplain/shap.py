"""The names of shap, hardened: the same import from here, and the same code releases hardened values.

    import shap                  # before
    from safexplain import shap  # after

`shap.TreeExplainer`, `shap.LinearExplainer` and `shap.KernelExplainer` are hardened. Other functions, such as
`shap.plots`, `shap.sample`, `shap.kmeans` and `shap.datasets`, are shap's own.
"""

from __future__ import annotations

from typing import Any

from safexplain.explain.libraries import drop_in, load
from safexplain.explain.shap import SHAP

_OWN = ("Cohorts", "Explanation", "datasets", "initjs", "kmeans", "links", "maskers", "plots", "sample", "summary_plot")

__all__ = [*sorted(SHAP), *_OWN]


def _own(name: str) -> Any:
    return getattr(load("shap"), name, None) if name in _OWN or name.endswith("_plot") else None


__getattr__, __dir__ = drop_in(__name__, SHAP, _own)
