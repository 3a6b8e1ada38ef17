"""Does DP training stop the attacks? Paper A's Tables 8 and 9, with epsilon under both adjacencies.

Models are trained with epsilon .5, 1, 2, 8 and without privacy, by the recipe of "Explaining the Model, Protecting Your
Data" (Huang et al., released code for CIFAR-10): AUTO-S clipping with gamma .01, Adam at 5e-4, 30 epochs at q = .1,
delta 1e-5, epsilon for add/remove. They release the label, and InputXGradient or Saliency of the predicted class's
probability. 17 models, each trained on the half of the pool that its coin flips chose, take turns as the target, all
others are its references. Reported are means over targets (normal 95 % intervals from resampled examples, which do not
cover other draws of the models) and, with every example scored once, what `safexplain.audit` finds and says. Beside the
paper's attack (LikelihoodRatio on L1 without logarithm, one variance) run the library's, those on the label, and those
on the loss.

(epsilon, delta) bounds the rates of an attack that decides about one coin flip (Kairouz, Oh and Viswanath 2015,
1311.0776): TPR <= min(e^epsilon FPR + delta, 1 - e^-epsilon (1 - FPR - delta)), epsilon for add/remove. The lower limit
of no measured rate may be above what is promised at the upper limit of its false-positive rate.

A second table is about the paper's accounting. Its code computes q from 50,000 examples while 10,000 are trained on: q
= .1 for 300 steps is accounted as q = .02 for 1,500. What each claimed epsilon guarantees with that noise is computed
for Poisson samples (the batches were shuffled), with the noise that this accountant asks for and with what Opacus'
function gives.

Tasks: "heads", linear heads on a frozen MobileNet (`heads.py`), for a CPU; "network", whole networks fine-tuned
(`networks.py`), needs a GPU for the full size. The results of each are kept beside those of the other.

    python -m audit.suites.dp_attacks [--task heads] [--device cpu] [--data DIR] [--out FILE] [--quick]
    python -m audit.suites.dp_attacks --task network --device cuda [--net NAME]
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import beta

from safexplain._privacy_loss import epsilons
from safexplain.audit import Policy, Signals
from safexplain.audit.attacks import GlobalVariance, JointLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.scoring import Scorer
from safexplain.audit.attacks.suite import SuiteRow, fitting
from safexplain.audit.certify import certify
from safexplain.audit.splits import Splits
from safexplain.dp.accounting.calibration import noise_multiplier

from ...shared.cells import FPRS, auc, failed, found_by, rates, written
from ...shared.resampling import resampled_rates
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
from ..attack_table.suite import HUANG, estimate
from . import heads as dp_heads
from . import networks as dp_networks
from .heads import DELTA, Released, Size
from .nets import SIDES

EPSILONS = (0.5, 1.0, 2.0, 8.0, math.inf)
POLICY = Policy(fpr=0.01, patience=(1,))
RATES = (0.001, 0.01)
EXTRA = (
    *(
        SuiteRow(HUANG, LikelihoodRatio("identity", GlobalVariance()), s, "explanation")
        for s in ("variance", "l1", "l2")
    ),
    SuiteRow("JointLikelihoodRatio", JointLikelihoodRatio(), "l1+loss", "explanation+loss"),
)
OURS = ("LikelihoodRatio", "l1")
MEANS = (
    OURS,
    (HUANG, "l1"),
    ("LabelLikelihoodRatio", "label"),
    ("LikelihoodRatio", "loss"),
    ("LikelihoodRatio", "margin"),
    ("JointLikelihoodRatio", "l1+loss"),
)
"""Attacks whose means over all targets are reported."""
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

Task = Callable[[Size, Sequence[float], Namespace], Released]

TASKS: dict[str, tuple[Task, Size, Size]] = {
    "heads": (dp_heads.run, Size(), dp_heads.QUICK),
    "network": (dp_networks.run, dp_networks.FULL, dp_networks.QUICK),
}
"""What trains and explains, its size, and the size with --quick."""


def size_of(options: Namespace) -> Size:
    """Of the chosen task, changed as the options say."""
    _, full, quick = TASKS[options.task]
    given = {k: v for k in ("models", "pool", "net") if (v := getattr(options, k)) is not None}
    side = {"side": SIDES[options.net]} if options.net and not options.quick else {}
    return replace(quick if options.quick else full, **given, **side)


def misaccounted() -> list[dict[str, Any]]:
    """What the paper's claimed epsilons guarantee: sigma for the claim, and epsilon with q and steps as they were."""
    rows = []
    for data, epochs in MISACCOUNTED.items():
        for claimed in CLAIMED:
            for name in NOISE_BY:
                sigma = sigma_of(name, claimed, epochs)
                true = epsilons(sigma, 0.1, 10 * epochs, DELTA)
                rows.append({
                    "data": data, "epochs": epochs, "claimed": claimed, "sigma": sigma, "sigma_by": name,
                    "add_remove": true.add_remove, "substitute": true.substitute,
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


def promised(epsilon: float, fpr: float) -> float:
    """Highest true-positive rate that (epsilon, DELTA) allows at this false-positive rate."""
    if math.isinf(epsilon):
        return 1.0
    return min(math.exp(epsilon) * fpr + DELTA, 1 - math.exp(-epsilon) * (1 - fpr - DELTA), 1.0)


def cell(signals: Signals, resamples: int, progress: Progress) -> dict[str, Any]:
    """All attacks with every example scored once, and the means over all targets of some."""
    rows = [*fitting(signals, POLICY), *EXTRA]
    result = certify(signals, POLICY, suite=rows, progress=progress)
    return written(result) | {"means": means(signals, rows, resamples)}


def means(signals: Signals, rows: list[SuiteRow], resamples: int) -> dict[str, Any]:
    """AUC and rates of `MEANS`, averaged over all targets, with intervals from resampled examples."""
    n, targets = len(signals), signals.targets
    training = Splits.of(signals, POLICY, trains=False).training
    drawn = np.random.default_rng(0xD9A).multinomial(n, np.full(n, 1 / n), size=resamples).T
    weights = np.concatenate([np.ones((n, 1)), drawn], axis=1).astype(np.float32)
    member = signals.membership[list(targets)]
    named = {(r.name, r.title_signal): r for r in rows}
    found: dict[str, Any] = {}
    for code in (c for c in MEANS if c in named):
        row = named[code]
        scores = [Scorer(signals, [row], target=t, training=training).scores(t)[0] for t in targets]
        replicates: dict[str, list[Any]] = {}
        for s, m in zip(scores, member, strict=True):
            for rate in RATES:
                area, tpr = resampled_rates(s, m, weights, rate)
                replicates.setdefault(f"tpr at {rate}", []).append(tpr)
            replicates.setdefault("auc", []).append(area)
        found[" on ".join(code)] = {
            k: estimate(np.mean(v, axis=0)) | {"sd_over_targets": float(np.std([t[0] for t in v], ddof=1))}
            for k, v in replicates.items()
        }
    return found


def measure(task: str, released: Released, options: Namespace) -> dict[str, Any]:
    """Every explainer at every epsilon: {"budgets": ..., "cells": {"EXPLAINER EPSILON": ...}}."""
    stored = Parts(options.cache / "dp_attacks", __package__)
    resamples, cells = size_of(options).resamples, {}
    for (explainer, name), signals in released.signals.items():
        progress = Progress(f"{task} {explainer} epsilon {name}: ")
        cells[f"{explainer} {name}"] = stored.get(
            [task, explainer, name, resamples, digest(signals)],
            lambda s=signals, p=progress: cell(s, resamples, p),
        )
    accuracy = {
        name: {side: {"mean": float(np.mean(v)), "sd": float(np.std(v, ddof=1))} for side, v in sides.items()}
        for name, sides in released.accuracy.items()
    }
    budgets = {b.name: b.to_dict() for b in released.budgets}
    return {"about": released.about, "budgets": budgets, "accuracy": accuracy, "cells": cells}


def digest(signals: Signals) -> str:
    """Of everything that is attacked."""
    h = hashlib.sha256(np.packbits(signals.membership).tobytes())
    for name, values in sorted(signals.values.items()):
        h.update(name.encode() + np.ascontiguousarray(values).tobytes())
    return h.hexdigest()


def show(task: str, found: dict[str, Any]) -> str:
    """Accuracy beside leakage, a table for each explainer; then all attacks on each release, each example once."""
    tables = []
    explainers = dict.fromkeys(c.split()[0] for c in found["cells"])
    for explainer in explainers:
        rows = []
        for name, budget in found["budgets"].items():
            at, right = found["cells"][f"{explainer} {name}"]["means"], found["accuracy"][name]
            l1, label, loss = (at[k] for k in ("LikelihoodRatio on l1", "LabelLikelihoodRatio on label",
                                               "LikelihoodRatio on loss"))  # fmt: skip
            swap = "inf" if budget["substitute"] is None else f"{budget['substitute']:.2f}"
            rows.append((
                name, swap, f"{budget['sigma']:.2f}", f"{right['members']['mean']:.1%}",
                f"{right['non_members']['mean']:.1%}", between(l1["auc"], ".3f"), between(l1["tpr at 0.001"], ".2%"),
                between(l1["tpr at 0.01"], ".2%"), f"{promised(budget['nominal'] or math.inf, 0.01):.1%}",
                between(label["auc"], ".3f"), between(label["tpr at 0.01"], ".2%"),
                between(loss["auc"], ".3f"), between(loss["tpr at 0.01"], ".2%"),
            ))  # fmt: skip
        header = ("epsilon", "swap", "sigma", "train", "test", "L1-LRT AUC", "TPR at .1 %", "at 1 %", "promised",
                  "label AUC", "at 1 %", "loss AUC", "at 1 %")  # fmt: skip
        tables.append(f"{task}, {explainer}, means over targets\n{table(header, rows)}")
    for name, each in found["cells"].items():
        rows = [(f"{a['attack']} on {a['signal']}", auc(a), *rates(a)) for a in each["attacks"]]
        header = (f"{name}, each example once", "AUC", *(f"TPR at {f:.1%}" for f in FPRS))
        wrong = [f"control failed: {c['says']}" for c in each["controls"] if failed(c)]
        tables.append("\n".join([table(header, rows), *wrong, each["sentence"]]))
    return "\n\n".join(tables)


def between(found: dict[str, float], form: str) -> str:
    return f"{found['value']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def show_misaccounted(rows: list[dict[str, Any]]) -> str:
    shown = []
    for data, claimed in dict.fromkeys((r["data"], r["claimed"]) for r in rows):
        each = [r for r in rows if (r["data"], r["claimed"]) == (data, claimed)]
        true = [f"{r['add_remove']:.2f} / {r['substitute']:.2f}" for r in each]
        shown.append((f"{data}, {each[0]['epochs']} epochs", f"{claimed:g}", f"{each[0]['sigma']:.3f}", *true))
    header = ("paper A", "claimed", "sigma", *(f"true, noise by {name}" for name in NOISE_BY))
    return f"{table(header, shown)}\nadd/remove / substitute"


def sentences(found: dict[str, Any]) -> list[str]:
    """What the cells say together."""
    said = []
    for explainer in dict.fromkeys(c.split()[0] for c in found["cells"]):
        each = []
        for name in found["budgets"]:
            c = found["cells"][f"{explainer} {name}"]
            best = max((a for a in c["attacks"] if a["role"] == "explanation"), key=lambda a: a["auc"])
            label = found_by(c, "LabelLikelihoodRatio on label")
            each.append(
                f"epsilon {name}: L1-LRT {c['means']['LikelihoodRatio on l1']['auc']['value']:.3f}, verdict"
                f" {c['verdict']}, highest of all on the explanation {auc(best)} ({best['attack']} on"
                f" {best['signal']}), label alone {auc(label)}"
            )
        said.append(f"{explainer}: {'; '.join(each)}.")
    return said


def missed(found: dict[str, Any]) -> list[str]:
    """Targets that a task's results miss, in words."""
    wrong = []
    for name, each in found["cells"].items():
        explainer, _, epsilon = name.partition(" ")
        if epsilon == "inf" and each["means"]["LikelihoodRatio on l1"]["auc"]["low"] < LEAK:
            wrong.append(f"{explainer}: no leak that could be stopped without privacy")
        bound = found["budgets"][epsilon]["add_remove"]
        for a in each["attacks"]:
            for r in a["tpr"]:
                false_positives = round(r["realised_fpr"] * each["non_members"])
                fpr = float(beta.ppf(0.975, false_positives + 1, each["non_members"] - false_positives))
                most = promised(math.inf if bound is None else bound, fpr)
                if r["low"] > most:
                    title = f"{a['attack']} on {a['signal']}"
                    wrong.append(f"{name}: {title} finds {r['low']:.1%}, promised {most:.1%}")
    return wrong


def missed_accounting(accounted: list[dict[str, Any]]) -> list[str]:
    """Figures of the paper's accounting that are not reproduced, in words."""
    wrong = []
    for data, expected in EXPECTED.items():
        got = [r["add_remove"] for r in accounted if r["data"] == data and r["sigma_by"] == "Opacus, PRV"]
        if not np.allclose(got, expected, rtol=0.02):
            wrong.append(f"paper A's accounting on {data}: expected {expected}, got {got}")
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    p = parser("dp_attacks", __doc__)
    p.add_argument("--task", choices=tuple(TASKS), default="heads")
    p.add_argument("--device", default="cpu")
    p.add_argument("--models", type=int, help="that take turns as the target (default 17)")
    p.add_argument("--pool", type=int, help="examples (default 4000)")
    p.add_argument("--net", choices=tuple(SIDES), help="pretrained network; heads take a MobileNet")
    options = p.parse_args(argv)
    start, out = time.perf_counter(), destination(options)
    torch.set_num_threads(1)
    accounted = misaccounted()
    print(show_misaccounted(accounted), flush=True)
    size = size_of(options)
    released = TASKS[options.task][0](size, EPSILONS, options)
    found = measure(options.task, released, options)
    print(f"\n{show(options.task, found)}\n")
    found["sentences"] = sentences(found)
    found["targets_missed"] = wrong = [] if options.quick else missed(found) + missed_accounting(accounted)
    run = provenance(time.perf_counter() - start, options.device)
    results = earlier(out, options.quick) | {options.task: found | {"size": asdict(size), "run": run}}
    report = {
        "suite": "dp_attacks",
        "quick": options.quick,
        "delta": DELTA,
        "policy": POLICY.to_dict(),
        "table_9_of_the_paper": TABLE_9,
        "accounting_of_the_paper": accounted,
        "results": results,
    }
    write_json(out, rounded(report))
    print("\n".join(found["sentences"]))
    return concluded(wrong, out)
