"""Boosted trees: what they learn is found in models and examples that they did not learn from, and nothing else is."""

import numpy as np
import pytest
from scipy.optimize import minimize

from safexplain.audit.attacks import LabelLikelihoodRatio, LikelihoodRatio, learned
from safexplain.audit.attacks.learned import Boosted, Stacked
from safexplain.errors import ConfigurationError, InputError
from safexplain.verdict.stats import roc

MODELS, EXAMPLES = 17, 1_200
SMALL = Boosted(trees=30, leaves=8)


def released(effect, seed=0, models=MODELS, examples=EXAMPLES):
    """One number an example and model, lower on members, and who is a member."""
    rng = np.random.default_rng(seed)
    member = rng.random((models, examples)) < 0.5
    return rng.normal(size=(models, examples)) + rng.normal(0, 3, examples) - effect * member, member


def test_examples_are_scored_by_trees_of_the_other_half():
    """With the examples of one half as the only members of all models, their own trees could tell nothing apart."""
    signal, member = released(2.0)
    fitted = SMALL.fit(signal[1:], member[1:])
    assert fitted.half.sum() == EXAMPLES // 2
    x = SMALL.features(signal[0], signal[1:], member[1:])
    want = np.where(fitted.half, fitted.trees[1].decision_function(x), fitted.trees[0].decision_function(x))
    np.testing.assert_array_equal(fitted.scores(signal[0], signal[1:], member[1:]), want)


def test_features_are_those_of_the_references():
    signal, member = released(1.0, examples=50)
    signal = np.exp(signal)
    x = Boosted().features(signal[0], signal[1:], member[1:])
    logs, inside = np.log(signal), member[1:]
    mean_in = np.array([logs[1:, i][inside[:, i]].mean() for i in range(50)])
    mean_out = np.array([logs[1:, i][~inside[:, i]].mean() for i in range(50)])
    spread = np.array([logs[1:, i][inside[:, i]].std(ddof=1) for i in range(50)])
    unit = np.median(logs[1:].std(0))
    assert x.shape == (50, 6)
    np.testing.assert_allclose(unit * x[:, 0], logs[0] - (mean_in + mean_out) / 2, atol=1e-4)
    np.testing.assert_allclose(unit * x[:, 1:3], np.stack([mean_in, mean_out], 1), atol=1e-4)
    np.testing.assert_allclose(x[:, 3], (logs[0] - mean_in) / spread, rtol=1e-4, atol=1e-4)
    spread_out = np.array([logs[1:, i][~inside[:, i]].std(ddof=1) for i in range(50)])
    np.testing.assert_allclose(x[:, 4], (logs[0] - mean_out) / spread_out, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x[:, 5], LikelihoodRatio()(signal[0], signal[1:], inside), rtol=1e-4, atol=1e-4)


def test_numbers_that_are_equal_on_paper_are_equal_features():
    """The same answers in another order: sums differ in their last bit, 0 or 1e-17, and trees would part them."""
    rng = np.random.default_rng(0)
    column, member = np.array([1, -3, 2, -7, 4, 4, 5, -8, 3, 3]) / 10, np.arange(10) % 2 == 0  # .3 with, on average
    values = np.repeat(column[:, None], 200, axis=1)
    for side in (member, ~member):
        values[side] = rng.permuted(values[side], axis=0)
    inside = np.repeat(member[:, None], 200, axis=1)
    x = Boosted().features(np.full(200, 0.3), values, inside)
    assert len(np.unique(x, axis=0)) == 1
    assert len(np.unique(LikelihoodRatio()(np.full(200, 0.3), values, inside).round(9))) == 1


def test_labels_are_counted_not_measured():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, size=(9, 60))
    member = rng.random((9, 60)) < 0.5
    x = Boosted(labels=1).features(label[0], label[1:], member[1:])
    renamed = np.array([7, 0, 4])[label]  # other names, same classes
    np.testing.assert_array_equal(x, Boosted(labels=1).features(renamed[0], renamed[1:], member[1:]))
    same = label[1:] == label[0]
    np.testing.assert_allclose(x[:, 0], [same[m, i].mean() for i, m in enumerate(member[1:].T)], rtol=1e-6)
    np.testing.assert_allclose(x[:, 1], [same[~m, i].mean() for i, m in enumerate(member[1:].T)], rtol=1e-6)
    np.testing.assert_allclose(x[:, 2], LabelLikelihoodRatio()(label[0], label[1:], member[1:]), rtol=1e-6)


def test_the_trees_of_a_small_case_give_the_recorded_odds():
    signal, member = released(1.0, examples=60)
    found = Boosted()(signal[0], signal[1:], member[1:])
    assert found[:4] == pytest.approx([-4.307836, 1.136850, -0.054428, -3.414700], rel=1e-4)


def test_too_few_references_are_refused():
    signal, member = released(1.0, models=4)
    with pytest.raises(InputError, match="at least 4 reference models"):
        SMALL(signal[0], signal[1:], member[1:])
    signal, member = released(1.0, models=5, examples=4)
    member[:] = np.add.outer(np.arange(5), np.arange(4)) % 2 == 0
    assert SMALL(signal[0], signal[1:], member[1:]).shape == (4,)
    with pytest.raises(InputError, match="4 examples, got 4 and 3"):
        SMALL(signal[0, :3], signal[1:, :3], member[1:, :3])


