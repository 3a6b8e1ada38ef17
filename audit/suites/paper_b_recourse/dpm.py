"""The 24 accuracies of "DPM" in Tables 1 and 2, beside diffprivlib's private regression re-implemented from its paper.

DPM is `diffprivlib.models.LogisticRegression` (Holohan et al. 2019, arXiv 1907.02444): objective perturbation,
Algorithm 2 of Chaudhuri, Monteleoni and Sarwate 2011 (JMLR 12). It does not import beside current scikit-learn, so what
its releases compute is written here anew, from the formula and from what its documentation says of norm, intercept and
penalty (`RELEASES`): as in 2023, when the paper appeared; as in 0.6.5 beside scikit-learn 1.4 or newer, where losses
are averaged and the noise is not, n times too much of it; and as in 0.6.6, which divides it.

The paper reports the training accuracy of one model (the last of 20) and the mean test accuracy of all 20. So each is
compared with what one model, and the mean of 20, may be: the middle 95 % over models trained on rows drawn anew, for
5,000 rows as the paper says, and for 80 and 250 (the rows of the parent code's notebook, and 5,000 split between 20).

    python -m audit.suites.paper_b_recourse.dpm [--task NAME ...] [--models N] [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import fmin_l_bfgs_b
from scipy.special import expit
from scipy.stats import t as student

from ...shared.run import (
    Parts,
    Progress,
    concluded,
    destination,
    earlier,
    finish,
    provenance,
    rounded,
    table,
    write_json,
)
from .conditions import EPSILONS
from .options import asked
from .published import PUBLISHED
from .tasks import QUICK, TASKS, Floats, Plan, Task

CURVATURE = 0.25
"""c: largest second derivative of the logistic loss."""
INVERSE_PENALTY = 1.0
"""C, diffprivlib's default."""
STEPS, TOLERANCE = 100, 1e-4
"""diffprivlib's `max_iter` and `tol`."""
SIZES = (80, 250, 5000)
TEST = 3000
OF_THE_PAPER = 20
"""Models that a reported test accuracy is the mean of."""


@dataclass(frozen=True)
class Release:
    """What a release of diffprivlib minimises.

    Args:
        title: in tables.
        halved: whether the penalty counts half in the privacy budget.
        averaged: whether the losses are averaged over the n rows (scikit-learn 1.4 and newer) or added up.
        divided: whether the noise is divided by n as well, where losses are averaged.
    """

    title: str
    halved: bool
    averaged: bool = False
    divided: bool = False

    def noise(self, epsilon: float, rows: int, norm: float) -> tuple[float, float]:
        """Scale of the noise vector's length and the further penalty, both as they stand beside the losses.

        Chaudhuri et al. 2011, Algorithm 2: epsilon' = epsilon - 2 log(1 + c R / (n Lambda)); where that is not positive
        the penalty is raised until half of epsilon pays for it, c R / (exp(epsilon / 4) - 1) - n Lambda. (Scaled to
        rows of norm R it is c R^2 by Theorem 9; diffprivlib has c R, which is too little for R > 1.) The length of the
        noise is Gamma with as many degrees as columns and scale 2 R / epsilon'.

        Args:
            epsilon: of the fit.
            rows: n.
            norm: R of the rows, with the intercept's constant column.
        """
        penalty = 1.0 / INVERSE_PENALTY
        if self.averaged and not self.divided:
            penalty /= rows  # as the average has it, while c and R belong to the sum
        counted = penalty / 2 if self.halved else penalty
        left = epsilon - 2 * np.log1p(CURVATURE * norm / counted)
        further = 0.0
        if left <= 0:
            further = CURVATURE * norm / np.expm1(epsilon / 4) - counted
            left = epsilon / 2
        share = 1.0 / rows if self.divided else 1.0
        return share * 2 * norm / left, share * further

    def fit(
        self, x: Floats, y: NDArray[Any], epsilon: float, rng: np.random.Generator, norm_bound: float = 1.0
    ) -> tuple[Floats, float]:
        """Weights and intercept, which has noise but no penalty besides the further one.

        Args:
            x: (n, d) rows of norm `norm_bound` at most.
            y: (n,) 0 and 1.
            epsilon: of the fit; infinite: no noise.
            rng: source of the noise (the library draws it from the operating system).
            norm_bound: public.
        """
        n, d = x.shape
        b, further = np.zeros(d + 1), 0.0
        if np.isfinite(epsilon):
            scale, further = self.noise(epsilon, n, float(np.hypot(norm_bound, 1.0)))
            b = rng.standard_normal(d + 1)
            b *= rng.gamma(d + 1, scale) / np.linalg.norm(b)
        each = 1.0 / n if self.averaged else 1.0
        side = 2.0 * y - 1

        def objective(theta: Floats) -> tuple[float, Floats]:
            margin = side * (x @ theta[:-1] + theta[-1])
            pull = -side * expit(-margin)
            value = each * (np.logaddexp(0, -margin).sum() + theta[:-1] @ theta[:-1] / (2 * INVERSE_PENALTY))
            gradient = each * np.append(x.T @ pull + theta[:-1] / INVERSE_PENALTY, pull.sum())
            return float(value + b @ theta + further * theta @ theta / 2), gradient + b + further * theta

        theta = fmin_l_bfgs_b(objective, np.zeros(d + 1), maxiter=STEPS, pgtol=TOLERANCE)[0]
        return theta[:-1], float(theta[-1])


