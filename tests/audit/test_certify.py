"""The verdict: seldom wrong without a leak, right with a large one, and never more certain than the data."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from certificates import made, read_back
from sklearn.datasets import load_digits
from torch import nn
from worlds import EXCESS, LOOSE, recognised, synthetic, with_label

from safexplain import HardenedSaliency, Hardening, Probability
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, certify, collect_signals, train_shadows
from safexplain.audit.attacks import Learned, LikelihoodRatio, Threshold
from safexplain.audit.attacks.suite import SuiteRow
from safexplain.audit.controls.splits import Splits, Uses
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict import words
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.stats import auc_interval
from safexplain.verdict.thresholds import lower_bound, lower_bound_rank, upper_bound, upper_bound_rank

pytestmark = pytest.mark.usefixtures("few_trees")
THREE = ("l1", "l2", "variance")


def false_alarms(verdict, repeats, **world):
    return np.mean([verdict(synthetic(seed=s, **world)) for s in range(repeats)])


def proven(policy):
    return lambda signals: certify(signals, policy).verdict == "leak"


QUICK = ("Threshold", "LikelihoodRatio", "JointLikelihoodRatio")
"""The attacks that train nothing: which others are run makes no leak of none."""

ONCE = replace(LOOSE, suite=QUICK)
CHANCE = replace(ONCE, max_tpr=0.05)
ADDED = replace(EXCESS, suite=("LikelihoodRatio",), max_excess=0.001)


@pytest.mark.parametrize(("policy", "examples"), [(CHANCE, 300), (replace(ONCE, fpr=0.01, max_tpr=0.03), 100)], ids=str)
def test_without_a_leak_a_leak_is_proven_in_at_most_5_percent_of_audits(policy, examples):
    assert false_alarms(proven(policy), 40, examples=examples, names=THREE) <= 0.05


def test_a_label_that_leaks_is_not_held_against_an_explanation_that_adds_nothing():
    worlds = [with_label(synthetic(seed=s, examples=500), wrong=0.95, seed=s) for s in range(12)]
    assert sum(certify(w, ADDED).verdict == "leak" for w in worlds) <= 1
    told = with_label(synthetic(examples=1500), wrong=0.98)
    assert certify(told, replace(ADDED, claim="whole")).verdict == "leak"
    assert certify(told, ADDED).verdict != "leak"


@pytest.mark.parametrize(
    ("world", "verdict", "exit_code", "says"),
    [
        ({"leak": 3.0}, "leak", 1, "Leak proven: asking once, an attack on explanations finds at least "),
        ({"examples": 3000}, "certified", 0, ": asking once, no judged attack on explanations finds more than "),
        ({"examples": 30}, "inconclusive", 3, "too wide to decide"),
    ],
    ids=str,
)
def test_leak_and_data_decide_the_verdict(world, verdict, exit_code, says):
    result = certify(synthetic(**world), LOOSE)
    assert (result.verdict, result.exit_code) == (verdict, exit_code)
    assert says in str(result)


@pytest.mark.parametrize("name", ["variance", "attributions", "my_own_signal"])
def test_one_leaking_signal_is_enough(name):
    calm = synthetic(names=("mean", "peak"))
    assert certify(calm, LOOSE).verdict != "leak"
    leaking = synthetic(leak=3.0, names=("s",)).values["s"]
    if name == "attributions":
        found = replace(calm, attributions=leaking[..., None] * np.ones(4))
    else:
        found = replace(calm, values={**calm.values, name: leaking})
    result = certify(found, LOOSE)
    assert result.verdict == "leak"
    assert any(name in a.signal and result.bounds(a)[0] > LOOSE.max_tpr for a in result.judged)


def test_all_that_is_released_is_judged_when_the_prediction_is_too():
    both = with_label(synthetic(examples=1000, others=("loss",)))
    result = certify(both, replace(LOOSE, release="explanation+prediction"))
    assert result.judged == result.attacks
    assert result.verdict == "leak"
    assert "loss" in result.strongest.role
    added = certify(both, replace(EXCESS, release="explanation+prediction"))
    assert {a.role for a in added.judged} == {"explanation+loss"}
    assert added.verdict != "leak"
    assert "beyond the predictions of the same queries alone" in str(added)


def predictions(leak=0.0, seed=0, labelled=False, **fields):
    """Log odds of four classes, which membership moves in a direction of each example's own."""
    rng = np.random.default_rng(seed)
    signals = synthetic(seed=seed, **fields)
    way = rng.normal(size=(2, 1, len(signals), 4))
    values = way[0] + leak * signals.membership[..., None] * way[1] + rng.normal(size=(*signals.membership.shape, 4))
    return replace(signals, values={"prediction": values, **({"label": values.argmax(-1)} if labelled else {})})


