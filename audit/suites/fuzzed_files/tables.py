"""The table of the page, made from fuzzed_files.json."""

from __future__ import annotations

from typing import Any

from ...shared.tables import table

VARIANTS = {
    "after a verdict": "leaking files, judged before",
    "first of all": "leaking files, judged for the first time",
    "harmless": "clean files in harmless variants, judged before",
}


def fuzzed_files(found: dict[str, Any]) -> str:
    """What comes of the variants of each kind."""
    rows = [{**found["results"][name], "says": says} for name, says in VARIANTS.items()]
    outcomes = ("leak", "inconclusive", "refused", "certified")
    counts = ((o, lambda r, o=o: r["outcomes"].get(o, 0), ",") for o in outcomes)
    return table(rows, ("variants of", "says"), ("how many", "variants", ","), *counts)
