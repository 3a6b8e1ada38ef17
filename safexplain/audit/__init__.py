"""Membership attacks on explanations: population -> reference models -> signals -> attacks -> verdict.

`audit` takes any explanation callable; it knows nothing of hardening.
"""

from safexplain.audit.certify import audit, certify
from safexplain.audit.collect import collect_signals
from safexplain.audit.population import Population
from safexplain.audit.queries import Queries
from safexplain.audit.recipe import Recipe
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.shadows import EstimatorModule, Shadows, train_shadows
from safexplain.audit.signals import Signals, side_by_side
from safexplain.audit.utility import Utility, utility
from safexplain.verdict.judgement import AttackResult, AuditResult
from safexplain.verdict.policy import Policy

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
