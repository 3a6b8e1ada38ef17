"""The figure of docs/canaries.md: lower bounds on CIFAR-10 features between the two epsilons that accounting gives.

    python docs/figures/make_canary_figure.py [--out docs/figures]

It is drawn from audit/results/canary_figure3.json, which `python -m audit.suites.paper_c_canaries.figure3` writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from make_figures import SCHEMES, style
from matplotlib.figure import Figure

from safexplain.verdict.canaries.result import SCENARIOS

RESULT = Path(__file__).parents[2] / "audit" / "results" / "canary_figure3.json"


CURVES = (
    ("substitute", "one record substituted", "#e8743b"),
    ("add_remove", "one record added or removed", "#3f8fd2"),
)

COLORS = {
    "worst-case": "#6b4fa0",
    "gradient": "#1f7a4d",
    "crafted": "#b8860b",
    "mislabelled": "#a83279",
    "natural": "#4d5866",
}


def draw(found: dict[str, Any]) -> Figure:
    """A panel a sample rate, of the task with 10 classes."""
    rates = found["rates"]
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = figure.subplots(1, len(rates), sharey=True)
    for axes, (rate, at) in zip(panels, rates.items(), strict=True):
        steps = at["steps"]
        for adjacency, label, color in CURVES:
            axes.plot([0, *steps], [0, *at[adjacency]], color=color, label=f"accounting: {label}")
        for scenario, cell in at["cells"].items():
            axes.plot(
                steps, cell["epsilon_lower"]["curve"], marker="o", markersize=2.5, linewidth=1,
                color=COLORS[scenario], label=f"{SCENARIOS[scenario]} {scenario}",
            )  # fmt: skip
        axes.set(xlabel="steps", ylim=(0, None))
        axes.set_title(f"sample rate {rate}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("epsilon at delta 1e-5")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it for the light and the dark scheme of the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    found = json.loads(RESULT.read_text())["results"]
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            task = found.get("10 classes") or next(iter(found.values()))
            draw(task).savefig(options.out / f"canaries-{scheme}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
