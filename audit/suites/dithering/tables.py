"""The tables of docs/evidence/dithering.md, from audit/results/dithering.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .suite import DEFAULT, QUANTILES


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def through(found: dict[str, Any]) -> str:
    """Answered queries of 201 by quantile, the range of the examples where they differ; and how far the inputs and maps
    are from the plain ones, at the default quantile."""
    rows = []
    for name, part in found["results"].items():
        by = {(row["script"], row["quantile"]): row for row in part["through"]}
        for script in dict.fromkeys(row["script"] for row in part["through"]):
            cells, at_default = [], by[script, DEFAULT]
            for q in QUANTILES:
                row = by.get((script, q))
                same = row is not None and row["least"] == row["most"]
                cells.append("" if row is None else f"{row['mean']:.0f}" + ("" if same else
                             f" ({row['least']} to {row['most']})"))  # fmt: skip
            rows.append((name, script, *cells, f"{at_default['change']:.2f}", f"{at_default['map']:.2f}"))
    return markdown(("task", "script", *(f"quantile {q:g}" for q in QUANTILES), "change", "map"), rows, left=2)


def honest(found: dict[str, Any]) -> str:
    """Distinct questions of a client taken for looks, exactly so, and refused."""
    rows = []
    for name, part in found["results"].items():
        for row in part["honest"]:
            first, last = row["asked_before"]
            rows.append((
                f"{name} ({part['features']} → {part['sketch']}; {part['public']:,} public rows)",
                f"{first:,} to {last:,}", f"{row['quantile']:g}", _percent(row["taken"]), _percent(row["exact"]),
                _percent(row["refused"]),
            ))  # fmt: skip
    header = ("task (features → sketch)", "asked before", "quantile", "taken for a look", "exactly", "refused")
    return markdown(header, rows, left=2)


def labels(found: dict[str, Any]) -> str:
    """AUC and TPR at 1 % of the labels of 32 queries, by dither."""
    of = {name: part["labels"] for name, part in found["results"].items() if "labels" in part}
    names = dict.fromkeys(dither for part in of.values() for dither in part)
    rows = [
        (dither, *(f"{p[dither][0]:.3f}, {100 * p[dither][2]:.1f} ± {196 * p[dither][3]:.1f} %" for p in of.values()))
        for dither in names
    ]
    return markdown(("queries", *of), rows)


def patience(found: dict[str, Any]) -> str:
    """What each format adds to the labels of the same queries."""
    rows = []
    for name, part in found["results"].items():
        for dither, formats in part.get("patience", {}).items():
            for release, levels in formats.items():
                if release == "labels":
                    cells = [f"{r[0]:.3f}, {100 * r[2]:.1f} %" for r in levels.values()] + [""]
                else:
                    cells = [f"{r[0]:+.3f}, {100 * r[2]:+.1f} ± {196 * r[3]:.1f}" for r in levels.values()]
                rows.append((name, dither, "labels alone" if release == "labels" else release, *cells))
    return markdown(("task", "dither", "released", "1 query", "32", "200", "32, 4 of them explained"), rows, left=3)


TABLES = {"dithering: through": through, "dithering: honest": honest, "dithering: labels": labels,
          "dithering: patience": patience}  # fmt: skip
