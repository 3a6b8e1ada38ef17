"""The tables of planned and real audits, made from their result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...shared.run import markdown


def cases(found: dict[str, Any]) -> str:
    """Planned and real seconds of each case, by part."""
    rows = []
    for case in found["cases"].values():
        last = case["rounds"][-1]
        planned, real = last["planned_seconds"]["processor"], last["real_seconds"]["processor"]
        memory = last["planned_memory_bytes"] / last["real_memory_bytes"]
        rows.append((
            case["what"], f"{planned:.0f}", f"{real:.0f}", f"{case['ratio_median']:.2f}",
            f"{last['ratio']['wall']:.2f}", f"{memory:.2f}", f"{last['planning_seconds']['processor']:.0f}",
        ))  # fmt: skip
    header = ("audit", "planned, seconds", "real", "planned / real", "the same by the clock on the wall",
              "memory, planned / real", "planning took")  # fmt: skip
    return markdown(header, rows)


def larger(found: dict[str, Any]) -> str:
    """Hours, memory and disk of audits that were planned and not run."""
    rows = [
        (
            r["network"], f"{r['references']:,}", f"{r['examples']:,}", f"{r['features']:,}", _hours(r["hours"]),
            *(_hours(r[f"{part}_hours"]) for part in ("training", "asking", "attacking")),
            f"{r['memory_gib']:.1f}", f"{r['disk_gib']:.1f}", f"{r['best_certifiable']:.1%}",
        )
        for r in found["larger"]
    ]  # fmt: skip
    header = ("network", "models", "examples", "features", "hours of one core", "training", "asking and explaining",
              "attacking", "memory, GiB", "disk, GiB", "best excess")  # fmt: skip
    return markdown(header, rows)


def _hours(hours: float) -> str:
    return f"{hours:.2g}" if hours < 10 else f"{hours:,.0f}"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {"audit_cost": cases, "audit_cost: larger": larger}
"""Name in a page's prose -> what makes the table."""
