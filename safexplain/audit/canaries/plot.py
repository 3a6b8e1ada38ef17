"""Epsilon against steps: what canaries show, between the two numbers that accounting gives (Figure 3's form)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from safexplain._privacy_loss import epsilon_of
from safexplain.dp.accounting.calibration import CURVES, POINTS
from safexplain.errors import ConfigurationError
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


def plot_canaries(results: Sequence[CanaryResult] | CanaryResult, *, path: str | Path | None = None) -> Figure:
    """A figure of lower bounds at each audited step beside epsilon under both adjacencies.

    Args:
        results: of one claim with a mechanism; one or several scenarios.
        path: file to save to; the ending chooses the format.

    Raises:
        ConfigurationError: results of different claims, or a claim without a mechanism.
    """
    results = [results] if isinstance(results, CanaryResult) else list(results)
    if not results or any(r.claim != results[0].claim for r in results):
        raise ConfigurationError("results: expected one or more, all of the same claim")
    claim = results[0].claim
    if claim.mechanism is None:
        raise ConfigurationError("the claim names no mechanism, so there is no epsilon of earlier steps to draw")
    total = claim.mechanism.steps
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    at = np.unique(np.ceil(total * np.linspace(0, 1, POINTS)[1:] ** 2).astype(int))  # denser where it is steep
    for adjacency, label, color in CURVES:
        spent = [
            epsilon_of([m], claim.delta, adjacency, group=claim.group)
            for t in at
            if (m := claim.after(int(t)).mechanism)
        ]
        axes.plot([0, *at], [0, *spent], color=color, label=f"accounting: {label}")
    for result in results:
        steps = [e.step for e in result.errors]
        found = [result.lower(e) for e in result.errors]
        color, marker = COLORS[result.scenario], "o" if len(steps) < 40 else None
        label = f"{result.scenario} canary" + (
            f", class {result.setting['class']}" if "class" in result.setting else ""
        )
        axes.plot(steps, found, marker=marker, markersize=3, linewidth=1, color=color, label=label)
    axes.set(xlabel="steps", ylabel=f"epsilon at delta {claim.delta:g}", xlim=(0, total * 1.03), ylim=(0, None))
    runs = " / ".join(f"{n:,}" for n in sorted({r.runs for r in results}))
    axes.set_title(
        f"noise multiplier {claim.mechanism.noise_multiplier:.4g}, sample rate {claim.mechanism.sample_rate:g};"
        f" lower bounds from {runs} runs, each at {results[0].confidence:.0%}",
        fontsize=9,
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
