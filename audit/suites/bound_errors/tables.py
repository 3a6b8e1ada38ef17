"""The tables on what canaries would find and on thresholds, made from their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...shared.run import markdown

Cell = dict[str, Any]


def many_runs(found: dict[str, Any]) -> str:
    """What would have been found, and how many such trainings are, for each training, runs and strength."""
    cells = [c for c in found["audits"] if c["audit"]["method"] == "pld" and c["audit"]["adjacency"] == "substitute"]
    strengths = sorted({c["audit"]["strength"] for c in cells}, reverse=True)
    rows: dict[tuple[Any, ...], dict[float, Cell]] = {}
    for cell in cells:
        of = cell["audit"]
        rows.setdefault((of["sample_rate"], of["steps"], of["epsilon"], of["runs"], of["rule"]), {})[of["strength"]] = (
            cell
        )
    return markdown(
        ("q, steps, claimed epsilon", "runs", "threshold", *(f"strength {s:g}" for s in strengths)),
        [
            (f"{q:g}, {steps:,}, {epsilon:g}", f"{runs:,}", rule, *(_rates(by[s]) for s in strengths))
            for (q, steps, epsilon, runs, rule), by in rows.items()
        ],
    )


def others(found: dict[str, Any]) -> str:
    """The same for other methods, and claims under add/remove."""
    rows = []
    for cell in found["audits"]:
        of = cell["audit"]
        if of["method"] == "pld" and of["adjacency"] == "substitute":
            continue
        method = of["method"] + (", add/remove" if of["adjacency"] == "add_remove" else "")
        size = f"{of['runs']:,} runs, {of['rule']}"
        claimed = f"{of['sample_rate']:g}, {of['steps']}, {of['epsilon']:g}"
        rows.append((method, claimed, size, f"{of['strength']:g}", _rates(cell)))
    return markdown(("method", "q, steps, claimed epsilon", "audit", "strength", "would be found: is found"), rows)


def thresholds(found: dict[str, Any]) -> str:
    """Median, standard deviation and how many are above the truth, for each rule."""
    rows = []
    for cell in found["thresholds"]:
        rules = cell["rules"].values()
        told = (f"{r['median']:.2f} ± {r['sd']:.2f}, {r['above']} of {r['of']}" for r in rules)
        rows.append((cell["method"], f"{cell['epsilon']:g}", f"{cell['runs']:,}", *told))
    return markdown(("method", "epsilon", "runs", *found["thresholds"][0]["rules"]), rows)


def _rates(cell: Cell) -> str:
    if cell["detectable"] is None:
        return f"nothing ({cell['silent']} of {cell['of']})"
    return f"{cell['detectable']:.3g}: {cell['found'] / cell['of']:.0%}"


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "canary_power": many_runs,
    "canary_power: others": others,
    "canary_power: thresholds": thresholds,
}
