"""What an audit costs who has never run one: commands on models that people have, timed from outside, beside the plan.

Every row is a command line in a process of its own, as a new user would type it: time on the clock, time of the
processors (children included), the exit code, and what the terminal shows, with the second at which each line came.
Where the command can plan, the plan is asked for first; what it says takes longer than half an hour is not run, and the
plan stands for it. Beside stand the figures of version 0.2.0 and the goals. A row that is finished is kept in the
result until there is another revision; `--rows` runs some anew.

    python -m audit.benchmarks.audit_cost [--rows NAME ...] [--data DIR] [--out FILE] [--cache DIR] [--quick]
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain.audit import Recipe
from safexplain.audit.references.shadows import train_one

from ..shared.run import ROOT, Run, Unusable, concluded, finish, load, revision, rounded, write_json
from ..shared.run import public_networks as third_party

LONGEST = 1800
"""Seconds that a plan may say of what is run; a run is ended after twice as many."""
SHOWN = 6
"""First lines of the terminal that are kept, and as many of its last."""
BUSY = "while True: pass"

Command = list[str]
Files = Callable[[Path, Path, int], Command]
"""(folder to write to, folder of the data, examples a side) -> arguments of `safexplain`."""


@dataclass(frozen=True)
class Row:
    """A command and what is asked of it."""

    what: str  # in words
    files: Files  # writes the files of the command
    before: str  # what 0.2.0 took, or said in its plan
    goal: float  # seconds; of the processors where `processor`
    planned: bool = True  # whether the command can plan
    busy: int = 0  # processes that compute beside it
    processor: bool = False  # whether the goal is of processor time


# --------------------------------------------------------------------------------------------------- models and data


def cnn(seed: int) -> nn.Module:
    """Three convolutions, for 3 x 32 x 32 images."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(1024, 10),
        )  # fmt: skip


