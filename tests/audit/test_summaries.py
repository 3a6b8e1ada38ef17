"""Summaries: one table of numbers computed from a map, checked against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from safexplain.audit.answers import summarise


def slow(row):
    """The definitions, entry by entry."""
    d = len(row)
    l1 = squares = total = positive = support = peak = 0.0
    for a in row:
        l1 += abs(a)
        squares += a * a
        total += a
        positive += a > 0
        support += a != 0
        peak = max(peak, abs(a))
    rms, l2 = math.sqrt(squares / d), math.sqrt(squares)
    variance = 0.0
    for a in row:
        variance += (a - total / d) ** 2 / d
    return {
        "l1": l1,
        "l2": l2,
        "variance": variance,
        "mean": total / d / rms if rms else 0.0,
        "positive": positive / d,
        "support": support / d,
        "sparsity": l1 / l2 / math.sqrt(d) if l2 else 0.0,
        "peak": peak / rms if rms else 0.0,
    }


def maps(d, scale=1.0):
    rng = np.random.default_rng(d)
    rows = scale * rng.normal(size=(20, d)) + scale / 2
    rows[rng.random(rows.shape) < 0.3] = 0
    rows[0] = 0
    return rows


@pytest.mark.parametrize(("d", "scale"), [(1, 1.0), (7, 1e-6), (300, 1e6)])
def test_the_summaries_are_what_a_slow_loop_finds(d, scale):
    rows = maps(d, scale)
    found = summarise(torch.from_numpy(rows))
    expected = [slow(row) for row in rows.tolist()]
    assert found.keys() == expected[0].keys()
    for name, values in found.items():
        assert values.dtype == torch.float64
        floor = 1e-15 * scale**2 if name == "variance" else 1e-15  # what rounding leaves of a variance of 0
        assert values.tolist() == pytest.approx([e[name] for e in expected], rel=1e-9, abs=floor), name


def test_maps_of_low_precision_are_summed_in_double():
    a = torch.full((1, 3000), 0.1, dtype=torch.float16)
    exact = 3000 * a[0, 0].double().item()
    assert summarise(a)["l1"].item() == pytest.approx(exact, rel=1e-12)
    assert a.sum(1).item() != pytest.approx(exact, rel=1e-12)
