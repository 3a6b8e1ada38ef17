"""Boosted trees: what they learn is found in models and examples that they did not learn from, and nothing else is."""

import numpy as np
import pytest

from safexplain.audit.attacks import LabelLikelihoodRatio, LikelihoodRatio
from safexplain.audit.attacks.learned import Boosted
from safexplain.errors import InputError
from safexplain.verdict.stats import roc

MODELS, EXAMPLES = 17, 1_200
SMALL = Boosted(trees=30, leaves=8)


def released(effect, seed=0, models=MODELS, examples=EXAMPLES):
    """One number an example and model, lower on members, and who is a member."""
    rng = np.random.default_rng(seed)
    member = rng.random((models, examples)) < 0.5
    return rng.normal(size=(models, examples)) + rng.normal(0, 3, examples) - effect * member, member


def area(scores, member):
    return roc(scores, member).auc


def test_a_leak_is_found_as_well_as_by_the_best_ratio():
    for seed in range(3):
        signal, member = released(1.5, seed)
        found = area(SMALL(signal[0], signal[1:], member[1:]), member[0])
        ratio = area(LikelihoodRatio()(signal[0], signal[1:], member[1:]), member[0])
        assert found > ratio - 0.03
        assert found > 0.75


def test_nothing_is_found_in_noise():
    areas = []
    for seed in range(5):
        signal, member = released(0.0, seed)
        areas.append(area(SMALL(signal[0], signal[1:], member[1:]), member[0]))
    assert abs(np.mean(areas) - 0.5) < 0.02


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


def test_too_few_references_are_refused():
    signal, member = released(1.0, models=4)
    with pytest.raises(InputError, match="at least 4 reference models"):
        SMALL(signal[0], signal[1:], member[1:])
