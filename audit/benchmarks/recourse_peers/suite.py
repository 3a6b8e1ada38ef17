"""Recourse beside DiCE, Alibi, CARLA and an exact program by HiGHS, on four data sets and the same models.

Data: HELOC, Adult, German credit, COMPAS. Models: a logistic regression, and a network of two hidden layers (16 and
8), both trained on half of the rows; persons are those whom the model refuses in the other half. Every tool is told as
much as it can be told of one list of constraints: features that never change, features that do not fall, ranges, whole
numbers, one category out of each group. What it cannot be told is counted against it. "Usable" is an answer that the
model grants and that keeps all of them; costs are means over usable answers, L1 over public ranges, 1 for another
category. A cost "over" another one is the mean of the ratios over the persons to whom both gave usable answers.

Each tool runs in an environment of its own, as one process with one thread, safexplain in another; both work in turns
(`audit.benchmarks.peers`). Time is that of the processor a person; the ratio is the tool's over that of safexplain's
plain answers to all persons at once, within a round. Tools answer one person after the other, as many as there is time
for.

safexplain also answers from a logistic regression that was trained with differential privacy (epsilon 1, delta 1e-5):
any number of answers then costs nothing more. No peer has that: they search the unprotected model, and what they answer
tells of its training rows what the model tells.

Finished contests are kept; `--only TOOL` runs one anew (repeat for more).

    python -m audit.benchmarks.recourse_peers [--environments DIR] [--only TOOL] [--data DIR] [--out FILE] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...shared.run import concluded, destination, parser, provenance, rounded, table, write_json
from ..peers.environments import Environment, Skipped
from ..peers.race import Worker, quartiles, race
from ..peers.suite import versions
from .ours import WAYS
from .tasks import MODELS, NAMES, PRIVATE, Task, Work, judged, prepare, usable_costs
from .theirs import ALIBI, DICE, program

CARLA = ("GrowingSpheres", "ActionableRecourse", "Wachter", "FACE")
PLAIN, EXACT = "safexplain", "HiGHS"


@dataclass(frozen=True)
class Peer:
    """One library.

    Args:
        title: in tables.
        licence: of the release.
        environment: what it needs.
        packages: whose versions are recorded.
        tools: calls, without data set and model.
        module: of this package, where they are.
        told: which constraints it can be told, in words.
    """

    title: str
    licence: str
    environment: Environment
    packages: tuple[str, ...]
    tools: tuple[str, ...]
    module: str = "theirs"
    told: str = "all"


PEERS = (
    Peer("safexplain", "Apache-2.0", Environment("development"), ("numpy", "scipy", "torch"),
         tuple(way.title for way in WAYS)),
    Peer("HiGHS", "MIT", Environment("development"), ("scipy",), (EXACT,)),
    Peer("DiCE", "MIT", Environment("dice-ml", ("dice-ml==0.12",), "import dice_ml"), ("dice-ml",),
         tuple(f"DiCE {how}" for how in DICE)),
    Peer("Alibi", "Apache-2.0", Environment(
        "alibi", ("alibi==0.9.4", "tensorflow==2.15.1"), "from alibi.explainers import Counterfactual"),
         ("alibi", "tensorflow"), tuple(f"Alibi {how}" for how in ALIBI),
         told="ranges; CounterfactualProto also categories"),
    Peer("CARLA", "MIT", Environment(
        "carla", ("carla-recourse==0.0.5", "protobuf<3.21"), "from carla.recourse_methods import GrowingSpheres",
        "python3.7"), ("carla-recourse", "torch", "tensorflow"), tuple(f"CARLA {how}" for how in CARLA), "in_carla",
         told="what never changes; Wachter not even that"),
)  # fmt: skip
"""In the order of the tables."""


def contests(data: str, model: str, peer: Peer) -> Iterator[str]:
    """Calls of a peer on a data set and a model."""
    ways = {way.title: way for way in WAYS}
    for tool in peer.tools:
        known = ways[tool].models if tool in ways else MODELS
        if tool == "CARLA ActionableRecourse" and model == "network":
            continue  # for linear models; by local approximations it answered nobody in three tries of 5 to 25 s
        if model in known:
            yield tool


Answers = dict[str, Any]
"""What is kept of a contest: rows and answers, times and their ratios; or why it was skipped."""


def asked(work: Path, kept: Path, peer: Peer, options: argparse.Namespace) -> dict[tuple[str, str], dict[str, Answers]]:
    """(data set, model) -> tool -> times and answers, those that are finished from the folder of an earlier run."""
    found: dict[tuple[str, str], dict[str, Answers]] = {}
    waiting: list[tuple[str, str, str]] = []
    for model in (MODELS[0], PRIVATE, *MODELS[1:]):
        for data in options.data_sets:
            found[data, model] = {}
            for tool in contests(data, model, peer):
                path = kept / f"{tool}, {data}, {model}.json"
                if path.is_file() and not any(tool.startswith(name) for name in options.only):
                    found[data, model][tool] = json.loads(path.read_text())
                elif options.kept:
                    found[data, model][tool] = {"skipped": "not asked"}
                else:
                    waiting.append((tool, data, model))
    while waiting:
        try:
            python = peer.environment.python(options.environments)
            with (
                Worker(Path(sys.executable), f"{__package__}.theirs", work, None, options.longest) as us,
                Worker(python, f"{__package__}.{peer.module}", work, None, options.longest) as them,
            ):
                while waiting:
                    tool, data, model = waiting.pop(0)
                    print(f"{tool}, {data}, {model}", flush=True)
                    about = found[data, model][tool] = contest(us, them, tool, f"{data}, {model}", options)
                    if "skipped" not in about:
                        write_json(kept / f"{tool}, {data}, {model}.json", about)
                    elif "process ended" in about["skipped"] or "no answer within" in about["skipped"]:
                        break  # and on with new processes
        except Skipped as reason:
            for tool, data, model in waiting:
                found[data, model][tool] = {"skipped": str(reason)}
            break
    return found


def contest(us: Worker, them: Worker, tool: str, on: str, options: argparse.Namespace) -> Answers:
    """One tool in turns with our plain answers."""
    try:
        run = race((us, f"{PLAIN}, {on}"), (them, f"{tool}, {on}"), options.rounds, options.limit)
    except Skipped as reason:
        print(f"  skipped: {reason}", flush=True)
        return {"skipped": str(reason)}
    last = run.theirs[-1].arrays
    found = {
        "rows": last["rows"].tolist(),
        "found": last["found"].tolist(),
        "ms": 1e3 * float(np.median([r.processor for r in run.theirs])),
        "ours_ms": 1e3 * float(np.median([r.processor for r in run.ours])),
        "ratio": quartiles(run.ratios()),
        "rounds": len(run.ours),
    }
    print(f"  {found['ms']:.2f} ms, ratio {found['ratio']['median']:.3g}", flush=True)
    return found


def judgement(work: Work, data: str, model: str, answers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Every tool's answers, judged alike."""
    task = Task(work, data, model)
    outlier = task.outliers()
    half = len(task.y) // 2
    granted = task.score(task.table) >= 0
    about: dict[str, Any] = {
        "columns": task.width, "persons": len(task.persons),
        "accuracy": float((granted == task.y)[half:].mean()),
        "outliers_among_persons": float(outlier(task.table[task.persons]).mean()),
        "fixed": [task.names[i] for i in task.fixed], "rising": [task.names[i] for i in task.rising],
        "tools": {},
    }  # fmt: skip
    arrays = {
        tool: (np.array(a["rows"]), np.array(a["found"], dtype=np.float64))
        for tool, a in answers.items() if "rows" in a
    }  # fmt: skip
    exact = arrays.get(EXACT)
    if model != "network":  # quick enough to be asked about everybody
        one = program(task)
        solved = [(row, one(row)) for row in task.persons.tolist()]
        known = [(row, answer) for row, answer in solved if answer is not None]
        exact = (np.array([row for row, _ in known]), np.stack([answer for _, answer in known])) if known else exact
    compared = {PLAIN: arrays.get(PLAIN), EXACT: exact}
    costs = {tool: usable_costs(task, *which) for tool, which in compared.items() if which is not None}
    for tool, a in answers.items():
        if "rows" not in a:
            about["tools"][tool] = a
            continue
        rows, found = arrays[tool]
        others = {name: cost[rows] for name, cost in costs.items()}
        told = judged(task, task.table[rows], found, outlier, others)
        about["tools"][tool] = told | {k: a[k] for k in ("ms", "ours_ms", "ratio", "rounds")}
    return about


