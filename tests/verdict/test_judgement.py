"""The verdict: what follows from which counts, and how often it is wrong in simulated audits of known truth.

Simulated are the cases in which the thresholds matter most: all that an attack finds stands just outside, or just
inside, of the policy's false-positive rate.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as distributions

from safexplain.errors import InputError
from safexplain.verdict import judgement as module
from safexplain.verdict import words
from safexplain.verdict.judgement import MAIN, Control, Evidence, Judgement, is_judged, lower_risks
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import clopper_pearson
from safexplain.verdict.stats.paired import PairedCounts, rank_at, window_ranks
from safexplain.verdict.thresholds import upper_bound_rank

LOOSE = Policy(fpr=0.05, max_tpr=0.15, claim="whole", patience=(1,), references=1, uncounted=True)
EXCESS = replace(LOOSE, claim="excess")
FAILED = Control("blind baseline", True, "inputs differ", {"auc": 0.7})
PASSED = Control("null model", False, "nothing", {"auc": 0.5})


def attack(upper, lower, name="Threshold", signal="s", role="explanation", level=1, pair=None):
    """What an attack found, as counts for the (upper, lower) bound."""
    return Evidence(name, signal, role, level, (upper + lower) / 2, upper, lower, pair)


def judged(*counts, policy=LOOSE, members=1000, others=1000, **more):
    """Attacks of the explanation with these counts for the (upper, lower) bound."""
    evidence = tuple(attack(*c, signal=f"s{i}") for i, c in enumerate(counts))
    return Judgement(policy, evidence, members, others, more.pop("references", 1), **more)


def pair(only, missed, both=60, policy=EXCESS):
    """Found by the attack only, and by the labels only; few non-members differ, and few members are near."""
    ranks = window_ranks(1000, policy.fpr)
    at = rank_at(1000, policy.fpr)
    steps = [(r - at) * 0.5 for r in ranks]
    windows = (tuple(max(0.0, both + own + s) for s in steps) for own in (only, missed))
    return PairedCounts(only, missed, 2, 2, *windows)


def compared(*pairs, policy=EXCESS, level=1, labels=True, **more):
    """Stacked attacks beside the labels of the same queries."""
    base = attack(90, 70, "LabelPatience", f"label@{level}", "label", level)
    rows = tuple(
        attack(100, 60, MAIN, f"s{i}@{level}", "explanation+label", level, p if labels else None)
        for i, p in enumerate(pairs)
    )
    evidence = (*more.pop("beside", ()), *((base,) if labels else ()), *rows)
    return Judgement(policy, evidence, 1000, 1000, more.pop("references", 1), **more)


def test_few_found_by_every_attack_is_certified():
    j = judged((60, 30), (80, 40))
    assert (j.verdict, j.exit_code, words.reasons(j)) == ("certified", 0, ())
    assert j.bound == max(j.bounds(e)[1] for e in j.judged) <= 0.15
    finds = f"no judged attack on explanations finds more than {j.bound:.1%} of members at 5% false positives."
    weaker = " under a weaker policy (5% false positives, asked once only, 1 reference), uses not counted"
    assert words.sentence(j) == f"Certified{weaker}: asking once, {finds}"
    assert words.says(j)[0].startswith("The policy allows 15.0%; bounds hold with 95% confidence, from 1,000 members,")
    assert "Strongest judged attack: threshold of the s1, " in words.details(j)[0]


def test_many_found_by_one_attack_is_a_leak():
    j = judged((60, 30), (400, 300))
    assert (j.verdict, j.exit_code, words.reasons(j)) == ("leak", 1, ())
    assert [j.proven(e) for e in j.evidence] == [False, True]
    assert j.strongest is j.evidence[1]
    assert words.sentence(j).startswith("Leak proven: asking once, an attack on explanations finds at least ")


def test_between_the_two_it_is_inconclusive():
    j = judged((60, 30), (170, 120))
    assert (j.verdict, j.exit_code, words.reasons(j)) == ("inconclusive", 3, ("the interval is too wide to decide",))
    assert re.fullmatch(
        r"Inconclusive: asking once, the strongest .* finds .*% to .*% of members at .*", words.sentence(j)
    )
    assert words.details(j)[0] == "The interval is too wide to decide."


def test_the_limits_say_how_often_was_asked_and_name_what_was_not_attacked():
    for release, others in (("explanation", " explanations of other outputs or by other methods,"), ("prediction", "")):
        _, (headline, says), *_ = words.limits(judged((10, 5), policy=replace(LOOSE, release=release)))
        missing = f"more queries, queries optimised for one example,{others} attackers who work together"
        assert headline == "One query an example."
        compared = words.limits(judged((10, 5), policy=replace(LOOSE, release=release)))[2][0]
        assert compared == ("Predictions alone." if release == "prediction" else "The whole release.")
        assert says.endswith(f"Not attacked: {missing}.")
    patient = replace(LOOSE, patience=(1, 5))
    both = Judgement(patient, (attack(10, 5), attack(10, 5, signal="s@5", level=5)), 1000, 1000, 1)
    assert words.limits(both)[1][0] == "Queries of these kinds, up to 5 an example."
    assert "The attacks query each example once or 5 times, each time changed slightly" in words.limits(both)[1][1]


def test_with_too_few_references_nothing_is_certified_but_a_leak_is_a_leak():
    j = judged((60, 30), references=0)
    assert (j.verdict, words.reasons(j)) == (
        "inconclusive",
        ("the judged attacks had no reference models, but the policy requires 1",),
    )
    assert judged((400, 300), references=0).verdict == "leak"
    many = replace(LOOSE, references=16)
    assert judged((60, 30), references=15, policy=many).verdict == "inconclusive"
    assert judged((60, 30), references=16, policy=many).verdict == "certified"


def test_an_incomplete_suite_certifies_nothing_and_proves_leaks():
    j = judged((60, 30), omitted=("LikelihoodRatio", "Stacked"))
    assert j.verdict == "inconclusive"
    assert "LikelihoodRatio, Stacked fit these signals but were not run" in words.reasons(j)[0]
    assert judged((400, 300), omitted=("Stacked",)).verdict == "leak"


def test_uses_that_nobody_counts_certify_only_where_the_policy_says_so_and_then_the_certificate_does_too():
    counting = replace(LOOSE, uncounted=False)
    assert judged((60, 30), policy=counting).verdict == "inconclusive"
    assert "cannot be counted" in words.reasons(judged((60, 30), policy=counting))[0]
    assert judged((60, 30), policy=counting, uses=1).verdict == "certified"
    assert judged((60, 30), policy=counting, uses=2).verdict == "inconclusive"
    assert judged((60, 30), policy=counting, uses=2, forced=True).verdict == "certified"
    assert "uses not counted: " in words.sentence(judged((60, 30)))
    assert "not counted" not in words.text(judged((60, 30), policy=counting, uses=1))


@pytest.mark.parametrize("counts", [(60, 30), (170, 120), (400, 300)])
def test_a_control_that_failed_makes_every_verdict_inconclusive(counts):
    j = judged(counts, controls=(PASSED, FAILED))
    assert (j.verdict, j.exit_code) == ("inconclusive", 3)
    assert words.reasons(j)[0] == "the control “blind baseline” failed: inputs differ"
    assert judged(counts, controls=(PASSED, replace(FAILED, failed=None))).verdict == judged(counts).verdict


def test_after_a_control_failed_the_interval_is_blamed_only_where_it_is_to_blame():
    assert len(words.reasons(judged((400, 300), controls=(FAILED,)))) == 1
    assert len(words.reasons(judged((170, 120), controls=(FAILED,)))) == 2


@pytest.mark.parametrize("counts", [(60, 30), (400, 300)])
def test_nothing_is_decided_on_the_selection_split(counts):
    j = judged(counts, split="selection")
    assert j.verdict == "inconclusive"
    assert words.reasons(j) == ("these are the examples of the selection split, on which nothing is certified",)


def test_without_an_attack_to_judge_nothing_is_decided():
    j = Judgement(LOOSE, (attack(900, 800, signal="loss", role="loss"),), 1000, 1000, 1)
    assert (j.verdict, j.bound) == ("inconclusive", 1.0)
    assert words.reasons(j)[0] == "there is no attack to judge"
    assert words.sentence(j) == "Inconclusive: there is no attack to judge."


def test_what_is_judged_is_whatever_the_stated_attacker_can_run():
    roles = {}
    for release in ("explanation", "explanation+prediction"):
        for claim in ("whole", "excess"):
            policy = Policy(release=release, claim=claim)
            roles[release, claim] = {r for r in module.ROLES if is_judged(r, policy)}
    assert roles["explanation", "whole"] == {"explanation", "label", "explanation+label"}
    assert roles["explanation", "excess"] == {"explanation+label"}
    assert roles["explanation+prediction", "whole"] == set(module.ROLES)
    assert roles["explanation+prediction", "excess"] == {"explanation+loss"}
    alone = Policy(release="prediction")
    assert {r for r in module.ROLES if is_judged(r, alone)} == {"label", "loss"}


def test_predictions_alone_are_judged_as_a_whole_and_the_sentence_speaks_of_them():
    policy = replace(EXCESS, release="prediction")
    best = attack(60, 30, "PredictionPatience", "prediction", "loss")
    labels, explained = attack(50, 20, "LabelPatience", "label", "label"), attack(900, 800, signal="l1")
    j = Judgement(policy, (best, labels, explained), 1000, 1000, 1)
    assert (j.claim, j.limit, j.verdict) == ("whole", 0.15, "certified")
    assert j.judged == (best, labels)
    assert j.baseline(1) is None
    assert j.levels[0]["labels"] is None
    assert ": asking once, no judged attack on predictions finds more than " in words.sentence(j)
    assert "sees the prediction alone" in words.says(j)[1]
    assert "Not judged, because it reads what is not released: threshold of the L1 norm finds" in words.text(j)
    assert "explanation" not in words.text(j).partition("Not judged")[0]
    assert Judgement.from_dict(j.to_dict()) == j
    patient = Judgement(replace(policy, patience=(1, 5)), (best,), 1000, 1000, 1)
    assert "the signals lack arrays such as prediction@5 and kept@5" in words.text(patient)


@pytest.mark.parametrize(
    ("name", "signal", "says"),
    [
        ("JointLikelihoodRatio", "predictions@4", "joint likelihood ratio of the predictions, one by one, 4 queries"),
        ("JointLikelihoodRatio", "l1+prediction", "joint likelihood ratio of the L1 norm and prediction"),
        ("RMIA", "loss", "RMIA on the loss"),
        ("Stacked", "l1@5", "stacked attacks on the L1 norm, 5 queries"),
    ],
)
def test_attacks_on_predictions_have_names_that_read_well(name, signal, says):
    assert words.title(name, signal) == says


def test_figures_are_rounded_and_counted_as_people_write_them():
    share, difference = words.Figure(0.1234, 0.1, 0.2), words.Figure(0.012, -0.001, 0.025, signed=True)
    assert (share.text, share.interval) == ("12.3%", "10.0%-20.0%")
    assert (difference.text, difference.interval) == ("+1.2", "-0.1 to +2.5")
    assert (words.percent(0.12345, 3), words.points(0.012345, 2)) == ("12.3%", "+1.2")
    assert [words.times(level) for level in (1, 2, 1200)] == ["once", "2 times", "1,200 times"]
    assert [words.count(n, "model") for n in (0, 1, 3000)] == ["0 models", "1 model", "3,000 models"]
    kept = "Stacked attacks · L1 norm and share of queries that kept the label"
    assert words.attack_name("Stacked", "l1@5+kept@5", 5) == kept
    assert words.attack_name("Stacked", "l1@50", 5) == "Stacked attacks · L1 norm, 50 queries"


def test_an_attack_on_the_loss_is_judged_only_where_the_prediction_is_released_and_named_where_not():
    strong, weak = attack(900, 800, signal="loss", role="loss"), attack(60, 30, signal="l1")
    j = Judgement(LOOSE, (strong, weak), 1000, 1000, 1)
    assert j.verdict == "certified"
    assert j.beyond == (strong,)
    assert "Not judged, because it reads what is not released: threshold of the loss finds at least 7" in words.text(j)
    assert "no judged attack on explanations finds more than" in words.sentence(j)
    assert "Not judged" not in words.text(Judgement(LOOSE, (weak,), 1000, 1000, 1))
    released = replace(LOOSE, release="explanation+prediction")
    assert Judgement(released, (strong, weak), 1000, 1000, 1).verdict == "leak"


@pytest.mark.parametrize(
    ("role", "level", "why"),
    [
        ("explanation", 1, "reads less than all that is released"),
        ("label", 1, "reads no explanation"),
        ("loss", 1, "reads what is not released"),
        ("explanation", 5, "asks more or fewer times than the policy's attacker"),
    ],
)
def test_why_an_attack_above_the_limit_is_not_judged_is_said(role, level, why):
    best = attack(100, 60, MAIN, role="explanation+label", pair=pair(40, 10))
    base = attack(90, 70, "LabelPatience", "label", "label")
    other = attack(900, 800, "RMIA", "s", role, level, pair(600, 10))
    found = words.text(Judgement(EXCESS, (best, base, other), 1000, 1000, 1))
    assert f"Not judged, because it {why}: RMIA on the s" in found


def test_pairs_of_more_members_than_there_are_are_refused():
    assert compared(pair(500, 500, both=0)).members == 1000
    with pytest.raises(InputError, match="pairs out of range"):
        compared(pair(500, 501, both=0))


def test_a_bound_at_the_limit_itself_is_within_it():
    counts, unread = (170, 120), attack(400, 300, signal="loss", role="loss")
    low, high = judged(counts).bounds(judged(counts).evidence[0])
    for limit, verdict, standing in (
        (np.nextafter(low, 0), "leak", "above"), (low, "inconclusive", "open"),
        (np.nextafter(high, 0), "inconclusive", "open"), (high, "certified", "below"),
    ):  # fmt: skip
        j = judged(counts, policy=replace(LOOSE, max_tpr=float(limit)))
        assert (j.verdict, words.standing(j, j.evidence[0])) == (verdict, standing)
        assert j.proven(j.evidence[0]) == (verdict == "leak")
    beside = Judgement(LOOSE, (attack(60, 30), unread), 1000, 1000, 1)
    low = beside.bounds(unread)[0]
    for limit, beyond in ((np.nextafter(low, 0), (unread,)), (low, ())):
        assert replace(beside, policy=replace(LOOSE, max_tpr=float(limit))).beyond == beyond


def test_the_excess_is_judged_by_pairs_and_not_by_what_is_found_in_all():
    same, more = compared(pair(20, 20)), compared(pair(400, 0))
    assert (same.verdict, more.verdict) == ("certified", "leak")
    assert same.bound <= same.limit < more.added(more.evidence[-1])[0]
    assert "of members beyond labels alone" in words.sentence(same)
    assert "beyond the labels of the same queries alone" in words.details(same)[0]
    assert compared(pair(20, 20), pair(400, 0)).verdict == "leak"


def test_a_release_without_labels_is_judged_whole_and_says_so():
    j = compared(pair(20, 20), labels=False)
    assert (j.claim, j.limit, j.verdict) == ("whole", 0.15, "certified")
    assert "There are no labels to compare with, so the release is judged as a whole" in words.text(j)


def test_an_attack_without_labels_that_adds_much_is_named_beside_the_judged_ones():
    alone = attack(500, 400, "LikelihoodRatio", "loss", "loss", 1, pair(400, 0))
    j = compared(pair(20, 20), beside=(alone,))
    assert j.beyond == (alone,)
    assert "likelihood ratio of the loss finds at least 3" in words.text(j)


def test_every_level_of_patience_must_be_judged_and_the_sentence_names_the_highest():
    patient = replace(EXCESS, patience=(1, 200))
    one, both = compared(pair(20, 20), policy=patient), None
    assert one.verdict == "inconclusive"
    assert one.missing == (200,)
    assert "asks 200 times" in words.reasons(one)[0]
    assert "patience = [1]" in words.reasons(one)[0]
    far = compared(pair(20, 20), policy=patient, level=200)
    both = replace(one, evidence=(*one.evidence, *far.evidence))
    assert both.verdict == "certified"
    assert words.sentence(both).startswith(
        "Certified under a weaker policy (excess 10 points, 5% false positives, 1 reference)"
    )
    assert ": asking up to 200 times, " in words.sentence(both)
    leak = compared(pair(400, 0), policy=patient, level=200)
    assert replace(one, evidence=(*one.evidence, *leak.evidence)).verdict == "leak"


def test_each_level_shows_labels_what_is_added_and_both_together():
    patient = replace(EXCESS, patience=(1, 200))
    j = compared(pair(20, 20), pair(60, 0), policy=patient)
    first, second = j.to_dict()["levels"]
    assert first["patience"] == 1
    assert first["labels"]["tpr"] == 0.08
    assert first["added"]["low"] == max(j.added(e)[0] for e in j.judged)
    assert first["added"]["high"] == max(j.added(e)[1] for e in j.judged)
    assert first["whole"]["high"] == max(j.bounds(e)[1] for e in j.judged)
    assert second == {"patience": 200, "labels": None, "added": None, "whole": None}
    labels, most = j.evidence[0], j.evidence[2]
    row = words.LevelRow(1, words.rate(j, labels), words.adds(j, most), words.rate(j, most))
    assert words.level_rows(j) == [row, (200, None, None, None)]
    assert [figure.value for figure in row[1:]] == [0.08, 0.06, 0.08]


def several(*found, policy=LOOSE):
    """Judgements of several targets, the first one with all others within it."""
    one = [replace(judged(c, policy=policy), target=i, targets=len(found)) for i, c in enumerate(found)]
    return replace(one[0], others=tuple(one[1:]))


def test_one_leaking_model_of_seventeen_is_a_leak_and_is_named():
    j = several((400, 300), *[(50, 20)] * 16)
    assert j.verdict == "leak"
    assert words.sentence(j).startswith("Leak proven for model 0: ")
    hidden = several((50, 20), (400, 300), *[(50, 20)] * 15)
    assert hidden.verdict == "leak"


def test_several_models_are_certified_when_each_is():
    j = several(*[(50, 20)] * 17)
    assert j.verdict == "certified"
    assert words.sentence(j).startswith("Certified for each of 17 models under a weaker policy (")
    assert several((50, 20), (170, 120)).verdict == "inconclusive"


def test_a_lower_bound_shares_its_risk_among_attacks_and_targets_and_an_upper_bound_does_not():
    one, many = judged((100, 100)), judged(*[(100, 100)] * 20)
    assert many.bounds(many.evidence[0])[1] == one.bounds(one.evidence[0])[1]
    assert many.bounds(many.evidence[0])[0] < one.bounds(one.evidence[0])[0]
    assert one.bounds(one.evidence[0]) == pytest.approx(clopper_pearson(100, 1000, 0.95))
    targets = several(*[(100, 100)] * 20)
    assert targets.bounds(targets.evidence[0]) == pytest.approx(many.bounds(many.evidence[0]))


def test_half_of_the_risk_goes_to_the_main_attacks_and_all_of_it_is_spent():
    names = [MAIN, MAIN, *["LikelihoodRatio"] * 6]
    risks = lower_risks(names, LOOSE)
    assert risks == pytest.approx([LOOSE.risk / 4] * 2 + [LOOSE.risk / 12] * 6)
    assert sum(lower_risks(names, LOOSE, targets=5)) == pytest.approx(LOOSE.risk / 5)
    assert lower_risks(["Threshold"] * 4, LOOSE) == pytest.approx([LOOSE.risk / 4] * 4)
    assert lower_risks([MAIN] * 3, LOOSE) == pytest.approx([LOOSE.risk / 3] * 3)
    alone = replace(LOOSE, release="prediction")  # there, the attack that joins those on predictions is the main one
    risks = lower_risks(["PredictionPatience", "Threshold", "JointLikelihoodRatio"], alone)
    assert risks == pytest.approx([LOOSE.risk / 2, LOOSE.risk / 4, LOOSE.risk / 4])


def test_the_confidence_is_said_with_what_shares_the_risk():
    end = "; each upper bound holds with 95%. Both include the uncertainty of the threshold."
    begin = "The lower bounds of the judged attack hold jointly with 95% confidence"
    assert words.confidence_sentence(judged((60, 30))) == begin + end
    among = begin.replace("attack", "attack on each of the 2 models")
    assert words.confidence_sentence(several((50, 20), (50, 20))) == among + end
    looks = Judgement(replace(LOOSE, looks=2), (attack(60, 30, MAIN), attack(60, 30)), 1000, 1000, 1)
    half = " over all 2 looks at the model (half of the risk goes to the 1 called “stacked”)"
    assert words.confidence_sentence(looks) == begin.replace("the judged attack", "the 2 judged attacks") + half + end


def test_with_too_few_non_members_everything_counts_as_found():
    j = judged((40, 0), members=40, others=2, policy=replace(LOOSE, fpr=0.2, max_tpr=0.3))
    assert upper_bound_rank(2, 0.2, 0.025) is None
    assert j.bounds(j.evidence[0])[1] == 1.0


def full():
    j = compared(pair(50, 20), pair(30, 40.5), policy=replace(EXCESS, suite=("Threshold",), max_excess=0.07))
    two = replace(
        j,
        references=16,
        controls=(FAILED, PASSED, Control("references", None, "none", {})),
        omitted=("Boosted",),
        split="selection",
        grouped=5000,
        target=3,
        targets=2,
        uses=2,
        forced=True,
    )
    return replace(two, others=(replace(two, target=1, split="certification"),))


@pytest.mark.parametrize("j", [full(), judged((60, 30)), judged((400, 300), references=0)], ids=["full", "few", "many"])
def test_a_judgement_that_was_written_is_read_back_the_same(j):
    again = Judgement.from_dict(json.loads(json.dumps(j.to_dict(), allow_nan=False)))
    assert again == j
    assert again.to_dict() == j.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"members": None},
        {"members": 0},
        {"evidence": [{**attack(60, 30).to_dict(), "upper_bound_count": 2000}]},
        {"evidence": [{**attack(60, 30).to_dict(), "lower_bound_count": 61}]},
        {"evidence": [{**attack(60, 30).to_dict(), "found": "many"}]},
        {"evidence": [{**attack(60, 30).to_dict(), "level": 0}]},
        {"evidence": [{**attack(60, 30).to_dict(), "role": "else"}]},
        {"evidence": [{**attack(60, 30, pair=pair(900, 900)).to_dict()}]},
        {"evidence": [attack(60, 30).to_dict()] * 2},
        {"others": [judged((60, 30)).to_dict()]},
        {"policy": {"fpr": 2.0}},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_impossible_contents_are_refused(change):
    with pytest.raises(InputError):
        Judgement.from_dict({**judged((60, 30)).to_dict(), **change})


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
    risk = module.lower_risks(["Threshold"] * len(curves), policy, 1)[0]
    low = module.lower_bound_rank(n, policy.fpr, risk / 2)[0]
    high = module.upper_bound_rank(n, policy.fpr, policy.risk / 2)
    found = []
    for curve in curves:
        rates = np.sort(rng.random((audits, n)), axis=1)  # of the non-members, from the highest score to the lowest
        at = rates[:, [low - 1, high - 1]]
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
    "smooth, over the limit": ([smooth(0.15001)], "certified"),
    "smooth, at the limit": ([smooth(0.15)] * 20, "leak"),
}


@pytest.mark.parametrize("case", HARDEST)
def test_a_wrong_verdict_is_as_rare_as_the_confidence_says(case):
    assert simulated(*HARDEST[case])[0] <= 0.05


def test_right_verdicts_are_reached():
    assert simulated([smooth(0.3), *[guessing] * 6], "leak", audits=200)[0] > 0.9
    assert simulated([guessing] * 7, "certified", audits=200)[0] > 0.9


def test_without_bonferroni_many_attacks_at_the_limit_prove_a_leak_too_often(monkeypatch):
    monkeypatch.setattr(module, "lower_risks", lambda attacks, policy, targets: [policy.risk] * len(attacks))
    assert simulated(*HARDEST["all at the limit"])[0] > 0.05


def test_a_threshold_taken_as_known_is_wrong_both_ways(monkeypatch):
    """The rank at the stated rate for both bounds, with exact limits of the counts: what is often done."""
    monkeypatch.setattr(module, "lower_bound_rank", lambda n, fpr, risk: (int(fpr * n), 1.0))
    monkeypatch.setattr(module, "upper_bound_rank", lambda n, fpr, risk: int(fpr * n))
    assert simulated(*HARDEST["one at the limit"])[0] > 0.05
    assert simulated(*HARDEST["one over the limit"])[0] > 0.05
