"""audit/suites/fuzzed_files: no variant of a leaking file is certified, and no harmless one of a clean file is not."""

import json
from pathlib import Path

import pytest

from audit.suites.fuzzed_files import suite

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def uses_of_its_own(monkeypatch):
    monkeypatch.delenv(suite.VARIABLE, raising=False)  # which variants set, each its own


def test_no_variant_of_a_leaking_file_that_was_judged_before_is_certified():
    found = suite.after_a_verdict(36)
    assert (found["first"], found["then"] != "certified") == ("leak", True), found["changes"]


def test_no_variant_that_keeps_the_leak_is_certified_at_first_sight():
    found = suite.first_of_all(11)
    assert found["then"] != "certified", found["changes"]


def test_a_reference_that_is_there_twice_does_not_hide_a_leak():
    """Stacking failed on it, and what its parts found was "not judged"."""
    leak = suite.leaking("whole map", suite.np.random.default_rng(0))
    assert _judged(suite.of_models(leak, [*range(7), 3])) != "certified"


def _judged(arrays):
    import tempfile

    with tempfile.TemporaryDirectory() as at:
        return suite.outcome(arrays, suite.STRICT, Path(at), Path(at, "uses.sqlite"))


def test_the_committed_thousand_are_complete_and_none_is_certified():
    report = json.loads((ROOT / "audit" / "results" / "fuzzed_files.json").read_text())
    assert not report["quick"]
    found = report["results"]
    assert found["after a verdict"]["variants"] >= suite.VARIANTS
    assert found["harmless"]["variants"] >= suite.HARMLESS
    assert all("certified" not in found[name]["outcomes"] for name in ("after a verdict", "first of all"))
    assert found["harmless"]["outcomes"] == {"certified": found["harmless"]["variants"]}


def test_skewed_numbers_leak_in_an_unknown_array():
    rng = suite.np.random.default_rng(4)
    file = suite.clean(rng, n=1600)
    leak = suite.np.exp(rng.normal(size=(*file["membership"].shape, 2)) - 3.0 * file["membership"][..., None])
    assert _judged({**file, "x": leak, "x@4": leak}) == "leak"
