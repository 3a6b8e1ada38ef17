"""The tables on canaries, bounds and broken trainers, made from their results."""

from __future__ import annotations

from typing import Any

from ...shared.run import markdown


def bound_errors(found: dict[str, Any]) -> str:
    """How often each bound is above the truth with hundreds of steps, and what it finds where 10 is true."""
    many = [cell for cell in found["two_worlds"] if cell["mechanism"]["steps"] >= 500]
    at = {(c["mechanism"]["sample_rate"], round(c["epsilon"], 2), c["runs"]): c["bounds"] for c in many}
    rows = []
    for name in many[0]["bounds"]:
        worst = max((c["bounds"][name] for c in many), key=lambda b: float(b["rate"]))
        small, large = (at[0.25, 10.0, runs][name] for runs in (1000, 25000))
        ceilings = ["" if b["ceiling"] is None else f"{b['ceiling']:.1f}" for b in (small, large)]
        rows.append((
            name.replace("gdp max", "gdp, best of all thresholds (paper C)"),
            f"{worst['rate']:.1%} [{worst['low']:.1%}, {worst['high']:.1%}]",
            f"{small['mean']:.2f}", ceilings[0], f"{large['mean']:.2f}", ceilings[1],
        ))  # fmt: skip
    header = ("bound", f"above the truth, worst of {len(many)} cells", "mean, 1,000 runs", "ceiling",
              "mean, 25,000 runs", "ceiling")  # fmt: skip
    return markdown(header, rows)


def broken_trainers(found: dict[str, Any]) -> str:
    """How often each bug is found."""
    rows = []
    for cell in (*found["broken"], *found["hard"]):
        add_remove = "add/remove" in cell["expected"]
        rows.append((
            cell["trainer"],
            f"{cell['epsilon_add_remove' if add_remove else 'epsilon_substitute']:.2f}",
            cell["score"], f"{cell['runs']:,}",
            f"{cell['power']:.1%} [{cell['power_low']:.1%}, {cell['power_high']:.1%}]",
            f"{cell['epsilon_lower_median']:.2f}",
        ))  # fmt: skip
    header = ("trainer", "claimed epsilon", "looked at", "runs", "found", "median bound")
    return markdown(header, rows)


def sound_trainers(found: dict[str, Any]) -> str:
    """How often a bug is reported in a right trainer."""
    rows = [
        (
            cell["trainer"], f"{cell['epsilon_substitute']:.2f}", f"{cell['runs']:,}", f"{cell['audits']:,}",
            f"{cell['bug']:.1%} [{cell['bug_low']:.1%}, {cell['bug_high']:.1%}]",
        )
        for cell in found["sound"]
    ]  # fmt: skip
    return markdown(("right trainer", "epsilon, substituted", "runs", "audits", "bug reported"), rows)


def figure2(found: dict[str, Any]) -> str:
    """Worst-case canaries: accounting and bounds."""
    rows = []
    for cell in found["cells"].values():
        rows.append((
            f"{cell['sample_rate']:g}, {cell['noise_multiplier']:.2f}",
            *(f"{cell[name]:.2f}" for name in ("substitute", "group_privacy", "add_remove")),
            *(f"{sum(values) / len(values):.2f} ({max(values):.2f})" for values in cell["bounds"].values()),
        ))  # fmt: skip
    names = next(iter(found["cells"].values()))["bounds"]
    header = ("q, noise multiplier", "epsilon, substituted", "by group privacy", "added or removed", *names)
    return markdown(header, rows)


def on_data(found: dict[str, Any]) -> str:
    """Canaries in trainings on real features: the last step of each cell."""
    rows = []
    for task, result in found["results"].items():
        for rate, at in result["rates"].items():
            for scenario, cell in at["cells"].items():
                ours, paper, first = cell["epsilon_lower"], cell["paper_estimator"], cell["repeats"][0]
                spread = "" if ours["two_se"] is None else f" ± {ours['two_se']:.2f}"
                rows.append((
                    f"{task}, q = {rate}, {scenario}", f"{first['trained']:,}", f"{ours['mean']:.2f}{spread}",
                    f"{paper['mean']:.2f}", f"{at['add_remove'][-1]:.2f}", f"{at['substitute'][-1]:.2f}",
                    first["verdict"].partition(" as ")[0].partition(":")[0],
                ))  # fmt: skip
    header = ("canary", "runs", "epsilon at least", "paper's estimator", "add/remove", "substituted", "verdict")
    return markdown(header, rows)


def training(found: dict[str, Any]) -> str:
    """Time of a run beside a loop of Opacus trainings."""
    rows = []
    for case, results in found["results"].items():
        for name, r in results.items():
            rows.append((
                case, name, f"{1e3 * r['processor_seconds_a_run_median']:.1f}", f"{r['times_faster_median']:.0f}",
                f"{r['clock_seconds_median']:.0f}" if "R =" in name else "",
            ))  # fmt: skip
    header = ("case", "how", "processor ms a run", "times as fast", "seconds for all")
    return markdown(header, rows, left=2)
