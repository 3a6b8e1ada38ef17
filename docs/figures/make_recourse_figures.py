"""Figures of docs/recourse.md and of the evidence on recourse.

    python docs/figures/make_recourse_figures.py [--out docs/figures]

Figures 1 to 3 and 6 of "Accurate, Explainable, and Private Models", curves of membership attacks with both axes
logarithmic, drawn from audit/results/recourse_evidence.json; Figures 4 and 5, histograms of recourse distances, from
frozen/recourse_distances.json. `python -m audit.suites.paper_b_recourse.evidence` writes the first. Each is
written twice, for the light and the dark scheme of the site.
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
DISTANCES = RESULT.parent / "frozen" / "recourse_distances.json"
FIGURES = {
    "recourse-heloc": ("heloc, label of the paper",),
    "recourse-mnist": ("mnist 3/8",),
    "recourse-synthetic": ("synthetic 1000", "synthetic 5000", "synthetic 7000"),
    "recourse-adult": ("adult",),
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


MEMBERS, OTHERS = BLUE, ORANGE
HISTOGRAMS = {
    "recourse-distances": ("figure 4", "log_histogram", "log10"),
    "recourse-distances-lrt": ("figure 4", "lrt_histogram", "lrt"),
    "recourse-distances-epsilons": ("figure 5", "histogram", "linear"),
}
"""Name of a figure -> figure of the paper, histogram, and its edges."""
AXES = {
    "log10": "distance / median without privacy",
    "lrt": "CFD-LRT score",
    "linear": "distance / median without privacy",
}


def panels_of(found: dict[str, Any], figure: str) -> list[tuple[str, dict[str, Any]]]:
    """Label of a row -> its cells: a setting, in Figure 5 a setting and a mechanism with every epsilon."""
    settings = {title.partition(": ")[2]: r for title, r in found["results"].items() if title.startswith(figure)}
    if figure == "figure 4":
        shown = {t: r for t, r in settings.items() if r["rows"] >= 1000 or r["columns"] == 100}
        return [
            (setting, {title.replace(", epsilon 1", ""): cell for title, cell in result["cells"].items()})
            for setting, result in shown.items()
        ]
    rows = []
    for setting, result in settings.items():
        plain = {title: cell for title, cell in result["cells"].items() if "epsilon" not in title}
        for mechanism in ("Laplace recourse, as published", "DPModelRecourse"):
            cells = {title: cell for title, cell in result["cells"].items() if title.startswith(mechanism)}
            rows.append((setting, plain | cells))
    return rows


def histograms(found: dict[str, Any], figure: str, kind: str, axis: str) -> Figure | None:
    """A row a setting, a panel a release: members and others, as shares of a bin."""
    rows = panels_of(found, figure)
    if not rows:
        return None
    edges = found["edges"][axis]
    columns = max(len(cells) for _, cells in rows)
    drawn = Figure(figsize=(1.6 * columns, 0.8 + 1.3 * len(rows)), layout="constrained")
    panels = drawn.subplots(len(rows), columns, sharex=True, squeeze=False)
    for row, (setting, cells) in zip(panels, rows, strict=True):
        for axes, (title, cell) in zip(row, cells.items(), strict=True):
            for who, colour in (("members", MEMBERS), ("others", OTHERS)):
                axes.stairs(cell[kind][who], edges, color=colour, linewidth=1.0, label=who)
            axes.set_title(title.replace(", ", ",\n").replace(" (", "\n(").replace("epsilon", "ε ="), fontsize=7)
            axes.set_yticks([])
            axes.tick_params(labelsize=7)
            if axis == "log10":
                axes.set_xticks([-2, -1, 0, 1, 2], ["0.01", "0.1", "1", "10", "100"])
        row[0].set_ylabel(setting.replace(", ", ",\n"), fontsize=7)
    drawn.supxlabel(AXES[axis], fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=7)
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figures whose tasks are in the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--distances", type=Path, default=DISTANCES)
    options = parser.parse_args(arguments)
    found = json.loads(options.result.read_text())
    if options.distances.is_file():
        far = json.loads(options.distances.read_text())
        for name, which in HISTOGRAMS.items():
            for scheme in SCHEMES:
                with mpl.rc_context(style(scheme)):
                    path, drawn = options.out / f"{name}-{scheme}.svg", histograms(far, *which)
                    if drawn is not None:
                        drawn.savefig(path, metadata={"Date": None})
                        print(f"{path}: {path.stat().st_size / 1024:.0f} KB")
    for name, tasks in FIGURES.items():
        there = [t for t in tasks if t in found["results"]]
        for scheme in SCHEMES if there else ():
            with mpl.rc_context(style(scheme)):
                path = options.out / f"{name}-{scheme}.svg"
                draw(found, there).savefig(path, metadata={"Date": None})
                print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
