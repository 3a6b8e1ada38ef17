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
