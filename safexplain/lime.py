"""The names of lime, hardened: `from safexplain.lime import LimeTabularExplainer`, or with `lime.lime_tabular`."""

from types import SimpleNamespace

from safexplain.explain.aix360 import LIME
from safexplain.explain.libraries import drop_in

lime_tabular = SimpleNamespace(LimeTabularExplainer=LIME["LimeTabularExplainer"])
lime_image = SimpleNamespace(LimeImageExplainer=LIME["LimeImageExplainer"])
lime_text = SimpleNamespace(LimeTextExplainer=LIME["LimeTextExplainer"])

__all__ = [*sorted(LIME), "lime_image", "lime_tabular", "lime_text"]

__getattr__, __dir__ = drop_in(__name__, LIME)
