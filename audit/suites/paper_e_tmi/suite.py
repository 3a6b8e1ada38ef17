"""TMI (Abascal, Wu, Oprea and Ullman, PoPETs 2024(3), arXiv 2306.01181), whole: who was in the pre-training data?

A network is pre-trained on a coin-flip half of a pool of Tiny ImageNet, then gets a new head (and sometimes more) for
another task. The attacker asks it about the pool's images, whose labels are no classes of it, and guesses what it was
pre-trained on. All but the target are references, pre-trained and fine-tuned alike; each model takes its turn. Tables
1, 2, 3, 6 and 7 of the paper, and explanations of the fine-tuned network. LiRA on the pre-trained network with the true
label is the positive control, a head on networks that were never trained the null control. `evaluate.py` says how
figures are read, as published and corrected; “Method” in page.md what differs on a CPU. `--full` has the paper's
ResNet-34, crops and flips, and 129 models on 8,000 images; it resumes, and has not been run.

    python -m audit.suites.paper_e_tmi [--data DIR] [--out FILE] [--quick | --full --device cuda]
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit import Population, Shadows, fine_tune
from safexplain.audit.answers import predict

from ...shared.run import Progress, Run, rounded
from . import explanations
from .evaluate import LIRA, attacks, judged
from .tasks import CIFAR10_HEAD, FULL, QUICK, SETTINGS, Images, Setting, Size, accuracy, pretrained, untrained

Values = dict[str, NDArray[np.float64]]
IN_QUICK = (CIFAR10_HEAD, *(s for s in SETTINGS if s.trainable == "all" or s.overlap or s.backbone == "untrained"))
"""Settings of a quick run: one of each kind."""
GOALS = {"joint ratio, one query": (0.575, 0.020), "joint ratio, summed": (0.579, 0.024)}
"""Least AUC and TPR at 1 % on a CIFAR-10 head: what a prototype found (25 models)."""


class Suite:
    """Models, made when they are first needed, and the parts of the result."""

    def __init__(self, options: Namespace, size: Size) -> None:
        self.options, self.size, self.device = options, size, options.device
        self.images = Images.of(options.data, size)
        self.models, self.progress = options.cache / "models", Progress()

    @cached_property
    def shadows(self) -> Shadows:
        """The pre-trained models."""
        self.progress.prefix = "pre-training: "
        return pretrained(self.images, self.size, self.models, self.device, self.progress)

    @cached_property
    def other(self) -> Shadows:
        """Pre-trained otherwise."""
        self.progress.prefix = "other pre-training: "
        return pretrained(self.images, self.size, self.models, self.device, self.progress, other=True)

    def pretraining(self) -> dict[str, Any]:
        """What the models learned, and the positive control."""
        rows = np.arange(self.size.challenged)
        pool = self.subset(rows)
        shadows = Shadows(self.shadows.models, self.shadows.membership[:, rows])
        said = predict(shadows, pool, patience=(1,)).values
        right, member = said["label"] == pool.y.numpy(), shadows.membership
        return {
            "accuracy": {"members": float(right[member].mean()), "others": float(right[~member].mean())},
            "attacks": judged({"LiRA": LIRA}, said, member, self.size.targets),
        }

    def subset(self, rows: NDArray[np.int64]) -> Population:
        """Of the pool."""
        return Population(self.images.pool.x[rows], self.images.pool.y[rows])

    def tuned(self, setting: Setting) -> Shadows:
        """Fine-tuned models, with membership of the images that are asked about."""
        self.progress.prefix = f"{setting.name}: "
        many = setting.models(self.size)
        base = self.other if setting.backbone == "other pre-training" else self.shadows
        start = Shadows(base.models[:many], base.membership[:many])
        if setting.backbone == "untrained":
            start = untrained(start, self.images, self.size, self.device)
        how = setting.how(self.images, self.size)
        made = fine_tune(start, how, device=self.device, cache=str(self.models), progress=self.progress)
        return Shadows(made.models, made.membership[:, setting.rows(self.size)])

    def cell(self, setting: Setting) -> dict[str, Any]:
        """A line of Tables 1, 2, 3, 6 or 7."""
        tuned, size = self.tuned(setting), self.size
        values: Values = predict(
            tuned, self.subset(setting.rows(size)), patience=(1, size.queries), dither=setting.dither(size),
            labels="foreign", progress=self.progress,
        ).values  # fmt: skip
        found = judged(attacks(size.queries, size.learned), values, tuned.membership, size.targets)
        right = accuracy(tuned, self.images.tests[setting.task])
        return {"models": len(tuned.models), "accuracy": right, "attacks": found}

    def explained(self) -> dict[str, Any]:
        """Explanations of the CIFAR-10 heads."""
        setting = replace(CIFAR10_HEAD, whole=False, few=True)
        tuned, rows = self.tuned(setting), np.arange(min(self.size.explained, len(setting.rows(self.size))))
        shadows = Shadows(tuned.models, tuned.membership[:, rows])
        classes = self.images.tasks[setting.task].classes
        return {"attacks": explanations.measure(shadows, self.subset(rows), classes, self.size.targets)}


def measure(run: Run) -> dict[str, Any]:
    """Every part; finished ones are kept."""
    options, size = run.options, QUICK if run.quick else FULL if run.options.full else Size()
    suite, parts = Suite(options, size), run.parts(__package__)
    made = [suite.images.sources, asdict(size), options.device.partition(":")[0]]
    out: dict[str, Any] = {"size": asdict(size), "data": suite.images.sources, "cells": {}}

    def part(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = parts.get([name, *made], make)
        for attack, figures in found["attacks"].items():
            print(f"{name}: {attack}: AUC {figures['auc'][0]:.3f}", flush=True)
        return found

    out["pretraining"] = part("pretraining", suite.pretraining)
    for setting in IN_QUICK if run.quick else SETTINGS:
        out["cells"][setting.name] = part(setting.name, partial(suite.cell, setting))
    out["explanations"] = part("explanations", suite.explained)
    result: dict[str, Any] = rounded(out)
    return result


def missed(results: dict[str, Any]) -> list[str]:
    """What was to be reached and was not."""
    out = []
    for attack, (auc, tpr) in GOALS.items():
        found = results["cells"][CIFAR10_HEAD.name]["attacks"][attack]
        for what, least, got in (("AUC", auc, found["auc"][0]), ("TPR at 1 %", tpr, found["tpr at 0.01"][0])):
            if got < least:
                out.append(f"{attack} on a CIFAR-10 head: {what} {got:.4f}, expected at least {least:g}")
    positive = results["pretraining"]["attacks"]["LiRA"]["auc"][0]
    if positive < 0.95:
        out.append(f"positive control: LiRA on the pre-trained networks has AUC {positive:.3f}, expected about 1")
    null = results["cells"][SETTINGS[-1].name]["attacks"]
    for attack, found in null.items():
        if not found["auc"][1] - 0.005 <= 0.5 <= found["auc"][2] + 0.005:
            out.append(f"null control: {attack} on networks that were never trained has AUC {found['auc'][0]:.3f}")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when the goals are reached and the controls hold, 1 otherwise."""
    run = Run(
        "paper_e_tmi", __doc__, argv, device={"default": "cpu"},
        full={"action": "store_true", "help": "the paper's network and numbers (a GPU)"},
    )  # fmt: skip
    torch.set_num_threads(1)
    results = measure(run)
    lost = [] if run.quick else missed(results)
    run.write(targets_missed=lost, results=results, run=run.provenance())
    return run.end(lost)
