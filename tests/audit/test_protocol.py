"""The verdict: seldom wrong without a leak, right with a large one, and never more certain than the data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy import stats as distributions
from sklearn.datasets import load_digits
from torch import nn

from safexplain import HardenedSaliency, Hardening, Probability
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, audit, collect_signals, train_shadows
from safexplain.audit.attacks import LikelihoodRatio, Threshold
from safexplain.audit.protocol import EXIT_CODES, MOST_TARGETS, SHOWN_FPRS, Row, assign
from safexplain.audit.stats import auc_interval, clopper_pearson
from safexplain.errors import ConfigurationError, InputError

LOOSE = Policy(fpr=0.05, max_tpr=0.15)


def synthetic(leak=0.0, examples=300, models=9, seed=0, names=("l1", "l2", "variance"), others=(), **fields):
    """Signals that are log-normal and smaller by `leak` on members; `others` leak by 3."""
    rng = np.random.default_rng(seed)
    member = rng.random((models, examples)) < 0.5
    level = rng.normal(0, 0.5, examples)

    def signal(by):
        return np.exp(level + rng.normal(0, 0.5, member.shape) - by * member)

    values = {name: signal(leak) for name in names} | {name: signal(3.0) for name in others}
    return Signals(member, values, **fields)


# ------------------------------------------------------------------------------------------------- false alarms


def false_alarms(verdict, repeats, **world):
    return np.mean([verdict(synthetic(seed=s, **world)) for s in range(repeats)])


def proven(policy):
    return lambda signals: audit(signals, policy).verdict == "leak"


CHANCE = Policy(fpr=0.05, max_tpr=0.05)


@pytest.mark.parametrize(("policy", "examples"), [(LOOSE, 300), (CHANCE, 300), (Policy(), 100)], ids=repr)
def test_without_a_leak_a_leak_is_proven_in_at_most_5_percent_of_audits(policy, examples):
    assert false_alarms(proven(policy), 200, examples=examples) <= 0.05


def test_a_verdict_that_forgets_an_interval_would_not_pass():
    def without_any(signals):
        result = audit(signals, CHANCE)
        return any(a.at(0.05).tpr > 0.05 for a in result.judged)

    def without_that_of_the_threshold(signals):
        result = audit(signals, CHANCE)
        return any(result.bounds(a)[0] > 0.05 for a in result.judged)

    assert false_alarms(without_any, 50, examples=300) > 0.5
    assert false_alarms(without_that_of_the_threshold, 100, examples=300) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("policy", [LOOSE, CHANCE, Policy(), Policy(fpr=0.1, max_tpr=0.1)], ids=repr)
@pytest.mark.parametrize("examples", [100, 300, 1500])
def test_without_a_leak_a_leak_is_seldom_proven_whatever_the_size(policy, examples):
    assert false_alarms(proven(policy), 400, examples=examples) <= 0.05


# ---------------------------------------------------------------------------------------------------- the verdict


@pytest.mark.parametrize("seed", range(5))
def test_a_large_leak_is_proven(seed):
    result = audit(synthetic(leak=3.0, seed=seed), LOOSE)
    assert result.verdict == "leak"
    assert result.exit_code == 1
    assert result.sentence.startswith("Leak proven: the strongest attack")
    assert result.strongest.at(0.05).tpr > 0.5


def test_a_moderate_leak_is_proven_with_enough_data():
    found = [audit(synthetic(leak=0.6, examples=1500, models=17, seed=s), LOOSE).verdict for s in range(5)]
    assert found == ["leak"] * 5


@pytest.mark.parametrize("seed", range(5))
def test_enough_data_without_a_leak_is_certified(seed):
    result = audit(synthetic(examples=3000, seed=seed), LOOSE)
    assert result.verdict == "certified"
    assert result.exit_code == 0
    assert result.sentence.startswith("Certified: ")


@pytest.mark.parametrize("seed", range(5))
def test_little_data_decides_nothing(seed):
    result = audit(synthetic(examples=30, seed=seed), LOOSE)
    assert result.verdict == "inconclusive"
    assert result.exit_code == 3
    assert "too wide to decide" in result.sentence


def test_exit_codes_are_those_of_the_command_line():
    assert EXIT_CODES == {"certified": 0, "leak": 1, "inconclusive": 3}


def test_one_leaking_signal_is_enough():
    for name in ("l1", "l2", "variance", "attributions", "my_own_signal"):
        member = synthetic().membership
        calm = synthetic(names=("l1", "l2"))
        leaking = synthetic(leak=3.0, names=("s",)).values["s"]
        assert audit(calm, LOOSE).verdict != "leak"
        if name == "attributions":
            found = Signals(member, calm.values, leaking[..., None] * np.ones(4))
        else:
            found = Signals(member, {**calm.values, name: leaking})
        result = audit(found, LOOSE)
        assert result.verdict == "leak"
        assert result.strongest.signal == name


def test_what_the_label_and_the_loss_tell_is_shown_but_not_judged():
    quiet = synthetic(examples=3000, others=("loss",))
    wrong = np.random.default_rng(1).random(quiet.membership.shape) < np.where(quiet.membership, 0.0, 0.6)
    both = replace(quiet, values={**quiet.values, "label": wrong * 1.0})
    result = audit(both, LOOSE)
    beside = {(a.attack, a.signal): a for a in result.attacks if a not in result.judged}
    assert set(beside) == {("LabelLikelihoodRatio", "label"), ("Threshold", "loss"), ("LikelihoodRatio", "loss")}
    assert min(a.auc for a in beside.values()) > 0.75
    assert {a.signal for a in result.judged} == {"l1", "l2", "variance"}
    assert result.verdict == "certified"


@pytest.mark.parametrize("models", [1, 2])
def test_without_reference_models_nothing_is_certified_but_a_leak_is_proven(models):
    calm = audit(synthetic(examples=5000, models=models), LOOSE)
    assert calm.verdict == "inconclusive"
    assert calm.references == 0
    assert {a.attack for a in calm.attacks} == {"Threshold"}
    assert "nothing can be certified" in calm.sentence
    assert audit(synthetic(leak=3.0, examples=500, models=models), LOOSE).verdict == "leak"


def test_thresholds_alone_do_not_certify_either():
    suite = [Row("Threshold", Threshold(), "l1", "explanation")]
    assert audit(synthetic(examples=5000), LOOSE, suite=suite).verdict == "inconclusive"


def test_the_bounds_hold_together():
    result = audit(synthetic(), LOOSE)
    assert len(result.judged) == 6
    assert result.judged_confidence == pytest.approx(1 - 0.05 / 6)
    for attack in result.judged:
        rate = attack.at(0.05)
        assert result.bounds(attack) == clopper_pearson(rate.true_positives, rate.members, 1 - 0.05 / 6)
        assert result.bounds(attack)[0] <= rate.low <= rate.high <= result.bounds(attack)[1]


# ------------------------------------------------------------------------------------------- who is scored, and how


@dataclass(frozen=True)
class Identity:
    """Scores an example by the target's signal, and looks at who plays which part."""

    def __call__(self, target, shadows, membership):
        assert len(shadows) == len(membership)
        return np.asarray(target, dtype=float)


