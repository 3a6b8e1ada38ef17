"""The table of docs/evidence/dp_defaults.md, from audit/results/dp_defaults.json."""

from __future__ import annotations

from typing import Any

from ...shared.tables import percent, table

NAMES = {"cifar10": "CIFAR-10", "agnews": "AG News", "adult": "Adult"}


def accuracy(found: dict[str, Any]) -> str:
    """Accuracy of defaults and search; differences in points with standard errors."""
    rows = [{**row, "task": NAMES[task], "epsilon": epsilon} for task, result in found["results"].items()
            for epsilon, row in result["summary"].items()]  # fmt: skip

    def points(found: list[float]) -> str:
        return f"{100 * found[0]:+.1f} ± {100 * found[1]:.1f}"

    return table(
        rows, ("task", "task"), ("epsilon", "epsilon"), ("version 0.2", "version 0.2/0", percent()),
        ("defaults", "defaults/0", percent()), ("search, chosen by validation", "chosen by validation/0", percent()),
        ("defaults less this", "defaults - chosen", points),
        ("best on the reported records", "best on test/0", percent()),
        ("defaults less this", "defaults - best", points), ("which it is", "best"),
    )  # fmt: skip


TABLES = {"dp_defaults: accuracy": accuracy}
