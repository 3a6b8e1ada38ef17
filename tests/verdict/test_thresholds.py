"""Ranks and limits: against slow binomial sums, and by simulation with scores of which the truth is known."""

from math import comb, exp, log, log1p

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.thresholds import (
    by_score,
    found_above,
    lower_bound,
    lower_bound_rank,
    ranked,
    units_of,
    upper_bound,
    upper_bound_rank,
    weights_of,
)

SIZES = (1, 3, 50, 365, 367)
RATES = (0.001, 0.01, 0.05, 0.3, 0.9)
RISKS = (0.4, 0.025, 0.0025, 1e-5, 1e-17)


def pmf(n, p):
    return [exp(log(comb(n, k)) + k * log(p) + (n - k) * log1p(-p)) for k in range(n + 1)]


def slow_upper_bound_rank(law, risk):
    """First k with P(Bin >= k) <= risk, by adding up from the far end."""
    k, total = len(law), 0.0
    while k > 1 and total + law[k - 1] <= risk:
        k -= 1
        total += law[k]
    return k if k < len(law) else None


def slow_lower_bound_rank(law, risk):
    """Last k with P(Bin < k) <= risk, by adding up from the near end."""
    k, total = 0, 0.0
    while k + 1 < len(law) and total + law[k] <= risk:
        total += law[k]
        k += 1
    return k or None


@pytest.mark.parametrize("n", SIZES)
def test_ranks_are_those_of_slow_binomial_sums(n):
    for fpr in RATES:
        law = pmf(n, fpr)
        for risk in RISKS:
            assert upper_bound_rank(n, fpr, risk) == slow_upper_bound_rank(law, risk), (fpr, risk)
            rank, share = lower_bound_rank(n, fpr, risk)
            expected = slow_lower_bound_rank(law, risk)
            assert rank == (expected or 1), (fpr, risk)
            assert (share == 1.0) == (expected is not None)


def test_the_highest_non_member_is_used_by_share_where_it_is_not_surely_strict_enough():
    rank, share = lower_bound_rank(100, 0.01, 0.025)
    limit = 0.01 / share
    assert rank == 1
    assert (1 - limit) ** 100 == pytest.approx(0.025)  # the true rate there is above the limit with this probability


def slow_found(scores, member, rank):
    threshold = sorted(scores[~member], reverse=True)[rank - 1]
    return sum(s > threshold for s in scores[member])


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(1, 30))
def test_members_above_a_rank_are_counted_as_by_hand(seed, members, others):
    rng = np.random.default_rng(seed)
    scores, member = rng.permutation(members + others).astype(float), np.arange(members + others) < members
    order = ranked(scores, member, seed)
    assert [found_above(order, k) for k in range(1, others + 1)] == [
        slow_found(scores, member, k) for k in range(1, others + 1)
    ]
    assert found_above(order, None) == members


def test_one_member_and_one_non_member_are_enough():
    higher = ranked(np.array([1.0, 0.0]), np.array([True, False]))
    lower = ranked(np.array([0.0, 1.0]), np.array([True, False]))
    assert (found_above(higher, 1), found_above(lower, 1)) == (1, 0)
    assert upper_bound_rank(1, 0.01, 0.025) == 1
    assert upper_bound_rank(1, 0.05, 0.025) is None
    assert upper_bound_rank(1, 0.5, 0.5) == 1  # a risk that is just met
    assert upper_bound(0, 1, 0.025) == pytest.approx(0.975)
    assert (upper_bound(1, 1, 0.025), lower_bound(0, 1, 0.025)) == (1.0, 0.0)


def test_infinite_scores_are_ranked_and_nan_is_refused():
    member = np.array([True, False, True, False])
    assert ranked(np.array([np.inf, 0.0, -np.inf, 1.0]), member).tolist() == [True, False, False, True]
    with pytest.raises(InputError, match="expected no NaN, got 1 of 4"):
        ranked(np.array([np.nan, 0.0, 1.0, 2.0]), member)
    with pytest.raises(InputError, match="expected scores"):
        ranked(np.zeros(3), member)
    with pytest.raises(InputError, match="bool or 0/1"):
        ranked(np.zeros(4), member.astype(int) + 1)
    with pytest.raises(InputError, match="expected members and non-members, got 4 and 0"):
        ranked(np.zeros(4), np.ones(4, dtype=bool))


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 12))
def test_each_group_weighs_one_on_each_side(seed, n, groups):
    rng = np.random.default_rng(seed)
    member, of = rng.random(n) < 0.5, rng.integers(groups, size=n)
    weights = weights_of(member, of)
    for side in (member, ~member):
        assert units_of(weights[side]) == len(set(of[side]))
        for g in set(of[side]):
            assert weights[side & (of == g)].sum() == pytest.approx(1)
    assert (weights_of(member, None) == 1).all()


