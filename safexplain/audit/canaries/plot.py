"""Epsilon against steps: what canaries show, between the two numbers that accounting gives (Figure 3's form)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from safexplain.dp.accounting.calibration import CURVES, POINTS
from safexplain.verdict.canaries.result import CanaryResult

__all__ = ["plot_canaries"]

COLORS = {
    "worst-case": "#6b4fa0",
    "gradient": "#1f7a4d",
    "crafted": "#b8860b",
    "mislabelled": "#a83279",
    "natural": "#4d5866",
    "layers": "#2b8cbe",
    "outlier": "#d1495b",
    "poison": "#7a5230",
}


def plot_canaries(results: Sequence[CanaryResult], path: str | Path) -> None:
    """Draw the lower bounds at each audited step, of results of one claim with a mechanism, to a file."""
    claim = results[0].claim
    assert claim.mechanism is not None
    total = claim.mechanism.steps
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    at = np.unique(np.ceil(total * np.linspace(0, 1, POINTS)[1:] ** 2).astype(int))  # denser where it is steep
    spent = [found for t in at if (found := claim.after(int(t)).accounted)]
    for adjacency, label, color in CURVES:
        axes.plot([0, *at], [0, *(one.of(adjacency) for one in spent)], color=color, label=f"accounting: {label}")
    for one in results:
        steps, lower = [e.step for e in one.errors], [one.lower(e) for e in one.errors]
        marker = "o" if len(steps) < 40 else None
        label = f"{one.scenario} canary" + (f", class {one.setting['class']}" if "class" in one.setting else "")
        axes.plot(steps, lower, marker=marker, markersize=3, linewidth=1, color=COLORS[one.scenario], label=label)
    axes.set(xlabel="steps", ylabel=f"epsilon at delta {claim.delta:g}", xlim=(0, total * 1.03), ylim=(0, None))
    runs = " / ".join(f"{n:,}" for n in sorted({r.runs for r in results}))
    axes.set_title(
        f"noise multiplier {claim.mechanism.noise_multiplier:.4g}, sample rate {claim.mechanism.sample_rate:g};"
        f" lower bounds from {runs} runs, each at {results[0].confidence:.0%}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
