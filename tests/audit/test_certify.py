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
from safexplain.audit import Policy, Population, Recipe, Shadows, Signals, certify, collect_signals, train_shadows
from safexplain.audit.attacks import Learned, LikelihoodRatio, Threshold
from safexplain.audit.attacks.scoring import MOST_TARGETS, Assignment
from safexplain.audit.attacks.suite import SuiteRow
from safexplain.audit.holdout_uses import Uses
from safexplain.audit.splits import Splits
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.judgement import SHOWN_FPRS
from safexplain.verdict.stats import auc_interval
from safexplain.verdict.thresholds import lower_bound, upper_bound

LOOSE = Policy(fpr=0.05, max_tpr=0.15)


def assign(signals, seed):
    return Assignment.drawn(signals, seed).target


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
    return lambda signals: certify(signals, policy).verdict == "leak"


CHANCE = Policy(fpr=0.05, max_tpr=0.05)


@pytest.mark.parametrize(("policy", "examples"), [(LOOSE, 300), (CHANCE, 300), (Policy(), 100)], ids=repr)
def test_without_a_leak_a_leak_is_proven_in_at_most_5_percent_of_audits(policy, examples):
    assert false_alarms(proven(policy), 60, examples=examples) <= 0.05


def test_a_verdict_that_forgets_an_interval_would_not_pass():
    def without_any(signals):
        result = certify(signals, CHANCE)
        return any(a.at(0.05).tpr > 0.05 for a in result.judged)

    def without_that_of_the_threshold(signals):
        result = certify(signals, CHANCE)
        rates = [a.at(0.05) for a in result.judged]
        return any(lower_bound(r.true_positives, r.members, 0.05 / len(rates)) > 0.05 for r in rates)

    assert false_alarms(without_any, 50, examples=300) > 0.5
    assert false_alarms(without_that_of_the_threshold, 100, examples=300) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("policy", [LOOSE, CHANCE, Policy(), Policy(fpr=0.1, max_tpr=0.1)], ids=repr)
@pytest.mark.parametrize("examples", [100, 300, 1500])
def test_without_a_leak_a_leak_is_seldom_proven_whatever_the_size(policy, examples):
    assert false_alarms(proven(policy), 400, examples=examples) <= 0.05


# ---------------------------------------------------------------------------------------------------- the verdict


@pytest.mark.parametrize("seed", range(2))
def test_a_large_leak_is_proven(seed):
    result = certify(synthetic(leak=3.0, seed=seed), LOOSE)
    assert result.verdict == "leak"
    assert result.exit_code == 1
    assert result.sentence.startswith("Leak proven: the strongest attack")
    assert result.strongest.at(0.05).tpr > 0.5


def test_a_moderate_leak_is_proven_with_enough_data():
    found = [certify(synthetic(leak=0.6, examples=1500, models=17, seed=s), LOOSE).verdict for s in range(5)]
    assert found == ["leak"] * 5


@pytest.mark.parametrize("seed", range(2))
def test_enough_data_without_a_leak_is_certified(seed):
    result = certify(synthetic(examples=3000, seed=seed), LOOSE)
    assert result.verdict == "certified"
    assert result.exit_code == 0
    assert result.sentence.startswith("Certified: ")


@pytest.mark.parametrize("seed", range(2))
def test_little_data_decides_nothing(seed):
    result = certify(synthetic(examples=30, seed=seed), LOOSE)
    assert result.verdict == "inconclusive"
    assert result.exit_code == 3
    assert "too wide to decide" in result.sentence


def test_one_leaking_signal_is_enough():
    for name in ("l1", "l2", "variance", "attributions", "my_own_signal"):
        member = synthetic().membership
        calm = synthetic(names=("l1", "l2"))
        leaking = synthetic(leak=3.0, names=("s",)).values["s"]
        assert certify(calm, LOOSE).verdict != "leak"
        if name == "attributions":
            found = Signals(member, calm.values, leaking[..., None] * np.ones(4))
        else:
            found = Signals(member, {**calm.values, name: leaking})
        result = certify(found, LOOSE)
        assert result.verdict == "leak"
        assert result.strongest.signal == name


