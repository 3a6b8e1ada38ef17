"""The tables of docs/evidence/dithering.md, from audit/results/dithering.json."""

from __future__ import annotations

from typing import Any

from ...shared.tables import Column, percent, table
from .suite import DEFAULT, QUANTILES


def through(found: dict[str, Any]) -> str:
    """Answered queries of 201 by quantile, the range of the examples where they differ; and how far the inputs and maps
    are from the plain ones, at the default quantile."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, part in found["results"].items():
        for row in part["through"]:
            key = name, row["script"]
            rows.setdefault(key, {"task": name, "script": row["script"]})[f"{row['quantile']:g}"] = row

    def answered(row: dict[str, Any]) -> str:
        return f"{row['mean']:.0f}" + ("" if row["least"] == row["most"] else f" ({row['least']} to {row['most']})")

    columns: list[Column] = [(f"quantile {q:g}", f"{q:g}", answered) for q in QUANTILES]
    columns += [(name, f"{DEFAULT:g}/{name}", ".2f") for name in ("change", "map")]
    return table(rows.values(), ("task", "task"), ("script", "script"), *columns, left=2)


def honest(found: dict[str, Any]) -> str:
    """Distinct questions of a client taken for looks, exactly so, and refused."""
    rows = [{**row, "task": name, "of": part} for name, part in found["results"].items() for row in part["honest"]]
    return table(
        rows,
        ("task (features → sketch)",
         lambda r: f"{r['task']} ({r['of']['features']} → {r['of']['sketch']}; {r['of']['public']:,} public rows)"),
        ("asked before", "asked_before", lambda asked: f"{asked[0]:,} to {asked[1]:,}"), ("quantile", "quantile", "g"),
        ("taken for a look", "taken", percent()), ("exactly", "exact", percent()), ("refused", "refused", percent()),
        left=2,
    )  # fmt: skip


TABLES = {"dithering: through": through, "dithering: honest": honest}
