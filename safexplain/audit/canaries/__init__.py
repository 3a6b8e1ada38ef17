"""Canaries: whether a differentially private training keeps its claimed epsilon when one record is substituted.

Models are trained on D and on D', side by side (`batched`) or by a user's function (`trainer`), and scored;
`safexplain.verdict.canaries` judges the scores. `WhiteBox` watches the steps of a training instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safexplain.audit.canaries.run import run_canaries
from safexplain.audit.canaries.setting import Setting, preset
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.audit.canaries.white_box import WhiteBox, add_noise
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.result import load_finding

if TYPE_CHECKING:
    from safexplain.audit.canaries.finetuning import audit_training

__all__ = [
    "CanaryProbe", "Claim", "Setting", "WhiteBox", "add_noise", "audit_training", "load_finding", "preset",
    "run_canaries",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import `audit_training` on first use, as importing Opacus takes seconds."""
    if name == "audit_training":
        from safexplain.audit.canaries.finetuning import audit_training

        return audit_training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
