"""Captum's own names, hardened: `from safexplain.captum import LayerGradCam`.

Every class of `captum.attr` with a row in the catalog; in place of a NoiseTunnel, use `HardenedSmoothGrad`,
`HardenedVarGrad` or `harden`.
"""

from safexplain.explain.catalog import CATALOG, REFUSED
from safexplain.explain.hardened import HARDENED
from safexplain.explain.libraries import drop_in

_CLASSES = {
    row.native.__name__: HARDENED[row.name] for row in CATALOG.values() if row.library == "captum" and not row.nt_type
}
_TUNNEL = {"NoiseTunnel": "it is several methods: use HardenedSmoothGrad, HardenedVarGrad or harden(...)"}

__all__ = sorted(_CLASSES)

__getattr__, __dir__ = drop_in(__name__, _CLASSES, refused={**REFUSED, **_TUNNEL})
