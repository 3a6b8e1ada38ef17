"""Does a limit on looks at one map stop the attacker who asks about it many times, and whom else does it stop?

`safexplain.serve.budget.Budget` takes a question for another look at an earlier one where their sketches are closer
than a quantile of the distances of public rows to each other. Asked is `Budget` itself, question by question, with 5
looks and no other limit; what it refuses counts for nothing, and the attacker goes on.

    honest      examples of the pool, distinct and in random order, all by one client: the share that was taken for a
                look at an earlier one, by how many had been asked before, and how many were refused. "Exact": the same
                with distances of the standardised inputs themselves instead of their sketches
    through     of the plain query about an example and 200 dithered ones, how many were answered, by a client that asks
                about this example alone: mean, least and most of several examples
    attack      what those queries are worth: models that overfit are attacked by the labels alone, and by the labels
                and native InputXGradient maps (the stack of `safexplain.audit.attacks`, without the attacks that train
                on maps and without trees), at one query, at as many as got through at the defaults, and at all 200

The first five dithers are those that the audit chooses from (`safexplain.audit.queries.CANDIDATES`), the others larger.
Intervals of the attacks come from resampling examples with their scores against all targets.

    python -m audit.suites.dithering [--task digits|heloc|cifar10|all] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from safexplain.audit import Policy, Shadows, train_shadows
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.collect import collect_signals
from safexplain.audit.population import Population
from safexplain.audit.queries import CANDIDATES, Dither, Queries
from safexplain.errors import BudgetExhausted
from safexplain.serve.budget import Budget, Likeness, Limits

from ...shared.resampling import interpolated_rates
from ...shared.run import (
    Parts,
    Progress,
    Unusable,
    concluded,
    destination,
    earlier,
    parser,
    provenance,
    rounded,
    write_json,
)
from ..releases.tasks import NATIVE, TASKS, Task

Floats = NDArray[np.floating[Any]]

LARGER = (Dither("multiplicative", 1.0), Dither("additive", 0.5), Dither("additive", 1.0))
QUANTILES = (0.001, 0.01, 0.05, 0.1)
DEFAULT = Limits().quantile
HISTORIES = (0, 100, 300, 1000, 3000)
"""How many a client asked before, in steps."""
QUERIES, LOOKS = 200, Limits().looks
NO_LIMIT = 10**9
MODELS, TARGETS, EXAMPLES, RESAMPLES = 24, 4, 600, 400
ATTACKED = ("digits", "heloc")
CODE = ("safexplain.serve.budget", "safexplain.audit.attacks.scoring", "safexplain.audit.collect")
"""What stored parts depend on, beside the code here."""


def digests(x: Floats) -> list[bytes]:
    """Names of the questions; equal ones have the same."""
    return [hashlib.sha256(row.tobytes()).digest() for row in x]


def answered(budget: Budget, client: str, x: Floats) -> int:
    """How many of these questions, one after the other, are answered."""
    count = 0
    for row in x:
        try:
            budget.charge(client, digests(row[None]), row[None])
            count += 1
        except BudgetExhausted:
            pass
    return count


def budget_of(task: Task, quantile: float, looks: int = LOOKS) -> Budget:
    """In memory; the directions of its sketches are the same each time."""
    budget = Budget(None, Limits(questions=NO_LIMIT, looks=looks, quantile=quantile))
    budget.likeness = Likeness.of(task.public.x.numpy().astype(np.float32), quantile, seed="dithering")
    return budget


def honest(task: Task, quantile: float) -> Iterator[dict[str, Any]]:
    """Share of a client's distinct questions that are taken for looks, by how many it asked before."""
    x = task.pool.x.numpy().astype(np.float32)
    x = x[np.sort(np.unique(x.reshape(len(x), -1), axis=0, return_index=True)[1])]
    x = x[np.random.default_rng(0).permutation(len(x))]
    free = budget_of(task, quantile, NO_LIMIT)
    free.charge("client", digests(x), x)
    assert free.likeness is not None
    seen = free.ledger.seen("client", free.likeness.space)
    taken = np.array([question.first != question.number for question in seen])
    exact = taken_exactly(task, x, quantile)
    refused = np.ones(len(x), bool)
    strict = budget_of(task, quantile)
    for i, row in enumerate(x):
        refused[i] = not answered(strict, "client", row[None])
    edges = [h for h in HISTORIES if h < len(x)] + [len(x)]
    for before, after in pairwise(edges):
        part = slice(before, after)
        yield {
            "quantile": quantile, "asked_before": [before, after - 1], "questions": after - before,
            "taken": float(taken[part].mean()), "exact": float(exact[part].mean()),
            "refused": float(refused[part].mean()),
        }  # fmt: skip


