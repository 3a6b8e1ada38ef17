"""The red team's attacks and a thousand disguises of a leak: what is committed is complete, and none succeeds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evidence import ROOT

from audit.suites.fuzzed_files import suite as fuzz
from audit.suites.red_team import suite
from safexplain.audit import certify


def test_the_committed_results_are_complete_and_every_attack_fails():
    report = json.loads((ROOT / "audit" / "results" / "red_team.json").read_text())
    assert not report["quick"]
    assert [(r["attack"], r["before"]) for r in report["results"]["attacks"]] == [
        (attack, before) for _, attack, before, _ in suite.ROWS
    ]
    assert [r["attack"] for r in report["results"]["attacks"] if not r["held"]] == []


@pytest.mark.parametrize("measure", [pytest.param(suite.spellings, marks=pytest.mark.slow), suite.wrappers])
def test_differently_written_questions_take_no_noise_away(measure):
    after, _, held = measure(True)
    assert held, after


@pytest.mark.usefixtures("few_trees")
def test_weak_attacks_beside_labels_certify_nothing_and_name_what_they_find():
    leaking = suite.simulated(leak=6.0, examples=600)
    weak = certify(leaking, replace(suite.ONCE, suite=("Threshold", "RMIA")))
    assert weak.verdict == "leak"  # what is named is stacked with the labels, and judged
    assert {a.attack for a in weak.judged} == {"Stacked"}
    assert {a.attack for a in weak.attacks} >= {"Threshold"}


@pytest.fixture(autouse=True)
def uses_of_its_own(monkeypatch):
    monkeypatch.delenv(fuzz.VARIABLE, raising=False)  # which variants set, each its own


def test_no_variant_of_a_leaking_file_that_was_judged_before_is_certified():
    found = fuzz.after_a_verdict(36)
    assert (found["first"], found["then"] != "certified") == ("leak", True), found["changes"]


def test_no_variant_that_keeps_the_leak_is_certified_at_first_sight():
    found = fuzz.first_of_all(11)
    assert found["then"] != "certified", found["changes"]


def test_a_reference_that_is_there_twice_does_not_hide_a_leak():
    """Stacking failed on it, and what its parts found was "not judged"."""
    leak = fuzz.leaking("whole map", fuzz.np.random.default_rng(0))
    assert _judged(fuzz.of_models(leak, [*range(7), 3])) != "certified"


def _judged(arrays):
    import tempfile

    with tempfile.TemporaryDirectory() as at:
        return fuzz.outcome(arrays, fuzz.STRICT, Path(at), Path(at, "uses.sqlite"))


def test_the_committed_thousand_are_complete_and_none_is_certified():
    report = json.loads((ROOT / "audit" / "results" / "fuzzed_files.json").read_text())
    assert not report["quick"]
    found = report["results"]
    assert found["after a verdict"]["variants"] >= fuzz.VARIANTS
    assert found["harmless"]["variants"] >= fuzz.HARMLESS
    assert all("certified" not in found[name]["outcomes"] for name in ("after a verdict", "first of all"))
    assert found["harmless"]["outcomes"] == {"certified": found["harmless"]["variants"]}


def test_skewed_numbers_leak_in_an_unknown_array():
    rng = fuzz.np.random.default_rng(4)
    file = fuzz.clean(rng, n=1600)
    leak = fuzz.np.exp(rng.normal(size=(*file["membership"].shape, 2)) - 3.0 * file["membership"][..., None])
    assert _judged({**file, "x": leak, "x@4": leak}) == "leak"
