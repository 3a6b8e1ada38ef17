"""What the suite on dithering counts is what a slow greedy count gives, and its attackers find what is there."""

import numpy as np
import pytest
import torch
from evidence import DATA

from audit.suites.dithering import scripts, suite
from audit.suites.releases.tasks import TASKS


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


@pytest.fixture(scope="module")
def attacker(digits):
    torch.manual_seed(0)
    return scripts.Attacker(digits, digits.build(0), 0.01)


@pytest.mark.parametrize(
    ("script", "quantile"),
    [("x exp(.1 z)", 0.2), ("noise of .03", 0.01), ("x + .5 s z", 0.01), ("eight rare features, any value", 0.2)],
)
def test_as_many_get_through_as_a_slow_count_says(digits, attacker, script, quantile):
    found = suite.through(attacker, script, quantile, 3)
    likeness, expected = suite.budget_of(digits, quantile).likeness, []
    for row in np.random.default_rng(1).permutation(len(digits.pool))[:3]:
        x = [digits.pool.x[[row]].numpy(), scripts.SCRIPTS[script](attacker, int(row))]
        expected.append(slowly(likeness.sketch(np.concatenate(x).astype(np.float32)), likeness.threshold, suite.LOOKS))
    assert [found["least"], found["most"]] == [min(expected), max(expected)]
    assert found["mean"] == pytest.approx(np.mean(expected))


def test_whoever_goes_just_beyond_the_threshold_is_answered_and_half_as_far_is_not(digits, attacker, monkeypatch):
    assert suite.through(attacker, "just beyond, steepest", 0.01, 2)["mean"] > 190
    monkeypatch.setattr(scripts, "MARGIN", 0.5)
    assert suite.through(attacker, "just beyond, steepest", 0.01, 2)["mean"] < 10


def test_a_script_of_small_changes_that_is_answered_is_missed_and_so_are_honest_questions_refused():
    honest = {"asked_before": [0, 99], "taken": 0.0, "refused": 0.02, "quantile": suite.DEFAULT, "questions": 100}
    script = {"script": "faint", "quantile": suite.DEFAULT, "change": 0.5, "mean": 30.0}
    wide = {**script, "change": 1.5}
    assert suite.judged({"digits": {"honest": [honest], "through": [script, wide]}}) == [
        "digits: 2 honest questions are refused", "digits: 30 questions of 'faint' are answered",
    ]  # fmt: skip
