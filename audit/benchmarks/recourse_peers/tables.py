"""The tables of the page, made from the result."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown

PLAIN, EXACT = "safexplain", "HiGHS"
NOT_ASKED = "not asked"


def answers(found: dict[str, Any]) -> str:
    """A tool a line on every data set and model: how many answers can be used, what they cost, how long they take."""
    rows = []
    for title, result in found["results"].items():
        for tool, t in result["tools"].items():
            if t.get("skipped") == NOT_ASKED:
                continue
            if "skipped" in t:
                rows.append((title, tool, "", f"skipped: {t['skipped']}", *[""] * 7))
                continue
            over = t.get("over", {})
            rows.append((
                title, tool, f"{t['persons']}", f"{t['granted']:.0%}", f"{t['usable']:.0%}", _number(t, "cost"),
                _ratio(over.get(EXACT)), _least(t), _number(t, "changed", 1),
                "" if t["outliers"] is None else f"{t['outliers']:.0%}", _times(t),
            ))  # fmt: skip
    header = (
        "data, model", "tool", "persons", "granted", "usable", "cost of usable", "over the least (most)",
        "granted, usable or not: over the least", "features changed", "outliers", "ms a person (times ours)",
    )  # fmt: skip
    return markdown(header, rows, left=2)


def constraints(found: dict[str, Any]) -> str:
    """Share of the answers of each tool that keep each kind of constraint, over all data sets and models."""
    kinds: dict[str, dict[str, list[float]]] = {}
    for result in found["results"].values():
        for tool, t in result["tools"].items():
            for kind, share in t.get("kept", {}).items():
                if share is not None:
                    kinds.setdefault(tool, {}).setdefault(kind, []).append(share)
    names = list(next(iter(kinds.values()))) if kinds else []
    told = {tool: peer["told"] for peer in found["peers"].values() for tool in peer["tools"]}
    rows = [
        (tool, told.get(tool, ""), *(f"{sum(kinds[tool][k]) / len(kinds[tool][k]):.0%}" for k in names))
        for tool in kinds
    ]
    return markdown(("tool", "is told", *names), rows, left=2)


def tasks(found: dict[str, Any]) -> str:
    """What was asked: data, models, and what may not change."""
    rows = []
    for title, r in found["results"].items():
        data, _, model = title.partition(", ")
        rows.append((
            data, model, f"{r['columns']}", f"{r['accuracy']:.3f}", f"{r['persons']}",
            f"{r['outliers_among_persons']:.0%}", ", ".join(r["fixed"]), ", ".join(r["rising"]),
        ))  # fmt: skip
    header = (
        "data", "model", "columns", "test accuracy", "persons refused", "outliers among them", "never changes",
        "does not fall",
    )  # fmt: skip
    return markdown(header, rows, left=2)


def who(found: dict[str, Any]) -> str:
    """Releases, licences and what each can be told."""
    rows = []
    for title, peer in found["peers"].items():
        releases = ", ".join(f"{name} {number[:12]}" for name, number in peer.get("releases", {}).items())
        rows.append((title, releases or f"skipped: {peer.get('skipped')}", peer["licence"], peer["told"]))
    return markdown(("peer", "releases", "licence", "can be told"), rows, left=4)


def exact(found: dict[str, Any]) -> str:
    """Our plain answers' cost over the exact program's: mean and most, and the persons compared."""
    rows = []
    for title, result in found["results"].items():
        over = result["tools"].get(PLAIN, {}).get("over", {}).get(EXACT)
        if over:
            rows.append((title, f"{over['persons']}", *(f"{over[k]:.6f}" for k in ("mean", "least", "most"))))
    return markdown(("data, model", "persons", "mean", "least", "most"), rows)


def missing(found: dict[str, Any]) -> str:
    """Who was not asked about what, for want of time."""
    left: dict[str, list[str]] = {}
    for title, result in found["results"].items():
        for tool, t in result["tools"].items():
            if t.get("skipped") == NOT_ASKED:
                left.setdefault(tool, []).append(title)
    return "\n".join(f"* {tool}: {'; '.join(titles)}" for tool, titles in left.items()) or "Nobody."


def _number(t: dict[str, Any], key: str, digits: int = 3) -> str:
    return f"{t[key]:.{digits}f}" if t.get(key) is not None else ""


def _ratio(over: dict[str, float] | None) -> str:
    return "" if over is None else f"{over['mean']:.3f} ({over['most']:.3f})"


def _least(t: dict[str, Any]) -> str:
    over = t.get("over_granted", {}).get(EXACT)
    return "" if over is None else f"{over:.2f}"


def _times(t: dict[str, Any]) -> str:
    return f"{t['ms']:,.3g} ({t['ratio']['median']:,.3g})"


TABLES = {
    "recourse peers: answers": answers,
    "recourse peers: constraints": constraints,
    "recourse peers: tasks": tasks,
    "recourse peers: who": who,
    "recourse peers: exact": exact,
    "recourse peers: missing": missing,
}
"""Name of a table -> what makes it from recourse_peers.json."""