def with_label(signals, seed=1):
    """A label that is often wrong on non-members and never on members."""
    wrong = np.random.default_rng(seed).random(signals.membership.shape) < np.where(signals.membership, 0.0, 0.6)
    return replace(signals, values={**signals.values, "label": wrong * 1.0})


def test_what_the_label_and_the_loss_tell_is_shown_but_not_judged():
    both = with_label(synthetic(examples=3000, others=("loss",)))
    result = certify(both, LOOSE)
    beside = {(a.attack, a.signal): a for a in result.attacks if a not in result.judged}
    assert {a.role for a in beside.values()} == {"label", "loss", "explanation+label", "explanation+loss"}
    assert min(a.auc for a in beside.values()) > 0.75
    assert {a.signal for a in result.judged} == {"l1", "l2", "variance"}
    assert result.verdict == "certified"


def test_it_is_judged_when_the_release_contains_the_prediction():
    both = with_label(synthetic(examples=3000, others=("loss",)))
    result = certify(both, replace(LOOSE, release="explanation+prediction"))
    assert result.judged == result.attacks
    assert result.verdict == "leak"
    assert result.strongest.role != "explanation"


def test_the_excess_of_an_explanation_over_the_label_is_judged_by_pairs():
    excess = replace(LOOSE, claim="excess")
    passing = certify(with_label(synthetic(examples=6000)), excess)
    assert passing.verdict == "certified"
    assert "likelihood ratio of the predicted label" in passing.sentence
    leaking = certify(with_label(synthetic(leak=3.0, examples=6000)), excess)
    assert leaking.verdict == "leak"
    alone = leaking.pairs[0]
    low, high = leaking.excess(alone)
    by_hand = {a.code: a.at(0.05).tpr for a in leaking.attacks}
    difference = by_hand[f"{alone.attack} on {alone.signal}"] - by_hand["LabelLikelihoodRatio on label"]
    assert low < difference < high


def test_without_a_label_an_excess_cannot_be_judged():
    result = certify(synthetic(examples=3000), replace(LOOSE, claim="excess"))
    assert result.verdict == "inconclusive"
    assert "no baseline" in result.sentence


@pytest.mark.parametrize("models", [1, 2])
def test_without_reference_models_nothing_is_certified_but_a_leak_is_proven(models):
    calm = certify(synthetic(examples=5000, models=models), LOOSE)
    assert calm.verdict == "inconclusive"
    assert calm.references == 0
    assert {a.attack for a in calm.attacks} == {"Threshold"}
    assert "nothing can be certified" in calm.sentence
    assert certify(synthetic(leak=3.0, examples=500, models=models), LOOSE).verdict == "leak"


def test_thresholds_alone_do_not_certify_either():
    suite = [SuiteRow("Threshold", Threshold(), "l1", "explanation")]
    assert certify(synthetic(examples=5000), LOOSE, suite=suite).verdict == "inconclusive"


def slow_count(scores, member, rank):
    """Members above the rank-th highest non-member, one by one."""
    threshold = sorted(scores[~member], reverse=True)[rank - 1]
    return sum(score > threshold for score in scores[member])


def test_the_bounds_count_members_above_thresholds_at_ranks():
    signals = replace(synthetic(examples=2000), meta={"targets": [0]})
    result = certify(signals, LOOSE)
    assert len(result.judged) == 6
    assert result.judged_confidence == pytest.approx(1 - 0.05 / 6)
    ranks = result.ranks
    scores, member = -signals.values["l1"][0], signals.membership[0]
    (attack,) = [a for a in result.judged if a.code == "Threshold on l1"]
    low = lower_bound(slow_count(scores, member, ranks.lower_bound_rank), result.members, 0.05 / 6 / 2)
    high = upper_bound(slow_count(scores, member, ranks.upper_bound_rank), result.members, 0.05 / 2)
    assert result.bounds(attack) == (low, high)
    assert low < attack.at(0.05).tpr < high
    assert ranks.lower_bound_rank < 0.05 * result.non_members < ranks.upper_bound_rank


