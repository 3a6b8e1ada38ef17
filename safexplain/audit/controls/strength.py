"""Whether the attacks were as strong as they can be. Where these fail, nothing is certified, but a leak that was found
stands.

    references           whether reference models with and without the scored examples are there
    recipe               whether what the target releases looks like what the reference models release
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats as distributions

from safexplain.audit.controls.differences import RISK
from safexplain.audit.signals import Signals
from safexplain.verdict.evidence import Control

FEWEST_BOTH_SIDES = 0.8
"""Share of the scored examples that must have reference models with and without them; four references give 7/8."""

FEWEST_TO_COMPARE = 4
"""Reference models below which their recipe is not compared with the target's."""


def reference_coverage(
    signals: Signals, references: Sequence[int] | NDArray[np.int64], scored: NDArray[np.bool_]
) -> Control:
    """Whether most scored examples have reference models on both sides; likelihood ratios say nothing about others.

    Args:
        signals: of the target and of its reference models.
        references: rows of the signals.
        scored: (n,) bool.
    """
    if len(references) < 2:
        return Control("references", None, "there are no reference models", {})
    inside = signals.membership[np.asarray(references)][:, scored]
    share = float((inside.any(0) & ~inside.all(0)).mean())
    says = f"{share:.0%} of the scored examples have reference models both with and without them"
    return Control("references", share < FEWEST_BOTH_SIDES, says, {"share": share})


def recipe_fit(
    signals: Signals,
    target: int,
    references: Sequence[int] | NDArray[np.int64],
    scored: NDArray[np.bool_],
    names: Sequence[str] | None = None,
) -> Control:
    """Whether the target's losses look like those of reference models, trained by the same recipe as they should be.

    Trained alike, the target's mean log loss over its members is one more draw of what the reference models have over
    theirs, and so for non-members. It fails where the target's lies further from theirs than a t-test at `RISK` allows
    and by more than a tenth (in natural logarithms): a leak found is a leak, but a certificate would rest on attackers
    who know less than they may.

    Args:
        signals: what was released.
        target: row of the signals.
        references: rows of its reference models.
        scored: (n,) bool.
        names: of the signals that are judged, as the file has them; None: all.
    """
    name, others = "recipe", np.asarray(references, dtype=np.int64)
    if "loss" not in signals.values or len(others) < FEWEST_TO_COMPARE:
        return Control(name, None, "without losses, or with few reference models, recipes cannot be compared", {})
    logs = np.log(np.maximum(signals.values["loss"][:, scored].astype(np.float64), 1e-12))
    inside = signals.membership[:, scored]
    apart = []
    for side in (inside, ~inside):
        means = (logs * side).sum(1) / np.maximum(side.sum(1), 1)
        mine, theirs = means[target], means[others]
        spread = theirs.std(ddof=1) * np.sqrt(1 + 1 / len(theirs))
        reach = max(distributions.t.isf(RISK / 4, len(theirs) - 1) * spread, 0.1)
        apart.append((abs(mine - theirs.mean()) / reach, mine - theirs.mean()))
    worst, by = max(apart)
    what = f"the target's losses are {np.exp(by):.2g} times those of the reference models"
    says = f"{what}: they do not repeat its recipe" if worst > 1 else f"{what}, within what recipes like theirs give"
    return Control(name, bool(worst > 1), says, {"ratio": float(np.exp(by)), "of_tolerated": float(worst)})
