"""Figures 4 and 5: how far recourse is, for members and others, under no protection, the paper's and the sound ones.

Synthetic rows of 100 to 7,000 columns, one target and five reference models on rows that are scored for nobody. The
distance is that from the released score to the boundary, |f| / |w|, favourable rows included, as in the released code
that the paper builds on, which also keeps logits within 11.5 (1e-5 is added to probabilities). It is shown in units of
the median distance of non-members without privacy, so that 1 is right. "At the clamp" is the share whose noised
probability left [0, 1]. How far two distributions are apart is the largest difference of their distribution functions
(Kolmogorov and Smirnov): 0 the same, 1 disjoint.

Figure 4: epsilon 1, trained on 5,000 rows, as the paper says, and on 80, which its accuracies fit (`dpm`); there the
distances of several targets are put together. Figure 5: 100 columns, epsilon 5, 10 and 20.

    python -m audit.suites.paper_b_recourse.distances [--rows N] [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from safexplain.audit.attacks.recourse import CounterfactualLRT
from safexplain.audit.collect_recourse import explained
from safexplain.recourse import DPModelRecourse, LaplaceScore
from safexplain.recourse.found import Found
from safexplain.recourse.linear.solve import linear_recourse

from ...shared.run import (
    Parts,
    Progress,
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
from .as_published import AsPublishedLaplace
from .conditions import BASELINE, DP_MODEL, NORM_BOUND, PUBLISHED, Native
from .dpm import RELEASES
from .tasks import Floats, Task, synthetic

SATURATED = float(np.log(1 / 1e-5))
"""Largest logit of the released parent code."""
SHADOWS, SHARE = 5, 0.75
"""References, and the share of the attacker's rows that each is trained on."""
EDGES = np.linspace(-2.0, 2.0, 41)
"""Of the histograms of Figure 4: powers of ten of the unit; what lies outside counts at the ends."""
LINEAR_EDGES = np.linspace(0.0, 6.0, 61)
"""Of those of Figure 5, in units."""
LRT_EDGES = np.linspace(-6.0, 6.0, 49)
SCORED = 5000
"""Non-members that are scored, and the most members."""


@dataclass(frozen=True)
class Weights:
    """Answers of a released linear model.

    Args:
        w: (d,) weights.
        bias: intercept.
    """

    w: Floats
    bias: float

    def explain(self, x: Floats) -> Found:
        """Exact recourse."""
        return linear_recourse(self.w, self.bias, x)


Make = Callable[[Task, Floats, NDArray[Any], float, int], Any]
"""(task, rows, labels, epsilon, seed) -> what answers."""


def _diffprivlib(version: str) -> Make:
    def make(task: Task, x: Floats, y: NDArray[Any], epsilon: float, seed: int) -> Any:
        return Weights(*RELEASES[version].fit(x, y, epsilon, np.random.default_rng([0xB0, seed])))

    return make


def _as_published(task: Task, x: Floats, y: NDArray[Any], epsilon: float, seed: int) -> Any:
    native = Native.fitted(x, y)
    return AsPublishedLaplace(
        native.model, epsilon=epsilon, random_state=seed, score_bound=SATURATED, published_formula=False
    )


def _laplace_score(task: Task, x: Floats, y: NDArray[Any], epsilon: float, seed: int) -> Any:
    weights = task.public_weights(len(x), 20 / epsilon)
    return LaplaceScore(
        epsilon=epsilon, norm_bound=NORM_BOUND, public_weights=weights, random_state=seed, classes=(0, 1)
    ).fit(x, y)


CONDITIONS: dict[str, Make] = {
    BASELINE: lambda task, x, y, epsilon, seed: Native.fitted(x, y),
    "DPM, diffprivlib 0.6.3": _diffprivlib("0.6.3"),
    "DPM, 0.6.5 (noise not divided by n)": _diffprivlib("0.6.5"),
    PUBLISHED: _as_published,
    DP_MODEL: lambda task, x, y, epsilon, seed: DPModelRecourse(
        epsilon=epsilon, norm_bound=NORM_BOUND, random_state=seed, classes=(0, 1)
    ).fit(x, y),
    "LaplaceScore": _laplace_score,
}
"""Title -> what is trained."""


