# ruff: noqa: E402 (threads are set before NumPy and torch are imported)
"""1,000 recourse searches on a 23-feature network: `search_recourse`, a loop over queries, and alibi's Counterfactual.

The network has two hidden layers (64 and 32 units) and is trained here on synthetic data; queries are rows that it does
not favour. Loop: Wachter's objective by Adam, one query at a time, multipliers in ascending order, the nearest valid
point kept. alibi: `Counterfactual` with the same network in Keras (gradients, not black box), its defaults except a
target probability of .55, which with its tolerance of .05 makes what it accepts valid; it knows the L1 cost only, and
where it or TensorFlow is not installed the loop stands alone. Each is timed on the first queries; "times as fast"
compares processor time for each query. Quality: distance against a long search (Adam, eight multipliers, three starts,
1,000 steps each, all batched), and against `linear_recourse` on a linear model with several kinds of constraints and
features that cost differently.

    python -m audit.benchmarks.recourse_search [--queries 1000] [--threads 1] [--quick] [--out FILE]
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import argparse
import itertools
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from safexplain.recourse import search_recourse
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear.solve import linear_recourse

from ..shared.run import RESULTS, provenance, table, write_json

FEATURES, HIDDEN = 23, (64, 32)
SECONDS, VALID, TIMES, RATIO, LINEAR_RATIO = 5.0, 0.99, 10.0, 1.01, 1.05
COSTS = {"L2": L2(), "L1": L1()}
CATEGORIES = ((17, 18, 19), (20, 21, 22))
MIXED = Constraints(
    FEATURES, lower=-4, upper=4, integer=tuple(range(6)), increasing=(6,), decreasing=(7,), one_hot=CATEGORIES
)
LINEAR = {
    "free": Constraints(FEATURES),
    "box, immutable, monotone": Constraints(
        FEATURES, lower=-4, upper=4, immutable=(0, 1), increasing=(2,), decreasing=(3,)
    ),
    "one-hot": Constraints(FEATURES, lower=-4, upper=4, one_hot=CATEGORIES),
    "integer": Constraints(FEATURES, lower=-4, upper=4, integer=tuple(range(FEATURES))),
    "mixed": MIXED,
}


def network(device: str) -> nn.Sequential:
    """Trained for ten epochs on labels that products of features decide."""
    torch.manual_seed(0)
    x = torch.randn(8000, FEATURES)
    y = (x[:, :8].sum(dim=1) + 2 * x[:, 8] * x[:, 9] - 2 * x[:, 10] * x[:, 11] > 1.0).long()
    widths = (FEATURES, *HIDDEN)
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(widths[-1], 2))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(10):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    return net.eval().to(device)


def score(net: nn.Module, rows: Tensor) -> Tensor:
    logits = net(rows)
    return logits[:, 1] - logits[:, 0]


def allowed(x: np.ndarray, constraints: Constraints, rng: np.random.Generator) -> np.ndarray:
    """Rows that keep the constraints, categories drawn."""
    x = x.clip(-4, 4)
    for group in constraints.groups:
        x[:, group] = np.eye(len(group))[rng.integers(0, len(group), len(x))]
    x[:, constraints.whole] = np.rint(x[:, constraints.whole])
    return x


def unfavoured(net: nn.Module, count: int, device: str, constraints: Constraints | None = None) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6 * count + 100, FEATURES))
    x = x if constraints is None else allowed(x, constraints, rng)
    with torch.no_grad():
        chosen = score(net, torch.tensor(x, dtype=torch.float32, device=device)) < 0
    return x[chosen.cpu().numpy()][:count]


def adam(
    net: nn.Module, x: np.ndarray, cost: L1 | L2, multipliers: tuple[float, ...], steps: int, starts: int = 1
) -> np.ndarray:
    """(n,) distances of the nearest valid points that Adam ever passed; infinite: none. Rows do not interact."""
    device = next(net.parameters()).device
    origin = torch.tensor(x, dtype=torch.float32, device=device)
    best = torch.full((len(x),), torch.inf, device=device)
    for start, multiplier in itertools.product(range(starts), multipliers):
        noise = torch.randn(origin.shape, generator=torch.Generator().manual_seed(start)).to(device)
        z = (origin + (start > 0) * 0.3 * noise).requires_grad_()
        optimizer = torch.optim.Adam([z], 0.03)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
        for _ in range(steps):
            value, change = score(net, z), z - origin
            size = change.square().sum(dim=1) / 2 if cost.power == 2 else change.abs().sum(dim=1)
            with torch.no_grad():
                distance = change.norm(dim=1) if cost.power == 2 else size
                best = torch.where((value >= 0) & (distance < best), distance, best)
            optimizer.zero_grad()
            (size + multiplier * (1e-3 - value).clamp_min(0.0)).sum().backward()
            optimizer.step()
            schedule.step()
    return best.detach().cpu().double().numpy()


def by_loop(net: nn.Module, x: np.ndarray, cost: L1 | L2) -> np.ndarray:
    return np.concatenate([adam(net, row[None], cost, (0.3, 1.0, 3.0, 10.0, 30.0), 400) for row in x])


def alibi_search(net: nn.Sequential) -> Callable[[np.ndarray], np.ndarray] | None:
    """(n, d) rows -> (n,) L1 distances, infinite: none found; None where alibi or TensorFlow is missing."""
    try:
        import tensorflow as tf
        from alibi.explainers import Counterfactual
    except ImportError:
        return None
    tf.compat.v1.disable_v2_behavior()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    logging.disable(logging.ERROR)
    dense = [tf.keras.layers.Dense(width, activation="relu") for width in HIDDEN]
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,)), *dense, tf.keras.layers.Dense(2, activation="softmax")])
    linear = [part for part in net if isinstance(part, nn.Linear)]
    model.set_weights([p.detach().cpu().numpy().T for part in linear for p in (part.weight, part.bias)])
    explainer = Counterfactual(model, shape=(1, FEATURES), distance_fn="l1", target_class=1, target_proba=0.55)

    def search(x: np.ndarray) -> np.ndarray:
        found = [explainer.explain(row[None].astype(np.float32)).cf for row in x]
        points = np.array([row if cf is None else cf["X"][0] for row, cf in zip(x, found, strict=True)])
        with torch.no_grad():
            valid = score(net.cpu(), torch.tensor(points, dtype=torch.float32)).numpy() >= 0
        return np.where(valid, np.abs(points - x).sum(axis=1), np.inf)

    return search


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, and seconds of the processor and on the clock."""
    busy, clock = time.process_time(), time.perf_counter()
    value = call()
    return value, time.process_time() - busy, time.perf_counter() - clock


