"""DeepLeak (arXiv 2601.03429), whole: its evaluation where nothing can leak, and what is left of its hardening.

`--part evaluation`: two steps of its attack evaluation that show a leak where there is none. The released code explains
members through RandomCrop(32, padding 4) and a random flip, non-members as they are; section V-A picks the best of 20
attack seeds on the very examples that are reported. Both are run where membership means nothing: on networks that were
NEVER TRAINED (an attack classifier learns "member" against "non-member" on one and is evaluated on other images,
through the same network and through another one), and with coin flips as membership (simulated scores, and real
classifiers trained on maps with shuffled membership).

`--part search`: its Algorithms 1 (options of the explainer) and 2 (clip, mask, noise) on thirteen of its fifteen
explainers, CIFAR-10 and GTSRB, by both protocols below; what carries the leak of each explainer; and its utility metric
beside faithfulness.

    as published    One target and one shadow model, the latter trained on some of the target's own members; maps of the
                    true label; members cropped and flipped before they are explained; a network learns members' from
                    non-members' maps on the shadow model's. The best of several seeds on the target's examples is kept,
                    then of the default and random trials (see `settings`) the one with the lowest TPR at .1 % on them,
                    of equal ones that with the lowest sensitivity_max (one perturbation, N(0, .1^2)).
    split-honest    The same trials. One pool, coin flips (one a track), maps of the predicted label, one treatment. The
                    leak is what our attacks, each stacked with the label, find beyond the label: mean over TPRs at .5,
                    1, 2 and 5 %, of the strongest. On one half of the examples are chosen the strongest attack on each
                    trial, and the trial with the least leak that keeps 96.7 % of the deletion faithfulness (the paper:
                    3.3 % loss of utility); the other half is reported, with 95 % intervals from resampling it.

Both explain the probability of the class, of which explanations leak most, in units in which the mean magnitude of an
explainer's maps is that of its maps of logits, for which the ranges of Algorithm 2 are meant; of logits, the honest
protocol also says what it finds in the default. Our attacks here: likelihood ratios of whole maps, joint ones of five
summaries, boosted trees, and all together; not the classifier of maps, and one query. The published side has a small
network for its MobileNetV2 and fewer images, seeds and trials: `size` in the result says how many. `--full` has its
numbers (5,000 a side, 20 seeds, 20 trials, 50 steps of integrated gradients, MobileNetV2 as the attack): by estimate 20
hours of an H100, not run yet.

    python -m audit.suites.paper_d [--part evaluation|search|all] [--task cifar10|gtsrb] [--data DIR] [--out FILE]
                                   [--quick | --full --device cuda]
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict
from typing import Any

import torch

from ...shared.run import Parts, Progress, concluded, destination, earlier, parser, provenance, rounded, write_json
from . import nothing_to_leak
from .search import FULL, METRIC_OF, QUICK, TASKS, Data, Honest, Published, Size, metric, timed
from .settings import EXPLAINERS
from .tables import shown

PARTS = ("evaluation", "search")
QUICK_EXPLAINERS = ("InputXGradient", "GradCAM")


def search(task: str, options: Namespace, parts: Parts, size: Size) -> dict[str, Any]:
    """Both protocols on every explainer of a task; finished cells are kept."""
    start = time.perf_counter()
    data, source = Data.of(task, options.data, options.device)
    published, honest = Published(data, size), Honest(data, size)
    names = QUICK_EXPLAINERS if options.quick else tuple(EXPLAINERS)
    made, progress, cells = [task, source["sha256"], asdict(size), options.full], Progress(f"{task}: "), {}
    for i, name in enumerate(names):
        explainer = EXPLAINERS[name]
        theirs = parts.get(
            ["published", name, *made], lambda e=explainer: timed(lambda: published.cell(e, options.full))
        )
        best = theirs["best"]
        ours = parts.get(
            ["honest", name, best, *made], lambda e=explainer, b=best: timed(lambda: honest.cell(e, options.full, b))
        )
        cells[name] = {"not as released": explainer.of_full, "published": theirs, "honest": ours}
        progress("explainers", i + 1, len(names))
    of_metric = {n: parts.get(["metric", n, *made], lambda n=n: {"rows": metric(published, n)})["rows"]
                 for n in METRIC_OF[: 1 if options.quick else None]}  # fmt: skip
    right = parts.get(["accuracy", *made], lambda: {"published": published.accuracy, "honest": honest.accuracy})
    seconds = sum(c[k]["processor_seconds"] for c in cells.values() for k in ("published", "honest"))
    return {
        "size": asdict(size),
        "accuracy": right,
        "cells": rounded(cells),
        "metric": rounded(of_metric),
        "processor_seconds_of_cells": round(seconds, 1),
        "data": source,
        "run": provenance(time.perf_counter() - start, options.device),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target of the evaluation is met, 1 otherwise."""
    p = parser("paper_d", __doc__)
    p.add_argument("--part", choices=(*PARTS, "all"), default="all")
    p.add_argument("--task", choices=TASKS, help="of the search; default: both")
    p.add_argument(
        "--full", action="store_true", help="the published numbers of images, seeds and trials (hours of a GPU)"
    )
    p.add_argument("--device", default="cpu")
    options = p.parse_args(argv)
    torch.set_num_threads(1)
    parts, out = Parts(options.cache / "paper_d", __package__), destination(options)
    size = QUICK if options.quick else FULL if options.full else Size()
    results = earlier(out, options.quick)
    if options.part != "search":
        results["evaluation"] = nothing_to_leak.run(options.data, parts, options.quick)
    if options.part != "evaluation":
        for task in TASKS:
            if options.task in (None, task):
                results[f"search {task}"] = search(task, options, parts, size)
    missed = results.get("evaluation", {}).get("targets_missed", [])
    report = {"suite": "paper_d", "quick": options.quick, "targets_missed": missed, "results": results}
    write_json(out, report)
    print(shown(report))
    verdict = "quick run, targets not checked" if options.quick else "all targets met" if not missed else "failed"
    return concluded(missed, out, verdict)