def test_an_inconclusive_verdict_says_what_would_decide_and_what_could_be_certified():
    result = certify(synthetic(examples=300), LOOSE)
    assert result.verdict == "inconclusive"
    assert result.needed.verdict == "certified"
    assert result.needed.members > result.members
    assert f"About {result.needed.members:,} members" in result.sentence
    assert "would probably certify" in result.sentence
    assert result.could_certify > LOOSE.max_tpr
    assert f"at best have certified {result.could_certify:.1%}" in result.sentence
    more = certify(synthetic(examples=3 * (result.needed.members + result.needed.non_members)), LOOSE)
    assert more.verdict == "certified"


# ------------------------------------------------------------------------------------- splits, controls, and uses


def test_what_certifies_was_neither_chosen_on_nor_trained_on():
    @dataclass(frozen=True)
    class Spy(Learned):
        def fit(self, shadows, membership, rows=None, out_of_distribution=None):
            seen.append(set(rows.tolist()))
            return super().fit(shadows, membership, rows, out_of_distribution)

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
    assert all(rows == set(np.flatnonzero(splits.training).tolist()) for rows in seen)


def test_the_selection_split_decides_nothing():
    policy = replace(LOOSE, selection=0.5)
    leaking = synthetic(leak=3.0, examples=1000)
    looked = certify(leaking, policy, split="selection")
    assert looked.verdict == "inconclusive"
    assert looked.strongest.auc > 0.9
    assert "selection split" in looked.sentence
    assert certify(leaking, policy).verdict == "leak"


def named(control, result):
    return next(c for c in result.controls if c.name == control)


def test_controls_pass_where_only_training_differs():
    signals = synthetic(leak=1.0, examples=2000, models=17)
    inputs = np.random.default_rng(5).normal(size=(2000, 6))
    result = certify(replace(signals, meta={"targets": [0]}), LOOSE, inputs=inputs)
    assert {c.name: c.failed for c in result.controls} == {
        "blind baseline": False,
        "null model": False,
        "shuffled membership": False,
        "references": False,
        "recipe": None,
        "exact copies": None,
    }
    assert result.verdict == "leak"


def test_inputs_that_tell_members_apart_fail_the_blind_baseline():
    signals = replace(synthetic(leak=3.0, examples=1000), meta={"targets": [0]})
    inputs = np.random.default_rng(5).normal(size=(1000, 6)) + 0.7 * signals.membership[0][:, None]
    result = certify(signals, LOOSE, inputs=inputs)
    assert result.verdict == "inconclusive"
    assert named("blind baseline", result).failed
    assert "blind baseline" in result.sentence
    assert result.exit_code == 3


def test_a_shift_that_every_model_sees_fails_the_null_model():
    base = synthetic(examples=3000)
    easier = np.where(base.membership[0], 0.5, 1.0)  # the target's members are calmer for every model
    shifted = replace(base, values={k: v * easier for k, v in base.values.items()}, meta={"targets": [0]})
    result = certify(shifted, LOOSE)
    assert named("null model", result).failed
    assert result.verdict == "inconclusive"
    assert "reference model" in named("null model", result).says


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


def test_examples_without_references_on_both_sides_certify_nothing():
    calm = synthetic(examples=3000)
    assert certify(replace(calm, meta={"targets": [0]}), LOOSE).verdict == "certified"
    one_sided = calm.membership.copy()
    one_sided[1:, :1500] = True
    result = certify(replace(calm, membership=one_sided, meta={"targets": [0]}), LOOSE)
    assert named("references", result).failed
    assert result.verdict == "inconclusive"


def trained_otherwise(factor, seed=0):
    """Calm signals of a target whose losses are `factor` times those of the references."""
    calm = synthetic(examples=3000, models=17, seed=seed, others=("loss",))
    loss = calm.values["loss"].copy()
    loss[0] *= factor
    return replace(calm, values={**calm.values, "loss": loss}, meta={"targets": [0]})


def test_a_target_of_another_recipe_is_not_certified_by_references_that_do_not_repeat_it():
    alike = [named("recipe", certify(trained_otherwise(1.0, s), LOOSE)).failed for s in range(10)]
    assert sum(alike) <= 1
    assert certify(trained_otherwise(1.0), LOOSE).verdict == "certified"
    for factor in (3.0, 0.3):
        result = certify(trained_otherwise(factor), LOOSE)
        assert named("recipe", result).failed
        assert result.verdict == "inconclusive"
        assert "do not repeat its recipe" in result.sentence


