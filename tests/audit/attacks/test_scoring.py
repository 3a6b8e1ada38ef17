"""One target scored by the whole suite: which rows run, and that nothing is learned from the target's membership."""

from dataclasses import replace

import numpy as np
import pytest

from safexplain.audit.attacks import RMIA, JointLikelihoodRatio, LabelLikelihoodRatio, LikelihoodRatio, Threshold
from safexplain.audit.attacks.learned import Boosted, Learned, Stacked
from safexplain.audit.attacks.likelihood import OwnLabelRatio, PooledDensityRatio
from safexplain.audit.attacks.recourse import CounterfactualLRT
from safexplain.audit.attacks.suite import (
    ANY_SIGNAL,
    ANY_SIGNAL_ALONE,
    RECOURSE,
    SUITE,
    Scorer,
    Signal,
    SuiteRow,
    families_allowed,
    fitting,
    gaps,
    log_odds,
    values_of,
)
from safexplain.audit.signals import Signals
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.policy import Policy
from safexplain.verdict.stats import auc_interval, roc

LEVELS = (1, 20)
MODELS, EXAMPLES, CLASSES = 13, 400, 4


def released(seed=0, leak=0.0, models=MODELS, examples=EXAMPLES, levels=LEVELS, d=6):
    """Labels that tell a little, maps of noise with a leak on top, at every level."""
    rng = np.random.default_rng(seed)
    member = rng.random((models, examples)) < 0.5
    logits = rng.normal(size=(1, examples, CLASSES)) + 0.7 * rng.normal(size=(models, examples, CLASSES))
    logits[..., 0] += member
    label = logits.argmax(-1)
    p = np.exp(logits)
    p /= p.sum(-1, keepdims=True)
    values = {"label": label, "loss": -np.log(p[..., 0])}
    maps = {}
    way = rng.normal(size=(examples, d))
    for level in levels:
        at = "" if level == 1 else f"@{level}"
        maps[level] = (rng.normal(size=(models, examples, d)) + leak * member[..., None] * way).astype(np.float32)
        values[f"l1{at}"] = np.abs(maps[level]).sum(-1)
        if level > 1:
            shares = rng.multinomial(level, p) / level
            values[f"shares{at}"] = shares
            values[f"kept{at}"] = np.take_along_axis(shares, label[..., None], -1)[..., 0]
            values[f"loss{at}"] = values["loss"] + rng.normal(size=member.shape) ** 2 / level
            values[f"attributions{at}"] = maps[level]
    return Signals(member, values, maps[1], {"targets": [0]})


def policy(**changes):
    return replace(Policy(patience=LEVELS), **changes)


def scorer(signals, rows, **options):
    return Scorer(signals, rows, target=0, training=np.zeros(len(signals), dtype=bool), **options)


@pytest.fixture(scope="module")
def everything():
    """Signals, all rows of the suite with small trees, and their scorer."""
    signals = released(examples=200)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Boosted.__init__, "__defaults__", (10, 4, 0.15, 2, 0, 0))
        rows = fitting(signals, policy())
    return signals, rows, scorer(signals, rows)


def test_a_change_of_the_targets_membership_changes_no_score(everything):
    signals, rows, found = everything
    member = signals.membership.copy()
    member[0] = ~member[0]
    other = replace(signals, membership=member)
    for row, one, two in zip(rows, found.scores(0), scorer(other, rows).scores(0), strict=True):
        assert np.array_equal(one, two), f"{row.name} on {row.signal}"


def test_rows_without_stacks_score_as_their_attacks_do_also_for_the_null_model(everything):
    signals, rows, found = everything
    for read in (0, 5):
        others = [i for i in range(1, MODELS) if i != read]
        for row, scores in zip(rows, found.scores(read), strict=True):
            if row.columns or row.learns:
                continue
            values = values_of(signals, row.reads)
            if isinstance(row.attack, Threshold):
                want = row.attack(values[read])
            else:
                want = row.attack(values[read], values[others], signals.membership[others])
            np.testing.assert_allclose(scores, want, atol=1e-8, err_msg=f"{row.name} on {row.signal}")


def test_the_table_says_what_its_attacks_can_read():
    for line in (*SUITE, *ANY_SIGNAL, *ANY_SIGNAL_ALONE):
        alone, learns = isinstance(line.attack, Threshold), isinstance(line.attack, Learned)
        number = isinstance(line.attack, LabelLikelihoodRatio | RMIA | CounterfactualLRT | PooledDensityRatio)
        widest = 1 if alone or number else 2048 if isinstance(line.attack, JointLikelihoodRatio) else np.inf
        once = alone or learns or line in RECOURSE or line.name == "RMIA"
        expected = (0 if alone else 4 if learns else 2, widest, once)
        assert (line.references, line.widest, line.once) == expected, line


