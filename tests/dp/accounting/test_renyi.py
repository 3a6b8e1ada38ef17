"""Renyi curves of the dominating pairs: closed forms, brute force, and the epsilons that they bound."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from safexplain._privacy_loss import renyi
from safexplain._privacy_loss.distributions import Pair
from safexplain.dp import Steps, epsilons
from safexplain.errors import ConfigurationError

ORDERS = np.array([1.05, 1.5, 2.0, 3.7, 8.0, 32.0, 64.0])


def by_quadrature(p, q, order, reach):
    """log int p^order q^(1 - order) / (order - 1), of two log densities."""
    whole = quad(lambda x: math.exp(order * p(x) + (1 - order) * q(x)), -reach, reach, limit=2000, points=[0.0])[0]
    return math.log(whole) / (order - 1)


def log_mixture(q, mean, noise):
    return lambda x: np.logaddexp(math.log1p(-q) + norm.logpdf(x, 0, noise), math.log(q) + norm.logpdf(x, mean, noise))


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute", "zero_out"])
def test_nearly_full_batches_have_the_closed_form(adjacency):
    exact = renyi(Steps(3.0, 1.0, 7, "full-batch"), adjacency, ORDERS)
    distance = (2 if adjacency == "substitute" else 1) / 3.0
    assert exact == pytest.approx(7 * ORDERS * distance**2 / 2)
    assert renyi(Steps(3.0, 1 - 1e-12, 7), adjacency, ORDERS) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("q", "noise", "order"), [(0.25, 1.0, 6.0), (0.01, 0.7, 2.0), (0.6, 4.0, 1.5)])
def test_substitution_is_the_integral_of_its_two_mixtures(q, noise, order):
    p, r = log_mixture(q, 1, noise), log_mixture(q, -1, noise)
    expected = by_quadrature(p, r, order, 2 * order + 12 * noise)
    assert renyi(Steps(noise, q, 10), "substitute", [order])[0] == pytest.approx(10 * expected, rel=1e-6)


def test_at_whole_orders_adding_and_removing_is_a_binomial_sum():
    """sum over k of C(a, k) (1 - q)^(a - k) q^k exp(k (k - 1) / (2 sigma^2)); small moments keep all their digits."""
    for noise, q in ((5.0, 1e-3), (0.8, 0.3), (0.5, 0.01)):
        for order in (2, 3, 7):
            parts = [
                math.comb(order, k) * (1 - q) ** (order - k) * q**k * math.expm1(k * (k - 1) / 2 / noise**2)
                for k in range(order + 1)
            ]
            exact = math.log1p(sum(parts)) / (order - 1)
            for adjacency in ("add_remove", "zero_out"):
                assert renyi(Steps(noise, q, 4), adjacency, [order])[0] == pytest.approx(4 * exact, rel=1e-8)


def test_orders_that_are_too_far_out_have_the_bound_of_a_batch_without_sampling():
    """order * distance^2 / 2, at a distance of 1 / noise or twice that."""
    for sampling, adjacency, factor in (
        ("poisson", "substitute", 4),
        ("poisson", "add_remove", 1),
        ("fixed-size", "substitute", 4),
    ):
        found = renyi(Steps(1e-3, 0.5, 3, sampling), adjacency, [200.0])
        assert found == pytest.approx([3 * 200 * factor * 1e6 / 2])
    near = renyi(Steps(1.0, 0.5, 1), "add_remove", [999.75, 1000.0, 1000.25])  # 2 order distance of up to 2000
    assert near == pytest.approx(
        [(999.75 - 2 * math.log(2) * 999.75 / 998.75) / 2, (1000 - 2 * math.log(2) * 1000 / 999) / 2, 1000.25 / 2],
        rel=1e-9,
    )


@pytest.mark.parametrize(
    ("sampling", "noise", "q", "steps"), [("poisson", 1.0, 0.02, 500), ("fixed-size", 4.0, 0.1, 20)]
)
def test_the_epsilon_that_follows_is_above_the_exact_one_and_not_by_much(sampling, noise, q, steps):
    """By Canonne, Kamath and Steinke (2020), arXiv 2004.00010, Proposition 12."""
    orders = np.geomspace(1.02, 100, 40)
    exact = epsilons(noise, q, steps, 1e-5, sampling=sampling)
    for adjacency in ("add_remove", "substitute", "zero_out"):
        curve = renyi(Steps(noise, q, steps, sampling), adjacency, orders)
        assert (np.diff(curve) >= -1e-9).all()
        implied = curve + np.log1p(-1 / orders) - np.log(1e-5 * orders) / (orders - 1)
        assert exact.of(adjacency) <= implied.min() <= 1.35 * exact.of(adjacency) + 0.05


@pytest.mark.parametrize(("q", "noise", "order"), [(0.25, 1.0, 2.0), (0.1, 2.0, 3.0), (0.5, 0.9, 1.3)])
def test_a_fixed_size_is_worst_in_both_directions_at_once(q, noise, order):
    """Against the integral of the profile that the accountant composes, over all orders of the divergence."""
    pair = Pair(noise, q, "fixed-size")
    e = np.linspace(0, 60, 600_001)
    profile = pair.substitution(e)
    weights = (np.exp((order - 1) * e) + np.exp(-order * e)) * np.where(profile > 1e-13, profile, 0)
    moment = 1 + order * (order - 1) * float((weights[1:] + weights[:-1]).sum() / 2 * (e[1] - e[0]))
    assert pair.renyi(order, "substitute") == pytest.approx(math.log(moment) / (order - 1), rel=2e-4)


def test_curves_of_a_fixed_size_stay_as_recorded():
    added, replaced, emptied = (
        renyi(Steps(1.0, 0.25, 3, "fixed-size"), adjacency, [1.3, 2, 20])
        for adjacency in ("add_remove", "substitute", "zero_out")
    )
    assert added == pytest.approx([1.2438601507121385, 4.410447794291369, 115.6222283333056], rel=1e-8)
    assert replaced == pytest.approx([1.4558421911379968, 4.4684216631655875, 120.0], rel=1e-8)
    assert (replaced == emptied).all()


def test_without_noise_nothing_holds_and_without_steps_nothing_is_spent():
    assert np.isinf([renyi(Steps(noise, 0.5, 3), "substitute", [2.0]) for noise in (0.0, 0.99e-8)]).all()
    assert renyi(Steps(1e-8, 0.5, 3), "substitute", [2.0]) == pytest.approx([3 * 2 * 4e16 / 2])
    assert (renyi(Steps(1.0, 0.5, 0), "substitute", [2.0]) == 0).all()
    assert np.isfinite(renyi(Steps(1e-3, 0.5, 3), "substitute", [1.1, 200.0])).all()


def test_orders_are_above_one():
    for order in (1.0, 0.5, math.inf):
        with pytest.raises(ConfigurationError, match="orders"):
            renyi(Steps(1.0, 0.5, 3), "substitute", [2.0, order])
