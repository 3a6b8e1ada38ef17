"""AIX360's own names, hardened: `from safexplain.aix360 import ProtodashExplainer`; also LIME, as `safexplain.lime`."""

from safexplain.explain.aix360 import AIX360
from safexplain.explain.libraries import drop_in

__all__ = sorted(AIX360)

__getattr__, __dir__ = drop_in(__name__, AIX360)
