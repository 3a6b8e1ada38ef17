"""ROC curves, rates, intervals and trade-off curves: against slow versions, other libraries and simulation."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions
from scipy.special import ndtr

from safexplain._privacy_loss import ERROR, Steps, privacy_loss
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc, tpr_at_fpr
from safexplain.verdict.stats.lower_bounds import (
    Family,
    gaussian_distance,
    gaussian_epsilon,
    smallest_refuted,
    trade_off,
)
from safexplain.verdict.stats.roc import upper_limits

TIED = st.one_of(st.integers(-3, 3).map(float), st.floats(-5, 5), st.just(-math.inf))


@st.composite
def scored(draw):
    """Scores with ties, at least one member and one non-member."""
    member = [*draw(st.lists(st.booleans(), max_size=20)), True, False]
    scores = draw(st.lists(TIED, min_size=len(member), max_size=len(member)))
    return np.array(scores), np.array(member)


def slow_auc(scores, member):
    pairs = [(a > b) + (a == b) / 2 for a in scores[member] for b in scores[~member]]
    return sum(pairs) / len(pairs)


def slow_rates(scores, member, threshold):
    return (scores[member] >= threshold).mean(), (scores[~member] >= threshold).mean()


@given(scored())
def test_the_auc_is_the_probability_that_a_member_scores_higher(case):
    scores, member = case
    assert roc(scores, member).auc == pytest.approx(slow_auc(scores, member))


@given(scored())
def test_every_point_of_the_curve_is_what_its_threshold_gives(case):
    scores, member = case
    curve = roc(scores, member)
    assert list(curve.thresholds) == [math.inf, *sorted(set(scores), reverse=True)]
    for threshold, tpr, fpr in zip(curve.thresholds, curve.tpr, curve.fpr, strict=True):
        assert (tpr, fpr) == slow_rates(scores, member, threshold)
    best = max((t + 1 - f) / 2 for t, f in (slow_rates(scores, member, s) for s in curve.thresholds))
    assert curve.balanced_accuracy == pytest.approx(best)
    assert (curve.members, curve.non_members) == (member.sum(), (~member).sum())


def test_membership_may_be_written_as_0_and_1():
    assert roc([3, 2, 1], [1, 0, 0]).auc == 1


RATES = st.one_of(st.floats(0, 1), st.sampled_from([0.001, 0.01, 0.05, 0.1, 0.3, 1 / 3, 0.3 - 1e-16, 0.3 + 1e-16, 1.0]))


@given(scored(), RATES)
def test_the_realised_rate_never_exceeds_the_stated_one_and_no_threshold_within_it_finds_more(case, fpr):
    scores, member = case
    rate = tpr_at_fpr(scores, member, fpr)
    assert rate.realised_fpr <= fpr
    assert (rate.tpr, rate.realised_fpr) == slow_rates(scores, member, rate.threshold)
    rates = [slow_rates(scores, member, t) for t in (math.inf, *scores)]
    assert rate.tpr == max(t for t, f in rates if f <= fpr)


def test_a_rate_can_be_read_from_a_curve():
    rng = np.random.default_rng(0)
    scores, member = rng.normal(size=500), rng.random(500) < 0.5
    assert tpr_at_fpr(roc(scores, member), fpr=0.1) == tpr_at_fpr(scores, member, 0.1)
    rate = tpr_at_fpr(scores, member, 0.1, confidence=0.9)
    assert (rate.low, rate.high) == clopper_pearson(rate.true_positives, rate.members, 0.9)


@given(
    st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_clopper_pearson_is_the_exact_interval_of_scipy(counts, confidence):
    expected = distributions.binomtest(*counts).proportion_ci(confidence, method="exact")
    assert clopper_pearson(*counts, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert not upper_limits(counts[1]).flags.writeable  # they are kept


@given(scored())
def test_the_auc_interval_holds_the_auc_and_stays_in_0_to_1(case):
    curve = roc(*case)
    low, high = auc_interval(curve)
    assert 0 <= low <= curve.auc + 1e-12
    assert curve.auc - 1e-12 <= high <= 1
    assert low < high


@pytest.mark.parametrize("digits", [15, 0], ids=["no ties", "ties"])
def test_the_auc_interval_has_the_variance_of_delong_by_pairs_on_the_logit(digits):
    member = np.arange(60) < 25
    scores = (np.random.default_rng(0).normal(size=60) + member).round(digits)
    beats = np.array([[(a > b) + (a == b) / 2 for b in scores[~member]] for a in scores[member]])
    auc, spread = beats.mean(), beats.mean(1).var(ddof=1) / 25 + beats.mean(0).var(ddof=1) / 35
    for confidence in (0.95, 0.8):
        reach = distributions.norm.ppf(0.5 + confidence / 2) * math.sqrt(spread) / (auc * (1 - auc))
        slow = [1 / (1 + math.exp(-(math.log(auc / (1 - auc)) + side * reach))) for side in (-1, 1)]
        assert auc_interval(roc(scores, member), confidence) == pytest.approx(slow)


def test_a_perfect_score_does_not_make_a_certain_auc():
    low, high = auc_interval(roc(np.arange(60.0), np.arange(60) >= 30))
    assert (low, high) == (pytest.approx(0.9), 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roc([1, 2], [True]), "one shape"),
        (lambda: roc([1, math.nan], [True, False]), "expected no NaN, got 1 of 2"),
        (lambda: roc([1, 2], [True, True]), "expected members and non-members"),
        (lambda: roc([1, 2], [0.5, 1]), "bool or 0/1"),
        (lambda: tpr_at_fpr([1, 2], [True, False], 1.1), r"\[0, 1\]"),
        (lambda: tpr_at_fpr([1, 2], [True, False], -0.1), r"\[0, 1\]"),
        (lambda: tpr_at_fpr([1, 2]), "membership is missing"),
        (lambda: clopper_pearson(3, 2), "0 <= successes <= trials"),
        (lambda: clopper_pearson(-1, 2), "0 <= successes <= trials"),
        (lambda: clopper_pearson(0, 0), "trials >= 1"),
        (lambda: clopper_pearson(1, 2, 1.0), "confidence"),
    ],
)
def test_what_makes_no_sense_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


DELTA = 1e-5
FPRS = np.array([1e-6, 1e-4, 0.01, 0.1, 0.2, 0.4, 0.7, 0.95])
MANY = [(0.25, 500, 5.57), (0.0625, 100, 0.7), (0.9, 3, 0.68)]
FEW = [(0.25, 0.5), (0.01, 0.3), (0.9, 0.72), (0.5, 4.0)]


def error_rates(q, noise, thresholds):
    """Exact false-positive and false-negative rates of one step, of the best tests there are."""
    fpr = (1 - q) * ndtr(-thresholds / noise) + q * ndtr(-(thresholds + 1) / noise)
    return fpr, (1 - q) * ndtr(thresholds / noise) + q * ndtr((thresholds - 1) / noise)


def refined(q, steps, noise, finer):
    """The accountant's losses on a finer grid."""
    return privacy_loss([Steps(noise, q, steps)], "substitute", error=ERROR / finer**2)


