"""Does DP training stop the attacks? Paper A's section 5.5, Tables 8 and 9, with epsilon under both adjacencies.

Models are trained with epsilon .5, 1, 2, 8 and without privacy, by the recipe of "Explaining the Model, Protecting Your
Data" (Huang et al.): AUTO-S clipping with gamma .01, Adam at 5e-3 (its Table 4; its code has 5e-4), 30 epochs at
q = .1, delta 1e-5, epsilon for add/remove. They release the label, and InputXGradient, Saliency or Integrated Gradients
of the predicted class's probability. 17 models, each trained on the half of the pool that its coin flips chose, take
turns as the target, all others are its references. GradientShap is left out, as in the paper's private half: it is the
same integral from fewer points, and leaks least without privacy.

Data: CIFAR-10; GTSRB (one of the paper's five data sets; street photographs for SVHN, which is not here, where MNIST
would be too easy to leak), one frame a track, so that a record is a track; and 100 classes of Tiny ImageNet, for
CIFAR-100. The backbones were trained on ImageNet, of which Tiny ImageNet is a part: what they know of it is not covered
by any epsilon here, and members and non-members have it alike.

Attacks: the paper's VAR-, L1- and L2-LRT (no logarithm, one variance), read the right way round, and as the paper's
code reads them (members and non-members exchanged); the library's likelihood ratio on L1 and on five numbers together;
the label alone; and, for services that tell it, the loss. Reported are means over all targets, with normal 95 %
intervals from resampled examples, which do not cover other draws of the models. Against the first targets run attacks
on whole maps of the first examples: likelihood ratios of the map and of its signs, a classifier of maps
(`Learned`), and all of it stacked with the label, beside the label alone.

What epsilon guarantees: (epsilon, delta) bounds the rates of every attack that decides about one coin flip (Kairouz,
Oh and Viswanath 2015, 1311.0776), TPR <= min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - FPR - delta)), epsilon for
add/remove; the trade-off curve of the mechanism bounds them more tightly. The lower limit of no measured rate may be
above what is promised at the upper limit of its false-positive rate.

"As published": the paper's code computes q from 50,000 examples while 10,000 are trained on: q = .1 for 300 steps is
accounted as q = .02 for 1,500. Models are also trained with the noise that this gives for each claimed epsilon, and
their true epsilons stand beside the claimed ones, under both adjacencies. A second table does the same for the paper's
own runs, with this accountant's noise and with Opacus' (for Poisson samples; the batches were shuffled).

Utility: accuracy; and the faithfulness of the maps of the first targets, what deleting the tenth of the features that a
map names takes from the predicted probability, less what random features take.

Tasks: "heads", linear heads on a frozen MobileNet (`heads.py`), for a CPU; "network", networks of which all, the last
block or adapters (LoRA) train (`networks.py`): on a CPU a small transformer that is first trained on public images,
with `--full` a ViT-S on a GPU, whose weights timm downloads or `--weights` names. The results of each are kept beside
those of the others.

    python -m audit.suites.dp_attacks [--task heads] [--on cifar10|gtsrb|tinyimagenet] [--quick]
    python -m audit.suites.dp_attacks --task network [--on DATA] [--trainable all|last-block|lora]
    python -m audit.suites.dp_attacks --full --device cuda [--weights FILE --arch vit_small_patch16_224]
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from safexplain._privacy_loss import epsilons
from safexplain.dp.accounting import noise_multiplier

from ...shared.run import (
    Parts,
    Progress,
    concluded,
    destination,
    earlier,
    parser,
    provenance,
    rounded,
    table,
    write_json,
)
from . import attacks, heads, networks
from .nets import SIDES
from .plan import DELTA, SOURCES, Size
from .released import MAPPED, Released

LEAK = 0.55
"""Without privacy, the AUC of L1 must be above this for a leak to be there that could be stopped."""

TABLE_9 = {
    "InputXGradient": {"1": (0.0019, 0.0128, 0.5087), "2": (0.0019, 0.0159, 0.5149), "8": (0.0040, 0.0302, 0.5327),
                       "inf": (0.0895, 0.1530, 0.6383)},
    "Saliency": {"1": (0.0016, 0.0126, 0.5092), "2": (0.0021, 0.0164, 0.5142), "8": (0.0042, 0.0305, 0.5325),
                 "inf": (0.0902, 0.1529, 0.6383)},
}  # fmt: skip
"""Paper A, CIFAR-10, L1-LRT: called TPR at .1 %, at 1 % (the detection of non-members, see paper_a.py), and AUC."""

MISACCOUNTED = {"CIFAR-10": 30, "CIFAR-100": 9}
"""Epochs of the paper's runs, each at 1,000 of 10,000 examples a step, accounted as 1,000 of 50,000."""
CLAIMED = (0.5, 1.0, 2.0, 8.0)
NOISE_BY = ("this accountant", "Opacus, PRV", "Opacus, RDP")
"""Who turns the claimed epsilon into noise; the function of Opacus takes RDP unless it is told otherwise."""
EXPECTED = {"CIFAR-10": (1.19, 2.46, 5.09, 19.6), "CIFAR-100": (1.23, 2.55, 5.18, 16.6)}
"""Add/remove epsilon of the claimed ones with the noise of Opacus' PRV accountant, to within 2 %."""


