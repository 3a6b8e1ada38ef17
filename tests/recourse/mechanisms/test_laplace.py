"""Laplace noise on a grid: exact probabilities, and what neighbours' values can tell."""

from __future__ import annotations

import numpy as np
import pytest
from recourse_privacy_oracle import largest_loss, log_probabilities, lower_bound
from scipy.stats import chisquare, kstest, laplace

from safexplain._secure_random.discrete_laplace import discrete_laplace, exp_coin
from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.mechanisms.laplace import SLACK, laplace_grid, laplace_release


def fit_of(draws, scale):
    """p-value of draws against P(z) proportional to exp(-|z| / scale), tails pooled."""
    edge = int(3 * scale)
    z = np.arange(-edge, edge + 1)
    expected = np.tanh(0.5 / scale) * np.exp(-np.abs(z) / scale)
    beyond = (1 - expected.sum()) / 2
    counts = np.array([(draws < -edge).sum(), *(np.sum(draws == v) for v in z), (draws > edge).sum()])
    return chisquare(counts, np.array([beyond, *expected, beyond]) * len(draws)).pvalue


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_noise_has_the_probabilities_that_the_proof_uses(scale):
    draws = discrete_laplace(np.full(60_000, scale), np.random.default_rng(scale))
    assert fit_of(draws, scale) > 0.001
    assert fit_of(draws, scale * 1.05) < 1e-4


def test_each_number_has_its_own_scale():
    draws = discrete_laplace(np.repeat([1, 1000], 20_000), np.random.default_rng(0))
    assert fit_of(draws[:20_000], 1) > 0.001
    assert np.abs(draws[20_000:]).mean() == pytest.approx(1000, rel=0.03)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (999, 1000), (1, 1)])
def test_the_coin_has_probability_exp_of_minus_the_quotient(numerator, denominator):
    n = 200_000
    coins = exp_coin(np.full(n, numerator), np.full(n, denominator), np.random.default_rng(0))
    p = np.exp(-numerator / denominator)
    assert abs(coins.mean() - p) <= 4.5 * np.sqrt(p * (1 - p) / n)


RANGES = ((-10.0, 10.0), (0.0, 3.3))
CASES = [
    (s, epsilon, *RANGES[(i + j) % 2])
    for i, s in enumerate((0.3, 1.0, 300.0))
    for j, epsilon in enumerate((0.01, 0.5, 1.0, 6.0))
]


@pytest.mark.parametrize(("s", "epsilon", "low", "high"), CASES)
def test_values_within_the_sensitivity_are_never_told_apart_beyond_epsilon(s, epsilon, low, high):
    rng, options, worst = np.random.default_rng(0), (s, epsilon, low, high), 0.0
    for value in [*rng.uniform(low, high, 6), low, high, low - 5]:
        for other in (value + s, value - s, value + s * rng.uniform(), value + s + (high - low) * SLACK / 2):
            worst = max(worst, largest_loss(log_probabilities(value, *options), log_probabilities(other, *options)))
    assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.95 * epsilon


def test_half_of_the_noise_would_be_told_apart_beyond_epsilon():
    for s, epsilon, low, high in CASES:
        options = (s, epsilon, low, high, 0.5)
        assert largest_loss(log_probabilities(low, *options), log_probabilities(low + s, *options)) > 1.9 * epsilon


def test_the_grid_alone_keeps_epsilon_under_exact_arithmetic():
    for s, epsilon, low, high in CASES:
        grid, steps, scale = laplace_grid(s, epsilon, low, high)
        assert steps / scale <= epsilon
        values = np.random.default_rng(0).uniform(low, high, 2000)
        apart = np.rint(np.minimum(values + s, high) / grid) - np.rint(values / grid)
        assert apart.max() <= steps
        assert np.log2(grid) == round(np.log2(grid))


def releases(value, runs, *, claimed=1.0, seed=0, sensitivity=0.5):
    rng = np.random.default_rng(seed)
    return laplace_release(np.full(runs, value), np.full(runs, sensitivity), claimed, -8.0, 8.0, rng)[0]


def test_releases_follow_the_probabilities_that_were_checked():
    draws = releases(0.3, 40_000)
    grid, _, scale = laplace_grid(0.5, 1.0, -8.0, 8.0)
    assert set(np.unique(draws / grid) % 1) == {0.0}
    assert kstest(draws, laplace(0.3, scale * grid).cdf).pvalue > 1e-3  # the grid is too fine to be seen here
    assert kstest(draws, laplace(0.3, scale * grid / 1.1).cdf).pvalue < 1e-3


def test_an_attacker_proves_no_more_than_epsilon_and_half_the_noise_is_caught():
    assert 0.8 < lower_bound(releases(0.5, 40_000), releases(0.0, 40_000, seed=1)) <= 1.0
    halved = [releases(v, 40_000, claimed=2.0, seed=s) for s, v in enumerate((0.5, 0.0))]
    assert lower_bound(*halved) > 1.0


def test_neighbours_release_the_same_numbers():
    """Noise in floating-point numbers has gaps that depend on the value; the grid has none."""
    near = [set(releases(v, 4000, seed=s, sensitivity=0.003).tolist()) for s, v in enumerate((0.3, 0.3 + 1e-9))]
    naive = [set((v + np.random.default_rng(s).laplace(size=4000)).tolist()) for s, v in enumerate((0.3, 0.3 + 1e-9))]
    assert len(near[0] & near[1]) > 1000
    assert not naive[0] & naive[1]


def test_releases_stay_within_the_public_range_and_say_so():
    rng = np.random.default_rng(0)
    values = np.array([-np.inf, -50.0, 0.0, 50.0, np.inf])
    noised, censored = laplace_release(values, np.full(5, 1e-3), 1.0, -8.0, 8.0, rng)
    assert (np.abs(noised) <= 8.0).all()
    assert (censored == (np.abs(noised) == 8.0)).all()
    assert not censored[2]


@pytest.mark.parametrize("sensitivity", [1e-300, 1e-12, 1e12, 1e300])
def test_extreme_sensitivities_keep_to_integers_that_fit(sensitivity):
    noised, _ = laplace_release(np.array([0.7]), np.array([sensitivity]), 1.0, -1.0, 1.0, np.random.default_rng(0))
    assert abs(noised[0]) <= 1
    if sensitivity < 1e-9:
        assert noised[0] == pytest.approx(0.7, abs=1e-8)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"epsilon": 0.0}, ConfigurationError),
        ({"epsilon": 1e-12}, ConfigurationError),
        ({"epsilon": "1"}, ConfigurationTypeError),
        ({"sensitivity": -1.0}, ConfigurationError),
        ({"low": 1.0}, ConfigurationError),
        ({"high": np.inf}, ConfigurationError),
    ],
)
def test_parameters_without_a_guarantee_are_refused(wrong, error):
    with pytest.raises(error):
        laplace_grid(**{"sensitivity": 1.0, "epsilon": 1.0, "low": 0.0, "high": 1.0, **wrong})
