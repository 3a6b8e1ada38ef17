"""What a gradient canary can show at most in paper C's Figure 4: it and the noise, alone on their parameter.

"Beyond Membership" (Pradhan et al., 2511.21804) finds that gradient canaries exceed the add/remove epsilon in an MLP
trained with DP-Adam, at q = 1/4 and 1/16, in 2,500 steps and 2,500 runs. Here the other records are left out: their
gradient at the canary's parameter is zero, which is what choosing the parameter that moves least aims at. What is left
is one number a step, the canary's +C or -C by its coin plus noise, so that 40,000 trainings on D and D' take seconds.

Scores are the parameter's way from its start: by SGD (the sum of all steps, of which the exact epsilon is known), by
Adam with torch's betas and with others, and with the canary added after Adam's step, outside of it, as the paper's
released script for fine-tuning does it (there with SGD; an expected batch of 1,000 records at q). Every audit is the
suite's: the mechanism's own curve at the threshold 0, and the paper's estimator, the best of all thresholds. The noise
is for epsilon 10 under substitution at delta 1e-5.

    python -m audit.suites.paper_c_canaries.adam [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._privacy_loss import Steps, epsilons
from safexplain.dp.accounting.calibration import noise_multiplier
from safexplain.verdict.stats import epsilon_from_errors

from ...shared.run import Progress, concluded, destination, finish, parser, provenance, rounded, table, write_json
from .figure2 import epsilon_of_sum, highest_over_thresholds
from .tasks import DELTA, EPSILON

RATES = (0.25, 0.0625)
RECORDS = 1000
"""Whose expected batch the canary is divided by where it is added outside of Adam."""
TINY = 1e-8
"""Adam's epsilon."""
SGD, OUTSIDE = "SGD", "Adam, canary added after its step"
ADAM = {"Adam": (0.9, 0.999), "Adam, betas .9 and .9": (0.9, 0.9), "Adam, betas 0 and .999": (0.0, 0.999)}
"""Betas."""
SCORES = (SGD, *ADAM, OUTSIDE)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    """How large a run is.

    Args:
        trainings: on D, and as many on D'.
        steps: T, each of these.
        runs: R, each of these.
        audits: of R runs each, at most.
    """

    trainings: int = 40_000
    steps: tuple[int, ...] = (200, 500, 2500)
    runs: tuple[int, ...] = (200, 400, 1000, 2500)
    audits: int = 40


QUICK = Size(trainings=600, steps=(20,), runs=(100,), audits=6)


def trained(mechanism: Steps, sign: int, trainings: int, rng: np.random.Generator) -> dict[str, Array]:
    """How far the parameter has come in each training, in units of the learning rate, by the name of the score.

    All scores come from the same coins and noise. Gradients are in units of C, and point to where D's canary does.
    """
    m, batch = {name: np.zeros(trainings) for name in (*ADAM, OUTSIDE)}, mechanism.sample_rate * RECORDS
    v, way = {name: np.zeros(trainings) for name in m}, {name: np.zeros(trainings) for name in SCORES}
    betas = {**ADAM, OUTSIDE: ADAM["Adam"]}
    for step in range(1, mechanism.steps + 1):
        canary = sign * (rng.random(trainings) < mechanism.sample_rate).astype(float)
        noise = mechanism.noise_multiplier * rng.standard_normal(trainings)
        way[SGD] += canary + noise
        way[OUTSIDE] += canary / batch
        for name, (first, second) in betas.items():
            g = noise if name == OUTSIDE else canary + noise
            m[name] += (1 - first) * (g - m[name])
            v[name] += (1 - second) * (g * g - v[name])
            way[name] += m[name] / (1 - first**step) / (np.sqrt(v[name] / (1 - second**step)) + TINY)
    return way