def test_trees_that_would_read_labels_alone_are_left_to_the_baseline():
    signals = released(levels=(1,))
    rows = fitting(replace(signals, values={"label": signals.values["label"]}), policy(patience=(1,)))
    baseline, *others = next(r for r in rows if r.name == "Stacked").columns
    assert "Boosted" in {r.name for r in baseline.columns}
    assert "Boosted" not in {r.name for r in others}


def test_trees_read_twelve_columns_at_most():
    signals = released(levels=(1,))
    many = {f"other{i}": signals.values["l1"] for i in range(14)}
    rows = fitting(replace(signals, values={"label": signals.values["label"], **many}), policy(patience=(1,)))
    stack = next(r for r in rows if r.name == "Stacked")
    assert [len(r.reads) for r in stack.columns if r.name == "Boosted"] == [12]


def test_every_level_has_one_baseline_and_one_stack_of_all_attacks_with_it():
    signals = released()
    rows = fitting(signals, policy())
    for level in LEVELS:
        at = [r for r in rows if r.level == level]
        (baseline,) = (r for r in at if r.baseline)
        assert (baseline.name, baseline.role) == ("LabelPatience", "label")
        assert ("OwnLabelRatio" in {c.name for c in baseline.columns}) == (level > 1)
        (stack,) = (r for r in at if r.role == "explanation+label")
        assert (stack.name, stack.columns[0]) == ("Stacked", baseline)
        alone = {r for r in at if r.role == "explanation"}
        assert alone < set(stack.columns)
        assert "Boosted" in {c.name for c in stack.columns}
        assert {r for r in rows if r.role == "explanation" and r.level == 1} < set(stack.columns)  # was asked once too
    codes = [(r.name, r.signal) for r in rows]
    assert len(codes) == len(set(codes))


def test_thresholds_are_for_audits_without_references_and_for_those_who_name_them():
    names = {r.name for r in fitting(released(models=2), policy())}
    assert names == {"Threshold"}
    assert "Threshold" not in {r.name for r in fitting(released(), policy())}
    named = fitting(released(), policy(suite=("Threshold",)))
    assert {r.name for r in named} == {"Threshold", "LabelPatience", "Stacked"}


def foreign(leak=0.0, levels=(1, 4, 20), labelled=True, seed=0, explained=False):
    """Log odds of all classes of another task, which membership moves in a direction of each example's own."""
    rng = np.random.default_rng(seed)
    member = rng.random((MODELS, EXAMPLES)) < 0.5
    level, way = rng.normal(size=(2, 1, EXAMPLES, CLASSES))

    def asked():
        return level + leak * member[..., None] * way + rng.normal(size=(MODELS, EXAMPLES, CLASSES))

    values = {"prediction": asked()}
    for many in levels[1:]:
        each = [asked() for _ in range(many)]
        values[f"prediction@{many}"] = np.mean(each, axis=0)
        if many <= 16:
            values[f"predictions@{many}"] = np.concatenate(each, axis=-1)
    if labelled:
        values["label"] = values["prediction"].argmax(-1)
        for many in levels[1:]:
            values[f"kept@{many}"] = rng.binomial(many, 0.8, member.shape) / many
    if explained:
        values |= {f"l1{'' if many == 1 else f'@{many}'}": np.exp(rng.normal(size=member.shape)) for many in levels}
    return Signals(member, values, None, {"targets": [0]})


def names_of(rows):
    return {(r.name, r.signal) for r in rows}


def test_predictions_of_all_classes_are_read_jointly_at_every_level():
    rows = fitting(foreign(), Policy(patience=(1, 4, 20), release="prediction"))
    assert {r.role for r in rows} == {"loss", "label"}
    assert not any(r.baseline for r in rows)
    at = ("", "@4", "@20")
    assert names_of(r for r in rows if r.role == "loss") == {
        (name, f"prediction{level}") for name in ("JointLikelihoodRatio", "PredictionPatience") for level in at
    }
    assert names_of(r for r in rows if r.role == "label") >= {("LabelPatience", f"label{level}") for level in at}
    for row in rows:
        if row.name == "PredictionPatience":
            assert row.columns[0].name == "JointLikelihoodRatio"
            assert row.columns[0].level == row.level


