"""The tables on canaries, made from their results."""

from __future__ import annotations

from typing import Any

from ...shared.tables import table


def on_data(found: dict[str, Any]) -> str:
    """Canaries in trainings on real features: the last step of each cell."""
    rows = [
        {**cell, "title": f"{task}, q = {rate}, {scenario}", "at": at}
        for task, result in found["results"].items()
        for rate, at in result["rates"].items()
        for scenario, cell in at["cells"].items()
    ]
    return table(
        rows, ("canary", "title"), ("runs", "repeats/0/trained", ","),
        ("epsilon at least", "epsilon_lower", with_error), ("paper's estimator", "paper_estimator/mean", ".2f"),
        ("add/remove", "at/add_remove/-1", ".2f"), ("substituted", "at/substitute/-1", ".2f"),
        ("would be found from", "repeats", lambda each: ", ".join(would_be_found(one["detectable"]) for one in each)),
        ("verdict", "repeats", lambda each: ", ".join(dict.fromkeys(one["verdict"] for one in each))),
    )  # fmt: skip


def with_error(found: dict[str, Any]) -> str:
    """Mean, and twice its standard error where there are repeats."""
    return f"{found['mean']:.2f}" + ("" if found["two_se"] is None else f" ± {found['two_se']:.2f}")


def would_be_found(epsilon: float | str | None) -> str:
    """The smallest epsilon of which that is true."""
    return "nothing" if epsilon is None else f"{float(epsilon):.1f}"


def training(found: dict[str, Any]) -> str:
    """Time of a run beside a loop of Opacus trainings."""
    rows = [{**r, "case": case, "how": how} for case, results in found["results"].items() for how, r in results.items()]
    return table(
        rows, ("case", "case"), ("how", "how"),
        ("processor ms a run", lambda r: 1e3 * r["processor_seconds_a_run_median"], ".1f"),
        ("times as fast", "times_faster_median", ".0f"),
        ("seconds for all", lambda r: r["clock_seconds_median"] if "R =" in r["how"] else None, ".0f"), left=2,
    )  # fmt: skip
