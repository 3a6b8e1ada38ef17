"""The figures of docs/statistics.md (power) and its evidence page (errors), from audit/results/verdict_errors.json.

    python docs/figures/make_error_figures.py [--out docs/figures] [--tables]

Each is written twice, for the light and the dark scheme of the site. `--tables` prints the tables of the page instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from make_figures import BLUE, GREEN, ORANGE, PURPLE, SCHEMES, style
from matplotlib import pyplot as plt

RESULTS = Path(__file__).resolve().parents[2] / "audit" / "results" / "verdict_errors.json"
LEAST = 2e-4
"""Rates are drawn no lower than this."""
ALLOWED = 0.05
NAMES = {
    "shift": "Gaussian shift",
    "few": "few very vulnerable members",
    "ties": "three values, many ties",
    "cliff": "all at the threshold (hardest)",
}
SAYS = {
    "one target": "nothing leaks, one target",
    "17 targets": "nothing leaks, 17 targets take turns",
    "shift .1": "members differ by .1 SD",
    "shift .25": "members differ by .25 SD",
    "shift 1": "members differ by 1 SD",
    "leak": "signals leak",
}

Cell = dict[str, Any]


def cells_of(part: dict[str, Any]) -> list[Cell]:
    """Rows of the JSON by the names of their columns."""
    return [dict(zip(part["columns"], row, strict=True)) for row in part["cells"]]


def chosen(cells: Iterable[Cell], **where: Any) -> list[Cell]:
    """Cells with these values."""
    return [c for c in cells if all(c[k] == v for k, v in where.items())]


def errors(report: dict[str, Any]) -> plt.Figure:
    """Wrong verdicts by the number of attacks and by the number of examples: the rule, and what is often done."""
    cells, audits = cells_of(report["whole"]), report["audits_per_cell"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharey=True)
    at = chosen(cells, members=5000, non_members=5000, correlation=0.0, policy=0, family="shift")
    lines = (
        ("leak", GREEN, "o-", "the rule of safexplain"),
        ("naive_leak", ORANGE, "s-", "threshold known, each attack alone"),
        ("point_leak", PURPLE, "^-", "the rate found, no interval"),
    )
    counts = sorted({c["attacks"] for c in at})
    for what, colour, mark, label in lines:
        truths = {1: "one at"}
        rates = [chosen(at, attacks=k, truth=truths.get(k, "all at"))[0][what] / audits for k in counts]
        left.plot(range(len(counts)), [max(r, LEAST) for r in rates], mark, color=colour, label=label, markersize=5)
    found = next(
        v for k, v in report["whole"]["best_accuracy"].items() if k.startswith("5,000 + 5,000, correlation 0.0")
    )
    best = [found[str(k)]["rate"] for k in counts]
    left.plot(range(len(counts)), best, "D--", color=BLUE, label="best accuracy, tested as if fixed", markersize=4)
    left.set_xticks(range(len(counts)), [str(k) for k in counts])
    left.set(xlabel="attacks in the suite", ylabel="share of audits", title="“leak”, though nothing is above the limit")
    over = chosen(cells, correlation=0.0, policy=0, attacks=1, truth="one over", family="cliff")
    over = sorted((c for c in over if c["members"] == c["non_members"]), key=lambda c: c["members"])
    sizes = [f"{2 * c['members']:,}" for c in over]
    for what, colour, mark, _ in lines:
        rates = [
            max(c[what.replace("leak", "certified") if "_" in what else "certified"] / audits, LEAST) for c in over
        ]
        right.plot(range(len(sizes)), rates, mark, color=colour, markersize=5)
    right.set_xticks(range(len(sizes)), sizes)
    right.set(xlabel="examples, half of them members", title="“certified”, though just over the limit")
    for axis in (left, right):
        axis.axhline(ALLOWED, color="#8b949e", ls=":", lw=1.2)
        axis.set(yscale="log", ylim=(LEAST * 0.8, 1.4))
        axis.set_yticks([0.001, 0.01, 0.05, 0.2, 1], ["0.1 %", "1 %", "5 %", "20 %", "100 %"])
        axis.minorticks_off()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def power(report: dict[str, Any]) -> plt.Figure:
    """How often a leak of a given size is found and certified, by the number of examples."""
    curves = report["power"]
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
    colours = (PURPLE, BLUE, "#5bb5c5", GREEN, ORANGE)
    for axis, verdict, title in zip(axes, ("certified", "leak"), ("certified", "leak proven"), strict=True):
        for (size, found), colour in zip(curves["by_examples"].items(), colours, strict=True):
            axis.plot(curves["tpr"], found[verdict], color=colour, label=f"{int(size):,} examples")
        axis.axvline(curves["policy"]["max_tpr"], color="#8b949e", ls=":", lw=1.2)
        axis.set(xscale="log", title=title, xlabel=f"true TPR at {curves['policy']['fpr']:.0%} FPR", ylim=(-0.02, 1.02))
        axis.set_xticks([0.01, 0.03, 0.1, 0.3], ["1 %", "3 % (limit)", "10 %", "30 %"])
        axis.minorticks_off()
    axes[0].set_ylabel("probability of the verdict")
    axes[0].set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    axes[0].legend(frameon=False, fontsize=8, loc="center right")
    return figure


def percent(rate: float) -> str:
    """A rate as the page has it."""
    return f"{100 * rate:.1f} %"


def tables(report: dict[str, Any]) -> str:
    """The tables of the page, as Markdown."""
    cells, audits = cells_of(report["whole"]), report["audits_per_cell"]

    def worst(family: str, truths: tuple[str, ...], what: str) -> str:
        return percent(max((c[what] / audits for c in chosen(cells, family=family) if c["truth"] in truths), default=0))

    at, over = ("nothing", "one at", "all at"), ("one over", "all over")
    out = ["| scores | leak proven, none there | certified, just over | often done: leak | often done: certified |"]
    out += ["|---|---:|---:|---:|---:|"]
    for family, name in NAMES.items():
        rates = [worst(family, *w) for w in ((at, "leak"), (over, "certified"), (at, "naive_leak"),
                                             (over, "naive_certified"))]  # fmt: skip
        out.append(f"| {name} | {' | '.join(rates)} |")
    out += [
        "",
        "| examples | guessing certified | leak of 5 % found | of 10 % | of 20 % |",
        "|---:|---:|---:|---:|---:|",
    ]
    curves = report["power"]
    for size, found in curves["by_examples"].items():
        nearest = [min(range(len(curves["tpr"])), key=lambda i: abs(curves["tpr"][i] - t)) for t in (0.05, 0.1, 0.2)]
        shown = [found["certified"][0], *(found["leak"][i] for i in nearest)]
        out.append(f"| {int(size):,} | {' | '.join(f'{100 * r:.0f} %' for r in shown)} |")
    out += ["", "| audits through `certify` | leak | certified | inconclusive | leak, had there been no controls | "
            "blind baseline fails | null model fails |", "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for setting, s in report["certify"]["settings"].items():
        fired = [s["fired"][c] for c in ("blind baseline", "null model")]
        rates = [*s["verdicts"].values(), s["leak_without_controls"], *fired]
        shown = " | ".join(f"{100 * r['rate']:.0f} %" for r in rates)
        out.append(f"| {SAYS[setting]} ({rates[0]['of']}) | {shown} |")
    return "\n".join(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make both figures, or print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args(arguments)
    report = json.loads(options.results.read_text())
    if options.tables:
        print(tables(report))
        return
    mpl.use("Agg")
    for make in (errors, power):
        for scheme in SCHEMES:
            with mpl.rc_context(style(scheme)):
                figure = make(report)
                path = options.out / f"{make.__name__}-{scheme}.svg"
                figure.savefig(path, metadata={"Date": None})
                plt.close(figure)
                print(f"{path}: {path.stat().st_size / 1024:.0f} KB", flush=True)


if __name__ == "__main__":
    main()
