# ruff: noqa: E402 (threads are set before NumPy and torch are imported)
"""Time and memory of one DP-SGD step of a whole vision transformer: this package beside Opacus, on one model.

Every way takes the same step on the same batch: flat clipping at 1, noise, SGD. Rounds go through all ways in rotating
order; the ratio to Opacus' ghost clipping is the median over rounds of the ratio within a round. Memory is the highest
in a process of its own: on the GPU as torch counts it, on the CPU the resident size. "plain noise" draws one number
where `float_safe` draws four, as Opacus does without its secure mode. The target is a ratio of at most 1.05 for ghost.

    python -m audit.benchmarks.dp_finetuning [--device cuda] [--batch 32] [--rounds 9] [--out FILE]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from safexplain.dp import FlatClipping
from safexplain.dp.models.checks import Mode
from safexplain.dp.models.prepare import prepare
from safexplain.dp.sgd.plan import cross_entropy
from safexplain.dp.sgd.steps import make_step

from ..shared.run import RESULTS, ROOT, provenance, table, write_json

TARGET = 1.05
REFERENCE = "Opacus, ghost"
Step = Callable[[], None]


def transformer(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A ViT of 2.7 M parameters for 32 x 32 images, position embeddings and class token frozen; and SGD."""
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(img_size=32, patch_size=4, embed_dim=192, depth=6, num_heads=3, num_classes=10)
    model = prepare(model, "all").to(device)
    return model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)


def batch(size: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 3, 32, 32, generator=generator)
    return x.to(device), torch.randint(0, 10, (size,), generator=generator).to(device)


def ours(mode: Mode, float_safe: bool, size: int, device: str) -> Step:
    """A step of `make_step`."""
    model, optimizer = transformer(device)
    step = make_step(
        model,
        optimizer,
        clipping=FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=size,
        loss=cross_entropy,
        mode=mode,
        float_safe=float_safe,
    )
    x, y = batch(size, device)

    def run() -> None:
        step.accumulate(x, y)
        step.step()

    return run


def opacus(mode: Mode, size: int, device: str) -> Step:
    """A step as Opacus' tutorials take it."""
    model, optimizer = transformer(device)
    options = {"noise_multiplier": 1.0, "expected_batch_size": size, "max_grad_norm": 1.0}
    criterion: Any = nn.CrossEntropyLoss()
    if mode == "ghost":
        watched: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        private: Any = DPOptimizerFastGradientClipping(optimizer, **options)
        criterion = DPLossFastGradientClipping(watched, private, criterion)
    else:
        watched, private = GradSampleModule(model), DPOptimizer(optimizer, **options)
    x, y = batch(size, device)

    def run() -> None:
        private.zero_grad()
        criterion(watched(x), y).backward()
        private.step()

    return run


def not_private(size: int, device: str) -> Step:
    """A step of SGD."""
    model, optimizer = transformer(device)
    x, y = batch(size, device)

    def run() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


WAYS: dict[str, Callable[[int, str], Step]] = {
    REFERENCE: partial(opacus, "ghost"),
    "safexplain, ghost": partial(ours, "ghost", True),
    "safexplain, ghost, plain noise": partial(ours, "ghost", False),
    "Opacus, hooks": partial(opacus, "hooks"),
    "safexplain, hooks": partial(ours, "hooks", True),
    "not private": not_private,
}


def memory(way: str, size: int, device: str) -> float:
    """MiB of three steps in this process."""
    step = WAYS[way](size, device)
    for _ in range(3):
        step()
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def elsewhere(way: str, size: int, device: str) -> float:
    """`memory` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "audit.benchmarks.dp_finetuning",
        "--memory-of",
        way,
        "--batch",
        str(size),
        "--device",
        device,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return round(float(json.loads(done.stdout.splitlines()[-1])), 1)


def milliseconds(step: Step, device: str) -> float:
    """On the clock."""
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when the target is met, 1 otherwise."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--out", type=Path)
    p.add_argument("--memory-of", choices=tuple(WAYS), help=argparse.SUPPRESS)
    options = p.parse_args(argv)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    if options.memory_of:
        print(json.dumps(memory(options.memory_of, options.batch, options.device)))
        return 0
    start = time.perf_counter()
    peak = {way: elsewhere(way, options.batch, options.device) for way in WAYS}
    steps = {way: make(options.batch, options.device) for way, make in WAYS.items()}
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    order = list(WAYS)
    for i in range(options.rounds):
        for way in order[i % len(order) :] + order[: i % len(order)]:
            times[way].append(milliseconds(steps[way], options.device))
    results = {
        way: {
            "ms_median": round(statistics.median(spent), 1),
            "ms_shortest": round(min(spent), 1),
            "ratio_to_opacus_ghost": round(
                statistics.median(a / b for a, b in zip(spent, times[REFERENCE], strict=True)), 3
            ),
            "peak_mib": peak[way],
        }
        for way, spent in times.items()
    }
    ratio = results["safexplain, ghost"]["ratio_to_opacus_ghost"]
    met = {"ratio_of_ghost": {"target": TARGET, "measured": ratio, "met": ratio <= TARGET}}
    print(table(("one step", "ms", "shortest", "ratio to Opacus, ghost", "peak MiB"),
                [(way, *r.values()) for way, r in results.items()]))  # fmt: skip
    suffix = "" if options.device == "cpu" else "_cuda"
    report = {
        "benchmark": "dp_finetuning",
        "model": "ViT 192 x 6, 65 tokens, 2.7 M parameters",
        "batch": options.batch,
        "rounds": options.rounds,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu, one core",
        "targets": met,
        "results": results,
        **provenance(time.perf_counter() - start),
    }
    out = options.out or RESULTS / f"dp_finetuning{suffix}.json"
    write_json(out, report)
    print(f"targets: {met}; written to {out}")
    return 0 if met["ratio_of_ghost"]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