@dataclass(frozen=True)
class Setting:
    """One row of panels.

    Args:
        columns: d.
        rows: trained on.
        epsilons: of the mechanisms.
        conditions: titles of `CONDITIONS`.
        targets: put together.
    """

    columns: int
    rows: int
    epsilons: tuple[float, ...] = (1.0,)
    conditions: tuple[str, ...] = tuple(CONDITIONS)
    targets: int = 1

    @property
    def title(self) -> str:
        """As tables have it."""
        return f"d = {self.columns:,}, {self.rows:,} rows"


FIGURE_5 = (BASELINE, PUBLISHED, DP_MODEL, "LaplaceScore")
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "figure 5": tuple(
        Setting(100, rows, (5.0, 10.0, 20.0), FIGURE_5, targets) for rows, targets in ((5000, 1), (80, 20))
    ),
    "figure 4": (
        *(Setting(d, 80, targets=20 if d == 100 else 5) for d in (100, 1000, 5000)),
        *(Setting(d, 5000) for d in (100, 1000, 5000, 7000)),
    ),
}
QUICK = {
    "figure 4": (Setting(100, 80, targets=3),),
    "figure 5": (Setting(100, 80, (5.0, 20.0), FIGURE_5, targets=3),),
}


def distances(mechanism: Any, x: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """(n,) distances from the released scores to the boundary, of all rows; and which scores were clamped."""
    answer = explained(mechanism, x)
    length = np.linalg.norm(answer.counterfactual - x, axis=1)
    told = length > 0
    if not told.any():
        return np.zeros(len(x)), answer.censored
    slope = float(np.median(np.abs(answer.score[told]) / length[told]))
    return np.abs(answer.score) / slope, answer.censored


def target(setting: Setting, task: Task, trial: int) -> list[dict[str, Any]]:
    """Distances and CFD-LRT scores of members and others, by condition and epsilon, for one target."""
    rng = np.random.default_rng([0xF164, setting.columns, setting.rows, trial])
    order = rng.permutation(len(task.x))
    members, others, attacker = np.split(order[: setting.rows + 2 * SCORED], [setting.rows, setting.rows + SCORED])
    scored, found = task.x[np.concatenate([members, others])], []
    unit = float("nan")
    size = int(SHARE * setting.rows)
    trained_on = [members, *(rng.choice(attacker, size, replace=False) for _ in range(SHADOWS))]
    for title in setting.conditions:
        for epsilon in (0.0,) if title == BASELINE else setting.epsilons:
            asked = [
                distances(CONDITIONS[title](task, task.x[rows], task.y[rows], epsilon, 1000 * trial + k), scored)
                for k, rows in enumerate(trained_on)
            ]
            distance = np.array([d for d, _ in asked])
            unit = float(np.median(distance[0, setting.rows :])) if title == BASELINE else unit
            nobody = np.zeros((SHADOWS, len(scored)), dtype=bool)
            found.append({
                "condition": title,
                "epsilon": epsilon,
                "distance": distance[0] / unit,
                "lrt": CounterfactualLRT()(distance[0], distance[1:], nobody),
                "clamped": asked[0][1],
            })  # fmt: skip
    return found


def histogram(values: Floats, edges: Floats) -> list[float]:
    """Share of the values in each bin; those outside count at the ends."""
    share: list[float] = (np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / max(len(values), 1)).tolist()
    return share


def summary(
    member: NDArray[np.bool_], distance: Floats, lrt: Floats, clamped: NDArray[np.bool_], plain: Floats
) -> dict[str, Any]:
    """What the tables and panels show of one condition; `plain` are distances of non-members without privacy."""
    power = np.log10(np.maximum(distance, 1e-9))
    parts = {"members": member, "others": ~member}
    return {
        "median": {name: float(np.median(distance[of])) for name, of in parts.items()},
        "clamped": float(clamped[~member].mean()),
        "from_baseline": float(ks_2samp(distance[~member], plain).statistic),
        "unclamped_from_baseline": float(ks_2samp(distance[~member & ~clamped], plain).statistic),
        "members_from_others": float(ks_2samp(distance[member], distance[~member]).statistic),
        "lrt_members_from_others": float(ks_2samp(lrt[member], lrt[~member]).statistic),
        "by_chance": float(1.36 * np.sqrt(1 / member.sum() + 1 / (~member).sum())),
        "log_histogram": {name: histogram(power[of], EDGES) for name, of in parts.items()},
        "histogram": {name: histogram(distance[of], LINEAR_EDGES) for name, of in parts.items()},
        "lrt_histogram": {name: histogram(lrt[of], LRT_EDGES) for name, of in parts.items()},
    }


def run(setting: Setting, progress: Progress) -> dict[str, Any]:
    """All conditions of a setting, targets put together."""
    task = synthetic(setting.columns, rows=setting.rows + 2 * SCORED)
    each = []
    for trial in range(setting.targets):
        progress(setting.title, trial, setting.targets)
        each.append(target(setting, task, trial))
    member = np.tile(np.arange(setting.rows + SCORED) < setting.rows, setting.targets)
    cells: dict[str, Any] = {}
    plain = np.empty(0)
    for parts in zip(*each, strict=True):
        distance, lrt, clamped = (np.concatenate([p[k] for p in parts]) for k in ("distance", "lrt", "clamped"))
        title, epsilon = parts[0]["condition"], parts[0]["epsilon"]
        plain = distance[~member] if title == BASELINE else plain
        name = title if title == BASELINE else f"{title}, epsilon {epsilon:g}"
        cells[name] = summary(member, distance, lrt, clamped, plain)
    return {"columns": setting.columns, "rows": setting.rows, "targets": setting.targets, "cells": cells}


def show(found: dict[str, Any]) -> str:
    """One line a condition."""
    rows = [
        (name, *(f"{c[k]:.3f}" for k in ("clamped", "from_baseline", "members_from_others", "lrt_members_from_others")),
         f"{c['median']['others']:.2f}")
        for name, c in found["cells"].items()
    ]  # fmt: skip
    return table(("condition", "clamped", "from baseline", "members", "members, LRT", "median"), rows)


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    p = parser("recourse_distances", __doc__)
    p.add_argument("--rows", type=int, help="only settings of Figure 4 with so many rows; the others are kept")
    options = p.parse_args(argv)
    parts = Parts(options.cache / "recourse_distances", __package__)
    start, out = time.perf_counter(), destination(options)
    results: dict[str, Any] = earlier(out, options.quick) if options.rows else {}
    for figure, settings in (QUICK if options.quick else SETTINGS).items():
        for setting in settings:
            if (figure == "figure 5" and options.rows) or options.rows not in (None, setting.rows):
                continue
            title = f"{figure}: {setting.title}"
            about = [figure, setting.columns, setting.rows, setting.epsilons, setting.conditions, setting.targets]
            began = time.perf_counter()
            results[title] = parts.get(about, lambda s=setting: rounded(run(s, Progress())))  # type: ignore[misc]
            results[title]["run"] = provenance(time.perf_counter() - began)
            print(f"\n{title}\n{show(results[title])}", flush=True)
            write_json(out, {
                "suite": "recourse_distances",
                "quick": options.quick,
                "paper": "Huang, Swoopes, Xiao, Ma & Lakkaraju 2023, Figures 4 and 5",
                "edges": {"log10": EDGES.tolist(), "linear": LINEAR_EDGES.tolist(), "lrt": LRT_EDGES.tolist()},
                "results": results,
                "run": provenance(time.perf_counter() - start),
            })  # fmt: skip
    return concluded([], out)


if __name__ == "__main__":
    finish(main)
