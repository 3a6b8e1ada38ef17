"""The tables of benchmarks, made from their results."""

from __future__ import annotations

from typing import Any

from ..shared.run import markdown


def search(found: dict[str, Any]) -> str:
    """Seconds, validity and distance of the batched search beside other ways to search the same network."""
    rows = []
    for name, r in found["results"].items():
        ratio, faster = r["our_distance_to_its"], r["times_faster"]
        rows.append((
            name, f"{r['queries']:,}", f"{r['seconds']:.2f}", f"{r['valid']:.0%}",
            "" if ratio is None else f"{ratio:.3f}", "" if faster is None else f"{faster:,.0f}",
        ))  # fmt: skip
    header = ("search", "queries", "seconds", "valid", "our distance over its", "ours is as many times as fast")
    return markdown(header, rows)


def ledger(found: dict[str, Any]) -> str:
    """Charges a second, and how long a million records take to be told."""
    results = found["results"]
    rates = [
        (name, f"{r['charges_a_second']:,.0f}", f"{r['longest_wait_ms']:,.0f} ms")
        for name, r in results.items()
        if "charges_a_second" in r
    ]
    times = [(name, f"{r['ms']:,.1f}") for name, r in results.items() if "ms" in r]
    processes = found["processes"]
    return "\n\n".join((
        markdown((f"{processes} processes", "charges a second", "longest wait"), rates),
        markdown((f"{found['records']:,} records", "ms"), times),
    ))  # fmt: skip


def hardening(found: dict[str, Any]) -> str:
    """Time and memory of hardening one batch."""
    rows = []
    for name, r in found["results"].items():
        low, high = r["ms_quartiles"]
        rows.append((
            name, f"{r['ms_median']:.1f} ({low:.0f} to {high:.0f})", f"{r['ratio_to_naive_median']:.1f}",
            f"{r['memory']['multiple']:.1f}",
        ))  # fmt: skip
    shape = " x ".join(map(str, found["batch"]))
    return markdown((f"{shape}, one core", "ms (quartiles)", "over naive", "peak memory / attribution"), rows)


def overhead(found: dict[str, Any]) -> str:
    """What hardening adds to each explainer."""
    rows = []
    for name, r in found["results"].items():
        low, high = r["ratio_quartiles"]
        peak = f"{r['native_peak_mib']:.0f} / {r['hardened_peak_mib']:.0f}" if "native_peak_mib" in r else ""
        rows.append((name, f"{r['native_ms']:.0f}", f"{r['ratio_median']:.3f} ({low:.2f} to {high:.2f})", peak))
    header = ("method", "native ms", "hardened / native (median, quartiles)", "peak MiB, native / hardened")
    return markdown(header, rows)


def power(found: dict[str, Any]) -> str:
    """Share of the oracle's true-positive rate that every attack finds."""
    rows = [
        (name, f"{r['tpr']['oracle']:.1%}", *(f"{share:.2f}" for share in r["share"].values()))
        for name, r in found["problems"].items()
    ]
    names = next(iter(found["problems"].values()))["share"]
    return markdown((f"{found['references']} references", "oracle's TPR at 1 %", *names), rows)
