"""What the defaults of `DPFineTuner` give, beside the best of a search of learning rate, batches, epochs and clipping.

"Defaults" is `DPFineTuner(nn.Sequential(nn.Linear(d, classes)), data, epsilon=epsilon)`. The search has 20
configurations (learning rates .001 to .256; batches of 5 % and 10 epochs, or of 25 % and 50; AUTO-S clipping or
clipping to norm 1), each with the same epsilon for one record substituted. "Version 0.2" is what the defaults were. A
linear head on features of CIFAR-10 images, of AG News and on Adult. Each repetition draws anew what is trained on, what
chooses and what is reported. The target: the defaults are within 2 points of the best mean on the reported records
themselves, which no person can choose. Standard errors are of means over repetitions.

    python -m audit.suites.dp_defaults [--task cifar10|agnews|adult] [--quick]
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from typing import Any

import torch
from torch import nn

from safexplain._progress import silent
from safexplain.dp import AutoSClipping, DPFineTuner, FlatClipping
from safexplain.errors import PrivacyWarning

from ...shared.run import Parts, Progress, Run, Unusable
from .tasks import TASKS, Task

EPSILONS = (1.0, 3.0, 8.0)
REPETITIONS = 4
WITHIN = 0.02
RATES = (0.001, 0.004, 0.016, 0.064, 0.256)
BATCHES = ((0.05, 10), (0.25, 50))
CLIPPINGS = {"AUTO-S": AutoSClipping(), "flat": FlatClipping(1.0)}
DEFAULTS, BEFORE = "defaults", "version 0.2"


def configurations(records: int) -> dict[str, dict[str, Any]]:
    """Name -> options of `DPFineTuner`: the defaults, those of version 0.2, and the search's."""
    found: dict[str, dict[str, Any]] = {DEFAULTS: {}}
    found[BEFORE] = {"lr": 5e-4, "batch_size": min(256, records), "epochs": 20}
    for lr, (share, epochs), clip in itertools.product(RATES, BATCHES, CLIPPINGS):
        batches = {"batch_size": share * records, "epochs": epochs}
        found[f"lr {lr:g}, {share:.0%}, {epochs} epochs, {clip}"] = {"lr": lr, "clipping": CLIPPINGS[clip], **batches}
    return found


def accuracies(task: Task, epsilon: float, options: dict[str, Any], seed: int) -> list[float]:
    """Of one training on the validation and on the reported records."""
    train, *others = task.parts(seed)
    torch.manual_seed(seed)
    head = nn.Sequential(nn.Linear(task.x.shape[1], task.classes))
    data = task.x[train], task.y[train]
    trained = DPFineTuner(head, data, epsilon=epsilon, seed=seed, progress=silent, **options).fit().model
    with torch.no_grad():
        return [float((trained(task.x[rows]).argmax(1) == task.y[rows]).float().mean()) for rows in others]


def measure(name: str, task: Task, options: Any, parts: Parts) -> dict[str, Any]:
    """Every configuration at every epsilon, [validation, reported] of each repetition."""
    wanted, progress = configurations(task.train), Progress(f"{name}: ")
    epsilons, repetitions = (EPSILONS[1:2], 2) if options.quick else (EPSILONS, REPETITIONS)
    every = list(itertools.product(epsilons, range(repetitions), wanted))
    found: dict[str, dict[str, list[list[float]]]] = {f"{e:g}": {c: [] for c in wanted} for e in epsilons}
    for done, (epsilon, seed, which) in enumerate(every, 1):
        key = [name, task.about, options.quick, epsilon, seed, which]
        made = parts.get(key, lambda e=epsilon, s=seed, w=which: accuracies(task, e, wanted[w], s))
        found[f"{epsilon:g}"][which].append(made)
        progress("training", done, len(every))
    size = {"features": task.x.shape[1], "train": task.train, "validation": task.validation, "test": task.test}
    summary = {epsilon: summed_up(runs) for epsilon, runs in found.items()}
    return {"about": task.about, **size, "summary": summary, "accuracies": found}


def summed_up(runs: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Means and standard errors of one task at one epsilon; differences are defaults minus search."""
    searched = [which for which in runs if which not in (DEFAULTS, BEFORE)]
    own = [test for _, test in runs[DEFAULTS]]
    chosen = [max(searched, key=lambda which, i=i: runs[which][i][0]) for i in range(len(own))]
    by_validation = [runs[which][i][1] for i, which in enumerate(chosen)]
    best = max(searched, key=lambda which: statistics.mean(test for _, test in runs[which]))
    on_test = [test for _, test in runs[best]]
    return {
        "defaults": _mean(own),
        "version 0.2": _mean([test for _, test in runs[BEFORE]]),
        "chosen by validation": _mean(by_validation),
        "chosen": chosen,
        "best on test": _mean(on_test),
        "best": best,
        "defaults - chosen": _mean([a - b for a, b in zip(own, by_validation, strict=True)]),
        "defaults - best": _mean([a - b for a, b in zip(own, on_test, strict=True)]),
    }


def _mean(values: list[float]) -> list[float]:
    """The mean and its standard error."""
    return [statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5]


def missed(results: dict[str, Any]) -> list[str]:
    """Where the defaults are more than 2 points below the best of the search, in words."""
    return [
        f"{name}, epsilon {epsilon}: {100 * found['defaults - best'][0]:+.1f} ± {100 * found['defaults - best'][1]:.1f}"
        f" points from {found['best']}"
        for name, result in results.items()
        for epsilon, found in result["summary"].items()
        if found["defaults - best"][0] < -WITHIN
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when the defaults are within 2 points everywhere, 1 otherwise."""
    run = Run("dp_defaults", __doc__, argv, task={"choices": (*TASKS, "all"), "default": "all"})
    options = run.options
    warnings.simplefilter("ignore", PrivacyWarning)
    torch.set_num_threads(1)
    parts, results = run.parts(__package__, "safexplain.dp.sgd.finetune"), run.earlier()
    for name in TASKS if options.task == "all" else (options.task,):
        try:
            task = TASKS[name](options)
        except Unusable as error:
            if options.task != "all":
                raise
            print(f"skipped {name}: {error}", flush=True)
            continue
        found = measure(name, task, options, parts)
        for epsilon, row in found["summary"].items():
            told = (f"{k} {100 * row[k][0]:.1f}" for k in ("defaults", "version 0.2", "chosen by validation"))
            least, error = (100 * v for v in row["defaults - best"])
            print(f"{name} epsilon {epsilon}: {', '.join(told)}; from the best {least:+.1f} ± {error:.1f}", flush=True)
        results[name] = {**found, "run": run.provenance()}
        run.write(results=results)
    return run.end(missed(results))