@pytest.mark.parametrize("labelled", [False, True])
def test_predictions_without_explanations_are_judged_by_themselves(labelled):
    result = certify(predictions(leak=1.0, labelled=labelled, examples=1000), EXCESS)
    assert (result.policy.release, result.claim, result.limit) == ("prediction", "whole", 0.15)
    assert result.policy == replace(EXCESS, release="prediction")
    assert result.verdict == "leak"
    assert result.judged == result.attacks
    assert {a.role for a in result.attacks} == ({"loss", "label"} if labelled else {"loss"})
    assert result.omitted == ()
    assert "sees the prediction alone" in words.says(result)[1]
    assert "explanation" not in str(result)
    calm = certify(predictions(labelled=labelled, examples=1000), EXCESS)
    assert calm.verdict == "certified"
    assert certify(predictions(leak=1.0, examples=600), replace(EXCESS, release="explanation+prediction")).judged


def test_explanations_that_are_not_released_are_not_attacked():
    both = predictions(examples=600)
    both = replace(both, values={**both.values, **synthetic(examples=600, leak=3.0).values})
    result = certify(both, replace(LOOSE, release="prediction"))
    assert not [a for a in result.attacks if "explanation" in a.role]
    assert result.verdict != "leak"
    assert certify(both, LOOSE).verdict == "leak"


def test_the_excess_of_an_explanation_over_the_label_is_judged_by_pairs():
    passing = certify(with_label(synthetic(examples=6000)), EXCESS)
    assert passing.verdict == "certified"
    assert "of members beyond labels alone" in passing.sentence
    leaking = certify(with_label(synthetic(leak=3.0, examples=3000)), EXCESS)
    assert leaking.verdict == "leak"
    by_name = {a.code: a.at(0.05).tpr for a in leaking.attacks}
    for attack in leaking.judged:
        assert attack.pair.only - attack.pair.missed == attack.found - leaking.baseline(1).found
        low, high = leaking.added(attack)
        assert low < by_name[attack.code] - by_name["LabelPatience on label"] < high


@pytest.mark.parametrize("models", [1, 2])
def test_without_reference_models_nothing_is_certified_but_a_leak_is_proven(models):
    calm = certify(synthetic(examples=5000, models=models), LOOSE)
    assert calm.verdict == "inconclusive"
    assert calm.references == 0
    assert {a.attack for a in calm.attacks} == {"Threshold"}
    assert "the judged attacks had no reference models" in str(calm)
    assert certify(synthetic(leak=3.0, examples=500, models=models), LOOSE).verdict == "leak"


def slow_count(scores, member, rank):
    """Members above the rank-th highest non-member, one by one."""
    threshold = sorted(scores[~member], reverse=True)[rank - 1]
    return sum(score > threshold for score in scores[member])


def test_the_bounds_count_members_above_thresholds_at_ranks():
    signals = synthetic(examples=2000, names=THREE)
    result = certify(signals, ONCE)
    alone = len(result.judged) - 1
    assert [a.attack for a in result.judged].count("Stacked") == 1
    risk = 0.05 / 2 / alone  # the other half is the stack's
    member, others = signals.membership[0], list(signals.references(0))
    scores = LikelihoodRatio()(signals.values["l1"][0], signals.values["l1"][others], signals.membership[others])
    attack = next(a for a in result.judged if a.code == "LikelihoodRatio on l1")
    assert result.lower_risk(attack) == pytest.approx(risk)
    strict = lower_bound_rank(result.non_members, 0.05, risk / 2)[0]
    loose = upper_bound_rank(result.non_members, 0.05, 0.05 / 2)
    low = lower_bound(slow_count(scores, member, strict), result.members, risk / 2)
    high = upper_bound(slow_count(scores, member, loose), result.members, 0.05 / 2)
    assert result.bounds(attack) == pytest.approx((low, high))
    assert low < attack.at(0.05).tpr < high
    assert strict < 0.05 * result.non_members < loose


