"""Attacks: higher says member, equal to slow versions, near the optimum where there is a leak, blind where not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as distributions
from scipy.stats import rankdata

from safexplain.audit.attacks import (
    RMIA,
    JointLikelihoodRatio,
    LabelLikelihoodRatio,
    LikelihoodRatio,
    Threshold,
    likelihood,
)
from safexplain.audit.attacks.likelihood import likelihood_ratios
from safexplain.audit.attacks.suite import VIEWS
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import auc_interval, roc


def world(n=4000, m=32, leak=1.0, seed=0, d=None):
    """Signals of a target and m references: an example's own level, noise, and `leak` less on members."""
    rng = np.random.default_rng(seed)
    shape = (m + 1, n) if d is None else (m + 1, n, d)
    member = rng.random((m + 1, n)) < 0.5
    moved = member if d is None else member[..., None]
    signal = rng.normal(0, 2, shape[1:]) + rng.normal(size=shape) - leak * moved
    return signal[0], signal[1:], member[1:], member[0]


def sides(shadows, membership, i):
    return shadows[membership[:, i], i], shadows[~membership[:, i], i]


def squares(values):
    return float(((values - values.mean()) ** 2).sum())


def sample(target, shadows, membership):
    """Of each example with references on both sides: its target value, those with it and those without."""
    usable = [i for i in range(len(target)) if 0 < membership[:, i].sum() < len(membership)]
    return {i: (target[i], *sides(shadows, membership, i)) for i in usable}


def variances(given):
    """Over examples: (among models with them, among those without, both together)."""
    ss = [sum(squares(one[s]) for one in given) for s in (1, 2)]
    dof = [sum(len(one[s]) - 1 for one in given) for s in (1, 2)]
    both = sum(ss) / max(sum(dof), 1)
    return [ss[s] / dof[s] if min(dof) else both for s in (0, 1)], both