RELEASES = {
    "0.6.3": Release("diffprivlib 0.6.3 (2023)", halved=True),
    "0.6.5": Release("0.6.5 beside scikit-learn 1.4: noise not divided by n", halved=True, averaged=True),
    "0.6.6": Release("0.6.6: noise divided by n", halved=False, averaged=True, divided=True),
}


def accuracies(task: Task, release: Release, epsilon: float, size: int, models: int, progress: Progress) -> Floats:
    """(models, 2) train and test accuracies of models whose rows are drawn anew each time."""
    found = np.empty((models, 2))
    for k in range(models):
        progress(f"{release.title}, epsilon {epsilon:g}, {size} rows", k, models)
        rng = np.random.default_rng([0xD1FF, size, k])
        order = rng.permutation(len(task.x))
        train, test = order[:size], order[size : size + TEST]
        w, bias = release.fit(task.x[train], task.y[train], epsilon, rng)
        found[k] = [float(((task.x[part] @ w + bias > 0) == task.y[part]).mean()) for part in (train, test)]
    return found


def expected(found: Floats) -> dict[str, Any]:
    """What the paper's two numbers would be: of one model, and of the mean of 20; the middle 95 % by Student's t."""
    count = len(found)
    (train, test), (of_train, of_test) = found.mean(axis=0), found.std(axis=0, ddof=1)
    t = float(student.ppf(0.975, count - 1))
    one, twenty = t * np.sqrt(1 + 1 / count), t * np.sqrt(1 / OF_THE_PAPER + 1 / count)
    return {
        "models": count,
        "train": float(train),
        "train_of_one": [float(train - one * of_train), float(train + one * of_train)],
        "test": float(test),
        "test_of_one": [float(test - one * of_test), float(test + one * of_test)],
        "test_of_twenty": [float(test - twenty * of_test), float(test + twenty * of_test)],
    }


def within(cell: dict[str, Any], reported: list[float]) -> list[bool]:
    """Whether each of two reported numbers, [train, test], lies where this candidate puts its middle 95 %."""
    ranges = (cell["train_of_one"], cell["test_of_twenty"])
    return [low <= value <= high for (low, high), value in zip(ranges, reported, strict=True)]


def how_many(size: int, columns: int, asked_for: int | None) -> int:
    """Models trained: fewer where one takes seconds."""
    if asked_for is not None:
        return asked_for
    return 100 if size < 1000 else 40 if columns <= 500 else 10


def run(name: str, plan: Plan, task: Task, parts: Parts, models: int | None, quick: bool) -> dict[str, Any]:
    """All candidates of a task."""
    columns, cells = task.x.shape[1], {}
    for size in (40, 100) if quick else SIZES:
        rows = min(size, len(task.x) // 2)
        for key, release in RELEASES.items():
            for epsilon in EPSILONS:
                count = how_many(size, columns, models)

                def make(
                    release: Release = release, epsilon: float = epsilon, rows: int = rows, count: int = count
                ) -> Any:
                    return rounded(expected(accuracies(task, release, epsilon, rows, count, Progress(f"{name}: "))))

                about = [name, key, epsilon, rows, count, task.source]
                cells[f"{key}, {size} rows, epsilon {epsilon:g}"] = parts.get(about, make) | {"rows": rows}
    return {"task": task.source, "cells": cells}


def explained(results: dict[str, Any]) -> dict[str, Any]:
    """Release and rows -> how many of the reported numbers it explains, those of training and of testing apart."""
    found: dict[str, dict[str, Any]] = {}
    for task, result in results.items():
        reported = PUBLISHED["accuracy"].get(task)
        if reported is None:
            continue
        for title, cell in result["cells"].items():
            candidate, _, epsilon = title.rpartition(", epsilon ")
            hits = within(cell, reported[f"DPM {epsilon}"])
            count = found.setdefault(candidate, {"train": 0, "test": 0, "of": 0})
            count["train"] += hits[0]
            count["test"] += hits[1]
            count["of"] += 2
    return found


def show(result: dict[str, Any]) -> str:
    """One line a candidate."""
    rows = []
    for title, c in result["cells"].items():
        low, high = c["test_of_twenty"]
        rows.append((title, f"{c['train']:.3f}", f"{c['test']:.3f}", f"{low:.3f} to {high:.3f}"))
    return table(("candidate", "train", "test", "mean test of 20"), rows)


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 unless nothing is learned without noise."""
    options, plans, parts = asked("recourse_dpm", __doc__, TASKS, QUICK, "8 to 200", argv)
    start, out = time.perf_counter(), destination(options)
    results = earlier(out, options.quick) if options.task else {}
    for name, plan in plans.items():
        if name not in PUBLISHED["accuracy"] and not options.quick:
            continue
        began = time.perf_counter()
        results[name] = run(name, plan, plan.make(options.data), parts, options.models, options.quick)
        results[name]["run"] = provenance(time.perf_counter() - began)
        print(f"\n{name}\n{show(results[name])}", flush=True)
        write_json(out, {
            "suite": "recourse_dpm",
            "quick": options.quick,
            "paper": "Huang, Swoopes, Xiao, Ma & Lakkaraju 2023, Tables 1 and 2, the 24 numbers of DPM",
            "published": PUBLISHED,
            "releases": {key: release.title for key, release in RELEASES.items()},
            "explained": explained(results),
            "results": results,
            "run": provenance(time.perf_counter() - start),
        })  # fmt: skip
    return concluded([], out)


if __name__ == "__main__":
    finish(main)
