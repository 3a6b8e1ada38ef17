"""The bounds of how much larger one area is than another hold at small sizes, for rare events, ties and groups."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.stats.paired_auc import PairedAuc, Ties, area_bounds, compare_areas
from safexplain.verdict.thresholds import weights_of

RISK = 0.05


def scores_of(family, rng, members, others):
    """Of an attack and a baseline, who is a member, and how much larger the attack's area truly is."""
    n = members + others
    member, z = np.arange(n) < members, rng.normal(size=n)
    share = 0.1
    match family:
        case "independent, nothing added":
            return rng.normal(size=n) + 0.3 * member, z + 0.3 * member, member, 0.0
        case "correlated, more found":
            own = 0.9 * z + (1 - 0.81) ** 0.5 * rng.normal(size=n)
            truth = distributions.norm.cdf(0.5 / 2**0.5) - distributions.norm.cdf(0.2 / 2**0.5)
            return own + 0.5 * member, z + 0.2 * member, member, float(truth)
        case "few members, found for certain":
            return np.where(member & (rng.random(n) < share), 10.0, z), z, member, share / 2
        case "few members, found no more":
            return np.where(member & (rng.random(n) < share), -10.0, z), z, member, -share / 2
        case "ties":
            return (rng.random(n) < 0.3 + 0.2 * member) * 1.0, (rng.random(n) < 0.3 + 0.1 * member) * 1.0, member, 0.05
        case "almost all found":
            return rng.normal(size=n) + 3 * member, z, member, float(distributions.norm.cdf(3 / 2**0.5) - 0.5)
    raise AssertionError(family)


