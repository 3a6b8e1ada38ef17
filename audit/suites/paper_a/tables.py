"""The tables of the page, made from paper_a.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown

PRINTED = {"l1": ("printed in the paper's Tables 2 and 3", (0.093, 0.156, 0.639)),
           "loss": ("printed in the paper's Table 3", (0.054, 0.095, 0.570))}  # fmt: skip
READ = {
    "published": "its code, both mistakes applied",
    "swapped_axes_only": "axes swapped only",
    "corrected": "**the same scores, read right**",
}
ATTACKS = {
    "Threshold()": "`Threshold()`",
    "Threshold(member_when_low=False)": "`Threshold(member_when_low=False)`",
    "corrected": "published attack",
    "RMIA()": "`RMIA()`",
    "LikelihoodRatio()": "`LikelihoodRatio()`",
    "JointLikelihoodRatio()": "`JointLikelihoodRatio()`",
}
NAMES = {"l1": "L1", "loss": "loss", "l1 + loss": "L1 and loss"}


def published(found: dict[str, Any]) -> str:
    """The paper's figures, and what becomes of them."""
    means, rows = found["figures"]["means"], []
    for signal, (where, printed) in PRINTED.items():
        rows.append((f"{NAMES[signal]}: {where}", *(f"{v:.3f}" for v in printed)))
        rows += [(f"{NAMES[signal]}: {what}", *_four(means[signal][name])) for name, what in READ.items()]
    return markdown(("mean over 33 targets", "TPR at .1 %", "TPR at 1 %", "AUC"), rows)


def alike(found: dict[str, Any]) -> str:
    """Every attack read the same way round, and the other way round."""
    means, others = found["figures"]["means"], found["figures"]["non_members_found_means"]
    rows = [
        (f"{NAMES[signal]}: {what}", *_four(means[signal][name]), *_four(others[signal][name][:2]))
        for signal in NAMES
        for name, what in ATTACKS.items()
        if name in means[signal]
    ]
    return markdown(("attack", "members at .1 %", "1 %", "AUC", "non-members at .1 %", "1 %"), rows)


def once(found: dict[str, Any]) -> str:
    """Each example once, with intervals."""
    rows = []
    for signal, attacks in found["figures"]["each_example_once"].items():
        for name, what in ATTACKS.items():
            if name in attacks and not name.startswith("Threshold"):
                f = attacks[name]
                low, high = f["at 0.1%, other draws"]
                rows.append((
                    f"{NAMES[signal]}: {what}", *(_interval(f[k]) for k in ("at 0.1%", "at 1.0%", "AUC")),
                    f"{low:.4f} to {high:.4f}",
                ))  # fmt: skip
    return markdown(("attack", "TPR at .1 %", "TPR at 1 %", "AUC", ".1 %, other draws"), rows)


def _four(values: list[float]) -> list[str]:
    return [f"{v:.4f}" for v in values]


def _interval(figure: list[float]) -> str:
    value, low, high = figure
    return f"{value:.4f} [{low:.4f}, {high:.4f}]"


def boosted(found: dict[str, Any]) -> str:
    """Trees on reference features, beside what the likelihood ratios find on all targets."""
    means = found["figures"]["means"]
    rows = [("loss: `JointLikelihoodRatio()`, all targets", *_four(means["loss"]["JointLikelihoodRatio()"]))]
    rows.append(
        ("L1 and loss: `JointLikelihoodRatio()`, all targets", *_four(means["l1 + loss"]["JointLikelihoodRatio()"]))
    )
    rows += [
        (f"{NAMES[name]}: `Boosted()`, targets 16 to 32", *_four(v)) for name, v in found["boosted"]["means"].items()
    ]
    return markdown(("mean over targets", "TPR at .1 %", "TPR at 1 %", "AUC"), rows)


TABLES = {
    "paper_a: published": published,
    "paper_a: alike": alike,
    "paper_a: once": once,
    "paper_a: boosted": boosted,
}
"""Name of a table -> what makes it."""
