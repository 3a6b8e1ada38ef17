"""The figure of docs/evidence/paper_c_canaries.md: what audits by canaries depend on (paper C's Figures 5, A1 to A5).

    python docs/figures/make_sweep_figure.py [--out docs/figures]

It is drawn from audit/results/frozen/canary_sweep.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from make_canary_figure import COLORS
from make_figures import SCHEMES, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from safexplain.verdict.canaries.result import SCENARIOS

RESULT = Path(__file__).parents[2] / "audit" / "results" / "frozen" / "canary_sweep.json"
VARIED = {"A2": ("clip bound C, q = 1", "C ="), "A4": ("learning rate, q = 1", "learning rate")}
SHADES = ("#8a5a00", "#1f7a4d", "#2b6cb0", "#a83279")


def draw(results: dict[str, Any]) -> Figure:
    """Six panels."""
    figure = Figure(figsize=(9.6, 6.0), layout="constrained")
    (runs, clips, steps), (lrs, accuracy, ratios) = figure.subplots(2, 3)
    rate = by_runs(runs, results["5"])
    runs.set(xlabel="runs", title=f"5: number of runs, q = {rate}")
    for axes, figure_name in ((clips, "A2"), (lrs, "A4")):
        label, prefix = VARIED[figure_name]
        ends(axes, results[figure_name]["values"], prefix)
        axes.set(xlabel=label, xscale="log", title=f"{figure_name}: {label.partition(',')[0]}")
    curves(steps, results["A3"]["values"])
    steps.set(xlabel="share of the steps", title="A3: 500 (solid) and 2,500 steps, q = 0.0625")
    trained(accuracy, results["A1"])
    accuracy.set(xlabel="steps", ylabel="accuracy", title="A1: utility, q = 1")
    accounted(ratios, results["A5"]["cells"])
    ratios.set(xlabel="epsilon, substituted", xscale="log", ylabel="over add/remove", title="A5: accounting, 500 steps")
    for axes in (runs, clips, steps, lrs):
        axes.set(ylim=(0, None), ylabel="epsilon at least")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(9)
    handles, labels = runs.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def by_runs(axes: Axes, found: dict[str, Any]) -> str:
    """The smallest sample rate; which it is."""
    rate, at = list(found["rates"].items())[-1]
    for scenario, cell in at["cells"].items():
        x = [c["runs"] for c in cell]
        y, error = ([c["epsilon_lower"][key] or 0.0 for c in cell] for key in ("mean", "two_se"))
        axes.errorbar(
            x, y, yerr=error, marker="o", markersize=2.5, linewidth=1, capsize=2, color=COLORS[scenario],
            label=f"{SCENARIOS[scenario]} {scenario}",
        )  # fmt: skip
    axes.axhline(at["add_remove"], color="#888888", linestyle="--", linewidth=1, label="accounting: add/remove")
    axes.axhline(at["substitute"], color="#888888", linewidth=1, label="accounting: substitute")
    return str(rate)


def ends(axes: Axes, values: dict[str, Any], prefix: str) -> None:
    """The last step against what is varied."""
    x = [float(name.removeprefix(prefix)) for name in values]
    each = [next(iter(found["rates"].values())) for found in values.values()]
    for scenario in each[0]["cells"]:
        y = [at["cells"][scenario]["epsilon_lower"]["mean"] for at in each]
        axes.plot(x, y, marker="o", markersize=2.5, linewidth=1, color=COLORS[scenario])
    axes.plot(x, [at["add_remove"][-1] for at in each], color="#888888", linestyle="--", linewidth=1)
    axes.plot(x, [at["substitute"][-1] for at in each], color="#888888", linewidth=1)


def curves(axes: Axes, values: dict[str, Any]) -> None:
    """Every audited step."""
    for found, line in zip(values.values(), ("-", ":"), strict=True):
        at = next(iter(found["rates"].values()))
        share = [step / at["steps"][-1] for step in at["steps"]]
        for scenario, cell in at["cells"].items():
            axes.plot(share, cell["epsilon_lower"]["curve"], line, linewidth=1, color=COLORS[scenario])
        axes.plot(share, at["add_remove"], "--" if line == "-" else ":", linewidth=1, color="#888888")


def trained(axes: Axes, found: dict[str, Any]) -> None:
    """Accuracy of each arm."""
    for (name, arm), color in zip(found["accuracy"].items(), SHADES, strict=False):
        axes.errorbar(found["steps"], arm["mean"], yerr=arm["two_se"], linewidth=1, color=color, label=name)
    axes.legend(frameon=False, fontsize=7, loc="lower right")


def accounted(axes: Axes, cells: list[dict[str, Any]]) -> None:
    """The ratio at each sample rate."""
    for rate, color in zip(dict.fromkeys(c["sample_rate"] for c in cells), SHADES, strict=True):
        own = [c for c in cells if c["sample_rate"] == rate]
        axes.plot(
            [c["substitute"] for c in own], [c["ratio"] for c in own], marker="o", markersize=2.5, linewidth=1,
            color=color, label=f"q = {rate:g}",
        )  # fmt: skip
    axes.axhline(2, color="#888888", linestyle="--", linewidth=1)
    axes.legend(frameon=False, fontsize=7)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it for the light and the dark scheme of the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    found = json.loads(RESULT.read_text())["results"]
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            draw(found).savefig(options.out / f"sweep-{scheme}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
