"""The tables of the page, made from broken_trainers.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown
from .suite import BUG


def broken_trainers(found: dict[str, Any]) -> str:
    """How often each bug is found, of those that are expected to be."""
    return _audited([row for row in found["broken"] if row["expected"]])


def not_found(found: dict[str, Any]) -> str:
    """The same of those that leave the released model as private as claimed, or nearly."""
    return _audited([row for row in found["broken"] if not row["expected"]])


def _audited(trainers: list[dict[str, Any]]) -> str:
    rows = []
    for row in trainers:
        first, *others = row["audits"]
        claimed = row["epsilon_add_remove" if row["claimed"]["adjacency"] == "add_remove" else "epsilon_substitute"]
        rows.append((
            f"`{row['trainer'].partition(':')[2]}`", row["bug"], f"{claimed:.1f}", first["scenario"],
            f"{first['runs']:,}", f"{first['seconds']:.0f}", f"{first['audits']}",
            f"{first['found']:.0%} [{first['found_low']:.0%}, {first['found_high']:.0%}]",
            f"{first['epsilon_lower']:.1f}",
            "; ".join(f"{a['scenario']} {a['found']:.0%} of {a['audits']}" for a in others),
            (row["command_line"] or {"verdict": "not run"})["verdict"].replace(BUG, "a bug").partition(" as a ")[0],
        ))  # fmt: skip
    header = ("trainer", "what is wrong", "claimed epsilon", "canary", "runs", "seconds", "audits",
              "found", "median bound",
              "other canaries", "command line")  # fmt: skip
    return markdown(header, rows, left=2)


def right_trainers(found: dict[str, Any]) -> str:
    """How often a bug is reported in a right trainer, and how often its claim is called consistent."""
    rows = []
    for row in found["right"]:
        first = row["audits"][0]
        bugs, have = first["verdicts"].get(BUG, 0), first["have_power"]
        rows.append((
            f"`{row['trainer'].partition(':')[2]}`", row["bug"], f"{row['epsilon_substitute']:.1f}", first["scenario"],
            f"{first['runs']:,}", f"{first['audits']}", f"{bugs}", f"{have}", f"{first['kept_with_power']}",
            f"{first['epsilon_lower']:.1f}",
        ))  # fmt: skip
    header = ("trainer", "what it is", "epsilon", "canary", "runs", "audits", "a bug", "have power",
              "of these kept", "median bound")  # fmt: skip
    return markdown(header, rows, left=2)


def spent(found: dict[str, Any]) -> str:
    """True epsilons beside the claimed ones, at two deltas."""
    small, large = sorted({row["delta"] for row in found["spent"]})
    at = {(row["trainer"], row["of"], row["delta"]): row for row in found["spent"]}
    rows = []
    for trainer, of in dict.fromkeys((row["trainer"], row["of"]) for row in found["spent"]):
        one, other = at[trainer, of, small], at[trainer, of, large]
        rows.append((
            f"`{trainer.partition(':')[2]}`", of, f"{one['epsilon']:.2f}", f"{one['claimed']:.2f}",
            f"{other['epsilon']:.2f}", f"{other['claimed']:.2f}",
        ))  # fmt: skip
    header = ("trainer", "epsilon of", f"at delta {small:g}", "claimed", f"at delta {large:g}", "claimed")
    return markdown(header, rows, left=2)
