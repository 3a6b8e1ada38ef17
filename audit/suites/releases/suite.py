"""Which releases add nothing to the labels of the same queries, and which of them are the most useful.

Models that overfit are asked about every example once and many times; every release is made of the same native maps and
judged by the attacks of an audit, each stacked with the labels of the same queries (releases with noise are asked once
with it, and often without: that is what averaging leaves). "adds" is the TPR at 1 % FPR of the stacked attack that adds
most, less that of the labels, as a mean over targets; its upper bound is the largest one-sided 95 % bound of all
attacks, from resampled examples (of GTSRB: tracks). Deletion and insertion set features with values above 0 to 0. A
release passes if it adds at most 1 point of TPR and .02 of AUC at every level, both with their bounds, and if its
deletion is at most .02 below the native one and above that of public models. With `--order`, only whether the order of
a set adds anything is measured. Definitions: “Method” in page.md.

    python -m audit.suites.releases [--task digits|heloc|heloc_trees|cifar10|gtsrb|all] [--full | --order]
                                    [--device cuda] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safexplain.audit import Policy, Shadows, Signals, train_shadows, utility
from safexplain.audit.answers import Predictions, summarise
from safexplain.audit.attacks.learned import Stacked
from safexplain.audit.attacks.suite import VIEWS, Scorer, Signal, SuiteRow, fitting, values_of
from safexplain.outputs import are_probabilities
from safexplain.verdict.judgement import WHOLE_MAP, at_level

from ...shared.resampling import interpolated_rates, weights_of
from ...shared.run import Parts, Progress, Run
from .formats import ORDERED, SET, Release, releases
from .tasks import NATIVE, TASKS, Asked, Models, Task, ask, predictions

Floats = NDArray[np.floating[Any]]

FPRS = (0.01, 0.05)
ONE_SIDED, TWO_SIDED = 1.6449, 1.96
MOST_TPR, MOST_AUC, MOST_FAITHFULNESS = 0.01, 0.02, 0.02
PUBLIC_MODELS = 5
FEWER = (1, 12)
"""Levels for all but the first explainer of a task, in small runs."""
RESAMPLES = {"quick": 50, "small": 400, "full": 1000}
PUBLIC, STUDENT = "public models", "student of the labels"
ORDER_AT = (1, 32)
"""Levels of `--order`."""
CODE = (
    "safexplain.audit.attacks.suite",
    "safexplain.audit.attacks.learned",
    "safexplain.audit.queries",
    "safexplain.hardening.clips",
)
"""What the stored cells depend on, beside the code here."""


class Always(Stacked):
    """The stack that never keeps to its first column."""

    def _adds(self, x: Any, y: Any) -> bool:
        return True


@dataclass
class Cell:
    """One task and explainer: what was asked, and everything that is measured of a release."""

    task: Task  # of the cell
    explainer: str  # a name in `NATIVE`
    shadows: Shadows  # the audited models
    said: Predictions  # what they predict
    native: Asked  # their maps
    resamples: int  # of the examples
    learned: bool  # whether attacks that are trained on whole maps run too
    without: dict[int, Scorer]  # of each target, what another cell found in the labels of the same queries

    @cached_property
    def weights(self) -> Floats:
        """How often each example counts, as `weights_of`."""
        return weights_of(len(self.task.pool), self.resamples, groups=self.task.pool.groups)

    def signals(self, maps: dict[int, Floats]) -> Signals:
        """What an attacker sees, at each level: released maps, their summaries, and the labels."""
        values = {k: v for k, v in self.said.values.items() if k.partition("@")[0] in ("label", "kept", "shares")}
        for level, released in maps.items():
            each = [summarise(torch.from_numpy(rows)) for rows in released]
            for name in each[0]:
                values[at_level(name, level)] = np.stack([found[name].numpy() for found in each])
            if level > 1:
                values[at_level(WHOLE_MAP, level)] = released.astype(np.float32)
        meta = {"shape": list(self.task.shape)} if maps[1].shape[2] == self.task.features else {}
        return Signals(self.shadows.membership, values, maps[1].astype(np.float32), meta)

    def judged(self, maps: dict[int, Floats]) -> dict[str, Any]:
        """{level: what each stacked attack adds to the labels}, and the labels alone."""
        signals = self.signals(maps)
        rates = rates_of(signals, self.task.levels, self.learned, self.task.targets, self.weights, FPRS, self.without)
        found: dict[str, Any] = {}
        for level in self.task.levels:
            mine = {row: mean for row, mean in rates.items() if row.level == level}
            labels = next(row for row in mine if row.baseline)
            added = {
                (f"{row.name} on {row.signal}" if type(row.attack) is not Always else "Stacked, always"): {
                    name: estimate(mine[row][k] - mine[labels][k]) for k, name in enumerate(("auc", "tpr", "tpr5"))
                }
                for row in mine
                if row.role == "explanation+label" and row.attack.__class__ in (Stacked, Always)
            }
            found[str(level)] = {
                "labels": {name: float(mine[labels][k][0]) for k, name in enumerate(("auc", "tpr", "tpr5"))},
                "attacks": added,
            }
        return found

    def useful(self, released: Floats) -> dict[str, float]:
        """Agreement with the native maps of the plain query, faithfulness and signs, over all targets."""
        t = self.task.targets
        native = np.array(self.native.maps[:t, 0])
        d = native.shape[2]
        k = self.task.top(d)
        pair = [a[:t].reshape(-1, a.shape[2]) for a in (native, released)]
        said = utility(*pair, top_fraction=k / d)
        lost, gained = zip(
            *(
                faithful(model, self.task.pool.x, self.native.labels[i], rows, k)
                for i, (model, rows) in enumerate(zip(self.shadows.models, released[:t], strict=False))
            ),
            strict=True,
        )
        signs, top = wrong_signs(*pair, k)
        return {
            "overlap": said.top_overlap,
            "rank_correlation": said.rank_correlation,
            "cosine": said.cosine,
            "utility": float(np.mean([said.top_overlap, said.rank_correlation, said.cosine])),
            "deletion": float(np.mean(lost)),
            "insertion": float(np.mean(gained)),
            "sign_errors": signs,
            "sign_errors_top": top,
        }

    def measure(self, release: Release, asked: Asked | None = None) -> dict[str, Any]:
        """Everything about a release."""
        if asked is not None and asked.maps.shape[1] == 1:
            return {"levels": {}, **self.useful(asked.average(release, 1))}
        maps = {level: (asked or self.native).average(release, level) for level in self.task.levels}
        return {"levels": self.judged(maps), **self.useful(maps[1])}


def rates_of(
    signals: Signals, levels: tuple[int, ...], learned: bool, targets: int, weights: Floats, fprs: tuple[float, ...],
    known: dict[int, Scorer],
) -> dict[SuiteRow, Floats]:  # fmt: skip
    """Attack -> (1 + FPRs, 1 + resamples) AUC and TPRs, mean over the first models as targets."""
    rows = [apart(row) for row in stacked_with_labels(signals, levels, learned)]
    views = {f"{view}_{name}": made(values_of(signals, [Signal.parse(name)])) for name in maps_of(signals)
             for view, made in VIEWS.items()}  # fmt: skip
    signals = replace(signals, values={**signals.values, **views})
    rates: dict[SuiteRow, list[tuple[Floats, ...]]] = {row: [] for row in rows}
    training = np.ones(len(signals), dtype=bool)
    for target in range(targets):
        scorer = Scorer(signals, rows, target=target, training=training, known=known.get(target))
        known.setdefault(target, scorer)
        for row, scores in zip(rows, scorer.scores(target), strict=True):
            rates[row].append(interpolated_rates(scores, signals.membership[target], weights, fprs))
    return {row: np.mean(found, axis=0) for row, found in rates.items()}


def stacked_with_labels(signals: Signals, levels: tuple[int, ...], learned: bool) -> Iterator[SuiteRow]:
    """The suite's attacks that are stacked with the labels, the labels alone, and the stack that always uses both."""
    for row in fitting(signals, Policy(patience=levels, training=0.0)):
        if not (row.baseline or (row.role == "explanation+label" and row.columns)):
            continue
        if not learned:
            if row.columns and row.columns[-1].learns and row.name != "Stacked":
                continue
            row = smaller(row)
        yield row
        if row.name == "Stacked" and not row.baseline:
            yield replace(row, name="Always", attack=Always(row.attack.fpr))  # type: ignore[attr-defined]


