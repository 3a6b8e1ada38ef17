"""Statistics of attacks: ROC curves, exact intervals, and lower bounds on epsilon. No torch.

`roc` counts what scores find at each threshold, and limits rates exactly. For epsilon, `tradeoff` says what a mechanism
allows an attack, and which noise its errors refute; `bound_methods` are the ways from counted errors to a bound;
`lower_bounds` takes them from the scores or the errors of many runs, `one_run` from the right guesses of a single one,
and `detectable` says from which epsilon on they would find a training that spends more than is claimed.
One orientation everywhere: a higher score says "member" (or "trained on D"), which is the positive.
"""

from safexplain.verdict.stats.lower_bounds import (
    bound_epsilon,
    epsilon_from_errors,
    epsilon_lower_bound,
)
from safexplain.verdict.stats.one_run import one_run_lower_bound
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
