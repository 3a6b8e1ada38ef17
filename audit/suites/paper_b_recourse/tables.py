"""The tables on recourse, made from its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...shared.run import markdown


def cells(found: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Task, condition and cell."""
    for task, result in found["results"].items():
        for title, cell in result["cells"].items():
            yield task, title, cell


def interval(attack: dict[str, Any]) -> str:
    """AUC with its interval."""
    return f"{attack['auc']:.3f} [{attack['auc_low']:.3f}, {attack['auc_high']:.3f}]"


def named(cell: dict[str, Any], attack: str, signal: str) -> dict[str, Any] | None:
    """An attack of a cell; None when it was not run."""
    return next((a for a in cell["attacks"] if (a["attack"], a["signal"]) == (attack, signal)), None)


SHOWN = {
    "distance (CFD)": ("CounterfactualDistance", "distance"),
    "CFD-LRT, global": ("CounterfactualLRT-global", "distance"),
    "CFD-LRT, local": ("CounterfactualLRT-local", "distance"),
    "signed distance": ("SignedDistanceDensity", "signed_distance"),
    "direction of one answer": ("DirectionDensity", "one_answer_margin"),
    "regressed from all scores": ("DirectionDensity", "regressed_margin"),
}
"""Column -> (attack, signal)."""


def leakage(found: dict[str, Any]) -> str:
    """AUC of the paper's attacks and of those on the direction, by task and condition."""
    rows = []
    for task, title, cell in cells(found):
        each = (named(cell, *which) for which in SHOWN.values())
        rows.append((task, title, *("" if a is None else f"{a['auc']:.3f}" for a in each)))
    return markdown(("task", "release", *SHOWN), rows, left=2)


def claims(found: dict[str, Any]) -> str:
    """Balanced accuracy of the direction of one answer that tells one, beside what the epsilon of one answer allows."""
    rows = []
    for task, title, cell in cells(found):
        attack = named(cell, "DirectionDensity", "one_answer_margin")
        if attack is None or "as published" not in title:
            continue
        b, rate = attack["balanced_accuracy"], attack["tpr"][1]
        rows.append((
            task, f"{cell['epsilon']:g}", f"{cell['ceiling']:.3f}",
            f"{b['value']:.3f} ({b['low_by_model']:.3f})", f"{cell['use']['told']:.2f}", interval(attack),
            f"{rate['tpr']:.1%}",
            f"{cell['use']['cosine_of_one_answer']:.6f}",
        ))  # fmt: skip
    header = (
        "task", "claimed epsilon", "balanced accuracy it allows", "found (at least)", "of the answers that tell one",
        "AUC", "TPR at 1 %", "cosine to w",
    )  # fmt: skip
    return markdown(header, rows)


def use(found: dict[str, Any]) -> str:
    """Accuracy, and what recourse is worth to those whom the model without privacy refuses."""
    rows = []
    for task, title, cell in cells(found):
        u = cell["use"]
        shown = ("" if u[k] is None else f"{u[k]:.2f}" for k in ("told", "valid", "distance"))
        rows.append((task, title, f"{cell['train_accuracy']:.3f}", f"{cell['test_accuracy']:.3f}", *shown))
    header = ("task", "release", "train", "test", "told", "valid", "length, times the native one")
    return markdown(header, rows, left=2)


def accuracy(found: dict[str, Any]) -> str:
    """Accuracies of Tables 1 and 2 beside ours, and those of models without privacy trained on fewer rows."""
    rows = []
    for task, reported in found["published"]["accuracy"].items():
        result = found["results"].get(task)
        if result is None:
            continue
        for theirs, ours in (("baseline", "without privacy"), ("DPM 0.5", "DPModelRecourse, epsilon 0.5"),
                             ("DPM 1", "DPModelRecourse, epsilon 1")):  # fmt: skip
            cell = result["cells"].get(ours)
            if cell is None:
                continue
            here = f"{cell['train_accuracy']:.3f}, {cell['test_accuracy']:.3f}"
            small = [f"{a:.3f}, {b:.3f}" for a, b in (result["sizes"].get(n, (0, 0)) for n in ("80", "240"))]
            small = small if theirs == "baseline" else ["", ""]
            rows.append((task, theirs, f"{reported[theirs][0]:.3f}, {reported[theirs][1]:.3f}", here, *small))
    header = ("task", "model", "reported (train, test)", "here", "80 rows", "240 rows")
    return markdown(header, rows, left=2)


def references(found: dict[str, Any]) -> str:
    """CFD-LRT on targets that were trained on nothing that is scored."""
    rows = []
    for task, result in found["results"].items():
        if null := result.get("references_on_non_members"):
            shown = (
                f"{null[k]['auc']:.3f} ± {2 * (null[k]['standard_error'] or 0):.3f}" for k in ("published", "disjoint")
            )
            rows.append((task, f"{null['columns']:,}", f"{null['size']:,}", *shown))
    header = ("task", "columns", "rows", "references on scored non-members", "on other rows")
    return markdown(header, rows)


OF_NETWORKS = {
    "CFD": ("CounterfactualDistance", "distance"),
    "CFD-LRT, global": ("CounterfactualLRT-global", "distance"),
    "signed distance, LRT": ("SignedDistanceLRT", "signed_distance"),
    "signed distance, density": ("SignedDistanceDensity", "signed_distance"),
    "score": ("LikelihoodRatio", "score"),
    "decision": ("LabelLikelihoodRatio", "label"),
}
"""Column -> (attack, signal)."""


def networks(found: dict[str, Any]) -> str:
    """Accuracy of networks, AUC of the attacks on their recourse, and the verdict; from recourse_networks.json."""
    rows = []
    for task, title, cell in cells(found):
        each = [named(cell, *which) for which in OF_NETWORKS.values()]
        rate = named(cell, *OF_NETWORKS["signed distance, LRT"])
        rows.append((
            task, title, f"{cell['train_accuracy']:.3f}", f"{cell['test_accuracy']:.3f}",
            *("" if a is None else f"{a['auc']:.3f}" for a in each),
            "" if rate is None else f"{100 * rate['tpr'][1]['tpr']:.1f} %", cell["verdict"],
        ))  # fmt: skip
    header = ("task", "networks", "train", "test", *OF_NETWORKS, "its LRT: TPR at 1 %", "verdict")
    return markdown(header, rows, left=2)


TABLES = {
    "recourse: leakage": leakage,
    "recourse: claims": claims,
    "recourse: use": use,
    "recourse: accuracy": accuracy,
    "recourse: references": references,
}
"""Name of a table -> what makes it from recourse_evidence.json."""
