"""Noisy gradient descent and objective perturbation: clipped per record, and nothing else read off the data."""

import mpmath
import numpy as np
import pytest
from privacy_oracle import log_density, signed_rows
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import gamma, kstest
from sklearn.linear_model import LogisticRegression

from safexplain.dp.linear import classifier
from safexplain.dp.linear.classifier import (
    NoisyGradientDescent,
    PerturbedObjective,
    clipped_gradient_sum,
    minimise,
    noisy_gradient_descent,
    perturbed_minimiser,
    radial_noise,
    rounding_bound,
)
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


def largest_log_ratio(first, second, mechanism, spread=60.0):
    axis = np.linspace(-spread, spread, 121)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    options = (mechanism.noise_rate, mechanism.regularization)
    return np.abs(log_density(grid, first, *options) - log_density(grid, second, *options)).max()


@pytest.mark.parametrize(("n", "p", "regularization"), [(1, 2, 0.05), (3000, 6, 20.0), (60, 200, 2.0)])
def test_it_finds_the_minimiser_that_a_generic_solver_finds(n, p, regularization):
    signed = signed_rows(n, p)
    linear = np.random.default_rng(1).normal(size=(3, p)) * 5

    def value(w, b):
        gradient = -expit(-signed @ w) @ signed + regularization * w + b
        return np.logaddexp(0, -signed @ w).sum() + regularization / 2 * w @ w + b @ w, gradient

    found = minimise(signed, linear, regularization, 1e-7)
    for w, b in zip(found, linear, strict=True):
        oracle = minimize(
            value, np.zeros(p), args=(b,), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}
        )
        np.testing.assert_allclose(w, oracle.x, atol=1e-5)


def exact_gradient_norm(w, signed, b, regularization):
    """Norm of the gradient of J in arithmetic of 60 digits."""
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(v) for v in row] for row in signed.tolist()]
        weights = [mpmath.mpf(v) for v in w.tolist()]
        miss = [1 / (1 + mpmath.exp(mpmath.fdot(row, weights))) for row in rows]
        parts = [
            regularization * weights[j] + mpmath.mpf(float(b[j])) - mpmath.fdot(miss, [row[j] for row in rows])
            for j in range(len(weights))
        ]
        return float(mpmath.sqrt(sum(part**2 for part in parts)))


@pytest.mark.parametrize("solver_error", [1e-4, 1e-10])
def test_the_certified_distance_holds_in_exact_arithmetic(solver_error):
    signed, linear = signed_rows(1500, 4), np.array([[30.0, -20.0, 5.0, 0.1]])
    found = minimise(signed, linear, 8.0, solver_error)
    assert exact_gradient_norm(found[0], signed, linear[0], 8.0) <= 8.0 * solver_error


def test_the_bound_on_rounding_covers_the_rounding_that_happens():
    signed, weights, linear = signed_rows(1500, 4), np.full((1, 4), 40.0), np.full((1, 4), 3.0)
    gradient = 8.0 * weights + linear - expit(-(weights @ signed.T)) @ signed
    difference = abs(np.linalg.norm(gradient) - exact_gradient_norm(weights[0], signed, linear[0], 8.0))
    assert 0 < difference <= rounding_bound(1500, weights, linear, 8.0)[0] < 1e-8


@pytest.mark.parametrize(
    ("adjacency", "epsilon", "logit_noise"),
    [("substitute", 100.0, 0.1), ("add_remove", 0.01, 100.0), ("zero_out", 0.5, 1.0)],
)
def test_calibration_spends_the_budget_and_no_more(adjacency, epsilon, logit_noise):
    mechanism = PerturbedObjective.calibrated(epsilon, 24, adjacency, logit_noise=logit_noise)
    assert 0.999999 * epsilon <= mechanism.epsilon(adjacency) <= epsilon
    assert mechanism.epsilon("zero_out") == mechanism.epsilon("add_remove") < mechanism.epsilon("substitute")


def leaning(*records):
    """Four hundred records that ask for much noise to the side, and the one in question."""
    return np.array([(1.0, 0.0)] * 400 + list(records))


SIDES = ((0.97, 0.24), (-0.97, 0.24))
"""Two records that both lie on the far side of weights (0, -w), with features almost opposite."""


@pytest.mark.parametrize(
    ("adjacency", "first", "second"),
    [("substitute", leaning(SIDES[0]), leaning(SIDES[1])), ("add_remove", leaning(), leaning(SIDES[1]))],
)
def test_the_exact_density_ratio_is_within_epsilon_and_nearly_reaches_it(adjacency, first, second):
    mechanism = PerturbedObjective.calibrated(1.0, 2, adjacency, logit_noise=1.0)
    largest = largest_log_ratio(first, second, mechanism)
    assert largest <= mechanism.epsilon(adjacency)
    assert largest > 0.8 * mechanism.epsilon(adjacency)


def test_noise_has_a_uniform_direction_and_a_gamma_length():
    noise = radial_noise(0.5, (20_000, 3), np.random.default_rng(0))
    length = np.linalg.norm(noise, axis=1)
    assert kstest(length, gamma(3, scale=2.0).cdf).pvalue > 0.01
    cosine = (noise / length[:, None])[:, 0]  # uniform on [-1, 1] for a direction in three dimensions
    assert kstest(cosine, "uniform", args=(-1, 2)).pvalue > 0.01


def test_the_released_weights_carry_noise_beyond_the_solver_error(monkeypatch):
    mechanism = PerturbedObjective.calibrated(1.0, 3, "substitute")
    monkeypatch.setattr(classifier, "minimise", lambda signed, linear, *_: np.zeros_like(linear))
    covered = perturbed_minimiser(signed_rows(5, 3), mechanism, np.random.default_rng(0), runs=4000)
    assert kstest(np.linalg.norm(covered, axis=1), gamma(3, scale=1 / mechanism.cover_rate).cdf).pvalue > 0.01
    assert 2 * mechanism.cover_rate * mechanism.solver_error == pytest.approx(0.01)


def test_more_rows_than_a_block_change_nothing_but_rounding(monkeypatch):
    signed, linear = signed_rows(200, 3), np.ones((2, 3))
    whole = minimise(signed, linear, 2.0, 1e-9)
    monkeypatch.setattr(classifier, "BLOCK", 7)
    np.testing.assert_allclose(minimise(signed, linear, 2.0, 1e-9), whole, atol=2e-9)