def compared(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """Mean ratio of distances where both found a point."""
    both = np.isfinite(ours) & np.isfinite(theirs)
    return round(float((ours[both] / theirs[both]).mean()), 4) if both.any() else None


def searches(net: nn.Sequential, options: argparse.Namespace) -> dict[str, Any]:
    """Each way: seconds, share of valid answers, and our distance divided by its."""
    x, found = unfavoured(net, options.queries, options.device), {}
    other = alibi_search(net) if options.device == "cpu" else None
    search_recourse(net, x[:5])
    for name, cost in COSTS.items():
        rounds = [timed(lambda c=cost: search_recourse(net, x, cost=c)) for _ in range(options.rounds)]
        ours = rounds[0][0]
        distance = np.where(ours.valid, ours.distance, np.inf)
        seconds = statistics.median(r[2] for r in rounds)
        busy = statistics.median(r[1] for r in rounds)
        found[f"search_recourse, {name}"] = {
            "queries": len(x), "seconds": round(seconds, 3), "processor_seconds_a_query": busy / len(x),
            "valid": float(ours.valid.mean()), "our_distance_to_its": 1.0, "times_faster": 1.0,
        }  # fmt: skip
        ways: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
            f"search_recourse, one at a time, {name}": (
                options.loop, lambda rows, c=cost: np.array([search_recourse(net, r, cost=c).distance[0] for r in rows])
            ),
            f"loop of Adam, {name}": (options.loop, lambda rows, c=cost: by_loop(net, rows, c)),
        }  # fmt: skip
        if other is not None and name == "L1":
            ways["alibi Counterfactual, L1"] = (options.alibi, other)
        for way, (count, call) in ways.items():
            theirs, took, clock = timed(lambda call=call, count=count: call(x[:count]))
            found[way] = {
                "queries": count, "seconds": round(clock, 3), "processor_seconds_a_query": took / count,
                "valid": float(np.isfinite(theirs).mean()), "our_distance_to_its": compared(distance[:count], theirs),
                "times_faster": round((took / count) / (busy / len(x)), 1),
            }  # fmt: skip
            print(f"{way}: {clock:.1f} s for {count}", file=sys.stderr, flush=True)
        grid, steps = ((0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0), 1000) if not options.quick else ((3.0,), 50)
        long, took, clock = timed(
            lambda c=cost, g=grid, s=steps: adam(net, x[: options.long], c, g, s, 1 if options.quick else 3)
        )
        found[f"long search, {name}"] = {
            "queries": len(long), "seconds": round(clock, 3), "processor_seconds_a_query": took / len(long),
            "valid": float(np.isfinite(long).mean()), "our_distance_to_its": compared(distance[: len(long)], long),
            "times_faster": round((took / len(long)) / (busy / len(x)), 1),
        }  # fmt: skip
    own = unfavoured(net, options.queries, options.device, MIXED)
    for name, cost in COSTS.items():
        answer, took, clock = timed(lambda c=cost: search_recourse(net, own, cost=c, constraints=MIXED))
        assert MIXED.satisfied(own, answer.counterfactual).all()
        found[f"search_recourse, 6 integers, 2 groups, {name}"] = {
            "queries": len(own), "seconds": round(clock, 3), "processor_seconds_a_query": took / len(own),
            "valid": float(answer.valid.mean()), "our_distance_to_its": None, "times_faster": None,
        }  # fmt: skip
    return found


