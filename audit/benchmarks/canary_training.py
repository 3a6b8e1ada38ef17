"""Training the runs of a canary audit: `train_runs`, all runs side by side, beside a loop of Opacus trainings.

500 x 768 features, 500 steps, q = .25: R = 2,500 heads with one logit, R = 200 heads of 10 classes. Opacus:
`PrivacyEngine.make_private` with Poisson sampling in the loop of its tutorial, one run (making the engine is part of
it, as every run needs one). Here: all R runs, scores included, on one thread and on `--workers` threads; they share the
batches of the other records. Figures are medians over rounds: for each run the processor time and the ratio of two in
the same round; for all runs the time on the clock. That both ways compute the same is tested in
tests/audit/canaries/batched/test_train.py.

On a GPU also: Figure 3 of arXiv 2511.21804 in full (500 x 768, 10 classes, R = 2,500, three sample rates, S2 to S5, 3
repeats, canaries crafted anew each time), and steps of its MLP for Purchase100 (600-128-100, 50,000 records, q = .25,
R = 2,500, DP-Adam), whose 2,500 steps are projected unless `--mlp-steps 2500` takes them all.

    python -m audit.benchmarks.canary_training [--rounds 3] [--device cpu] [--workers 2] [--quick] [--out FILE]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from safexplain.audit.canaries.batched.networks import LinearHead
from safexplain.audit.canaries.batched.train import train_runs
from safexplain.audit.canaries.canary import Canary, GradientCanary
from safexplain.audit.canaries.make_canary import make_canary
from safexplain.audit.canaries.reference import reference
from safexplain.dp.heads.recipe import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping

from ..shared.run import finish
from ..suites.paper_c_canaries.mlp import MLP
from .harness import Call, Turns, at_least, at_most, parser, started, written

RECORDS, FEATURES, SIGMA, LR, BOUND, RATE = 500, 768, 5.5728, 0.001, 2.0, 0.25
SIGMAS = {1.0: 22.3557, 0.25: 5.5728, 0.0625: 1.4028}
"""Sample rate -> noise multiplier, for epsilon 10 under substitution after 500 steps at delta 1e-5."""
SCENARIOS = ("gradient", "crafted", "mislabelled", "natural")
OPACUS = "Opacus PrivacyEngine"
FIGURE_3_SECONDS, MLP_SECONDS, MLP_STEPS = 300.0, 900.0, 2500


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


def data(classes: int, device: str, records: int = RECORDS, features: int = FEATURES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (records,), generator=generator)
    means = torch.randn(classes, features, generator=generator) / 4
    return (means[y] + torch.randn(records, features, generator=generator)).to(device), y.to(device)


def recipe(network: LinearHead | MLP, steps: int, rate: float = RATE, **changes: Any) -> HeadRecipe:
    return HeadRecipe(**{
        "classes": network.classes, "steps": steps, "sample_rate": rate, "expected_batch_size": rate * RECORDS,
        "clipping": FlatClipping(BOUND), "lr": LR, "bias": network.bias, "one_logit": network.one_logit, **changes,
    })  # fmt: skip


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


def figure_3(options: Namespace) -> dict[str, Any]:
    """Seconds for each scenario and sample rate: crafting and training, all repeats."""
    network, runs = LinearHead(FEATURES, 10), options.audit_runs
    x, y = data(10, options.device, 2 * RECORDS)
    auxiliary, x, y = (x[RECORDS:], y[RECORDS:]), x[:RECORDS], y[:RECORDS]
    found: dict[str, float] = {}
    for rate, sigma in SIGMAS.items():
        made_by = recipe(network, options.steps, rate)
        for scenario in SCENARIOS:
            start = time.perf_counter()
            for repeat in range(options.repeats):
                generator = torch.Generator(options.device).manual_seed(repeat)
                known = reference(network, x, y, made_by, generator=generator, movement=scenario == "gradient")
                canary: Canary = make_canary(scenario, network, x, y, known, auxiliary=auxiliary, generator=generator)
                train_runs(
                    network, x, y, canary, made_by, noise_multiplier=sigma, runs=runs,
                    every=max(1, options.steps // 20), generator=generator,
                )  # fmt: skip
            found[f"{scenario}, q = {rate:g}"] = round(time.perf_counter() - start, 2)
            print(f"{scenario}, q = {rate:g}: {found[f'{scenario}, q = {rate:g}']} s", file=sys.stderr, flush=True)
    return {"runs": runs, "repeats": options.repeats, "seconds": found, "total_seconds": round(sum(found.values()), 1)}


def mlp(options: Namespace, tf32: bool) -> dict[str, Any]:
    """Seconds for some steps of all runs, and for all steps: taken, or projected."""
    network = MLP(600, (128,), 100)
    x, y = data(100, options.device, options.mlp_records, 600)
    made_by = recipe(
        network, options.mlp_steps, clipping=FlatClipping(5.0), lr=0.0018, optimizer="adam",
        expected_batch_size=RATE * options.mlp_records,
    )  # fmt: skip
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        train_runs(
            network, x, y, GradientCanary(0, 0), made_by, noise_multiplier=SIGMA, runs=options.audit_runs,
            every=options.mlp_steps, generator=torch.Generator().manual_seed(0), cache=Path(folder),
        )  # fmt: skip
        took = time.perf_counter() - start
    return {
        "runs": options.audit_runs,
        "records": options.mlp_records,
        "tf32": tf32,
        "steps": options.mlp_steps,
        "seconds": round(took, 2),
        "seconds_for_2500_steps": round(took * MLP_STEPS / options.mlp_steps, 1),
        "projected": options.mlp_steps != MLP_STEPS,
    }


def targets(report: dict[str, Any], cases: dict[str, Case]) -> dict[str, Any]:
    """What is aimed at, what was found, and whether it is met."""
    found: dict[str, Any] = {}
    for name, case in cases.items():
        rows = {n: r for n, r in report["results"][name].items() if "shared" in n}
        times = rows[f"R = {case.runs}, shared batches"]["times_faster_median"]
        seconds = min(r["clock_seconds_median"] for r in rows.values())
        found[f"{name}, times as fast a run as Opacus"] = at_least(case.times, times)
        found[f"{name}, seconds"] = at_most(case.seconds, seconds)
    if "figure_3" in report:
        found["figure 3, seconds"] = at_most(FIGURE_3_SECONDS, report["figure_3"]["total_seconds"])
        fastest = min(m["seconds_for_2500_steps"] for m in report["mlp"])
        found["MLP, seconds for 2,500 steps"] = at_most(MLP_SECONDS, fastest)
    return found


def arguments() -> ArgumentParser:
    """The options."""
    p = parser("canary_training", __doc__, rounds=3)
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--workers", type=int, default=os.cpu_count(), help="threads that share the runs (default: cores)")
    p.add_argument("--repeats", type=int, default=3, help="of Figure 3")
    p.add_argument("--audit-runs", type=int, default=2500, help="R of Figure 3 and of the MLP")
    p.add_argument("--mlp-steps", type=int, default=50, help="2500 takes them all")
    p.add_argument("--mlp-records", type=int, default=50_000)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when all targets are met, 1 otherwise; a quick run has none."""
    options, cases = started(arguments(), argv), CASES
    if options.quick:
        options.steps, options.repeats, options.audit_runs, options.mlp_steps, options.mlp_records = 4, 1, 4, 2, 200
        cases = {name: replace(case, runs=8) for name, case in CASES.items()}
    on_gpu = options.device.startswith("cuda")
    if on_gpu:
        options.workers = 1
    report: dict[str, Any] = {
        "records": RECORDS, "features": FEATURES, "steps": options.steps, "sample_rate": RATE,
        "noise_multiplier": SIGMA, "opacus": version("opacus"),
        "results": {name: measure(case, options) for name, case in cases.items()},
    }  # fmt: skip
    if options.quick or on_gpu:
        report["figure_3"] = figure_3(options)
        report["mlp"] = [mlp(options, tf32) for tf32 in (False, True)]
    return written(options, report, targets(report, cases))


if __name__ == "__main__":
    finish(main)
