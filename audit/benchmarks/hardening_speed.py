# ruff: noqa: E402 (threads are set before NumPy and torch are imported)
"""Time and memory of clip + mask + noise on a batch of 256 x 3 x 32 x 32, on one CPU core.

Each round runs the hardening and a naive torch version without any of the promises (`clamp`, multiply by a mask, add
`randn`: fresh noise, no key, no grid) in alternating order; the figure is the median over rounds of the processor time,
which other processes on the machine disturb less than the time on the clock, and the median of the ratios of the two.
The target is 60 ms. Memory is measured in a process of its own: the highest resident size during one call, over that
before it, in units of the attribution (float32, 3 MiB), the released result included, the worst of three processes; the
target is 3. A batch eight times as large is shown beside it.

    python -m audit.benchmarks.hardening_speed [--rounds 15] [--batch 256] [--out FILE]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safexplain.hardening.amounts import Relative
from safexplain.hardening.clips import RangeClip, RankNorm, UnitNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.masks import ThresholdMask, TopKMask
from safexplain.hardening.noise import GaussianNoise

from ..shared.run import RESULTS, ROOT, peak_bytes, provenance, table, write_json

TARGET_MS, TARGET_MEMORY = 60.0, 3.0
NOISE = GaussianNoise(Relative(0.3), key=bytes(32))
CONFIGURATIONS = {
    "recommended": Hardening.recommended(key=bytes(32)),
    "RangeClip + ThresholdMask + noise": Hardening(RangeClip(-0.1, 0.1), ThresholdMask(0.01), NOISE),
    "UnitNorm + TopKMask + noise": Hardening(UnitNorm(), TopKMask(0.1), NOISE),
    "RankNorm + TopKMask + noise": Hardening(RankNorm(), TopKMask(0.1), NOISE),
}


def batch(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, attributions and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, 32, 32, generator=generator)
    return x, 0.1 * torch.randn(n, 3, 32, 32, generator=generator) ** 3, torch.arange(n) % 10


def naive(attributions: Tensor) -> Tensor:
    """What the same three steps cost at least."""
    clipped = attributions.clamp(-0.1, 0.1)
    return clipped * (clipped.abs() >= 0.01) + 0.02 * torch.randn_like(clipped)


def milliseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Of the processor, and on the clock."""
    start, clock = time.process_time(), time.perf_counter()
    call()
    return 1e3 * (time.process_time() - start), 1e3 * (time.perf_counter() - clock)


def measure(name: str, n: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a configuration and of the naive version, and their ratio round by round."""
    x, attributions, target = batch(n)
    hardening = CONFIGURATIONS[name]
    calls = (lambda: hardening(attributions, inputs=x, target=target), lambda: naive(attributions))
    for call in calls:
        call()
    times: list[list[float]] = [[], []]
    clock = []
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            busy, passed = milliseconds(calls[which])
            times[which].append(busy)
            clock += [passed] if which == 0 else []
    low, median, high = statistics.quantiles(times[0], n=4)
    return {
        "ms_median": round(median, 2),
        "ms_quartiles": [round(low, 2), round(high, 2)],
        "ms_on_the_clock_median": round(statistics.median(clock), 2),
        "ms_on_the_clock_shortest": round(min(clock), 2),
        "naive_ms_median": round(statistics.median(times[1]), 2),
        "ratio_to_naive_median": round(statistics.median(h / n for h, n in zip(*times, strict=True)), 2),
    }


def memory_of_one_call(name: str, n: int) -> dict[str, float] | None:
    """Highest resident memory during one call over that before it, as a multiple of the attribution; Linux only."""
    x, attributions, target = batch(n)
    hardening = CONFIGURATIONS[name]
    hardening(attributions[:2], inputs=x[:2], target=target[:2])
    extra = peak_bytes(lambda: hardening(attributions, inputs=x, target=target))
    size = attributions.numel() * attributions.element_size()
    if extra is None:
        return None
    return {"attribution_mib": size / 2**20, "peak_extra_mib": extra / 2**20, "multiple": extra / size}


def memory(name: str, n: int, repeats: int = 3) -> dict[str, float] | None:
    """`memory_of_one_call` in fresh processes, the worst of them."""
    found = [_in_a_process(name, n) for _ in range(repeats)]
    return max((f for f in found if f), key=lambda f: f["multiple"], default=None)


def _in_a_process(name: str, n: int) -> dict[str, float] | None:
    command = [sys.executable, "-m", "audit.benchmarks.hardening_speed", "--memory-of", name, "--batch", str(n)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] | None = json.loads(done.stdout)
    return None if found is None else {k: round(v, 2) for k, v in found.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when both targets are met by every configuration, 1 otherwise."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--out", type=Path, default=RESULTS / "hardening_speed.json")
    p.add_argument("--memory-of", choices=tuple(CONFIGURATIONS), help=argparse.SUPPRESS)
    options = p.parse_args(argv)
    torch.set_num_threads(1)
    if options.memory_of:
        print(json.dumps(memory_of_one_call(options.memory_of, options.batch)))
        return 0
    start = time.perf_counter()
    results: dict[str, Any] = {}
    for name in CONFIGURATIONS:
        results[name] = measure(name, options.batch, options.rounds)
        results[name] |= {"memory": memory(name, options.batch), "memory_batch_x8": memory(name, 8 * options.batch, 1)}
        print(f"{name}: {results[name]['ms_median']} ms", file=sys.stderr, flush=True)
    worst_ms = max(r["ms_median"] for r in results.values())
    multiples = [r["memory"]["multiple"] for r in results.values() if r["memory"]]
    met = {
        "milliseconds": {"target": TARGET_MS, "worst": worst_ms, "met": worst_ms <= TARGET_MS},
        "memory": {"target": TARGET_MEMORY, "worst": max(multiples, default=None),
                   "met": max(multiples) <= TARGET_MEMORY if multiples else None},
    }  # fmt: skip
    rows = [
        (name, r["ms_median"], r["ms_on_the_clock_median"], r["naive_ms_median"], r["ratio_to_naive_median"],
         *(r[k]["multiple"] if r[k] else "-" for k in ("memory", "memory_batch_x8")))
        for name, r in results.items()
    ]  # fmt: skip
    print(table((f"{options.batch} x 3 x 32 x 32, one core", "ms", "clock ms", "naive ms", "ratio",
                 "memory", "at batch x 8"), rows))  # fmt: skip
    report = {
        "benchmark": "hardening_speed",
        "batch": [options.batch, 3, 32, 32],
        "rounds": options.rounds,
        "targets": met,
        "results": results,
        "hardenings": {name: h.to_dict() for name, h in CONFIGURATIONS.items()},
        **provenance(time.perf_counter() - start),
    }
    write_json(options.out, report)
    print(f"targets: {met}; written to {options.out}")
    return 0 if met["milliseconds"]["met"] and met["memory"]["met"] is not False else 1


if __name__ == "__main__":
    sys.exit(main())
