"""The tables of the page, made from broken_trainers.json."""

from __future__ import annotations

from typing import Any

from ...shared.tables import Column, table

NAME: Column = ("trainer", lambda row: f"`{row['trainer'].partition(':')[2]}`")


def broken_trainers(found: dict[str, Any]) -> str:
    """What finds each bug."""

    def claimed(row: dict[str, Any]) -> float:
        return float(row[f"epsilon_{row['claimed']['adjacency']}"])

    def white(audit: dict[str, Any]) -> str:
        return f"{audit['verdict']}: {', '.join(audit['failed'])}" if audit.get("failed") else str(audit["verdict"])

    def canaries(audit: dict[str, Any]) -> str:
        bound = f", at least {audit['epsilon_lower']:.1f}" if audit["verdict"] == "refuted" else ""
        return f"{audit['verdict']}{bound}"

    return table(
        found["broken"], NAME, ("what is wrong", "bug"), ("claimed epsilon", claimed, ".1f"),
        ("white box", "white_box/0", white), ("seconds", "white_box/0/seconds", ".1f"),
        ("canaries", "canaries/0", canaries), ("scenario", "canaries/0/scenario"),
        ("seconds", "canaries/0/seconds", ".0f"), left=2,
    )  # fmt: skip


def right_trainers(found: dict[str, Any]) -> str:
    """What is said of right ones."""

    def said(verdict: str) -> Any:
        return lambda audits: f"{verdict} {sum(a['verdict'] == verdict for a in audits)} of {len(audits)}"

    def median(audits: list[dict[str, Any]]) -> str:
        each = sorted(f"{a['detectable']:.3g}" if a.get("detectable") else "nothing" for a in audits)
        return each[len(each) // 2]

    return table(
        found["right"], NAME, ("what it is", "bug"), ("epsilon", "epsilon_substitute", ".1f"),
        ("white box", "white_box", said("as claimed")), ("canaries", "canaries", said("refuted")),
        ("would have found (median)", "canaries", median), left=2,
    )  # fmt: skip
