"""The table of the page, made from fuzzed_files.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown

OUTCOMES = ("leak", "inconclusive", "refused", "certified")


def fuzzed_files(found: dict[str, Any]) -> str:
    """What comes of the variants of each kind."""
    rows = []
    for name, says in (
        ("after a verdict", "leaking files, judged before"),
        ("first of all", "leaking files, judged for the first time"),
        ("harmless", "clean files in harmless variants, judged before"),
    ):  # fmt: skip
        of = found["results"][name]
        rows.append((says, f"{of['variants']:,}", *(f"{of['outcomes'].get(outcome, 0):,}" for outcome in OUTCOMES)))
    return markdown(("variants of", "how many", *OUTCOMES), rows)
