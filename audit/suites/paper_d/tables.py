"""The tables of the page, made from paper_d.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown

MOVED = {"members only": "members only (released code)", "neither": "neither", "both": "both"}
NETWORKS = {"same": "the same network", "another": "another"}


def untrained(found: dict[str, Any]) -> str:
    """What the attack finds in networks that were never trained."""
    rows = []
    evaluation = found["results"]["evaluation"]
    for explainer, by_moved in evaluation["untrained_networks"]["mean_and_hull_of_intervals"].items():
        for moved, by_network in by_moved.items():
            for network, figures in by_network.items():
                value, low, high = figures["AUC"]
                rates = ([100 * v for v in figures[at]] for at in ("at 0.1%", "at 1.0%"))
                rows.append((
                    explainer, MOVED[moved], NETWORKS[network], f"{value:.4f} [{low:.4f}, {high:.4f}]",
                    *(f"{at:.2f} % [{least:.2f} %, {most:.2f} %]" for at, least, most in rates),
                ))  # fmt: skip
    header = ("explainer", "cropped and flipped", "evaluated on", "AUC", "TPR at .1 %", "TPR at 1 %")
    return markdown(header, rows, left=3)


def best_of_seeds(found: dict[str, Any]) -> str:
    """What the best of 20 seeds shows where nothing leaks."""
    rows = [
        (f"{int(side):,}", scores, *(f"{100 * figures[k]:.2f} %" for k in ("best", "best, 97.5 %", "fresh")))
        for side, kinds in found["results"]["evaluation"]["no_leak_tpr_at_0.1%"].items()
        for scores, figures in kinds.items()
    ]
    header = ("examples a side", "scores", "best seed, mean", "best seed, 97.5 %", "the chosen seed on fresh examples")
    return markdown(header, rows, left=2)


TABLES = {"paper_d: untrained": untrained, "paper_d: best of seeds": best_of_seeds}
"""Name of a table -> what makes it."""
