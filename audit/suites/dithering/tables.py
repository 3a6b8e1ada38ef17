"""The tables of docs/evidence/dithering.md, from audit/results/dithering.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...shared.run import markdown
from .suite import QUANTILES


def tasks(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and figures of each task."""
    yield from found["results"].items()


def _dither(row: dict[str, Any]) -> str:
    return f"{row['kind']} {row['amplitude']:g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def through(found: dict[str, Any]) -> str:
    """Answered queries of 201 by quantile; the range of the examples where they differ."""
    rows = []
    for name, part in tasks(found):
        dithers = list(dict.fromkeys(_dither(row) for row in part["through"]))
        by = {(_dither(row), row["quantile"]): row for row in part["through"]}
        for dither in dithers:
            cells = []
            for q in QUANTILES:
                row = by.get((dither, q))
                same = row is not None and row["least"] == row["most"]
                cells.append("" if row is None else f"{row['mean']:.0f}" + ("" if same else
                             f" ({row['least']} to {row['most']})"))  # fmt: skip
            rows.append((name, dither, *cells))
    return markdown(("task", "dither", *(f"quantile {q:g}" for q in QUANTILES)), rows, left=2)


def honest(found: dict[str, Any]) -> str:
    """Distinct questions of a client taken for looks, exactly so, and refused."""
    rows = []
    for name, part in tasks(found):
        for row in part["honest"]:
            first, last = row["asked_before"]
            rows.append((
                f"{name} ({part['features']} → {part['sketch']}; {part['public']:,} public rows)",
                f"{first:,} to {last:,}", f"{row['quantile']:g}", _percent(row["taken"]), _percent(row["exact"]),
                _percent(row["refused"]),
            ))  # fmt: skip
    header = ("task (features → sketch)", "asked before", "quantile", "taken for a look", "exactly", "refused")
    return markdown(header, rows, left=2)


def attack(found: dict[str, Any]) -> str:
    """AUC and TPR at 1 % of the labels, and of labels with native maps, at each number of queries."""

    def cell(row: dict[str, Any], name: str) -> str:
        if name not in row:
            return ""
        auc, _, tpr, se = row[name]
        return f"{auc:.3f}, {100 * tpr:.1f} ± {196 * se:.1f} %"

    rows, most = [], found["queries"]
    for name, part in tasks(found):
        for row in part["attack"]:
            level = row["level"]
            for seen, shown in (("labels", "labels"), ("maps", "labels and native maps")):
                some = "all" if level == most else f"{cell(row, f'{seen} {level}')} ({level})"
                rows.append((name, _dither(row), shown, cell(row, f"{seen} 1"), some, cell(row, f"{seen} {most}")))
    header = ("task", "dither", "what is seen", "one query", "what gets through (how many)", "all 200")
    return markdown(header, rows, left=3)


TABLES = {"dithering: through": through, "dithering: honest": honest, "dithering: attack": attack}
