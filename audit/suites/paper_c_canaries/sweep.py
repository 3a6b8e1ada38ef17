"""Paper C's Figures 5 and A1 to A5: what its audits depend on, in one sweep over heads on features of CIFAR-10.

"Beyond Membership" (Pradhan et al., 2511.21804). The training is that of Figure 3 (500 images, DP-SGD, T = 500, C = 2,
learning rate .001, epsilon 10 under substitution at delta 1e-5), but for what a figure varies:

    5    number of runs R, at q = 1, 1/4 and 1/16: the first R of the same trainings
    A1   accuracy of models that were trained with a gradient canary or a crafted input, q = 1
    A2   clip bound C, q = 1
    A3   steps T = 500 and 2,500, q = 1/16
    A4   learning rate, q = 1
    A5   epsilon under substitution over that under add/remove, by accounting alone

The paper prints the values of C and of the learning rate in its legends alone, which are pictures; those here are ours.
By default the head has one logit (cats and dogs), A1 ten classes; there are 400 runs of each cell once, for Figure 5
600, three times, at q = 1/4 and 1/16. `--full` is the paper's: ten classes, 2,500 runs and three repeats of everything,
all rates. Figures that are not asked for keep their earlier results.

    python -m audit.suites.paper_c_canaries.sweep [--figure 5|A1|A2|A3|A4|A5 ...] [--device cuda] [--full] [--quick]
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from safexplain._privacy_loss import epsilons, group_privacy_epsilon
from safexplain.verdict.canaries.result import Scores, judge

from ...shared.run import (
    Parts,
    concluded,
    destination,
    earlier,
    finish,
    parser,
    provenance,
    rounded,
    table,
    write_json,
)
from . import images
from .figure2 import highest_over_thresholds
from .images import Images, Sets
from .rejudge import rejudge
from .runs import BOUNDING, add_sizes, centred, run, show
from .tasks import DELTA, EPSILON, Adversary, Task, Training, scored, scores_of
from .utility import accuracies
from .work import estimated

SCENARIOS = ("gradient", "crafted", "mislabelled", "natural")
PUBLISHED = {
    "5": "With few runs the leakage is underestimated; at low sample rates it has not converged with 2,500 (7).",
    "A1": "Minimal difference in test accuracy between models trained with the target record, with gradient canaries"
    " and with crafted inputs, means of 5 models, q = 1 (A.1).",
    "A2": "Crafted inputs and natural canaries lose their effectiveness as C increases, gradient and mislabelled ones"
    " less (A.2, q = 1).",
    "A3": "With 2,500 steps crafted inputs and natural canaries lose their efficacy, most at later steps (A.2, q ="
    " 1/16).",
    "A4": "Audits with canaries in input space are affected by the learning rate (A.2, q = 1).",
    "A5": "At the same delta, epsilon under substitution can be more than twice that under add/remove, at large sample"
    " rates and low noise (A.3).",
}
LR, CLIP, STEPS = 0.001, 2.0, 500
ARMS = ("target record", "gradient canary", "crafted input")


@dataclass(frozen=True)
class Size:
    """How large a sweep is.

    Args:
        images: which, and through what.
        classes: of the head; 2: one logit.
        runs: of a cell of A2 to A4.
        repeats: likewise.
        counted: R of Figure 5; the last one is trained.
        counted_repeats: of it.
        models: of an arm of A1.
        clips: C of A2.
        steps: T of A3.
        lrs: learning rates of A4.
        rates: sample rates of Figure 5.
        usual: T elsewhere.
        looks: audited steps of a training.
    """

    images: Images = images.FULL
    classes: int = 2
    runs: int = 400
    repeats: int = 1
    counted: tuple[int, ...] = (100, 200, 300, 400, 500, 600)
    counted_repeats: int = 3
    models: int = 5
    clips: tuple[float, ...] = (1.0, 2.0, 10.0, 50.0)
    steps: tuple[int, ...] = (STEPS, 2500)
    lrs: tuple[float, ...] = (0.0001, 0.001, 0.01, 0.1)
    rates: tuple[float, ...] = (0.25, 0.0625)
    usual: int = STEPS
    looks: int = 20


FULL = Size(
    classes=10, runs=2500, repeats=3, counted=(100, 250, 500, 1000, 1500, 2000, 2500), rates=(1.0, 0.25, 0.0625)
)
QUICK = Size(
    images.QUICK, runs=40, counted=(20, 40), counted_repeats=2, models=2, clips=(1.0, 2.0), steps=(10, 20),
    lrs=(0.001, 0.01), rates=(1.0, 0.25), usual=10, looks=2,
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """What all figures share.

    Args:
        size: of the sweep.
        sets: the records.
        options: of the command line.
    """

    size: Size
    sets: Sets
    options: Namespace

    def task(
        self, rates: tuple[float, ...], runs: int, repeats: int, steps: int = 0, clip: float = CLIP, lr: float = LR
    ) -> Task:
        """Trainings of the head at some sample rates."""
        ten, steps = self.size.classes > 2, steps or self.size.usual
        records, outside = (self.sets.ten, self.sets.ten_outside) if ten else (self.sets.two, self.sets.two_outside)
        training = Training(self.size.classes, steps, lr=lr, clip=clip, bias=ten, one_logit=not ten)
        name = "10 classes" if ten else "one logit"
        settings = {q: training.setting(name, *records, q, outside) for q in rates}
        every = max(1, steps // self.size.looks)
        return Task(settings, SCENARIOS, every, runs, repeats, about=self.sets.about)

    def tasks(self, figure: str) -> dict[str, Task]:
        """Trainings that a figure needs, by what is varied; none of A1, whose few models are trained by themselves."""
        size, one = self.size, (1.0,)
        cell = (size.runs, size.repeats)
        return {
            "5": lambda: {"R": self.task(size.rates, size.counted[-1], size.counted_repeats)},
            "A2": lambda: {f"C = {clip:g}": self.task(one, *cell, clip=clip) for clip in size.clips},
            "A3": lambda: {f"T = {steps:,}": self.task((size.rates[-1],), *cell, steps=steps) for steps in size.steps},
            "A4": lambda: {f"learning rate {lr:g}": self.task(one, *cell, lr=lr) for lr in size.lrs},
        }.get(figure, dict)()


def by_runs(sweep: Sweep) -> dict[str, Any]:
    """Figure 5: both bounds of the first R runs of each repeat."""
    task, folder = sweep.tasks("5")["R"], cache_of(sweep.options)
    stored, rates = Parts(folder, __package__ or "", *BOUNDING), {}
    for rate, given in task.settings.items():
        setting = given.to(sweep.options.device)
        adversary, cells = Adversary(setting), {}
        for scenario in task.scenarios:
            paths = scored(task, adversary, scenario, folder, f"figure 5, q {rate:g},")
            cells[scenario] = stored.get(
                ["by runs", [path.name for path in paths], sweep.size.counted],
                lambda s=scenario, c=setting.claim, p=paths: [counted(p, c, s, runs) for runs in sweep.size.counted],
            )
            print(f"figure 5, q {rate:g}, {scenario}: {cells[scenario][-1]['epsilon_lower']['mean']:.2f}", flush=True)
        claim = setting.claim
        spent = {"add_remove": claim.add_remove, "substitute": claim.substitute, "claim": claim.to_dict()}
        rates[f"{rate:g}"] = {**spent, "cells": cells}
    return {"task": task.to_dict(), "rates": rates}


def counted(paths: list[Any], claim: Any, scenario: Any, runs: int) -> dict[str, Any]:
    """The last step of the first `runs` runs of every repeat: means with two standard errors, and the counts."""
    lower, paper, would, counts = [], [], [], []
    for repeat, path in enumerate(paths):
        whole = scores_of(path)
        few = Scores(whole.steps[-1:], whole.d[-1:, : runs - runs // 2], whole.d_prime[-1:, : runs // 2])
        of = few if scenario == "gradient" else centred(few)
        found = judge(of, claim, scenario=scenario, threshold=0.0, seed=repeat)
        at = found.errors[-1]
        lower.append(found.epsilon_lower)
        would.append(found.detectable)
        paper.append(highest_over_thresholds(few.d[-1], few.d_prime[-1], DELTA))
        counts.append([at.false_positives, at.negatives, at.false_negatives, at.positives])
    return {
        "runs": runs,
        "epsilon_lower": spread(lower),
        "paper_estimator": spread(paper),
        "detectable": would,
        "counts": counts,
    }


def spread(values: list[float]) -> dict[str, Any]:
    """Mean and twice its standard error."""
    error = 2 * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "two_se": None if error is None else float(error)}


def utility(sweep: Sweep) -> dict[str, Any]:
    """Figure A1: accuracy on images that are not trained on, of ten classes in every size."""
    size, options = replace(sweep.size, classes=10), sweep.options
    task = replace(sweep, size=size).task((1.0,), 2 * size.models, 1)
    setting = task.settings[1.0].to(options.device)
    adversary, outside = Adversary(setting), sweep.sets.ten_outside
    steps = [*range(task.every, setting.recipe.steps + 1, task.every)]

    def train() -> dict[str, Any]:
        given = {"models": size.models, "steps": steps}
        gradient = accuracies(setting, adversary.canary("gradient"), outside, **given, seed=1)
        crafted = accuracies(setting, adversary.canary("crafted"), outside, **given, seed=2)
        arms = dict(zip(ARMS, (crafted[0], np.concatenate(gradient), crafted[1]), strict=True))
        return {
            name: {
                "models": len(each),
                "mean": each.mean(0).tolist(),
                "two_se": (2 * each.std(0, ddof=1) / np.sqrt(len(each))).tolist(),
            }
            for name, each in arms.items()
        }

    stored = Parts(cache_of(options), __package__ or "")
    key = ["accuracy", setting.describe(), steps, size.models, sweep.sets.about]
    return {"task": task.to_dict(), "steps": steps, "tested_on": len(outside[1]), "accuracy": stored.get(key, train)}


def varied(figure: str, sweep: Sweep) -> dict[str, Any]:
    """Figures A2 to A4: each value's rates and canaries, as in Figure 3's results."""
    tasks = sweep.tasks(figure)
    return {"values": {name: run(f"{figure}, {name}", task, sweep.options) for name, task in tasks.items()}}


NOISE = (0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0)
"""Noise multipliers of A5, and sample rates:"""
OF_ACCOUNTING = (1.0, 0.25, 0.0625, 0.01)
MOST = 100.0
"""Epsilons above it are left out: nobody would state them."""


def accounting() -> list[dict[str, Any]]:
    """Figure A5: both epsilons, their ratio, and what group privacy makes of add/remove; 500 steps, delta 1e-5."""
    found = []
    for rate in OF_ACCOUNTING:
        for noise in NOISE:
            spent = epsilons(noise, rate, STEPS, DELTA)
            if spent.substitute > MOST:
                continue
            group = group_privacy_epsilon(noise, rate, STEPS, DELTA)
            found.append({
                "sample_rate": rate, "noise_multiplier": noise, "add_remove": spent.add_remove,
                "substitute": spent.substitute, "ratio": spent.substitute / spent.add_remove,
                "group_privacy": group if math.isfinite(group) else None,
            })  # fmt: skip
    return found


def cache_of(options: Namespace) -> Any:
    """Folder of trainings."""
    folder = options.cache / options.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made(figure: str, sweep: Sweep | None) -> dict[str, Any]:
    """A figure's results."""
    if figure == "A5":
        return {"cells": accounting()}
    assert sweep is not None
    return by_runs(sweep) if figure == "5" else utility(sweep) if figure == "A1" else varied(figure, sweep)