def maps_of(signals: Signals) -> list[str]:
    """Names of the whole maps."""
    return [WHOLE_MAP, *(name for name in signals.values if name.startswith(f"{WHOLE_MAP}@"))]


def apart(row: SuiteRow) -> SuiteRow:
    """The row with its views as signals of their own, which are made once for all targets."""
    name, colon, view = row.signal.partition(":")
    signal = f"{view}_{name}" if colon and view in VIEWS and not row.columns else row.signal
    return replace(row, signal=signal, columns=tuple(map(apart, row.columns)))


def smaller(row: SuiteRow) -> SuiteRow:
    """The row without attacks on whole maps."""
    return replace(row, columns=tuple(smaller(c) for c in row.columns if not c.learns))


def estimate(replicates: Floats) -> dict[str, float]:
    """The value and its standard error."""
    return {"value": float(replicates[0]), "se": float(replicates[1:].std(ddof=1))}


def spread(maps: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(n, k) released numbers as one a feature: groups of a digit are its 16 squares."""
    d = int(np.prod(shape))
    if maps.shape[1] == d:
        return maps
    square = (torch.arange(8)[:, None] // 2 * 4 + torch.arange(8)[None] // 2).flatten()
    return maps[:, square]


def faithful(model: nn.Module, x: Tensor, labels: NDArray[np.int64], maps: Floats, k: int) -> tuple[float, float]:
    """Deletion and insertion of the released top k numbers above zero, ties at random, baseline 0."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(np.array(maps)).double()
    order = torch.randperm(rows.shape[1], generator=draw)
    shuffled = rows[:, order]
    place = shuffled.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    chosen = torch.zeros_like(rows, dtype=torch.bool)
    chosen[:, order] = (place < k) & (shuffled > 0)
    keep = spread(chosen.float(), tuple(x.shape[1:])).view_as(x)
    target = torch.from_numpy(labels)[:, None]

    def probability(inputs: Tensor) -> Tensor:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with torch.no_grad():
            p = model(inputs.to(device)).cpu()
        return (p if are_probabilities(p) else p.softmax(1)).gather(1, target)[:, 0]

    lost = probability(x) - probability(x * (1 - keep))
    gained = probability(x * keep) - probability(torch.zeros_like(x))
    return float(lost.mean()), float(gained.mean())


def wrong_signs(native: Floats, released: Floats, k: int) -> tuple[float, float]:
    """Share of released numbers but zeros whose sign is not the native one; of maps with one such in their top k."""
    if native.shape != released.shape:
        return float("nan"), float("nan")
    wrong = (np.sign(native) != np.sign(released)) & (released != 0)
    top = np.argsort(-np.abs(released), axis=1, kind="stable")[:, :k]
    some = np.take_along_axis(wrong, top, 1).any(1).mean()
    return float(wrong.sum() / max(int((released != 0).sum()), 1)), float(some)


# ------------------------------------------------------------------------------------------------------- other models


def students(task: Task, shadows: Shadows, folder: Path, device: str) -> Models:
    """For every audited model one trained on public examples with the labels that it gives them."""
    out = []
    for i, model in enumerate(shadows.models):
        with torch.no_grad():
            labels = model(task.public.x.to(device)).argmax(1).cpu()
        public = replace(task.public, y=labels, groups=None)
        everyone = np.ones((1, len(public)), dtype=bool)
        trained = train_shadows(public, task.train, build=task.build, membership=everyone, seed=1000 + i, device=device,
                                cache=str(folder))  # fmt: skip
        out.append(trained.models)
    return out


def public_models(task: Task, folder: Path, device: str) -> tuple[nn.Module, ...]:
    """Trained on public examples with their true labels."""
    everyone = np.ones((PUBLIC_MODELS, len(task.public)), dtype=bool)
    trained = train_shadows(task.public, task.train, build=task.build, membership=everyone, seed=2000, device=device,
                            cache=str(folder))  # fmt: skip
    return trained.models


# ---------------------------------------------------------------------------------------------------------- judgement


def worst(figures: dict[str, Any], what: str) -> dict[str, Any]:
    """Over levels and attacks: the largest value with its level and attack, and the largest upper bounds."""
    each = [
        (level, attack, found[what])
        for level, at in figures["levels"].items()
        for attack, found in at["attacks"].items()
        if attack != "Stacked, always"
    ]
    if not each:
        return {"value": 0.0, "se": 0.0, "level": 0, "attack": "none was run", "upper": 0.0}
    level, attack, top = max(each, key=lambda e: e[2]["value"])
    return {
        "value": top["value"],
        "se": top["se"],
        "level": int(level),
        "attack": attack,
        "upper": max(e["value"] + ONE_SIDED * e["se"] for *_, e in each),
    }


def complete(figures: dict[str, Any], what: str, name: str = "Stacked on") -> dict[str, float]:
    """Of the complete stack, at the level where it adds most."""
    each = [
        found[what]
        for at in figures["levels"].values()
        for attack, found in at["attacks"].items()
        if attack.startswith(name)
    ]
    return max(each, key=lambda e: float(e["value"]), default={"value": 0.0, "se": 0.0})


def judge(rows: dict[str, Any]) -> dict[str, Any]:
    """Of each release of a cell: what it adds at most, and whether it passes."""
    native = rows["native"]["deletion"]
    public = rows[PUBLIC]["deletion"] if PUBLIC in rows else -np.inf
    out = {}
    for name, figures in rows.items():
        tpr, auc = worst(figures, "tpr"), worst(figures, "auc")
        holds = tpr["upper"] <= MOST_TPR and auc["upper"] <= MOST_AUC
        faithfully = figures["deletion"] >= native - MOST_FAITHFULNESS and figures["deletion"] > public
        out[name] = {"tpr": tpr, "auc": auc, "safe": bool(holds), "faithful": bool(faithfully),
                     "passes": bool(holds and faithfully)}  # fmt: skip
    return out


def front(rows: dict[str, Any], judged: dict[str, Any]) -> list[str]:
    """Releases that no other beats or equals in all of: what they add (TPR), U, deletion, insertion, wrong signs."""

    def figures(name: str) -> Floats:
        r = rows[name]
        wrong = 0.0 if r["sign_errors"] is None or np.isnan(r["sign_errors"]) else r["sign_errors"]
        adds = max(judged[name]["tpr"]["value"], 0.0)
        return np.array([-adds, r["utility"], r["deletion"], r["insertion"], -wrong])

    named = [n for n in rows if n not in ("random map", PUBLIC, STUDENT)]
    return [
        n
        for n in named
        if not any((figures(o) >= figures(n)).all() and (figures(o) > figures(n)).any() for o in named if o != n)
    ]


def run_task(task: Task, size: str, options: Any, parts: Parts) -> dict[str, Any]:
    """All explainers of a task: {explainer: {release: figures}}, and what the models learned."""
    progress = Progress(f"{task.name}: ")
    store = options.cache / "models"
    shadows = train_shadows(task.pool, task.train, build=task.build, models=task.models, device=options.device,
                            cache=None if task.build is None else str(store), progress=progress)  # fmt: skip
    said = predictions(task, shadows, progress)
    labels = said.values["label"].astype(np.int64)
    right = labels == task.pool.y.numpy()
    member = shadows.membership
    learned = {"members": float(right[member].mean()), "non_members": float(right[~member].mean())}
    print(f"{task.name}: {len(task.pool)} examples, right on {learned['members']:.1%} of members,"
          f" {learned['non_members']:.1%} of others", flush=True)  # fmt: skip
    others: dict[str, Models] = {PUBLIC: [public_models(task, store, options.device)] * task.models}
    if task.students:
        others[STUDENT] = students(task, shadows, store, options.device)
    cells, without = {}, {task.levels: dict[int, Scorer]()}
    for explainer in task.explainers:
        progress.prefix = f"{task.name} {explainer}: "
        first = size != "small" or explainer == task.explainers[0]
        same = task if first else replace(task, levels=FEWER)
        heard = said if first else predictions(same, shadows, progress)
        native = ask(same, [(m,) for m in shadows.models], labels, explainer, options.cache, progress)
        cell = Cell(same, explainer, shadows, heard, native, RESAMPLES[size], size == "full",
                    without.setdefault(same.levels, {}))  # fmt: skip
        attacked = size == "full" or (cells == {} and task.name == "digits")
        once = same if attacked else replace(task, levels=(1,))
        explained = labels if attacked else labels[: task.targets]
        asked = partial(ask, once, labels=explained, explainer=explainer, cache=options.cache, progress=progress)
        rows = dict(
            run_cell(cell, size, parts, {n: partial(asked, models[: len(explained)]) for n, models in others.items()})
        )
        judged = judge(rows)
        best = front(rows, judged)
        cells[explainer] = {
            "kind": NATIVE[explainer][0],
            "features": int(native.maps.shape[3]),
            "levels": list(same.levels),
            "releases": {n: rows[n] | {"judged": judged[n], "front": n in best} for n in rows},
        }
        print(f"{task.name} {explainer}: pass: {', '.join(n for n in rows if judged[n]['passes'])}", flush=True)
        print(f"{task.name} {explainer}: front: {', '.join(best)}", flush=True)
    return {"accuracy": learned, "examples": len(task.pool), "models": task.models, "targets": task.targets,
            "levels": list(task.levels), "dither": task.dither.to_dict(), "resamples": RESAMPLES[size],
            "cells": cells}  # fmt: skip


def run_cell(
    cell: Cell, size: str, parts: Parts, others: dict[str, Callable[[], Asked]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every release and its figures, stored as soon as they are there; `others`: maps of other models."""
    task, explainer = cell.task, cell.explainer
    chosen = releases(task, explainer, cell.native.maps.shape[3])
    if size == "quick":
        chosen = {n: chosen[n] for n in ("native", "random map", SET)}
    if task.levels == ORDER_AT:
        chosen, others = {n: chosen[n] for n in ("native", "random map", SET, ORDERED)}, {}
    if size == "small":
        tier = 0 if explainer != task.explainers[0] else 2 if task.name == "digits" else 1
        chosen = {n: r for n, r in chosen.items() if r.tier <= tier}
    made: dict[str, Callable[[], dict[str, Any]]] = {n: partial(cell.measure, r) for n, r in chosen.items()}
    for name, ask_them in others.items():
        made[name] = lambda ask_them=ask_them: cell.measure(chosen["native"], ask_them())  # type: ignore[misc]
    key = [task.name, explainer, size, len(task.pool), task.models, task.targets, list(task.levels)]
    for name, make in made.items():
        figures = parts.get([*key, name], make)
        yield name, figures


def main(argv: list[str] | None = None) -> int:
    """Run the suite."""
    flag = {"action": "store_true"}
    run = Run(
        "releases", __doc__, argv, task={"choices": (*TASKS, "all"), "default": "all"},
        full={**flag, "help": "all models, targets and levels, and attacks on whole maps"},
        order={**flag, "help": "only what the order of a set adds"},
        device={"default": "cpu", "help": "where networks are trained and asked"},
    )  # fmt: skip
    options = run.options
    if options.order:
        options.name += "_order"
    warnings.filterwarnings("ignore", module="captum")
    size = "quick" if run.quick else "full" if options.full else "small"
    parts, results = Parts(options.cache / "releases", __package__ or "", *CODE), run.earlier()
    every = ("digits", "heloc", "cifar10") if options.order else tuple(TASKS)
    for name in every if options.task == "all" else (options.task,):
        task = TASKS[name](size, options.data)
        if options.order:
            task = replace(task, explainers=("InputXGradient",), levels=ORDER_AT, students=False)
        found = run_task(task, size, options, parts)
        results = {**results, name: {**found, "size": size, "data": task.source, "run": run.provenance()}}
        run.write(full=options.full, results={n: results[n] for n in TASKS if n in results})
    return run.end()
