"""The tables of docs/evidence/explainers.md, from audit/results/explainers.json."""

from __future__ import annotations

from typing import Any

from safexplain.explain import CATALOG

from ...shared.run import markdown


def _estimate(found: dict[str, float]) -> str:
    low, high = (found["value"] + z * found["se"] for z in (-1.96, 1.96))
    return f"{100 * found['value']:.1f} % [{100 * max(low, 0):.1f}, {100 * high:.1f}]"


def leaks(found: dict[str, Any]) -> str:
    """Members found from the label alone, with the native and with the hardened answer."""
    rows = []
    for name, m in found["results"]["methods"].items():
        if "reason" in m:
            continue
        stacks = (m["native"]["stack"], m["hardened"]["stack"])
        rows.append((
            f"`{CATALOG[name].hardened_name}`", m["task"], str(m["numbers"]), _estimate(m["labels"]["tpr"]),
            *(_estimate(s["tpr"]) for s in stacks), *(f"{s['auc']['value']:.2f}" for s in stacks),
            _estimate(m["hardened"]["always"]["tpr"]), f"{100 * max(m['hardened']['at_most'], 0):.1f}",
        ))  # fmt: skip
    header = ("class", "task", "numbers", "label alone", "native", "hardened", "AUC, native", "AUC, hardened",
              "hardened, always", "adds at most, points")  # fmt: skip
    return markdown(header, rows, left=2)


def utility(found: dict[str, Any]) -> str:
    """What hardened answers are still worth."""
    rows = []
    for name, m in found["results"]["methods"].items():
        if "reason" in m:
            continue
        u = m["utility"]
        deletion = [f"{u[key]:.2f}" if key in u else "" for key in ("deletion_native", "deletion_hardened")]
        rows.append((f"`{CATALOG[name].hardened_name}`", m["explains"], f"`{m['hardening']}`", f"{u['overlap']:.2f}",
                     f"{u['rank_correlation']:.2f}", f"{u['cosine']:.2f}", *deletion))  # fmt: skip
    header = ("class", "explains", "released", "top features kept", "rank correlation", "cosine", "deletion, native",
              "deletion, hardened")  # fmt: skip
    return markdown(header, rows, left=3)


def reasons(found: dict[str, Any]) -> str:
    """Methods that were not measured, and why."""
    lines = [f"- `{CATALOG[name].hardened_name}`: {m['reason']}." for name, m in found["results"]["methods"].items()
             if "reason" in m]  # fmt: skip
    return "\n".join(lines) or "None."


def tasks(found: dict[str, Any]) -> str:
    """Examples, models and how well they learned."""
    rows = [
        (name, str(t["examples"]), str(t["models"]), str(t["targets"]), f"{100 * t['accuracy']['members']:.1f} %",
         f"{100 * t['accuracy']['non_members']:.1f} %")
        for name, t in found["results"]["tasks"].items()
    ]  # fmt: skip
    return markdown(("task", "examples", "models", "targets", "right on members", "right on others"), rows)


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
