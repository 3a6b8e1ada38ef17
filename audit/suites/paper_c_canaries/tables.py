"""The tables on canaries and bounds, made from their results."""

from __future__ import annotations

from math import inf
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
                rows.append((
                    f"{task}, q = {rate}, {scenario}", f"{first['trained']:,}", with_error(ours),
                    f"{paper['mean']:.2f}", f"{at['add_remove'][-1]:.2f}", f"{at['substitute'][-1]:.2f}",
                    ", ".join(would_be_found(one["detectable"]) for one in cell["repeats"]),
                    ", ".join(dict.fromkeys(one["verdict"] for one in cell["repeats"])),
                ))  # fmt: skip
    header = (
        "canary",
        "runs",
        "epsilon at least",
        "paper's estimator",
        "add/remove",
        "substituted",
        "would be found from",
        "verdict",
    )
    return markdown(header, rows)


def with_error(found: dict[str, Any]) -> str:
    """Mean, and twice its standard error where there are repeats."""
    return f"{found['mean']:.2f}" + ("" if found["two_se"] is None else f" ± {found['two_se']:.2f}")


def would_be_found(epsilon: float | str | None) -> str:
    """The smallest epsilon of which that is true."""
    return "nothing" if epsilon is None else f"{float(epsilon):.1f}"


def median_of(of_repeats: list[float | None]) -> float | None:
    """The middle one, the lower of two; None is above all."""
    return sorted(of_repeats, key=lambda epsilon: inf if epsilon is None else float(epsilon))[
        (len(of_repeats) - 1) // 2
    ]


def by_runs(found: dict[str, Any]) -> str:
    """Figure 5: a column a number of runs."""
    rates = found["results"]["5"]["rates"]
    rows = [
        (
            f"q = {rate}, {scenario}", f"{at['add_remove']:.2f}",
            *(f"{with_error(c['epsilon_lower'])}; {would_be_found(median_of(c['detectable']))}" for c in cells),
        )
        for rate, at in rates.items() for scenario, cells in at["cells"].items()
    ]  # fmt: skip
    counts = next(iter(next(iter(rates.values()))["cells"].values()))
    return markdown(("canary", "add/remove", *(f"{c['runs']:,} runs" for c in counts)), rows)


def utility(found: dict[str, Any]) -> str:
    """Figure A1: accuracy at a few steps."""
    a1 = found["results"]["A1"]
    at = [i for i, _ in enumerate(a1["steps"]) if (i + 1) % (len(a1["steps"]) // 4) == 0]
    rows = [
        (name, str(arm["models"]), *(f"{arm['mean'][i]:.1%} ± {arm['two_se'][i]:.1%}" for i in at))
        for name, arm in a1["accuracy"].items()
    ]
    return markdown(("trained with", "models", *(f"{a1['steps'][i]} steps" for i in at)), rows)


def clip_bounds(found: dict[str, Any]) -> str:
    """Figure A2."""
    return on_data({"results": found["results"]["A2"]["values"]})


def numbers_of_steps(found: dict[str, Any]) -> str:
    """Figure A3."""
    return on_data({"results": found["results"]["A3"]["values"]})


def learning_rates(found: dict[str, Any]) -> str:
    """Figure A4."""
    return on_data({"results": found["results"]["A4"]["values"]})


def ratios(found: dict[str, Any]) -> str:
    """Figure A5: what substitution costs over add/remove, a row a noise multiplier."""
    cells = found["results"]["A5"]["cells"]
    rates = list(dict.fromkeys(c["sample_rate"] for c in cells))
    rows = []
    for noise in sorted({c["noise_multiplier"] for c in cells}):
        at = {c["sample_rate"]: c for c in cells if c["noise_multiplier"] == noise}
        rows.append((
            f"{noise:g}",
            *(f"{at[q]['ratio']:.2f} ({at[q]['substitute']:.2f})" if q in at else "" for q in rates),
        ))  # fmt: skip
    return markdown(("noise multiplier", *(f"q = {q:g}" for q in rates)), rows)


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
