"""Noisy gradient descent: clipped per record over all classes, noise on the sum, and nothing else read off the data."""

import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.linear_model import LogisticRegression

from safexplain.dp.linear import classifier
from safexplain.dp.linear.classifier import NoisyGradientDescent, clipped_gradient_sum, noisy_gradient_descent
from safexplain.errors import ConfigurationError


def problem(n=30, p=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, p))
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
    return features, rng.integers(0, k, n), rng.normal(size=(2, k, p)) * 3


def slow_sum(features, labels, weights, bound):
    """One run, one record at a time."""
    total, norms = np.zeros_like(weights), []
    for x, label in zip(features, labels, strict=True):
        scores = np.exp(weights @ x - (weights @ x).max())
        residual = scores / scores.sum() - np.eye(len(weights))[label]
        gradient = np.array([[r * v for v in x] for r in residual])
        norm = np.sqrt((gradient**2).sum())
        norms.append(min(norm, bound))
        total += gradient * min(1.0, bound / norm)
    return total, norms


@pytest.mark.parametrize(("bound", "k"), [(0.05, 2), (0.3, 3), (2.0, 5)])  # all are clipped, some are, none is
def test_the_sum_is_that_of_a_loop_over_records(bound, k):
    features, labels, weights = problem(k=k)
    found = clipped_gradient_sum(features, labels, weights, bound)
    for run in range(2):
        np.testing.assert_allclose(found[run], slow_sum(features, labels, weights[run], bound)[0], atol=1e-13)


def test_without_noise_it_converges_to_the_regression_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(classifier, "LARGEST_STEP", 4.0)  # below 2 / curvature, where descent settles
    features, labels, _ = problem(n=100, p=3, k=3)
    descent = NoisyGradientDescent(1e-9, steps=2000, max_grad_norm=2.0, logit_noise=1.0)
    weights, _ = noisy_gradient_descent(features, labels, 3, descent, np.random.default_rng(0))
    exact = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000).fit(features, labels)
    centred = weights[0] - weights[0].mean(axis=0)
    np.testing.assert_allclose(centred, exact.coef_ - exact.coef_.mean(axis=0), atol=1e-3)


def test_centred_it_converges_to_the_same_regression(monkeypatch):
    monkeypatch.setattr(classifier, "LARGEST_STEP", 1.0)
    features, labels, _ = problem(n=100, p=3, k=3)
    rows = np.column_stack([0.3 * features + 0.5, np.full(100, 0.3)])  # far from 0 against how much they vary
    descent = NoisyGradientDescent(1e-9, steps=4000, max_grad_norm=2.0, centred=True)
    weights, _ = noisy_gradient_descent(rows, labels, 3, descent, np.random.default_rng(0))
    exact = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(rows[:, :3], labels)
    centred = weights[0] - weights[0].mean(axis=0)
    np.testing.assert_allclose(centred[:, :3], exact.coef_ - exact.coef_.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(0.3 * centred[:, 3], exact.intercept_ - exact.intercept_.mean(), atol=1e-3)


def test_the_mean_is_one_more_release_with_the_noise_of_a_gradient_clipped_to_1():
    features, sigma = problem(n=500)[0], 20.0
    assert NoisyGradientDescent(sigma, steps=7, centred=True).releases == 8
    drawn = classifier._noised_mean(features, np.full(4000, 500.0), sigma, np.random.default_rng(0))
    noised = drawn * (500**2 + 4 * sigma**2) / 500
    assert kstest(((noised - features.sum(axis=0)) / sigma).ravel(), "norm").pvalue > 0.01


def test_noise_has_the_stated_size_on_every_weight():
    """One record of zeros has no gradient: what comes out is the noise, averaged over the second half."""
    steps, nu = 100, 2.0
    descent = NoisyGradientDescent(50.0, steps=steps, logit_noise=nu)
    weights, _ = noisy_gradient_descent(np.zeros((1, 3)), np.zeros(1, int), 2, descent, np.random.default_rng(0), 4000)
    walks = np.arange(steps // 2, steps) + 1
    share = np.minimum.outer(walks, walks).mean() / steps
    assert weights.std() == pytest.approx(nu * np.sqrt(share), rel=0.02)


def test_the_number_of_records_enters_only_where_the_step_is_capped():
    descent = NoisyGradientDescent(100.0)
    assert descent.step_size(np.array([10.0])) == descent.step_size(np.array([1000.0]))
    tiny = NoisyGradientDescent(1e-3)
    assert tiny.step_size(np.array([1000.0])) == classifier.LARGEST_STEP / 1000


def test_a_hidden_number_of_records_is_one_more_noisy_release():
    rng = np.random.default_rng(0)
    features, labels, _ = problem(n=500)
    hidden = NoisyGradientDescent(20.0, steps=1, private_count=True)
    told = noisy_gradient_descent(features, labels, 3, hidden, rng, runs=4000)[1]
    assert hidden.releases == 2
    assert kstest((told - 500) / 20, "norm").pvalue > 0.01
    known = NoisyGradientDescent(20.0, steps=1)
    assert known.releases == 1
    assert (noisy_gradient_descent(features, labels, 3, known, rng, runs=2)[1] == 500).all()


def test_a_noised_number_of_records_is_at_least_one():
    hidden = NoisyGradientDescent(1000.0, steps=1, private_count=True)
    told = noisy_gradient_descent(*problem(n=2)[:2], 3, hidden, np.random.default_rng(0), runs=100)[1]
    assert told.min() == 1


@pytest.mark.parametrize("wrong", [{"steps": 2.5}, {"max_grad_norm": 0.0}, {"noise_multiplier": 0}])
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        NoisyGradientDescent(**{"noise_multiplier": 1.0, **wrong})
