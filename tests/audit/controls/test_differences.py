"""Controls of what cannot leak: they find what tells members apart besides training, and seldom anything else."""

import numpy as np
import pytest
from scipy.stats import beta, rankdata
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from safexplain.audit import Policy
from safexplain.audit.controls import checks
from safexplain.audit.controls.checks import _classified, blind_baseline, null_model, one_of_each, shuffled_membership
from safexplain.verdict.stats import auc_interval, roc
from safexplain.verdict.thresholds import lower_bound_rank

POLICY = Policy(fpr=0.05, max_tpr=0.15)
N = 800


def split(seed=0, n=N, groups=None):
    """Members, and a training part and a scored part, in which groups are together."""
    rng = np.random.default_rng(seed)
    if groups is None:
        return rng.random(n) < 0.5, (train := rng.random(n) < 0.3), ~train
    many = int(groups.max()) + 1
    train = (rng.random(many) < 0.3)[groups]
    return (rng.random(many) < 0.5)[groups], train, ~train


def blind(seed, shift=0.0, groups=None, nothing=False, **changes):
    member, train, scored = split(seed, groups=groups)
    inputs = np.random.default_rng(seed + 1000).normal(size=(N, 4)) + shift * member[:, None]
    if groups is not None:
        inputs = inputs[np.unique(groups, return_index=True)[1][groups]]  # all of a group are copies
    given = {"groups": groups, **changes}
    return blind_baseline(inputs, member, train & (not nothing), scored | nothing, POLICY, seed, **given)


def test_inputs_that_tell_members_apart_are_found():
    assert blind(0, shift=0.7).failed
    assert "distinguishes members" in blind(0, shift=0.7).says
    assert blind(0, shift=0.7, nothing=True).failed


@pytest.mark.parametrize("nothing", [False, True], ids=["training split", "halves"])
def test_inputs_of_one_source_are_let_pass(nothing):
    assert (
        sum(blind(seed, nothing=nothing).failed for seed in range(6)) <= 1
    )  # two of six at 1 % each: a probability of .15 %


@pytest.mark.parametrize(("features", "trained"), [(256, 120), (257, 120), (257, 50)])
def test_the_blind_classifier_adds_the_ranks_of_two_models_of_the_inputs_or_of_their_components(features, trained):
    rng = np.random.default_rng(0)
    member, training = rng.random(160) < 0.5, np.arange(160) < trained
    x = rng.normal(size=(160, features)) + 0.2 * member[:, None]
    found = _classified(x.reshape(160, features, 1), member, training, ~training, 3)
    if features > 256:
        least = PCA(min(64, trained - 1), svd_solver="randomized", random_state=3).fit(x[training])
        x = np.column_stack([x.mean(1), x.std(1), x.min(1), x.max(1), least.transform(x)])
    trees = HistGradientBoostingClassifier(max_iter=100, random_state=3).fit(x[training], member[training])
    scaled = (x - x[training].mean(0)) / x[training].std(0)
    linear = LogisticRegression(max_iter=500, C=0.1).fit(scaled[training], member[training])
    expected = [one.predict_proba(part[~training])[:, 1] for one, part in ((trees, x), (linear, scaled))]
    np.testing.assert_array_equal(found, sum(rankdata(p, method="ordinal") - 1 for p in expected))


def test_what_a_blind_classifier_cannot_be_trained_on_is_said():
    member, train, scored = split()
    assert "not in the signals" in blind_baseline(None, member, train, scored, POLICY, 0).says
    few = np.arange(N) < 20
    assert blind_baseline(np.ones((N, 2)), member, few & False, few, POLICY, 0).failed is None
    assert blind_baseline(np.ones((N, 2)), member & train, train, scored, POLICY, 0).failed is None  # no members


@pytest.mark.parametrize(("trained", "folds"), [(39, 2), (40, 1)])
def test_forty_examples_are_enough_to_train_on(trained, folds, monkeypatch):
    fitted = []
    monkeypatch.setattr(
        checks, "_classified", lambda x, member, fit, test, seed: fitted.append(fit) or test.nonzero()[0]
    )
    member, train = split()[0], np.arange(N) < trained
    found = blind_baseline(np.ones((N, 2)), member, train, ~train, POLICY, 0)
    tested = [
        checks._tested(part.nonzero()[0], member[part], POLICY, 0.01 / folds)
        for part in (fitted[::-1] if folds == 2 else [~train])
    ]
    assert (found.failed, found.numbers) == (False, max(tested, key=lambda one: one.excess).numbers)
    assert len(fitted) == folds
    assert np.array_equal(sum(fitted), train if folds == 1 else ~train)