def test_a_leak_is_a_leak_whatever_the_recipe():
    leaking = synthetic(leak=3.0, examples=3000, models=17, others=("loss",))
    loss = leaking.values["loss"].copy()
    loss[0] *= 5
    result = certify(replace(leaking, values={**leaking.values, "loss": loss}, meta={"targets": [0]}), LOOSE)
    assert named("recipe", result).failed
    assert result.verdict == "leak"


def recognised(signals, seed=0):
    """With hashes, by which the examples are recognised."""
    hashes = np.random.default_rng(seed).integers(2**63, size=len(signals), dtype=np.uint64)
    return replace(signals, examples=hashes)


def test_a_second_configuration_on_the_same_examples_is_refused_unless_forced(tmp_path):
    path = tmp_path / "state" / "uses.sqlite"
    signals = recognised(synthetic(examples=3000))
    first = certify(signals, LOOSE, uses=Uses(path, "one"))
    assert first.uses == first.to_dict()["uses"] == 1
    assert certify(signals, LOOSE, uses=Uses(path, "one")).uses == 1  # the same again is the same use
    second = certify(signals, LOOSE, uses=Uses(path, "two"))
    assert (second.uses, second.verdict) == (2, "inconclusive")
    assert "1 other configuration was judged on these examples before" in second.sentence
    forced = certify(signals, LOOSE, uses=Uses(path, "two", force=True))
    assert (forced.uses, forced.verdict, forced.to_dict()["forced"]) == (2, "certified", True)
    assert certify(signals, LOOSE, uses=Uses(path, "one")).verdict == "certified"  # it came first
    assert certify(signals, LOOSE, uses=Uses(path, "three")).uses == 3
    assert certify(recognised(synthetic(examples=3000), seed=1), LOOSE, uses=Uses(path, "two")).uses == 1
    assert certify(signals, replace(LOOSE, selection=0.3), split="selection", uses=Uses(path, "four")).uses is None


def test_a_leak_is_proven_however_often_the_examples_were_used(tmp_path):
    path = tmp_path / "uses.sqlite"
    leaking = recognised(synthetic(leak=3.0))
    found = [certify(leaking, LOOSE, uses=Uses(path, name)) for name in ("one", "two")]
    assert [f.verdict for f in found] == ["leak", "leak"]
    assert [f.uses for f in found] == [1, 2]


