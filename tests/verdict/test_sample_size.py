"""A sample that is said to decide decides, and the certificate that is said to be possible is possible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict.evidence import Evidence
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import TYPICAL_BASE, Needed, best_certifiable, could_certify, needed
from safexplain.verdict.stats.paired import count_pairs, difference_bounds
from safexplain.verdict.thresholds import by_score, found_above, ranked, ranks_of

LOOSE = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), references=1, uncounted=True)
STRICT = replace(LOOSE, fpr=0.01, max_tpr=0.03)


def shift_of(tpr, policy=LOOSE):
    return distributions.norm.isf(policy.fpr) - distributions.norm.isf(tpr)


def typical(tpr, n=2000):
    """The order of members in a sample that looks exactly as expected: scores at the quantiles."""
    at = distributions.norm.ppf((np.arange(n) + 0.5) / n)
    return ranked(np.concatenate([at + shift_of(tpr), at]), np.arange(2 * n) < n)


def smaller(order, keep):
    """Every keep-th of the members and of the non-members, in the same order."""
    chosen = np.zeros(len(order), dtype=bool)
    for which in (order, ~order):
        chosen[np.flatnonzero(which)[keep // 2 :: keep]] = True
    return order[chosen]


def share_with(verdict, policy, tprs, members, others, audits=200):
    """How often real scores with these true rates give a verdict."""
    member, hits = np.arange(members + others) < members, 0
    r = ranks_of(policy, others, len(tprs))
    for number in range(audits):
        rng = np.random.default_rng([3, number])
        evidence = []
        for i, tpr in enumerate(tprs):
            order = ranked(rng.normal(size=len(member)) + shift_of(tpr, policy) * member, member, number)
            evidence.append(
                Evidence(
                    "a",
                    str(i),
                    "explanation",
                    1,
                    0,
                    found_above(order, r.upper_bound_rank),
                    found_above(order, r.lower_bound_rank),
                )
            )
        hits += Judgement(policy, tuple(evidence), members, others, 1).verdict == verdict
    return hits / audits


CASES = {
    "one that guesses": ([0.05], "certified"),
    "seven that guess": ([0.05] * 7, "certified"),
    "one near the limit": ([0.1], "certified"),
    "one leaks": ([0.24], "leak"),
    "one of four leaks": ([0.24, *[0.05] * 3], "leak"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sample_that_is_said_to_decide_decides_in_nine_of_ten_audits(case):
    tprs, verdict = CASES[case]
    found = needed(LOOSE, [smaller(typical(t), 10) for t in tprs])
    assert found is not None
    assert found.verdict == verdict
    assert share_with(verdict, LOOSE, tprs, found.members, found.non_members) > 0.8
    if found.members > 200:
        half = share_with(verdict, LOOSE, tprs, found.members // 3, found.non_members // 3, audits=100)
        assert half < 0.75, "a third of the examples would have been enough"


def test_a_sample_that_decides_already_is_its_own_answer():
    assert needed(LOOSE, [typical(0.05)]) == Needed(2000, 2000, "certified")
    assert needed(LOOSE, [typical(0.3)]) == Needed(2000, 2000, "leak")


def test_no_sample_decides_at_the_limit_itself():
    assert needed(replace(LOOSE, max_tpr=0.0501), [typical(0.0502, 2000)]) is None


def test_proportions_are_kept():
    member = np.arange(1100) < 100
    order = ranked(np.random.default_rng(0).normal(size=1100), member)
    found = needed(LOOSE, [order])
    assert found is not None
    assert found.non_members == pytest.approx(10 * found.members, rel=0.02)


def test_more_attacks_need_more_examples():
    def size(k):
        found = needed(LOOSE, [smaller(typical(0.05), 20)] * k)
        assert found is not None
        return found.members

    assert size(1) < size(5) < size(25)


@pytest.mark.parametrize(("members", "others"), [(300, 300), (1000, 1000), (200, 2000), (2000, 200)])
def test_the_certificate_that_is_said_to_be_possible_is_reached_in_nine_of_ten_audits(members, others):
    best = could_certify(LOOSE, members, others)
    assert 0.05 < best < 0.2
    assert 0.83 < share_with("certified", replace(LOOSE, max_tpr=best), [0.05], members, others) <= 0.99
    assert share_with("certified", replace(LOOSE, max_tpr=0.05 + (best - 0.05) / 2), [0.05], members, others) < 0.75


def test_too_few_non_members_could_certify_nothing():
    assert could_certify(replace(LOOSE, fpr=0.2, max_tpr=0.3), 1000, 2) == 1.0
    assert could_certify(STRICT, 1, 1) == pytest.approx(0.975, abs=0.03)


def test_the_claim_does_not_change_what_is_computed():
    excess = replace(LOOSE, claim="excess")
    assert could_certify(excess, 500, 500) == could_certify(LOOSE, 500, 500)
    assert needed(excess, [typical(0.3)]) == needed(LOOSE, [typical(0.3)])


# -------------------------------------------------------------------------------------------- before anything is run


def test_what_one_guessing_attack_could_certify_is_known_before_anything_is_run():
    for sizes in ((300, 300), (200, 2000), (3700, 3700)):
        assert best_certifiable(LOOSE, *sizes) == could_certify(LOOSE, *sizes)


def test_the_excess_that_is_said_to_be_in_reach_is_certified_in_nine_of_ten_audits_that_add_nothing():
    policy, n, passed, half, audits = replace(LOOSE, claim="excess"), 1500, 0, 0, 150
    best, member = best_certifiable(policy, n, n), np.arange(2 * n) < n
    for number in range(audits):
        rng = np.random.default_rng([5, number])
        labels = by_score(rng.normal(size=2 * n) + shift_of(TYPICAL_BASE * policy.fpr, policy) * member)
        counts = count_pairs(labels, labels, member, policy.fpr)
        high = difference_bounds(counts, n, n, policy.fpr, policy.risk, policy.risk)[1]
        passed, half = passed + (high <= best), half + (high <= best / 2)
    assert passed / audits >= 0.85
    assert half == 0
    assert 0 < best < 0.02


@pytest.mark.parametrize("claim", ["whole", "excess", "auc"])
def test_more_examples_reach_a_stricter_limit_and_more_attacks_no_stricter_one(claim):
    policy = replace(STRICT, claim=claim)
    found = [best_certifiable(policy, n, n, attacks=10) for n in (1, 10, 100, 1000, 10_000, 100_000)]
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < found[2] < found[0] <= 1
    assert found[-1] < policy.limit < found[1]
    assert best_certifiable(policy, 1000, 1000) <= best_certifiable(policy, 1000, 1000, attacks=30)


def test_a_sample_without_members_reaches_nothing_and_says_so():
    with pytest.raises(InputError, match="from 1 on"):
        best_certifiable(LOOSE, 0, 100)