def slow_likelihood_ratio(target, shadows, membership, shrink=16):
    """One stratum and one example after the other."""
    found = sample(target, shadows, membership)
    level = {i: np.concatenate([one[1], one[2]]).mean() for i, one in found.items()}
    strata = min(10, max(1, len(found) // 50))
    cuts = [np.quantile(list(level.values()), k / strata) for k in range(1, strata)]
    scores = np.zeros(len(target))
    for k in range(strata):
        mine = [i for i in found if sum(level[i] >= cut for cut in cuts) == k]
        pooled, _ = variances([found[i] for i in mine])
        gap, error, v = {}, {}, {}
        for i in mine:
            _, with_it, without = found[i]
            dof = len(with_it) + len(without) - 2
            u = (squares(with_it) / pooled[0] + squares(without) / pooled[1] + shrink) / (dof + shrink)
            v[i] = u * pooled[0], u * pooled[1]
            gap[i], error[i] = with_it.mean() - without.mean(), v[i][0] / len(with_it) + v[i][1] / len(without)
        usual = np.mean([gap[i] for i in mine])
        tau = max(0.0, np.mean([(gap[i] - usual) ** 2 for i in mine]) - np.mean([error[i] for i in mine]))
        for i in mine:
            t, with_it, without = found[i]
            g = usual + tau / (tau + error[i]) * (gap[i] - usual)
            precise = len(with_it) / v[i][0], len(without) / v[i][1]  # the likeliest two means that lie g apart
            low = (precise[0] * (with_it.mean() - g) + precise[1] * without.mean()) / sum(precise)
            p_in = distributions.norm.logpdf(t, low + g, math.sqrt(v[i][0]))
            scores[i] = p_in - distributions.norm.logpdf(t, low, math.sqrt(v[i][1]))
    return scores


def slow_vector_ratio(target, shadows, membership, shrink=8):
    """Plain means and one variance for both sides, added up over the features."""
    scores = np.zeros(len(target))
    for j in range(target.shape[1]):
        found = sample(target[:, j], shadows[:, :, j], membership)
        _, pooled = variances(list(found.values()))
        for i, (t, with_it, without) in found.items():
            dof = len(with_it) + len(without) - 2
            deviation = math.sqrt((squares(with_it) + squares(without) + shrink * pooled) / (dof + shrink))
            p_in, p_out = (distributions.norm.logpdf(t, side.mean(), deviation) for side in (with_it, without))
            scores[i] += p_in - p_out
    return scores


def test_the_likelihood_ratio_equals_the_slow_one():
    for n in (102, 600):  # two strata and ten
        target, shadows, membership, _ = world(n, 12)
        membership[:, 3], membership[:, 4] = True, False
        found = LikelihoodRatio()(target, shadows, membership)
        assert np.allclose(found, slow_likelihood_ratio(target, shadows, membership), rtol=1e-6, atol=1e-6)
    few = world(2, 3)[:2], np.array([[True, True], [True, False], [False, False]])  # one spare model on either side
    assert np.allclose(LikelihoodRatio()(*few[0], few[1]), slow_likelihood_ratio(*few[0], few[1]), rtol=1e-6)


def test_the_likelihood_ratio_of_a_vector_is_the_sum_over_its_features():
    target, shadows, membership, _ = world(40, 12, d=5)
    membership[:, 3], membership[:, 4] = True, False
    found = LikelihoodRatio()(target, shadows, membership)
    assert np.allclose(found, slow_vector_ratio(target, shadows, membership), rtol=1e-7, atol=1e-7)


def test_the_logarithm_is_that_of_the_signal():
    target, shadows, membership, _ = world(60, 12)
    on_logs = LikelihoodRatio("identity")(target, shadows, membership)
    assert np.allclose(LikelihoodRatio()(np.exp(target), np.exp(shadows), membership), on_logs)
    raw = LikelihoodRatio("identity")(np.exp(target), np.exp(shadows), membership)
    assert not np.allclose(raw, on_logs, atol=0.1)
    assert np.array_equal(LikelihoodRatio("auto")(target, shadows, membership), on_logs)


def test_zeros_are_raised_to_half_of_the_smallest_positive_value():
    target, shadows, membership, _ = world(60, 12)
    target, shadows = np.exp(target), np.exp(shadows)
    target[0] = shadows[0, 1] = 0
    raised = [
        np.where(a == 0, min(target[target > 0].min(), shadows[shadows > 0].min()) / 2, a) for a in (target, shadows)
    ]
    found = LikelihoodRatio()(target, shadows, membership)
    assert np.allclose(found, LikelihoodRatio("identity")(*np.log(raised[0])[None], np.log(raised[1]), membership))


def test_the_label_ratio_counts_models_with_the_same_label_and_one_more_with_its_share_on_either_side():
    rng = np.random.default_rng(0)
    membership, labels = rng.random((12, 80)) < 0.5, rng.integers(0, 3, (13, 80))
    membership[:, 3], membership[:, 4] = True, False
    found = LabelLikelihoodRatio()(labels[0], labels[1:], membership)
    for i, (label, *others) in enumerate(labels.T):
        same, inside = np.array(others) == label, membership[:, i]
        share = (same.sum() + 1) / 14
        p_in, p_out = ((same[side].sum() + share) / (side.sum() + 1) for side in (inside, ~inside))
        assert found[i] == pytest.approx(math.log(p_in / p_out))


@pytest.mark.parametrize("d", [None, 10])
def test_without_a_leak_nothing_is_found(d):
    for seed in range(3):
        target, shadows, membership, member = world(2000, 16, leak=0.0, seed=seed, d=d)
        low, high = auc_interval(roc(LikelihoodRatio()(target, shadows, membership), member), 0.999)
        assert low < 0.5 < high


def test_the_threshold_score_is_the_negated_signal():
    assert Threshold()(np.array([1, -2, 3])).tolist() == [-1, 2, -3]
    assert Threshold(member_when_low=False)(np.array([1, -2, 3])).tolist() == [1, -2, 3]


def test_signals_that_are_all_zero_score_0():
    membership = np.random.default_rng(0).random((8, 20)) < 0.5
    for shape in ((20,), (20, 3)):
        scores = LikelihoodRatio()(np.zeros(shape), np.zeros((8, *shape)), membership)
        assert scores.tolist() == [0] * 20


def test_a_constant_feature_decides_nothing():
    target, shadows, membership, _ = world(200, 12, d=3)
    for value in (0.0, 1e6, 0.1):
        column = np.full((200, 1), value)
        wide = np.concatenate([target, column], 1), np.concatenate([shadows, np.repeat(column[None], 12, 0)], 2)
        expected = LikelihoodRatio()(target, shadows, membership)
        assert np.allclose(LikelihoodRatio()(*wide, membership), expected, atol=1e-6)


@given(st.integers(2, 5), st.integers(1, 4), st.data(), st.sampled_from(["auto", "identity"]))
@settings(max_examples=150)
def test_scores_are_always_finite(m, n, data, transform):
    numbers = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 5e-324, 1e-300, 1e100]))
    signal = np.array(data.draw(st.lists(numbers, min_size=(m + 1) * n, max_size=(m + 1) * n))).reshape(m + 1, n)
    membership = np.array(data.draw(st.lists(st.booleans(), min_size=m * n, max_size=m * n))).reshape(m, n)
    membership[0, 0], membership[1, 0] = True, False
    assert np.isfinite(LikelihoodRatio(transform)(signal[0], signal[1:], membership)).all()
    assert np.isfinite(LikelihoodRatio(transform)(abs(signal[0]), abs(signal[1:]), membership)).all()
    assert np.isfinite(LabelLikelihoodRatio()(signal[0], signal[1:], membership)).all()


