"""Epsilon against steps, under both adjacencies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from safexplain._privacy_loss import Adjacency, Sampling, Steps, epsilon_of, group_privacy_epsilon

POINTS = 24

CURVES: tuple[tuple[Adjacency, str, str], ...] = (
    ("substitute", "one record substituted", "#e8743b"),
    ("add_remove", "one record added or removed", "#3f8fd2"),
)


def plot_epsilons(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    *,
    sampling: Sampling = "poisson",
    group_privacy: bool = True,
    path: str | Path | None = None,
) -> Figure:
    """A figure of what is spent after each step.

    Args:
        noise_multiplier: as for `epsilons`.
        sample_rate: as for `epsilons`.
        steps: the last step shown.
        delta: as for `epsilons`.
        sampling: as for `epsilons`.
        group_privacy: whether to show what add/remove accounting would say of a substitution.
        path: file to save to; the ending chooses the format.

    Raises:
        ConfigurationError: as for `epsilons`.
    """
    at = np.unique(np.ceil(steps * np.linspace(0, 1, POINTS)[1:] ** 2).astype(int))  # denser where it is steep
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for adjacency, label, color in CURVES:
        spent = [epsilon_of([Steps(noise_multiplier, sample_rate, int(t), sampling)], delta, adjacency) for t in at]
        axes.plot([0, *at], [0, *spent], color=color, label=label)
        axes.annotate(f"{spent[-1]:.2f}", (at[-1], spent[-1]), xytext=(4, 0), textcoords="offset points", va="center")
    if group_privacy:
        bound = [group_privacy_epsilon(noise_multiplier, sample_rate, int(t), delta, sampling=sampling) for t in at]
        axes.plot([0, *at], [0, *bound], ":", color="#8b8f98", label="substitution by group privacy (looser)")
    axes.set(xlabel="steps", ylabel=f"epsilon at delta {delta:g}", xlim=(0, steps * 1.09), ylim=(0, None))
    title = f"noise multiplier {noise_multiplier:g}, sample rate {sample_rate:g}, {sampling} batches"
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
