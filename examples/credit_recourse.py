"""Recourse for rejected applicants, end to end: a private model, answers, and a budget for those who cannot retrain.

    python examples/credit_recourse.py [heloc.npz]

HELOC (x (n, 23), y 1 = repaid, names) is FICO's; without a file, scikit-learn's breast cancer data stand in.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from safexplain.ledger import BudgetExhausted, Ledger
from safexplain.recourse import L1, Constraints, DPModelRecourse, LaplaceScore, MeteredRecourse

if len(sys.argv) > 1:
    file = np.load(sys.argv[1])
    x, y, names = file["x"].astype(float), file["y"], tuple(str(n) for n in file["names"])
    top = [100, 900, 400, 400, 110, 20, 20, 100, 90, 10, 10, 110, 20, 100, 30, 70, 70, 250, 500, 50, 25, 20, 100]
    fixed, epsilon, good = ("ExternalRiskEstimate", "MSinceOldestTradeOpen"), 1.0, "+++++--+++++--+--------"
else:
    data = load_breast_cancer()
    x, y, names = data.data, data.target, tuple(str(n) for n in data.feature_names)
    top = [40, 50, 250, 3000, 0.2, 0.4, 0.6, 0.3, 0.4, 0.1, 4, 6, 30, 700, 0.05, 0.2, 0.5, 0.1, 0.1, 0.05,
           50, 70, 350, 5000, 0.3, 1.2, 1.5, 0.4, 0.8, 0.3]  # fmt: skip
    fixed, epsilon, good = ("mean symmetry", "worst symmetry"), 4.0, "-" * 30  # 284 records are few
x = np.clip(2 * x / np.array(top) - 1, -1, 1)  # by public ranges, never by those of the data
rng = np.random.default_rng(0)
train, asks = np.array_split(rng.permutation(len(x)), 2)
# A model trained with differential privacy: any number of answers.
allowed = Constraints(names, lower=-1.0, upper=1.0, immutable=fixed)
recourse = DPModelRecourse(epsilon=epsilon, norm_bound=4.0, cost=L1(), constraints=allowed)
recourse.fit(x[train], y[train])
native = LogisticRegression(max_iter=5000).fit(x[train], y[train])
answer = recourse.explain(x[asks], infeasible="mark")
right = (answer.favourable == y[asks]).mean()
print(f"accuracy: {right:.1%} private, {native.score(x[asks], y[asks]):.1%} without privacy")
rejected = np.flatnonzero(~answer.favourable & answer.valid)
print(f"{(~answer.favourable).sum()} rejected, {len(rejected)} with recourse")
change = answer.change[rejected[0]]
for i in np.flatnonzero(change)[:3]:
    print(f"  {names[i]}: {change[i] * top[i] / 2:+.3g}")
print(recourse.guarantee)

# A model that cannot be trained anew: each answer costs epsilon, the ledger counts.
weights = [0.1 if sign == "+" else -0.1 for sign in good]  # which way is better: textbook knowledge, not these data
score = LaplaceScore(epsilon=0.25, public_weights=weights, norm_bound=4.0, constraints=allowed)
Path("budget.db").unlink(missing_ok=True)  # of an earlier run of this script; never in production
ledger = Ledger("sqlite:///budget.db", epsilon=1.0, period="month", total_epsilon=20.0)
metered = MeteredRecourse(score.fit(x[train], y[train]), ledger)
first = metered.explain(x[asks[0]], principal="applicant 1", infeasible="mark")
again = metered.explain(x[asks[0]], principal="applicant 1", infeasible="mark")
print(f"asked twice: {ledger.spent('applicant 1'):.2f} spent, same answer: {np.array_equal(first.score, again.score)}")
try:
    for row in x[asks[1:]]:
        metered.explain(row, principal="applicant 1", infeasible="mark")
except BudgetExhausted as error:
    print(f"refused after {ledger.account('applicant 1').charges} answers; renews: {error.renews is not None}")