T, S, M = world(6, 4)[:3]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ((T[:5], S, M), "expected target"),
        ((T[:, None, None], S[..., None, None], M), "expected target"),
        ((T, S, M * 1), "membership: expected bool"),
        ((np.where(np.arange(6) == 2, np.nan, T), S, M), "1 values of the target signal"),
        ((T, np.where(S[0, 0] == S, np.inf, S), M), "1 values of the shadows signal"),
    ],
)
def test_shapes_and_values_that_do_not_fit_are_refused(case, message):
    for attack in (LikelihoodRatio(), LabelLikelihoodRatio()):
        with pytest.raises(InputError, match=message):
            attack(*case)


def test_references_on_one_side_only_are_refused():
    with pytest.raises(InputError, match="train more reference models"):
        LikelihoodRatio()(T, S, np.ones_like(M))


def test_vectors_are_refused_where_one_number_is_meant():
    with pytest.raises(InputError, match="one number per example"):
        LabelLikelihoodRatio()(T[:, None], S[..., None], M)
    with pytest.raises(InputError, match="one finite number per example"):
        Threshold()(T[:, None])
    with pytest.raises(InputError, match="one finite number per example"):
        Threshold()(np.array([1.0, np.nan]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: LikelihoodRatio("sqrt"),
        lambda: JointLikelihoodRatio("sqrt"),
        lambda: RMIA(-0.1),
        lambda: RMIA(1.1),
    ],
)
def test_options_that_make_no_sense_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


REFERENCES = np.array([0, 2, 3, 4, 5, 6, 8])
READ = [1, 3, 8, 7, 0]


def released(shape, seed=0):
    """Signals of nine models, larger on members, and who is a member."""
    rng = np.random.default_rng(seed)
    member = rng.random(shape[:2]) < 0.5
    size = np.abs(rng.normal(size=shape)) * np.exp(rng.normal(size=shape[1:]))
    return size * (1 + 0.3 * member.reshape(*member.shape, *[1] * (len(shape) - 2))), member


def ratios(attack, values, member, reads=READ, view=None):
    return likelihood_ratios(attack, values, member, REFERENCES, reads, view)


def oracle(attack, values, member, read):
    others = [i for i in REFERENCES if i != read and not np.array_equal(member[i], ~member[read])]
    return attack(values[read], values[others], member[others])