def test_what_certifies_was_neither_chosen_on_nor_trained_on():
    @dataclass(frozen=True)
    class Spy(Learned):
        def fit(self, maps, membership, models=None, examples=None):
            seen.append(maps[np.ix_(models, examples)])
            return super().fit(maps, membership, models, examples)

    seen = []
    maps = np.random.default_rng(0).normal(size=(9, 300, 5)).astype(np.float32)
    signals = replace(synthetic(), attributions=maps)
    policy = replace(LOOSE, selection=0.2, training=0.3)
    suite = [SuiteRow("Learned", Spy(epochs=1), "attributions", "explanation")]
    result = certify(signals, policy, suite=suite)
    splits = Splits.of(signals, policy, trains=True)
    assert result.sizes == splits.sizes == {"selection": 60, "training": 90, "certification": 150}
    assert result.members + result.non_members == 150
    assert seen
    learned, released = np.unique(np.concatenate(seen)), np.unique(maps[1:, splits.training])
    assert np.isin(learned, released).all()
    assert not np.isin(learned, maps[0]).any()


def test_the_selection_split_decides_nothing():
    policy = replace(LOOSE, selection=0.5)
    leaking = synthetic(leak=3.0, examples=1000)
    looked = certify(leaking, policy, split="selection")
    assert looked.verdict == "inconclusive"
    assert looked.strongest.auc > 0.9
    assert "selection split" in str(looked)
    assert certify(leaking, policy).verdict == "leak"


def named(control, result):
    return next(c for c in result.controls if c.name == control)


def test_controls_pass_where_only_training_differs():
    signals = synthetic(leak=1.0, examples=2000, models=17)
    inputs = np.random.default_rng(5).normal(size=(2000, 6))
    result = certify(signals, LOOSE, inputs=inputs)
    assert {c.name: c.failed for c in result.controls} == {
        "blind baseline": False,
        "null model": False,
        "shuffled membership": False,
        "references": False,
        "recipe": False,
        "exact copies": False,
    }
    assert result.verdict == "leak"


def test_inputs_that_tell_members_apart_fail_the_blind_baseline():
    signals = synthetic(leak=3.0, examples=1000)
    inputs = np.random.default_rng(5).normal(size=(1000, 6)) + 0.7 * signals.membership[0][:, None]
    result = certify(signals, LOOSE, inputs=inputs)
    assert result.verdict == "inconclusive"
    assert named("blind baseline", result).failed
    assert "blind baseline" in str(result)
    assert result.exit_code == 3


def test_without_references_an_untrained_model_is_the_null_model():
    rng = np.random.default_rng(0)
    member = np.zeros((2, 4000), dtype=bool)
    member[0] = rng.random(4000) < 0.5
    level = rng.normal(size=4000)
    shift = np.stack([level - 3.0 * member[0], level - 1.0 * member[0]])
    meta = {"null": [1]}
    silent = Signals(member, {"l1": np.exp(np.stack([shift[0], level]))}, meta=meta)
    assert not named("null model", certify(silent, LOOSE)).failed
    assert certify(silent, LOOSE).verdict == "leak"
    confounded = Signals(member, {"l1": np.exp(shift)}, meta=meta)
    assert named("null model", certify(confounded, LOOSE)).failed
    assert certify(confounded, LOOSE).verdict == "inconclusive"


COUNTED = replace(LOOSE, fpr=0.1, max_tpr=0.3, uncounted=False)


