"""Metaclassifiers of all points as one batched computation, against a loop of trainings as in the paper's code.

1,000 points, 32 victims, 128 references, 8 queries, 10 classes: 32,000 networks on simulated predictions with a leak.
Each of 32 models in turn is the victim: `Metaclassifier` scores all points, and a sample of them is trained one by one,
each with an `nn.Sequential`, a shuffling `DataLoader` with batches of 64, Adam and StepLR for 20 epochs; then the next
victim. **The loop's time for all is that of its sample, extrapolated.** What the released code does besides, a copy of
all predictions for every point (`np.delete`), is left out.

    python -m audit.benchmarks.metaclassifiers [--points 1000] [--victims 32] [--sample 4] [--quick] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from safexplain.audit.attacks import Metaclassifier
from safexplain.verdict.stats import roc

from ..shared.run import RESULTS, concluded, provenance, table, write_json

CLASSES, LEAK, GOAL = 10, 0.3, 50.0
KINDS = ("mlp", "logistic", "knn")
Floats, Bools = NDArray[np.float32], NDArray[np.bool_]


def predictions(points: int, models: int, queries: int) -> tuple[Floats, Bools]:
    """(models, points, queries * classes) log odds, with noise that queries share, and (models, points) bool."""
    rng = np.random.default_rng(0)
    member = rng.random((models, points)) < 0.5
    mix = rng.normal(size=(CLASSES, CLASSES)).astype(np.float32) / np.sqrt(CLASSES, dtype=np.float32)
    level = 2 * rng.standard_normal((points, queries, CLASSES), dtype=np.float32)
    shift = np.float32(LEAK) * rng.standard_normal((points, 1, CLASSES), dtype=np.float32)
    noise = rng.standard_normal((models, points, 1, CLASSES), dtype=np.float32)
    odds = rng.standard_normal((models, points, queries, CLASSES), dtype=np.float32)
    odds += noise + member[:, :, None, None] * shift
    odds = odds @ mix + level
    return odds.reshape(models, points, -1), member


def trained(rows: Floats, label: Bools, asked: Floats, epochs: int) -> float:
    """One network of the loop; the mean log odds of what is asked."""
    centre, deviation = rows.mean(0), rows.std(0)
    x = torch.from_numpy((rows - centre) / deviation)
    loader = DataLoader(TensorDataset(x, torch.from_numpy(label.astype(np.int64))), batch_size=64, shuffle=True)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    loss = nn.CrossEntropyLoss()
    for _ in range(epochs):
        for xb, yb in loader:
            optimizer.zero_grad()
            torch.autograd.backward(loss(network(xb), yb))
            optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        z = network(torch.from_numpy((asked - centre) / deviation))
    return float((z[:, 1] - z[:, 0]).mean())


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds on the clock and of the processor, and what came out."""
    clock, processor = time.perf_counter(), time.process_time()
    found = call()
    return time.perf_counter() - clock, time.process_time() - processor, found


