"""Controls of the attacks' strength: what they say stops certificates, not leaks.

references   whether reference models with and without the scored examples are there
recipe       whether the target's losses look like those of the reference models
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.attacks.scoring import Assignment
from safexplain.audit.controls import RISK
from safexplain.audit.signals import Signals
from safexplain.verdict.evidence import Control

FEWEST_BOTH_SIDES = 0.8
"""Share of the scored examples that must have reference models with and without them; four references give 7/8."""

FEWEST_TO_COMPARE = 4
"""Reference models below which their recipe is not compared with the target's."""


def reference_coverage(signals: Signals, to: Assignment, scored: NDArray[np.bool_]) -> Control:
    """Whether most scored examples have reference models on both sides; likelihood ratios say nothing about others."""
    both = np.zeros(signals.examples, dtype=bool)
    for target in np.unique(to.target):
        inside = signals.membership[to.references(signals, target, target)]
        mine = to.target == target
        both[mine] = (inside.any(0) & ~inside.all(0))[mine]
    if len(signals.models) < 3:
        return Control("references", None, "there are no reference models", {})
    share = float(both[scored].mean())
    says = f"{share:.0%} of the scored examples have reference models both with and without them"
    return Control("references", share < FEWEST_BOTH_SIDES, says, {"share": share})


def recipe_fit(signals: Signals, to: Assignment, scored: NDArray[np.bool_]) -> Control:
    """Whether the target's losses look like those of reference models, trained by the same recipe as they should be.

    Trained alike, the target's mean log loss over its members is one more draw of what the reference models have over
    theirs, and so for non-members. It fires where the target's lies further from theirs than a t-test at `RISK` allows
    and by more than a tenth (in natural logarithms): a leak found is a leak, but a certificate would rest on attackers
    who know less than they may.

    Args:
        signals: with the signal `loss`; without it the control is not run.
        to: targets of the examples; the control looks at a single target only.
        scored: (n,) bool.
    """
    name, targets = "recipe", np.unique(to.target)
    others = to.references(signals, int(targets[0]), int(targets[0]))
    if len(targets) > 1:
        return Control(name, None, "targets take turns, and each is the others' reference", {})
    if "loss" not in signals.values or len(others) < FEWEST_TO_COMPARE:
        return Control(name, None, "without losses, or with few reference models, recipes cannot be compared", {})
    logs = np.log(np.maximum(signals.values["loss"][:, scored].astype(np.float64), 1e-12))
    inside = signals.membership[:, scored]
    apart = []
    for side in (inside, ~inside):
        means = (logs * side).sum(1) / np.maximum(side.sum(1), 1)
        mine, theirs = means[targets[0]], means[others]
        spread = theirs.std(ddof=1) * np.sqrt(1 + 1 / len(theirs))
        reach = max(distributions.t.isf(RISK / 4, len(theirs) - 1) * spread, 0.1)
        apart.append((abs(mine - theirs.mean()) / reach, mine - theirs.mean()))
    worst, by = max(apart)
    what = f"the target's losses are {np.exp(by):.2g} times those of the reference models"
    says = f"{what}: they do not repeat its recipe" if worst > 1 else f"{what}, within what recipes like theirs give"
    return Control(name, bool(worst > 1), says, {"ratio": float(np.exp(by)), "of_tolerated": float(worst)})
