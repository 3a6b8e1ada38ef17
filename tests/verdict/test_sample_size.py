"""A sample that is said to decide decides, and the certificate that is said to be possible is possible."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import results
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict import power, words
from safexplain.verdict.certificate.read import recount
from safexplain.verdict.judgement import Control, Evidence, Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import (
    TYPICAL_BASE,
    AttackBounds,
    SampleSize,
    best_certifiable,
    examples_needed,
    leak_power,
    sample_needed,
)
from safexplain.verdict.stats.paired import count_pairs, difference_bounds
from safexplain.verdict.thresholds import by_score, found_above, lower_bound_rank, ranked, upper_bound_rank

LOOSE = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), references=1, uncounted=True)


def shift_of(tpr, policy=LOOSE):
    return distributions.norm.isf(policy.fpr) - distributions.norm.isf(tpr)


def share_with(verdict, policy, tprs, members, others, audits=200):
    """How often real scores with these true rates give a verdict."""
    member, hits = np.arange(members + others) < members, 0
    upper = upper_bound_rank(others, policy.fpr, policy.risk / 2)
    lower = lower_bound_rank(others, policy.fpr, policy.risk / len(tprs) / 2)[0]
    for number in range(audits):
        rng = np.random.default_rng([3, number])
        evidence = []
        for i, tpr in enumerate(tprs):
            order = ranked(rng.normal(size=len(member)) + shift_of(tpr, policy) * member, member, number)
            counts = found_above(order, upper), found_above(order, lower)
            evidence.append(Evidence("a", str(i), "explanation", 1, 0, *counts))
        hits += Judgement(policy, tuple(evidence), members, others, 1).verdict == verdict
    return hits / audits


CASES = {
    "seven that guess": ([0.05] * 7, "certified"),
    "one near the limit": ([0.1], "certified"),
    "one of four leaks": ([0.24, *[0.05] * 3], "leak"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sample_that_is_said_to_decide_decides_in_most_audits(case):
    """From 100 members that found exactly what is true."""
    tprs, verdict = CASES[case]
    upper, lower = upper_bound_rank(100, 0.05, 0.025), lower_bound_rank(100, 0.05, 0.05 / len(tprs) / 2)[0]
    counts = [
        [100 * distributions.norm.sf(distributions.norm.isf(rank / 101) - shift_of(tpr)) for rank in (5, upper, lower)]
        for tpr in tprs
    ]
    evidence = [Evidence("a", str(i), "explanation", 1, *found) for i, found in enumerate(counts)]
    judgement = Judgement(LOOSE, tuple(evidence), 100, 100, 1)
    assert judgement.verdict == "inconclusive"
    found = judgement.needed
    assert found.verdict == verdict
    assert found.members == found.non_members > 100
    assert share_with(verdict, LOOSE, tprs, found.members, found.non_members) > 0.75


def test_no_sample_decides_at_the_limit_itself():
    assert sample_needed([AttackBounds(0.1001, 0.05, 0.2, 0.05)], 0.1, 0.05, 500, 500) is None


def test_a_sample_that_decides_is_its_own_answer():
    assert sample_needed([AttackBounds(0, 0, 0.01, 0.05)], 0.05, 0.05, 100, 100) == SampleSize(100, 100, "certified")
    assert sample_needed([AttackBounds(0.3, 0.28, 0.32, 0.05)], 0.05, 0.05, 100, 100) == SampleSize(100, 100, "leak")


@pytest.mark.parametrize(("members", "others"), [(300, 300), (2000, 200)])
def test_the_certificate_that_is_said_to_be_possible_is_reached_in_nine_of_ten_audits(members, others):
    best = best_certifiable(LOOSE, members, others)
    assert 0.05 < best < 0.2
    assert 0.83 < share_with("certified", replace(LOOSE, max_tpr=best), [0.05], members, others) <= 0.99
    assert share_with("certified", replace(LOOSE, max_tpr=0.05 + (best - 0.05) / 2), [0.05], members, others) < 0.75


def test_what_is_in_reach_is_the_number_that_was_simulated():
    excess = replace(LOOSE, claim="excess")
    whole = [best_certifiable(LOOSE, *sizes) for sizes in ((300, 300), (1000, 200), (1000, 1000, 7))]
    assert whole == pytest.approx([0.15100322157472484, 0.13427178080353835, 0.11055149410186922])
    added = [best_certifiable(excess, *sizes) for sizes in ((300, 300), (1500, 1500), (1000, 4000))]
    assert added == pytest.approx([0.01705378049654209, 0.003415228685984961, 0.003840044275662075])
    assert best_certifiable(replace(LOOSE, fpr=0.2, max_tpr=0.3), 1000, 2) == 1.0
    assert examples_needed(Policy()) == 1200
    assert examples_needed(replace(LOOSE, max_tpr=0.08)) == 16_200
    best = best_certifiable(LOOSE, 500, 500)
    assert best - 0.05 == ((2 * best - 0.05) - 0.05) / 2, "a limit that is just twice as far above guessing"
    assert examples_needed(replace(LOOSE, max_tpr=2 * best - 0.05)) == 1000
    wide = [AttackBounds(0.02, 0, 0.06, 0.05)]
    assert sample_needed(wide, 0.05, 0.05, 100, 1000) == SampleSize(563, 5627, "certified")
    less, none = AttackBounds(-0.05, -0.1, 0.03, 0.05), AttackBounds(0.0, -0.05, 0.08, 0.05)
    assert sample_needed([less], 0.02, 0.05, 100, 100) == sample_needed([none, less], 0.02, 0.05, 100, 100)
    leaks = [AttackBounds(0.1, 0.02, 0.2, 0.01), AttackBounds(0.01, -0.01, 0.03, 0.01)]
    assert sample_needed(leaks, 0.05, 0.05, 100, 100) == SampleSize(616, 616, "leak")
    policy = Policy(max_excess=0.05)
    assert [leak_power(policy, 400, 400, heavy_tails=tails) for tails in (False, True)] == [0.16, 0.01]


def test_the_power_is_of_100_audits_and_of_20_for_more_than_5000_units_a_side(monkeypatch):
    audits = []
    monkeypatch.setattr(power, "by_score", lambda *_: None)
    monkeypatch.setattr(power, "count_pairs", lambda *_: None)
    monkeypatch.setattr(power, "difference_bounds", lambda *_: audits.append(1) or (0.0, 0.0))
    for members, others, number in ((5000, 4999, 100), (4999, 5001, 20)):
        audits.clear()
        assert leak_power.__wrapped__(Policy(), members, others) == 0
        assert len(audits) == number


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


def test_a_sample_without_members_reaches_nothing_and_says_so():
    with pytest.raises(InputError, match="at least 1 of"):
        best_certifiable(LOOSE, 0, 100)


def test_how_many_examples_would_decide_is_said_only_where_they_would():
    for found in (results.audited(0.0), results.audited(4.0)):
        assert len(words.says(found)) == 2
    strict = Policy(patience=(1, 5))
    undecided = results.audited(0.1, strict, examples=900)
    first, *_, shows = words.says(undecided)
    assert re.fullmatch(r"To decide: about [\d,]+ examples, [\d,]+ of them members, .* are right\.", first)
    assert re.fullmatch(
        r"About \d+ of 100 audits of this size would prove a leak of 6 points \(\d+ of 100 if .*", shows
    )
    assert recount(json.loads(json.dumps(undecided.to_dict()))).verdict == "inconclusive"
    failed = (Control("null model", True, "it finds members in a model that knows nothing of them", {}),)
    for changes, named in (
        ({"controls": failed}, "an audit in which the control “null model” passes."),
        ({"split": "selection"}, "the examples of the certification split."),
    ):
        assert words.says(replace(undecided, **changes))[0] == f"To decide, first of 2 things: {named}"


def test_where_no_sample_decides_another_limit_is_advised():
    at = [Evidence("a", "l1", "explanation", 1, 150.0, 170, 130)]
    undecided = Judgement(LOOSE, tuple(at), 1000, 1000, 1)
    says = "To decide: another limit, because the estimate is too close to max_tpr = 0.15."
    assert (undecided.needed, words.says(undecided)[0]) == (None, says)


def test_of_several_things_that_are_missing_the_first_is_named_alone():
    few = words.says(results.audited(0.0, references=3))
    assert few[0] == "To decide: 8 reference models."
    assert "first of" not in " ".join(few[1:])


def test_of_several_targets_all_that_are_undecided_count():
    found = results.of_targets(0.0, 0.3, policy=Policy(patience=(1, 5)))
    assert found.verdict == "inconclusive"
    most = max((one.needed for one in (found, *found.others) if one.own_reasons), key=lambda size: size.members)
    named = int(re.match(r"To decide: about ([\d,]+) examples", words.says(found)[0])[1].replace(",", ""))
    assert named == pytest.approx(most.members + most.non_members, rel=0.05)
