"""The figure of docs/libraries.md: shap's own plots of hardened explanations, of one row and of many.

    python docs/figures/make_shap_figure.py [--out docs/figures]

A booster for scikit-learn's table of breast cancers; ordered sets of four features for the predicted class.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from make_figures import SCHEMES, style
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier

from safexplain import Hardening, TopKSet, shap


def draw(text: str) -> Figure:
    """Left a row, right a hundred, in a colour of text."""
    table = load_breast_cancer(as_frame=True)
    rows = table.data[:400]
    model = GradientBoostingClassifier(n_estimators=50, random_state=0).fit(rows, table.target[:400])
    explainer = shap.TreeExplainer(model, hardening=Hardening(clip=TopKSet(k=4, ordered=True)))
    explanation = explainer(table.data[400:500])
    np.random.seed(0)  # noqa: NPY002 - which shap scatters points with
    figure, (one, many) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    shap.plots.bar(explanation[0], max_display=6, ax=one, show=False)
    shap.plots.beeswarm(explanation, max_display=6, ax=many, show=False, plot_size=None, color_bar=False,
                        group_remaining_features=False)  # fmt: skip
    for axes, title in ((one, "bar(explanation[0])"), (many, "beeswarm(explanation)")):
        axes.set_title(f"shap.plots.{title}", fontsize=11)
        axes.set_xlabel("rank among the four reasons, 0: none of them", fontsize=10)
        axes.tick_params(labelsize=9, colors=text)
    for part in figure.findobj(mpl.text.Text):
        part.set_color(text)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw it for the light and the dark scheme of the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args(arguments).out
    for scheme, colors in SCHEMES.items():
        with mpl.rc_context(style(scheme)):
            draw(colors["text"]).savefig(out / f"shap-{scheme}.png", dpi=110, transparent=True)
            plt.close("all")


if __name__ == "__main__":
    main()
