"""The tables of the page, made from dp_attacks.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...shared.run import markdown

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
WHOLE = {
    "label alone": "LabelPatience on label",
    "ratio of maps": "LikelihoodRatio on attributions",
    "of their signs": "LikelihoodRatio on attributions:sign",
    "`Learned`": "Learned on attributions",
    "all together": "Stacked on explanation+label",
}
"""The same of the attacks on whole maps."""
TRAINED = {"all": "all of it", "last-block": "the last block", "lora": "adapters (LoRA) and head"}


def _title(task: str) -> str:
    """A task's data, as tables name it."""
    return next(NAMES[word] for word in task.split() if word in NAMES)


def _budget(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _both(budget: dict[str, Any]) -> str:
    """Epsilon under both adjacencies."""
    swap = budget["substitute"]
    return "none" if swap is None else f"{budget['add_remove']:.2f} / {swap:.2f}"


def _percent(found: dict[str, float]) -> str:
    """A rate with its interval, which ends at 0."""
    return f"{found['value']:.1%} [{max(found['low'], 0):.1%}, {found['high']:.1%}]"


def _area(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} ± {found['high'] - found['value']:.3f}"


def _rows(found: dict[str, Any], of: str, *, published: bool = False) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(task, explainer, name of the budget, result of the task) of all cells."""
    for task, result in found["results"].items():
        if task.startswith(of):
            for cell in result["cells"]:
                explainer, _, name = cell.partition(" ")
                if result["budgets"][name]["published"] == published:
                    yield task, explainer, name, result


def _leak(found: dict[str, Any], of: str, title: Callable[[str], str]) -> str:
    rows = []
    for task, explainer, name, result in _rows(found, of):
        budget, right = result["budgets"][name], result["accuracy"][name]
        at = result["cells"][f"{explainer} {name}"]["means"]
        limits = budget["allowed"]
        free = budget["add_remove"] is None
        rows.append((
            f"{title(task)}, {explainer}", _both(budget),
            f"{right['members']['mean']:.0%} / {right['non_members']['mean']:.0%}",
            *(f"{at[a]['auc']['value']:.3f}" for a in SHOWN.values()),
            _percent(at[f"{LRT}l1"]["tpr at 0.01"]),
            "all" if free else f"{limits['by epsilon']['0.01']:.1%}",
            "all" if free else f"{limits['by the curve']['0.01']:.1%}", f"{limits['auc']:.3f}",
        ))  # fmt: skip
    header = ("data, explainer", "epsilon: added or removed / substituted", "accuracy on members / others",
              *(f"{column}, AUC" for column in SHOWN), "L1-LRT, TPR at 1 %", "most that epsilon allows",
              "most by the curve", "largest AUC")  # fmt: skip
    return markdown(header, rows)


def leakage(found: dict[str, Any]) -> str:
    """Accuracy beside leakage of the heads, and what epsilon guarantees."""
    return _leak(found, "heads", _title)


def networks(found: dict[str, Any]) -> str:
    """The same of networks."""
    if not any(task.startswith("network") for task in found["results"]):
        return "Not measured yet."
    return _leak(found, "network", lambda task: f"{_title(task)}, {TRAINED[task.split()[-1]]}")


def whole_maps(found: dict[str, Any]) -> str:
    """Attacks on whole maps, beside the label alone."""
    rows = []
    for task, explainer, name, result in _rows(found, ""):
        if not (at := result["cells"][f"{explainer} {name}"].get("whole")):
            continue
        what = f", {TRAINED[task.split()[-1]]}" if task.startswith("network") else ""
        added = at.get("added to the label")
        rows.append((
            f"{_title(task)}{what}, {explainer}", _both(result["budgets"][name]),
            *(_area(at[a]["auc"]) if a in at else "not run" for a in WHOLE.values()),
            "not run" if added is None else _area(added["auc"]),
            _percent(at["Stacked on explanation+label"]["tpr at 0.01"]) if added else "not run",
        ))  # fmt: skip
    header = ("data, explainer", "epsilon", *(f"{column}, AUC" for column in WHOLE), "added to the label",
              "all together, TPR at 1 %")  # fmt: skip
    return markdown(header, rows)


def published(found: dict[str, Any]) -> str:
    """What a claimed epsilon is worth when q is computed as the paper's code does, beside the right one."""
    rows = []
    for task, explainer, name, result in _rows(found, "heads", published=True):
        if explainer != "InputXGradient":
            continue
        claimed = name.partition(" ")[0]
        for which in (claimed, name):
            budget, at = result["budgets"][which], result["cells"][f"{explainer} {which}"]["means"]
            rows.append((
                f"{_title(task)}, {'as published' if budget['published'] else 'right'}",
                f"{budget['nominal']:g} / {budget['claimed_substitute']:.2f}", _both(budget), f"{budget['sigma']:.2f}",
                f"{result['accuracy'][which]['non_members']['mean']:.1%}",
                *(_area(at[a]["auc"]) for a in (f"{LRT}l1", "LikelihoodRatio on loss")),
                _percent(at["LikelihoodRatio on loss"]["tpr at 0.01"]),
                f"{budget['allowed']['by the curve']['0.01']:.1%}",
            ))  # fmt: skip
    header = ("data, accounting", "claimed: added or removed / substituted", "true", "noise multiplier",
              "accuracy on others",
              "L1-LRT, AUC", "loss, AUC", "loss, TPR at 1 %", "most by the true curve")  # fmt: skip
    return markdown(header, rows)


def utility(found: dict[str, Any]) -> str:
    """Accuracy and faithfulness beside the leak."""
    rows = []
    for task, result in found["results"].items():
        what = f", {TRAINED[task.split()[-1]]}" if task.startswith("network") else ""
        for name, said in result["faithfulness"].items():
            at = result["cells"][f"InputXGradient {name}"]["means"]
            drops = [said[f"{e} deletion"] - said["random deletion"] for e in ("InputXGradient", "IG")]
            rows.append((
                f"{_title(task)}{what}", _both(result["budgets"][name]),
                f"{result['accuracy'][name]['non_members']['mean']:.1%}", f"{said['confidence']:.2f}",
                *(f"{drop:.3f} ({drop / said['confidence']:.0%})" for drop in drops),
                f"{at[f'{LRT}l1']['auc']['value']:.3f}",
            ))  # fmt: skip
    header = ("data", "epsilon", "accuracy on others", "predicted probability",
              "InputXGradient: deletion above random (of the probability)", "IG", "L1-LRT, AUC")  # fmt: skip
    return markdown(header, rows)


def exchanged(found: dict[str, Any]) -> str:
    """The paper's low-rate figure, read as its code reads it and the right way round."""
    rows = []
    for task, explainer, name, result in _rows(found, "heads"):
        if explainer == "InputXGradient":
            at = result["cells"][f"{explainer} {name}"]["means"][f"{LRT}l1"]
            rows.append((
                _title(task), _both(result["budgets"][name]), _percent(at["tpr at 0.01"]),
                _percent(at["non-members found at 0.01"]),
            ))  # fmt: skip
    header = ("InputXGradient, L1-LRT", "epsilon", "members found at 1 %", "non-members found: what the paper prints")
    return markdown(header, rows)


def accounting(found: dict[str, Any]) -> str:
    """What the published epsilons are worth."""
    rows = [
        (
            f"{r['data']}, {r['epochs']} epochs",
            f"{r['claimed']:g} / {r['claimed_substitute']:.2f}",
            f"{r['sigma']:.3f}",
            f"{r['add_remove']:.2f} / {r['substitute']:.2f}",
        )
        for r in found["accounting_of_the_paper"]
        if r["sigma_by"] == "Opacus, PRV"
    ]
    return markdown(("run", "claimed: added or removed / substituted", "noise multiplier", "true"), rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "dp_attacks: leakage": leakage,
    "dp_attacks: whole maps": whole_maps,
    "dp_attacks: networks": networks,
    "dp_attacks: utility": utility,
    "dp_attacks: published": published,
    "dp_attacks: exchanged": exchanged,
    "dp_attacks: accounting": accounting,
}
