"""ROC curves, rates and intervals: against slow versions, other libraries and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.stats import auc_interval, clopper_pearson, roc, tpr_at_fpr
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