def test_predictions_of_too_many_classes_are_not_read_jointly():
    wide = replace(foreign(), values={"prediction": np.zeros((MODELS, EXAMPLES, 2049), np.float32)})
    wide.values["prediction"][0] = 1.0
    assert not fitting(wide, Policy(patience=(1,), release="prediction"))


def test_beside_an_explanation_whole_predictions_are_the_baseline_where_they_are_released():
    signals = foreign(explained=True)
    rows = fitting(signals, Policy(patience=(1, 4), release="explanation+prediction"))
    for level in (1, 4):
        (baseline,) = (r for r in rows if r.level == level and r.baseline)
        assert (baseline.name, baseline.role) == ("PredictionPatience", "loss")
        assert any(r.role == "explanation+loss" and r.name == "Stacked" for r in rows if r.level == level)
    stack = next(r for r in rows if r.name == "Stacked" and r.level == 1)
    assert stack.signal == "explanation+prediction"
    plain = fitting(signals, Policy(patience=(1, 4)))
    assert {r.name for r in plain if r.baseline} == {"LabelPatience"}
    assert {r.role for r in plain if r.signal.startswith("prediction")} == {"loss"}
    assert not [r for r in plain if r.role.startswith("explanation") and "prediction" in str(r.reads)]


def test_probabilities_are_read_as_their_log_odds():
    scores = 3 * np.random.default_rng(0).normal(size=(3, 50, 8)).reshape(3, 50, 2, 4)
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    odds = np.log(p) - np.log1p(-p)
    member = np.random.default_rng(1).random((3, 50)) < 0.5
    values = {"prediction": p[:, :, 0], "predictions@2": p.reshape(3, 50, 8), "prediction@2": odds[:, :, 0]}
    found = Signals(member, values)
    assert np.allclose(values_of(found, [Signal.parse("prediction")]), odds[:, :, 0], rtol=1e-6)
    assert np.allclose(values_of(found, [Signal.parse("predictions@2")]), odds.reshape(3, 50, 8), rtol=1e-6)
    assert values_of(found, [Signal.parse("prediction@2")]) is found.values["prediction@2"]
    one = Signals(member, {"l1": odds[:, :, 0, :1], "class_l1": odds[:, :, 0, :2]})
    assert np.array_equal(values_of(one, [Signal.parse("l1")]), odds[:, :, 0, 0])  # one number, however it is written
    assert values_of(one, [Signal.parse("class_l1")]).shape == (3, 50, 2)
    sure = Signals(member, {"prediction": np.broadcast_to([1.0, 0.0, 0.0], (3, 50, 3)).astype(np.float32)})
    assert np.isfinite(values_of(sure, [Signal.parse("prediction")])).all()
    assert (values_of(sure, [Signal.parse("prediction")])[..., 0] > 60).all()


@pytest.mark.usefixtures("few_trees")
def test_what_another_release_showed_of_the_labels_is_not_computed_again_and_changes_no_score():
    one, other = released(leak=0.3), released(leak=0.0)
    other = replace(other, values={**other.values, "label": one.values["label"], "loss": one.values["loss"]})
    for name in one.values:
        if name.partition("@")[0] in ("kept", "shares", "loss"):
            other.values[name] = one.values[name]
    rows = fitting(other, policy())
    first = scorer(one, rows)
    plain, quick = scorer(other, rows), scorer(other, rows, known=first)
    for row, expected, found in zip(rows, plain.scores(0), quick.scores(0), strict=True):
        assert (found == expected).all(), (row.name, row.signal)
    baseline = next(row for row in rows if row.baseline)
    assert quick._fitted[baseline] is first._fitted[baseline]


@pytest.mark.usefixtures("few_trees")
def test_models_that_are_said_beforehand_are_scored_as_those_that_are_not():
    signals = released(levels=(1,))
    rows = fitting(signals, policy(patience=(1,)))
    plain, said = scorer(signals, rows), scorer(signals, rows, also=[3])
    assert all(3 in found for found in said._found.values())
    for read in (0, 3):
        for row, expected, found in zip(rows, plain.scores(read), said.scores(read), strict=True):
            assert (found == expected).all(), (read, row.name, row.signal)


def test_what_a_scorer_of_another_target_or_seed_knows_is_refused():
    signals = released(levels=(1,))
    rows = fitting(signals, policy(patience=(1,)))
    with pytest.raises(InputError, match=r"target and seed \(0, 1\), got one of \(0, 0\)"):
        scorer(signals, rows, seed=1, known=scorer(signals, rows))


def test_levels_that_the_policy_does_not_name_are_not_run():
    assert {r.level for r in fitting(released(), Policy(patience=(1,)))} == {1}
    assert {r.level for r in fitting(released(), Policy(patience=(20,)))} == {20}


