"""Plausible answers: what share are outliers, whoever judges, with and without `Plausibility`, and what it costs.

For each split a private logistic regression (epsilon 1, delta 1e-5) is trained on 5,000 rows, others are public, and
others ask. Every answer is judged by scikit-learn's
`LocalOutlierFactor(n_neighbors=20, novelty=True)` with its limit of 1.5, fitted on the public rows, on the rows trained
on, and on all rows, each standardised, divided by ranges, and as they are. On Adult rows are only standardised, as in
`recourse_peers` (divided by ranges, nearly half of the people themselves are outliers). `Plausibility` is told the
public rows, and nothing of the judges. Costs are L1 in standard deviations of the public rows (L2 where said).

    python -m audit.suites.paper_b_recourse.plausible [--splits N] [--heloc FILE] [--out FILE] [--quick]
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import LocalOutlierFactor

from safexplain.recourse import L1, L2, Constraints, DPModelRecourse, Plausibility, Preprocessing
from safexplain.recourse.cost import Cost

from ...shared.run import concluded, destination, finish, load, parser, provenance, rounded, table, write_json

Floats = NDArray[np.float64]
TRAINED, PUBLIC, ASKED = 5000, 2000, 1000
MOST = 0.02
"""Share of answers that may be outliers, by the judge that finds most, where few features are fixed."""
FEW = ("ExternalRiskEstimate", "MSinceOldestTradeOpen", "AverageMInFile")
MANY = (
    *FEW, "NumTrades60Ever2DerogPubRec", "NumTrades90Ever2DerogPubRec", "MaxDelq2PublicRecLast12M", "MaxDelqEver",
    "MSinceMostRecentDelq", "NumTotalTrades", "PercentTradesNeverDelq",
)  # fmt: skip
FIXED_ON_ADULT = ("fnlwgt", "marital-status", "relationship", "race", "sex", "native-country")


@dataclass(frozen=True, eq=False)
class Data:
    """Rows of a data set.

    Args:
        x: (n, d) numbers, and codes of categories after them.
        y: (n,) 0 and 1; 1 is favourable.
        form: their preprocessing; public ranges are those of the file.
        rules: constraints by name, and whether the cost is L2.
        source: what to record.
    """

    x: Floats
    y: NDArray[np.int64]
    form: Preprocessing
    rules: dict[str, tuple[Constraints, bool]]
    source: dict[str, Any]

    def people(self, rows: Any) -> dict[str, Any]:
        """A frame of these rows."""
        return {name: self.x[rows, i].tolist() for i, name in enumerate(self.form.features)}


def heloc(folder: Path, name: str = "heloc") -> Data:
    """HELOC: numbers only."""
    arrays, source = load(folder, name, ("x", "y", "names"))
    x, names = np.asarray(arrays["x"], dtype=np.float64), tuple(map(str, arrays["names"]))
    form = Preprocessing(numeric=dict(zip(names, zip(x.min(0).tolist(), x.max(0).tolist(), strict=True), strict=True)))
    few = Constraints(names, immutable=FEW)
    rules = {
        "no constraints": (Constraints(names), False),
        "no constraints, L2": (Constraints(names), True),
        "3 fixed": (few, False),
        "3 fixed, whole steps": (Constraints(names, immutable=FEW, step=dict.fromkeys(names, 1)), False),
        "10 fixed": (Constraints(names, immutable=MANY), False),
        "3 fixed, 3 changes at most": (Constraints(names, immutable=FEW, most_changes=3), False),
    }
    return Data(x, np.asarray(arrays["y"]).astype(np.int64), form, rules, source)


def adult(folder: Path) -> Data:
    """Adult: six numbers, one of them mostly 0, and categories."""
    arrays, source = load(folder, "adult", ("x_num", "x_cat", "y", "num_names", "cat_names"))
    kept = [i for i, name in enumerate(arrays["cat_names"]) if name != "education"]  # said by education-num
    numbers, codes = np.asarray(arrays["x_num"], dtype=np.float64), np.asarray(arrays["x_cat"])[:, kept]
    numeric = tuple(map(str, arrays["num_names"]))
    labels = [str(arrays["cat_names"][i]) for i in kept]
    ranges = zip(numbers.min(0).tolist(), numbers.max(0).tolist(), strict=True)
    counts = (codes.max(0) + 1).tolist()
    form = Preprocessing(
        numeric=dict(zip(numeric, ranges, strict=True)),
        categories={name: [float(i) for i in range(count)] for name, count in zip(labels, counts, strict=True)},
    )
    fixed = Constraints((*numeric, *labels), immutable=FIXED_ON_ADULT, increasing=("age", "education-num"))
    x = np.concatenate([numbers, codes.astype(np.float64)], axis=1)
    return Data(x, np.asarray(arrays["y"]).astype(np.int64), form, {"6 fixed, 2 only rise": (fixed, False)}, source)


def judges(title: str, table_of: Floats, numbers: int, rows: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Name and (k, d) rows -> (k,) bool, whether they are outliers.

    Args:
        title: of the data set.
        table_of: (n, d) all rows as a table.
        numbers: the table's columns of numbers, which come first.
        rows: name -> positions of those that a judge is fitted on.
    """
    deviation, ranges, one = table_of.std(axis=0), np.ptp(table_of, axis=0), np.ones(table_of.shape[1])
    is_number = np.arange(len(one)) < numbers
    units = {
        "standardised": np.where(deviation > 0, deviation, 1.0) if title == "HELOC"
        else np.where(is_number & (deviation > 0), deviation, 2.0),
    }  # fmt: skip
    if title == "HELOC":
        units |= {"ranges": np.where(ranges > 0, ranges, 1.0), "as they are": one}
    for unit_name, unit in units.items():
        for name, at in rows.items():
            found = LocalOutlierFactor(n_neighbors=20, novelty=True).fit(np.unique(table_of[at] / unit, axis=0))
            yield f"{unit_name}, {name}", lambda some, found=found, unit=unit: found.predict(some / unit) == -1


