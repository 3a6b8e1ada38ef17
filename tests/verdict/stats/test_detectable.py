"""From which epsilon on an audit would have found a training; tests/evidence simulates such audits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from safexplain._privacy_loss import Steps
from safexplain.verdict.canaries.result import Claim
from safexplain.verdict.stats.lower_bounds import (
    ErrorCounts,
    Family,
    _CanarySums,
    _refuted,
    detectable,
    gaussian_epsilon,
    promise_of,
    trade_off,
)

DELTA = 1e-5
FULL, SAMPLED = Steps(22.3557, 1.0, 500, "full-batch"), Steps(2.0, 0.25, 40)


def test_what_would_be_found_is_the_number_that_was_simulated():
    """One for each way to bound: a family of mechanisms, a Gaussian one, none, and the smaller epsilon of records."""
    of_records = promise_of(4.0, DELTA, FULL, "add_remove")
    full, alone = promise_of(10.0, DELTA, FULL, "substitute"), promise_of(1.0, DELTA, None, "substitute")
    sampled = promise_of(Claim(SAMPLED, DELTA).substitute, DELTA, SAMPLED, "substitute")
    found = [
        detectable(ErrorCounts(185, 1000, 185, 1000), "gdp", full, fixed=False),
        detectable(ErrorCounts(185, 1000, 185, 1000), "pld", of_records, fixed=True),
        detectable(ErrorCounts(100, 1000, 120, 1000), "pld", sampled, fixed=True),
        detectable(ErrorCounts(20, 1000, 300, 1000), "clopper-pearson", alone, fixed=True),
    ]
    assert found == pytest.approx([14.567, 4.3864, 7.4040, 1.00185], rel=2e-3)
    for few in (ErrorCounts(495, 1000, 495, 1000), ErrorCounts(0, 8, 0, 8)):  # a weak canary, and too few runs
        assert detectable(few, "pld", full, fixed=True) is None


def test_each_method_refutes_below_its_own_curve():
    rates, alone = np.array([0.05, 0.6]), promise_of(1.0, 0.01, None, "substitute")
    direct = [1 - 0.01 - math.e * 0.05, (1 - 0.01 - 0.6) / math.e]
    assert alone.curve(rates, "clopper-pearson") == pytest.approx(direct)
    assert gaussian_epsilon(alone.mu, 0.01) == pytest.approx(1.0)
    assert alone.curve(rates, "gdp") == pytest.approx(norm.cdf(norm.isf(rates) - alone.mu))
    assert alone.curve(rates, "pld") == pytest.approx(alone.curve(rates, "gdp"))
    sampled = promise_of(Claim(SAMPLED, DELTA).substitute, DELTA, SAMPLED, "substitute")
    assert sampled.curve(rates, "pld") == pytest.approx(trade_off(SAMPLED, DELTA)(rates))


def test_the_probability_of_refuting_is_that_of_simulated_errors():
    promise = promise_of(1.0, DELTA, FULL, "substitute")
    errors = ErrorCounts(0, 300, 0, 500)
    rng = np.random.default_rng(0)
    for fpr, fnr in ((0.02, 0.3), (0.2, 0.25), (0.35, 0.45)):
        fast = _refuted(fpr, fnr, errors, "gdp", promise)
        found = 0
        for a, b in zip(rng.binomial(300, fpr, 2000), rng.binomial(500, fnr, 2000), strict=True):
            counts = replace(errors, false_positives=int(a), false_negatives=int(b))
            found += counts.fnr < promise.curve(np.array(counts.fpr), "gdp")
        assert fast == pytest.approx(found / 2000, abs=0.03)


def test_scores_have_the_distribution_of_sampled_gradients_and_noise():
    rng, threshold = np.random.default_rng(0), np.array([-1.0, 0.0, 0.5, 2.0])
    drawn = rng.binomial(20, 0.05, 200_000) + rng.normal(0, 0.7, 200_000)
    expected = _CanarySums(Family(0.05, 20)).below(threshold, 0.7)  # in units of the mean, which is 1
    np.testing.assert_allclose([(drawn < t).mean() for t in threshold], expected, atol=5e-3)


@pytest.mark.parametrize("family", [Family(), Family(0.25, 40), Family(0.05, 20)], ids=str)
def test_the_noise_and_threshold_of_a_canary_follow_from_its_errors(family):
    sums = _CanarySums(family)
    for noise, threshold in ((0.4, 0.3), (1.0, 0.0), (3.0, -0.8)):
        fpr, fnr = (float(sums.below(np.array([at]), noise)[0]) for at in (-threshold, threshold))
        assert sums.fit(fpr, fnr) == (pytest.approx(noise, rel=0.05), pytest.approx(threshold, abs=0.05))


def test_nothing_is_found_beyond_a_claim_that_promises_nothing():
    assert promise_of(math.inf, DELTA, FULL, "substitute") is None
    assert promise_of(501.0, DELTA, None, "substitute") is None
    assert promise_of(2.0, DELTA, Steps(0.0, 1.0, 5, "full-batch"), "substitute") is None
