"""The figures of docs/differential-privacy.md: epsilon against steps, and what privacy costs in accuracy.

python docs/figures/make_dp_figure.py [--out docs/figures]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from make_figures import SCHEMES, style
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

from safexplain._privacy_loss import group_privacy_epsilon
from safexplain.dp import DPFineTuner, epsilons

SIGMA, RATE, STEPS, DELTA = 5.5728, 0.25, 500, 1e-5


def spent() -> Figure:
    """Epsilon after each step, and what add/remove accounting would say of a substitution."""
    at = np.unique(np.ceil(STEPS * np.linspace(0, 1, 24)[1:] ** 2).astype(int))  # denser where it is steep
    found = [epsilons(SIGMA, RATE, int(t), DELTA) for t in at]
    bound = [group_privacy_epsilon(SIGMA, RATE, int(t), DELTA) for t in at]
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for values, label, color in (
        ([e.substitute for e in found], "one record substituted", "#e8743b"),
        ([e.add_remove for e in found], "one record added or removed", "#3f8fd2"),
    ):
        axes.plot([0, *at], [0, *values], color=color, label=label)
        axes.annotate(f"{values[-1]:.2f}", (at[-1], values[-1]), (4, 0), textcoords="offset points", va="center")
    axes.plot([0, *at], [0, *bound], ":", color="#8b8f98", label="substitution by group privacy (looser)")
    axes.set(xlabel="steps", ylabel=f"epsilon at delta {DELTA:g}", xlim=(0, STEPS * 1.09), ylim=(0, None))
    axes.set_title(f"noise multiplier {SIGMA:g}, sample rate {RATE:g}, poisson batches", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw them for the light and the dark scheme of the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    tuner = DPFineTuner(
        network, (x[:1400], y[:1400]), epsilon=8, delta=1e-5, epochs=20, batch_size=140, lr=0.01, pretrained=False
    )
    comparison = tuner.fit(compare=(x[1400:], y[1400:]), epsilons=[1, 3]).comparison
    assert comparison is not None
    for scheme in SCHEMES:
        with mpl.rc_context(style(scheme)):
            for name, figure in (("epsilons", spent()), ("dp-accuracy", comparison.plot())):
                figure.savefig(options.out / f"{name}-{scheme}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
