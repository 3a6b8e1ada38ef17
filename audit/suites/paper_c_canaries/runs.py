"""Substitute-adjacency canaries in many trainings at once: what the suites of paper C's Figures 3 and 4 share.

A task is trained at several sample rates, with the noise that gives epsilon 10 under substitution, with one canary
after another, half of the runs of each on the record and half on what stands in its place. After every k-th step the
model is treated as if it were released (Algorithm 1 of 2511.21804), and the adversary's errors bound epsilon from
below: by the library's default, the mechanism's own trade-off curve, and by the paper's estimator, which takes the best
of all thresholds on the runs that it counts. The threshold of the first is 0 for gradient canaries, whose scores on D
and D' lie on either side of it; for records a fifth of the runs fix it, and do not count.

Scores are kept in the cache folder, as are the pieces of a training; an interrupted run resumes.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from safexplain.verdict.canaries.result import CanaryResult, Claim, ScenarioName, Scores, judge
from safexplain.verdict.stats import epsilon_from_errors

from ...shared.run import Parts, Run, Unusable
from ..bound_errors.suite import best_of_all
from .tasks import DELTA, EPSILON, Adversary, Task, facts_of, scored, scores_of

BOUNDING = ("safexplain.verdict.canaries.result",)
"""What decides verdicts, given scores; with all that it imports."""
PILOT = 0.2
"""Share of the runs of a record canary that fix its threshold."""


FLAGS: dict[str, dict[str, Any]] = {
    "device": {"default": "cpu"},
    "runs": {"type": int, "help": "on D and D' together, of each canary, rate and repeat"},
    "repeats": {"type": int, "help": "with other noise and batches"},
    "full": {"action": "store_true", "help": "the paper's sizes, for a GPU"},
    "only": {"help": "a task, by its name; the results of others are kept"},
}
"""Options of both suites."""


def audited(path: Path, claim: Claim, scenario: ScenarioName, repeat: int) -> dict[str, Any]:
    """One repeat of one cell: the result at the last step, and the bounds at every audited step."""
    scores, facts = scores_of(path), facts_of(path)
    counted = scores if scenario == "gradient" else centred(scores)
    result = judge(counted, claim, scenario=scenario, threshold=0.0, seconds=facts["seconds"], seed=repeat)
    paper = [best_of_all(a, b) for a, b in zip(scores.d, scores.d_prime, strict=True)]
    lower = [result.lower(at) for at in result.errors]
    extra = {"trained": scores.runs, "curve": lower, "paper_estimator": paper, "ceilings": ceilings(result)}
    return {**result.to_dict(), **extra}


def centred(scores: Scores, share: float = PILOT) -> Scores:
    """Scores beyond a threshold that the first runs on D and D' fix, and which the others alone are counted at.

    At each step it is the midpoint of the medians on D and D'. A share of 1/2 would leave fewer runs to count.
    """
    first = math.ceil(share * min(scores.d.shape[1], scores.d_prime.shape[1]))
    middle = sum(np.median(side[:, :first], axis=1, keepdims=True) for side in (scores.d, scores.d_prime)) / 2
    return Scores(scores.steps, scores.d[:, first:] - middle, scores.d_prime[:, first:] - middle)


def ceilings(result: CanaryResult) -> list[float]:
    """What could have been shown at every audited step with the runs that were counted."""
    return [
        epsilon_from_errors(
            0, e.negatives, 0, e.positives, result.claim.delta, result.method, confidence=result.confidence,
            **result.claim.after(e.step).sampled(),
        )
        for e in result.errors
    ]  # fmt: skip


def measure(name: str, task: Task, options: Namespace) -> dict[str, Any]:
    """Every rate and canary of a task, with both accounted curves."""
    folder = options.cache / options.name
    folder.mkdir(parents=True, exist_ok=True)
    stored, rates = Parts(folder, __package__, *BOUNDING), {}
    for rate, given in task.settings.items():
        setting, claim, prefix = given.to(options.device), given.claim, f"{name}, q {rate:g},"
        adversary, cells = Adversary(setting), {}
        for scenario in task.scenarios:
            paths = scored(task, adversary, scenario, folder, prefix)
            repeats = [
                stored.get(
                    ["audited", path.name],
                    lambda p=path, c=claim, s=scenario, i=i: audited(p, c, s, i),
                )
                for i, path in enumerate(paths)
            ]
            cells[scenario] = {"canary": facts_of(paths[0])["canary"], "repeats": repeats, **summary(repeats)}
            print(f"{prefix} {scenario}: {cells[scenario]['epsilon_lower']['mean']:.2f}", flush=True)
        steps = [e["step"] for e in next(iter(cells.values()))["repeats"][0]["errors"]]
        spent = stored.get(["accounted", repr(claim), steps], lambda c=claim, s=steps: accounted(c, s))
        sigma = setting.mechanism.noise_multiplier
        rates[f"{rate:g}"] = {"noise_multiplier": sigma, "steps": steps, **spent, "cells": cells}
    return {"task": task.to_dict(), "rates": rates}


def accounted(claim: Claim, steps: Sequence[int]) -> dict[str, list[float | None]]:
    """Both epsilons after each of these steps."""
    each = [claim.after(step) for step in steps]
    return {"add_remove": [c.add_remove for c in each], "substitute": [c.substitute for c in each]}


def summary(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over repeats and twice its standard error, as the paper's figures have them; of the last step."""
    found = {}
    for name, curve in (("epsilon_lower", "curve"), ("paper_estimator", "paper_estimator")):
        values = np.array([r[curve] for r in repeats])
        error = 2 * values.std(0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else None
        found[name] = {
            "mean": float(values[:, -1].mean()),
            "two_se": None if error is None else float(error[-1]),
            "highest_of_the_curve": float(values.mean(0).max()),
            "curve": values.mean(0).tolist(),
            "curve_two_se": None if error is None else error.tolist(),
        }
    return found


def cells_of(results: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any], dict[str, Any]]]:
    """(task, rate, scenario, rate's results, cell) of every cell."""
    return [
        (name, rate, scenario, at, cell)
        for name, found in results.items()
        for rate, at in found["rates"].items()
        for scenario, cell in at["cells"].items()
    ]


