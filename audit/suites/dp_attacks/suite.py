"""Does DP training stop the attacks? Paper A's section 5.5, Tables 8 and 9, with epsilon under both adjacencies.

Models are trained with epsilon .5, 1, 2, 8 and without privacy, by the recipe of "Explaining the Model, Protecting Your
Data" (Huang et al.): AUTO-S clipping with gamma .01, Adam at 5e-3 (its Table 4; its code has 5e-4), 30 epochs at
q = .1, delta 1e-5, epsilon for add/remove. Each is trained on the half of the pool that its coin flips chose and takes
its turn as the target; the others are its references. Data: CIFAR-10, GTSRB (one frame a track) and 100 classes of
Tiny ImageNet. (epsilon, delta) bounds every attack that decides about one coin flip by TPR <= min(e^epsilon FPR +
delta, 1 - e^-epsilon (1 - FPR - delta)) (Kairouz, Oh and Viswanath 2015, 1311.0776), the mechanism's trade-off curve
more tightly: the lower limit of no measured rate may be above what is promised at the upper limit of its FPR. More:
“Method” in page.md.

    python -m audit.suites.dp_attacks [--on cifar10|gtsrb|tinyimagenet] [--explained N] [--quick]
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ...shared.run import Parts, Progress, Run
from . import attacks, heads
from .plan import DELTA, SOURCES, Size
from .released import Released

LABEL = "LabelLikelihoodRatio on label"
LEAK = 0.55
"""Without privacy, the AUC of L1 must be above this for a leak to be there that could be stopped."""


def measure(released: Released, size: Size, stored: Parts, progress: Progress) -> dict[str, Any]:
    """Every explainer at every epsilon."""
    cells: dict[str, Any] = {}
    for (explainer, name), signals in released.signals.items():
        what = [size.resamples, attacks.digest(signals)]
        means = stored.get(what, lambda s=signals: attacks.scalar(s, size.resamples))
        cells[f"{explainer} {name}"] = {
            "examples": len(signals),
            "non_members": int((~signals.membership).sum(1).min()),
            "means": means,
        }
        progress("attacking", len(cells), len(released.signals))
    accuracy = {
        name: {side: {"mean": float(np.mean(v)), "sd": float(np.std(v, ddof=1))} for side, v in sides.items()}
        for name, sides in released.accuracy.items()
    }
    planned = {b.name: b.to_dict() | {"allowed": attacks.allowed(b, size)} for b in released.budgets}
    return {
        "about": released.about,
        "budgets": planned,
        "accuracy": accuracy,
        "faithfulness": released.faithfulness,
        "cells": cells,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """Targets that a task's results miss, in words."""
    wrong = []
    for name, each in found["cells"].items():
        explainer, _, epsilon = name.partition(" ")
        if epsilon == "inf" and each["means"]["LikelihoodRatio on l1"]["auc"]["high"] < LEAK:
            wrong.append(f"{explainer}: no leak that could be stopped without privacy")
        wrong += [f"{name}: {line}" for line in attacks.above_promise(each, found["budgets"][epsilon])]
    return wrong


def sentences(task: str, found: dict[str, Any]) -> list[str]:
    """What the cells say together."""
    said = []
    for explainer in dict.fromkeys(c.split()[0] for c in found["cells"]):
        each = []
        for name in found["budgets"]:
            if cell := found["cells"].get(f"{explainer} {name}"):
                l1, label = (cell["means"][a]["auc"]["value"] for a in ("LikelihoodRatio on l1", LABEL))
                each.append(f"epsilon {name}: L1 {l1:.3f}, label alone {label:.3f}")
        said.append(f"{task}, {explainer}, AUC: {'; '.join(each)}.")
    return said


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    run = Run(
        "dp_attacks", __doc__, argv, on={"choices": tuple(SOURCES), "help": "data (default: all)"},
        explained={"type": int, "help": "images on which heads are attacked (default 800)"},
    )  # fmt: skip
    options, size, wrong = run.options, heads.QUICK if run.quick else Size(), list[str]()
    size = replace(size, explained=options.explained or size.explained)
    for data in [options.on] if options.on else SOURCES:
        name = f"heads {data}"
        found = measure(heads.run(size, options, data), size, run.parts(__package__), Progress(f"{name}: "))
        found["sentences"] = sentences(name, found)
        found["targets_missed"] = [] if run.quick else missed(found)
        wrong += [f"{name}: {line}" for line in found["targets_missed"]]
        found |= {"size": asdict(size), "run": run.provenance()}
        run.write(delta=DELTA, results=run.earlier() | {name: found})
        print("\n".join(found["sentences"]), flush=True)
    return run.end(wrong)
