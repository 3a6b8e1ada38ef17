"""Reference models as one batched computation against a loop over them: the digits MLP of the demo.

Each round trains the same models (same members, same initial weights, same order of batches) both ways, in alternating
order; the figure is the median over rounds of loop time / batched time. That the weights agree is checked.

    python -m audit.benchmarks.batched_training [--models 32] [--epochs 20] [--rounds 5] [--threads 1] [--out FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Population, Recipe
from safexplain.audit.references.training import train_one, train_together

from ..shared.run import RESULTS, provenance, table, write_json

POOL = 600


class Race:
    """The same training twice."""

    def __init__(self, models: int, epochs: int) -> None:
        x, y = load_digits(return_X_y=True)
        chosen = np.random.default_rng(0).permutation(len(y))[:POOL]
        self.pool = Population.of(x[chosen] / 16.0, y[chosen])
        self.recipe = Recipe(lr=3e-3, epochs=epochs, batch_size=32)
        order = np.random.default_rng(1)
        self.members = [torch.from_numpy(np.sort(order.permutation(POOL)[: POOL // 2])) for _ in range(models)]

    def fresh(self) -> tuple[list[nn.Module], list[torch.Generator]]:
        """Untrained models and their random streams."""
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            models: list[nn.Module] = [
                nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)) for _ in self.members
            ]
        return models, [torch.Generator().manual_seed(i) for i in range(len(models))]

    def loop(self) -> list[nn.Module]:
        """One after the other."""
        models, generators = self.fresh()
        x, y = self.pool.x, self.pool.y
        return [
            train_one(self.recipe, model, x[index], y[index], generator)
            for model, index, generator in zip(models, self.members, generators, strict=True)
        ]

    def together(self) -> list[nn.Module]:
        """As one computation."""
        models, generators = self.fresh()
        return train_together(self.recipe, models, self.pool.x, self.pool.y, self.members, generators)


def timed(call: Callable[[], list[nn.Module]]) -> tuple[float, list[nn.Module]]:
    start = time.perf_counter()
    models = call()
    return time.perf_counter() - start, models


def largest_difference(a: list[nn.Module], b: list[nn.Module]) -> float:
    """Largest difference of a weight between two lists of models."""
    pairs = [(p, q) for m, n in zip(a, b, strict=True) for p, q in zip(m.parameters(), n.parameters(), strict=True)]
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when both ways give the same models, 1 otherwise."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--models", type=int, default=32)
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--out", type=Path, default=RESULTS / "batched_training.json")
    options = p.parse_args(argv)
    start = time.perf_counter()
    torch.set_num_threads(options.threads)
    Race(options.models, 1).together()
    race = Race(options.models, options.epochs)
    times: dict[str, list[float]] = {"loop": [], "together": []}
    differences = []
    for i in range(options.rounds):
        found = {}
        for name in ("loop", "together") if i % 2 == 0 else ("together", "loop"):
            taken, found[name] = timed(getattr(race, name))
            times[name].append(taken)
        differences.append(largest_difference(*found.values()))
        print(f"round {i + 1} of {options.rounds}: {times['loop'][-1] / times['together'][-1]:.1f}", file=sys.stderr)
    ratios = [a / b for a, b in zip(times["loop"], times["together"], strict=True)]
    agree = max(differences) < 1e-3
    report = {
        "benchmark": "batched_training",
        "what": f"{options.models} MLPs 64-256-10, {POOL // 2} members each, {options.epochs} epochs of batches of 32",
        "rounds": options.rounds,
        "loop_seconds_median": round(statistics.median(times["loop"]), 3),
        "together_seconds_median": round(statistics.median(times["together"]), 3),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "largest_weight_difference": max(differences),
        "same_models": agree,
        **provenance(time.perf_counter() - start),
    }
    write_json(options.out, report)
    print(table((f"{options.models} digits MLPs", "loop s", "together s", "ratio"),
                [("median", report["loop_seconds_median"], report["together_seconds_median"],
                  report["ratio_median"])]))  # fmt: skip
    print(f"same models: {agree} (largest difference {max(differences):.1e}); written to {options.out}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
