"""Alibi's own names, hardened: the same import from here, and the same code releases hardened explanations.

    from alibi.explainers import AnchorTabular   # before
    from safexplain.alibi import AnchorTabular   # after

Every explainer of Alibi whose answers can be hardened, made, fitted and asked as natively. `plot_ale` and Alibi's other
plots are its own: they draw what they are given.
"""

from __future__ import annotations

from typing import Any

from safexplain.explain.alibi import ALIBI
from safexplain.explain.drop_in import drop_in
from safexplain.explain.libraries import load_alibi

_PLOTS = ("plot_ale", "plot_pd", "plot_pd_variance", "plot_permutation_importance")

__all__ = [*sorted(ALIBI), *_PLOTS]


def _plots(name: str) -> Any:
    if name not in _PLOTS:
        raise AttributeError(name)
    return getattr(load_alibi().explainers, name)


__getattr__ = drop_in(__name__, ALIBI, _plots)


def __dir__() -> list[str]:
    return __all__
