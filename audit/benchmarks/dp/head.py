"""DP-SGD of a linear head on 500 x 768 features, 10 classes, 500 steps at q = .25: Opacus, and in closed form.

Opacus: `PrivacyEngine.make_private` on an `nn.Linear`, SGD with momentum and a `DataLoader`, in the loop of its
tutorial. Here: `safexplain.dp.heads.train_heads` with the same recipe, each run with Poisson batches and
noise of its own; beside it, runs that share their batches, and noise that is safe against floating-point attacks.
Figures are medians over rounds, for each run. The target, 15 times faster, is for runs that share batches.

    python -m audit.benchmarks.dp.head [--rounds 5] [--steps 500] [--device cpu] [--out FILE]
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from importlib.metadata import version

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from safexplain.dp.heads import HeadRecipe, train_heads
from safexplain.dp.sgd.clipping import FlatClipping

from ...shared.run import finish
from ..harness import Benchmark, Call, Turns, at_least

ROWS, COLUMNS, CLASSES = 500, 768, 10
SIGMA, LR, MOMENTUM, RATE = 5.5728, 0.1, 0.9, 0.25
TARGET = 15.0
OPACUS = "Opacus PrivacyEngine"
KINDS = {"": (False, False), ", float-safe noise": (False, True), ", shared batches": (True, False)}
"""Name -> whether runs share batches, whether noise is float-safe."""


def data(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator)
    return x.to(device), torch.randint(0, CLASSES, (ROWS,), generator=generator).to(device)


def by_opacus(x: Tensor, y: Tensor, steps: int) -> Tensor:
    """One run; (classes, d) weights."""
    model: nn.Module = nn.Linear(COLUMNS, CLASSES).to(x.device)
    loader = DataLoader(TensorDataset(x, y), batch_size=int(RATE * ROWS))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM), data_loader=loader,
        noise_multiplier=SIGMA, max_grad_norm=1.0,
    )  # fmt: skip
    criterion, done = nn.CrossEntropyLoss(), 0
    while True:
        for xb, yb in loader:
            optimizer.zero_grad()
            criterion(model(xb), yb).backward()
            optimizer.step()
            done += 1
            if done == steps:
                weight: Tensor = model._module.weight.detach()
                return weight


def batched(x: Tensor, y: Tensor, steps: int, runs: int, shared: bool, float_safe: bool) -> Tensor:
    """(runs, classes, d) weights."""
    recipe = HeadRecipe(
        classes=CLASSES, steps=steps, sample_rate=RATE, expected_batch_size=RATE * ROWS, clipping=FlatClipping(1.0),
        lr=LR, momentum=MOMENTUM,
    )  # fmt: skip
    return train_heads(
        x, y, recipe, noise_multiplier=SIGMA, runs=runs, shared_batches=shared, float_safe=float_safe
    ).weight


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when the target is met, 1 otherwise."""
    run = Benchmark(
        "dp_head",
        __doc__,
        argv,
        rounds=5,
        steps=500,
        runs={"type": int, "nargs": "+", "default": (1, 17, 200), "help": "how many at once (default 1 17 200)"},
    )
    options = run.options
    if options.quick:
        options.steps, options.runs = 20, (2,)
    x, y = data(options.device)
    calls: dict[str, Call] = {OPACUS: lambda: by_opacus(x, y, options.steps)}
    runs_of, sharing = {OPACUS: 1}, []
    for runs in options.runs:
        for kind, (shared, safe) in KINDS.items():
            name = f"train_heads, {runs} run{'s' * (runs > 1)}{kind}"
            calls[name] = lambda r=runs, sh=shared, fs=safe: batched(x, y, options.steps, r, sh, fs)
            runs_of[name] = runs
            sharing += [name] * (shared and runs > 1)
    turns = Turns(calls, options.rounds, device=options.device)
    results = {
        name: {
            "runs": runs,
            "processor_seconds_median": round(statistics.median(turns.busy[name]) / runs, 5),
            "clock_seconds_median": round(statistics.median(turns.clock[name]) / runs, 5),
            "times_faster_median": round(runs * statistics.median(turns.ratios(OPACUS, name)), 2),
        }
        for name, runs in runs_of.items()
    }
    report = {
        "rows": ROWS, "columns": COLUMNS, "classes": CLASSES, "steps": options.steps, "sample_rate": RATE,
        "noise_multiplier": SIGMA, "opacus": version("opacus"), "results": results,
    }  # fmt: skip
    slowest = min(results[name]["times_faster_median"] for name in sharing)
    return run.conclude(report, {"shared batches, times as fast": at_least(TARGET, slowest)})


if __name__ == "__main__":
    finish(main)
