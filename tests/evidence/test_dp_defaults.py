"""audit/suites/dp_defaults: what it computes is right, and it runs."""

import json

import pytest
from evidence import ROOT, needs, twice

from audit.suites.dp_defaults import suite, tables


def test_the_search_is_of_options_that_a_person_sets():
    wanted = suite.configurations(1000)
    assert wanted.pop(suite.DEFAULTS) == {}
    assert set(wanted.pop(suite.BEFORE)) == {"lr", "batch_size", "epochs"}
    assert len(wanted) == 20
    assert {options["batch_size"] for options in wanted.values()} == {50, 250}


def test_the_search_chooses_by_validation_and_its_best_by_the_reported_records():
    runs = {
        suite.DEFAULTS: [[0.0, 0.80], [0.0, 0.82]],
        suite.BEFORE: [[0.0, 0.5], [0.0, 0.5]],
        "one": [[0.9, 0.70], [0.8, 0.80]],
        "two": [[0.8, 0.86], [0.9, 0.84]],
    }
    found = suite.summed_up(runs)
    assert found["chosen"] == ["one", "two"]
    assert found["chosen by validation"][0] == pytest.approx((0.70 + 0.84) / 2)
    assert found["best"] == "two"
    assert found["defaults - best"] == pytest.approx([-0.04, 0.02])
    assert suite.missed({"task": {"summary": {"1": found}}}) == ["task, epsilon 1: -4.0 ± 2.0 points from two"]


def test_committed_results_say_where_the_defaults_fall_short():
    found = json.loads((ROOT / "audit" / "results" / "dp_defaults.json").read_text())
    assert set(found["results"]) == set(suite.TASKS)
    for result in found["results"].values():
        assert {e: suite.summed_up(runs)["best"] for e, runs in result["accuracies"].items()} == {
            e: row["best"] for e, row in result["summary"].items()
        }
    assert suite.missed(found["results"]) == []
    assert tables.accuracy(found).count("\n") == 10


@pytest.mark.slow
@needs("adult.npz")
def test_the_suite_resumes(tmp_path):
    first, second = twice("audit.suites.dp_defaults", tmp_path, "--task", "adult")
    assert first["results"]["adult"]["summary"] == second["results"]["adult"]["summary"]
