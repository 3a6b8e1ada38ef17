"""What a hardened explainer of shap answers with: a `shap.Explanation` for shap's plots, imported when there is one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import shap

from safexplain.errors import RefusedError

__all__ = ["HardenedExplanation"]


class HardenedExplanation(shap.Explanation):  # type: ignore[misc]
    """A `shap.Explanation` of hardened values, a copy of the rows asked about as `data`, and the names of the features.

    shap's bar, beeswarm, heatmap, scatter and violin plots draw it, of several outputs one at a time: `[..., 1]`.
    Waterfall and force plots add values up from a base value to the model's output. There is no base value here, and
    sizes of hardened values would tell a lie: they are a RefusedError.
    """

    @shap.Explanation.base_values.getter  # type: ignore[untyped-decorator]
    def base_values(self) -> Any:
        """None, or what you have set; RefusedError where a plot would start from it."""
        if self._s.base_values is None and _is_drawn():
            raise RefusedError(
                "this plot adds values up from a base value to the model's output. A hardened explanation has no base"
                " value, and its values say which features count, not by how much: draw shap.plots.bar(explanation), or"
                " name the reasons by TopKSet.reasons or Features.reasons"
            )
        return self._s.base_values

    @shap.Explanation.values.getter  # type: ignore[untyped-decorator]
    def values(self) -> Any:
        """The hardened values; RefusedError where a plot would draw those of several outputs at once."""
        values, rows = self._s.values, self._s.data
        if rows is not None and np.ndim(values) > np.ndim(rows) and _is_drawn():
            raise RefusedError(
                f"expected the values of one output, got those of {values.shape[-1]}: draw explanation[..., 1] for"
                " class 1, or ask for a class, explainer(X, target=1)"
            )
        return values

    def __copy__(self) -> Any:
        made = super().__copy__()  # of shap's own class
        made.__class__ = HardenedExplanation
        return made


def _is_drawn() -> bool:
    """Whether a plot of shap reads the property that asks this."""
    return bool(sys._getframe(2).f_globals.get("__name__", "").startswith("shap.plots."))