@pytest.mark.parametrize(("q", "noise"), FEW)
def test_the_curve_of_one_step_is_that_of_the_best_tests_seen_from_below(q, noise):
    fpr, fnr = error_rates(q, noise, np.linspace(-1 - 4 * noise, 1 + 4 * noise, 101))
    found = trade_off(Steps(noise, q, 1), DELTA)(fpr)
    assert (found <= fnr + 1e-12).all()
    assert (found >= 0.98 * fnr - 1e-9).all()


@pytest.mark.parametrize(("q", "steps", "noise"), MANY)
def test_the_curve_of_many_steps_is_the_supremum_over_all_orders(q, steps, noise):
    loss = refined(q, steps, noise, finer=1)
    orders = np.linspace(0, loss.epsilon(1e-12), 10_000)
    profile = loss.delta(orders)
    brute = [
        max(0, (1 - profile - np.exp(orders) * a).max(), (np.exp(-orders) * (1 - profile - a)).max()) for a in FPRS
    ]
    found = trade_off(Steps(noise, q, steps), DELTA)(FPRS)
    assert (found <= np.array(brute) + 1e-12).all()
    assert found == pytest.approx(brute, rel=0.01, abs=1e-9)


@pytest.mark.parametrize(("steps", "least"), [(500, 1e-11), (10_000, 5e-11)])
def test_a_curve_reaches_to_the_epsilon_of_a_delta_that_rounding_leaves(steps, least):
    """1e-11, or ten times a rounding of 5e-16 for each step."""
    curve, loss = trade_off(Steps(20.0, 0.05, steps), DELTA), refined(0.05, steps, 20.0, finer=1 / 3)
    assert math.log(curve.slopes[0]) == pytest.approx(loss.epsilon(least))


def test_full_batches_are_one_gaussian():
    curve = trade_off(Steps(22.3557, 1.0, 500), DELTA)
    mu = 2 * math.sqrt(500) / 22.3557
    assert curve.epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, DELTA)) == pytest.approx(10.0, abs=1e-3)
    assert curve(FPRS) == pytest.approx(ndtr(gaussian_distance(FPRS, 0.5) - mu))
    assert gaussian_distance(FPRS, curve(FPRS)) == pytest.approx(mu)
    assert gaussian_epsilon(-1.0, DELTA) == gaussian_epsilon(0.0, DELTA) == 0


@pytest.mark.parametrize(("q", "steps", "noise"), [*MANY[:2], (0.25, 500, 400.0), (0.01, 1000, 0.8)])
def test_the_epsilon_of_a_curve_is_just_below_the_converged_one(q, steps, noise):
    fine, finer = (refined(q, steps, noise, finer).epsilon(DELTA) for finer in (2, 4))
    converged = finer - (fine - finer) / 3
    assert 0.9975 * converged < trade_off(Steps(noise, q, steps), DELTA).epsilon < converged


@pytest.mark.parametrize(("q", "steps"), [(0.25, 40), (0.01, 1), (1.0, 5000)])
def test_the_bisection_finds_the_smallest_noise_that_is_refuted(q, steps):
    for limit in (0.3, 30.0, 120.0):
        epsilon, curve = smallest_refuted(Family(q, steps), DELTA, lambda curve, limit=limit: curve.epsilon < limit)
        assert 0.995 * limit < epsilon < limit
        assert curve.epsilon == epsilon


def test_errors_that_refute_nothing_and_errors_that_refute_all_noise():
    assert smallest_refuted(Family(0.25, 10), DELTA, lambda curve: False) == (0, None)
    assert smallest_refuted(Family(0.25, 1), DELTA, lambda curve: True)[0] == math.inf


def test_a_family_is_of_mechanisms_that_there_are():
    assert Family().sampling == "full-batch"
    assert Family(0.5).sampling == "poisson"
    for wrong in ({"sample_rate": 0.0}, {"sample_rate": 1.5}, {"steps": 0}, {"steps": -1}, {"sampling": "shuffled"}):
        with pytest.raises(ConfigurationError):
            Family(**wrong)
