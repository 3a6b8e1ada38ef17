"""Does a limit on looks at one map stop the attacker who asks about it many times, and whom else does it stop?

Asked is `safexplain.serve.budget.Budget` itself, question by question, with 5 looks and no other limit: by honest
clients with distinct examples in random order, and by a client that asks the plain query about an example and 200
dithered ones (`scripts`). Changes are mean Euclidean ones, in units of the .01 quantile of the distances of public rows
to the nearest other one. The suite fails if, at the default quantile, a script whose change is at most .8 gets more
than a tenth of its questions answered, or more than 1 % of honest ones are refused.

    python -m audit.suites.dithering [--task digits|heloc|cifar10|all] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from safexplain.audit import train_shadows
from safexplain.errors import BudgetExhausted
from safexplain.serve.budget import Budget, Likeness, Limits
from safexplain.serve.questions import Questions

from ...shared.run import Parts, Progress, Run, Unusable
from ..releases.tasks import TASKS, Task
from .scripts import QUERIES, SCRIPTS, Attacker, flat

Floats = NDArray[np.floating[Any]]

QUANTILES = (0.001, 0.01, 0.1)
DEFAULT = Limits().quantile
HISTORIES = (0, 100, 300, 1000, 3000)
"""How many a client asked before, in steps."""
LOOKS = Limits().looks
NO_LIMIT = 10**9
NEAR, MOST_ANSWERED, MOST_REFUSED = 0.8, 0.1, 0.01
"""Up to which change scripts are to be stopped; shares of their questions answered, and of honest ones refused."""
DATA = ("digits", "heloc", "cifar10")
CODE = ("safexplain.serve.budget", "safexplain.audit.queries")
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
    budget = Budget(Questions(None), Limits(questions=NO_LIMIT, looks=looks, quantile=quantile))
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
    seen = free.questions.history("client", free.likeness.space)
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
    """The same without sketches: scaled inputs, all pairs."""
    like = budget_of(task, quantile).likeness
    assert like is not None
    rows = np.unique(flat(task.public.x.numpy()), axis=0) * like.scale
    asked = np.clip(flat(x), like.low, like.high) * like.scale
    threshold = float(np.quantile(nearest(rows), quantile))
    found = np.zeros(len(x), bool)
    for i in range(1, len(x)):
        found[i] = cdist(asked[i : i + 1], asked[:i]).min() <= threshold
    return found


def nearest(rows: Floats) -> Floats:
    """(n,) distance of each row to the nearest other one."""
    between = cdist(rows, rows)
    np.fill_diagonal(between, np.inf)
    return between.min(1)  # type: ignore[no-any-return]


def through(attacker: Attacker, script: str, quantile: float, examples: int) -> dict[str, Any]:
    """How many of the plain and the dithered queries about each of some examples are answered."""
    task, found = attacker.task, []
    unit = np.quantile(nearest(np.unique(flat(task.public.x.numpy()), axis=0)), DEFAULT)
    budget = budget_of(task, quantile)
    for i, row in enumerate(np.random.default_rng(1).permutation(len(task.pool))[:examples].tolist()):
        x = np.concatenate([flat(task.pool.x[row : row + 1].numpy()), SCRIPTS[script](attacker, row)])
        count = answered(budget, f"client {i}", x.astype(np.float32).reshape(-1, *task.shape))
        found.append((count, np.linalg.norm(x[1:] - x[0], axis=1).mean() / unit, attacker.kept(x)))
    counts, change, kept = zip(*found, strict=True)
    return {
        "script": script, "quantile": quantile, "asked_about": examples, "mean": float(np.mean(counts)),
        "least": min(counts), "most": max(counts), "change": float(np.mean(change)), "map": float(np.mean(kept)),
    }  # fmt: skip


def of_budgets(task: Task, quick: bool, options: Any, parts: Parts, progress: Progress) -> dict[str, Any]:
    """What is answered: `honest` and `through`."""
    key = [task.name, quick]
    everyone = np.ones((1, len(task.public)), bool)
    (model,) = train_shadows(task.public, task.train, build=task.build, membership=everyone,
                             cache=str(options.cache / "models"), progress=progress).models  # fmt: skip
    likeness = budget_of(task, DEFAULT).likeness
    assert likeness is not None
    found: dict[str, Any] = {
        "public": len(task.public), "examples": len(task.pool), "features": task.features,
        "sketch": int(likeness.sketch(task.pool.x[:1].numpy()).shape[1]), "honest": [], "through": [],
    }  # fmt: skip
    examples = 2 if quick else 4 if task.image else 10
    for quantile in (DEFAULT,) if quick else QUANTILES:
        found["honest"] += parts.get([*key, "honest", quantile], lambda q=quantile: list(honest(task, q)))
        attacker = Attacker(task, model, quantile)
        for script in SCRIPTS:
            made = parts.get([*key, "through", quantile, script],
                             lambda a=attacker, s=script, q=quantile: through(a, s, q, examples))  # fmt: skip
            found["through"].append(made)
            print(f"{task.name:8} {quantile:5g} {script:30}: {made['mean']:6.1f} answered ({made['least']} to"
                  f" {made['most']}), change {made['change']:.2f}, map {made['map']:.3f}", flush=True)  # fmt: skip
    for row in found["honest"]:
        print(f"{task.name:8} {row['quantile']:5g} after {row['asked_before'][0]:5}: taken {row['taken']:.3%}, exactly"
              f" {row['exact']:.3%}, refused {row['refused']:.3%}", flush=True)  # fmt: skip
    return {**found, "data": task.source}


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    run = Run("dithering", __doc__, argv, task={"choices": (*DATA, "all"), "default": "all"})
    warnings.filterwarnings("ignore", module="captum")
    parts, results = run.parts(__package__, *CODE), run.earlier()
    for name in DATA if run.options.task == "all" else (run.options.task,):
        try:
            task = TASKS[name]("quick" if run.quick else "small", run.options.data)
        except Unusable as error:
            if run.options.task != "all":
                raise
            print(f"skipped {name}: {error}", flush=True)
            continue
        found = of_budgets(task, run.quick, run.options, parts, Progress(f"{name}: "))
        results[name] = found | {"run": run.provenance()}
        run.write(looks=LOOKS, queries=QUERIES, default=DEFAULT, results=results)
    return run.end(judged(results))


def judged(results: dict[str, Any]) -> list[str]:
    """Targets that were missed: honest questions are taken for looks at most about as often as the quantile says and
    hardly refused, and scripts of small changes are stopped."""
    missed = []
    for name, found in results.items():
        for row in found["honest"]:
            if row["asked_before"][0] and row["taken"] > 3 * row["quantile"] + 2 / row["questions"]:
                missed.append(
                    f"{name}: {row['taken']:.1%} of honest questions are looks at quantile {row['quantile']:g}"
                )
        asked = [row for row in found["honest"] if row["quantile"] == DEFAULT]
        refused = sum(row["refused"] * row["questions"] for row in asked)
        if refused > MOST_REFUSED * sum(row["questions"] for row in asked):
            missed.append(f"{name}: {refused:.0f} honest questions are refused")
        for row in found.get("through", ()):
            near = row["quantile"] == DEFAULT and row["change"] <= NEAR
            if near and row["mean"] > MOST_ANSWERED * (QUERIES + 1):
                missed.append(f"{name}: {row['mean']:.0f} questions of '{row['script']}' are answered")
    return missed
