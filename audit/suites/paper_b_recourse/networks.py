"""Attacks on recourse of networks: without privacy, stopped early or trained to the end, and from private networks.

The search of `safexplain.recourse` answers from multilayer perceptrons about every row of the pools of
`evidence`. What an attacker gets is the answer: decision, score, distance, and the row that would be accepted;
what he knows besides is the label of the one he asks about. Private networks are trained by `DPFineTuner`, from random
weights, at fixed settings that nothing was tuned on, and their answers are post-processing.

    python -m audit.suites.paper_b_recourse.networks [--task NAME ...] [--models N] [--out FILE] [--quick]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from safexplain.audit import Policy, Recipe
from safexplain.audit.certify import certify
from safexplain.audit.collect_recourse import collect_recourse, explain
from safexplain.audit.references.shadows import train_one
from safexplain.dp import DPFineTuner
from safexplain.recourse import DPModelRecourse
from safexplain.recourse.networks.search import network_recourse
from safexplain.recourse.solution import Solution

from ...shared.run import Progress, Run, finish, rounded
from .cells import attacked, biased, rows_of, show, strongest
from .conditions import ceiling
from .tasks import FLAGS, QUICK, TASKS, Floats, Plan, Task, chosen

SEED = 0
WIDTH = 64
TO_THE_END = "without privacy, to the end"
DELTA = 1e-5
POLICY = Policy(fpr=0.01, max_tpr=0.03, patience=(1,))
NETWORKS = {
    "heloc": replace(TASKS["heloc"], models=12),
    "heloc, label of the paper": replace(TASKS["heloc, label of the paper"], models=12),
    "adult": replace(TASKS["adult"], models=6),
    "mnist 3/8": replace(TASKS["mnist 3/8"], models=8),
}
"""Tasks of `evidence` on which networks are asked."""


@dataclass(frozen=True, eq=False)
class Native:
    """A network without privacy."""

    model: nn.Module  # trained

    def explain(self, x: Floats) -> Solution:
        """The nearest rows that the search finds."""
        return network_recourse(self.model, x)


@dataclass(frozen=True)
class Condition:
    """How a network is trained."""

    title: str  # of the condition
    epochs: int  # over the members; for a private network, expected ones
    epsilon: float | None = None  # under substitution; None: without privacy

    def trained(self, x: Floats, y: NDArray[Any], seed: int) -> Any:
        """What answers, trained on (x, y)."""
        rows, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
        seed %= 2**31
        network = perceptron(x.shape[1], seed)
        if self.epsilon is None:
            generator = torch.Generator().manual_seed(seed)
            recipe = Recipe(epochs=self.epochs, batch_size=256, lr=2e-3)
            return Native(train_one(recipe, network, rows, labels, generator))
        tuner = DPFineTuner(
            network,
            (rows, labels),
            epsilon=self.epsilon,
            delta=DELTA,
            epochs=self.epochs,
            batch_size=min(512, len(rows) // 4),
            lr=2e-3,
            pretrained=False,
            seed=seed,
            device="cpu",
            progress=lambda *_: None,
        )
        return DPModelRecourse(tuner.fit(), epsilon=self.epsilon, delta=DELTA)


CONDITIONS = (
    Condition("without privacy, stopped early", 5),
    Condition(TO_THE_END, 200),
    Condition("DPModelRecourse, epsilon 1", 30, 1.0),
    Condition("DPModelRecourse, epsilon 8", 30, 8.0),
)


def perceptron(columns: int, seed: int) -> nn.Module:
    """Two hidden layers; rows of norm 1 are scaled to a mean square of 1."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        first, middle, last = nn.Linear(columns, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
    return nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), last)


def measured(task: Task, plan: Plan, condition: Condition, progress: Callable[..., None]) -> dict[str, Any]:
    """Train, ask, attack: what the suite writes about a task under a condition.

    `distance` is the median way of those who are refused, in units of rows of norm 1; where a network accepts no row at
    all (`valid` 0), collected distances are scores.
    """
    x = task.x * np.sqrt(task.x.shape[1])
    found: list[float] = []
    guarantees: list[dict[str, Any]] = []

    def train(rows: Floats, labels: NDArray[Any], seed: int) -> Any:
        answering = condition.trained(rows, labels, seed)
        found.append(float(explain(answering, x[:500]).valid.mean()))
        if condition.epsilon is not None:
            guarantees.append(answering.guarantee.to_dict())
        return answering

    signals = collect_recourse(
        train, x, task.y, models=plan.models, size=plan.size, keep_changes=False, seed=SEED, progress=progress
    )
    member, right = signals.membership, signals.values["label"] == task.y
    way = np.median(signals.values["distance"][signals.values["label"] == 0])
    promised = max(((g["epsilon"], g["delta"]) for g in guarantees), default=None)
    cell: dict[str, Any] = {
        "epsilon": condition.epsilon,
        "stated": None if promised is None else {"epsilon": promised[0], "delta": promised[1]},
        "ceiling": None if promised is None else ceiling(*promised),
        "examples": len(signals),
        "members_a_model": float(member.sum(1).mean()),
        "train_accuracy": float(right[member].mean()),
        "test_accuracy": float(right[~member].mean()),
        "valid": float(np.mean(found)),
        "distance": float(way) / float(np.sqrt(task.x.shape[1])),
        "verdict": certify(signals, POLICY).verdict,
        "attacks": [attacked(signals, row, SEED) for row in rows_of(signals)],
    }
    written: dict[str, Any] = rounded(cell)
    return written


def missed(results: dict[str, Any]) -> list[str]:
    """Targets that the results miss, in words."""
    wrong = []
    for task, result in results.items():
        for title, found in result["cells"].items():
            for a in found["attacks"] if found["ceiling"] is not None else ():
                if a["balanced_accuracy"]["low"] > found["ceiling"]:
                    name = f"{a['attack']} on {a['signal']}"
                    wrong.append(f"{task}, {title}: {name} finds more than what is proven allows")
            wrong += biased(f"{task}, {title}", found)
    heloc = results.get("heloc", {}).get("cells", {})
    if heloc and strongest(heloc[TO_THE_END])["auc_low"] < 0.6:
        wrong.append("heloc: no attack finds the members of networks that know them by heart")
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    run = Run("recourse_networks", __doc__, argv, **FLAGS)
    parts, results, wrong = run.parts(__package__), dict[str, Any](), list[str]()
    quick = {"breast cancer": QUICK["breast cancer"]}
    for name, plan in chosen(run.options, quick if run.quick else NETWORKS).items():
        task, cells = plan.make(run.options.data), {}
        for condition in CONDITIONS:
            progress = Progress(f"{name}: {condition.title}: ")
            about = [name, plan.models, plan.size, SEED, task.source, condition.title]
            cells[condition.title] = parts.get(about, partial(measured, task, plan, condition, progress))
            show(f"{name}, {condition.title}", cells[condition.title])
        results[name] = {"task": task.source, "models": plan.models, "cells": cells, "run": run.provenance()}
        wrong = [] if run.quick else missed(results)
        run.write(policy={"fpr": POLICY.fpr, "max_tpr": POLICY.max_tpr}, results=results, targets_missed=wrong)
    return run.end(wrong)


if __name__ == "__main__":
    finish(main)
