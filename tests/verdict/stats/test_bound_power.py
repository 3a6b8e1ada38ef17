"""The power of an audit by canaries: every piece against the slow way, and the whole against simulated audits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm

from safexplain._privacy_loss import Steps, epsilons
from safexplain.verdict.canaries.claim import Claim
from safexplain.verdict.canaries.result import Scores, judge
from safexplain.verdict.stats import epsilon_from_errors, one_run_lower_bound
from safexplain.verdict.stats.bound_methods import ErrorCounts
from safexplain.verdict.stats.bound_power import (
    _Test,
    canary_sums,
    excess_over,
    many_runs_power,
    one_run_power,
    runs_needed,
)
from safexplain.verdict.stats.tradeoff import Family

DELTA = 1e-5
FULL, SAMPLED = Steps(22.3557, 1.0, 500, "full-batch"), Steps(2.0, 0.25, 40)
METHODS = ("pld", "gdp", "clopper-pearson")


def excess(mechanism, adjacency="substitute"):
    claimed = epsilons(
        mechanism.noise_multiplier, mechanism.sample_rate, mechanism.steps, DELTA, sampling=mechanism.sampling
    ).of(adjacency)
    return excess_over(claimed, DELTA, mechanism, adjacency)


@pytest.mark.parametrize("mechanism", [FULL, SAMPLED], ids=["full", "sampled"])
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_the_training_to_be_found_spends_twice_the_claim(mechanism, adjacency):
    found = excess(mechanism, adjacency)
    noise = found.shrink * mechanism.noise_multiplier
    spent = epsilons(noise, mechanism.sample_rate, mechanism.steps, DELTA, sampling=mechanism.sampling).of(adjacency)
    assert spent == pytest.approx(2 * found.claimed, rel=5e-3)
    at = found.limit
    limit = epsilons(at.noise_multiplier, at.sample_rate, at.steps, DELTA, sampling=at.sampling).substitute
    assert limit == pytest.approx(found.claimed, rel=5e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("claimed", [0.5, 2.0])
def test_errors_that_refute_a_claim_are_those_whose_bound_is_above_it(method, claimed):
    """The oracle asks the bound itself, for every number of errors."""
    negatives, positives = 25, 40
    found = excess_over(claimed, DELTA, SAMPLED, "substitute")
    test = _Test(method, found, negatives, positives, 0.95)
    most = test.most(np.arange(negatives + 1))
    family = {"sample_rate": SAMPLED.sample_rate, "steps": SAMPLED.steps}
    for false_positives in range(0, negatives + 1, 1 if method != "pld" else 2):
        bounds = [
            epsilon_from_errors(false_positives, negatives, b, positives, DELTA, method, **family)
            for b in range(min(positives, most[false_positives] + 4))
        ]
        above = sum(bound > claimed for bound in bounds)
        off = int(method == "pld")  # stops within half a percent
        assert abs(above - (most[false_positives] + 1)) <= off, false_positives
    assert test.can_exceed == (most[0] >= 0)


@pytest.mark.parametrize("method", ["pld", "clopper-pearson"])
def test_the_probability_of_refuting_is_that_of_simulated_errors(method):
    test = _Test(method, excess_over(1.0, DELTA, FULL, "substitute"), 300, 500, 0.95)
    rates = np.array([0.02, 0.2, 0.35]), np.array([0.3, 0.25, 0.45])
    rng = np.random.default_rng(0)
    fast = test.power(*rates)
    for fpr, fnr, power in zip(*rates, fast, strict=True):
        a, b = rng.binomial(300, fpr, 20_000), rng.binomial(500, fnr, 20_000)
        assert power == pytest.approx((b <= test.most(a)).mean(), abs=0.015)


@pytest.mark.parametrize("family", [Family(), Family(0.25, 40), Family(0.05, 20)], ids=str)
def test_the_noise_and_threshold_of_a_canary_follow_from_its_errors(family):
    sums = canary_sums(family)
    noise, threshold = np.array([0.4, 1.0, 3.0]), np.array([0.3, 0.0, -0.8])
    found, at = sums.fit(sums.cdf(-threshold, noise), sums.cdf(threshold, noise))
    np.testing.assert_allclose(found, noise, rtol=0.05)
    np.testing.assert_allclose(at, threshold, atol=0.05)


def test_scores_have_the_distribution_of_sampled_gradients_and_noise():
    rng, mechanism = np.random.default_rng(0), Family(0.05, 20)
    drawn = rng.binomial(20, 0.05, 200_000) + rng.normal(0, 0.7, 200_000)
    threshold = np.array([-1.0, 0.0, 0.5, 2.0])
    expected = canary_sums(mechanism).cdf(threshold, np.full(4, 0.7))  # in units of the mean, which is 1
    np.testing.assert_allclose([(drawn < t).mean() for t in threshold], expected, atol=5e-3)
    never = 0.95**20
    assert canary_sums(mechanism).cdf(np.array([0.5]), np.array([0.01]))[0] == pytest.approx(never, abs=1e-3)


def test_the_share_of_right_guesses_is_that_of_the_largest_scores():
    rng = np.random.default_rng(0)
    scores = 1 + rng.normal(0, 2.0, 400_000)
    surest = np.argsort(-np.abs(scores))[: len(scores) // 5]
    sums = canary_sums(Family())
    from safexplain.verdict.stats.bound_power import NOISES

    accuracy = np.interp(math.log(2.0), np.log(NOISES), sums.accuracy(0.2))
    assert accuracy == pytest.approx((scores[surest] > 0).mean(), abs=5e-3)


@pytest.mark.parametrize("fixed", [True, False])
def test_fewer_errors_and_more_runs_give_more_power(fixed):
    found = excess(FULL)

    def power(errors, runs, **changes):
        counts = ErrorCounts(errors, runs, errors, runs)
        return many_runs_power(counts, changes.get("method", "pld"), found, fixed=fixed)

    by_errors = [power(errors, 150) for errors in (5, 15, 25, 35, 60, 75, 90)]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(by_errors))
    by_runs = [power(n // 6, n) for n in (12, 60, 120, 600, 3000)]
    assert all(later >= earlier - 1e-6 for earlier, later in pairwise(by_runs))
    assert by_runs[-1] > 0.99
    assert by_errors[-1] < 0.01
    assert power(500, 3000, method="clopper-pearson") < 0.01, "it finds less than half of a Gaussian's epsilon"


def test_a_bound_that_errors_alone_cannot_lift_above_the_claim_has_no_power():
    assert many_runs_power(ErrorCounts(0, 8, 0, 8), "pld", excess(FULL), fixed=True) == 0
    assert one_run_power(100, 100, 1000, "steinke", excess(FULL), 0.95) == 0


@pytest.mark.parametrize("method", ["f-dp", "steinke"])
def test_the_power_of_one_run_is_that_of_its_bound(method):
    """A strong claim, whose canaries' strength is known well: simulated guesses of the training at twice the claim."""
    mechanism = Steps(120.0, 1.0, 500, "full-batch")
    found, canaries, guesses = excess(mechanism), 20_000, 4000
    sums, share = canary_sums(Family()), guesses / canaries
    noise = mechanism.noise_multiplier / math.sqrt(mechanism.steps)
    correct = round(guesses * _accuracy(noise, share))
    stated = one_run_power(correct, guesses, canaries, method, found, 0.95)
    family = {"sample_rate": 1.0, "steps": 500}
    low, high = guesses // 2, guesses
    while high - low > 1:
        middle = (low + high) // 2
        above = one_run_lower_bound(middle, guesses, canaries, DELTA, method, **family) > found.claimed
        low, high = (low, middle) if above else (middle, high)
    then = _accuracy(noise * found.shrink, share)
    drawn = np.random.default_rng(0).binomial(guesses, then, 4000)
    assert stated == pytest.approx((drawn >= high).mean(), abs=0.1)
    assert sums.accuracy(share)[0] == 1.0


