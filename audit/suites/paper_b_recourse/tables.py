"""The tables on recourse, made from its results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...shared.run import RESULTS, markdown


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


SHOWN_CANDIDATES = ("0.6.3, 80 rows", "0.6.5, 80 rows", "0.6.3, 5000 rows", "0.6.5, 5000 rows", "0.6.6, 5000 rows")


def dpm(found: dict[str, Any]) -> str:
    """The 24 numbers beside what releases of diffprivlib give, and our default; from recourse_dpm.json."""
    evidence = json.loads((RESULTS / "recourse_evidence.json").read_text())["results"]
    rows = []
    for task, result in found["results"].items():
        reported = found["published"]["accuracy"].get(task)
        if reported is None:
            continue
        for epsilon in ("0.5", "1"):
            pair = reported[f"DPM {epsilon}"]
            row = [task, epsilon, f"{pair[0]:.3f}, {pair[1]:.3f}"]
            for candidate in SHOWN_CANDIDATES:
                cell = result["cells"][f"{candidate}, epsilon {epsilon}"]
                row.append(_beside(cell, pair))
            ours = evidence.get(task, {}).get("cells", {}).get(f"DPModelRecourse, epsilon {epsilon}")
            row.append("" if ours is None else f"{ours['train_accuracy']:.3f}, {ours['test_accuracy']:.3f}")
            rows.append(tuple(row))
    header = ("task", "epsilon", "reported (train, test)", *SHOWN_CANDIDATES, "DPModelRecourse, 5000 rows")
    return markdown(header, rows)


def _beside(cell: dict[str, Any], pair: list[float]) -> str:
    """Train of one model and mean test of 20, each as a range, bold where the reported number lies in it."""
    said = []
    for (low, high), value in zip((cell["train_of_one"], cell["test_of_twenty"]), pair, strict=True):
        text = f"{max(low, 0.0):.2f} to {min(high, 1.0):.2f}"
        said.append(f"**{text}**" if low <= value <= high else text)
    return ", ".join(said)


def dpm_explained(found: dict[str, Any]) -> str:
    """How many of the 24 numbers lie where each release and number of rows puts them."""
    rows = [
        (name.partition(", ")[0], name.partition(", ")[2], str(c["train"]), str(c["test"]),
         f"{c['train'] + c['test']} of {c['of']}")
        for name, c in found["explained"].items()
    ]  # fmt: skip
    return markdown(("diffprivlib", "trained on", "of 12 train", "of 12 test", "together"), rows, left=2)


def distances(found: dict[str, Any], figure: str = "figure 4") -> str:
    """Where recourse distances lie, and how far members' are from others'; from recourse_distances.json."""
    rows = []
    for title, result in found["results"].items():
        if not title.startswith(figure):
            continue
        for name, c in result["cells"].items():
            rows.append((
                title.partition(": ")[2], name, f"{c['median']['others']:.2f}", f"{c['clamped']:.0%}",
                f"{c['from_baseline']:.2f}", f"{c['members_from_others']:.2f}", f"{c['lrt_members_from_others']:.2f}",
                f"{c['by_chance']:.2f}",
            ))  # fmt: skip
    header = (
        "rows", "release", "median", "at the clamp", "from without privacy", "members from others",
        "the same by CFD-LRT", "95 % of chance",
    )  # fmt: skip
    return markdown(header, rows, left=2)


def stronger(found: dict[str, Any]) -> str:
    """The same of Figure 5: Laplace recourse and sound mechanisms at epsilon 5, 10 and 20."""
    return distances(found, "figure 5")


def adult(found: dict[str, Any]) -> str:
    """Figure 6: AUC and balanced accuracy of the paper's attacks on Adult."""
    rows = []
    for title, cell in found["results"].get("adult", {}).get("cells", {}).items():
        each = [named(cell, *which) for name, which in SHOWN.items() if "CFD" in name]
        if "Laplace recourse" in title or "DPModel" in title or title == "without privacy":
            said = ("" if a is None else f"{a['auc']:.3f}, {a['balanced_accuracy']['value']:.3f}" for a in each)
            rows.append((title, *said))
    header = ("Adult", *(f"{name}: AUC, balanced accuracy" for name in SHOWN if "CFD" in name))
    return markdown(header, rows)


TABLES = {
    "recourse: leakage": leakage,
    "recourse: claims": claims,
    "recourse: use": use,
    "recourse: accuracy": accuracy,
    "recourse: references": references,
    "recourse: adult": adult,
}
"""Name of a table -> what makes it from recourse_evidence.json."""
OF_FIGURES = {"recourse: distances": distances, "recourse: stronger": stronger}
"""Likewise from recourse_distances.json."""
OF_DPM = {"recourse: dpm": dpm, "recourse: dpm explained": dpm_explained}
"""Likewise from recourse_dpm.json."""