def test_attacks_that_find_the_targets_members_in_another_model_are_noticed():
    rng = np.random.default_rng(0)
    member = rng.random(N) < 0.5
    found = null_model(
        {"A": rng.normal(size=N), "B": rng.normal(size=N) + member}, member, POLICY, "a reference model", 0
    )
    assert found.failed
    assert found.says.startswith("B finds the target's members in the releases of a reference model")
    calm = [null_model({n: rng.normal(size=N) for n in "ABCD"}, member, POLICY, "x", 0).failed for _ in range(60)]
    assert sum(calm) <= 3
    assert null_model({}, member, POLICY, "x", 0).failed is None


def test_the_bounds_of_a_control_share_its_risk_by_hand():
    """One percent, shared by two attacks: half of each for the AUC, a quarter for the threshold and for the count."""
    rng = np.random.default_rng(2)
    member = rng.random(N) < 0.5
    worse, better = rng.normal(size=N), rng.normal(size=N) + 0.5 * member
    found = null_model({"A": worse, "B": better}, member, POLICY, "x", 0)
    curve = roc(better, member)
    rank, share = lower_bound_rank(curve.non_members, 0.05, 0.01 / 2 / 4)
    above = (better[member] > np.sort(better[~member])[::-1][rank - 1]).sum()
    low = beta.ppf(0.01 / 2 / 4, above, curve.members - above + 1) * share
    expected = {"auc": curve.auc, "auc_low": auc_interval(curve, 1 - 0.01 / 2)[0], "tpr_low": pytest.approx(low)}
    assert found.numbers == expected
    behind = np.where(member, 1.0, 2.0 * (np.arange(N) % 5 == 0))  # above most non-members, below the first fifth
    assert null_model({"A": behind}, member, POLICY, "x", 0).failed  # by the AUC alone
    for n, verb in ((6, "finds nothing in"), (7, "finds the target's members in")):  # AUC 1, at least 1 - 3 / n
        found = null_model({"A": np.arange(2.0 * n)}, np.arange(2 * n) >= n, POLICY, "x", 0)
        assert (found.failed, verb in found.says) == (n == 7, True)


def test_alarms_are_counted_over_members_drawn_at_random():
    member = np.arange(N) < 300
    seen = []

    def alarm(drawn):
        seen.append(drawn)
        return len(seen) % 2 == 0

    found = shuffled_membership(alarm, member, POLICY, 0)
    assert found.failed
    assert found.numbers == {"share": 0.5, "expected_at_most": pytest.approx(0.05)}
    assert len(seen) == 200
    assert {int(drawn.sum()) for drawn in seen} == {300}
    assert np.abs(np.mean(seen, axis=0) - 300 / N).max() < 0.2
    for alarms, failed in ((18, False), (19, True)):  # of 200: lower bounds of .048 and .052, where .05 are expected
        turn = iter([True] * alarms + [False] * 200)
        assert shuffled_membership(lambda drawn, turn=turn: next(turn), member, POLICY, 0).failed is failed
    assert shuffled_membership(None, member, POLICY, 0).failed is None


def test_groups_are_drawn_whole():
    groups = np.arange(N) // 8
    member = (np.random.default_rng(0).random(N // 8) < 0.4)[groups]

    def alarm(drawn):
        assert all(len(set(drawn[groups == g])) == 1 for g in (0, 7, 99))
        assert drawn.sum() == member.sum()
        return False

    assert shuffled_membership(alarm, member, POLICY, 0, groups).failed is False
    everyone = shuffled_membership(alarm, member, POLICY, 0, np.zeros(N, int))
    assert everyone.failed is None
    assert "too few groups" in everyone.says


def test_one_member_and_one_non_member_of_each_group_are_looked_at():
    rng = np.random.default_rng(0)
    groups, member = rng.integers(0, 30, 500), rng.random(500) < 0.5
    alone = one_of_each(groups, member, seed=0)
    for g in range(30):
        for side in (True, False):
            mine = (groups == g) & (member == side)
            assert (alone & mine).sum() == mine.any()
    assert np.flatnonzero(alone)[:6].tolist() == [3, 15, 17, 24, 25, 32]
    assert not np.array_equal(alone, one_of_each(groups, member, seed=1))
    assert one_of_each(None, member, seed=0).all()
