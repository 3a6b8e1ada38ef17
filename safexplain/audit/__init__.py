"""Membership attacks on explanations: population -> reference models -> signals -> attacks -> verdict.

`audit` takes any explanation callable; it knows nothing of hardening.
"""

from safexplain.audit.cache import ModelCache
from safexplain.audit.population import Population
from safexplain.audit.protocol import AttackResult, AuditResult, Policy, audit
from safexplain.audit.recipe import Recipe
from safexplain.audit.shadows import EstimatorModule, Shadows, train_shadows
from safexplain.audit.signals import Signals, collect_signals, side_by_side
from safexplain.audit.utility import Utility, utility

__all__ = [
    "AttackResult",
    "AuditResult",
    "EstimatorModule",
    "ModelCache",
    "Policy",
    "Population",
    "Recipe",
    "Shadows",
    "Signals",
    "Utility",
    "audit",
    "collect_signals",
    "side_by_side",
    "train_shadows",
    "utility",
]
