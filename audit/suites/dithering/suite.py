"""Does a limit on looks at one map stop the attacker who asks about it many times, and whom else does it stop?

`safexplain.serve.budget.Budget` takes a question for another look at an earlier one where their sketches are closer
than a quantile of the distances of public rows to each other. Asked is `Budget` itself, question by question, with 5
looks and no other limit; what it refuses counts for nothing, and the attacker goes on.

    honest      examples of the pool, distinct and in random order, all by one client: the share that was taken for a
                look at an earlier one, by how many had been asked before, and how many were refused. "Exact": the same
                with distances of the scaled inputs themselves instead of their sketches
    through     of the plain query about an example and 200 dithered ones, how many were answered, by a client that asks
                about this example alone: mean, least and most of several examples. "Change": mean Euclidean change of
                the input, in units of the .01 quantile of the distances of public rows to the nearest other one;
                "map": mean cosine of the InputXGradient maps of dithered inputs with that of the plain one, by a model
                trained on public rows. `scripts` says what the scripts do
    labels      what the labels of 32 queries tell, by dither: AUC, TPR at 1 % and their standard errors
    patience    what an explanation (InputXGradient) adds to the labels of the same 1, 32 and 200 queries, by format;
                "few": at 32 queries, of which only 4 are explained. With noise drawn anew for every query, the dither
                of .003 is the case where labels tell nothing more and averages all

Models that overfit are attacked as `patience` says; intervals come from resampling examples with their scores against
all models. A format is safe at 1 and 32 queries where both upper 95 % bounds are below 1 point of TPR and .02 of AUC;
the suite fails if one that is safe there is above a limit at 200, by its lower bound. It also fails if, at the default
quantile, a script whose change is at most .8 gets more than a tenth of its questions answered, or more than 1 % of
honest ones are refused.

    python -m audit.suites.dithering [--task digits|heloc|cifar10|all] [--part budgets|patience|all] [--data DIR]
                                     [--out FILE] [--cache DIR] [--quick]

`--part budgets` makes `honest` and `through` anew, the only parts that depend on how near-duplicates are recognised,
and keeps the others of an earlier result.
"""

from __future__ import annotations

import hashlib
import time
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
from ..releases.tasks import TASKS, Task
from .patience import PLAIN, TINY, Patient
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
SIZES = {"digits": (33, 600), "heloc": (25, 600), "cifar10": (13, 200)}
"""Models, and examples that are asked about, of each task."""
AVERAGED = ("native", "top-k set (recommended)", "balanced ranks", *(f"ranks, noise {s}" for s in (".3", "1", "3")))
"""What is averaged over tiny dithers."""
MOST_AUC, MOST_TPR, ONE_SIDED = 0.02, 0.01, 1.645
CODE = ("safexplain.serve.budget", "safexplain.audit.queries", "safexplain.audit.attacks.stacked")
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
    seen = free.asked.seen("client", free.likeness.space)
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


def asking(task: Task, quick: bool, options: Any, progress: Progress) -> Patient:
    """The attacker, and models trained on independent coin flips: with partners, nobody could leave one out."""
    models, scored = (6, 40) if quick else SIZES[task.name]
    member = np.random.default_rng([0, 0xF11B]).random((models, len(task.pool))) < 0.5
    shadows = train_shadows(task.pool, task.train, build=task.build, membership=member,
                            cache=str(options.cache / "models"), progress=progress)  # fmt: skip
    return Patient(task, shadows, np.sort(np.random.default_rng(0).permutation(len(task.pool))[:scored]))


def of_budgets(task: Task, quick: bool, options: Any, parts: Parts, progress: Progress) -> dict[str, Any]:
    """What is answered: `honest` and `through`."""
    started, key = time.monotonic(), [task.name, quick]
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
    return {**found, "data": task.source, "run_of_budgets": provenance(time.monotonic() - started)}


def of_patience(task: Task, quick: bool, options: Any, parts: Parts, progress: Progress) -> dict[str, Any]:
    """What queries are worth: `labels` and `patience`."""
    started, key, found = time.monotonic(), [task.name, quick], dict[str, Any]()
    patient = asking(task, quick, options, progress)
    found["accuracy"] = {
        side: float((patient.label == task.pool.y[patient.rows].numpy())[of].mean())
        for side, of in (("members", patient.member), ("non_members", ~patient.member))
    }
    found["labels"] = parts.get([*key, "labels"], patient.labels)
    for name, auc in found["labels"].items():
        print(f"{task.name:8} labels {name:28} AUC {auc[0]:.3f} TPR {auc[2]:.2%} +- {auc[3]:.2%}", flush=True)
    found["patience"] = {}
    for dither, chosen in ((PLAIN, ()), (TINY, AVERAGED)):
        adds = parts.get([*key, "patience", dither], lambda d=dither, c=chosen: patient.adds(d, c))
        found["patience"][dither] = adds
        for name, levels in adds.items():
            told = (f"{level}: {r[0]:+.3f} {r[2]:+.2%} +- {r[3]:.2%}" for level, r in levels.items())
            print(f"{task.name:8} {dither} {name:26}", "; ".join(told), flush=True)
    return {**found, "data": task.source, "run": provenance(time.monotonic() - started)}


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    p = parser("dithering", __doc__)
    p.add_argument("--task", choices=(*SIZES, "all"), default="all")
    p.add_argument("--part", choices=("budgets", "patience", "all"), default="all")
    options = p.parse_args(argv)
    warnings.filterwarnings("ignore", module="captum")
    parts = Parts(options.cache / "dithering", __package__, *CODE)
    out, missing = destination(options), []
    results = earlier(out, options.quick)
    head = {"suite": "dithering", "quick": options.quick, "looks": LOOKS, "queries": QUERIES, "default": DEFAULT}
    for name in SIZES if options.task == "all" else (options.task,):
        try:
            task = TASKS[name]("quick" if options.quick else "small", options.data)
        except Unusable as error:
            if options.task != "all":
                raise
            missing.append(name)
            print(f"skipped {name}: {error}", flush=True)
            continue
        progress, found = Progress(f"{name}: "), results.get(name, {})
        if options.part != "patience":
            found = found | of_budgets(task, options.quick, options, parts, progress)
        if options.part != "budgets":
            found = found | of_patience(task, options.quick, options, parts, progress)
        results[name] = rounded(found)
        write_json(out, {**head, "results": results})
    return concluded(judged(results), out)


def judged(results: dict[str, Any]) -> list[str]:
    """Targets that were missed: honest questions are taken for looks at most about as often as the quantile says and
    hardly refused, scripts of small changes are stopped, and nothing that is safe at 1 and 32 queries leaks at 200."""
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
        for dither, adds in found.get("patience", {}).items():
            for release, levels in adds.items():
                if release != "labels" and safe(levels["1"]) and safe(levels["32"]) and leaks(levels["200"]):
                    missed.append(f"{name}: {release} is safe at 1 and 32 queries ({dither}) and leaks at 200")
    return missed


def safe(adds: list[float]) -> bool:
    """Whether both upper bounds of what is added are below the limits."""
    return adds[0] + ONE_SIDED * adds[1] <= MOST_AUC and adds[2] + ONE_SIDED * adds[3] <= MOST_TPR


def leaks(adds: list[float]) -> bool:
    """Whether a lower bound is above its limit."""
    return adds[0] - ONE_SIDED * adds[1] > MOST_AUC or adds[2] - ONE_SIDED * adds[3] > MOST_TPR
