"""Statistics of attacks: ROC curves, exact intervals, and lower bounds on epsilon. No torch.

One orientation everywhere: a higher score says "member" (or "trained on D"), which is the positive.
"""

from safexplain.verdict.stats.lower_bounds import (
    LowerBound,
    bound_epsilon,
    epsilon_ceiling,
    epsilon_from_errors,
    epsilon_lower_bound,
)
from safexplain.verdict.stats.one_run import one_run_ceiling, one_run_lower_bound
from safexplain.verdict.stats.roc import RateAtFpr, RocCurve, auc_interval, clopper_pearson, roc, tpr_at_fpr

__all__ = [
    "LowerBound",
    "RateAtFpr",
    "RocCurve",
    "auc_interval",
    "bound_epsilon",
    "clopper_pearson",
    "epsilon_ceiling",
    "epsilon_from_errors",
    "epsilon_lower_bound",
    "one_run_ceiling",
    "one_run_lower_bound",
    "roc",
    "tpr_at_fpr",
]
