"""How long ProtoDash takes over 10,000 candidates, and what hardening adds to a call of ProtoDash and of LIME.

The target is an answer within 10 s on one core for 10,000 candidates and 10 prototypes. Overheads are ratios of two
calls that take turns: the median over rounds, with its quartiles.

    python -m audit.benchmarks.protodash_speed [--candidates 10000] [--rounds 15] [--skip-slow] [--out FILE]
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText, HardenedProtoDash
from safexplain.hardening.hardening import Hardening

from ..shared.run import finish, table
from .harness import Benchmark, Call, Turns, at_most, timed

TARGET = 10.0
PROTOTYPES = 10
KEYED = Hardening.ranked(key=bytes(32))


def data(n: int) -> dict[str, tuple[np.ndarray, float]]:
    """Name -> rows, and a kernel width that fits them."""
    rng = np.random.default_rng(0)
    digits = load_digits().data / 16
    resampled = digits[rng.integers(0, len(digits), n)] + rng.normal(0, 0.02, (n, 64))
    return {f"digits, {n} x 64": (resampled, 2.0), f"random, {n} x 3072": (rng.random((n, 3072)), 20.0)}


def cells(candidates: int, skip_slow: bool) -> list[dict[str, Any]]:
    """Seconds of a hardened call, and of the native one where that does not take minutes, in every combination."""
    asked = (data(candidates).items(), ("other", "Gaussian"), ("cvxpy", "osqp"), (1, 100, candidates))
    found = []
    for (name, (rows, sigma)), kernel, optimizer, explained in itertools.product(*asked):
        slow = kernel == "Gaussian" and rows.shape[1] > 1000 and explained > 1000
        if slow and skip_slow:
            continue
        options = {"kernelType": kernel, "optimizer": optimizer} | ({"sigma": sigma} if kernel == "Gaussian" else {})
        hardened, wanted = HardenedProtoDash(rows, hardening=KEYED), rows[:explained]
        calls: dict[str, Call] = {
            "hardened_seconds": lambda h=hardened, w=wanted, o=options: h.explain(w, m=PROTOTYPES, **o)
        }
        if not slow:
            native = hardened._native()
            calls["native_seconds"] = lambda n=native, r=rows, w=wanted, o=options: n.explain(w, r, PROTOTYPES, **o)
        took = {what: round(timed(silent(call))[0], 2) for what, call in calls.items()}
        found.append({"data": name, "kernel": kernel, "optimizer": optimizer, "explained": explained, **took})
        print(found[-1], file=sys.stderr, flush=True)
    return found


def silent(call: Call) -> Call:
    """OSQP prints a line for each problem without an active bound."""

    def made() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            call()

    return made


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
    found = {}
    for kernel in ("other", "Gaussian"):
        options = {"kernelType": kernel, "optimizer": "osqp"}
        found[f"ProtoDash {kernel}, 1000 x 64"] = ratio(
            lambda o=options: dash._native().explain(x[1000:1001], x[:1000], PROTOTYPES, **o),
            lambda o=options: dash.explain(x[1000:1001], m=PROTOTYPES, **o),
            rounds,
        )
    explainers: dict[Any, tuple[tuple[Any, ...], tuple[Any, ...], int]] = {
        HardenedLimeTabular: ((x[:800],), (x[900], classifier.predict_proba), 5000),
        HardenedLimeText: ((), (text, foxes), 5000),
        HardenedLimeImage: ((), (pictures, brightness), 1000),
    }
    for kind, (made_of, given, samples) in explainers.items():
        hardened = kind(*made_of, random_state=0, hardening=KEYED)
        native = hardened._native(*made_of, random_state=0)
        found[f"{hardened._native.__name__}, {samples} samples"] = ratio(
            lambda n=native, g=given, s=samples: n.explain_instance(*g, num_samples=s),
            lambda h=hardened, g=given, s=samples: h.explain_instance(*g, num_samples=s),
            rounds,
        )
    return found


def ratio(native: Call, hardened: Call, rounds: int) -> dict[str, Any]:
    """Of two calls."""
    turns = Turns({"native": silent(native), "hardened": silent(hardened)}, rounds)
    return {
        "native_ms": turns.ms("native"),
        "hardened_ms": turns.ms("hardened"),
        "ratio_median": turns.ratio("hardened", "native"),
        "ratio_quartiles": turns.quartiles("hardened", "native"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when every call answered within the target, 1 otherwise."""
    run = Benchmark(
        "protodash_speed",
        __doc__,
        argv,
        rounds=15,
        candidates=10_000,
        skip_slow={"action": "store_true", "help": "leave out the cells that take minutes"},
    )
    options = run.options
    if options.quick:
        options.candidates = 200
    warnings.simplefilter("ignore")
    found = cells(options.candidates, options.skip_slow)
    report = {
        "what": f"{options.candidates} public candidates, {PROTOTYPES} prototypes, Hardening.ranked()",
        "cells": found,
        "overhead": overheads(options.rounds),
        "libraries": {name: version(name) for name in ("aix360", "cvxpy", "osqp", "lime")},
    }
    columns = ("data", "kernel", "optimizer", "explained", "native_seconds", "hardened_seconds")
    print(table(columns, [[c.get(k, "-") for k in columns] for c in found]))
    slowest = max(c["hardened_seconds"] for c in found)
    return run.conclude(report, {"seconds of the slowest call": at_most(TARGET, slowest)})


if __name__ == "__main__":
    finish(main)