# ----------------------------------------------------------------------------------------------- the paper's accounting


def misaccounted() -> list[dict[str, Any]]:
    """What the paper's claimed epsilons guarantee: sigma for the claim, and epsilon with q and steps as they were."""
    rows = []
    for data, epochs in MISACCOUNTED.items():
        for claimed in CLAIMED:
            for name in NOISE_BY:
                sigma = sigma_of(name, claimed, epochs)
                true, said = epsilons(sigma, 0.1, 10 * epochs, DELTA), epsilons(sigma, 0.02, 50 * epochs, DELTA)
                rows.append({
                    "data": data, "epochs": epochs, "claimed": claimed, "claimed_substitute": said.substitute,
                    "sigma": sigma, "sigma_by": name, "add_remove": true.add_remove, "substitute": true.substitute,
                })  # fmt: skip
    return rows


def sigma_of(name: str, claimed: float, epochs: int) -> float:
    """Noise for the claim at the q that the paper's code computes."""
    from opacus.accountants.utils import get_noise_multiplier

    if name == "this accountant":
        return noise_multiplier(claimed, 0.02, 50 * epochs, DELTA, adjacency="add_remove")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(get_noise_multiplier(
            target_epsilon=claimed, target_delta=DELTA, sample_rate=0.02, epochs=epochs,
            accountant=name.partition(", ")[2].lower(),
        ))  # fmt: skip


def missed_accounting(accounted: list[dict[str, Any]]) -> list[str]:
    """Figures of the paper's accounting that are not reproduced, in words."""
    wrong = []
    for data, expected in EXPECTED.items():
        got = [r["add_remove"] for r in accounted if r["data"] == data and r["sigma_by"] == "Opacus, PRV"]
        if not np.allclose(got, expected, rtol=0.02):
            wrong.append(f"paper A's accounting on {data}: expected {expected}, got {got}")
    return wrong


def show_misaccounted(rows: list[dict[str, Any]]) -> str:
    """The paper's accounting as a table."""
    shown = []
    for data, claimed in dict.fromkeys((r["data"], r["claimed"]) for r in rows):
        each = [r for r in rows if (r["data"], r["claimed"]) == (data, claimed)]
        true = [f"{r['add_remove']:.2f} / {r['substitute']:.2f}" for r in each]
        shown.append((f"{data}, {each[0]['epochs']} epochs", f"{claimed:g}", f"{each[0]['sigma']:.3f}", *true))
    header = ("paper A", "claimed", "sigma", *(f"true, noise by {name}" for name in NOISE_BY))
    return f"{table(header, shown)}\nadd/remove / substitute"


# ----------------------------------------------------------------------------------------------------- one task's cells