def audits(d: Array, d_prime: Array, runs: int, most: int) -> Iterator[tuple[Array, Array]]:
    """The scores of `runs` trainings each, no training in two of them."""
    half = runs // 2
    for i in range(min(most, len(d) // half)):
        yield d[i * half : (i + 1) * half], d_prime[i * half : (i + 1) * half]


def shown(mechanism: Steps, d: Array, d_prime: Array, runs: int, most: int, limit: float) -> dict[str, Any]:
    """Both bounds of each audit: median, and the share that is above add/remove."""
    known = {"sample_rate": mechanism.sample_rate, "steps": mechanism.steps, "sampling": mechanism.sampling}

    @cache
    def ours(false_positives: int, false_negatives: int, each: int) -> float:
        return epsilon_from_errors(false_positives, each, false_negatives, each, DELTA, "pld", **known)

    lower, paper = [], []
    for a, b in audits(d, d_prime, runs, most):
        lower.append(ours(int((b >= 0).sum()), int((a < 0).sum()), len(a)))
        paper.append(highest_over_thresholds(a, b, DELTA))
    return {
        "audits": len(lower),
        "epsilon_lower_median": float(np.median(lower)),
        "above_add_remove": float(np.mean(np.array(lower) > limit)),
        "paper_estimator_median": float(np.median(paper)),
        "paper_above_add_remove": float(np.mean(np.array(paper) > limit)),
        "paper_above_the_truth": float(np.mean(np.array(paper) > EPSILON)),
    }


def cell(steps: int, rate: float, size: Size) -> dict[str, Any]:
    """One number of steps and sample rate: what accounting says, and what each score shows."""
    mechanism = Steps(noise_multiplier(EPSILON, rate, steps, DELTA), rate, steps)
    spent = epsilons(mechanism.noise_multiplier, rate, steps, DELTA)
    rng = np.random.default_rng((0xADA, steps, round(1 / rate)))
    d, d_prime = (trained(mechanism, sign, size.trainings, rng) for sign in (1, -1))
    found = {
        name: {
            str(runs): shown(mechanism, d[name], d_prime[name], runs, size.audits, spent.add_remove)
            for runs in size.runs
        }
        for name in SCORES
    }
    return {
        "steps": steps,
        "sample_rate": rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "add_remove": spent.add_remove,
        "substitute": spent.substitute,
        "of_the_sum": epsilon_of_sum(mechanism, DELTA),
        "scores": found,
    }


def missed(cells: list[dict[str, Any]]) -> list[str]:
    """Where the paper's steps and runs would not show what its figure does, in words."""
    wrong = []
    for c in cells:
        best = c["scores"]["Adam"].get("2500")
        if c["steps"] == 2500 and best and best["paper_estimator_median"] <= c["add_remove"]:
            wrong.append(
                f"T = 2,500, q = {c['sample_rate']:g}: Adam shows {best['paper_estimator_median']:.2f} in 2,500 runs,"
                f" no more than add/remove {c['add_remove']:.2f}"
            )
    return wrong


def show(cells: list[dict[str, Any]]) -> str:
    """A line a score."""
    rows = []
    for c in cells:
        for name, each in c["scores"].items():
            medians = (f"{s['epsilon_lower_median']:.2f}, {s['paper_estimator_median']:.2f}" for s in each.values())
            rows.append((f"T {c['steps']}, q {c['sample_rate']:g}, {name}", f"{c['add_remove']:.2f}", *medians))
    runs = (f"R = {r}: ours, paper's" for r in next(iter(cells[0]["scores"].values())))
    return table(("score", "add/remove", *runs), rows)


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when the paper's size shows what its figure does, 1 otherwise."""
    options = parser("canary_adam", __doc__).parse_args(argv)
    start, size, progress = time.perf_counter(), QUICK if options.quick else Size(), Progress("adam: ")
    chosen, cells = [(steps, rate) for steps in size.steps for rate in RATES], []
    for i, (steps, rate) in enumerate(chosen):
        cells.append(cell(steps, rate, size))
        progress("cells", i + 1, len(chosen))
    wrong = missed(cells)
    print(show(cells))
    report = {
        "suite": "canary_adam",
        "quick": options.quick,
        "epsilon": EPSILON,
        "delta": DELTA,
        "trainings": size.trainings,
        "cells": cells,
        "targets_missed": wrong,
        "run": provenance(time.perf_counter() - start),
    }
    write_json(out := destination(options), rounded(report))
    return concluded(wrong, out)


if __name__ == "__main__":
    finish(main)