def test_a_second_configuration_on_the_same_examples_is_refused_unless_forced(tmp_path):
    path = tmp_path / "state" / "uses.sqlite"
    signals = recognised(synthetic(examples=1500))
    first = certify(signals, COUNTED, uses=Uses(path, "one"))
    assert first.uses == first.to_dict()["uses"] == 1
    assert certify(signals, COUNTED, uses=Uses(path, "one")).uses == 1  # the same again is the same use
    second = certify(signals, COUNTED, uses=Uses(path, "two"))
    assert (second.uses, second.verdict) == (2, "inconclusive")
    assert "examples already have 1 other verdict" in str(second)
    forced = certify(signals, COUNTED, uses=Uses(path, "two", force=True))
    assert (forced.uses, forced.verdict, forced.to_dict()["forced"]) == (2, "certified", True)
    assert certify(signals, COUNTED, uses=Uses(path, "one")).verdict == "certified"  # it came first
    assert certify(signals, COUNTED, uses=Uses(path, "three")).uses == 3
    others = recognised(synthetic(examples=1500, seed=9), seed=1)
    assert certify(others, COUNTED, uses=Uses(path, "two")).uses == 1
    assert certify(signals, replace(COUNTED, selection=0.3), split="selection", uses=Uses(path, "four")).uses is None


def test_examples_that_nobody_can_recognise_certify_nothing_unless_the_policy_says_so():
    calm = synthetic(examples=1500)
    result = certify(calm, COUNTED)
    assert (result.uses, result.verdict) == (None, "inconclusive")
    assert "the signals have neither inputs nor hashes of them" in str(result)
    assert certify(recognised(calm), COUNTED).verdict == "certified"
    allowed = certify(calm, replace(COUNTED, uncounted=True))
    assert (allowed.uses, allowed.verdict) == (None, "certified")
    assert "), uses not counted: asking" in words.sentence(allowed)
    assert certify(synthetic(leak=3.0), COUNTED).verdict == "leak"


@dataclass(frozen=True)
class Identity:
    """Scores an example by the target's signal."""

    def __call__(self, target, shadows, membership):
        assert len(shadows) == len(membership)
        return np.asarray(target, dtype=float)


def test_each_example_is_scored_once_for_each_target_by_what_the_target_released():
    serial = np.arange(5 * 300.0).reshape(5, 300)
    signals = Signals(synthetic(models=5).membership, {"serial": serial}, meta={"targets": [1, 3]})
    found = certify(signals, LOOSE, suite=[SuiteRow("Identity", Identity(), "serial", "explanation")])
    assert found.targets == 2
    for one in (found, *found.others):
        assert sorted(one.attacks[0].curve.thresholds[1:]) == sorted(serial[one.target])
        assert one.members == signals.membership[one.target].sum()
        assert one.members + one.non_members == 300
    assert {found.target, *(o.target for o in found.others)} == {1, 3}


def test_only_named_targets_are_attacked_and_all_others_are_references():
    @dataclass(frozen=True)
    class Parts:
        def __call__(self, target, shadows, membership):
            seen.append((target[0], sorted(shadows[:, 0])))
            return np.zeros(len(target))

    seen = []
    ids = np.repeat(np.arange(6.0)[:, None], 300, 1)
    signals = Signals(synthetic(models=6).membership, {"id": ids}, meta={"targets": [1, 4]})
    certify(signals, LOOSE, suite=[SuiteRow("Parts", Parts(), "id", "explanation")])
    one, other = (1, [0, 2, 3, 4, 5]), (4, [0, 1, 2, 3, 5])
    null = ((2, [0, 3, 4, 5]), (5, [0, 1, 2, 3]))  # another model is read, without the target among its references
    assert seen == [one, null[0], other, null[1]]


def test_the_seed_draws_ties_and_nothing_else_that_is_not_random():
    signals = with_label(synthetic())
    assert certify(signals, LOOSE, seed=1).to_dict() == certify(signals, LOOSE, seed=1).to_dict()
    counts = [[e.found for e in certify(signals, ONCE, seed=s).evidence if "label" not in e.signal] for s in (1, 2)]
    assert counts[0] == counts[1]


def test_a_higher_score_says_member_in_every_attack_of_the_suite():
    leaking = with_label(synthetic(leak=2.0, names=(*THREE, "mean", "another"), others=("loss", "margin")))
    maps = leaking.values["l1"][..., None] * np.ones(3)
    result = certify(replace(leaking, attributions=maps), replace(LOOSE, release="explanation+prediction"))
    assert {a.attack for a in result.attacks} >= {"Stacked", "LabelPatience", "PredictionPatience", "RMIA"}
    blind = "attributions:sign"  # all entries of these maps are equal
    aucs = {a.title: round(a.auc, 2) for a in result.attacks if a.signal != blind}
    assert len(aucs) > 10
    assert {title: auc for title, auc in aucs.items() if auc < 0.7} == {}


