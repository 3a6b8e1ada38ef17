"""The tables of the page, made from dp_attacks.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...shared.tables import Column, percent, table

NAMES = {"cifar10": "CIFAR-10", "gtsrb": "GTSRB", "tinyimagenet": "Tiny ImageNet, 100 classes"}
LRT = "LRT (Huang et al.) on "
SHOWN = {
    "VAR-LRT": f"{LRT}variance",
    "L1-LRT": f"{LRT}l1",
    "L2-LRT": f"{LRT}l2",
    "ours, five numbers": "JointLikelihoodRatio on l1+mean+positive+sparsity+peak",
    "label alone": "LabelLikelihoodRatio on label",
    "loss": "LikelihoodRatio on loss",
    "L1 and loss": "JointLikelihoodRatio on l1+loss",
}
"""Column -> attack whose AUC is shown, averaged over all targets."""
OTHERS = "right/non_members/mean"


def _rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every cell with its data, explainer, budget and accuracy."""
    for task, result in found["results"].items():
        for name, cell in result["cells"].items():
            explainer, _, budget = name.partition(" ")
            yield {**cell, "data": NAMES[task.removeprefix("heads ")], "explainer": explainer,
                   "budget": result["budgets"][budget], "right": result["accuracy"][budget],
                   "faithfulness": result["faithfulness"].get(budget)}  # fmt: skip


def _both(budget: dict[str, Any]) -> str:
    """Epsilon under both adjacencies."""
    swap = budget["substitute"]
    return "none" if swap is None else f"{budget['add_remove']:.2f} / {swap:.2f}"


def _rate(found: dict[str, float]) -> str:
    """With its interval, which ends at 0."""
    return f"{found['value']:.1%} [{max(found['low'], 0):.1%}, {found['high']:.1%}]"


def leakage(found: dict[str, Any]) -> str:
    """Accuracy beside leakage of the heads, and what epsilon guarantees."""

    def most(by: str) -> Column:
        title = "most that epsilon allows" if by == "by epsilon" else "most by the curve"
        free = "add_remove"
        return title, "budget", lambda b: "all" if b[free] is None else f"{b['allowed'][by]['0.01']:.1%}"

    return table(
        _rows(found), ("data, explainer", lambda r: f"{r['data']}, {r['explainer']}"),
        ("epsilon: added or removed / substituted", "budget", _both),
        ("accuracy on members / others", "right",
         lambda r: f"{r['members']['mean']:.0%} / {r['non_members']['mean']:.0%}"),
        *((f"{column}, AUC", f"means/{attack}/auc/value", ".3f") for column, attack in SHOWN.items()),
        ("L1-LRT, TPR at 1 %", f"means/{LRT}l1/tpr at 0.01", _rate), most("by epsilon"), most("by the curve"),
        ("largest AUC", "budget/allowed/auc", ".3f"),
    )  # fmt: skip


def utility(found: dict[str, Any]) -> str:
    """Accuracy and faithfulness beside the leak."""

    def deletion(title: str, explainer: str) -> Column:
        def shown(said: dict[str, float]) -> str:
            drop = said[f"{explainer} deletion"] - said["random deletion"]
            return f"{drop:.3f} ({drop / said['confidence']:.0%})"

        return title, "faithfulness", shown

    return table(
        [r for r in _rows(found) if r["explainer"] == "InputXGradient" and r["faithfulness"]], ("data", "data"),
        ("epsilon", "budget", _both), ("accuracy on others", OTHERS, percent(space="")),
        ("predicted probability", "faithfulness/confidence", ".2f"),
        deletion("InputXGradient: deletion above random (of the probability)", "InputXGradient"),
        deletion("IG", "IG"), ("L1-LRT, AUC", f"means/{LRT}l1/auc/value", ".3f"),
    )  # fmt: skip


TABLES = {"dp_attacks: leakage": leakage, "dp_attacks: utility": utility}
