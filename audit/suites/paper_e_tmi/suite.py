"""TMI (Abascal, Wu, Oprea and Ullman, PoPETs 2024(3), arXiv 2306.01181), whole: who was in the pre-training data?

A network is pre-trained on a coin-flip half of a pool of Tiny ImageNet, then gets a new head (and sometimes more) for
another task: coarse classes of other images of Tiny ImageNet, CIFAR-10, or traffic signs. The attacker asks it about
the pool's images, whose labels are no classes of it, and guesses what it was pre-trained on. All but the target are
references, pre-trained and fine-tuned alike; each model takes its turn.

    Table 1     a new head on frozen features, three tasks, one query and several
    Table 2     the head, the last block, the last two, and everything fine-tuned; CIFAR-10
    Table 3     everything fine-tuned, on signs
    Tables 4, 5 text: one classifier for all points (`text.py`)
    Table 6     heads trained with DP-SGD, epsilon 1 and .5 (delta 1e-5, clipping norm 5, added or removed)
    Table 7     the same where members were also fine-tuned on, beside what (epsilon, delta) would allow
    B.1 to B.3  the k most probable classes; other classifiers; numbers of queries; all on a CIFAR-10 head
    Figure 3    the linear model in which everything is known (`linear.py`), with the real game played
    explanations of the fine-tuned network: InputXGradient of the probability, native and released

Attacks: the label; adapted LiRA (the log odds of the class that the target predicts, Algorithm 2; log ratios of queries
are added up, where the paper fits one normal to all of them); the paper's network for each point (Algorithm 3, scaled
as released); the joint ratio on the whole vector of log odds. LiRA on the pre-trained network with the true label is
the positive control, a head on networks that were never trained the null control. `evaluate.py` says how figures are
read, as published and corrected.

On a CPU: a small network, 33 models (17 where that is said), 2,400 images; metaclassifiers on 8 targets and 1,000
images. It is trained on images as they are, and asked about them with a little noise (5 % of the pixels' deviation);
one setting is pre-trained with crops and flips, and asked about these, as in the paper. `--full` has the paper's
ResNet-34, crops and flips, and 129 models on 8,000 images, all the file has. It prints an estimate of its time from the
rate of a few steps before it starts, resumes, and has not been run.

    python -m audit.suites.paper_e_tmi [--data DIR] [--out FILE] [--quick | --full --device cuda]
                                       [--minutes N]
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from safexplain.audit import Population, Shadows, fine_tune
from safexplain.audit.asked import predict
from safexplain.audit.attacks import Attack, JointLikelihoodRatio

from ...shared.run import Parts, Progress, concluded, destination, parser, provenance, rounded, write_json
from . import explanations, text
from .evaluate import LIRA, Against, attacks, judged, top_k
from .linear import figure3
from .metaclassifier import Metaclassifier
from .tables import shown
from .tasks import (
    ABLATED,
    FULL,
    QUICK,
    SETTINGS,
    Images,
    Setting,
    Size,
    accuracy,
    estimated_minutes,
    pretrained,
    untrained,
)
from .transfer import OverQueries

Values = dict[str, NDArray[np.float64]]
TOP = (1, 5)
"""Classes that are released in B.1, beside all of them."""
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
        return {
            "accuracy": text.learned(pool, said["label"], shadows.membership),
            "attacks": judged({"LiRA": LIRA}, said, shadows.membership, self.size.targets),
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

    def asked(self, setting: Setting) -> tuple[Shadows, Values]:
        """The models, and what they say."""
        tuned, size = self.tuned(setting), self.size
        levels = (1, size.queries, *((2, size.most) if setting == ABLATED else ()))
        pool = self.subset(setting.rows(size))
        found = predict(
            tuned, pool, patience=levels, dither=setting.dither(size), labels="foreign", progress=self.progress
        )
        return tuned, dict(found.values)

    def cell(self, setting: Setting) -> dict[str, Any]:
        """A line of Tables 1, 2, 3, 6 or 7."""
        start = time.perf_counter()
        tuned, values = self.asked(setting)
        right = accuracy(tuned, self.images.tests[setting.task])
        found = judged(attacks(self.size.queries, self.size.learned), values, tuned.membership, self.size.targets)
        out = {"models": len(tuned.models), "accuracy": right, "attacks": found}
        if setting == ABLATED:
            out["ablations"] = self.ablations(values, tuned.membership)
        return {**out, "seconds": time.perf_counter() - start}

    def ablations(self, values: Values, member: NDArray[np.bool_]) -> dict[str, Any]:
        """B.1, B.2 and B.3."""
        q, most, few, turns = self.size.queries, self.size.most, self.size.learned, self.size.targets
        joint = JointLikelihoodRatio("identity")
        each = values[f"predictions@{q}"]
        classes = values["prediction"].shape[2]
        released = {k: top_k(each.reshape(*member.shape, q, classes), k).reshape(each.shape) for k in TOP}
        top = {}
        for k in (*TOP, classes):
            own = {f"predictions@{q}": released.get(k, each), "prediction": top_k(values["prediction"], k)}
            chosen = attacks(q, few)
            top[str(k)] = judged({n: chosen[n] for n in (*B1, "joint ratio, one query")}, own, member, turns)
        kinds: dict[str, Attack] = {
            "network, as released": Metaclassifier("mlp", queries=q, scale="unit"),
            "network": Metaclassifier("mlp", queries=q),
            "logistic regression": Metaclassifier("logistic", queries=q),
            "nearest neighbours": Metaclassifier("knn", queries=q),
            "joint ratio, summed": OverQueries(joint, q),
        }
        compared = {n: Against(f"predictions@{q}", attack, *few) for n, attack in kinds.items()}
        counts = {}
        for count in sorted({1, 2, q, most}):
            first = {f"predictions@{count}": values[f"predictions@{most}"][..., : count * classes]}
            first[f"prediction@{count}"] = first[f"predictions@{count}"].reshape(*member.shape, count, -1).mean(2)
            chosen = attacks(count, few)
            counts[str(count)] = judged({n: chosen[n] for n in B3}, first, member, turns)
        return {"top k": top, "classifiers": judged(compared, values, member, turns), "queries": counts}

    def explained(self) -> dict[str, Any]:
        """Explanations of the CIFAR-10 heads."""
        setting = replace(ABLATED, whole=False, few=True)
        tuned, rows = self.tuned(setting), np.arange(min(self.size.explained, len(setting.rows(self.size))))
        shadows = Shadows(tuned.models, tuned.membership[:, rows])
        classes = self.images.tasks[setting.task].classes
        return {"attacks": explanations.measure(shadows, self.subset(rows), classes, self.size.targets)}


B1 = ("adapted LiRA", "network", "joint ratio, summed")
B3 = ("adapted LiRA", "network", "joint ratio, mean of queries", "joint ratio, summed")


def run(options: Namespace) -> dict[str, Any]:
    """Every part, those on which most depends first; finished ones are kept, and none is begun when time is up."""
    size = QUICK if options.quick else FULL if options.full else Size()
    suite, parts = Suite(options, size), Parts(options.cache / "paper_e_tmi", __package__)
    end = time.monotonic() + 60 * (options.minutes or float("inf"))
    minutes = estimated_minutes(suite.images, size, options.device)
    print(f"expected: {minutes:.0f} min of training and queries at this device's rate, attacks on top", flush=True)
    made = [suite.images.sources, asdict(size), options.device.partition(":")[0]]
    out: dict[str, Any] = {"size": asdict(size), "data": suite.images.sources, "cells": {}, "not_run": []}

    def part(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        if time.monotonic() > end and not parts.has([name, *made]):
            out["not_run"].append(name)
            return None
        found: dict[str, Any] = parts.get([name, *made], make)
        for attack, figures in found.get("attacks", {}).items():
            print(f"{name}: {attack}: AUC {figures['auc'][0]:.3f}", flush=True)
        return found

    out["pretraining"] = part("pretraining", suite.pretraining)
    chosen = SETTINGS if not options.quick else tuple(s for s in SETTINGS if s.name in IN_QUICK)
    for setting in sorted(chosen, key=lambda s: FIRST.index(s.name) if s.name in FIRST else len(FIRST)):
        if setting.name == FIRST[3]:
            out["linear"] = part("linear", lambda: figure3(options.quick))
            out["explanations"] = part("explanations", suite.explained)
        if (cell := part(setting.name, partial(suite.cell, setting))) is not None:
            out["cells"][setting.name] = cell
    progress = Progress("text: ")
    out["text"] = part("text", lambda: text.measure(
        options.data, size, options.quick, suite.models, options.device, progress))  # fmt: skip
    out["cells"] = {s.name: out["cells"][s.name] for s in SETTINGS if s.name in out["cells"]}
    result: dict[str, Any] = rounded(out)
    return result


FIRST = (
    ABLATED.name,
    SETTINGS[-1].name,
    "coarse, head",
    "cifar10, head, fewer models",
    "cifar10, all",
    "coarse, head, fewer models",
    "coarse, head, epsilon 0.5, overlap",
    "cifar10, head, other pre-training",
    "coarse, head, epsilon 0.5",
    "gtsrb, all",
)
IN_QUICK = (*FIRST[:2], FIRST[3], FIRST[4], FIRST[6])


def missed(results: dict[str, Any]) -> list[str]:
    """What was to be reached and was not."""
    out = []
    for attack, (auc, tpr) in GOALS.items():
        found = results["cells"][ABLATED.name]["attacks"][attack]
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
    for shift, found in (results["linear"] or {}).items():
        for attack in ("known means", "ratio"):
            if not found[attack]["low"] - 0.002 <= found["auc"] <= found[attack]["high"] + 0.002:
                out.append(f"Figure 3, |nu| = {shift}: {attack} give {found[attack]['auc']:.3f}")
    return out


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when the goals are reached and the controls hold, 1 otherwise."""
    p = parser("paper_e_tmi", __doc__)
    p.add_argument("--full", action="store_true", help="the paper's network and numbers (a GPU)")
    p.add_argument("--device", default="cpu")
    p.add_argument("--minutes", type=float, help="begin no part after so many; the same command goes on")
    options = p.parse_args(argv)
    torch.set_num_threads(1)
    start, out = time.perf_counter(), destination(options)
    results = run(options)
    lost = [] if options.quick else missed(results)
    report = {"suite": "paper_e_tmi", "quick": options.quick, "targets_missed": lost, "results": results,
              "run": provenance(time.perf_counter() - start, options.device)}  # fmt: skip
    write_json(out, report)
    print(shown(report))
    return concluded(lost, out, "quick run, goals not checked" if options.quick else "")
