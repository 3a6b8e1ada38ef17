"""The tables of benchmarks, made from their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..shared.run import markdown
from ..shared.tables import table

Result = Mapping[str, Any]
Column = tuple[str, str | Callable[[Result], str]]
"""Heading, and a format string that a result fills, or what makes the cell of it."""

QUARTILES = "{ratio_median:.2f} ({ratio_quartiles[0]:.2f} to {ratio_quartiles[1]:.2f})"


def by_columns(rows: Iterable[tuple[str, Result]], first: str, *columns: Column, left: int = 1) -> str:
    """A Markdown table."""

    def cell(made: str | Callable[[Result], str]) -> Callable[[tuple[str, Result]], str]:
        return lambda row: made.format(**row[1]) if isinstance(made, str) else made(row[1])

    return table(rows, (first, lambda row: row[0]), *((heading, cell(made)) for heading, made in columns), left=left)


def where_there_is(key: str, cell: str) -> Callable[[Result], str]:
    """A format string for results that have this number; empty for others."""
    return lambda result: "" if result.get(key) is None else cell.format(**result)


def yes_or_no(key: str) -> Callable[[Result], str]:
    """A cell of a boolean."""
    return lambda result: "yes" if result[key] else "no"


def power(found: Result) -> str:
    """Share of the oracle's true-positive rate that every attack finds."""
    names = next(iter(found["problems"].values()))["share"]
    shares = [(name, f"{{share[{name}]:.2f}}") for name in names]
    first = f"{found['references']} references"
    return by_columns(found["problems"].items(), first, ("oracle's TPR at 1 %", "{tpr[oracle]:.1%}"), *shares)


def hardening(found: Result) -> str:
    """Time and memory of hardening a map."""

    def ms(side: str) -> str:
        return f"{{{side}[ms_a_map_shortest]:.2g}} ({{{side}[ratio_to_version_0.1]:.2f}})"

    def worst(what: str) -> Callable[[Result], str]:
        return lambda r: f"{max(r[side][f'ratio_of_{what}'] for side in ('small', 'large')):.2f}"

    rows = ((name, {"small": r["32"], "large": r["224"], "memory": r["memory"]})
            for name, r in found["results"].items())  # fmt: skip
    return by_columns(
        rows,
        "one core",
        ("3 x 32 x 32: ms a map (of what ranks and noise took in 0.1)", ms("small")),
        ("3 x 224 x 224", ms("large")),
        ("maps half of zeros, over others", worst("zeros")),
        ("maps with ties, over others", worst("ties")),
        ("memory / attribution", "{memory[multiple]:.1f}"),
    )


def overhead(found: Result) -> str:
    """What hardening adds to each explainer."""
    return by_columns(
        found["results"].items(),
        "method",
        ("native ms", "{native_ms:.0f}"),
        ("hardened / native (median, quartiles)", QUARTILES.replace(":.2f} (", ":.3f} (")),
        ("with ranks and noise", where_there_is("with_noise_ratio_median", "{with_noise_ratio_median:.3f}")),
        (
            "peak MiB, native / hardened",
            where_there_is("native_peak_mib", "{native_peak_mib:.0f} / {hardened_peak_mib:.0f}"),
        ),
    )


def gradients(found: Result) -> str:
    """Captum's gradients and ours."""
    if "gradients" not in found:
        return "*There is no result yet.*"
    return by_columns(
        found["gradients"]["results"].items(),
        "one thread, processor time",
        ("Captum, ms", "{captum_ms:,.4g}"),
        ("safexplain, ms", "{ours_ms:,.4g}"),
        ("ratio (median)", "{ratio_median:.2f}"),
        ("equal bits", yes_or_no("equal_bits")),
        ("hardened, ms", "{hardened_ms:,.4g}"),
        ("ratio (median)", "{hardened_ratio_median:.2f}"),
    )


def reference_training(found: Result) -> str:
    """Examples a second in each setting of a recipe, over the loop of before."""
    rows = ((network, {"recipe": recipe, **r}) for network, of in found["results"].items() for recipe, r in of.items())
    return by_columns(
        rows,
        "network",
        ("recipe", "{recipe}"),
        ("examples a second", "{examples_a_second:,.0f}"),
        ("over the loop of before (median, quartiles)", QUARTILES),
        ("first training with compiling, seconds", "{first_training_seconds:,.0f}"),
        left=2,
    )


def dp_epsilons(found: Result) -> str:
    """Time of accounting beside dp-accounting's."""
    return by_columns(
        found["results"].items(),
        "setting",
        ("pair, ms", "{pair_ms:.0f}"),
        ("dp-accounting, ms", "{dp_accounting_ms:.0f}"),
        ("times as fast", "{times_as_fast:.0f}"),
        ("calibration, ms", "{calibration_ms:.0f}"),
        ("epsilons", "{epsilon[0]:.4f} / {epsilon[1]:.4f}"),
        ("its epsilons", "{dp_accounting_epsilon[0]:.4f} / {dp_accounting_epsilon[1]:.4f}"),
    )


def dp_finetuning(found: Result) -> str:
    """Time and memory of a step beside Opacus."""
    return by_columns(
        found["results"].items(),
        "one step",
        ("ms, median", "{ms_median:.0f}"),
        ("shortest", "{ms_shortest:.0f}"),
        ("ratio to Opacus, ghost", "{ratio_to_opacus_ghost:.2f}"),
        ("peak MiB", "{peak_mib:.0f}"),
    )


def dp_head(found: Result) -> str:
    """Time of a head beside Opacus."""
    return by_columns(
        found["results"].items(),
        "one run of 500 steps",
        ("processor ms a run", lambda r: f"{1e3 * r['processor_seconds_median']:.0f}"),
        ("times as fast", "{times_faster_median:.1f}"),
    )


