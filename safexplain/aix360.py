"""AIX360's own names, hardened: the same import from here, and the same code releases hardened explanations.

    from aix360.algorithms.protodash import ProtodashExplainer  # before
    from safexplain.aix360 import ProtodashExplainer            # after

ProtoDash returns rows of the set that it chooses from, so `ProtodashExplainer(public=rows)` takes public rows. LIME of
AIX360 is here as in `safexplain.lime`.
"""

from safexplain.explain.aix360 import AIX360
from safexplain.explain.libraries import drop_in

__all__ = sorted(AIX360)

__getattr__, __dir__ = drop_in(__name__, AIX360)
