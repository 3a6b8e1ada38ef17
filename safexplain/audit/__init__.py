"""Membership attacks on explanations, from a model to a verdict. `run` is the whole way:

    population, recipe -> references (train, fine-tune) -> collect, queries (ask) -> signals -> splits -> attacks,
    controls -> certify (judge) -> utility, root_cause, ablation (describe) -> outcome, report (files)

`storage` keeps on disk what does not fit in memory, and what is finished. `holdout_uses` counts verdicts on the same
examples, `canaries` audits trainings with differential privacy. An explainer is any callable, as nothing here knows the
package's own or its hardening.
"""

from safexplain.audit.certify import certify
from safexplain.audit.collect import collect_signals
from safexplain.audit.outcome import AuditRun
from safexplain.audit.population import Population
from safexplain.audit.queries import Dither
from safexplain.audit.recipe import Recipe
from safexplain.audit.references.cache import ModelCache
from safexplain.audit.references.fine_tuning import FineTune, fine_tune
from safexplain.audit.references.shadows import Shadows, train_shadows
from safexplain.audit.run import AuditOptions, audit
from safexplain.audit.signals import Signals
from safexplain.audit.utility import utility
from safexplain.verdict.policy import Policy

__all__ = [
    "AuditOptions",
    "AuditRun",
    "Dither",
    "FineTune",
    "ModelCache",
    "Policy",
    "Population",
    "Recipe",
    "Shadows",
    "Signals",
    "audit",
    "certify",
    "collect_signals",
    "fine_tune",
    "train_shadows",
    "utility",
]
