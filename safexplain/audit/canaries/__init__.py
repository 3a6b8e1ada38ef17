"""Canaries: does a differentially private training keep the epsilon that it claims, if one record is substituted?

craft a canary -> train runs with the record, and with the canary in its place -> scores -> lower bound -> verdict.
"""

from safexplain.audit.canaries.canary import GradientCanary, RecordCanary
from safexplain.audit.canaries.claim import Claim
from safexplain.audit.canaries.one_run import run_once
from safexplain.audit.canaries.one_run_result import OneRunResult
from safexplain.audit.canaries.plot import plot_canaries
from safexplain.audit.canaries.presets import preset
from safexplain.audit.canaries.probe import CanaryProbe
from safexplain.audit.canaries.read import load_finding
from safexplain.audit.canaries.result import CanaryResult, judge
from safexplain.audit.canaries.run import run_canaries
from safexplain.audit.canaries.scores import Scores
from safexplain.audit.canaries.setting import Setting

__all__ = [
    "CanaryProbe",
    "CanaryResult",
    "Claim",
    "GradientCanary",
    "OneRunResult",
    "RecordCanary",
    "Scores",
    "Setting",
    "judge",
    "load_finding",
    "plot_canaries",
    "preset",
    "run_canaries",
    "run_once",
]