FAMILIES = (
    "independent, nothing added",
    "correlated, more found",
    "few members, found for certain",
    "few members, found no more",
    "ties",
    "almost all found",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sizes", [(20, 20), (150, 150), (30, 600)], ids=str)
def test_either_bound_misses_the_truth_at_most_as_often_as_its_risk_says(family, sizes):
    audits, below, above = 400, 0, 0
    for number in range(audits):
        attack, base, member, truth = scores_of(family, np.random.default_rng([2, number]), *sizes)
        low, high = area_bounds(compare_areas(Ties.of(attack), Ties.of(base), member), *sizes, RISK, RISK)
        below, above = below + (truth < low), above + (high < truth)
    most = distributions.binom.isf(1e-3, audits, RISK)
    assert max(below, above) <= most


def test_bounds_are_not_wider_than_they_need_be_where_normal_limits_are_good():
    sizes, audits, missed = (1500, 1500), 300, 0
    for number in range(audits):
        attack, base, member, truth = scores_of(FAMILIES[0], np.random.default_rng([3, number]), *sizes)
        found = compare_areas(Ties.of(attack), Ties.of(base), member)
        low, high = area_bounds(found, *sizes, RISK, RISK)
        missed += not low <= truth <= high
    usual = 1.645 * (found.member_variance / 1500 + found.non_member_variance / 1500) ** 0.5
    assert high - low < 1.15 * 2 * usual
    assert missed > 0.04 * audits, "of two risks of 5 %, about 10 % are used up"


def test_areas_are_shares_of_pairs_and_variances_those_of_the_examples_places():
    rng = np.random.default_rng(0)
    attack, base, member = rng.integers(0, 5, 40) * 1.0, rng.normal(size=40), np.arange(40) < 15
    found = compare_areas(Ties.of(attack), Ties.of(base), member)

    def wins(s):
        return np.array([[(a > b) + (a == b) / 2 for b in s[~member]] for a in s[member]])

    apart = wins(attack) - wins(base)
    assert found.auc == pytest.approx(wins(attack).mean())
    assert found.base_auc == pytest.approx(wins(base).mean())
    assert found.member_variance == pytest.approx(apart.mean(1).var(ddof=1))
    assert found.non_member_variance == pytest.approx(apart.mean(0).var(ddof=1))
    assert found.shared == 0


def test_the_variance_is_delongs():
    """Slow oracle: the leave-one-out jackknife of the difference, which DeLong's variance is up to 1/n."""
    rng = np.random.default_rng(1)
    attack, base, member = rng.normal(size=160), rng.normal(size=160), np.arange(160) < 60
    attack[member] += 0.5
    found = compare_areas(Ties.of(attack), Ties.of(base), member)
    total = 0.0
    for side in (True, False):
        left = []
        for i in np.flatnonzero(member == side):
            kept = np.arange(160) != i
            one = compare_areas(Ties.of(attack[kept]), Ties.of(base[kept]), member[kept])
            left.append(one.difference)
        total += (len(left) - 1) * np.var(left)
    assert found.member_variance / 60 + found.non_member_variance / 100 == pytest.approx(total, rel=0.03)


def test_copies_count_as_one_example():
    rng = np.random.default_rng(4)
    attack, base, member = rng.normal(size=60), rng.normal(size=60), np.arange(60) < 30
    alone = compare_areas(Ties.of(attack), Ties.of(base), member)
    times = rng.integers(1, 6, 60)
    groups = np.repeat(np.arange(60), times)
    many = member[groups]
    copied = compare_areas(Ties.of(attack[groups]), Ties.of(base[groups]), many, groups, weights_of(many, groups))
    assert copied.to_dict() == pytest.approx(alone.to_dict())


@pytest.mark.parametrize("both_sides", [False, True])
def test_bounds_hold_for_groups_whose_examples_are_alike(both_sides):
    units, audits, below, above = 60, 400, 0, 0
    for number in range(audits):
        rng = np.random.default_rng([5, number])
        sizes = rng.choice([1, 2, 10], units if both_sides else 2 * units)
        groups = np.repeat(np.arange(len(sizes)), sizes)
        member = groups < units
        if both_sides:
            groups, member = np.tile(groups, 2), np.repeat([True, False], len(groups))
        base, other = (rng.normal(size=len(sizes))[groups] for _ in range(2))
        weights = weights_of(member, groups)
        found = compare_areas(Ties.of(base + other), Ties.of(base), member, groups, weights)
        low, high = area_bounds(found, units, units, RISK, RISK)
        below, above = below + (low > 0), above + (high < 0)
    assert max(below, above) <= distributions.binom.isf(1e-3, audits, RISK)


def test_smaller_risks_and_smaller_samples_give_wider_bounds_within_minus_one_and_one():
    found = PairedAuc(0.6, 0.55, 0.04, 0.05)
    by_risk = [area_bounds(found, 200, 300, r, r) for r in (0.2, 0.05, 1e-3, 1e-6)]
    by_size = [area_bounds(found, n, n, RISK, RISK) for n in (10_000, 1000, 100, 10, 1)]
    for one, other in itertools.chain(itertools.pairwise(by_risk), itertools.pairwise(by_size)):
        assert -1 <= other[0] <= one[0] <= one[1] <= other[1] <= 1
    assert by_size[0][0] < 0.05 < by_size[0][1]


def test_an_attack_that_is_the_baseline_adds_about_nothing():
    scores, member = np.random.default_rng(6).normal(size=4000), np.arange(4000) < 2000
    low, high = area_bounds(compare_areas(Ties.of(scores), Ties.of(scores), member), 2000, 2000, RISK, RISK)
    assert -0.003 < low < 0 < high < 0.003


def test_without_a_baseline_the_area_is_compared_with_guessing():
    scores, member = np.arange(10.0), np.arange(10) >= 5
    found = compare_areas(Ties.of(scores), None, member)
    assert (found.auc, found.base_auc, found.difference) == (1.0, 0.5, 0.5)


def test_infinite_scores_are_the_highest_and_nan_is_refused():
    member = np.array([True, False])
    assert compare_areas(Ties.of(np.array([np.inf, 3.0])), None, member).auc == 1
    with pytest.raises(InputError, match="NaN"):
        Ties.of(np.array([np.nan, 1.0]))


@pytest.mark.parametrize("member", [np.array([True, True]), np.array([True, False, True])])
def test_what_cannot_be_compared_is_refused(member):
    with pytest.raises(InputError, match="members and non-members"):
        compare_areas(Ties.of(np.array([0.0, 1.0])), None, member)


@pytest.mark.parametrize("change", [{"auc": 1.2}, {"base_auc": -0.1}, {"member_variance": 3.0}, {"shared": -1.0}])
def test_impossible_areas_are_refused_and_possible_ones_read_back(change):
    found = PairedAuc(0.6, 0.5, 0.04, 0.05, 0.0)
    assert PairedAuc.from_dict(found.to_dict()) == found
    with pytest.raises(InputError, match="impossible"):
        PairedAuc.from_dict({**found.to_dict(), **change}).check()
    with pytest.raises(InputError, match="is a number"):
        PairedAuc.from_dict({**found.to_dict(), "auc": "1"})
