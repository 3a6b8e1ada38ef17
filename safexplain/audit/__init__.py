"""Membership attacks on explanations: population -> reference models -> signals -> attacks -> verdict.

`audit` takes any explanation callable; it knows nothing of hardening.
"""

from safexplain.audit.cache import ModelCache
from safexplain.audit.collect import collect_signals
from safexplain.audit.policy import Policy
from safexplain.audit.pools import side_by_side
from safexplain.audit.population import Population
from safexplain.audit.protocol import AttackResult, AuditResult, audit, certify
from safexplain.audit.queries import Queries
from safexplain.audit.recipe import Recipe
from safexplain.audit.shadows import EstimatorModule, Shadows, train_shadows
from safexplain.audit.signals import Signals
from safexplain.audit.utility import Utility, utility

__all__ = [
    "AttackResult",
    "AuditResult",
    "EstimatorModule",
    "ModelCache",
    "Policy",
    "Population",
    "Queries",
    "Recipe",
    "Shadows",
    "Signals",
    "Utility",
    "audit",
    "certify",
    "collect_signals",
    "side_by_side",
    "train_shadows",
    "utility",
]
