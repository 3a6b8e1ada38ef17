"""How long `plan_audit` says that an audit will take, beside how long it takes; and what larger audits would.

Three audits are planned and then run in one process: a small convolutional network and a perceptron on handwritten
digits, and gradient boosting on made-up tables. The machines that this runs on are shared, so that both are taken in
seconds of the processor, of which other programs take none, and, beside, by the clock on the wall. The ratio is planned
/ real; promised is that it lies within 1.5. Then larger audits are planned and not run: models x examples x features.

    python -m audit.benchmarks.audit_cost [--rounds 1] [--cases cnn,mlp,boosting] [--no-table] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import GradientBoostingClassifier
from torch import nn

from safexplain import HardenedInputXGradient, HardenedOcclusion, Hardening
from safexplain.audit import Policy, Population, Recipe, audit
from safexplain.audit.planning import Plan, measure, plan_audit
from safexplain.audit.references.training import train_one

from ...shared.run import RESULTS, provenance, table, write_json

WITHIN = 1.5
"""Planned over real, or real over planned, at most."""

RECIPE = Recipe(lr=3e-3, epochs=20, batch_size=32)


def cnn(seed: int) -> nn.Module:
    """For 8 x 8 images."""
    return _seeded(seed, lambda: nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    ))  # fmt: skip


def mlp(seed: int) -> nn.Module:
    """For 8 x 8 images."""
    return _seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))


def _seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return make()


def of_digits(build: Callable[[int], nn.Module], rows: int, references: int) -> dict[str, Any]:
    """Arguments of an audit of a network on digits."""
    digits = load_digits()
    x, y = (digits.images[:rows, None] / 16).astype(np.float32), digits.target[:rows]
    member = np.random.default_rng(0).random(len(x)) < 0.5
    inside = torch.from_numpy(np.flatnonzero(member))
    population = Population.of(x, y)
    model = train_one(RECIPE, build(0), population.x[inside], population.y[inside], torch.Generator().manual_seed(0))
    return {"model": model, "population": population, "recipe": RECIPE, "build": build, "member": member,
            "explainer": HardenedInputXGradient, "hardening": Hardening.recommended(), "references": references,
            "policy": Policy(uncounted=True)}  # fmt: skip


def of_tables() -> dict[str, Any]:
    """Arguments of an audit of gradient boosting."""
    x, y = make_classification(1500, 12, n_informative=6, random_state=0)
    member = np.random.default_rng(0).random(len(x)) < 0.5
    estimator = GradientBoostingClassifier(n_estimators=60, max_depth=3)
    fitted = clone(estimator).set_params(random_state=0).fit(x[member].astype(np.float32), y[member])
    return {"model": fitted, "population": Population.of(x, y), "recipe": estimator, "member": member,
            "explainer": HardenedOcclusion, "arguments": {"sliding_window_shapes": (2,)},
            "hardening": Hardening.recommended(), "references": 8,
            "policy": Policy(uncounted=True, patience=(1, 5))}  # fmt: skip


CASES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "cnn": ("small CNN, 1,000 digits, 8 references", lambda: of_digits(cnn, 1000, 8)),
    "mlp": ("MLP 64-128-10, 1,797 digits, 16 references", lambda: of_digits(mlp, 1797, 16)),
    "boosting": ("gradient boosting, 1,500 rows x 12, 8 references", of_tables),
}


class Stopwatch:
    """Seconds of an audit by stage: what lies between two reports of progress belongs to the stage of the second."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.process_time()

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        """What was done since the last report."""
        now = time.process_time()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def compared(name: str) -> dict[str, Any]:
    """One case, planned by both clocks and run."""
    _, make = CASES[name]
    arguments = make()
    plans: dict[str, Plan] = {}
    for clock, now in (("processor", time.process_time), ("wall", time.perf_counter)):
        measure.now = now
        plans[clock] = plan_audit(**arguments)
    measure.now = time.perf_counter
    watch, start, busy = Stopwatch(), time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        audit(**arguments, progress=watch).save(folder)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    real = {"processor": time.process_time() - busy, "wall": time.perf_counter() - start}
    planned = {stage.name: round(stage.seconds, 2) for stage in plans["processor"].stages}
    return {
        "planned_seconds": {clock: round(plan.seconds, 1) for clock, plan in plans.items()},
        "real_seconds": {clock: round(seconds, 1) for clock, seconds in real.items()},
        "ratio": {clock: round(plans[clock].seconds / real[clock], 3) for clock in real},
        "planning_seconds": {clock: round(plan.took, 1) for clock, plan in plans.items()},
        "planned_stages": planned,
        "real_stages": {stage: round(seconds, 2) for stage, seconds in watch.seconds.items()},
        "planned_memory_bytes": plans["processor"].memory_bytes,
        "real_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "planned_disk_bytes": plans["processor"].disk_bytes,
        "real_disk_bytes": size,
    }


