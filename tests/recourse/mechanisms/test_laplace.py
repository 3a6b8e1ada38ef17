"""Laplace noise on a grid: exact probabilities, and what neighbours' values can tell."""

import numpy as np
import pytest
from privacy_oracle import largest_loss, log_probabilities
from scipy.stats import kstest, laplace

from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.recourse.mechanisms.laplace_score import SLACK, laplace_grid, laplace_release

CASES = [
    (0.3, 0.01, -10.0, 10.0),
    (1.0, 0.5, 0.0, 3.3),
    (300.0, 1.0, -10.0, 10.0),
    (1.0, 6.0, -10.0, 10.0),
    (0.3, 1.0, 0.0, 3.3),
]
"""Sensitivities, epsilons, and public ranges."""


@pytest.mark.parametrize(("s", "epsilon", "low", "high"), CASES)
def test_values_within_the_sensitivity_are_never_told_apart_beyond_epsilon(s, epsilon, low, high):
    rng, options, worst = np.random.default_rng(0), (s, epsilon, low, high), 0.0
    for value in [*rng.uniform(low, high, 6), low, high, low - 5]:
        for other in (value + s, value - s, value + s * rng.uniform(), value + s + (high - low) * SLACK / 2):
            worst = max(worst, largest_loss(log_probabilities(value, *options), log_probabilities(other, *options)))
    assert worst <= epsilon * (1 + 1e-9)
    assert worst > 0.95 * epsilon


@pytest.mark.parametrize(
    ("given", "grid", "steps", "scale"),
    [
        ((1.0, 1.0, -10.0, 10.0), 2**-10, 1025, 1025),  # 1024 points a sensitivity, and one for the slack
        ((1.0, 0.5, -10.0, 10.0), 2**-10, 1025, 2050),
        ((1.0, 4.0, -10.0, 10.0), 2**-12, 4097, 1025),  # as many in the scale where that is smaller; 4097 / 4 upwards
        ((300.0, 1.0, -10.0, 10.0), 2**-6, 1281, 1281),  # never more than the interval, 20 = 1280 / 64
        ((1e-3, 1.0, 0.0, 2.0**45), 32.0, 2, 2),  # never finer than 2^-40 of the ends
    ],
)
def test_a_grid_has_the_steps_and_the_scale_worked_out_by_hand(given, grid, steps, scale):
    assert laplace_grid(*given) == (grid, steps, scale)


def test_half_of_the_noise_would_be_told_apart_beyond_epsilon():
    for s, epsilon, low, high in CASES:
        options = (s, epsilon, low, high, 0.5)
        assert largest_loss(log_probabilities(low, *options), log_probabilities(low + s, *options)) > 1.9 * epsilon


def releases(value, runs, *, seed=0, sensitivity=0.5):
    rng = np.random.default_rng(seed)
    return laplace_release(np.full(runs, value), np.full(runs, sensitivity), 1.0, -8.0, 8.0, rng)[0]


def test_releases_follow_the_probabilities_that_were_checked():
    draws = releases(0.3, 40_000)
    grid, _, scale = laplace_grid(0.5, 1.0, -8.0, 8.0)
    assert set(np.unique(draws / grid) % 1) == {0.0}
    assert kstest(draws, laplace(0.3, scale * grid).cdf).pvalue > 1e-3  # the grid is too fine to be seen here
    assert kstest(draws, laplace(0.3, scale * grid / 1.1).cdf).pvalue < 1e-3


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


@pytest.mark.parametrize("sensitivity", [1e-300, 1e300])
def test_extreme_sensitivities_keep_to_integers_that_fit(sensitivity):
    noised, _ = laplace_release(np.array([0.7]), np.array([sensitivity]), 1.0, -1.0, 1.0, np.random.default_rng(0))
    assert abs(noised[0]) <= 1
    if sensitivity < 1e-9:
        assert noised[0] == pytest.approx(0.7, abs=1e-8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epsilon": 1e-12}, "epsilon: expected at least 9e-10"),  # 1025 / 2^40
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"low": 1.0}, "low < high"),
        ({"high": np.inf}, "low < high"),
    ],
)
def test_parameters_without_a_guarantee_are_refused(wrong, said):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=said):
        laplace_grid(**{"sensitivity": 1.0, "epsilon": 1.0, "low": 0.0, "high": 1.0, **wrong})
