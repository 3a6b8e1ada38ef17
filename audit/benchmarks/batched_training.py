"""Reference models as one batched computation against a loop over them: the digits MLP of the demo.

Each round trains the same models (same members, same initial weights, same order of batches) both ways; the figure is
the median over rounds of loop time / batched time. That the weights agree is checked.

    python -m audit.benchmarks.batched_training [--models 32] [--epochs 20] [--rounds 5] [--out FILE]
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Population, Recipe
from safexplain.audit.references.shadows import train_one, train_together

from ..shared.run import finish
from .harness import Benchmark, Turns, at_most

POOL = 600
SAME = 1e-3
"""Largest difference of a weight between two models that are called the same."""


class Trainings:
    """The same training, in two ways."""

    def __init__(self, models: int, epochs: int) -> None:
        x, y = load_digits(return_X_y=True)
        chosen = np.random.default_rng(0).permutation(len(y))[:POOL]
        self.pool = Population.of(x[chosen] / 16.0, y[chosen])
        self.recipe = Recipe(lr=3e-3, epochs=epochs, batch_size=32)
        order = np.random.default_rng(1)
        self.members = [torch.from_numpy(np.sort(order.permutation(POOL)[: POOL // 2])) for _ in range(models)]
        self.trained: dict[str, list[nn.Module]] = {}

    def _untrained(self) -> tuple[list[nn.Module], list[torch.Generator]]:
        """Models and their random streams."""
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            models: list[nn.Module] = [
                nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)) for _ in self.members
            ]
        return models, [torch.Generator().manual_seed(i) for i in range(len(models))]

    def loop(self) -> None:
        """One after the other."""
        models, generators = self._untrained()
        x, y = self.pool.x, self.pool.y
        self.trained["loop"] = [
            train_one(self.recipe, model, x[index], y[index], generator)
            for model, index, generator in zip(models, self.members, generators, strict=True)
        ]

    def together(self) -> None:
        """As one computation."""
        models, generators = self._untrained()
        trained = train_together(self.recipe, models, self.pool.x, self.pool.y, self.members, generators)
        self.trained["together"] = trained

    def largest_difference(self) -> float:
        """Of a weight, between the models of both ways."""
        weights = ([p for model in models for p in model.parameters()] for models in self.trained.values())
        return max(float((p - q).detach().abs().max()) for p, q in zip(*weights, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when both ways give the same models, 1 otherwise."""
    run = Benchmark("batched_training", __doc__, argv, rounds=5, models=32, epochs=20)
    options = run.options
    if options.quick:
        options.models, options.epochs = 4, 2
    both = Trainings(options.models, options.epochs)
    turns = Turns({"loop": both.loop, "together": both.together}, options.rounds)
    ratios, difference = turns.ratios("loop", "together"), both.largest_difference()
    report = {
        "what": f"{options.models} MLPs 64-256-10, {POOL // 2} members each, {options.epochs} epochs of batches of 32",
        "loop_seconds_median": round(statistics.median(turns.busy["loop"]), 3),
        "together_seconds_median": round(statistics.median(turns.busy["together"]), 3),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "largest_weight_difference": difference,
    }
    print(f"times as fast together: {report['ratio_median']}")
    return run.conclude(report, {"largest difference of a weight": at_most(SAME, difference)})


if __name__ == "__main__":
    finish(main)
