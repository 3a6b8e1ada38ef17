"""The verdict: what follows from which counts, and how often it is wrong in simulated audits of known truth.

Simulated are the cases in which the thresholds matter most: all that an attack finds stands just outside, or just
inside, of the policy's false-positive rate.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.audit.attacks import Threshold
from safexplain.audit.attacks.suite import SuiteRow
from safexplain.audit.certify import conclude
from safexplain.errors import InputError
from safexplain.verdict import judgement as module
from safexplain.verdict.evidence import EXIT_CODES, Control, Evidence, Pair, is_judged, paired
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.thresholds import Ranks, by_score, ranks_of

LOOSE = Policy(fpr=0.05, max_tpr=0.15)
FAILED = Control("blind baseline", True, "inputs differ", {"auc": 0.7})
PASSED = Control("null model", False, "nothing", {"auc": 0.5})


def judged(*counts, policy=LOOSE, members=1000, others=1000, **more):
    """Attacks of the explanation with these counts for the (upper, lower) bound."""
    evidence = tuple(Evidence("Threshold", f"s{i}", "explanation", *c) for i, c in enumerate(counts))
    return Judgement(policy, evidence, members, others, more.pop("references", 1), **more)


# ------------------------------------------------------------------------------------------- what follows from what


def test_few_found_by_every_attack_is_certified():
    j = judged((60, 30), (80, 40))
    assert (j.verdict, j.exit_code, j.reasons) == ("certified", 0, ())
    assert j.bound == max(j.bounds(e)[1] for e in j.judged) <= 0.15
    assert j.sentence.startswith("Certified: the strongest attack (threshold of the s1) finds between")


def test_many_found_by_one_attack_is_a_leak():
    j = judged((60, 30), (400, 300))
    assert (j.verdict, j.exit_code, j.reasons) == ("leak", 1, ())
    assert [j.proven(e) for e in j.evidence] == [False, True]
    assert j.strongest is j.evidence[1]
    assert j.sentence.startswith("Leak proven: ")


def test_between_the_two_it_is_inconclusive():
    j = judged((60, 30), (170, 120))
    assert (j.verdict, j.exit_code, j.reasons) == ("inconclusive", 3, ("the interval is too wide to decide",))
    assert j.sentence.endswith("but the interval is too wide to decide.")


def test_one_attack_that_is_not_below_the_limit_prevents_a_certificate():
    assert judged((60, 30), (60, 30), (140, 90)).verdict == "inconclusive"


def test_without_references_nothing_is_certified_but_a_leak_is_a_leak():
    j = judged((60, 30), references=0)
    assert (j.verdict, j.reasons) == (
        "inconclusive",
        ("without reference models only weak attacks could run, so nothing can be certified",),
    )
    assert judged((400, 300), references=0).verdict == "leak"


@pytest.mark.parametrize("counts", [(60, 30), (170, 120), (400, 300)])
def test_a_control_that_failed_makes_every_verdict_inconclusive(counts):
    j = judged(counts, controls=(PASSED, FAILED))
    assert (j.verdict, j.exit_code) == ("inconclusive", 3)
    assert j.reasons[0] == "the control “blind baseline” failed: inputs differ"
    assert judged(counts, controls=(PASSED, replace(FAILED, failed=None))).verdict == judged(counts).verdict


def test_after_a_control_failed_the_interval_is_blamed_only_where_it_is_to_blame():
    assert len(judged((400, 300), controls=(FAILED,)).reasons) == 1
    assert len(judged((170, 120), controls=(FAILED,)).reasons) == 2


@pytest.mark.parametrize("counts", [(60, 30), (400, 300)])
def test_nothing_is_decided_on_the_selection_split(counts):
    j = judged(counts, split="selection")
    assert j.verdict == "inconclusive"
    assert j.reasons == ("these are the examples of the selection split, on which nothing is certified",)


def test_without_an_attack_to_judge_nothing_is_decided():
    j = Judgement(LOOSE, (Evidence("Threshold", "loss", "loss", 900, 800),), 1000, 1000, 1)
    assert (j.verdict, j.reasons, j.bound) == ("inconclusive", ("there is no attack to judge",), 1.0)
    assert j.sentence == "Inconclusive: there is no attack to judge."


def test_exit_codes_are_those_of_the_command_line():
    assert EXIT_CODES == {"certified": 0, "leak": 1, "inconclusive": 3}


def test_what_is_judged_depends_on_what_is_released_and_claimed():
    roles = {}
    for release in ("explanation", "explanation+prediction"):
        for claim in ("whole", "excess"):
            policy = Policy(release=release, claim=claim)
            roles[release, claim] = {r for r in module.ROLES if is_judged(r, policy)}
    assert roles["explanation", "whole"] == {"explanation"}
    assert roles["explanation", "excess"] == {"explanation", "explanation+label"}
    assert roles["explanation+prediction", "whole"] == set(module.ROLES)
    assert roles["explanation+prediction", "excess"] == set(module.ROLES) - {"label", "loss"}


def test_an_attack_on_the_loss_counts_only_where_the_prediction_is_released():
    strong = Evidence("Threshold", "loss", "loss", 900, 800)
    weak = Evidence("Threshold", "l1", "explanation", 60, 30)
    assert Judgement(LOOSE, (strong, weak), 1000, 1000, 1).verdict == "certified"
    released = replace(LOOSE, release="explanation+prediction")
    assert Judgement(released, (strong, weak), 1000, 1000, 1).verdict == "leak"


def test_the_excess_is_judged_by_pairs_and_not_by_what_is_found_in_all():
    policy = replace(LOOSE, claim="excess")
    both = Evidence("Threshold", "l1", "explanation", 900, 800)
    same = Judgement(policy, (both,), 1000, 1000, 1, pairs=(Pair("Threshold", "l1", 40, 20, 20, 40),))
    more = Judgement(policy, (both,), 1000, 1000, 1, pairs=(Pair("Threshold", "l1", 400, 0, 350, 0),))
    none = Judgement(policy, (both,), 1000, 1000, 1)
    assert (same.verdict, more.verdict, none.verdict) == ("certified", "leak", "inconclusive")
    assert none.reasons == ("there is no baseline to compare with",)
    assert same.bound <= policy.limit < more.excess(more.pairs[0])[0]
    assert "more of the members than" in same.sentence


def test_members_found_by_one_and_not_by_the_other_are_counted_both_ways():
    found, base = np.array([1, 1, 1, 0, 0], bool), np.array([1, 0, 0, 1, 0], bool)
    assert paired(found, base) == (2, 1)


# ------------------------------------------------------------------------------------------- risks


def test_a_lower_bound_shares_its_risk_among_the_attacks_and_an_upper_bound_does_not():
    one, many = judged((100, 100)), judged(*[(100, 100)] * 20)
    assert many.bounds(many.evidence[0])[1] == one.bounds(one.evidence[0])[1]
    assert many.bounds(many.evidence[0])[0] < one.bounds(one.evidence[0])[0]
    assert one.bounds(one.evidence[0]) == pytest.approx(clopper_pearson(100, 1000, 0.95))


def test_ranks_do_not_depend_on_what_was_found():
    assert judged((0, 0)).ranks == judged((999, 999)).ranks == ranks_of(LOOSE, 1000, 1)


def test_with_too_few_non_members_everything_counts_as_found():
    j = judged((40, 0), members=40, others=2, policy=replace(LOOSE, fpr=0.2, max_tpr=0.3))
    assert j.ranks.upper_bound_rank is None
    assert j.bounds(j.evidence[0])[1] == 1.0
    assert ranks_of(Policy(), 10, 1).lower_bound_share < 0.1


def test_one_member_and_one_non_member_decide_nothing():
    for counts in ((0, 0), (1, 0), (1, 1)):
        assert judged(counts, members=1, others=1).verdict == "inconclusive"


# ------------------------------------------------------------------------------------------- writing and reading


def full():
    return Judgement(
        replace(LOOSE, claim="excess", suite=("Threshold", "LikelihoodRatio"), max_excess=0.07),
        (Evidence("Threshold", "l1", "explanation", 90, 70), Evidence("LikelihoodRatio", "loss", "loss", 300, 200)),
        1000,
        900,
        16,
        (FAILED, PASSED, Control("references", None, "none", {})),
        (Pair("Threshold", "l1", 50, 20, 40, 30),),
        "likelihood ratio of the loss",
        "selection",
    )


@pytest.mark.parametrize("j", [full(), judged((60, 30)), judged((400, 300), references=0)], ids=["full", "few", "many"])
def test_a_judgement_that_was_written_is_read_back_the_same(j):
    again = Judgement.from_dict(json.loads(json.dumps(j.to_dict(), allow_nan=False)))
    assert again == j
    assert again.to_dict() == j.to_dict()


def test_a_forged_verdict_is_not_read():
    written = judged((400, 300)).to_dict()
    written |= {"verdict": "certified", "bound": 0.0, "sentence": "Certified."}
    written["evidence"][0] |= {"low": 0.0, "high": 0.0, "judged": False}
    again = Judgement.from_dict(written)
    assert again.verdict == "leak"
    assert again.to_dict() == judged((400, 300)).to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"members": None},
        {"members": 10.0},
        {"members": True},
        {"members": 0},
        {"evidence": [{"attack": "a", "signal": "s", "role": "explanation", "loose": 2000, "tight": 0}]},
        {"evidence": [{"attack": "a", "signal": "s", "role": "explanation", "loose": 5, "tight": 6}]},
        {"evidence": [{"attack": "a", "signal": "s", "role": "else", "loose": 5, "tight": 5}]},
        {"evidence": [{"attack": "a"}]},
        {"evidence": 3},
        {"excess": [{"attack": "a", "signal": "s", "loose_only": 900, "loose_missed": 900, "tight_only": 0}]},
        {
            "excess": [
                {
                    "attack": "a",
                    "signal": "s",
                    "loose_only": 900,
                    "loose_missed": 900,
                    "tight_only": 0,
                    "tight_missed": 0,
                }
            ]
        },
        {"controls": [{"name": "c", "fired": "no", "says": "", "numbers": {}}]},
        {"controls": [{"name": "c", "fired": False, "says": "", "numbers": {"auc": "much"}}]},
        {"policy": {"fpr": 2.0}},
        {"policy": None},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_impossible_contents_are_refused(change):
    with pytest.raises(InputError):
        Judgement.from_dict({**judged((60, 30)).to_dict(), **change})


@pytest.mark.parametrize("name", ["policy", "members", "evidence", "excess", "controls", "baseline", "split"])
def test_a_missing_field_is_named(name):
    written = judged((60, 30)).to_dict()
    del written[name]
    with pytest.raises(InputError, match=f"not the outcome of an audit: KeyError '{name}'"):
        Judgement.from_dict(written)


# ------------------------------------------------------------------------------------------- how often it is wrong


def just_outside(p, policy=LOOSE):
    """True rate exactly at the limit; nearly everyone stands just beyond."""
    return np.where(p <= policy.fpr, policy.max_tpr * p / policy.fpr, 0.8)


def just_inside(p, policy=LOOSE):
    """True rate just over the limit; all that is found stands just before it."""
    return np.where(p < policy.fpr, p, np.maximum(1.001 * policy.max_tpr, p))


def guessing(p):
    return p


def smooth(tpr, policy=LOOSE):
    shift = distributions.norm.isf(policy.fpr) - distributions.norm.isf(tpr)
    return lambda p: distributions.norm.sf(distributions.norm.isf(p) - shift)


def simulated(curves, wanted, audits=500, n=1000, policy=LOOSE, seed=0):
    """Clopper-Pearson interval of the share of audits with the wanted verdict, one curve for each attack."""
    rng = np.random.default_rng(seed)
    r = module.ranks_of(policy, n, len(curves))
    found = []
    for curve in curves:
        rates = np.sort(rng.random((audits, n)), axis=1)  # of the non-members, from the highest score to the lowest
        at = rates[:, [r.lower_bound_rank - 1, r.upper_bound_rank - 1]]
        chance = curve(at)
        lower = rng.binomial(n, chance[:, 0])
        rest = np.clip((chance[:, 1] - chance[:, 0]) / np.maximum(1 - chance[:, 0], 1e-12), 0, 1)
        found.append(np.stack([lower + rng.binomial(n - lower, rest), lower], axis=1))
    counts = np.stack(found, axis=1).tolist()
    hits = sum(
        judged(*(tuple(c) for c in audit), policy=policy, members=n, others=n).verdict == wanted for audit in counts
    )
    return clopper_pearson(hits, audits)


HARDEST = {
    "no leak": ([guessing] * 20, "leak"),
    "one at the limit": ([just_outside, *[guessing] * 6], "leak"),
    "all at the limit": ([just_outside] * 20, "leak"),
    "one over the limit": ([just_inside, *[guessing] * 6], "certified"),
    "all over the limit": ([just_inside] * 3, "certified"),
    "smooth, over the limit": ([smooth(0.15001)], "certified"),
    "smooth, at the limit": ([smooth(0.15)] * 20, "leak"),
}


@pytest.mark.parametrize("case", HARDEST)
def test_a_wrong_verdict_is_as_rare_as_the_confidence_says(case):
    assert simulated(*HARDEST[case])[0] <= 0.05


def test_right_verdicts_are_reached():
    assert simulated([smooth(0.3), *[guessing] * 6], "leak", audits=200)[0] > 0.9
    assert simulated([guessing] * 7, "certified", audits=200)[0] > 0.9


def broken(monkeypatch, change):
    real = module.ranks_of
    monkeypatch.setattr(module, "ranks_of", lambda p, n, k: change(real, p, n, k))


def test_without_bonferroni_many_attacks_at_the_limit_prove_a_leak_too_often(monkeypatch):
    broken(monkeypatch, lambda real, p, n, k: real(p, n, 1))
    assert simulated(*HARDEST["all at the limit"])[0] > 0.05


def test_a_threshold_taken_as_known_is_wrong_both_ways(monkeypatch):
    """The rank at the stated rate for both bounds, with exact limits of the counts: what is often done."""

    def known(real, p, n, k):
        rank = int(p.fpr * n)
        return replace(real(p, n, k), upper_bound_rank=rank, lower_bound_rank=rank)

    broken(monkeypatch, known)
    assert simulated(*HARDEST["one at the limit"])[0] > 0.05
    assert simulated(*HARDEST["one over the limit"])[0] > 0.05


def test_an_upper_bound_at_the_threshold_of_the_lower_one_certifies_leaks(monkeypatch):
    broken(monkeypatch, lambda real, p, n, k: replace(real(p, n, k), upper_bound_rank=real(p, n, k).lower_bound_rank))
    assert simulated(*HARDEST["one over the limit"])[0] > 0.05
    assert simulated(*HARDEST["smooth, over the limit"])[0] > 0.05


def test_ranks_of_the_wrong_risk_are_wrong_too_often(monkeypatch):
    def careless(real, p, n, k):
        r = real(replace(p, confidence=0.4), n, k)
        return Ranks(r.upper_bound_rank, r.lower_bound_rank, 1.0, real(p, n, k).upper_risk, real(p, n, k).lower_risk)

    broken(monkeypatch, careless)
    assert simulated(*HARDEST["one over the limit"])[0] > 0.05
    assert simulated(*HARDEST["all at the limit"])[0] > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("case", HARDEST)
@pytest.mark.parametrize(("n", "policy"), [(500, LOOSE), (2000, Policy(fpr=0.02, max_tpr=0.02))], ids=["500", "2000"])
def test_a_wrong_verdict_is_rare_at_other_sizes_and_policies(case, n, policy):
    curves, wanted = HARDEST[case]
    named = {just_outside: lambda p: just_outside(p, policy), just_inside: lambda p: just_inside(p, policy)}
    bound = [named.get(c, smooth(policy.max_tpr, policy) if "smooth" in case else c) for c in curves]
    assert simulated(bound, wanted, audits=3000, n=n, policy=policy)[0] <= 0.05


# ------------------------------------------------------------------------------------------- the claim "excess"

EXCESS = replace(LOOSE, claim="excess", release="explanation+prediction")
ROWS = [SuiteRow("Threshold", Threshold(), s, role) for s, role in (("l1", "explanation"), ("loss", "loss"))]


def compared(excess, *, cliff, strength=0.3, audits=150, n=600):
    """Bounds of the excess in simulated audits through the protocol's own counting, (audits, 2).

    The scores of attack and baseline are correlated (.9). On the cliff, all that the attack finds beyond the baseline
    stands just outside (1) or just inside (-1) of the policy's rate, where it does not count, or does.
    """
    member, f = np.arange(2 * n) < n, EXCESS.fpr
    edge, bounds = distributions.norm.isf(f), []
    for number in range(audits):
        rng = np.random.default_rng([7, number])
        base = rng.normal(size=2 * n)
        mine = 0.9 * base + (1 - 0.81) ** 0.5 * rng.normal(size=2 * n)
        base[member] += edge - distributions.norm.isf(strength)
        if cliff:
            some = rng.permutation(n)[: rng.binomial(n, strength + excess if cliff < 0 else 0.6)]
            rest = 0.0 if cliff < 0 else (strength + excess) / 0.4
            mine[:n] = np.where(rng.random(n) < rest, 9.0, -9.0)
            mine[:n][some] = edge - cliff * 1e-9
        else:
            mine[member] += edge - distributions.norm.isf(strength + excess)
        scores = [mine, base]
        orders = [by_score(s, number) for s in scores]
        judgement = conclude(ROWS, scores, orders, member, EXCESS)
        bounds.append(judgement.excess(judgement.pairs[0]))
    return np.array(bounds)


@pytest.mark.parametrize(("excess", "cliff"), [(0.0, 0), (0.1, 0), (0.1, 1), (0.1, -1)])
def test_the_interval_of_the_excess_holds_the_true_excess(excess, cliff):
    low, high = compared(excess, cliff=cliff).T
    for wrong in (low > excess, high < excess):
        assert clopper_pearson(int(wrong.sum()), len(wrong))[0] <= 0.05


def test_an_interval_of_the_excess_at_known_thresholds_misses_too_often(monkeypatch):
    counting = sys.modules["safexplain.audit.certify"]  # the name of the module is also that of its function
    monkeypatch.setattr(counting, "upper_bound_rank", lambda n, fpr, risk: int(fpr * n))
    monkeypatch.setattr(counting, "lower_bound_rank", lambda n, fpr, risk: (int(fpr * n), 1.0))
    for cliff, side in ((1, 0), (-1, 1)):
        bounds = compared(0.1, cliff=cliff, audits=60)
        wrong = bounds[:, 0] > 0.1 if side == 0 else bounds[:, 1] < 0.1
        assert clopper_pearson(int(wrong.sum()), len(wrong))[0] > 0.05


def test_an_excess_is_found_where_there_is_one():
    bounds = compared(0.4, cliff=0, audits=20)
    assert (bounds[:, 0] > EXCESS.limit).mean() > 0.9