def test_uses_that_cannot_be_counted_are_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="SAFEXPLAIN_USES"):
        certify(recognised(synthetic()), LOOSE, uses=Uses(tmp_path / "file" / "uses.sqlite", "one"))
    (tmp_path / "broken.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match="cannot count uses"):
        certify(recognised(synthetic()), LOOSE, uses=Uses(tmp_path / "broken.sqlite", "one"))


def test_examples_from_another_source_only_train():
    rng = np.random.default_rng(0)
    outside = np.zeros(600, dtype=bool)
    outside[400:] = True
    member = (rng.random((9, 600)) < 0.5) & ~outside
    maps = rng.normal(size=(9, 600, 5)).astype(np.float32)
    inputs = rng.normal(size=(600, 4)) + 2.0 * outside[:, None]
    signals = Signals(member, {"l1": np.abs(maps).sum(2)}, maps, out_of_distribution=outside)
    result = certify(signals, replace(LOOSE, training=0.5), inputs=inputs)
    assert result.sizes == {"selection": 0, "training": 200, "certification": 200}
    assert "LearnedElsewhere" in {a.attack for a in result.attacks}
    told = named("other source", result)
    assert told.failed is None
    assert told.numbers["auc"] > 0.9
    assert "LearnedElsewhere" not in {a.attack for a in certify(synthetic(), LOOSE).attacks}


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
    result = certify(signals, LOOSE, suite=[SuiteRow("Identity", Identity(), "serial", "explanation")])
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
    certify(signals, LOOSE, suite=[SuiteRow("Parts", Parts(), "id", "explanation")])
    assert seen[:2] == [(1, [0, 2, 3, 4, 5]), (4, [0, 1, 2, 3, 5])]
    assert seen[2:] == [(2, [0, 3, 4, 5]), (5, [0, 1, 2, 3])]  # the null control: another model, without both


def test_the_seed_chooses_the_targets():
    signals = synthetic()
    assert np.array_equal(assign(signals, 1), assign(signals, 1))
    assert not np.array_equal(assign(signals, 1), assign(signals, 2))
    assert certify(signals, LOOSE, seed=1).to_dict() == certify(signals, LOOSE, seed=1).to_dict()
    assert len(set(assign(synthetic(models=80, examples=3000), 0))) == MOST_TARGETS


def test_a_higher_score_says_member_in_every_attack_of_the_suite():
    leaking = synthetic(leak=2.0, others=("loss", "another"))
    wrong = np.random.default_rng(1).random(leaking.membership.shape) < np.where(leaking.membership, 0.0, 0.6)
    maps = leaking.values["l1"][..., None] * np.ones(3)
    result = certify(replace(leaking, values={**leaking.values, "label": wrong * 1.0}, attributions=maps), LOOSE)
    assert len(result.attacks) == 20
    blind = ("attributions:sign", "attributions:rank")  # all entries of these maps are equal
    result = replace(result, evidence=tuple(a for a in result.attacks if a.signal not in blind))
    assert {a.title: round(a.auc, 2) for a in result.attacks if a.auc < 0.7} == {}


# ------------------------------------------------------------------------------------------------- the JSON


def test_the_json_has_what_scripts_read():
    result = certify(synthetic(others=("loss",)), LOOSE)
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["verdict"] == result.verdict
    assert plain["verdict"] in ("certified", "leak", "inconclusive")
    assert len(plain["attacks"]) == len(plain["evidence"]) == 11
    assert {"reasons", "bound", "could_certify", "needed", "splits", "uses", "controls", "excess"} <= plain.keys()
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
    result = certify(synthetic(), Policy(fpr=0.07, max_tpr=0.2))
    assert [r.fpr for r in result.attacks[0].rates] == sorted({*SHOWN_FPRS, 0.07})


def test_progress_counts_the_attacks():
    seen = []
    certify(synthetic(), LOOSE, progress=lambda *call: seen.append(call))
    assert seen == [("attacking", i, 6) for i in range(1, 7)]


# -------------------------------------------------------------------------------------------------------- misuse


def test_signals_that_cannot_be_judged_are_refused():
    with pytest.raises(InputError, match="no explanation signal"):
        certify(synthetic(names=(), others=("loss",)), LOOSE)
    with pytest.raises(InputError, match="signal 'peak' is not there"):
        certify(synthetic(), LOOSE, suite=[SuiteRow("Threshold", Threshold(), "peak", "explanation")])
    with pytest.raises(ConfigurationError, match=r"unknown attacks \['Psychic'\]"):
        certify(synthetic(), Policy(suite=("Psychic",)))
    everyone = replace(synthetic(), membership=np.ones((9, 300), dtype=bool))
    with pytest.raises(InputError, match="it needs both"):
        certify(everyone, LOOSE, suite=[SuiteRow("Threshold", Threshold(), "l1", "explanation")])


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
    result = certify(collect_signals(shadows, population, saliency(hardening)), LOOSE)
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
    assert len(found) > 20
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
    found = attacked(overfitted, digits, Hardening.recommended(b"a secret of thirty-two bytes...."))
    for attack in ("LikelihoodRatio", "Threshold"):
        for signal in ("l1", "l2", "variance"):
            low, high = auc_interval(found[attack, signal].curve, 0.99)
            assert low < 0.5 < high, (attack, signal)


def test_the_likelihood_ratio_finds_what_a_known_shift_allows():
    signals = synthetic(leak=0.5, examples=4000, models=33)
    result = certify(signals, LOOSE, suite=[SuiteRow("LikelihoodRatio", LikelihoodRatio(), "l1", "explanation")])
    best = float(distributions.norm.cdf(1 / np.sqrt(2)))
    assert best - 0.05 < result.attacks[0].auc < best + 0.02
