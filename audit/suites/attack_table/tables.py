"""The tables of the page, from attack_table.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...shared.tables import table
from .tasks import DRAWS


def scores(found: dict[str, Any]) -> str:
    """What each attack finds alone, in one query of the second draw: TPR at 1 % in percent, and AUC."""
    cells = {name: cell["figures"]["1"] for name, cell in found["results"][DRAWS[1]].items()}
    rows: dict[str, dict[str, Any]] = {}
    for name, groups in cells.items():
        stacked = {"labels, stacked": groups["with labels"]["labels"], "**the stack**": groups["with labels"]["all"]}
        if predicted := groups["predictions"].get("all"):
            stacked["predictions, stacked"] = predicted
        for attack, values in {**groups["alone"], **stacked}.items():
            rows.setdefault(attack, {"attack": attack})[name] = values
    shown = ((name, name, lambda v: f"{100 * v[0]:.1f}, {v[2]:.3f}") for name in cells)
    return table(rows.values(), ("attack", "attack"), *shown)


def changes(found: dict[str, Any]) -> str:
    """Each row's strongest case in the first draw, and what it gains there in the second."""

    def gain(draw: int) -> Callable[[dict[str, Any]], str]:
        def shown(change: dict[str, Any]) -> str:
            if not change["drawn"]:
                return ""
            of_auc, (value, error) = change["case"].endswith("AUC"), change["drawn"][draw]
            return f"{value:+.3f} ± {error:.3f}" if of_auc else f"{100 * value:+.1f} ± {100 * error:.1f} points"

        return shown

    rows = [{**change, "group": name.partition(": ")[0], "what": name.partition(": ")[2]}
            for name, change in found["summary"].items()]  # fmt: skip
    return table(
        rows, ("stack", "group"), ("row", "what"),
        ("strongest case of the first draw", lambda c: c["case"] or "gains nowhere"), ("gain there", gain(0)),
        ("in the second draw", gain(1)), ("confirmed", lambda c: "**yes**" if c["confirmed"] else "no"),
        ("mean gain, second draw: points at 1 %, AUC", "mean/1", lambda m: f"{100 * m[0]:+.1f}, {m[2]:+.4f}"),
        ("cases gained in both", lambda c: f"{c['both']} of {c['of']}"), ("lost in the second", "loses/1"), left=3,
    )  # fmt: skip