def taken_exactly(task: Task, x: Floats, quantile: float) -> NDArray[np.bool_]:
    """The same without sketches: standardised inputs, all pairs."""
    public = np.unique(task.public.x.numpy().reshape(len(task.public), -1).astype(np.float64), axis=0)
    spread = public.std(0)
    scale = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 1e-9)
    low, high = public.min(0) * scale, public.max(0) * scale
    rows, asked = public * scale, np.clip(x.reshape(len(x), -1) * scale, low, high)
    between = cdist(rows, rows)
    np.fill_diagonal(between, np.inf)
    threshold = float(np.quantile(between.min(1), quantile))
    found = np.zeros(len(x), bool)
    for i in range(1, len(x)):
        found[i] = cdist(asked[i : i + 1], asked[:i]).min() <= threshold
    return found


def through(task: Task, dither: Dither, quantile: float, examples: int) -> dict[str, Any]:
    """How many of the plain and the dithered queries about each of some examples are answered."""
    rows = np.random.default_rng(1).permutation(len(task.pool))[:examples]
    queries = Queries.of(task.pool, dither)
    budget, found = budget_of(task, quantile), []
    asked = [queries(rows, number).numpy() for number in range(QUERIES)]
    for i, row in enumerate(rows):
        x = np.stack([task.pool.x[row].numpy().astype(np.float32), *(query[i] for query in asked)])
        found.append(answered(budget, f"client {i}", x))
    return {
        **dither.to_dict(),
        "quantile": quantile,
        "asked_about": examples,
        "mean": float(np.mean(found)),
        "least": min(found),
        "most": max(found),
    }


def attacked(
    task: Task, shadows: Shadows, pool: Population, dither: Dither, level: int, progress: Progress
) -> dict[str, Any]:
    """AUC and TPR at 1 % of labels, and of labels with maps, at one query, at `level` and at all."""
    levels = tuple(sorted({1, level, QUERIES}))
    signals = collect_signals(
        shadows, pool, NATIVE["InputXGradient"][1], patience=levels, dither=dither, targets=tuple(range(TARGETS)),
        batch_size=len(pool), progress=progress,
    )  # fmt: skip
    rows = []
    for row in fitting(signals, Policy(patience=levels, training=0.0)):
        if row.baseline:
            rows.append(row)
        elif row.name == "Stacked" and row.role == "explanation+label":
            rows.append(replace(row, columns=tuple(c for c in row.columns if not c.learns)))
    n = len(pool)
    drawn = np.random.default_rng(0xB007).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T
    weights = np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.float32)
    rates: dict[SuiteRow, list[Floats]] = {row: [] for row in rows}
    for target in range(TARGETS):
        scorer = Scorer(signals, rows, target=target, training=np.ones(n, dtype=bool))
        for row, scores in zip(rows, scorer.scores(target), strict=True):
            rates[row].append(np.array(interpolated_rates(scores, shadows.membership[target], weights, (0.01,))))
    found: dict[str, Any] = {**dither.to_dict(), "level": level}
    for row in rows:
        auc, tpr = np.mean(rates[row], axis=0)
        found[f"{'labels' if row.baseline else 'maps'} {row.level}"] = [
            float(auc[0]), float(auc[1:].std(ddof=1)), float(tpr[0]), float(tpr[1:].std(ddof=1))
        ]  # fmt: skip
    return found