@pytest.mark.parametrize(
    ("shape", "attack"),
    [((9, 200), LikelihoodRatio()), ((9, 200), LikelihoodRatio("identity")), ((9, 200, 5), LikelihoodRatio())],
    ids=["numbers", "as they are", "vectors"],
)
def test_each_model_is_scored_as_by_the_attack_itself_with_all_others_but_its_complement(shape, attack):
    values, member = released(shape)
    values[3, 5] = 0.0
    member[4], member[7] = ~member[3], ~member[6]
    for found, read in zip(ratios(attack, values, member), READ, strict=True):
        np.testing.assert_allclose(found, oracle(attack, values, member, read), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_made_of_a_few_examples_at_a_time_is_the_view_of_all(view, monkeypatch):
    values, member = released((9, 60, 7))
    values = (values - 1).astype(np.float32)
    monkeypatch.setattr(likelihood, "CHUNK", 200)
    found = ratios(LikelihoodRatio(), values, member, view=VIEWS[view])
    for scores, read in zip(found, READ, strict=True):
        np.testing.assert_allclose(scores, oracle(LikelihoodRatio(), VIEWS[view](values), member, read), atol=1e-8)


def test_an_example_without_references_on_both_sides_says_nothing():
    values, member = released((9, 50))
    member[:, 7] = False
    member[3, 7] = True
    found = ratios(LikelihoodRatio(), values, member, [1, 3])
    assert found[0, 7] != 0  # model 3 alone was trained with it
    assert found[1, 7] == 0  # and is nobody's reference when it is read


VARIANTS = [RMIA(), RMIA(offline=True), RMIA(0.0, offline=True), RMIA(1.0, offline=True)]


def losses(n=3000, m=16, leak=1.0, seed=0):
    """Losses of a target and m references: an example's own level, noise, and exp(leak) times smaller on members."""
    rng = np.random.default_rng(seed)
    member = rng.random((m + 1, n)) < 0.5
    loss = np.exp(rng.normal(-1, 1.5, n) + rng.normal(0, 0.5, (m + 1, n)) - leak * member)
    return loss[0], loss[1:], member[1:], member[0]


def slow_ratios(target, shadows, membership, attack):
    """p(x | model) / p(x) of one example after the other, on plain probabilities."""
    ratios = []
    for i, loss in enumerate(target):
        p = np.exp(-shadows[:, i])
        with_it, without = p[membership[:, i]], p[~membership[:, i]]
        if attack.offline:
            mean = ((1 + attack.a) * without.mean() + (1 - attack.a)) / 2 if len(without) else None
        else:
            mean = (with_it.mean() + without.mean()) / 2 if len(with_it) and len(without) else None
        ratios.append(1.0 if mean is None else math.exp(-loss) / mean)
    return np.array(ratios)


def dense_shares(ratios):
    """The n x n matrix of ratio(x) / ratio(z) >= 1, its diagonal left out."""
    won = ratios[:, None] / ratios[None] >= 1
    np.fill_diagonal(won, False)
    return won.sum(1)


@pytest.mark.parametrize("attack", VARIANTS, ids=repr)
def test_scores_are_the_dense_shares_with_ties_broken_by_less_than_a_step(attack):
    target, shadows, membership, _ = losses(200, 8)
    membership[:, 3], membership[:, 4] = True, False
    target[20], shadows[:, 20], membership[:, 20] = target[21], shadows[:, 21], membership[:, 21]
    ratios = slow_ratios(target, shadows, membership, attack)
    found = attack(target, shadows, membership)
    assert np.array_equal(np.floor(found * 200 + 1e-9), dense_shares(ratios))
    assert found[20] == found[21]
    assert ((found >= 0) & (found <= 1)).all()
    keep = np.arange(200) != 20
    assert np.array_equal(rankdata(found[keep]), rankdata(ratios[keep]))


def test_probabilities_below_the_smallest_float_are_told_apart():
    rng = np.random.default_rng(0)
    member = rng.random((9, 400)) < 0.5
    loss = 2000 + rng.normal(0, 1, (9, 400)) - 3 * member
    assert (np.exp(-loss) == 0).all()
    assert roc(RMIA()(loss[0], loss[1:], member[1:]), member[0]).auc > 0.9
    shifted = RMIA()(loss[0] - 1900, loss[1:] - 1900, member[1:])
    assert np.array_equal(np.argsort(shifted), np.argsort(RMIA()(loss[0], loss[1:], member[1:])))


def test_what_it_cannot_use_is_refused():
    target, shadows, membership, _ = losses(6, 4)
    membership[:2] = [[True], [False]]
    assert RMIA()(np.zeros(2), shadows[:, :2], membership[:, :2]).shape == (2,)
    with pytest.raises(InputError, match="at least 2 examples"):
        RMIA()(target[:1], shadows[:, :1], membership[:, :1])
    with pytest.raises(InputError, match="pass the loss"):
        RMIA()(-target, shadows, membership)
    with pytest.raises(InputError, match="one loss per example"):
        RMIA()(target[:, None], shadows[..., None], membership)
    with pytest.raises(InputError, match="train more reference models"):
        RMIA()(target, shadows, np.zeros_like(membership))
    assert np.isfinite(RMIA(offline=True)(target, shadows, np.zeros_like(membership))).all()
    with pytest.raises(InputError, match="needs reference models without the example"):
        RMIA(offline=True)(target, shadows, np.ones_like(membership))