def race(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways, victim after victim."""
    values, member = predictions(options.points, options.references + 1, options.queries)
    attack = Metaclassifier(queries=options.queries, epochs=options.epochs)
    rng = np.random.default_rng(1)
    seconds: dict[str, list[tuple[float, float]]] = {"together": [], "loop": []}
    scores: dict[str, list[float]] = {"together": [], "loop": []}
    label: list[bool] = []
    for victim in range(options.victims):
        others = np.arange(len(values)) != victim
        shadows, inside = values[others], member[others]
        sample = rng.choice(options.points, options.sample, replace=False)

        def loop(
            victim: int = victim, shadows: Floats = shadows, inside: Bools = inside, sample: Any = sample
        ) -> list[float]:
            return [
                trained(
                    shadows[:, i].reshape(-1, CLASSES),
                    np.repeat(inside[:, i], options.queries),
                    values[victim, i].reshape(-1, CLASSES),
                    options.epochs,
                )
                for i in sample
            ]

        def together(victim: int = victim, shadows: Floats = shadows, inside: Bools = inside) -> Any:
            return attack(values[victim], shadows, inside)

        if victim == 0:  # what is loaded at the first call is no part of either
            few, one = slice(0, 2), np.repeat(member[:, 0], options.queries)
            trained(values[:, 0].reshape(-1, CLASSES), one, values[0, :1, :CLASSES], 1)
            Metaclassifier(queries=options.queries, epochs=1)(values[0, few], values[:, few], member[:, few])
        order = [("together", together), ("loop", loop)]
        for name, call in order if victim % 2 else order[::-1]:
            clock, processor, found = timed(call)
            seconds[name].append((clock, processor))
            scores[name] += found[sample].tolist() if name == "together" else found
        label += member[victim, sample].tolist()
        each = [seconds[name][-1][0] / (options.sample if name == "loop" else options.points) for name in seconds]
        print(f"victim {victim + 1} of {options.victims}: {each[1] / each[0]:.0f} times", file=sys.stderr)
    others_kinds = {}
    for kind in KINDS[1:]:
        clock, _, _ = timed(
            lambda kind=kind: Metaclassifier(kind, queries=options.queries)(values[0], values[1:], member[1:])
        )
        others_kinds[kind] = round(clock, 2)
    per = {"together": options.points, "loop": options.sample}
    ms = {name: [[1e3 * s / per[name] for s in both] for both in found] for name, found in seconds.items()}
    ratios = [b[0] / a[0] for a, b in zip(ms["together"], ms["loop"], strict=True)]
    clock = {name: sum(both[0] for both in found) for name, found in seconds.items()}
    processor = {name: sum(both[1] for both in found) for name, found in seconds.items()}
    networks = options.points * options.victims
    times = {
        what: (used["loop"] / (options.sample * options.victims)) / (used["together"] / networks)
        for what, used in (("clock", clock), ("processor", processor))
    }
    known = np.array(label)
    return {
        "networks": networks,
        "together_seconds": round(clock["together"], 1),
        "loop_networks_trained": options.sample * options.victims,
        "loop_seconds_of_these": round(clock["loop"], 1),
        "loop_seconds_extrapolated": round(clock["loop"] * networks / (options.sample * options.victims)),
        "ms_a_network_median": {name: round(statistics.median(m[0] for m in found), 2) for name, found in ms.items()},
        "times_faster": round(times["clock"], 1),
        "times_faster_by_victim_median": round(statistics.median(ratios), 1),
        "times_faster_by_victim_range": [round(min(ratios), 1), round(max(ratios), 1)],
        "times_less_processor_time": round(times["processor"], 1),
        "seconds_a_victim_of_other_kinds": others_kinds,
        "auc_on_the_sample": {name: round(roc(np.array(s), known).auc, 3) for name, s in scores.items()},
        "correlation_of_scores": round(float(np.corrcoef(scores["together"], scores["loop"])[0, 1]), 3),
    }


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when the goal is met, 1 otherwise; a quick run has none."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--points", type=int, default=1000)
    p.add_argument("--victims", type=int, default=32)
    p.add_argument("--references", type=int, default=128)
    p.add_argument("--queries", type=int, default=8)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--sample", type=int, default=4, help="points a victim that the loop trains")
    p.add_argument("--quick", action="store_true", help="a small run that shows that everything works; proves nothing")
    p.add_argument("--out", type=Path, default=RESULTS / "metaclassifiers.json")
    options = p.parse_args(argv)
    if options.quick:
        options.points, options.victims, options.references, options.queries, options.epochs = 40, 4, 8, 2, 2
        options.sample = 10
    start = time.perf_counter()
    found = race(options)
    report = {
        "benchmark": "metaclassifiers",
        "quick": options.quick,
        "what": f"{options.points} points, {options.victims} victims, {options.references} references,"
        f" {options.queries} queries, {CLASSES} classes, {options.epochs} epochs",
        "threads": torch.get_num_threads(),
        "goal": GOAL,
        **found,
        **provenance(time.perf_counter() - start),
    }
    write_json(options.out, report)
    print(table(("", "ms a network", "seconds for all", "AUC"), [
        ("together", found["ms_a_network_median"]["together"], found["together_seconds"],
         found["auc_on_the_sample"]["together"]),
        ("loop (extrapolated)", found["ms_a_network_median"]["loop"], found["loop_seconds_extrapolated"],
         found["auc_on_the_sample"]["loop"]),
    ]))  # fmt: skip
    slow = not options.quick and found["times_faster"] < GOAL
    missed = [f"{GOAL:.0f} times as fast as the loop, found {found['times_faster']}"] if slow else []
    return concluded(missed, options.out, f"{found['times_faster']} times as fast")


if __name__ == "__main__":
    sys.exit(main())