def test_what_certify_says_can_be_certified_and_read_back(tmp_path):
    signals = with_label(synthetic(leak=1.0, targets=(0, 1), examples=400))
    for policy in (LOOSE, EXCESS, Policy(fpr=0.1, max_tpr=0.3)):
        result = certify(signals, replace(policy, suite=("LikelihoodRatio", "Threshold")), exposed=3)
        found = read_back(made(audit=json.loads(json.dumps(result.to_dict()))), tmp_path)
        assert found.judgement == Judgement.from_dict(result.to_dict())
        assert found.verdict == result.verdict


def test_signals_that_cannot_be_judged_are_refused():
    with pytest.raises(InputError, match=r"expected signals such as l1, .* or prediction, got \['label'\]"):
        certify(replace(synthetic(), values={"label": synthetic().membership * 1.0}), LOOSE)
    with pytest.raises(InputError, match=r"expected signals such as prediction, loss or margin, got \['l1'\]"):
        certify(synthetic(), replace(LOOSE, release="prediction"))
    with pytest.raises(InputError, match="expected a signal 'peak'"):
        certify(synthetic(), LOOSE, suite=[SuiteRow("Threshold", Threshold(), "peak", "explanation")])
    with pytest.raises(ConfigurationError, match=r"unknown attacks \['Psychic'\]"):
        certify(synthetic(), replace(LOOSE, suite=("Psychic",)))
    everyone = replace(synthetic(), membership=np.ones((9, 300), dtype=bool))
    with pytest.raises(InputError, match="expected members and non-members of model 0"):
        certify(everyone, LOOSE, suite=[SuiteRow("Threshold", Threshold(), "l1", "explanation")])


MODELS = 13
RECIPE = Recipe(lr=3e-3, epochs=40, batch_size=32)


def build(seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    chosen = np.random.default_rng(0).permutation(len(y))[:600]
    return Population.of(x[chosen].reshape(600, 1, 8, 8) / 16, y[chosen])


def saliency(hardening):
    return lambda model, x, target: HardenedSaliency(Probability(model), hardening=hardening).attribute(
        x, target=target
    )


def attacked(shadows, population, hardening):
    signals = collect_signals(shadows, population, saliency(hardening), patience=(1,), targets=(0,))
    result = certify(signals, LOOSE)
    return {(a.attack, a.signal): a for a in result.attacks}


@pytest.fixture(scope="module")
def overfitted(digits):
    return train_shadows(digits, RECIPE, build=build, models=MODELS)


def test_an_untrained_network_scores_chance_in_every_attack(digits):
    membership = digits.flip(MODELS, seed=0)
    models = []
    for i in range(MODELS):
        torch.manual_seed(i)
        models.append(build(i).eval())
    found = attacked(Shadows(tuple(models), membership), digits, Hardening.none())
    assert len(found) > 10
    for attack in found.values():
        low, high = auc_interval(attack.curve, 1 - 0.01 / len(found))
        assert low < 0.5 < high, attack.title


def test_the_native_explanation_of_an_overfitted_network_leaks(digits, overfitted):
    found = attacked(overfitted, digits, Hardening.none())
    l1 = found["LikelihoodRatio", "l1"]
    assert l1.auc > 0.6
    assert auc_interval(l1.curve, 0.99)[0] > 0.5
    for signal in ("l2", "variance"):
        assert auc_interval(found["LikelihoodRatio", signal].curve, 0.99)[0] > 0.5


def test_the_recommended_hardening_takes_the_leak_from_its_norm(digits, overfitted):
    found = attacked(overfitted, digits, Hardening.recommended())
    assert not {("LikelihoodRatio", "l1"), ("LikelihoodRatio", "l2")} & found.keys()  # every released map has the same
    for attack, signal in found.keys() & {("LikelihoodRatio", "variance"), ("Threshold", "variance")}:
        low, high = auc_interval(found[attack, signal].curve, 0.99)
        assert low < 0.5 < high, (attack, signal)