def run_task(task: Task, quick: bool, options: Any, parts: Parts) -> dict[str, Any]:
    """All of a task."""
    progress, key = Progress(f"{task.name}: "), [task.name, quick]
    budget = budget_of(task, DEFAULT)
    assert budget.likeness is not None
    quantiles, dithers = ((DEFAULT,), CANDIDATES[:1]) if quick else (QUANTILES, (*CANDIDATES, *LARGER))
    found: dict[str, Any] = {
        "public": len(task.public), "examples": len(task.pool), "features": task.features,
        "sketch": int(budget.likeness.sketch(task.pool.x[:1].numpy()).shape[1]),
        "honest": [], "through": [], "attack": [],
    }  # fmt: skip
    for quantile in quantiles:
        found["honest"] += parts.get([*key, "honest", quantile], lambda q=quantile: list(honest(task, q)))
        for dither in dithers:
            made = parts.get(
                [*key, "through", quantile, dither.to_dict()],
                lambda d=dither, q=quantile: through(task, d, q, 2 if quick else 10 if task.name in ATTACKED else 4),
            )
            found["through"].append(made)
            print(f"{task.name:8} {quantile:5g} {dither.kind:14} {dither.amplitude:4g}: {made['mean']:6.1f} answered"
                  f" ({made['least']} to {made['most']})", flush=True)  # fmt: skip
    for row in found["honest"]:
        print(f"{task.name:8} {row['quantile']:5g} after {row['asked_before'][0]:5}: taken {row['taken']:.3%}, exactly"
              f" {row['exact']:.3%}, refused {row['refused']:.3%}", flush=True)  # fmt: skip
    if task.name in ATTACKED:
        pool = Population.of(task.pool.x[:EXAMPLES], task.pool.y[:EXAMPLES])
        shadows = train_shadows(pool, task.train, build=task.build, models=8 if quick else MODELS,
                                cache=str(options.cache / "models"), progress=progress)  # fmt: skip
        right = {"members": [], "non_members": []}
        for model, member in zip(shadows.models, shadows.membership, strict=True):
            correct = (model(pool.x.float()).argmax(1) == pool.y).numpy()
            right["members"].append(correct[member].mean())
            right["non_members"].append(correct[~member].mean())
        found["accuracy"] = {name: float(np.mean(values)) for name, values in right.items()}
        for dither in dithers:
            wanted = {**dither.to_dict(), "quantile": DEFAULT}
            got = next(t for t in found["through"] if wanted.items() <= t.items())
            level = max(2, min(QUERIES, round(got["mean"]) - 1))
            made = parts.get([*key, "attack", dither.to_dict(), level],
                             lambda d=dither, n=level: attacked(task, shadows, pool, d, n, progress))  # fmt: skip
            found["attack"].append({**made, "through": got["mean"]})
            for name, (auc, _, tpr, se) in ((k, v) for k, v in made.items() if isinstance(v, list)):
                print(f"{task.name:8} {dither.kind:14} {dither.amplitude:4g} {name:11} AUC {auc:.3f} TPR {tpr:.2%} +-"
                      f" {1.96 * se:.2%}", flush=True)  # fmt: skip
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    p = parser("dithering", __doc__)
    p.add_argument("--task", choices=(*ATTACKED, "cifar10", "all"), default="all")
    options = p.parse_args(argv)
    warnings.filterwarnings("ignore", module="captum")
    parts = Parts(options.cache / "dithering", __package__, *CODE)
    out, missing = destination(options), []
    results = earlier(out, options.quick)
    head = {"suite": "dithering", "quick": options.quick, "looks": LOOKS, "queries": QUERIES, "default": DEFAULT}
    for name in (*ATTACKED, "cifar10") if options.task == "all" else (options.task,):
        try:
            task = TASKS[name]("quick" if options.quick else "small", options.data)
        except Unusable as error:
            if options.task != "all":
                raise
            missing.append(name)
            print(f"skipped {name}: {error}", flush=True)
            continue
        started = time.monotonic()
        found = run_task(task, options.quick, options, parts)
        results[name] = rounded({**found, "data": task.source, "run": provenance(time.monotonic() - started)})
        write_json(out, {**head, "results": results})
    return concluded(judged(results), out)


def judged(results: dict[str, Any]) -> list[str]:
    """Targets that were missed: honest questions are taken for looks at most about as often as the quantile says."""
    missed = []
    for name, found in results.items():
        for row in found["honest"]:
            if row["asked_before"][0] and row["taken"] > 3 * row["quantile"] + 2 / row["questions"]:
                missed.append(
                    f"{name}: {row['taken']:.1%} of honest questions are looks at quantile {row['quantile']:g}"
                )
    return missed
