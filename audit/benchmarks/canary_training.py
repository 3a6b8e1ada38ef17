"""Training the runs of a canary audit: `train_runs`, all runs side by side, beside a loop of Opacus trainings.

500 x 768 features, 500 steps, q = .25: R = 2,500 heads with one logit, R = 200 heads of 10 classes. Opacus:
`PrivacyEngine.make_private` with Poisson sampling in the loop of its tutorial, one run (making the engine is part of
it, as every run needs one). Here: all R runs, scores included, on one thread and on `--workers` threads; they share the
batches of the other records. Figures are medians over rounds: for each run the processor time and the ratio of two in
the same round; for all runs the time on the clock. That both ways compute the same is tested in
tests/audit/canaries/test_train.py.

    python -m audit.benchmarks.canary_training [--rounds 3] [--device cpu] [--workers 2] [--quick] [--out FILE]
"""

from __future__ import annotations

import os
import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from safexplain.audit.canaries.canary import GradientCanary
from safexplain.audit.canaries.run import LinearHead, train_runs
from safexplain.dp.heads import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping

from ..shared.run import finish
from .harness import Benchmark, Call, Turns, at_least, at_most

RECORDS, FEATURES, SIGMA, LR, BOUND, RATE = 500, 768, 5.5728, 0.001, 2.0, 0.25
OPACUS = "Opacus PrivacyEngine"


@dataclass(frozen=True)
class Case:
    """A head, how many runs of it, and what is aimed at: times as fast a run as Opacus, and seconds for all."""

    network: LinearHead
    runs: int
    times: float
    seconds: float


CASES = {
    "one logit": Case(LinearHead(FEATURES, 2, bias=False, one_logit=True), 2500, 60.0, 60.0),
    "10 classes": Case(LinearHead(FEATURES, 10), 200, 20.0, 30.0),
}


def data(classes: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (RECORDS,), generator=generator)
    means = torch.randn(classes, FEATURES, generator=generator) / 4
    return (means[y] + torch.randn(RECORDS, FEATURES, generator=generator)).to(device), y.to(device)


def recipe(network: LinearHead, steps: int) -> HeadRecipe:
    return HeadRecipe(
        classes=network.classes, steps=steps, sample_rate=RATE, expected_batch_size=RATE * RECORDS,
        clipping=FlatClipping(BOUND), lr=LR, bias=network.bias, one_logit=network.one_logit,
    )  # fmt: skip


def by_opacus(case: Case, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """One run; its weights."""
    network = case.network
    model: nn.Module = nn.Linear(FEATURES, network.outputs, bias=network.bias).to(x.device)
    nn.init.zeros_(model.weight)
    loader = DataLoader(TensorDataset(x, y), batch_size=int(RATE * RECORDS))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR), data_loader=loader,
        noise_multiplier=SIGMA, max_grad_norm=BOUND, poisson_sampling=True,
    )  # fmt: skip
    done = 0
    while True:
        for xb, yb in loader:
            optimizer.zero_grad()
            logits = model(xb)
            if network.one_logit:
                F.binary_cross_entropy_with_logits(logits[:, 0], yb.to(logits)).backward()
            else:
                F.cross_entropy(logits, yb).backward()
            optimizer.step()
            done += 1
            if done == steps:
                weight: Tensor = model._module.weight.detach()
                return weight


def batched(case: Case, x: Tensor, y: Tensor, steps: int, devices: Sequence[str]) -> Tensor:
    """All runs; their scores."""
    found = train_runs(
        case.network, x, y, GradientCanary(0, 5), recipe(case.network, steps), noise_multiplier=SIGMA, runs=case.runs,
        every=max(1, steps // 20), generator=torch.Generator().manual_seed(time.perf_counter_ns()),
        devices=devices,
    )  # fmt: skip
    return torch.from_numpy(found.d)


def measure(case: Case, options: Namespace) -> dict[str, Any]:
    """Seconds for each run of each way, and the ratio of Opacus to it."""
    x, y = data(case.network.classes, options.device)
    devices = {"shared batches": 1} | ({f"shared batches, {options.workers} threads": options.workers}
                                       if options.workers > 1 else {})  # fmt: skip
    calls: dict[str, Call] = {OPACUS: lambda: by_opacus(case, x, y, options.steps)}
    for kind, workers in devices.items():
        on = [options.device] * workers
        calls[f"R = {case.runs}, {kind}"] = lambda on=on: batched(case, x, y, options.steps, on)
    by_opacus(case, x, y, 5), batched(replace(case, runs=8), x, y, 5, [options.device])
    turns = Turns(calls, options.rounds, device=options.device, warm=False)
    results = {}
    for name in calls:
        runs = 1 if name == OPACUS else case.runs
        results[name] = {
            "runs": runs,
            "processor_seconds_a_run_median": round(statistics.median(turns.busy[name]) / runs, 6),
            "clock_seconds_a_run_median": round(statistics.median(turns.clock[name]) / runs, 6),
            "clock_seconds_median": round(statistics.median(turns.clock[name]), 3),
            "times_faster_median": round(runs * statistics.median(turns.ratios(OPACUS, name)), 2),
        }
    return results


def targets(report: dict[str, Any], cases: dict[str, Case]) -> dict[str, Any]:
    """What is aimed at, what was found, and whether it is met."""
    found: dict[str, Any] = {}
    for name, case in cases.items():
        rows = {n: r for n, r in report["results"][name].items() if "shared" in n}
        times = rows[f"R = {case.runs}, shared batches"]["times_faster_median"]
        seconds = min(r["clock_seconds_median"] for r in rows.values())
        found[f"{name}, times as fast a run as Opacus"] = at_least(case.times, times)
        found[f"{name}, seconds"] = at_most(case.seconds, seconds)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when all targets are met, 1 otherwise; a quick run has none."""
    run = Benchmark(
        "canary_training",
        __doc__,
        argv,
        rounds=3,
        steps=500,
        workers={"type": int, "default": os.cpu_count(), "help": "threads that share the runs (default: cores)"},
    )
    options = run.options
    cases = CASES
    if options.quick:
        options.steps = 4
        cases = {name: replace(case, runs=8) for name, case in CASES.items()}
    if options.device.startswith("cuda"):
        options.workers = 1
    report: dict[str, Any] = {
        "records": RECORDS, "features": FEATURES, "steps": options.steps, "sample_rate": RATE,
        "noise_multiplier": SIGMA, "opacus": version("opacus"),
        "results": {name: measure(case, options) for name, case in cases.items()},
    }  # fmt: skip
    return run.conclude(report, targets(report, cases))


if __name__ == "__main__":
    finish(main)