PSEUDO_TARGETS, ROWS = 8, 4_000


def ratios(effects, seed, scale=1.0, rows=ROWS):
    """Log ratios of Gaussian columns with these effects, of a target and of pseudo-targets, and their membership."""
    rng = np.random.default_rng(seed)
    member = rng.random((1 + PSEUDO_TARGETS, rows)) < 0.5
    d = np.asarray(effects)
    x = rng.normal(size=(*member.shape, len(d))) + member[..., None] * d
    values = d * (x - d / 2)
    values[..., d == 0] = x[..., d == 0]
    values[..., 1:] *= scale
    return values[0], values[1:], member[1:], member[0]


def tpr(scores, member, fpr=0.01):
    curve = roc(scores, member)
    return float(np.interp(fpr, curve.fpr, curve.tpr))


def test_columns_that_add_nothing_leave_the_order_of_the_first_as_it_is():
    same = 0
    for seed in range(10):
        target, shadows, membership, _ = ratios([1.0, 0.0, 0.0], seed)
        same += np.array_equal(Stacked()(target, shadows, membership), target[:, 0])
    assert same >= 9


def test_whether_a_weak_column_adds_is_as_recorded_and_decided_by_four_folds(monkeypatch):
    found, fitted_to, weights = "", [], learned._weights
    monkeypatch.setattr(learned, "_weights", lambda x, y: fitted_to.append(len(x)) or weights(x, y))
    for seed in range(36):
        _, shadows, membership, _ = ratios([1.0, 0.3 + 0.02 * (seed % 18)], seed, rows=300)
        few = 3 if seed % 4 == 0 else 8
        fitted_to.clear()
        adds = Stacked(0.05).fit(shadows[:few], membership[:few]).adds
        assert fitted_to == ([2] * 6 if few == 3 else [6] * 8) + [few] * adds  # both columns, and the first alone
        found += str(int(adds))
    assert found == "011110011011110111110000011111010111"
    assert Stacked().fpr == 0.01
    membership[:] = np.arange(8)[:, None] % 2 == 0  # no true-positive rate can be compared
    assert not Stacked().fit(shadows + 9.0 * membership[..., None] * [0, 1], membership).adds


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["calibrated", "overconfident"])
def test_a_column_that_adds_is_used_whatever_its_scale(scale):
    gained = []
    for seed in range(3):
        target, shadows, membership, member = ratios([1.0, 1.0], seed, scale)
        scores = Stacked()(target, shadows, membership)
        gained.append(tpr(scores, member) - tpr(target[:, 0], member))
        assert roc(scores, member).auc == pytest.approx(roc(target.sum(1), member).auc, abs=0.01) or scale > 1
    assert np.mean(gained) > 0.03  # of .093 for the first alone and .178 for the sum


def test_a_few_absurd_ratios_of_one_pseudo_target_do_not_hide_what_a_column_adds():
    """Ratios of labels that references never gave reach minus 1e10; under log likelihoods, forty of them decided."""
    for seed in range(3):
        target, shadows, membership, member = ratios([1.0, 1.0], seed)
        shadows, membership = shadows[:, :1500], membership[:, :1500]
        shadows[0, np.flatnonzero(membership[0])[:40], 1] = -np.geomspace(1e2, 1e8, 40)
        fitted = Stacked().fit(shadows, membership)
        assert fitted.adds
        assert roc(fitted.scores(target), member).auc > roc(target[:, 0], member).auc + 0.05


def test_weights_are_those_of_the_penalised_likelihood():
    shadows, membership = ratios([1.0, 0.7], 3)[1:3]
    fitted = Stacked().fit(shadows, membership)
    assert fitted.adds
    x, y = fitted.scale(shadows).reshape(-1, 2), membership.ravel()
    by_hand = 3 * np.arcsinh((shadows - fitted.centre) / fitted.spread / 3)
    np.testing.assert_allclose(fitted.scale(shadows), by_hand)

    def cost(w):
        odds = x @ w[:2] + w[2]
        return (np.logaddexp(0, odds) - y * odds).mean() + 0.5e-4 * (w[:2] ** 2).sum()

    best = minimize(cost, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(fitted.weights, best, atol=1e-4)


def test_a_column_that_never_differs_changes_nothing():
    target, shadows, membership, _ = ratios([1.0, 1.0, 0.0], 1)
    target[:, 2], shadows[..., 2] = 7.0, 7.0
    with_it = Stacked()(target, shadows, membership)
    np.testing.assert_allclose(with_it, Stacked()(target[:, :2], shadows[..., :2], membership), atol=1e-6)


@pytest.mark.parametrize("options", [{"fpr": 0.0}, {"fpr": 1.0}])
def test_values_out_of_range_are_refused(options):
    with pytest.raises(ConfigurationError):
        Stacked(**options)


def test_one_pseudo_target_is_too_few():
    target, shadows, membership, _ = ratios([1.0, 1.0], 1)
    with pytest.raises(InputError, match="p >= 2"):
        Stacked()(target, shadows[:1], membership[:1])
    assert Stacked().fit(shadows[:2], membership[:2]).centre.shape == (2,)