def run(title: str, data: Data, split: int, asked: int) -> dict[str, Any]:
    """All constraints on one split: name of the constraints -> what is told."""
    order = np.random.default_rng(split).permutation(len(data.x))[:20_000]
    train, public, ask = np.split(order, [TRAINED, TRAINED + PUBLIC])
    ask = ask[:asked]
    whole = data.form.table(data.people(slice(None)))
    rows = {"public": public, "trained on": train, "all": order}
    panel = dict(judges(title, whole, len(data.form.numeric), rows))
    near = Plausibility(data.people(public), preprocessing=data.form)
    deviation = np.array([v if v > 0 else 1.0 for v in whole[public].std(axis=0)])
    unit = np.where(np.arange(len(deviation)) < len(data.form.numeric), deviation, 2.0)
    first = DPModelRecourse(preprocessing=data.form, epsilon=1.0, random_state=split)
    model = first.fit(data.people(train), data.y[train]).private
    people, found = data.people(ask), dict[str, Any]()
    for name, (rules, squared) in data.rules.items():
        cost: Cost = L2(scale=unit) if squared else L1(scale=unit)
        options: dict[str, Any] = {"preprocessing": data.form, "cost": cost, "constraints": rules, "epsilon": 1.0}
        began = time.process_time()
        plain = DPModelRecourse(model, **options).explain(people, infeasible="mark")
        between = time.process_time()
        kept = DPModelRecourse(model, plausibility=near, **options).explain(people, infeasible="mark")
        ended = time.process_time()
        reached = plain.valid & ~plain.favourable
        both = reached & kept.valid
        low, high = whole.min(axis=0), whole.max(axis=0)
        ratio = kept.distance[both] / plain.distance[both]
        found[name] = {
            "turned_down": int((~plain.favourable).sum()),
            "valid_without": float(reached.sum() / (~plain.favourable).sum()),
            "valid": float(both.sum() / reached.sum()),
            "cost_ratio": float(kept.distance[both].sum() / plain.distance[both].sum()),
            "cost_ratio_median": float(np.median(ratio)),
            "outside": int(((kept.counterfactual < low) | (kept.counterfactual > high)).any(axis=1)[both].sum()),
            "outliers": {
                judge: {
                    "queries": float(is_out(plain.x[reached]).mean()),
                    "without": float(is_out(plain.counterfactual[reached]).mean()),
                    "with": float(is_out(kept.counterfactual[both]).mean()),
                }
                for judge, is_out in panel.items()
            },
            "ms_an_answer": [1e3 * (between - began) / len(ask), 1e3 * (ended - between) / len(ask)],
        }
    return found


