"""The table of what verdicts cost, made from their result."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown


def costs(found: dict[str, Any]) -> str:
    """What 0.2.0 took, the goal, what was planned, and what it took."""
    rows = []
    for part in found["results"].values():
        plan, ran = part.get("plan"), part.get("run")
        goal = "3 times its quiet time" if part["goal"] is None else spoken(part["goal"])
        took = (spoken(ran["seconds"]), spoken(ran["processor_seconds"])) if ran else ("not run", "")
        code = "failed" if "failed" in part else str(ran["exit_code"]) if ran else ""
        rows.append((
            part["what"], part["before"], goal + (" of CPU" if part["of"] == "processors" else ""),
            spoken(plan["seconds"]) if plan else "", *took,
            f"{plan['seconds'] / ran['seconds']:.2f}" if plan and ran else "", code,
        ))  # fmt: skip
    header = ("command", "0.2.0", "goal", "planned", "took", "CPU", "planned / took", "exit code")
    return markdown(header, rows)


def spoken(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


TABLES = {"audit_cost": costs}
"""Name in a page's prose -> what makes the table."""
