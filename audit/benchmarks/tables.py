"""The tables of benchmarks, made from their results."""

from __future__ import annotations

from typing import Any

from ..shared.run import markdown


def ledger(found: dict[str, Any]) -> str:
    """Charges a second, and how long a million records take to be told."""
    results = found["results"]
    rates = []
    for name, r in results.items():
        if "charges_a_second" in r:
            ratio, syncs = r.get("ours_over_it", 1), r.get("syncs_a_charge")
            rates.append((
                name, f"{r['charges_a_second']:,.0f}", f"{r['longest_wait_ms']:,.0f} ms",
                "" if ratio == 1 else f"{ratio:.2g}", "" if syncs is None else f"{syncs:.3g}",
            ))  # fmt: skip
    times = [(name, f"{r['ms']:,.1f}") for name, r in results.items() if "ms" in r]
    header = (f"{found['processes']} processes", "charges a second", "longest wait",
              "this ledger is as many times as fast", "syncs of a charge, one process alone")  # fmt: skip
    return "\n\n".join((
        markdown(header, rates),
        markdown((f"{found['records']:,} records", "ms"), times),
    ))  # fmt: skip


def kills(found: dict[str, Any]) -> str:
    """What killed processes left in a ledger."""
    r = found["results"]
    names = {
        "kills": "kills inside a charge", "uncommitted": "without a record", "committed": "with a record",
        "charges": "charges in all", "lost": "acknowledged, not recorded", "unasked": "recorded, not asked for",
        "doubled": "charged twice", "overspent": "budgets overspent",
    }  # fmt: skip
    return markdown(tuple(names.values()), [tuple(f"{r[name]:,}" for name in names)])


def noise(found: dict[str, Any]) -> str:
    """Cryptographic noise beside other generators, alone and in whole calls."""
    rows = [
        (name.partition(": OpenDP")[0], f"{r['ms']:.3g}", r["beside"], f"{r['ms_beside']:.3g}", f"{r['ratio']:.2g}")
        for name, r in found["results"].items()
    ]
    return markdown(("processor time of one core", "cryptographic, ms", "beside", "ms", "ratio"), rows)


def hardening(found: dict[str, Any]) -> str:
    """Time and memory of hardening a map."""
    rows = []
    for name, r in found["results"].items():
        small, large = r["32"], r["224"]
        rows.append((
            name, *(f"{s['ms_a_map_shortest']:.2g} ({s['ratio_to_version_0.1']:.2f})" for s in (small, large)),
            *(f"{max(small[f'ratio_of_{w}'], large[f'ratio_of_{w}']):.2f}" for w in ("zeros", "ties")),
            f"{r['memory']['multiple']:.1f}",
        ))  # fmt: skip
    header = ("one core", "3 x 32 x 32: ms a map (of what ranks and noise took in 0.1)", "3 x 224 x 224",
              "maps half of zeros, over others", "maps with ties, over others", "memory / attribution")  # fmt: skip
    return markdown(header, rows)


def overhead(found: dict[str, Any]) -> str:
    """What hardening adds to each explainer."""
    rows = []
    for name, r in found["results"].items():
        low, high = r["ratio_quartiles"]
        peak = f"{r['native_peak_mib']:.0f} / {r['hardened_peak_mib']:.0f}" if "native_peak_mib" in r else ""
        ratio, noisy = f"{r['ratio_median']:.3f} ({low:.2f} to {high:.2f})", r.get("with_noise_ratio_median")
        rows.append((name, f"{r['native_ms']:.0f}", ratio, "" if noisy is None else f"{noisy:.3f}", peak))
    header = ("method", "native ms", "hardened / native (median, quartiles)", "with ranks and noise",
              "peak MiB, native / hardened")  # fmt: skip
    return markdown(header, rows)


def gradients(found: dict[str, Any]) -> str:
    """Captum's gradients and ours."""
    rows = [
        (name, f"{r['captum_ms']:,.4g}", f"{r['ours_ms']:,.4g}", f"{r['ratio_median']:.2f}",
         "yes" if r["equal_bits"] else "no", f"{r['hardened_ms']:,.4g}", f"{r['hardened_ratio_median']:.2f}")
        for name, r in found["gradients"]["results"].items()
    ]  # fmt: skip
    header = ("one thread, processor time", "Captum, ms", "safexplain, ms", "ratio (median)", "equal bits",
              "hardened, ms", "ratio (median)")  # fmt: skip
    return markdown(header, rows)


def power(found: dict[str, Any]) -> str:
    """Share of the oracle's true-positive rate that every attack finds."""
    rows = [
        (name, f"{r['tpr']['oracle']:.1%}", *(f"{share:.2f}" for share in r["share"].values()))
        for name, r in found["problems"].items()
    ]
    names = next(iter(found["problems"].values()))["share"]
    return markdown((f"{found['references']} references", "oracle's TPR at 1 %", *names), rows)


def reference_training(found: dict[str, Any]) -> str:
    """Examples a second in each setting of a recipe, over the loop of before."""
    rows = []
    for network, variants in found["results"].items():
        for name, r in variants.items():
            low, high = r["ratio_quartiles"]
            ratio = f"{r['ratio_median']:.2f} ({low:.2f} to {high:.2f})"
            rows.append((network, name, f"{r['examples_a_second']:,.0f}", ratio, f"{r['first_training_seconds']:,.0f}"))
    header = ("network", "recipe", "examples a second", "over the loop of before (median, quartiles)",
              "first training with compiling, seconds")  # fmt: skip
    return markdown(header, rows, left=2)


def serving(found: dict[str, Any]) -> str:
    """Requests a second of the hardened service, of the same with plain Captum, and of nothing but HTTP and JSON."""
    rows = []
    for name, each in found["results"].items():
        for clients, one in each.items():
            rates = [
                f"{one[k]['requests_a_second']['median']:,.1f} ({one[k]['p50_ms']:,.0f} / {one[k]['p99_ms']:,.0f})"
                for k in ("captum", "hardened", "remembered", "echo")
            ]
            ratios = [
                "{median:.2f} ({low:.2f} to {high:.2f})".format(**one["hardened_to_captum"][k])
                for k in ("rate", "processor")
            ]
            faster = one["remembered_to_computed"]["rate"]["median"]
            earlier = one.get("hardened_to_before", {}).get("rate")
            beside = "{median:.2f} ({low:.2f} to {high:.2f})".format(**earlier) if earlier else "not measured"
            rows.append((name.partition(", Input")[0], clients, *rates, *ratios, f"{faster:.0f}", beside))
    header = ("model", "clients", "Captum: requests a second (p50 / p99, ms)", "hardened", "remembered",
              "HTTP and JSON alone", "hardened / Captum, requests a second", "Captum / hardened, processor time",
              "remembered / computed", "hardened / that of 0.2.0, requests a second")  # fmt: skip
    return markdown(header, rows)


def reasons(found: dict[str, Any]) -> str:
    """Share of right reasons by model, path and class."""
    paths = ("drop-in", "service", "audit")
    rows = [
        (name, *(f"{r[path][c]:.1%}" for path in paths for c in ("0", "1")), "yes" if r["same_bytes"] else "no")
        for name, r in found["results"].items()
    ]
    return markdown(("model", *(f"{path}, class {c}" for path in paths for c in (0, 1)), "audit = service"), rows)