def test_each_example_is_scored_once_against_its_target():
    base = synthetic(models=5)
    serial = np.arange(5 * 300.0).reshape(5, 300)
    signals = Signals(base.membership, {"serial": serial})
    result = audit(signals, LOOSE, suite=[Row("Identity", Identity(), "serial", "explanation")])
    scored = result.attacks[0].curve.thresholds[1:].astype(int)
    assert sorted(scored % 300) == list(range(300))
    assert result.members + result.non_members == 300
    target_of = assign(signals, 0)
    assert {(s % 300, s // 300) for s in scored} == set(enumerate(target_of))
    assert result.members == base.membership[target_of, np.arange(300)].sum()
    assert np.bincount(target_of, minlength=5).min() > 30


def test_only_named_targets_are_attacked_and_all_others_are_references():
    @dataclass(frozen=True)
    class Parts:
        def __call__(self, target, shadows, membership):
            seen.append((target[0], sorted(shadows[:, 0])))
            return np.zeros(len(target))

    seen = []
    ids = np.repeat(np.arange(6.0)[:, None], 300, 1)
    signals = Signals(synthetic(models=6).membership, {"id": ids}, meta={"targets": [1, 4]})
    audit(signals, LOOSE, suite=[Row("Parts", Parts(), "id", "explanation")])
    assert seen == [(1, [0, 2, 3, 4, 5]), (4, [0, 1, 2, 3, 5])]


def test_the_seed_chooses_the_targets():
    signals = synthetic()
    assert np.array_equal(assign(signals, 1), assign(signals, 1))
    assert not np.array_equal(assign(signals, 1), assign(signals, 2))
    assert audit(signals, LOOSE, seed=1).to_dict() == audit(signals, LOOSE, seed=1).to_dict()
    assert len(set(assign(synthetic(models=80, examples=3000), 0))) == MOST_TARGETS


def test_a_higher_score_says_member_in_every_attack_of_the_suite():
    leaking = synthetic(leak=2.0, others=("loss", "another"))
    wrong = np.random.default_rng(1).random(leaking.membership.shape) < np.where(leaking.membership, 0.0, 0.6)
    maps = leaking.values["l1"][..., None] * np.ones(3)
    result = audit(replace(leaking, values={**leaking.values, "label": wrong * 1.0}, attributions=maps), LOOSE)
    assert len(result.attacks) == 12
    assert {a.title: round(a.auc, 2) for a in result.attacks if a.auc < 0.7} == {}


# ------------------------------------------------------------------------------------------------- the JSON


def test_the_json_has_what_scripts_read():
    result = audit(synthetic(others=("loss",)), LOOSE)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["verdict"] == result.verdict
    assert plain["verdict"] in ("certified", "leak", "inconclusive")
    assert len(plain["attacks"]) == 8
    for attack in plain["attacks"]:
        assert {"attack", "signal", "auc", "tpr"} <= attack.keys()
        assert attack["auc_low"] <= attack["auc"] <= attack["auc_high"]
        assert [rate["fpr"] for rate in attack["tpr"]] == sorted({*SHOWN_FPRS, 0.05})
        for rate in attack["tpr"]:
            assert {"fpr", "realised_fpr", "tpr", "low", "high"} <= rate.keys()
            assert rate["low"] <= rate["tpr"] <= rate["high"]
            assert rate["realised_fpr"] <= rate["fpr"]
    assert [(j["attack"], j["signal"]) for j in plain["judged"]] == [(a.attack, a.signal) for a in result.judged]


def test_a_rate_of_the_policy_is_among_those_shown():
    result = audit(synthetic(), Policy(fpr=0.07, max_tpr=0.2))
    assert [r.fpr for r in result.attacks[0].rates] == sorted({*SHOWN_FPRS, 0.07})


def test_progress_counts_the_attacks():
    seen = []
    audit(synthetic(), LOOSE, progress=lambda *call: seen.append(call))
    assert seen == [("attacking", i, 6) for i in range(1, 7)]


# -------------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "values",
    [
        {"fpr": 0.0},
        {"fpr": 1.0},
        {"fpr": True},
        {"fpr": "0.1"},
        {"fpr": float("nan")},
        {"max_tpr": 1.5},
        {"confidence": 95},
        {"fpr": 0.1, "max_tpr": 0.05},
    ],
    ids=repr,
)
def test_a_policy_that_makes_no_sense_is_refused(values):
    with pytest.raises(ConfigurationError, match="policy: "):
        Policy(**values)


def test_signals_that_cannot_be_judged_are_refused():
    with pytest.raises(InputError, match="no explanation signal"):
        audit(synthetic(names=(), others=("loss",)), LOOSE)
    with pytest.raises(InputError, match="signal 'peak' is not there"):
        audit(synthetic(), LOOSE, suite=[Row("Threshold", Threshold(), "peak", "explanation")])
    everyone = replace(synthetic(), membership=np.ones((9, 300), dtype=bool))
    with pytest.raises(InputError, match="need members and non-members"):
        audit(everyone, LOOSE, suite=[Row("Threshold", Threshold(), "l1", "explanation")])


# ---------------------------------------------------------------------------------------------------- real models

MODELS = 17
QUICK = Recipe(lr=3e-3, epochs=60, batch_size=32)


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
    result = audit(collect_signals(shadows, population, saliency(hardening)), LOOSE)
    return {(a.attack, a.signal): a for a in result.attacks}


@pytest.fixture(scope="module")
def overfitted(digits):
    return train_shadows(digits, QUICK, build=build, models=MODELS)


def test_an_untrained_network_scores_chance_in_every_attack(digits):
    membership = digits.flip(MODELS, seed=0)
    models = []
    for i in range(MODELS):
        torch.manual_seed(i)
        models.append(build(i).eval())
    found = attacked(Shadows(tuple(models), membership), digits, Hardening.none())
    assert len(found) == 10
    for attack in found.values():
        low, high = auc_interval(attack.curve, 0.99)
        assert low < 0.5 < high, attack.title


def test_the_native_explanation_of_an_overfitted_network_leaks(digits, overfitted):
    found = attacked(overfitted, digits, Hardening.none())
    l1 = found["LikelihoodRatio", "l1"]
    assert l1.auc > 0.6
    assert auc_interval(l1.curve, 0.99)[0] > 0.5
    for signal in ("l2", "variance"):
        assert auc_interval(found["LikelihoodRatio", signal].curve, 0.99)[0] > 0.5


def test_the_recommended_hardening_takes_the_leak_from_its_norm(digits, overfitted):
    found = attacked(overfitted, digits, Hardening.recommended(b"a secret of thirty-two bytes...."))
    for attack in ("LikelihoodRatio", "Threshold"):
        for signal in ("l1", "l2", "variance"):
            low, high = auc_interval(found[attack, signal].curve, 0.99)
            assert low < 0.5 < high, (attack, signal)


def test_the_likelihood_ratio_finds_what_a_known_shift_allows():
    signals = synthetic(leak=0.5, examples=4000, models=33)
    result = audit(signals, LOOSE, suite=[Row("LikelihoodRatio", LikelihoodRatio(), "l1", "explanation")])
    best = float(distributions.norm.cdf(1 / np.sqrt(2)))
    assert best - 0.05 < result.attacks[0].auc < best + 0.02
