"""The tables of the page, made from paper_a.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...shared.tables import Column, interval, table

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


NAME: Column = ("attack", "name")


def _figures(where: str, titles: Sequence[str], form: str = ".4f") -> list[Column]:
    """A column for each of several figures."""
    return [(title, f"{where}/{i}", form) for i, title in enumerate(titles)]


def published(found: dict[str, Any]) -> str:
    """The paper's figures, and what becomes of them."""
    means, rows = found["figures"]["means"], []
    for signal, (where, printed) in PRINTED.items():
        rows.append((f"{NAMES[signal]}: {where}", *(f"{v:.3f}" for v in printed)))
        rows += [
            (f"{NAMES[signal]}: {what}", *(f"{v:.4f}" for v in means[signal][name])) for name, what in READ.items()
        ]
    titles = ("mean over 33 targets", "TPR at .1 %", "TPR at 1 %", "AUC")
    return table(rows, *((title, str(i)) for i, title in enumerate(titles)))


def alike(found: dict[str, Any]) -> str:
    """Every attack read the same way round, and the other way round."""
    means, others = found["figures"]["means"], found["figures"]["non_members_found_means"]
    rows = [
        {"name": f"{NAMES[signal]}: {what}", "members": means[signal][name], "others": others[signal][name]}
        for signal in NAMES
        for name, what in ATTACKS.items()
        if name in means[signal]
    ]
    others_found = _figures("others", ("non-members at .1 %", "1 %"))
    return table(rows, NAME, *_figures("members", ("members at .1 %", "1 %", "AUC")), *others_found)


def once(found: dict[str, Any]) -> str:
    """Each example once, with intervals."""
    rows = [
        {**attacks[name], "name": f"{NAMES[signal]}: {what}"}
        for signal, attacks in found["figures"]["each_example_once"].items()
        for name, what in ATTACKS.items()
        if name in attacks and not name.startswith("Threshold")
    ]
    rates = {"TPR at .1 %": "at 0.1%", "TPR at 1 %": "at 1.0%", "AUC": "AUC"}
    return table(
        rows, NAME, *((title, rate, interval(".4f")) for title, rate in rates.items()),
        (".1 %, other draws", "at 0.1%, other draws", lambda ends: f"{ends[0]:.4f} to {ends[1]:.4f}"),
    )  # fmt: skip


def boosted(found: dict[str, Any]) -> str:
    """Trees on reference features, beside what the likelihood ratios find on all targets."""
    joint = {name: found["figures"]["means"][name]["JointLikelihoodRatio()"] for name in ("loss", "l1 + loss")}
    rows = [{"name": f"{NAMES[name]}: `JointLikelihoodRatio()`, all targets", "of": v} for name, v in joint.items()]
    rows += [{"name": f"{NAMES[name]}: `Boosted()`, targets 16 to 32", "of": v}
             for name, v in found["boosted"]["means"].items()]  # fmt: skip
    return table(rows, ("mean over targets", "name"), *_figures("of", ("TPR at .1 %", "TPR at 1 %", "AUC")))


TABLES = {
    "paper_a: published": published,
    "paper_a: alike": alike,
    "paper_a: once": once,
    "paper_a: boosted": boosted,
}
"""Name of a table -> what makes it."""