def missed(results: dict[str, Any]) -> list[str]:
    """Targets that the results miss, in words."""
    wrong = []
    for title, splits in results.items():
        for name in splits[0]:
            cells = [split[name] for split in splits]
            if any(cell["outside"] for cell in cells):
                wrong.append(f"{title}, {name}: answers outside of the public ranges")
            means = over_splits(cells, "with")
            if title == "HELOC" and max(means.values()) > MOST:
                worst = max(means, key=lambda judge: means[judge])
                wrong.append(f"{title}, {name}: {100 * means[worst]:.1f} % are outliers ({worst})")
    return wrong


def over_splits(cells: list[dict[str, Any]], which: str) -> dict[str, float]:
    """Share of outliers by judge, mean of the splits."""
    return {judge: float(np.mean([c["outliers"][judge][which] for c in cells])) for judge in cells[0]["outliers"]}


def lines(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """What tables show, one line for each kind of constraints."""
    for title, splits in results.items():
        for name in splits[0]:
            cells = [split[name] for split in splits]
            shares = []
            for which in ("queries", "without", "with"):
                by_judge = list(over_splits(cells, which).values())
                shares.append(f"{100 * np.mean(by_judge):.1f} / {100 * max(by_judge):.1f}")
            single = max(max(by["with"] for by in c["outliers"].values()) for c in cells)
            mean = {k: float(np.mean([c[k] for c in cells])) for k in ("valid", "cost_ratio", "cost_ratio_median")}
            yield (
                title, name, str(sum(c["turned_down"] for c in cells)), *shares, f"{100 * single:.1f}",
                f"{100 * mean['valid']:.1f}", f"{mean['cost_ratio']:.2f} ({mean['cost_ratio_median']:.2f})",
                str(sum(c["outside"] for c in cells)),
            )  # fmt: skip


HEADER = (
    "data", "constraints", "turned down", "outliers: queries, %", "without, %", "with, %", "most in one split, %",
    "answered, %", "cost ratio (median)", "out of range",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the suite; 0 when every target is met, 1 otherwise."""
    p = parser("recourse_plausible", __doc__)
    p.add_argument("--splits", type=int, default=3, help="splits of each data set (default 3)")
    p.add_argument("--heloc", type=Path, help="the file of HELOC alone; without it heloc.npz and adult.npz of the data")
    options = p.parse_args(argv)
    start, out = time.perf_counter(), destination(options)
    sets = {"HELOC": heloc(options.heloc.parent, options.heloc.stem) if options.heloc else heloc(options.data)}
    if not options.heloc:
        sets["Adult"] = adult(options.data)
    splits, asked = (1, 60) if options.quick else (options.splits, ASKED)
    results: dict[str, Any] = {}
    for title, data in sets.items():
        results[title] = []
        for split in range(splits):
            results[title].append(rounded(run(title, data, split, asked)))
            print(table(HEADER, lines({title: results[title]})), flush=True)
    wrong = [] if options.quick else missed(results)
    write_json(out, {
        "suite": "recourse_plausible",
        "quick": options.quick,
        "data": {title: data.source for title, data in sets.items()},
        "results": results,
        "targets_missed": wrong,
        "run": provenance(time.perf_counter() - start),
    })  # fmt: skip
    return concluded(wrong, out)


if __name__ == "__main__":
    finish(main)