def show(found: dict[str, Any]) -> str:
    """One line a tool."""
    rows = []
    for tool, t in found["tools"].items():
        if "skipped" in t:
            rows.append((tool, f"skipped: {t['skipped']}", *[""] * 7))
            continue
        over = t.get("over", {}).get(PLAIN, {}).get("mean")
        rows.append((
            tool, t["persons"], f"{t['usable']:.2f}", f"{t['granted']:.2f}", f"{t.get('cost', np.nan):.3f}",
            "" if over is None else f"{over:.3f}", f"{t.get('changed', np.nan):.1f}",
            "" if t["outliers"] is None else f"{t['outliers']:.2f}", f"{t['ms']:.2f}",
        ))  # fmt: skip
    return table(("tool", "persons", "usable", "granted", "cost", "over ours", "changed", "outliers", "ms"), rows)


def prepared(folder: Path, options: argparse.Namespace) -> tuple[Path, Work]:
    """The file of data and models, made where it is missing; kept answers belong to it."""
    path = folder / "work.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        print("preparing", flush=True)
        np.savez(path, **prepare(options.data, options.quick))
    with np.load(path) as file:
        return path, {key: file[key] for key in file.files}


def main(argv: list[str] | None = None) -> int:
    """Ask all tools that are not finished; 0 unless a cost is dearer than the exact one by more than a thousandth."""
    p = parser("recourse_peers", __doc__)
    p.add_argument("--environments", type=Path, help="folder of the peers' environments (default: in the cache folder)")
    p.add_argument("--only", action="append", default=[], help="tools whose names begin so, asked anew")
    p.add_argument("--rounds", type=int, help="most rounds of a race (default 9; 1 with --quick)")
    p.add_argument("--limit", type=float, default=6.0, help="seconds after which a race has no further rounds")
    p.add_argument("--longest", type=float, default=60.0, help="seconds after which a single call is given up")
    p.add_argument("--skip", action="append", default=[], help="peers that are not asked")
    p.add_argument("--kept", action="store_true", help="ask nobody: judge what is kept")
    p.add_argument("--on", dest="data_sets", action="append", choices=NAMES, help="only these data sets (repeat)")
    options = p.parse_args(argv)
    options.data_sets = options.data_sets or list(NAMES)
    options.environments = (options.environments or options.cache / "peers").absolute()
    options.rounds = options.rounds or (1 if options.quick else 9)
    start, out = time.perf_counter(), destination(options)
    folder = options.cache / ("recourse_peers.quick" if options.quick else "recourse_peers")
    work, arrays = prepared(folder, options)
    answers: dict[tuple[str, str], dict[str, Answers]] = {}
    results: dict[str, Any] = {}
    for peer in PEERS:
        if peer.title in options.skip:
            continue
        for on, found in asked(work, folder, peer, options).items():
            answers[on] = answers.get(on, {}) | found
    for data, model in sorted(answers, key=lambda on: (NAMES.index(on[0]), on[1])):
        found = answers[data, model]
        title = f"{data}, {model}"
        results[title] = rounded(judgement(arrays, data, model, found))
        print(f"\n{title}\n{show(results[title])}\n", flush=True)
    write_json(out, {
        "benchmark": "recourse_peers",
        "quick": options.quick,
        "peers": {peer.title: about(peer, options) for peer in PEERS if peer.title not in options.skip},
        "results": results,
        "run": provenance(time.perf_counter() - start),
    })  # fmt: skip
    return concluded(dearer(results), out)


def about(peer: Peer, options: argparse.Namespace) -> dict[str, Any]:
    """Release, licence, and what it can be told."""
    found: dict[str, Any] = {"licence": peer.licence, "told": peer.told, "tools": list(peer.tools)}
    found["requirements"] = list(asdict(peer.environment)["requirements"])
    try:
        found["releases"] = versions(peer.environment.python(options.environments), peer.packages)
    except Skipped as reason:
        found["skipped"] = str(reason)
    return found


def dearer(results: dict[str, Any]) -> list[str]:
    """Where our plain answers of a regression cost more than the exact ones, in words."""
    wrong = []
    for title, found in results.items():
        over = found["tools"].get(PLAIN, {}).get("over", {}).get(EXACT)
        if over and title.endswith("logistic") and over["most"] > 1.001:
            wrong.append(f"{title}: an answer costs {over['most']:.4f} times the least")
    return wrong