def last(found: Mapping[str, Any], scenario: str) -> list[float]:
    """The paper's estimator at the last step, of each value that a figure varies."""
    each = (next(iter(result["rates"].values()))["cells"][scenario] for result in found.values())
    return [cell["paper_estimator"]["mean"] for cell in each]


def missed(results: Mapping[str, Any]) -> list[str]:
    """What the paper says of a figure and these results do not, in words."""
    wrong = []
    for rate, at in (results.get("5", {}).get("rates") or {}).items():
        first, end = (at["cells"]["gradient"][i]["epsilon_lower"]["mean"] for i in (0, -1))
        if not first < end or end <= at["add_remove"]:
            wrong.append(f"5, q {rate}, gradient: {first:.2f} with few runs and {end:.2f} with all")
    if arms := results.get("A1", {}).get("accuracy"):
        ends = [arm["mean"][-1] for arm in arms.values()]
        if max(ends) - min(ends) > 0.02:
            wrong.append(f"A1: accuracies differ by {max(ends) - min(ends):.1%}")
    for figure in ("A2", "A3"):
        if figure in results:
            lost = {s: (v := last(results[figure]["values"], s))[0] - v[-1] for s in SCENARIOS}
            wrong += [
                f"{figure}: the {s} canary loses {lost[s]:.2f}, the gradient canary {lost['gradient']:.2f}"
                for s in ("crafted", "natural") if lost[s] <= lost["gradient"]
            ]  # fmt: skip
    if "A4" in results:
        range_of = {s: float(np.ptp(last(results["A4"]["values"], s))) for s in SCENARIOS}
        wrong += [
            f"A4: the {s} canary varies by {range_of[s]:.2f}, the gradient canary by {range_of['gradient']:.2f}"
            for s in SCENARIOS[1:] if range_of[s] <= range_of["gradient"]
        ]  # fmt: skip
    if "A5" in results and max(c["ratio"] for c in results["A5"]["cells"]) <= 2:
        wrong.append("A5: no epsilon under substitution is more than twice that under add/remove")
    return wrong


