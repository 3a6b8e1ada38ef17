"""The red team's attacks: what is committed is complete, and every attack that failed still fails."""

import json
from dataclasses import replace

import pytest
from evidence import ROOT

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