def linear(options: argparse.Namespace) -> dict[str, Any]:
    """Distance of the search divided by that of `linear_recourse`, on one linear model."""
    rng, found = np.random.default_rng(2), {}
    weights = rng.normal(size=FEATURES)
    model = nn.Linear(FEATURES, 1).double().to(options.device)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weights)[None])
        model.bias.fill_(-1.0)
    scale = tuple(rng.uniform(0.3, 2.0, FEATURES))
    costs: dict[str, L1 | L2] = {"L2": L2(scale), "L1": L1(scale)}
    for (name, cost), (kind, constraints) in itertools.product(costs.items(), LINEAR.items()):
        x = allowed(rng.normal(size=(options.linear, FEATURES)) - 0.3 * weights, constraints, rng)
        ours = search_recourse(model, x, cost=cost, constraints=constraints)
        exact = linear_recourse(weights, -1.0, x, cost=cost, constraints=constraints)
        both = ours.valid & exact.valid & ~ours.favourable
        ratio = ours.distance[both] / exact.distance[both]
        found[f"{kind}, {name}"] = {
            "queries": int((~ours.favourable).sum()),
            "valid": float(ours.valid.mean()),
            "linear_valid": float(exact.valid.mean()),
            "ratio_mean": round(float(ratio.mean()), 5),
            "ratio_largest": round(float(ratio.max()), 4),
        }
    return found


def targets(report: dict[str, Any]) -> dict[str, Any]:
    """What is aimed at, what was found, and whether it is met."""
    results, found = report["results"], {}

    def add(name: str, aim: float, value: float, at_least: bool = False) -> None:
        found[name] = {"target": aim, "found": value, "met": value >= aim if at_least else value <= aim}

    for name in COSTS:
        own = results[f"search_recourse, {name}"]
        add(f"seconds, {name}", SECONDS, own["seconds"])
        add(f"valid, {name}", VALID, own["valid"], at_least=True)
        add(f"times as fast as the loop, {name}", TIMES, results[f"loop of Adam, {name}"]["times_faster"], True)
        add(f"distance to the long search's, {name}", RATIO, results[f"long search, {name}"]["our_distance_to_its"])
        add(
            f"seconds with constraints, {name}",
            SECONDS,
            results[f"search_recourse, 6 integers, 2 groups, {name}"]["seconds"],
        )
    if (alibi := results.get("alibi Counterfactual, L1")) is not None:
        add("times as fast as alibi", TIMES, alibi["times_faster"], at_least=True)
    add("distance to linear_recourse's", LINEAR_RATIO, max(r["ratio_mean"] for r in report["linear"].values()))
    return found


def parsed(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--queries", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=5, help="of search_recourse; medians are reported")
    p.add_argument("--loop", type=int, default=20, help="queries of the loops")
    p.add_argument("--alibi", type=int, default=5, help="queries of alibi")
    p.add_argument("--long", type=int, default=200, help="queries of the long search")
    p.add_argument("--linear", type=int, default=300, help="queries of each linear problem")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=1, help="of torch")
    p.add_argument("--quick", action="store_true", help="every part, tiny: shows that everything works; proves nothing")
    p.add_argument("--out", type=Path, help="default: audit/results/recourse_search.json; none with --quick")
    options = p.parse_args(argv)
    if options.quick:
        options.queries, options.rounds, options.loop, options.alibi, options.long, options.linear = 20, 1, 1, 1, 5, 20
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; 0 when all targets are met, 1 otherwise; a quick run has none."""
    options = parsed(argv)
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    start = time.perf_counter()
    results = searches(network(options.device), options)
    with_alibi = "alibi Counterfactual, L1" in results
    report: dict[str, Any] = {
        "benchmark": "recourse_search",
        "quick": options.quick,
        "features": FEATURES,
        "hidden": list(HIDDEN),
        "threads": options.threads,
        "rounds": options.rounds,
        "alibi": version("alibi") if with_alibi else None,
        "tensorflow": sys.modules["tensorflow"].__version__ if with_alibi else None,
        "results": results,
        "linear": linear(options),
    }
    report["targets"] = targets(report)
    report |= provenance(time.perf_counter() - start, options.device)
    print(
        table(
            ("", "queries", "seconds", "ms a query, processor", "valid", "our distance / its", "times as fast"),
            (
                (name, r["queries"], r["seconds"], f"{1e3 * r['processor_seconds_a_query']:.2f}", f"{r['valid']:.3f}",
                 r["our_distance_to_its"], r["times_faster"])
                for name, r in results.items()
            ),
        )
    )  # fmt: skip
    print(
        table(
            ("linear model", "queries", "valid", "linear", "ratio", "largest"),
            ((n, *r.values()) for n, r in report["linear"].items()),
        )
    )
    print(table(("target", "aim", "found", "met"), ((n, *t.values()) for n, t in report["targets"].items())))
    if options.out or not options.quick:
        out = options.out or RESULTS / "recourse_search.json"
        write_json(out, report)
        print(f"written to {out}")
    return 0 if options.quick or all(t["met"] for t in report["targets"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
