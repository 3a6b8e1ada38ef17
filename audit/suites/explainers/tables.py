"""The tables of docs/evidence/explainers.md, from audit/results/explainers.json."""

from __future__ import annotations

from typing import Any

from safexplain.explain import CATALOG

from ...shared.tables import Column, percent, table


def _estimate(found: dict[str, float]) -> str:
    low, high = (found["value"] + z * found["se"] for z in (-1.96, 1.96))
    return f"{100 * found['value']:.1f} % [{100 * max(low, 0):.1f}, {100 * high:.1f}]"


def _measured(found: dict[str, Any]) -> list[dict[str, Any]]:
    methods = found["results"]["methods"].items()
    return [{**m, "name": CATALOG[name].hardened_name} for name, m in methods if "reason" not in m]


CLASS: Column = ("class", "name", "`{}`".format)


def leaks(found: dict[str, Any]) -> str:
    """Members found from the label alone, with the native and with the hardened answer."""
    both = ("native", "hardened")
    return table(
        _measured(found), CLASS, ("task", "task"), ("numbers", "numbers"), ("label alone", "labels/tpr", _estimate),
        *((which, f"{which}/stack/tpr", _estimate) for which in both),
        *((f"AUC, {which}", f"{which}/stack/auc/value", ".2f") for which in both),
        ("hardened, always", "hardened/always/tpr", _estimate),
        ("adds at most, points", lambda m: 100 * max(m["hardened"]["at_most"], 0), ".1f"), left=2,
    )  # fmt: skip


def utility(found: dict[str, Any]) -> str:
    """What hardened answers are still worth."""
    named = {"top features kept": "overlap", "rank correlation": "rank_correlation", "cosine": "cosine",
             "deletion, native": "deletion_native", "deletion, hardened": "deletion_hardened"}  # fmt: skip
    return table(
        _measured(found), CLASS, ("explains", "explains"), ("released", "hardening", "`{}`".format),
        *((title, f"utility/{name}", ".2f") for title, name in named.items()), left=3,
    )  # fmt: skip


def reasons(found: dict[str, Any]) -> str:
    """Methods that were not measured, and why."""
    lines = [f"- `{CATALOG[name].hardened_name}`: {m['reason']}." for name, m in found["results"]["methods"].items()
             if "reason" in m]  # fmt: skip
    return "\n".join(lines) or "None."


def tasks(found: dict[str, Any]) -> str:
    """Examples, models and how well they learned."""
    rows = [{**t, "task": name} for name, t in found["results"]["tasks"].items()]
    sides = {"right on members": "members", "right on others": "non_members"}
    return table(
        rows, *((name, name) for name in ("task", "examples", "models", "targets")),
        *((title, f"accuracy/{side}", percent()) for title, side in sides.items()),
    )  # fmt: skip


def seconds(found: dict[str, Any]) -> str:
    """Processor time of all methods."""
    total = sum(m.get("cpu_seconds", 0.0) for m in found["results"]["methods"].values())
    return (
        f"All methods together took {total / 60:.0f} minutes of processor time, in several processes on two cores that"
        " were shared with other work."
    )


TABLES = {
    "explainers: leaks": leaks,
    "explainers: utility": utility,
    "explainers: reasons": reasons,
    "explainers: tasks": tasks,
    "explainers: time": seconds,
}
