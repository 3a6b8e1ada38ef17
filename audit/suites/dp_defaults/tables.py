"""The table of docs/evidence/dp_defaults.md, from audit/results/dp_defaults.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown

NAMES = {"cifar10": "CIFAR-10", "agnews": "AG News", "adult": "Adult"}


def accuracy(found: dict[str, Any]) -> str:
    """Accuracy of defaults and search; differences in points with standard errors."""
    rows = []
    for task, result in found["results"].items():
        for epsilon, row in result["summary"].items():
            shown = [f"{100 * row[k][0]:.1f} %" for k in ("version 0.2", "defaults", "chosen by validation")]
            apart = [_points(row[k]) for k in ("defaults - chosen", "defaults - best")]
            rows.append((NAMES[task], epsilon, *shown, apart[0], f"{100 * row['best on test'][0]:.1f} %", apart[1],
                         row["best"]))  # fmt: skip
    header = ("task", "epsilon", "version 0.2", "defaults", "search, chosen by validation", "defaults less this",
              "best on the reported records", "defaults less this", "which it is")  # fmt: skip
    return markdown(header, rows)


def _points(found: list[float]) -> str:
    return f"{100 * found[0]:+.1f} ± {100 * found[1]:.1f}"


TABLES = {"dp_defaults: accuracy": accuracy}
