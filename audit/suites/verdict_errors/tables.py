"""The tables of the page, made from verdict_errors.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .suite import STATES, worst

SETTINGS = {
    "one target": "nothing leaks, one target",
    "17 targets": "nothing leaks, 17 targets take turns",
    "shift .1": "members differ by .1 SD",
    "shift .25": "members differ by .25 SD",
    "shift 1": "members differ by 1 SD",
    "leak": "signals leak",
}
FAMILIES = {
    "shift": "Gaussian shift",
    "few": "few very vulnerable members",
    "ties": "three values, many ties",
    "cliff": "all at the threshold (hardest)",
}
SHOWN = {0.05: "leak of 5 % found", 0.1: "of 10 %", 0.2: "of 20 %"}
"""Rates of members found by the attack, whose power is shown."""


def worst_cells(found: dict[str, Any]) -> str:
    """The most wrong cell of each family of scores."""
    columns, cells, audits = found["whole"]["columns"], found["whole"]["cells"], found["audits_per_cell"]
    right, over = ("nothing", *STATES[:2]), STATES[2:]
    asked = ((right, "leak"), (over, "certified"), (right, "naive_leak"), (over, "naive_certified"))
    rows = [
        (title, *(f"{100 * worst(cells, columns, *what, family=family) / audits:.1f} %" for what in asked))
        for family, title in FAMILIES.items()
    ]
    header = ("scores", "leak proven, none there", "certified, just over", "often done: leak", "often done: certified")
    return markdown(header, rows)


def through_certify(found: dict[str, Any]) -> str:
    """Verdicts and controls of whole audits."""
    rows = []
    for name, setting in found["certify"]["settings"].items():
        failed = setting["fired"]  # the file format's name
        rates = [
            *(setting["verdicts"][v] for v in ("leak", "certified", "inconclusive")),
            setting["leak_without_controls"],
            failed["blind baseline"],
            failed["null model"],
        ]
        rows.append((f"{SETTINGS.get(name, name)} ({rates[0]['of']})", *(f"{100 * r['rate']:.0f} %" for r in rates)))
    header = ("audits through `certify`", "leak", "certified", "inconclusive", "leak, had there been no controls",
              "blind baseline fails", "null model fails")  # fmt: skip
    return markdown(header, rows)


def power(found: dict[str, Any]) -> str:
    """Probability of the right verdict."""
    curves = found["power"]
    at = {rate: curves["tpr"].index(rate) for rate in (curves["policy"]["fpr"], *SHOWN)}
    rows = []
    for examples, by_verdict in curves["by_examples"].items():
        guessing = by_verdict["certified"][at[curves["policy"]["fpr"]]]
        found_at = [by_verdict["leak"][at[rate]] for rate in SHOWN]
        rows.append((f"{int(examples):,}", *(f"{100 * p:.0f} %" for p in (guessing, *found_at))))
    return markdown(("examples", "guessing certified", *SHOWN.values()), rows, left=0)


TABLES = {
    "verdict_errors: worst": worst_cells,
    "verdict_errors: through certify": through_certify,
    "verdict_errors: power": power,
}
"""Name of a table -> what makes it."""
