"""The tables of the page, made from verdict_errors.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...shared.tables import Column, percent, table
from .suite import STATES

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


PAIR_FAMILIES = {
    "shift": "normal scores",
    "few": "few very vulnerable members",
    "ties": "a baseline of ten values",
    "jump outside": "5 % of the members just outside of the attack's threshold",
    "jump inside": "3 % just inside of the baseline's",
    "two jumps": "30 % just outside of the attack's and 3 % inside of the baseline's",
}


OF_100 = "{:.1f} %".format
VERDICTS = ("leak", "certified", "inconclusive")


def cells_of(section: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows with their columns' names."""
    return [dict(zip(section["columns"], row, strict=True)) for row in section["cells"]]


def worst_cells(found: dict[str, Any]) -> str:
    """The most wrong cell of each family of scores."""
    cells, right, over = cells_of(found["whole"]), ("nothing", *STATES[:2]), STATES[2:]

    def worst(title: str, truths: Sequence[str], what: str) -> Column:
        def rate(family: str) -> float:
            return max(c[what] for c in cells if c["family"] == family and c["truth"] in truths)

        return title, lambda family: 100 * rate(family) / found["audits_per_cell"], OF_100

    return table(
        FAMILIES, ("scores", FAMILIES.__getitem__), worst("leak proven, none there", right, "leak"),
        worst("certified, just over", over, "certified"), worst("often done: leak", right, "naive_leak"),
        worst("often done: certified", over, "naive_certified"),
    )  # fmt: skip


def through_certify(found: dict[str, Any]) -> str:
    """Verdicts of whole audits with one look, by default, and under 0.2.0's settings; controls by default."""
    made = found["certify"]
    rows = [{**setting, "name": name, "all": {which: made[which].get(name) for which in ("once", "settings", "before")}}
            for name, setting in made["settings"].items()]  # fmt: skip

    def verdicts(of: dict[str, Any]) -> str:
        return " / ".join(str(of[v]["count"]) for v in VERDICTS) + f" of {of['leak']['of']}"

    return table(
        rows, ("leak / certified / inconclusive", lambda r: SETTINGS[r["name"]]),
        ("one look", "all/once/verdicts", verdicts), ("by default", "all/settings/verdicts", verdicts),
        ("0.2.0's settings", "all/before/verdicts", verdicts),
        ("ended at look 1 / 2 / 3", "looks", lambda looks: " / ".join(map(str, looks))),
        ("explanations an audit", "explanations", ","),
        *((f"{name} fails", f"failed/{name}/rate", percent(0)) for name in ("blind baseline", "recipe")),
    )  # fmt: skip


def looks(found: dict[str, Any]) -> str:
    """Wrong verdicts of audits that look again, with and without sharing the risk."""
    n = found["looks"]["audits"]

    def rate(title: str, what: str, always: bool = True) -> Column:
        return title, lambda c: 100 * c[what] / n if always or c["truth"] == "at" else None, OF_100

    return table(
        cells_of(found["looks"]), ("false-positive rate", "fpr", lambda f: f"{100 * f:g} %"),
        ("labels find", "base_tpr", lambda f: f"{100 * f:g} %"),
        ("explanations add", "truth", lambda t: "exactly what is tolerated" if t == "at" else "nothing"),
        rate("leak proven", "leak"), rate("leak, risk not shared", "leak_unshared"),
        rate("certified", "certified", False), rate("certified, risk not shared", "certified_unshared", False),
        ("looks", lambda c: c["looks"] / n, ".1f"), left=3,
    )  # fmt: skip


def power(found: dict[str, Any]) -> str:
    """Probability of the right verdict."""
    curves = found["power"]
    at = {rate: curves["tpr"].index(rate) for rate in (curves["policy"]["fpr"], *SHOWN)}
    rows = [{**by, "examples": int(examples)} for examples, by in curves["by_examples"].items()]
    guessing: Column = ("guessing certified", f"certified/{at[curves['policy']['fpr']]}", percent(0))
    leak = ((title, f"leak/{at[rate]}", percent(0)) for rate, title in SHOWN.items())
    return table(rows, ("examples", "examples", ","), guessing, *leak, left=0)


def pair_errors(found: dict[str, Any]) -> str:
    """Bounds of the excess that miss it, over all cells of a family and in the worst one."""
    cells, n = cells_of(found["pairs"]), found["pairs"]["audits"]

    def rates(family: str, small: str = "") -> list[float]:
        return [c[side + small] / n for c in cells if c["family"] == family for side in ("below_low", "above_high")]

    def mean(rates: list[float]) -> float:
        return sum(rates) / len(rates)

    return table(
        PAIR_FAMILIES, ("scores", PAIR_FAMILIES.__getitem__),
        ("bounds at 5 % that miss", lambda f: mean(rates(f)), percent()),
        ("in the worst cell", lambda f: max(rates(f)), percent()),
        ("at 0.1 %", lambda f: mean(rates(f, "_small")), percent(2)),
    )  # fmt: skip


def pair_widths(found: dict[str, Any]) -> str:
    """Half of the interval where the baseline finds 10 % and the attack adds nothing."""
    rows = [c for c in cells_of(found["pairs"])
            if (c["family"], c["truth"], c["base_tpr"]) == ("shift", "nothing", 0.1)]  # fmt: skip
    return table(
        rows, ("members + non-members", lambda c: f"{c['members']:,} + {c['non_members']:,}"),
        ("false-positive rate", "fpr", lambda f: f"{100 * f:g} %"), ("discordant", "discordant", percent()),
        ("half-width, points", lambda c: 100 * c["half_width"], ".1f"),
    )  # fmt: skip


def group_errors(found: dict[str, Any]) -> str:
    """Wrong verdicts in the worst cell of each size of groups."""
    cells, n = cells_of(found["groups"]), found["groups"]["audits"]

    def worst(title: str, counted: str, claim: str) -> Column:
        def rates(size: str) -> str:
            of = [c for c in cells if (c["size"], c["counted"], c["claim"]) == (size, counted, claim)]
            both = (max(c["wrong"] for c in of if c["truth"] == truth) for truth in ("at", "over"))
            return ", ".join(f"{100 * wrong / n:.1f} %" for wrong in both)

        return title, rates

    return table(
        dict.fromkeys(c["size"] for c in cells), ("examples in a group", str), worst("whole", "groups", "whole"),
        worst("excess", "groups", "excess"), worst("whole, groups ignored", "examples", "whole"),
        worst("excess, groups ignored", "examples", "excess"),
    )  # fmt: skip


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