def measure(task: str, released: Released, size: Size, options: Namespace) -> dict[str, Any]:
    """Every explainer at every epsilon.

    Args:
        task: its name, for the progress.
        released: what its models release.
        size: of the run.
        options: names the cache folder, in which each finished cell is kept.
    """
    stored = Parts(options.cache / "dp_attacks", __package__)
    cells: dict[str, Any] = {}
    for (explainer, name), signals in released.signals.items():
        progress = Progress(f"{task} {explainer} epsilon {name}: ")
        what = [size.resamples, attacks.digest(signals)]
        means = stored.get(what, lambda s=signals: attacks.scalar(s, size.resamples))
        progress("numbers of the explanation", 1, 1)
        cells[f"{explainer} {name}"] = {
            "examples": len(signals),
            "non_members": int((~signals.membership).sum(1).min()),
            "means": means,
        }
    for i, budget in enumerate(released.budgets):
        for explainer in MAPPED:
            if not size.targets or budget.published or budget.nominal < attacks.WHOLE_FROM[explainer]:
                continue
            progress = Progress(f"{task} {explainer} epsilon {budget.name}: ")
            signals = released.whole(explainer, i, (3, *released.about["pixels"]))
            what = ["whole", size.targets, size.resamples, attacks.digest(signals)]
            cells[f"{explainer} {budget.name}"]["whole"] = stored.get(
                what, lambda s=signals, p=progress: attacks.whole(s, size.targets, size.resamples, p)
            )
    accuracy = {
        name: {side: {"mean": float(np.mean(v)), "sd": float(np.std(v, ddof=1))} for side, v in sides.items()}
        for name, sides in released.accuracy.items()
    }
    planned = {b.name: b.to_dict() | {"allowed": attacks.allowed(b, size)} for b in released.budgets}
    return {
        "about": released.about,
        "budgets": planned,
        "accuracy": accuracy,
        "faithfulness": released.faithfulness,
        "cells": cells,
    }


def missed(found: dict[str, Any]) -> list[str]:
    """Targets that a task's results miss, in words."""
    wrong = []
    for name, each in found["cells"].items():
        explainer, _, epsilon = name.partition(" ")
        if epsilon == "inf" and each["means"]["LikelihoodRatio on l1"]["auc"]["high"] < LEAK:
            wrong.append(f"{explainer}: no leak that could be stopped without privacy")
        wrong += [f"{name}: {line}" for line in attacks.above_promise(each, found["budgets"][epsilon])]
    return wrong


def sentences(task: str, found: dict[str, Any]) -> Iterator[str]:
    """What the cells say together."""
    for explainer in dict.fromkeys(c.split()[0] for c in found["cells"]):
        each = []
        for name in found["budgets"]:
            if cell := found["cells"].get(f"{explainer} {name}"):
                l1 = cell["means"]["LikelihoodRatio on l1"]["auc"]["value"]
                label = cell["means"]["LabelLikelihoodRatio on label"]["auc"]["value"]
                stack = cell.get("whole", {}).get("Stacked on explanation+label")
                said = f"epsilon {name}: L1 {l1:.3f}, label alone {label:.3f}"
                each.append(said + (f", everything together {stack['auc']['value']:.3f}" if stack else ""))
        yield f"{task}, {explainer}, AUC: {'; '.join(each)}."


def show(task: str, found: dict[str, Any]) -> str:
    """Accuracy beside leakage, a table for each explainer."""
    tables = []
    for explainer in dict.fromkeys(c.split()[0] for c in found["cells"]):
        rows = []
        for name, budget in found["budgets"].items():
            if not (cell := found["cells"].get(f"{explainer} {name}")):
                continue
            at, right = cell["means"], found["accuracy"][name]
            rows.append((
                name, *("inf" if budget[k] is None else f"{budget[k]:.2f}" for k in ("add_remove", "substitute")),
                f"{right['members']['mean']:.1%}", f"{right['non_members']['mean']:.1%}",
                *(between(at[k]["auc"], ".3f") for k in ("LRT (Huang et al.) on l1", "LikelihoodRatio on l1",
                  "LabelLikelihoodRatio on label", "LikelihoodRatio on loss")),
                between(at["LikelihoodRatio on l1"]["tpr at 0.01"], ".2%"),
                *(f"{budget['allowed'][k]['0.01']:.1%}" for k in ("by epsilon", "by the curve")),
            ))  # fmt: skip
        header = ("epsilon", "true", "swap", "train", "test", "L1-LRT AUC", "ours", "label", "loss", "L1 at 1 %",
                  "promised", "by the curve")  # fmt: skip
        tables.append(f"{task}, {explainer}, means over targets\n{table(header, rows)}")
    return "\n\n".join(tables)


