"""An inconclusive verdict says what is possible with the data that are there, and nothing that would certify luck."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import results

from safexplain.verdict.certificate.read import recount
from safexplain.verdict.evidence import Control
from safexplain.verdict.feasible import COUNTED, Bound, Undecided, certifiable, feasible
from safexplain.verdict.policy import Policy
from safexplain.verdict.power import Needed, needed_area, needed_excess

STRICT = Policy(patience=(1, 5))
"""The default one, for two levels."""


def of_kind(result, kind):
    return next((option for option in result.feasible if option.kind == kind), None)


def kinds(result):
    return [option.kind for option in result.feasible]


def changed(result, option, **changes):
    """The policy with an option's changes."""
    return replace(result.policy, **option.changes, **changes)


# ------------------------------------------------------------------------------------------------- when it speaks


def test_there_is_nothing_to_say_where_there_is_a_verdict():
    for leak, policy in ((0.0, results.POLICY), (4.0, results.POLICY)):
        found = results.audited(leak, policy)
        assert found.verdict != "inconclusive"
        assert found.feasible == ()
        assert found.to_dict()["feasible"] == []


def test_no_sample_and_no_policy_helps_where_a_control_failed_or_on_the_selection_split():
    failed = (Control("null model", True, "it finds members in a model that knows nothing of them", {}),)
    for changes in ({"controls": failed}, {"split": "selection"}):
        found = replace(results.audited(0.0, STRICT, examples=1500), **changes)
        assert found.verdict == "inconclusive"
        assert found.feasible == ()
        assert len(found.says) == 2


def test_where_only_references_lack_they_are_all_that_is_asked_for():
    found = results.audited(0.0, references=3)
    assert kinds(found) == ["references"]
    assert "Train 5 more reference models" in found.feasible[0].says
    assert "no interval narrower" in found.feasible[0].says
    assert found.says[2] == "At least 5 more reference models are needed to certify."


# ------------------------------------------------------------------------------------------------- what it says


@pytest.mark.parametrize("policy", [STRICT, replace(STRICT, claim="whole"), Policy(claim="auc", max_auc_excess=0.004)])
def test_advice_is_never_only_to_take_more_data_than_there_are(policy):
    found = results.audited(0.1, policy, examples=900, seed=11)
    assert found.verdict == "inconclusive"
    assert found.needed is None or found.needed.members > 3 * found.members
    limit = of_kind(found, "limit")
    ((name, value),) = limit.changes.items()
    assert f"{name} = {value:g} instead of" in limit.says
    assert f"with {name} = {value:g}" in found.says[2]
    assert "would probably be certified" in found.says[2]


def test_every_option_says_on_which_examples_it_may_be_judged_and_how_that_is_counted():
    options = [
        *results.audited(0.1, STRICT, examples=900, references=4).feasible,
        *results.audited(0.1, replace(STRICT, claim="whole"), examples=900).feasible,
        *results.audited(0.0, STRICT, examples=4000, seed=3).feasible,
    ]
    assert {option.counted for option in options} == set(COUNTED)
    for option in options:
        assert option.rule in COUNTED.values()
        assert "choose" in option.rule or "chose" in option.rule or "luck" in option.rule
        same = set(option.changes) == {"max_tpr"}
        assert (option.counted == "the same use") == same, option
        if option.kind == "references":
            assert "a certificate is refused" in option.rule


def test_what_may_be_a_leak_is_called_that_before_a_looser_limit_is_named():
    found = results.audited(0.2, replace(STRICT, max_excess=0.001), examples=4000)
    assert found.verdict == "inconclusive"
    assert found.says[2].startswith("This may be a leak: a policy fixed beforehand, with max_excess = ")
    assert "this may be a leak" in of_kind(found, "limit").says


def test_a_sample_within_reach_is_named_as_an_option_and_one_beyond_it_is_not():
    found = results.audited(0.1, STRICT, examples=900).undecided
    for times, there in ((1.5, True), (3.0, True), (3.2, False), (90, False)):
        size = Needed(round(times * found.members), round(times * found.non_members), "certified")
        option = [o for o in feasible(replace(found, needed=size)) if o.kind == "examples"]
        assert bool(option) == there
        if there:
            assert f"{size.members:,} members" in option[0].says
            assert option[0].counted == "fresh examples"


def test_of_several_targets_all_that_are_undecided_count():
    found = results.of_targets(0.0, 0.3, policy=STRICT)
    alone = [
        certifiable(one.undecided.bounds, 0.05) for one in (replace(found, others=()), *found.others) if one.undecided
    ]
    assert found.verdict == "inconclusive"
    assert certifiable(found.undecided.bounds, 0.05) >= max(alone)