def image_net(seed: int) -> nn.Module:
    """For 3 x 32 x 32 images."""
    return _seeded(seed, lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10),
    ))  # fmt: skip


def wide(features: int) -> Callable[[int], nn.Module]:
    """A perceptron for tables."""
    return lambda seed: _seeded(seed, lambda: nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 10)))


LARGER: tuple[tuple[str, Callable[[int], nn.Module], tuple[int, ...], int, int], ...] = (
    ("MLP, 256 hidden units", wide(32), (32,), 16, 10_000),
    ("MLP, 256 hidden units", wide(32), (32,), 64, 50_000),
    ("MLP, 256 hidden units", wide(512), (512,), 64, 10_000),
    ("CNN of two layers", image_net, (3, 32, 32), 16, 5_000),
    ("CNN of two layers", image_net, (3, 32, 32), 64, 20_000),
    ("CNN of two layers", image_net, (3, 32, 32), 256, 50_000),
)
"""Audits that are planned: name, network, shape of an example, references, examples."""


def larger() -> list[dict[str, Any]]:
    """Plans of larger audits, in seconds of the processor."""
    rows = []
    measure.now = time.process_time
    for name, build, shape, references, examples in LARGER:
        rng = np.random.default_rng(0)
        population = Population.of(
            rng.standard_normal((examples, *shape), dtype=np.float32), rng.integers(0, 10, examples)
        )
        plan = plan_audit(
            build(0).eval(), population, Recipe(epochs=30, batch_size=128), member=rng.random(examples) < 0.5,
            build=build, explainer=HardenedInputXGradient, hardening=Hardening.recommended(), references=references,
            policy=Policy(uncounted=True),
        )  # fmt: skip
        parts = {"training": 0.0, "asking": 0.0, "attacking": 0.0}
        for stage in plan.stages:
            kind = next((k for k in ("training", "attacking") if stage.name.startswith(k)), "asking")
            parts[kind] += stage.seconds
        rows.append({
            "network": name, "features": int(np.prod(shape)), "references": references, "examples": examples,
            "hours": round(plan.seconds / 3600, 3), **{f"{k}_hours": round(v / 3600, 3) for k, v in parts.items()},
            "memory_gib": round(plan.memory_bytes / 2**30, 2), "disk_gib": round(plan.disk_bytes / 2**30, 2),
            "best_certifiable": round(plan.best_certifiable, 4), "planning_seconds": round(plan.took, 1),
        })  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    measure.now = time.perf_counter
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 where the plan of each case is within the factor of what it took."""
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--no-table", action="store_true", help="plan no larger audits")
    p.add_argument("--out", type=Path, default=RESULTS / "audit_cost.json")
    options = p.parse_args(argv)
    warnings.filterwarnings("ignore", module=r"captum\..*")
    torch.set_num_threads(1)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    for name in options.cases.split(","):
        rounds = []
        for number in range(options.rounds):
            rounds.append(compared(name))
            print(name, number + 1, json.dumps(rounds[-1]), file=sys.stderr, flush=True)
        ratios = [one["ratio"]["processor"] for one in rounds]
        found[name] = {
            "what": CASES[name][0],
            "ratio_median": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "rounds": rounds,
        }
    holds = all(1 / WITHIN <= r["ratio"]["processor"] <= WITHIN for c in found.values() for r in c["rounds"])
    report = {
        "benchmark": "audit_cost",
        "threads": 1,
        "within": WITHIN,
        "holds": holds,
        "cases": found,
        "larger": [] if options.no_table else larger(),
        **provenance(time.perf_counter() - start),
    }
    write_json(options.out, report)
    print(table(("case", "planned s", "real s", "planned / real"), [
        (c["what"], c["rounds"][-1]["planned_seconds"]["processor"], c["rounds"][-1]["real_seconds"]["processor"],
         c["ratio_median"]) for c in found.values()
    ]))  # fmt: skip
    print(f"within {WITHIN}: {holds}; written to {options.out}")
    return 0 if holds else 1
