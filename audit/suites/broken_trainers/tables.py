"""The tables of the page, made from broken_trainers.json."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown


def broken_trainers(found: dict[str, Any]) -> str:
    """What finds each bug."""
    rows = []
    for row in found["broken"]:
        claimed = row["epsilon_add_remove" if row["claimed"]["adjacency"] == "add_remove" else "epsilon_substitute"]
        white, canaries = row["white_box"][0], row["canaries"][0]
        bound = f", at least {canaries['epsilon_lower']:.1f}" if canaries["verdict"] == "refuted" else ""
        rows.append((
            f"`{row['trainer'].partition(':')[2]}`", row["bug"], f"{claimed:.1f}",
            f"{white['verdict']}: {', '.join(white['failed'])}" if white.get("failed") else white["verdict"],
            f"{white['seconds']:.1f}", f"{canaries['verdict']}{bound}", canaries.get("scenario", ""),
            f"{canaries['seconds']:.0f}",
        ))  # fmt: skip
    header = ("trainer", "what is wrong", "claimed epsilon", "white box", "seconds", "canaries", "scenario", "seconds")
    return markdown(header, rows, left=2)


def right_trainers(found: dict[str, Any]) -> str:
    """What is said of right ones."""
    rows = []
    for row in found["right"]:
        white, canaries = ([audit["verdict"] for audit in row[how]] for how in ("white_box", "canaries"))
        said = sorted(
            f"{audit['detectable']:.3g}" if audit.get("detectable") else "nothing" for audit in row["canaries"]
        )
        rows.append((
            f"`{row['trainer'].partition(':')[2]}`", row["bug"], f"{row['epsilon_substitute']:.1f}",
            f"as claimed {white.count('as claimed')} of {len(white)}",
            f"refuted {canaries.count('refuted')} of {len(canaries)}", said[len(said) // 2],
        ))  # fmt: skip
    header = ("trainer", "what it is", "epsilon", "white box", "canaries", "would have found (median)")
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
