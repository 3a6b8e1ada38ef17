"""Figures of docs/recourse.md: curves of membership attacks on recourse, both axes logarithmic.

    python docs/figures/make_recourse_figures.py [--out docs/figures]

Figures 1 to 3 of "Accurate, Explainable, and Private Models", drawn from audit/results/recourse_evidence.json, which
`python -m audit.suites.paper_b_recourse.evidence` writes. Each is written twice, for the light and the dark scheme of
the site.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from make_figures import BLUE, GREEN, ORANGE, PURPLE, SCHEMES, style
from matplotlib.figure import Figure

RESULT = Path(__file__).parents[2] / "audit" / "results" / "recourse_evidence.json"
FIGURES = {
    "recourse-heloc": ("heloc, label of the paper",),
    "recourse-mnist": ("mnist 3/8",),
    "recourse-synthetic": ("synthetic 1000", "synthetic 5000", "synthetic 7000"),
}
"""Name of a figure -> its tasks, a row each."""
ATTACKS = {
    "distance (CFD)": ("CounterfactualDistance", "distance"),
    "CFD-LRT, global variance": ("CounterfactualLRT-global", "distance"),
    "CFD-LRT, local variance": ("CounterfactualLRT-local", "distance"),
    "direction of one answer": ("DirectionDensity", "one_answer_margin"),
}
"""Title of a panel -> (attack, signal)."""
LINES = {
    "without privacy": (PURPLE, "-"),
    "Laplace recourse, as published, epsilon 0.5": (ORANGE, "-"),
    "Laplace recourse, as published, epsilon 1": (ORANGE, "--"),
    "DPModelRecourse, epsilon 0.5": (GREEN, "-"),
    "DPModelRecourse, epsilon 1": (GREEN, "--"),
    "LaplaceScore, epsilon 0.5": (BLUE, "-"),
    "LaplaceScore, epsilon 1": (BLUE, "--"),
}
"""Condition -> colour and line."""
LEAST = 1e-4


def draw(found: dict[str, Any], tasks: Sequence[str]) -> Figure:
    """A row a task, a panel an attack."""
    figure = Figure(figsize=(9.0, 0.7 + 2.3 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), len(ATTACKS), sharex=True, sharey=True, squeeze=False)
    grid = found["fprs_of_curves"]
    for i, (row, task) in enumerate(zip(panels, tasks, strict=True)):
        for axes, (title, which) in zip(row, ATTACKS.items(), strict=True):
            axes.plot([LEAST, 1], [LEAST, 1], ":", color="grey", linewidth=0.8)
            for condition, (colour, line) in LINES.items():
                cell = found["results"][task]["cells"].get(condition)
                attacks = [a for a in (cell or {"attacks": []})["attacks"] if (a["attack"], a["signal"]) == which]
                for attack in attacks:
                    tpr = [max(t, LEAST) for t in attack["curve"]]
                    label = condition.replace("epsilon", "ε")
                    axes.plot(grid, tpr, line, color=colour, linewidth=1.1, label=label)
            axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
            axes.minorticks_off()
            if i == 0:
                axes.set_title(title, fontsize=9)
            if i == len(tasks) - 1:
                axes.set_xlabel("false-positive rate")
        row[0].set_ylabel(f"{task}\ntrue-positive rate", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=7)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figures whose tasks are in the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    found = json.loads(options.result.read_text())
    for name, tasks in FIGURES.items():
        there = [t for t in tasks if t in found["results"]]
        for scheme in SCHEMES if there else ():
            with mpl.rc_context(style(scheme)):
                path = options.out / f"{name}-{scheme}.svg"
                draw(found, there).savefig(path, metadata={"Date": None})
                print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
