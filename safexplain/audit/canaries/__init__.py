"""Canaries: does a differentially private training keep the epsilon that it claims, if one record is substituted?

craft a canary -> train runs with the record, and with the canary in its place -> scores -> lower bound -> verdict.
"""

from safexplain.audit.canaries.audit_training import audit_training
from safexplain.audit.canaries.canary import GradientCanary, RecordCanary
from safexplain.audit.canaries.one_run import run_once
from safexplain.audit.canaries.plot import plot_canaries
from safexplain.audit.canaries.presets import preset
from safexplain.audit.canaries.run import run_canaries
from safexplain.audit.canaries.setting import Setting
from safexplain.audit.canaries.trainer.probe import CanaryProbe
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.one_run import OneRunResult
from safexplain.verdict.canaries.read import load_finding
from safexplain.verdict.canaries.result import CanaryResult, Scores, judge

__all__ = [
    "CanaryProbe",
    "CanaryResult",
    "Claim",
    "GradientCanary",
    "OneRunResult",
    "RecordCanary",
    "Scores",
    "Setting",
    "audit_training",
    "judge",
    "load_finding",
    "plot_canaries",
    "preset",
    "run_canaries",
    "run_once",
]