def _accuracy(noise: float, share: float) -> float:
    ends = np.linspace(0, 1 + 9 * noise, 20_001)
    right, wrong = norm.sf(ends, 1, noise), norm.cdf(-ends, 1, noise)
    at = int(np.argmin(abs(right + wrong - share)))
    return float(right[at] / (right[at] + wrong[at]))


def test_the_runs_that_are_needed_have_the_power():
    found = excess(FULL)

    def power(times):
        counts = [round(times * n) for n in (20, 100, 20, 100)]
        return many_runs_power(ErrorCounts(*counts), "pld", found, fixed=True)

    needed = runs_needed(200, power, 0.8)
    assert power(1.0) < 0.8 <= power(needed / 200)
    assert power(0.85 * needed / 200) < 0.8
    assert runs_needed(200, lambda times: 0.1, 0.8) is None


def test_nothing_is_found_beyond_a_claim_that_promises_nothing():
    assert excess_over(math.inf, DELTA, FULL, "substitute") is None
    assert excess_over(501.0, DELTA, None, "substitute") is None
    assert excess_over(2.0, DELTA, Steps(0.0, 1.0, 5, "full-batch"), "substitute") is None


@pytest.mark.parametrize(("strength", "stated", "refuted"), [(1.0, True, True), (0.5, False, False)])
def test_stated_power_is_the_power_in_truth(strength, stated, refuted):
    """A strong canary states power and finds twice the claim; a weak one does neither. (audit/suites/bound_errors.)"""
    claim, shrink = Claim(FULL, DELTA), excess(FULL).shrink

    def audit(noise, seed):
        rng = np.random.default_rng(seed)
        d, d_prime = (
            sign * strength * 500 + rng.normal(0, noise * math.sqrt(500), (1, 200)) for sign in (1, -1)
        )  # fmt: skip
        return judge(Scores((500,), d, d_prime), claim, scenario="gradient", seed=seed)

    right = [audit(FULL.noise_multiplier, i).power >= 0.8 for i in range(25)]
    twice = [audit(FULL.noise_multiplier * shrink, i).keeps_claim is False for i in range(25)]
    assert (sum(right) >= 20) is stated
    assert (sum(twice) >= 20) is refuted
    assert stated or sum(right) + sum(twice) <= 3
