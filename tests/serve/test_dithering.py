"""What the suite on dithering counts is what a slow greedy count gives, and its tables say what is in the result."""

from __future__ import annotations

import numpy as np
import pytest
from evidence import DATA

from audit.suites.dithering import suite, tables
from audit.suites.releases.tasks import TASKS
from safexplain.audit.queries import Dither, Queries


@pytest.fixture(scope="module")
def digits():
    return TASKS["digits"]("quick", DATA)


def slowly(sketches, threshold, looks):
    """Queries that are answered, one after the other, each compared with every one before that was."""
    kept, maps, asked = [], [], {}
    for sketch in sketches:
        apart = [float(np.linalg.norm(sketch - other)) for other in kept]
        nearest = min(range(len(kept)), key=apart.__getitem__, default=None)
        near = nearest is not None and apart[nearest] <= threshold
        about = maps[nearest] if near else len(kept)
        if asked.get(about, 0) < looks:
            asked[about] = asked.get(about, 0) + 1
            kept.append(sketch)
            maps.append(about)
    return len(kept)


@pytest.mark.parametrize("dither", [Dither("multiplicative", 0.1), Dither("additive", 0.2), Dither("additive", 0.5)])
@pytest.mark.parametrize("quantile", [0.01, 0.2])
def test_as_many_get_through_as_a_slow_count_says(digits, dither, quantile, monkeypatch):
    monkeypatch.setattr(suite, "QUERIES", 60)
    found = suite.through(digits, dither, quantile, 3)
    likeness, queries = suite.budget_of(digits, quantile).likeness, Queries.of(digits.pool, dither)
    expected = []
    for row in np.random.default_rng(1).permutation(len(digits.pool))[:3]:
        x = [digits.pool.x[row].numpy(), *(queries([row], number).numpy()[0] for number in range(60))]
        expected.append(slowly(likeness.sketch(np.stack(x).astype(np.float32)), likeness.threshold, suite.LOOKS))
    assert [found["least"], found["most"]] == [min(expected), max(expected)]
    assert found["mean"] == pytest.approx(np.mean(expected))


def test_honest_questions_are_told_apart_by_how_many_were_asked_before(digits):
    rows = list(suite.honest(digits, 0.2))
    assert [row["asked_before"][0] for row in rows] == [0]
    assert rows[0]["questions"] == len(digits.pool)
    assert 0 <= rows[0]["taken"] < 0.2
    assert suite.judged({"digits": {"honest": rows}}) == []
    false = [{"asked_before": [100, 299], "taken": 0.3, "quantile": 0.05, "questions": 200}]
    assert suite.judged({"digits": {"honest": false}}) == [
        "digits: 30.0% of honest questions are looks at quantile 0.05"
    ]


def test_a_missing_figure_of_a_table_is_empty():
    row = {"kind": "additive", "amplitude": 0.1, "level": 200, "labels 1": [0.5, 0.1, 0.02, 0.01],
           "labels 200": [0.6, 0.1, 0.04, 0.01]}  # fmt: skip
    text = tables.attack({"queries": 200, "results": {"some": {"attack": [row]}}})
    assert "| some | additive 0.1 | labels | 0.500, 2.0 ± 2.0 % | all | 0.600, 4.0 ± 2.0 % |" in text
