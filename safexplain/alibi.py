"""Alibi's own names, hardened: the same import from here, and the same code releases hardened explanations.

    from alibi.explainers import AnchorTabular   # before
    from safexplain.alibi import AnchorTabular   # after

Every explainer of Alibi whose answers can be hardened, with its native interface.
"""

from safexplain.explain.alibi import ALIBI, REFUSED
from safexplain.explain.libraries import drop_in

__all__ = sorted(ALIBI)

__getattr__, __dir__ = drop_in(__name__, ALIBI, refused=REFUSED)
