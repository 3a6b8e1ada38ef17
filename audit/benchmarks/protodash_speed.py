"""How long ProtoDash takes over 10,000 candidates, and what hardening adds to a call of ProtoDash and of LIME.

The target is an answer within 10 s on one core for 10,000 candidates and 10 prototypes. Times are processor time of the
one thread that works, which other work on the machine changes little. Overheads are ratios of two calls in alternating
order: the median over rounds, with its quartiles.

    python -m audit.benchmarks.protodash_speed [--candidates 10000] [--rounds 15] [--skip-slow] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText, HardenedProtoDash
from safexplain.hardening.hardening import Hardening

from ..shared.run import RESULTS, provenance, table, write_json

TARGET = 10.0
PROTOTYPES = 10
KEYED = Hardening.ranked(key=bytes(32))
Call = Callable[[], object]


def data(n: int) -> dict[str, tuple[np.ndarray, float]]:
    """Name -> rows, and a kernel width that fits them."""
    rng = np.random.default_rng(0)
    digits = load_digits().data / 16
    resampled = digits[rng.integers(0, len(digits), n)] + rng.normal(0, 0.02, (n, 64))
    return {f"digits, {n} x 64": (resampled, 2.0), f"random, {n} x 3072": (rng.random((n, 3072)), 20.0)}


def seconds(call: Call) -> float:
    """Processor time of the calling thread."""
    start = time.thread_time()
    with contextlib.redirect_stdout(io.StringIO()):  # OSQP prints a line for each problem without an active bound
        call()
    return time.thread_time() - start


def cell(rows: np.ndarray, explained: int, options: dict[str, Any], native_too: bool) -> dict[str, Any]:
    """Seconds of one hardened call, and of the native one."""
    hardened = HardenedProtoDash(rows, hardening=KEYED)
    native = hardened._native()
    X = rows[:explained]
    taken = seconds(lambda: hardened.explain(X, m=PROTOTYPES, **options))
    found: dict[str, Any] = {"hardened_seconds": round(taken, 2)}
    if native_too:
        found["native_seconds"] = round(seconds(lambda: native.explain(X, rows, PROTOTYPES, **options)), 2)
    return found


def overheads(rounds: int) -> dict[str, dict[str, Any]]:
    """Hardened over native, call by call."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    classifier = LogisticRegression(max_iter=300).fit(x[:800], y[:800])
    pictures = np.random.default_rng(0).random((32, 32, 3))
    text = "the quick brown fox jumps over the lazy dog and runs far away from the old barn " * 2

    def brightness(batch: np.ndarray) -> np.ndarray:
        level = np.asarray(batch)[:, :16].mean((1, 2, 3))
        return np.stack([level, 1 - level], 1)

    def foxes(texts: list[str]) -> np.ndarray:
        level = np.array([0.2 + 0.6 * ("fox" in t) for t in texts])
        return np.stack([level, 1 - level], 1)

    dash = HardenedProtoDash(x[:1000], hardening=KEYED)
    native = dash._native()
    pairs: dict[str, tuple[Call, Call]] = {}
    for kernel in ("other", "Gaussian"):
        options = {"kernelType": kernel, "optimizer": "osqp"}
        pairs[f"ProtoDash {kernel}, 1000 x 64"] = (
            lambda o=options: native.explain(x[1000:1001], x[:1000], PROTOTYPES, **o),
            lambda o=options: dash.explain(x[1000:1001], m=PROTOTYPES, **o),
        )
    calls: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]] = {
        HardenedLimeTabular: ((x[:800],), (x[900], classifier.predict_proba), {"num_samples": 5000}),
        HardenedLimeText: ((), (text, foxes), {"num_samples": 5000}),
        HardenedLimeImage: ((), (pictures, brightness), {"num_samples": 1000}),
    }
    for kind, (made_of, given, options) in calls.items():
        hardened = kind(*made_of, random_state=0, hardening=KEYED)
        plain = hardened._native(*made_of, random_state=0)
        name = f"{hardened._native.__name__}, {options['num_samples']} samples"
        pairs[name] = (
            lambda p=plain, g=given, o=options: p.explain_instance(*g, **o),
            lambda h=hardened, g=given, o=options: h.explain_instance(*g, **o),
        )
    return {name: ratio(pair, rounds) for name, pair in pairs.items()}


def ratio(pair: tuple[Call, Call], rounds: int) -> dict[str, Any]:
    for call in pair:
        seconds(call)
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            times[which].append(seconds(pair[which]))
    low, median, high = statistics.quantiles([h / n for n, h in zip(*times, strict=True)], n=4)
    return {
        "native_ms": round(1e3 * statistics.median(times[0]), 2),
        "hardened_ms": round(1e3 * statistics.median(times[1]), 2),
        "ratio_median": round(median, 3),
        "ratio_quartiles": [round(low, 3), round(high, 3)],
    }


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every call answered within the target, 1 otherwise."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--candidates", type=int, default=10_000)
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--skip-slow", action="store_true", help="leave out the cells that take minutes")
    p.add_argument("--out", type=Path, default=RESULTS / "protodash_speed.json")
    arguments = p.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    cells = []
    for name, (rows, sigma) in data(arguments.candidates).items():
        for kernel in ("other", "Gaussian"):
            for optimizer in ("cvxpy", "osqp"):
                for explained in (1, 100, arguments.candidates):
                    slow = kernel == "Gaussian" and rows.shape[1] > 1000 and explained > 1000
                    if slow and arguments.skip_slow:
                        continue
                    options = {"kernelType": kernel, "optimizer": optimizer}
                    options |= {"sigma": sigma} if kernel == "Gaussian" else {}
                    found = cell(rows, explained, options, native_too=not slow)
                    asked = {"data": name, "kernel": kernel, "optimizer": optimizer, "explained": explained}
                    cells.append(asked | found)
                    print(cells[-1], file=sys.stderr, flush=True)
    over = overheads(arguments.rounds)
    met = all(c["hardened_seconds"] <= TARGET for c in cells)
    report = {
        "benchmark": "protodash_speed",
        "what": f"{arguments.candidates} public candidates, {PROTOTYPES} prototypes, Hardening.ranked()",
        "seconds_are": "processor time of one thread",
        "target": {"seconds": TARGET, "met": met},
        "cells": cells,
        "rounds": arguments.rounds,
        "overhead": over,
        **provenance(time.perf_counter() - start),
    }
    report["versions"] |= {name: version(name) for name in ("aix360", "cvxpy", "osqp", "lime")}
    write_json(arguments.out, report)
    columns = ("data", "kernel", "optimizer", "explained", "native_seconds", "hardened_seconds")
    print(table(columns, [[c.get(k, "-") for k in columns] for c in cells]))
    header = ("overhead", "native ms", "hardened ms", "ratio")
    print(table(header, [[n, o["native_ms"], o["hardened_ms"], o["ratio_median"]] for n, o in over.items()]))
    slow = sum(c["hardened_seconds"] > TARGET for c in cells)
    print(f"target met: {met}; {slow} calls took more than {TARGET:g} s; written to {arguments.out}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