def test_options_are_plain_json_and_a_certificate_with_them_is_read():
    found = results.audited(0.1, STRICT, examples=900)
    content = json.loads(json.dumps(found.to_dict()))
    assert [one["kind"] for one in content["feasible"]] == kinds(found)
    assert recount(content).verdict == "inconclusive"


# ------------------------------------------------------------------------------------------------- whether it is true


@pytest.mark.parametrize(
    ("claim", "leak"),
    [
        ("excess", 0.0),
        pytest.param("excess", 0.15, marks=pytest.mark.slow),
        pytest.param("whole", 0.0, marks=pytest.mark.slow),
        ("auc", 0.1),
    ],
)
def test_another_sample_is_certified_under_the_limit_that_is_named(claim, leak):
    """Of twelve audits that are advised, at least ten others of the same size pass: nine of ten are promised."""
    policy, passed, audits = Policy(claim=claim, patience=(1,), max_tpr=0.0101, max_auc_excess=0.002), 0, 0
    for seed in range(12):
        first = results.audited(leak, policy, examples=1500, few=6, seed=seed)
        if (option := of_kind(first, "limit")) is None:
            continue
        again = results.audited(leak, changed(first, option), examples=1500, few=6, seed=100 + seed)
        audits, passed = audits + 1, passed + (again.verdict == "certified")
    assert audits >= 8
    assert passed >= audits - 2


def test_the_sample_that_is_said_to_certify_an_excess_does():
    policy, passed = Policy(patience=(1,)), 0
    for seed in range(6):
        first = results.audited(0.0, policy, examples=400, few=6, seed=seed)
        assert first.needed is not None
        assert first.needed.verdict == "certified"
        size = first.needed.members + first.needed.non_members
        passed += results.audited(0.0, policy, examples=size, few=6, seed=50 + seed).verdict == "certified"
    assert passed >= 5


def test_the_sample_that_is_said_to_prove_an_excess_often_proves_it_and_a_tenth_of_it_rarely():
    policy, proven, tenth = Policy(fpr=0.05, max_tpr=0.07, patience=(1,)), 0, 0
    first = results.audited(0.6, policy, examples=2000, few=6, seed=2)
    assert first.verdict == "inconclusive"
    assert first.needed.verdict == "leak"
    size = first.needed.members + first.needed.non_members
    for seed in range(50, 55):
        proven += results.audited(0.6, policy, examples=size, few=6, seed=seed).verdict == "leak"
        tenth += results.audited(0.6, policy, examples=size // 10, few=6, seed=seed).verdict == "leak"
    assert proven >= 3
    assert tenth <= 1


def test_more_attacks_and_stricter_limits_take_more_examples():
    found = results.audited(0.0, Policy(patience=(1,)), examples=500, seed=1)
    pairs = [(a.pair, found.lower_risk(a)) for a in found.judged if a.pair is not None]
    sizes = [
        needed_excess(replace(found.policy, max_excess=limit), pairs[:k], found.members, found.non_members)
        for limit, k in ((0.1, 1), (0.03, 1), (0.03, 6), (0.01, 6))
    ]
    assert [n.members for n in sizes] == sorted(n.members for n in sizes)
    assert sizes[0].members < sizes[-1].members
    by_area = results.audited(0.0, Policy(claim="auc", max_auc_excess=0.01, patience=(1,)), examples=500, seed=1)
    areas = [(a.areas, 0.01) for a in by_area.judged]
    auc = [needed_area(Policy(claim="auc", max_auc_excess=limit), areas, found.members, found.non_members)
           for limit in (0.05, 0.01)]  # fmt: skip
    assert auc[0].members < auc[1].members


def test_the_smallest_certifiable_limit_adds_up_the_attacks_chances_of_failing():
    one, rng = [Bound(0.01, 0.03)], np.random.default_rng(0)
    alone, many = certifiable(one, 0.05), certifiable([Bound(0.01, 0.03 + i * 1e-9) for i in range(20)], 0.05)
    assert certifiable(one * 20, 0.05) == alone, "attacks with the same numbers are one"
    spread = 0.02 / 1.6449
    assert 0.03 < alone < many
    assert (0.03 + spread * rng.normal(size=4000) <= alone).mean() == pytest.approx(0.9, abs=0.02)
    independent = (0.03 + spread * rng.normal(size=(4000, 20)) <= many).all(1).mean()
    assert independent == pytest.approx(0.9, abs=0.02)
    assert certifiable([], 0.05) == float("inf")


def test_a_limit_that_allows_half_of_everything_is_not_worth_naming():
    of = Undecided(STRICT, "excess", 20, 20, 64, True, (Bound(0.1, 0.7),), None)
    assert feasible(of) == ()