def network(folder: Path, net: nn.Module, x: Tensor, y: np.ndarray, recipe: Recipe, trained: bool) -> Command:
    """model.pt2, data.npz and recipe.toml: the first half of the examples are members."""
    member = np.arange(len(x)) < len(x) // 2
    labels = torch.from_numpy(y.astype(np.int64))
    if not trained:
        inside = torch.from_numpy(member)
        net = train_one(recipe, net, x[inside], labels[inside], torch.Generator().manual_seed(0))
    program = torch.export.export(net.eval(), (x[:2].clone(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, folder / "model.pt2")
    np.savez(folder / "data.npz", x=x.numpy(), y=y, member=member)
    (folder / "recipe.toml").write_text(recipe.to_toml())
    return ["audit", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml"]


def images(data: Path, side: int, mean: Any = 0.47, deviation: Any = 0.25) -> tuple[Tensor, np.ndarray]:
    """CIFAR-10: (2 * side, 3, 32, 32), members first."""
    arrays, _ = load(data, "cifar10", ("x_train", "y_train", "x_test", "y_test"))
    x, y = (np.concatenate([arrays[f"{name}_{part}"][:side] for part in ("train", "test")]) for name in "xy")
    return torch.from_numpy(((x / 255.0 - mean) / deviation).transpose(0, 3, 1, 2).astype(np.float32).copy()), y


def small_cnn(*options: str) -> Files:
    """The small CNN, audited with these options."""
    recipe = Recipe(lr=1e-3, epochs=10, batch_size=64)
    return lambda folder, data, side: [*network(folder, cnn(0), *images(data, side), recipe, False), *options]


def resnet20(*options: str) -> Files:
    """A published ResNet-20, audited with these options."""

    def files(folder: Path, data: Path, side: int) -> Command:
        net = third_party(data, ["resnet20_cifar10"])[0]["resnet20_cifar10"]
        x, y = images(data, side, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        recipe = Recipe(optimizer="sgd", lr=0.1, epochs=30, batch_size=128)
        return [*network(folder, net, x, y, recipe, True), *options]

    return files


def adult(folder: Path, data: Path, side: int) -> Command:
    """A Pipeline of one-hot columns and 100 trees, and a table with texts."""
    import pandas as pd
    import skops.io
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder

    a, _ = load(data, "adult", ("x_num", "x_cat", "y", "num_names", "cat_names", "cat_values"))
    rows = np.random.default_rng(0).permutation(len(a["y"]))
    table = pd.DataFrame(a["x_num"][rows], columns=list(a["num_names"]))
    texts = list(a["cat_names"])
    for i, (name, values) in enumerate(zip(texts, a["cat_values"], strict=True)):
        table[name] = np.array(json.loads(values))[a["x_cat"][rows, i]]
    table["label"] = a["y"][rows]
    table = table.drop_duplicates(subset=table.columns[:-1])[: 2 * side]
    coded = ColumnTransformer([("texts", OneHotEncoder(handle_unknown="ignore"), texts)], remainder="passthrough")
    model = Pipeline([("columns", coded), ("forest", RandomForestClassifier(100, random_state=0))])
    model.fit(table.drop(columns="label")[:side], table["label"][:side])
    skops.io.dump(model, folder / "model.skops")
    table.assign(member=np.arange(len(table)) < side).to_csv(folder / "data.csv", index=False)
    return ["audit", "model.skops", "--data", "data.csv"]


def heloc(folder: Path, data: Path, side: int) -> Command:
    """XGBoost with 100 trees, explained by shap's TreeExplainer."""
    from xgboost import XGBClassifier

    arrays, _ = load(data, "heloc", ("x", "y"))
    x = np.unique(np.column_stack([arrays["x"], arrays["y"]]).astype(np.float32), axis=0)
    x = x[np.unique(x[:, :-1], axis=0, return_index=True)[1]]
    x = x[np.random.default_rng(0).permutation(len(x))][: 2 * side]
    x, y, member = x[:, :-1], x[:, -1].astype(np.int64), np.arange(len(x)) < side
    XGBClassifier(n_estimators=100, max_depth=5, learning_rate=0.3).fit(x[member], y[member]).save_model(
        folder / "model.json"
    )
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    (folder / "recipe.toml").write_text("learning_rate = 0.3\n")
    return ["audit", "model.json", "--data", "data.npz", "--recipe", "recipe.toml", "--explainer", "TreeExplainer"]


def one_signal(folder: Path, data: Path, side: int) -> Command:
    """Norms of explanations of 17 models, a little smaller on members."""
    rng = np.random.default_rng(0)
    n = min(4000, 10 * side)
    membership = rng.random((17, n)) < 0.5
    norms = np.exp(rng.standard_normal(n) + 0.5 * rng.standard_normal((17, n)) - 0.3 * membership)
    np.savez(folder / "signals.npz", membership=membership, l1=norms)
    return ["attack", "signals.npz"]


HOUR = 3600.0
IMAGES = "3,000 + 3,000 CIFAR-10 images"
IXG = ("--explainer", "InputXGradient")
ROWS = {
    "demo": Row("`safexplain demo`", lambda *_: ["demo"], "192 s", 90, planned=False),
    "quick": Row(f"CNN of three convolutions, {IMAGES}, `--quick`", small_cnn("--quick"), "2.6 h (plan)", 120, False),
    "cnn-ig": Row(f"CNN of three convolutions, {IMAGES}, IG", small_cnn(), "51 h (plan)", 1200),
    "cnn-ixg": Row("the same, InputXGradient", small_cnn(*IXG), "11 h (plan)", 600),
    "resnet20-ig": Row(f"ResNet-20, {IMAGES}, IG", resnet20(), "106 h (plan)", 4 * HOUR),
    "resnet20-ixg": Row("the same, InputXGradient", resnet20(*IXG), "", 2 * HOUR),
    "adult": Row("Pipeline of 100 trees, Adult with text columns, 3,000 + 3,000", adult, "572 h (plan)", 900),
    "adult-once": Row(
        "Pipeline of 100 trees, Adult with text columns, 3,000 + 3,000, `--references 8` (one look)",
        lambda *a: [*adult(*a), "--references", "8"],
        "572 h (plan)",
        900,
    ),
    "heloc": Row("XGBoost on HELOC, 3,000 + 3,000, TreeExplainer", heloc, "2.6 h (plan)", 600),
    "attack": Row(
        "`safexplain attack`, one signal, 17 x 4,000", one_signal, "26 s (8 s of CPU)", 4, False, processor=True
    ),
    "attack-busy": Row(
        "the same beside two busy processes", one_signal, "13 times its quiet time", math.inf, False, busy=2
    ),
}
TIMES_QUIET = 3
"""Times that of "attack" which "attack-busy" may take on the clock; 0.2.0 took 13."""

# ------------------------------------------------------------------------------------------------------------ running


def run(command: Command, folder: Path, busy: int = 0) -> dict[str, Any]:
    """One command, its time and what it showed; uses are counted in a home of its own."""
    home = {name: str(folder / "home") for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    environment = {**os.environ, **home, "PYTHONPATH": str(ROOT)}
    beside = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
    spent, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "safexplain", *command], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    ended = threading.Timer(2 * LONGEST, os.killpg, (process.pid, signal.SIGKILL))
    ended.start()
    assert process.stdout is not None
    lines = [
        f"{time.perf_counter() - start:.1f} s: {' '.join(line.split())}"
        for line in process.stdout
        if any(map(str.isalpha, line))
    ]
    code, seconds = process.wait(), time.perf_counter() - start
    ended.cancel()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for other in beside:
        other.kill()
        other.wait()
    return {
        "seconds": seconds,
        "processor_seconds": after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime,
        "exit_code": code,
        "first_lines": lines[:SHOWN],
        "last_lines": lines[max(SHOWN, len(lines) - SHOWN) :],
    }


def measured(row: Row, options: Namespace) -> dict[str, Any]:
    """The plan of a row, and the run where that is short enough."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = row.files(folder, options.data, 300 if options.quick else 3000)
        found: dict[str, Any] = {
            "what": row.what, "before": row.before, "goal": row.goal if math.isfinite(row.goal) else None,
            "of": "processors" if row.processor else "clock", "typed": " ".join(["safexplain", *command]),
        }  # fmt: skip
        if row.planned:
            plan = run([*command, "--plan", "--json"], folder)
            said = [line for line in (*plan["first_lines"], *plan["last_lines"]) if ": {" in line]
            if plan["exit_code"] or not said:
                return {**found, "failed": plan}
            told = json.loads(said[-1].partition(": ")[2])
            found["plan"] = {
                "seconds": told["seconds"], "best_certifiable": told["best_certifiable"], "took": plan["seconds"],
                "stages": {stage["stage"]: stage["seconds"] for stage in told["stages"]},
            }  # fmt: skip
            if told["seconds"] > LONGEST:
                return found
        return found | {"run": run(command, folder, row.busy)}


def missed(results: dict[str, Any]) -> list[str]:
    """Goals that were missed, in words."""
    out = []
    for name, found in results.items():
        row, ran = ROWS[name], found.get("run")
        taken = (ran or {}).get("processor_seconds" if row.processor else "seconds")
        taken = taken if ran else found.get("plan", {}).get("seconds", float("inf"))
        goal = row.goal
        if name == "attack-busy":
            goal = TIMES_QUIET * results.get("attack", {}).get("run", {}).get("seconds", float("inf"))
        if taken > goal:
            out.append(f"{name}: {taken:,.0f} s{'' if ran else ' planned'}, goal {goal:,.0f} s")
        if ran and ran["exit_code"] not in (0, 1, 3):
            out.append(f"{name}: exit code {ran['exit_code']}: {' '.join(ran['last_lines'][-2:])}")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows that are not finished, or those that are named."""
    rows = {"nargs": "+", "choices": ROWS, "help": "rows to run again; default: all that are not finished"}
    run = Run("audit_cost", __doc__, argv, rows=rows)
    results = run.earlier()
    now = str(revision()).removesuffix("-dirty")  # as it becomes with the first row that is written
    done = [n for n, r in results.items() if "failed" not in r and str(r["revision"]).removesuffix("-dirty") == now]
    for name in run.options.rows or [name for name in ROWS if name not in done]:
        run.seconds()
        try:
            found = measured(ROWS[name], run.options)
        except Unusable as reason:
            print(f"skipped {name}: {reason}", flush=True)
            continue
        results[name] = rounded({**found, **run.provenance()})
        ordered = {each: results[each] for each in ROWS if each in results}
        write_json(run.out, {"benchmark": "audit_cost", "quick": run.quick, "longest": LONGEST, "results": ordered})
        print(name, json.dumps({key: found.get(key) for key in ("plan", "run", "failed")}), flush=True)
    return concluded(missed(results), run.out)


if __name__ == "__main__":
    finish(main)