def test_a_file_without_labels_has_no_baseline():
    signals = released()
    without = replace(signals, values={k: v for k, v in signals.values.items() if k.startswith("l1")})
    rows = fitting(without, policy())
    assert {r.role for r in rows} == {"explanation"}
    assert {r.name for r in rows} == {"LikelihoodRatio", "Learned", "Stacked"}
    alone = fitting(replace(without, attributions=None), policy(patience=(1,)))
    assert names_of(alone) == {("LikelihoodRatio", "l1")}


def test_fewer_than_four_references_have_no_stacks():
    rows = fitting(released(models=4), policy())
    assert rows
    assert not any(r.columns for r in rows)
    assert any(r.columns for r in fitting(released(models=5), policy()))


def test_an_explanation_that_never_differs_adds_nothing_and_is_judged_all_the_same():
    signals = released()
    maps = np.ones((MODELS, EXAMPLES, 3), np.float32)
    values = {"label": signals.values["label"], "l1": np.full((MODELS, EXAMPLES), 3.0)}
    constant = Signals(signals.membership, values, maps, {"targets": [0]})
    rows = fitting(constant, Policy(patience=(1,)))
    found = dict(zip(rows, scorer(constant, rows).scores(0), strict=True))
    (baseline,) = (r for r in rows if r.baseline)
    stacked = [r for r in rows if r.role == "explanation+label"]
    assert stacked
    assert [r.signal for r in rows if r.role == "explanation"] == ["l1"]
    assert all(np.array_equal(found[r], found[baseline]) for r in stacked)


def test_a_suite_of_names_keeps_the_baselines_of_its_levels():
    rows = fitting(released(), policy(suite=("LikelihoodRatio",)))
    assert {r.name for r in rows} == {"LikelihoodRatio", "LabelPatience", "Stacked"}
    assert {c.name for r in rows if r.name == "Stacked" for c in r.columns} == {"LikelihoodRatio", "LabelPatience"}
    with pytest.raises(ConfigurationError, match="unknown attacks"):
        fitting(released(), policy(suite=("Guess",)))


def test_what_is_missing_or_unread_stands_against_a_certificate_by_its_name():
    def said(signals, rows=None, **changes):
        asked = policy(**changes)
        return gaps(signals, fitting(signals, asked) if rows is None else rows, asked)

    def without(*names):
        return replace(signals, values={k: v for k, v in signals.values.items() if k not in names})

    signals = released()
    assert said(signals) == said(signals, release="explanation+prediction") == ()
    assert said(without("l1@20", "attributions@20")) == ("attributions@20 is missing", "l1@20 is missing")
    assert said(without("kept@20")) == ("kept@20 is missing", "shares@20 is read by no attack")
    assert said(without("loss@20")) == ()
    assert said(without("loss@20"), release="explanation+prediction") == ("loss@20 is missing",)
    assert said(without("loss@20"), patience=(1,)) == tuple(
        f"{name} is read by no attack" for name in ("l1@20", "shares@20", "kept@20", "attributions@20")
    )
    assert said(without(*(n for n in signals.values if "@" in n)), rows=[], patience=(1,)) == (
        "label is read by no attack", "loss is read by no attack", "l1 is read by no attack",
        "attributions is read by no attack",
    )  # fmt: skip
    constant = replace(signals, values={**signals.values, "peak": np.ones((MODELS, EXAMPLES))})
    assert said(constant, patience=(1, 20)) == ("peak@20 is missing",)
    assert said(foreign(), patience=(1, 4, 20), release="prediction") == ()


def test_what_reads_one_number_an_example_is_not_run_on_vectors():
    rng = np.random.default_rng(0)
    pairs = {name: rng.random((6, 40, 2)) for name in ("l1", "variance", "loss", "peak", "distance", "signed_distance")}
    pairs |= {f"{name}_margin": rng.random((6, 40, 2)) for name in ("recovered", "regressed")}
    pairs |= {"averaged_distance": rng.random((6, 40, 2)), "label": rng.integers(0, 2, (6, 40)) * 1.0}
    member, once = rng.random((6, 40)) < 0.5, Policy(patience=(1,))
    without = {name: values[:2] for name, values in pairs.items() if name != "label"}
    assert fitting(Signals(member[:2], without, None, {"recourse": {}}), once) == []
    rows = fitting(Signals(member, pairs, None, {"recourse": {}}), once)
    read = {(r.name, r.signal) for r in rows if not r.columns}
    assert {name for name, _ in read} == {
        "LikelihoodRatio", "JointLikelihoodRatio", "LabelLikelihoodRatio", "SignedDistanceLRT", "DirectionLRT",
    }  # fmt: skip
    numbers = Signals(member, {"peak": pairs["peak"][..., 0]})
    assert {r.name for r in fitting(numbers, once)} == {"LikelihoodRatio"}
    named = replace(once, suite=("Threshold", "RMIA"))
    assert "Threshold" not in {r.name for r in fitting(Signals(member, pairs), named)}


