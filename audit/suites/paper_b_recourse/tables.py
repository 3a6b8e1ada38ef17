"""The tables on recourse, made from recourse_evidence.json and recourse_networks.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...shared.tables import Column, percent, table

PAPERS = "CounterfactualDistance", "distance"
SHOWN = {
    "distance (CFD)": PAPERS,
    "CFD-LRT, global": ("CounterfactualLRT-global", "distance"),
    "CFD-LRT, local": ("CounterfactualLRT-local", "distance"),
    "signed distance": ("SignedDistanceDensity", "signed_distance"),
    "direction of one answer": ("DirectionDensity", "one_answer_margin"),
    "regressed from all scores": ("DirectionDensity", "regressed_margin"),
}
"""Column -> (attack, signal)."""
OF_NETWORKS = {
    "CFD": PAPERS,
    "CFD-LRT, global": ("CounterfactualLRT-global", "distance"),
    "signed distance, LRT": ("SignedDistanceLRT", "signed_distance"),
    "signed distance, density": ("SignedDistanceDensity", "signed_distance"),
    "score": ("LikelihoodRatio", "score"),
    "decision": ("LabelLikelihoodRatio", "label"),
}
"""The same of networks."""
TASK: tuple[Column, ...] = (("task", "task"), ("release", "title"))
RIGHT: tuple[Column, ...] = (("train", "train_accuracy", ".3f"), ("test", "test_accuracy", ".3f"))


def cells(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every cell, with its task and its condition ("title")."""
    for task, result in found["results"].items():
        for title, cell in result["cells"].items():
            yield {**cell, "task": task, "title": title}


def named(cell: dict[str, Any], attack: str, signal: str) -> dict[str, Any] | None:
    """An attack of a cell; None when it was not run."""
    return next((a for a in cell["attacks"] if (a["attack"], a["signal"]) == (attack, signal)), None)


def _aucs(shown: dict[str, tuple[str, str]]) -> list[Column]:
    """A column for each attack."""

    def auc(which: tuple[str, str]) -> Callable[[dict[str, Any]], Any]:
        return lambda cell: (named(cell, *which) or {}).get("auc")

    return [(title, auc(which), ".3f") for title, which in shown.items()]


def leakage(found: dict[str, Any]) -> str:
    """AUC of the paper's attacks and of those on the direction, by task and condition."""
    return table(cells(found), *TASK, *_aucs(SHOWN), left=2)


def claims(found: dict[str, Any]) -> str:
    """Balanced accuracy of the direction of one answer that tells one, beside what the epsilon of one answer allows."""
    direction = SHOWN["direction of one answer"]
    rows = [
        {**cell, "attack": attack}
        for cell in cells(found)
        if "as published" in cell["title"] and (attack := named(cell, *direction)) is not None
    ]
    return table(
        rows, ("task", "task"), ("claimed epsilon", "epsilon", "g"), ("balanced accuracy it allows", "ceiling", ".3f"),
        ("found (at least)", "attack/balanced_accuracy", lambda b: f"{b['value']:.3f} ({b['low_by_model']:.3f})"),
        ("of the answers that tell one", "use/told", ".2f"),
        ("AUC", "attack", lambda a: f"{a['auc']:.3f} [{a['auc_low']:.3f}, {a['auc_high']:.3f}]"),
        ("TPR at 1 %", "attack/tpr/1/tpr", ".1%"), ("cosine to w", "use/cosine_of_one_answer", ".6f"),
    )  # fmt: skip


def use(found: dict[str, Any]) -> str:
    """Accuracy, and what recourse is worth to those whom the model without privacy refuses."""
    worth = [(name, f"use/{name}", ".2f") for name in ("told", "valid")]
    length = ("length, times the native one", "use/distance", ".2f")
    return table(cells(found), *TASK, *RIGHT, *worth, length, left=2)


def accuracy(found: dict[str, Any]) -> str:
    """Accuracies of Tables 1 and 2 beside ours, and those of models without privacy trained on fewer rows."""
    ours = {"baseline": "without privacy", "DPM 0.5": "DPModelRecourse, epsilon 0.5",
            "DPM 1": "DPModelRecourse, epsilon 1"}  # fmt: skip
    rows = []
    for task, reported in found["published"]["accuracy"].items():
        result = found["results"].get(task, {"cells": {}})
        for theirs, title in ours.items():
            if cell := result["cells"].get(title):
                here = cell["train_accuracy"], cell["test_accuracy"]
                small = [result["sizes"].get(n, (0, 0)) for n in ("80", "240")] if theirs == "baseline" else [None] * 2
                rows.append((task, theirs, reported[theirs], here, *small))

    def pair(values: Any) -> str:
        return f"{values[0]:.3f}, {values[1]:.3f}"

    header = ("reported (train, test)", "here", "80 rows", "240 rows")
    pairs = ((title, str(i), pair) for i, title in enumerate(header, 2))
    return table(rows, ("task", "0"), ("model", "1"), *pairs, left=2)


def references(found: dict[str, Any]) -> str:
    """CFD-LRT on targets that were trained on nothing that is scored."""
    rows = [{**null, "task": task} for task, result in found["results"].items()
            if (null := result.get("references_on_non_members"))]  # fmt: skip

    def auc(of: dict[str, Any]) -> str:
        return f"{of['auc']:.3f} ± {2 * (of['standard_error'] or 0):.3f}"

    return table(
        rows, ("task", "task"), ("columns", "columns", ","), ("rows", "size", ","),
        ("references on scored non-members", "published", auc), ("on other rows", "disjoint", auc),
    )  # fmt: skip


def networks(found: dict[str, Any]) -> str:
    """Accuracy of networks, AUC of the attacks on their recourse, and the verdict."""

    def rate(cell: dict[str, Any]) -> Any:
        found_by = named(cell, *OF_NETWORKS["signed distance, LRT"])
        return found_by and found_by["tpr"][1]["tpr"]

    names: tuple[Column, ...] = (("task", "task"), ("networks", "title"))
    last: tuple[Column, ...] = (("its LRT: TPR at 1 %", rate, percent()), ("verdict", "verdict"))
    return table(cells(found), *names, *RIGHT, *_aucs(OF_NETWORKS), *last, left=2)


def adult(found: dict[str, Any]) -> str:
    """Figure 6: AUC and balanced accuracy of the paper's attacks on Adult."""
    shown = ("Laplace recourse", "DPModel", "without privacy")
    rows = [c for c in cells(found) if c["task"] == "adult" and any(name in c["title"] for name in shown)]

    def both(which: tuple[str, str]) -> Callable[[dict[str, Any]], Any]:
        return lambda cell: named(cell, *which)

    columns = [(f"{name}: AUC, balanced accuracy", both(which),
                lambda a: f"{a['auc']:.3f}, {a['balanced_accuracy']['value']:.3f}")
               for name, which in SHOWN.items() if "CFD" in name]  # fmt: skip
    return table(rows, ("Adult", "title"), *columns)


TABLES = {
    "recourse: leakage": leakage,
    "recourse: claims": claims,
    "recourse: use": use,
    "recourse: accuracy": accuracy,
    "recourse: references": references,
    "recourse: adult": adult,
}
"""Name of a table -> what makes it from recourse_evidence.json."""
