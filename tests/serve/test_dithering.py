"""What the suite on dithering counts is what a slow greedy count gives, and its attackers find what is there."""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from evidence import DATA

from audit.suites.dithering import suite
from audit.suites.releases.tasks import TASKS
from safexplain.audit.attacks import LikelihoodRatio
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


def test_what_is_safe_at_a_few_queries_and_leaks_at_many_is_missed():
    safe, leaks, between = [0.0, 0.004, 0.0, 0.002], [0.01, 0.001, 0.03, 0.005], [0.0, 0.004, 0.012, 0.005]
    levels = {
        "labels": {"1": [0.5, 0.01, 0.01, 0.01]},
        "kept": {"1": safe, "32": safe, "200": safe},
        "lost": {"1": safe, "32": safe, "200": leaks},
        "known": {"1": safe, "32": between, "200": leaks},
    }
    found = {"some": {"honest": [], "patience": {"narrow": levels}}}
    assert suite.judged(found) == ["some: lost is safe at 1 and 32 queries (narrow) and leaks at 200"]


def test_a_signal_that_tells_is_found_and_noise_adds_nothing(digits):
    patient = suite.asking(digits, True, Namespace(cache=Path(tempfile.mkdtemp())), lambda *told: None)
    rng = np.random.default_rng(0)
    tells = patient.member + 0.3 * rng.standard_normal(patient.member.shape)
    column = patient.ratios(LikelihoodRatio("identity"), tells)
    noise = patient.ratios(LikelihoodRatio("identity"), rng.standard_normal(tells.shape))
    alone = patient.rates([column])
    assert alone[0, 0] > 0.95
    assert abs(patient.rates([column, noise])[0, 0] - alone[0, 0]) < 0.03
    assert 0.3 < patient.rates([noise])[0, 0] < 0.7
