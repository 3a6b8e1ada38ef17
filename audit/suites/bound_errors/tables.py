"""The tables on bounds, on what canaries would find and on thresholds, made from their results."""

from __future__ import annotations

from typing import Any

from ...shared.tables import table

Cell = dict[str, Any]


def bound_errors(found: dict[str, Any]) -> str:
    """How often each bound is above the truth with hundreds of steps, and what it finds where 10 is true."""
    many = [cell for cell in found["two_worlds"] if cell["mechanism"]["steps"] >= 500]
    at = {(c["mechanism"]["sample_rate"], round(c["epsilon"], 2), c["runs"]): c["bounds"] for c in many}
    rows = [
        {"name": name.replace("gdp max", "gdp, best of all thresholds (paper C)"),
         "worst": max((c["bounds"][name] for c in many), key=lambda b: float(b["rate"])),
         **{str(runs): at[0.25, 10.0, runs][name] for runs in (1000, 25000)}}
        for name in many[0]["bounds"]
    ]  # fmt: skip
    return table(
        rows, ("bound", "name"), (f"above the truth, worst of {len(many)} cells", "worst",
                                  lambda b: f"{b['rate']:.1%} [{b['low']:.1%}, {b['high']:.1%}]"),
        ("mean, 1,000 runs", "1000/mean", ".2f"), ("ceiling", "1000/ceiling", ".1f"),
        ("mean, 25,000 runs", "25000/mean", ".2f"), ("ceiling", "25000/ceiling", ".1f"),
    )  # fmt: skip


def many_runs(found: dict[str, Any]) -> str:
    """What would have been found, and how many such trainings are, for each training, runs and strength."""
    cells = [c for c in found["audits"] if c["audit"]["method"] == "pld" and c["audit"]["adjacency"] == "substitute"]
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in cells:
        of = cell["audit"]
        row = rows.setdefault((_claim(of), of["runs"], of["rule"]), {"audit": of})
        row[f"{of['strength']:g}"] = cell
    strengths = [f"{s:g}" for s in sorted({c["audit"]["strength"] for c in cells}, reverse=True)]
    return table(
        rows.values(), ("q, steps, claimed epsilon", "audit", _claim), ("runs", "audit/runs", ","),
        ("threshold", "audit/rule"), *((f"strength {s}", s, _rates) for s in strengths),
    )  # fmt: skip


def others(found: dict[str, Any]) -> str:
    """The same for other methods, and claims under add/remove."""
    rows = [c for c in found["audits"] if c["audit"]["method"] != "pld" or c["audit"]["adjacency"] == "add_remove"]

    def method(of: Cell) -> str:
        return str(of["method"]) + (", add/remove" if of["adjacency"] == "add_remove" else "")

    return table(
        rows, ("method", "audit", method), ("q, steps, claimed epsilon", "audit", _claim),
        ("audit", "audit", lambda of: f"{of['runs']:,} runs, {of['rule']}"), ("strength", "audit/strength", "g"),
        ("would be found: is found", lambda cell: cell, _rates),
    )  # fmt: skip


def _claim(of: Cell) -> str:
    return f"{of['sample_rate']:g}, {of['steps']:,}, {of['epsilon']:g}"


def _rates(cell: Cell) -> str:
    if cell["detectable"] is None:
        return f"nothing ({cell['silent']} of {cell['of']})"
    return f"{cell['detectable']:.3g}: {cell['found'] / cell['of']:.0%}"


TABLES = {"canary_power": many_runs, "canary_power: others": others}
"""Name of a table -> what makes it from canary_power.json."""
