"""Trade-off curves of the sampled Gaussian mechanism: against exact ones, brute force and simulation; never above."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.special import ndtr

from safexplain._privacy_loss import ERROR, Steps, privacy_loss
from safexplain.errors import ConfigurationError
from safexplain.verdict.stats.lower_bounds import (
    Family,
    gaussian_distance,
    gaussian_epsilon,
    smallest_refuted,
    trade_off,
)

DELTA = 1e-5
RATES = np.array([1e-6, 1e-4, 0.01, 0.1, 0.2, 0.4, 0.7, 0.95])
MANY = [(0.25, 500, 5.57), (0.0625, 100, 0.7), (0.9, 3, 0.68)]
FEW = [(0.25, 0.5), (0.01, 0.3), (0.9, 0.72), (0.5, 4.0)]


def error_rates(q, noise, thresholds):
    """Exact false-positive and false-negative rates of one step, of the best tests there are."""
    fpr = (1 - q) * ndtr(-thresholds / noise) + q * ndtr(-(thresholds + 1) / noise)
    return fpr, (1 - q) * ndtr(thresholds / noise) + q * ndtr((thresholds - 1) / noise)


def refined(q, steps, noise, finer):
    """The accountant's losses on a finer grid."""
    return privacy_loss([Steps(noise, q, steps)], "substitute", error=ERROR / finer**2)


@pytest.mark.parametrize(("q", "noise"), FEW)
def test_the_curve_of_one_step_is_that_of_the_best_tests_seen_from_below(q, noise):
    fpr, fnr = error_rates(q, noise, np.linspace(-1 - 4 * noise, 1 + 4 * noise, 101))
    found = trade_off(Steps(noise, q, 1), DELTA)(fpr)
    assert (found <= fnr + 1e-12).all()
    assert (found >= 0.98 * fnr - 1e-9).all()


@pytest.mark.parametrize(("q", "steps", "noise"), MANY)
def test_the_curve_of_many_steps_is_the_supremum_over_all_orders(q, steps, noise):
    loss = refined(q, steps, noise, finer=1)
    orders = np.linspace(0, loss.epsilon(1e-12), 10_000)
    profile = loss.delta(orders)
    brute = [
        max(0, (1 - profile - np.exp(orders) * a).max(), (np.exp(-orders) * (1 - profile - a)).max()) for a in RATES
    ]
    found = trade_off(Steps(noise, q, steps), DELTA)(RATES)
    assert (found <= np.array(brute) + 1e-12).all()
    assert found == pytest.approx(brute, rel=0.01, abs=1e-9)


@pytest.mark.parametrize(("steps", "least"), [(500, 1e-11), (10_000, 5e-11)])
def test_a_curve_reaches_to_the_epsilon_of_a_delta_that_rounding_leaves(steps, least):
    """1e-11, or ten times a rounding of 5e-16 for each step."""
    curve, loss = trade_off(Steps(20.0, 0.05, steps), DELTA), refined(0.05, steps, 20.0, finer=1 / 3)
    assert math.log(curve.slopes[0]) == pytest.approx(loss.epsilon(least))


def test_full_batches_are_one_gaussian():
    curve = trade_off(Steps(22.3557, 1.0, 500), DELTA)
    mu = 2 * math.sqrt(500) / 22.3557
    assert curve.epsilon == pytest.approx(get_epsilon_gaussian(1 / mu, DELTA)) == pytest.approx(10.0, abs=1e-3)
    assert curve(RATES) == pytest.approx(ndtr(gaussian_distance(RATES, 0.5) - mu))
    assert gaussian_distance(RATES, curve(RATES)) == pytest.approx(mu)
    assert gaussian_epsilon(-1.0, DELTA) == gaussian_epsilon(0.0, DELTA) == 0


@pytest.mark.parametrize(("q", "steps", "noise"), [*MANY[:2], (0.25, 500, 400.0), (0.01, 1000, 0.8)])
def test_the_epsilon_of_a_curve_is_just_below_the_converged_one(q, steps, noise):
    fine, finer = (refined(q, steps, noise, finer).epsilon(DELTA) for finer in (2, 4))
    converged = finer - (fine - finer) / 3
    assert 0.9975 * converged < trade_off(Steps(noise, q, steps), DELTA).epsilon < converged


@pytest.mark.parametrize(("q", "steps"), [(0.25, 40), (0.01, 1), (1.0, 5000)])
def test_the_bisection_finds_the_smallest_noise_that_is_refuted(q, steps):
    for limit in (0.3, 30.0, 120.0):
        epsilon, curve = smallest_refuted(Family(q, steps), DELTA, lambda curve, limit=limit: curve.epsilon < limit)
        assert 0.995 * limit < epsilon < limit
        assert curve.epsilon == epsilon


def test_errors_that_refute_nothing_and_errors_that_refute_all_noise():
    assert smallest_refuted(Family(0.25, 10), DELTA, lambda curve: False) == (0, None)
    assert smallest_refuted(Family(0.25, 1), DELTA, lambda curve: True)[0] == math.inf


def test_a_family_is_of_mechanisms_that_there_are():
    assert Family().sampling == "full-batch"
    assert Family(0.5).sampling == "poisson"
    for wrong in ({"sample_rate": 0.0}, {"sample_rate": 1.5}, {"steps": 0}, {"steps": -1}, {"sampling": "shuffled"}):
        with pytest.raises(ConfigurationError):
            Family(**wrong)
