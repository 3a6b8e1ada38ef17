"""Statistics of attacks; a higher score always means "member" (or "trained on D"). No torch."""

from safexplain.verdict.stats.lower_bounds import (
    bound_epsilon,
    epsilon_from_errors,
    epsilon_lower_bound,
    one_run_lower_bound,
)
from safexplain.verdict.stats.roc import RocCurve, auc_interval, clopper_pearson, roc, tpr_at_fpr

__all__ = [
    "RocCurve",
    "auc_interval",
    "bound_epsilon",
    "clopper_pearson",
    "epsilon_from_errors",
    "epsilon_lower_bound",
    "one_run_lower_bound",
    "roc",
    "tpr_at_fpr",
]