def impossible(results: dict[str, Any]) -> list[str]:
    """Bounds of the default method that say that the training is wrong, in words."""
    return [
        f"{task}, q {rate}, {scenario}: {verdict}"
        for task, rate, scenario, _, cell in cells_of(results)
        if (verdict := next((r["verdict"] for r in cell["repeats"] if r["verdict"] == "refuted"), None))
    ]


def weak(results: dict[str, Any], scenarios: Sequence[str], rates: Sequence[str]) -> list[str]:
    """Cells in which the paper exceeds add/remove, and these results do not (its own estimator, any step), in words."""
    wrong = []
    for task, rate, scenario, at, cell in cells_of(results):
        curve, limit = cell["paper_estimator"]["curve"], at["add_remove"]
        if scenario in scenarios and rate in rates and all(c <= a for c, a in zip(curve, limit, strict=True)):
            wrong.append(
                f"{task}, q {rate}, {scenario}: {curve[-1]:.2f} at the last step, never above add/remove"
                f" {limit[-1]:.2f}; the paper's is"
            )
    return wrong


def report(
    run: Run,
    tasks: Callable[[Namespace], dict[str, Task]],
    published: Sequence[str],
    check: Callable[[dict[str, Any]], list[str]],
) -> int:
    """Run a suite and write what it found; 0 when it says what the paper says, 1 otherwise."""
    torch.set_num_threads(1)
    options = run.options
    given = {k: v for k in ("runs", "repeats") if (v := getattr(options, k)) is not None}
    results = run.earlier() if options.only else {}
    known = tasks(options)
    if options.only and options.only not in known:
        raise Unusable(f"--only: expected one of {', '.join(map(repr, known))}; got {options.only!r}")
    for name, task in known.items():
        if options.only in (None, name):
            results[name] = measure(name, replace(task, **given), options) | {"run": run.provenance()}
    wrong = [] if run.quick else impossible(results) + check(results)
    run.write(epsilon=EPSILON, delta=DELTA, published=list(published), results=results, targets_missed=wrong)
    return run.end(wrong)
