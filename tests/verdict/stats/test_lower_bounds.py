"""Lower bounds on epsilon: never above the truth more often than promised, how tight, and what breaks them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import norm

from safexplain._privacy_loss import Steps, epsilons
from safexplain.errors import InputError
from safexplain.verdict.canaries.result import Claim
from safexplain.verdict.stats import bound_epsilon, clopper_pearson, epsilon_from_errors, epsilon_lower_bound
from safexplain.verdict.stats.lower_bounds import (
    STRICTER,
    ErrorCounts,
    Family,
    _CanarySums,
    _refuted,
    choose_score,
    detectable,
    gaussian_epsilon,
    promise_of,
    trade_off,
)

DELTA = 1e-5
METHODS = ["pld", "gdp", "clopper-pearson"]
FULL, QUARTER = (1.0, 500, 22.3557), (0.25, 500, 5.5728)
"""Sampling rate, steps, noise multiplier: epsilon 10 under substitution."""
FEW_STEPS = (0.9, 1, 0.72)


def scored(mechanism, runs, rng):
    """(runs / 2,) scores on D and on D': the canary's gradients of +1 or -1, and the noise, of all steps."""
    q, steps, noise = mechanism
    joined = rng.binomial(steps, q, (2, runs // 2))
    a, b = np.array([[1.0], [-1.0]]) * joined + rng.normal(0, math.sqrt(steps) * noise, (2, runs // 2))
    return a, b


def claim(mechanism):
    return {"sample_rate": mechanism[0], "steps": mechanism[1]}


def truth(mechanism):
    q, steps, noise = mechanism
    return epsilons(noise, q, steps, DELTA).substitute


def bounds(mechanism, runs, method, threshold, repeats):
    """Bounds of independent experiments."""
    drawn = (scored(mechanism, runs, np.random.default_rng([7, runs, i])) for i in range(repeats))
    settings = {"threshold": threshold, **claim(mechanism)}
    return np.array([epsilon_lower_bound(a, b, DELTA, method, seed=i, **settings) for i, (a, b) in enumerate(drawn)])


@pytest.mark.parametrize(
    ("mechanism", "method", "threshold"),
    [(FULL, "gdp", None), (FULL, "clopper-pearson", 0.0), ((0.3, 8, 1.1), "pld", None), (FEW_STEPS, "pld", 0.0)],
)
def test_a_bound_is_above_the_truth_in_at_most_5_percent_of_experiments(mechanism, method, threshold):
    repeats, runs = 150, 4000 if method == "pld" else 500  # with many runs, few curves are visited
    above = int((bounds(mechanism, runs, method, threshold, repeats) > truth(mechanism)).sum())
    assert clopper_pearson(above, repeats, 0.98)[0] <= 0.05


def test_gdp_claims_too_much_of_few_steps_and_pld_does_not():
    q, _, noise = FEW_STEPS
    rate, n = (1 - q) / 2 + q * ndtr(-1 / noise), 12_500
    errors = round(n * rate), n, round(n * rate), n, DELTA
    true = truth(FEW_STEPS)
    assert true == pytest.approx(8.60, abs=0.01)
    assert epsilon_from_errors(*errors, "gdp") == pytest.approx(11.6, abs=0.1)
    assert 0.9 * true < epsilon_from_errors(*errors, "pld", **claim(FEW_STEPS)) < true


def test_gdp_and_pld_agree_on_many_steps():
    errors = 2000, 12_500, 2000, 12_500, DELTA
    gdp = epsilon_from_errors(*errors, "gdp")
    assert epsilon_from_errors(*errors, "pld", sample_rate=0.25, steps=500) == pytest.approx(gdp, rel=0.01)
    assert epsilon_from_errors(*errors, "pld", sample_rate=1.0, steps=500) == gdp


def test_each_half_of_the_claim_matters():
    """Other steps, sampling rates and ways to draw a batch: other noise, and another epsilon."""
    errors = 30, 500, 30, 500, DELTA, "pld"
    claims = ((1.0, 2, None), (0.9, 2, None), (0.9, 9, None), (0.5, 9, None), (0.5, 9, "fixed-size"))
    found = {round(epsilon_from_errors(*errors, sample_rate=q, steps=t, sampling=drawn), 2) for q, t, drawn in claims}
    assert len(found) == len(claims)


@pytest.mark.parametrize("mechanism", [FULL, (0.9, 1, 0.72), (0.25, 1, 0.5)])
def test_with_unlimited_runs_the_pld_bound_is_the_truth(mechanism):
    q, steps, noise = mechanism
    spread, n = noise * math.sqrt(steps), 10**11
    for threshold in (0.0, 0.5 * spread):
        if q == 1:
            fpr, fnr = ndtr(-(threshold + steps) / spread), ndtr((threshold - steps) / spread)
        else:
            fpr = (1 - q) * ndtr(-threshold / noise) + q * ndtr(-(threshold + 1) / noise)
            fnr = (1 - q) * ndtr(threshold / noise) + q * ndtr((threshold - 1) / noise)
        bound = epsilon_from_errors(round(n * fpr), n, round(n * fnr), n, DELTA, "pld", **claim(mechanism))
        assert 0.98 * truth(mechanism) < bound < truth(mechanism)


def test_the_direct_bound_is_the_formula():
    fpr, fnr = clopper_pearson(3, 200)[1], clopper_pearson(60, 300)[1]
    expected = math.log(max((1 - 0.01 - fnr) / fpr, (1 - 0.01 - fpr) / fnr))
    assert epsilon_from_errors(3, 200, 60, 300, 0.01) == pytest.approx(expected)
    assert epsilon_from_errors(0, 99, 0, 99, 1e-12, "gdp") > 0  # the smallest delta of Gaussian noise


def test_a_score_at_the_threshold_says_world_a():
    found = bound_epsilon([1, 1, 0], [1, 0, 0, 0], DELTA, threshold=1.0)
    assert (found.false_positives, found.negatives, found.false_negatives, found.positives) == (1, 4, 1, 3)


def test_scores_may_be_infinite():
    a, b = np.r_[np.full(99, np.inf), 0.0], np.r_[np.full(99, -np.inf), 0.0]
    found = bound_epsilon(a, b, DELTA, threshold=1.0)
    assert (found.false_positives, found.false_negatives) == (0, 1)
    assert bound_epsilon(a, b, DELTA).epsilon > 5


@pytest.mark.parametrize("method", METHODS)
def test_worlds_that_look_alike_or_are_swapped_prove_nothing(method):
    a, b = scored(FULL, 400, np.random.default_rng(1))
    settings = {"sample_rate": 0.5, "steps": 3} if method == "pld" else {}
    assert epsilon_lower_bound(np.ones(50), np.ones(50), DELTA, method, **settings) == 0
    if method in ("pld", "gdp"):
        assert epsilon_lower_bound(b, a, DELTA, method, threshold=0.0, **settings) == 0
    for counts in ((50, 50, 50, 50), (0, 50, 50, 50), (50, 50, 0, 50), (1, 1, 0, 1)):
        assert epsilon_from_errors(*counts, DELTA, method, **settings) == 0


def test_runs_that_are_counted_did_not_choose_the_threshold():
    a, b = np.arange(101.0), np.arange(60.0) - 30
    found = bound_epsilon(a, b, DELTA, seed=3)
    assert (found.positives, found.negatives) == (71, 42)
    rng = np.random.default_rng(3)
    counted_a, counted_b = rng.permutation(a)[30:], rng.permutation(b)[18:]
    assert found.false_negatives == (counted_a < found.threshold).sum()
    assert found.false_positives == (counted_b >= found.threshold).sum()
    assert bound_epsilon(a, b, DELTA, seed=3) == found
    assert len({bound_epsilon(a, b, DELTA, seed=s).threshold for s in range(9)}) > 1


@pytest.mark.parametrize("method", METHODS)
def test_the_chosen_threshold_has_the_highest_bound_on_the_runs_that_choose(method):
    a, b = scored((0.6, 3, 0.5), 300, np.random.default_rng(2))
    settings = {"sample_rate": 0.6, "steps": 3} if method == "pld" else {}
    found = bound_epsilon(a, b, DELTA, method, seed=4, **settings)
    rng = np.random.default_rng(4)
    first_a, first_b = rng.permutation(a)[:45], rng.permutation(b)[:45]

    def there(threshold):
        return epsilon_lower_bound(
            first_a, first_b, DELTA, method, threshold=threshold, confidence=1 - STRICTER * 0.05, **settings
        )

    best = max(there(t) for t in np.concatenate([first_a, first_b])[::10])
    assert there(found.threshold) >= (0.93 if method == "pld" else 1) * best - 1e-9


def test_of_scores_without_errors_the_first_with_the_widest_gap_over_its_range_is_chosen():
    ends = np.tile([0.0, 1.0], 20)[:, None]
    d, d_prime = np.hstack([5 + 5 * ends, *[105 + 5 * ends] * 2]), np.hstack([4 * ends, *[100 + 2 * ends] * 2])
    for sign in (1, -1):
        found = choose_score(sign * d, sign * d_prime, DELTA, "gdp")
        assert (found.score, found.negative, abs(found.threshold)) == (1, sign < 0, 103.5)
        assert (len(found.d), len(found.d_prime)) == (28, 28)


@given(
    st.sampled_from(METHODS),
    st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.integers(1, 3000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
)
def test_errors_never_raise_a_bound(method, first, second):
    bound = epsilon_from_errors(*first, *second, DELTA, method)
    ceiling = epsilon_from_errors(0, first[1], 0, second[1], DELTA, method)
    fewer = epsilon_from_errors(max(first[0] - 1, 0), first[1], *second, DELTA, method)
    assert 0 <= bound <= fewer + 1e-5
    assert fewer <= ceiling + 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_bound_prints_the_most_that_could_have_been_shown(method):
    small, large = (epsilon_from_errors(0, n, 0, n, DELTA, method) for n in (350, 3500))
    assert 0 < small < large
    found = bound_epsilon(np.ones(500), np.zeros(500), DELTA, method, seed=1)
    assert found.epsilon == found.ceiling == pytest.approx(small)
    assert f"at most {small:.2f} could be shown with 350 + 350 runs" in str(found)
    assert epsilon_from_errors(3, 350, 3, 350, DELTA, method) < small
    stricter = epsilon_from_errors(0, 350, 0, 350, DELTA, method, confidence=0.99)
    assert stricter < small


def test_the_number_is_that_of_the_whole_result():
    a, b = scored(FULL, 200, np.random.default_rng(0))
    settings = {"threshold": 3.0, "confidence": 0.9, "sample_rate": 0.5, "steps": 3, "sampling": "fixed-size"}
    whole = bound_epsilon(a, b, 1e-4, "pld", **settings)
    assert epsilon_lower_bound(a, b, 1e-4, "pld", **settings) == whole.epsilon
    assert (whole.method, whole.delta, whole.confidence, whole.threshold) == ("pld", 1e-4, 0.9, 3.0)
    one, other = (bound_epsilon(a, b, 1e-4, seed=seed).epsilon for seed in (0, 1))
    assert one == bound_epsilon(a, b, 1e-4).epsilon == epsilon_lower_bound(a, b, 1e-4)
    assert one != other == epsilon_lower_bound(a, b, 1e-4, seed=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bound_epsilon([1.0, math.nan], [1, 2], DELTA), "scores_d: 1 of 2 scores are NaN"),
        (lambda: bound_epsilon([], [1], DELTA, threshold=0.0), "scores_d: expected scores of shape"),
        (lambda: bound_epsilon([1], [1, 2], DELTA), "at least 2 runs on each of D and D', got 1 and 2"),
        (lambda: bound_epsilon([1, 2], [1, 2], DELTA, threshold=math.nan), "threshold"),
        (lambda: bound_epsilon([1, 2], [1, 2], DELTA, "rdp"), "method: expected one of pld, gdp"),
        (lambda: bound_epsilon([1, 2], [1, 2], 0.0), "delta 0"),
        (lambda: epsilon_from_errors(0, 9, 0, 9, math.nextafter(1e-12, 0), "gdp"), "needs at least 1e-12"),
        (lambda: bound_epsilon([1, 2], [1, 2], 1.0, "clopper-pearson"), "delta"),
        (lambda: bound_epsilon([1, 2], [1, 2], DELTA, confidence=1.0), "confidence"),
        (lambda: epsilon_from_errors(3, 2, 0, 2, DELTA, "pld"), "successes"),
    ],
)
def test_what_makes_no_sense_is_refused_by_bounds(call, message):
    with pytest.raises(InputError, match=message):
        call()


FULL_BATCH, SAMPLED = Steps(22.3557, 1.0, 500, "full-batch"), Steps(2.0, 0.25, 40)


def test_what_would_be_found_is_the_number_that_was_simulated():
    """One for each way to bound: a family of mechanisms, a Gaussian one, none, and the smaller epsilon of records."""
    of_records = promise_of(4.0, DELTA, FULL_BATCH, "add_remove")
    full, alone = promise_of(10.0, DELTA, FULL_BATCH, "substitute"), promise_of(1.0, DELTA, None, "substitute")
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
    promise = promise_of(1.0, DELTA, FULL_BATCH, "substitute")
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
    assert promise_of(math.inf, DELTA, FULL_BATCH, "substitute") is None
    assert promise_of(501.0, DELTA, None, "substitute") is None
    assert promise_of(2.0, DELTA, Steps(0.0, 1.0, 5, "full-batch"), "substitute") is None