def between(found: dict[str, float], form: str) -> str:
    """A value with its interval."""
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


# --------------------------------------------------------------------------------------------------- the command line


def tasks(options: Namespace) -> list[tuple[str, str, str]]:
    """(name in the results, data, what trains), one for each task that the options ask for."""
    if options.task == "heads":
        chosen = [options.on] if options.on else list(SOURCES)
        return [(f"heads {data}", data, "head") for data in chosen]
    data = options.on or ("cifar10" if options.full else "gtsrb")
    trainable = [options.trainable] if options.trainable else list(networks.TRAINABLE)
    return [(f"network {size_of(options).net} {data} {what}", data, what) for what in trainable]


def size_of(options: Namespace) -> Size:
    """Of the chosen task, changed as the options say."""
    if options.task == "heads":
        size = heads.QUICK if options.quick else Size()
    else:
        size = networks.QUICK if options.quick else networks.FULL if options.full else networks.SMALL
    given = {k: v for k in ("models", "pool", "explained", "net", "targets") if (v := getattr(options, k)) is not None}
    if options.net and not options.quick:
        given["side"] = SIDES[options.net]
    return replace(size, **given | ({"net": options.arch} if options.weights else {}))


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    p = parser("dp_attacks", __doc__)
    p.add_argument("--task", choices=("heads", "network"), default="heads")
    p.add_argument("--on", choices=tuple(SOURCES), help="data (default: of heads all, of networks one)")
    p.add_argument("--trainable", choices=networks.TRAINABLE, help="of networks (default: each of these)")
    p.add_argument("--full", action="store_true", help="the network task at the size of the paper's, for a GPU")
    p.add_argument("--device", default="cpu")
    p.add_argument("--epsilon", type=float, action="append", help="only this one; inf: no privacy (repeat for more)")
    p.add_argument("--models", type=int, help="that take turns as the target")
    p.add_argument("--pool", type=int, help="most examples")
    p.add_argument("--explained", type=int, help="the first of them, on which heads are attacked")
    p.add_argument("--targets", type=int, help="that are attacked by their whole maps; 0: no such attacks")
    p.add_argument("--net", choices=tuple(SIDES), help="pretrained network; heads take a MobileNet")
    p.add_argument("--weights", type=Path, help="file of weights of a network of timm, instead of what it downloads")
    p.add_argument("--arch", default=networks.FULL.net, help="its name in timm (default: %(default)s)")
    options = p.parse_args(argv)
    if options.full or options.weights:
        options.task = "network"
    out = destination(options)
    torch.set_num_threads(1)
    size, asked = size_of(options), tasks(options)
    if options.full:
        hours = networks.expected_hours(size, len(asked))
        print(f"{size.net}: about {hours:.0f} hours on a current GPU (estimated, never measured)", flush=True)
    accounted = misaccounted()
    print(show_misaccounted(accounted), flush=True)
    wrong = [] if options.quick else missed_accounting(accounted)
    for name, data, trainable in asked:
        own = time.perf_counter()
        released = (
            heads.run(size, options, data) if trainable == "head" else networks.run(size, options, data, trainable)
        )
        found = measure(name, released, size, options)
        print(f"\n{show(name, found)}\n")
        found["sentences"] = list(sentences(name, found))
        found["targets_missed"] = [] if options.quick else missed(found)
        wrong += [f"{name}: {line}" for line in found["targets_missed"]]
        found |= {"size": asdict(size), "run": provenance(time.perf_counter() - own, options.device)}
        results = earlier(out, options.quick) | {name: found}
        report = {
            "suite": "dp_attacks",
            "quick": options.quick,
            "delta": DELTA,
            "table_9_of_the_paper": TABLE_9,
            "accounting_of_the_paper": accounted,
            "results": results,
        }
        write_json(out, rounded(report))
        print("\n".join(found["sentences"]), flush=True)
    return concluded(wrong, out)