@given(st.integers(0, 10_000))
def test_members_above_a_weighted_rank_are_counted_as_by_hand(seed):
    rng = np.random.default_rng(seed)
    order, of = rng.random(60) < 0.5, rng.integers(15, size=60)
    order[:2] = [True, False]
    weights = weights_of(order, of)
    for rank in range(1, units_of(weights[~order]) + 1):
        for strict in (False, True):
            above, outside = 0.0, 0.0
            for member, weight in zip(order, weights, strict=True):
                outside += 0.0 if member else weight
                if not member and (outside > rank - 1 + 1e-9 if strict else outside >= rank - 1e-9):
                    break
                above += weight if member else 0.0
            assert found_above(order, rank, weights, strict=strict) == pytest.approx(above)
        assert found_above(order, rank, weights, strict=True) <= found_above(order, rank, weights)
    assert found_above(order, None, weights) == pytest.approx(weights[order].sum())


def test_groups_of_another_length_are_refused():
    with pytest.raises(InputError, match="a group for each of 3 examples"):
        weights_of(np.array([True, False, True]), np.array([1, 2]))


GROUPED = {"copies": 1.0, "alike": 0.5, "independent": 0.0}


def wrong_rates(within, counted, audits=400, units=200, size=20, tpr=0.15, fpr=0.05):
    """How often bounds miss the true rate, from below and from above, where examples come in groups."""
    shift = distributions.norm.isf(fpr) - distributions.norm.isf(tpr)
    of, member = np.repeat(np.arange(2 * units), size), np.repeat(np.arange(2 * units) < units, size)
    weights, misses = weights_of(member, of), np.zeros(2)
    n = units if counted == "groups" else units * size
    high_rank, (low_rank, share) = upper_bound_rank(n, fpr, 0.025), lower_bound_rank(n, fpr, 0.025)
    for number in range(audits):
        rng = np.random.default_rng([5, number])
        scores = within**0.5 * rng.normal(size=2 * units)[of] + (1 - within) ** 0.5 * rng.normal(size=len(of))
        order = by_score(scores + shift * member, number)
        heavy = weights[order] if counted == "groups" else np.ones(len(of))
        low = lower_bound(found_above(member[order], low_rank, heavy, strict=True), n, 0.025) * share
        high = upper_bound(found_above(member[order], high_rank, heavy), n, 0.025)
        misses += low > tpr, high < tpr
    return misses / audits


@pytest.mark.parametrize("within", GROUPED)
def test_bounds_of_groups_are_wrong_as_seldom_as_promised(within):
    assert (wrong_rates(GROUPED[within], "groups") <= 0.03).all()


def test_bounds_that_count_copies_as_examples_are_wrong_too_often():
    assert (wrong_rates(1.0, "examples") > 0.12).all()


def test_ties_are_broken_at_random_as_the_seed_says():
    scores = np.zeros(200)
    assert np.array_equal(by_score(scores, 1), by_score(scores, 1))
    assert not np.array_equal(by_score(scores, 1), by_score(scores, 2))
    assert not np.array_equal(by_score(scores), np.arange(200)), "the order of the file would decide"


def test_with_ties_the_curve_is_the_straight_line_between_its_points():
    """A score of two values: 60 % of the members and 20 % of the non-members have the higher one."""
    member = np.arange(2000) < 1000
    scores = np.where(member, np.arange(2000) < 600, np.arange(2000) < 1200).astype(float)
    found = [[found_above(ranked(scores, member, s), k) / 1000 for k in (51, 101, 601)] for s in range(200)]
    expected = 0.6 * 0.05 / 0.2, 0.6 * 0.1 / 0.2, 0.6 + 0.4 * 0.4 / 0.8
    assert np.mean(found, axis=0) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("n", [1, 7, 60])
def test_limits_are_wrong_at_most_as_often_as_the_risk_says_for_every_rate(n):
    """Exact: the probabilities of all counts, added up where the limit is wrong."""
    risk = 0.025
    high = np.array([upper_bound(c, n, risk) for c in range(n + 1)])
    low = np.array([lower_bound(c, n, risk) for c in range(n + 1)])
    grid = np.linspace(0.001, 0.999, 999)
    law = distributions.binom.pmf(np.arange(n + 1)[:, None], n, grid)
    above, under = (law * (high[:, None] < grid)).sum(0), (law * (low[:, None] > grid)).sum(0)
    assert max(above.max(), under.max()) <= risk + 1e-12
    assert min(above.max(), under.max()) > 0.8 * risk, "limits that cannot be wrong would be no test"
