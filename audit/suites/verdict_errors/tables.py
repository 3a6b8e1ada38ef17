"""The tables of the page, made from verdict_errors.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .suite import STATES, worst

SETTINGS = {
    "random": "random maps",
    "label": "maps that repeat the label",
    "top": "sets of the top features",
    "shift .25": "members differ by .25 SD",
    "shift 1": "members differ by 1 SD",
    "adds 0.022": "maps tell 2.2 % of the members (2 % are tolerated)",
    "adds 0.06": "maps tell 6 %",
    "adds 0.1": "maps tell 10 %",
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
    """Verdicts of whole audits with one look, by default, and under 0.2.0's settings; controls by default."""
    made, rows = found["certify"], []
    for name, setting in made["settings"].items():
        cells = []
        for which in ("once", "settings", "before"):
            of = made[which].get(name, {}).get("verdicts")
            cells.append(" / ".join(str(of[v]["count"]) for v in VERDICTS) + f" of {of['leak']['of']}" if of else "")
        failed = (f"{100 * setting['failed'][c]['rate']:.0f} %" for c in ("blind baseline", "recipe"))
        looks = " / ".join(map(str, setting["looks"]))
        rows.append((SETTINGS[name], *cells, looks, f"{setting['explanations']:,}", *failed))
    header = ("leak / certified / inconclusive", "one look", "by default", "0.2.0's settings",
              "ended at look 1 / 2 / 3", "explanations an audit", "blind baseline fails", "recipe fails")  # fmt: skip
    return markdown(header, rows)


def looks(found: dict[str, Any]) -> str:
    """Wrong verdicts of audits that look again, with and without sharing the risk."""
    n, rows = found["looks"]["audits"], []
    for c in cells_of(found["looks"]):
        over = c["truth"] == "at"
        rates = (c["leak"], c["leak_unshared"], *((c["certified"], c["certified_unshared"]) if over else (None, None)))
        truth = "exactly what is tolerated" if over else "nothing"
        head = f"{100 * c['fpr']:g} %", f"{100 * c['base_tpr']:g} %", truth
        rows.append((*head, *("" if r is None else f"{100 * r / n:.1f} %" for r in rates), f"{c['looks'] / n:.1f}"))
    header = ("false-positive rate", "labels find", "explanations add", "leak proven", "leak, risk not shared",
              "certified", "certified, risk not shared", "looks")  # fmt: skip
    return markdown(header, rows, left=3)


VERDICTS = ("leak", "certified", "inconclusive")


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


PAIR_FAMILIES = {
    "shift": "normal scores",
    "few": "few very vulnerable members",
    "ties": "a baseline of ten values",
    "jump outside": "5 % of the members just outside of the attack's threshold",
    "jump inside": "3 % just inside of the baseline's",
    "two jumps": "30 % just outside of the attack's and 3 % inside of the baseline's",
}


def cells_of(section: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with their columns' names."""
    return [dict(zip(section["columns"], row, strict=True)) for row in section["cells"]]


def pair_errors(found: dict[str, Any]) -> str:
    """Bounds of the excess that miss it, over all cells of a family and in the worst one."""
    cells, n, rows = cells_of(found["pairs"]), found["pairs"]["audits"], []
    for family, title in PAIR_FAMILIES.items():
        of = [c for c in cells if c["family"] == family]
        misses = [c[side] for c in of for side in ("below_low", "above_high")]
        small = [c[side] for c in of for side in ("below_low_small", "above_high_small")]
        rates = [sum(x) / len(x) / n for x in (misses, small)]
        rows.append((title, f"{100 * rates[0]:.1f} %", f"{100 * max(misses) / n:.1f} %", f"{100 * rates[1]:.2f} %"))
    header = ("scores", "bounds at 5 % that miss", "in the worst cell", "at 0.1 %")
    return markdown(header, rows)


def pair_widths(found: dict[str, Any]) -> str:
    """Half of the interval where the baseline finds 10 % and the attack adds nothing."""
    rows = []
    for c in cells_of(found["pairs"]):
        if c["family"] == "shift" and c["truth"] == "nothing" and c["base_tpr"] == 0.1:
            head = f"{c['members']:,} + {c['non_members']:,}", f"{100 * c['fpr']:g} %", f"{100 * c['discordant']:.1f} %"
            rows.append((*head, f"{100 * c['half_width']:.1f}"))
    header = ("members + non-members", "false-positive rate", "discordant", "half-width, points")
    return markdown(header, rows, left=1)


def group_errors(found: dict[str, Any]) -> str:
    """Wrong verdicts in the worst cell of each size of groups."""
    cells, n, rows = cells_of(found["groups"]), found["groups"]["audits"], []
    for size in dict.fromkeys(c["size"] for c in cells):
        rates = []
        for counted in ("groups", "examples"):
            for claim in ("whole", "excess"):
                for truth in ("at", "over"):
                    key = {"size": size, "counted": counted, "claim": claim, "truth": truth}
                    of = [c["wrong"] for c in cells if all(c[k] == v for k, v in key.items())]
                    rates.append(f"{100 * max(of) / n:.1f} %")
        rows.append((size, *(f"{rates[i]}, {rates[i + 1]}" for i in range(0, 8, 2))))
    header = ("examples in a group", "whole", "excess", "whole, groups ignored", "excess, groups ignored")
    return markdown(header, rows, left=1)


TABLES = {
    "verdict_errors: pair errors": pair_errors,
    "verdict_errors: pair widths": pair_widths,
    "verdict_errors: groups": group_errors,
    "verdict_errors: worst": worst_cells,
    "verdict_errors: looks": looks,
    "verdict_errors: through certify": through_certify,
    "verdict_errors: power": power,
}
"""Name of a table -> what makes it."""
