"""Canaries: whether a differentially private training keeps its claimed epsilon when one record is substituted."""

from __future__ import annotations

from safexplain.audit.canaries.probe import CanaryProbe, audit_training
from safexplain.audit.canaries.run import Setting, preset, run_canaries
from safexplain.audit.canaries.trainer import WhiteBox, add_noise
from safexplain.verdict.canaries.result import Claim, load_finding

__all__ = [
    "CanaryProbe", "Claim", "Setting", "WhiteBox", "add_noise", "audit_training", "load_finding", "preset",
    "run_canaries",
]  # fmt: skip
