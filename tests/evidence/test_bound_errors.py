"""The suite that measures lower bounds on epsilon: it simulates what it says, and names what misses its promise."""

import json

import numpy as np
import pytest
from evidence import ROOT

from audit.suites.bound_errors import power, suite
from audit.suites.bound_errors.credible import credible_bound
from safexplain.verdict.stats.lower_bounds import ErrorCounts


def test_the_sum_alone_is_as_private_as_all_steps_only_for_full_batches():
    full, few = suite.Mechanism(1.0, 500, 22.3557), suite.Mechanism(0.0625, 10, 0.5)
    assert full.epsilon_of_sum == pytest.approx(full.epsilon, abs=1e-3) == pytest.approx(10, abs=1e-2)
    assert few.epsilon_of_sum == pytest.approx(5.76, abs=0.01)
    assert few.epsilon > 9


def test_the_credible_bound_is_the_quantile_of_simulated_posteriors():
    rng = np.random.default_rng(0)
    for fp, n, fn, p, delta in ((0, 500, 0, 500, 0.0), (100, 500, 80, 400, 1e-5)):
        x, y = (rng.beta(k + 0.5, m - k + 0.5, 300_000) for k, m in ((fp, n), (fn, p)))
        drawn = np.log(np.maximum((1 - delta - y) / x, (1 - delta - x) / y))
        for confidence in (0.9, 0.95):
            found = credible_bound(ErrorCounts(fp, n, fn, p, confidence), delta)
            assert found == pytest.approx(np.quantile(drawn, 1 - confidence), abs=0.02)


def test_the_committed_results_are_complete_and_keep_what_is_promised():
    report = json.loads((ROOT / "audit" / "results" / "bound_errors.json").read_text())
    assert not report["quick"]
    assert report["targets_missed"] == suite.failures([*report["two_worlds"], *report["one_run"]]) == []
    mechanisms = len(suite.MANY_STEPS) + len(suite.FEW_STEPS)
    assert len(report["two_worlds"]) == mechanisms * len(suite.RUNS)
    assert len(report["one_run"]) == len(suite.ONE_RUN)
    assert min(b["of"] for cell in report["two_worlds"] for b in cell["bounds"].values()) >= 1000
    few = [c["bounds"] for c in report["two_worlds"] if c["mechanism"]["steps"] < 500 and c["runs"] == 25_000]
    assert max(b["gdp fixed"]["low"] for b in few) > 0.5


def test_what_canaries_say_that_they_would_find_is_found():
    report = json.loads((ROOT / "audit" / "results" / "canary_power.json").read_text())
    assert not report["quick"]
    assert report["targets_missed"] == power.failures(report["audits"]) == []
    assert len(report["audits"]) == sum(map(len, (power.MAIN, power.METHODS, power.ADD_REMOVE)))
    telling = [cell for cell in report["audits"] if cell["detectable"] is not None]
    assert len(telling) > 20
    assert sum(cell["found"] for cell in telling) >= 0.95 * sum(cell["of"] for cell in telling)
