"""Alibi's own names, hardened, with its native interface: `from safexplain.alibi import AnchorTabular`."""

from safexplain.explain.alibi import ALIBI, REFUSED
from safexplain.explain.libraries import drop_in

__all__ = sorted(ALIBI)

__getattr__, __dir__ = drop_in(__name__, ALIBI, refused=REFUSED)