def noise(found: Result) -> str:
    """Cryptographic noise beside other generators, alone and in whole calls."""
    return by_columns(
        ((name.partition(": OpenDP")[0], r) for name, r in found["results"].items()),
        "processor time of one core",
        ("cryptographic, ms", "{ms:.3g}"),
        ("beside", "{beside}"),
        ("ms", "{ms_beside:.3g}"),
        ("ratio", "{ratio:.2g}"),
    )


def ledger(found: Result) -> str:
    """Charges a second, and how long a million records take to be added up."""
    results = found["results"].items()
    rates = by_columns(
        ((name, r) for name, r in results if "charges_a_second" in r),
        f"{found['processes']} processes",
        ("charges a second", "{charges_a_second:,.0f}"),
        ("longest wait", "{longest_wait_ms:,.0f} ms"),
        ("this ledger is as many times as fast",
         lambda r: "" if r.get("ours_over_it", 1) == 1 else f"{r['ours_over_it']:.2g}"),
        ("syncs of a charge, one process alone", where_there_is("syncs_a_charge", "{syncs_a_charge:.3g}")),
    )  # fmt: skip
    times = by_columns(((name, r) for name, r in results if "ms" in r), f"{found['records']:,} records",
                       ("ms", "{ms:,.1f}"))  # fmt: skip
    return f"{rates}\n\n{times}"


def kills(found: Result) -> str:
    """What killed processes left in a ledger."""
    r = found["results"]
    names = {
        "kills": "kills inside a charge", "uncommitted": "without a record", "committed": "with a record",
        "charges": "charges in all", "lost": "acknowledged, not recorded", "unasked": "recorded, not asked for",
        "doubled": "charged twice", "overspent": "budgets overspent",
    }  # fmt: skip
    return markdown(tuple(names.values()), [tuple(f"{r[name]:,}" for name in names)])


def serving(found: Result) -> str:
    """Requests a second of the hardened service, of the same with plain Captum, and of nothing but HTTP and JSON."""

    def rate(kind: str) -> str:
        return f"{{{kind}[requests_a_second][median]:,.1f}} ({{{kind}[p50_ms]:,.0f}} / {{{kind}[p99_ms]:,.0f}})"

    def ratio(pair: str, of: str) -> str:
        return "{0[median]:.2f} ({0[low]:.2f} to {0[high]:.2f})".replace("0[", f"{pair}[{of}][")

    rows = ((name.partition(", Input")[0], {"clients": clients, **one})
            for name, each in found["results"].items() for clients, one in each.items())  # fmt: skip
    return by_columns(
        rows,
        "model",
        ("clients", "{clients}"),
        ("Captum: requests a second (p50 / p99, ms)", rate("captum")),
        ("hardened", rate("hardened")),
        ("remembered", rate("remembered")),
        ("HTTP and JSON alone", rate("echo")),
        ("hardened / Captum, requests a second", ratio("hardened_to_captum", "rate")),
        ("Captum / hardened, processor time", ratio("hardened_to_captum", "processor")),
        ("remembered / computed", "{remembered_to_computed[rate][median]:.0f}"),
        (
            "hardened / that of 0.2.0, requests a second",
            where_there_is("hardened_to_before", ratio("hardened_to_before", "rate")),
        ),
    )


def reasons(found: Result) -> str:
    """Share of right reasons by model, path and class."""

    def share(path: str, label: str) -> Column:
        return f"{path}, class {label}", lambda r: f"{r[path][label]:.1%}"

    shares = [share(path, label) for path in ("drop-in", "service", "audit") for label in "01"]
    return by_columns(found["results"].items(), "model", *shares, ("audit = service", yes_or_no("same_bytes")))


def costs(found: Result) -> str:
    """What an audit took in 0.2.0, the goal, what was planned, and what it took."""

    def goal(part: Result) -> str:
        words = "3 times its quiet time" if part["goal"] is None else spoken(part["goal"])
        return words + (" of CPU" if part["of"] == "processors" else "")

    def share(part: Result) -> str:
        both = "plan" in part and "run" in part
        return f"{part['plan']['seconds'] / part['run']['seconds']:.2f}" if both else ""

    def code(part: Result) -> str:
        return "failed" if "failed" in part else str(part["run"]["exit_code"]) if "run" in part else ""

    return by_columns(
        ((part["what"], part) for part in found["results"].values()),
        "command",
        ("0.2.0", "{before}"),
        ("goal", goal),
        ("planned", lambda part: spoken(part["plan"]["seconds"]) if "plan" in part else ""),
        ("took", lambda part: spoken(part["run"]["seconds"]) if "run" in part else "not run"),
        ("CPU", lambda part: spoken(part["run"]["processor_seconds"]) if "run" in part else ""),
        ("planned / took", share),
        ("exit code", code),
    )


def spoken(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


TABLES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "attack_power": ("attack_power", power),
    "hardening_speed": ("hardening_speed", hardening),
    "explainer_overhead": ("explainer_overhead", overhead),
    "captum_gradient": ("explainer_overhead", gradients),
    "reference_training": ("reference_training", reference_training),
    "dp_epsilons": ("dp_epsilons", dp_epsilons),
    "dp_finetuning": ("dp_finetuning", dp_finetuning),
    "dp_head": ("dp_head", dp_head),
    "noise": ("noise", noise),
    "ledger_speed": ("ledger_speed", ledger),
    "ledger_kills": ("ledger_kills", kills),
    "serving": ("serving", serving),
    "reasons": ("reasons", reasons),
    "audit_cost": ("audit_cost", costs),
}
"""Name in a page's prose -> the result, and what makes the table of it."""