def test_families_are_those_of_the_complete_suite_whatever_was_asked_for():
    whole = families_allowed(released(), policy())
    assert whole == families_allowed(released(), policy(suite=("Threshold", "RMIA")))
    assert set(whole) == {"LikelihoodRatio", "Learned", "LabelLikelihoodRatio", "RMIA", "LabelPatience", "Stacked"}


@pytest.mark.parametrize("told", [True, False], ids=["labels of memorised examples", "labels that tell nothing"])
def test_noise_is_not_credited_with_what_trees_find_in_labels(told):
    gained = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        member = rng.random((17, 1_000)) < 0.5
        margin = 1 + 0.5 * rng.normal(size=1_000) + 3 * rng.normal(size=member.shape) + 4 * told * member
        values = {"label": (margin < 0) * rng.integers(1, 4, member.shape), "l1": rng.random(member.shape)}
        signals = Signals(member, values, None, {"targets": [0]})
        rows = [r for r in fitting(signals, Policy(patience=(1,))) if r.baseline or r.name == "Stacked"]
        found = scorer(signals, [*rows, rows[0].columns[0]])
        base, stacked, label = (roc(s, member[0]).auc for s in found.scores(0))
        gained.append(stacked - base)
        assert (base > label + 0.005) if told else (base == label)
    assert abs(np.mean(gained)) < 0.005


def test_maps_that_are_images_are_learned_by_their_shape():
    for shape, used in (([3, 4, 4], (3, 4, 4)), ([48], None), ([3, 16, 1], None)):
        signals = released(models=6, examples=40, levels=(1,), d=48)
        signals = replace(signals, meta={**signals.meta, "shape": shape})
        (row,) = (r for r in fitting(signals, policy(patience=(1,))) if r.name == "Learned")
        assert scorer(signals, [replace(row, attack=Learned(epochs=1))])._fitted.popitem()[1].network.shape == used


def test_half_of_the_references_play_the_target_and_learners_see_the_others():
    for models, players in ((5, 2), (9, 4), (33, 8)):
        found = scorer(released(models=models, examples=20), [])
        assert len(found._players) == players
        assert set(found._players) | set(found._teachers) == set(range(1, models))
        assert not set(found._players) & set(found._teachers)


def test_references_in_complementary_pairs_tell_no_players_membership_by_their_counts():
    """Labels of chance: with the complement left in, an example of the player's has one model less with it."""
    rng = np.random.default_rng(0)
    half = rng.random((4, 3000)) < 0.5
    member = np.concatenate([rng.random((1, 3000)) < 0.5, np.stack([half, ~half], 1).reshape(8, 3000)])
    label = (rng.random(member.shape) < 0.1) * 1.0
    signals = Signals(member, {"label": label}, None, {"targets": [0]})
    row = SuiteRow("LabelLikelihoodRatio", LabelLikelihoodRatio(), "label", "label")
    found = scorer(signals, [replace(row, name="Stacked", attack=Stacked(), columns=(row,))])
    assert sorted((found._players - 1) // 2) == sorted([*{*((found._players - 1) // 2)}] * 2)  # whole pairs play
    players = found._players.tolist()
    truth = member[players].ravel()

    def bounds(scores):
        return auc_interval(roc(scores.ravel(), truth), 0.999)

    low, high = bounds(np.stack([found._found[row][p] for p in players]))
    assert low < 0.5 < high


def test_log_odds_are_finite_and_symmetric():
    np.testing.assert_allclose(log_odds(np.array([0.0, 0.5, 1.0]), 5), [-np.log(11), 0, np.log(11)])


def test_all_models_are_asked_about_the_label_that_the_target_gave():
    signals = released()
    odds = log_odds(signals.values["shares@20"], 20)
    label = signals.values["label"]
    joined = np.concatenate([label[..., None], odds], axis=-1)
    found = OwnLabelRatio()(joined[0], joined[1:], signals.membership[1:])
    own = np.stack([[odds[m, i, label[0, i]] for i in range(EXAMPLES)] for m in range(MODELS)])
    np.testing.assert_allclose(found, LikelihoodRatio("identity")(own[0], own[1:], signals.membership[1:]))