def shown(results: Mapping[str, Any]) -> str:
    """Every figure as a table."""
    parts = []
    for figure, found in results.items():
        if figure == "5":
            lines = [
                (f"q {rate}, {scenario}", *(f"{c['epsilon_lower']['mean']:.2f}" for c in cells))
                for rate, at in found["rates"].items() for scenario, cells in at["cells"].items()
            ]  # fmt: skip
            counts = next(iter(next(iter(found["rates"].values()))["cells"].values()))
            parts.append(table(("5: runs", *(str(c["runs"]) for c in counts)), lines))
        elif figure == "A1":
            rows = [(name, f"{arm['mean'][-1]:.1%}") for name, arm in found["accuracy"].items()]
            parts.append(table(("A1: trained with", "accuracy"), rows))
        elif figure == "A5":
            rows = [tuple("" if v is None else f"{v:.2f}" for v in c.values()) for c in found["cells"]]
            parts.append(table(tuple(found["cells"][0]), rows))
        else:
            parts.append(f"{figure}\n" + show(found["values"]))
    return "\n\n".join(parts)


def main(argv: list[str] | None = None) -> int:
    """Run the sweep; 0 when it says what the paper says, 1 otherwise."""
    p = images.add_arguments(add_sizes(parser("canary_sweep", __doc__)))
    p.add_argument("--figure", action="append", choices=tuple(PUBLISHED), help="only this one (repeat for more)")
    options = p.parse_args(argv)
    torch.set_num_threads(1)
    size, out = QUICK if options.quick else FULL if options.full else Size(), destination(options)
    if options.rejudge:
        return rejudge(out)
    if options.runs:
        size = replace(size, runs=options.runs, counted=(*(r for r in size.counted if r < options.runs), options.runs))
    if options.repeats:
        size = replace(size, repeats=options.repeats, counted_repeats=options.repeats)
    asked = options.figure or list(PUBLISHED)
    sweep = Sweep(size, images.sets(options, size.images), options) if set(asked) - {"A5"} else None
    if options.full and sweep:
        print(estimated((t for f in asked for t in sweep.tasks(f).values()), options.device)[1], flush=True)
    results = earlier(out, options.quick)
    for figure in PUBLISHED:
        if figure in asked:
            began, found = time.perf_counter(), made(figure, sweep)
            results[figure] = found | {"run": provenance(time.perf_counter() - began, options.device)}
            wrong = [] if options.quick else missed(results)
            results = {name: results[name] for name in PUBLISHED if name in results}
            content = {
                "suite": options.name, "quick": options.quick, "epsilon": EPSILON, "delta": DELTA,
                "published": PUBLISHED, "results": results, "targets_missed": wrong,
            }  # fmt: skip
            write_json(out, rounded(content))
    print(shown(results))
    return concluded(wrong, out)


if __name__ == "__main__":
    finish(main)
