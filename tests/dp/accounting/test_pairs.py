"""The pair that dominates a step and its Renyi curve, against brute force: no gradients tell more than it."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from safexplain._privacy_loss import renyi
from safexplain._privacy_loss.distributions import Pair
from safexplain.dp import Steps, epsilons
from safexplain.errors import ConfigurationError

ORDERS = np.concatenate([-np.geomspace(4, 1e-3, 12), [0.0], np.geomspace(1e-3, 6, 14)])


def hockey_stick(p, q, cell, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell


@pytest.mark.parametrize(("q", "noise"), [(0.25, 0.8), (0.01, 0.6), (0.9, 5.0)])
def test_each_divergence_is_that_of_its_two_mixtures(q, noise):
    """Against sums of densities over a fine line of outputs."""
    x, cell = np.linspace(-1 - 12 * noise, 1 + 12 * noise, 400_001, retstep=True)
    up, none, down = ((1 - q) * norm.pdf(x, 0, noise) + q * norm.pdf(x, side, noise) for side in (1, 0, -1))
    pair = Pair(noise, q)
    for found, p, r in ((pair.removal, up, none), (pair.addition, none, up), (pair.substitution, up, down)):
        expected = [hockey_stick(p, r, cell, epsilon) for epsilon in ORDERS]
        assert found(ORDERS) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("q", "noise"), [(0.25, 0.8), (0.8, 0.7)])
def test_no_gradients_tell_more_of_a_poisson_batch_than_the_pair(q, noise):
    """Random gradients in the plane, each of norm at most C."""
    rng, pair, orders = np.random.default_rng(0), Pair(noise, q), np.array([-1.5, -0.3, 0.0, 0.2, 1.0, 2.5])
    line, step = np.linspace(-1 - 7 * noise, 1 + 7 * noise, 301, retstep=True)
    x = np.stack(np.meshgrid(line, line), axis=-1)

    def density(length, angle):
        gradient = length * np.array([math.cos(angle), math.sin(angle)])
        there, absent = (np.exp(-((x - g) ** 2).sum(-1) / (2 * noise**2)) for g in (gradient, 0.0))
        return (q * there + (1 - q) * absent) / (2 * math.pi * noise**2)

    nothing = density(0.0, 0.0)
    for i in range(9):
        one, other = (density(rng.uniform() ** (0.2 * (i % 3)), rng.uniform(0, 2 * math.pi)) for _ in range(2))
        for p, r, bound in (
            (one, other, pair.substitution), (one, nothing, pair.removal), (nothing, one, pair.addition),
        ):  # fmt: skip
            assert ([hockey_stick(p, r, step * step, e) for e in orders] <= bound(orders) + 1e-6).all()


@pytest.mark.parametrize(("records", "size"), [(4, 2), (3, 2)])
def test_no_gradients_tell_more_of_a_batch_of_fixed_size_than_its_bound(records, size):
    """All subsets of a small data set; random gradients in the plane of the record, before and after, and of others.

    The bound is attained, up to the error of sums over a grid.
    """
    rng = np.random.default_rng(records)
    line, step = np.linspace(-size - 6, size + 6, 241, retstep=True)
    x = np.stack(np.meshgrid(line, line), axis=-1)
    orders = np.array([-2.0, -0.5, 0.0, 0.3, 1.0, 2.0, 4.0])

    def density(gradients, batch):
        sums = [gradients[list(chosen)].sum(0) for chosen in itertools.combinations(range(len(gradients)), batch)]
        distances = [((x - total) ** 2).sum(-1) for total in sums]
        return sum(np.exp(-d / 2) for d in distances) / (2 * math.pi * len(sums))

    def ball(n, i):
        angle = rng.choice([0.0, math.pi], n) if i % 2 else rng.uniform(0, 2 * math.pi, n)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    pair = Pair(1.0, size / records, "fixed-size")
    for i in range(8):
        others = ball(records - 1, i)
        one, two = (density(np.concatenate([ball(1, i), others]), size) for _ in range(2))
        if i == 1:  # opposite to each other, and to all others
            others = np.tile([1.0, 0.0], (records - 1, 1))
            one, two = (density(np.concatenate([[[s, 0.0]], others]), size) for s in (1.0, -1.0))
        assert ([hockey_stick(one, two, step * step, e) for e in orders] <= pair.substitution(orders) + 1e-4).all()
        without = density(others, size)
        removed = [hockey_stick(one, without, step * step, e) for e in orders]
        added = [hockey_stick(without, one, step * step, e) for e in orders]
        assert (removed <= pair.removal(orders) + 1e-4).all()
        assert (added <= pair.addition(orders) + 1e-4).all()


@pytest.mark.parametrize(
    ("q", "noise", "sampling", "size"),
    [
        (0.25, 0.8, "poisson", 0.27911178125790614),
        (0.01, 3.0, "fixed-size", 0.005237342617919423),
        (1.0, 2.0, "full-batch", 0.41140463420530027),
    ],
)
def test_moments_of_the_loss_are_its_integrals(q, noise, sampling, size):
    """The mean absolute loss, to which the kink makes the sum converge slowly, stays as recorded."""
    pair = Pair(noise, q, sampling)
    x, cell = np.linspace(-12, 12 + pair.distance, 200_001, retstep=True)
    density, loss = (1 - q) * norm.pdf(x) + q * norm.pdf(x, pair.distance), pair.loss(x)
    mean = (density * loss).sum() * cell
    exact = [mean, math.sqrt((density * (loss - mean) ** 2).sum() * cell), (density * np.abs(loss)).sum() * cell]
    assert size == pytest.approx(exact[2], rel=1e-3)
    assert pair.moments == pytest.approx([*exact[:2], size], rel=1e-6)
    assert pair.distance == (2 if sampling == "fixed-size" else 1) / noise


def test_total_variations_are_those_of_the_closed_form():
    """Of two mixtures that share all but q: q times that of two Gaussians, 2 Phi(distance / 2) - 1."""
    one, two = 2 * norm.cdf(0.25) - 1, 2 * norm.cdf(0.5) - 1  # at distances of .5 and 1
    poisson, fixed = Pair(2.0, 0.3), Pair(2.0, 0.3, "fixed-size")
    assert poisson.total_variation("add_remove") == poisson.total_variation("zero_out") == pytest.approx(0.3 * one)
    assert poisson.total_variation("substitute") == pytest.approx(0.3 * two)
    assert fixed.total_variation("substitute") == fixed.total_variation("add_remove") == pytest.approx(0.3 * two)


def test_losses_lie_between_those_of_nine_standard_deviations():
    """log(.75 + .25 exp(d x - d^2 / 2)) at d = 2 and x = 11, -11 and -9."""
    pair = Pair(0.5, 0.25)
    up, down, smallest = (math.log(0.75 + 0.25 * math.exp(2 * x - 2)) for x in (11, -11, -9))
    assert pair.largest == pytest.approx((up, up - down), rel=1e-12)
    assert pair.smallest == pytest.approx(smallest, rel=1e-12)
    assert pair.least == pytest.approx(math.log(0.75))
    fixed = Pair(1.0, 0.25, "fixed-size")
    assert fixed.largest == pytest.approx((up, up), rel=1e-12)
    assert Pair(0.5, 1.0, "fixed-size").largest == pytest.approx((20.0, 44.0))  # d x - d^2 / 2 of full batches


MOMENTS = np.array([1.05, 1.5, 2.0, 3.7, 8.0, 32.0, 64.0])


def by_quadrature(p, q, order, reach):
    """log int p^order q^(1 - order) / (order - 1), of two log densities."""
    whole = quad(lambda x: math.exp(order * p(x) + (1 - order) * q(x)), -reach, reach, limit=2000, points=[0.0])[0]
    return math.log(whole) / (order - 1)


def log_mixture(q, mean, noise):
    return lambda x: np.logaddexp(math.log1p(-q) + norm.logpdf(x, 0, noise), math.log(q) + norm.logpdf(x, mean, noise))


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute", "zero_out"])
def test_nearly_full_batches_have_the_closed_form(adjacency):
    exact = renyi(Steps(3.0, 1.0, 7, "full-batch"), adjacency, MOMENTS)
    distance = (2 if adjacency == "substitute" else 1) / 3.0
    assert exact == pytest.approx(7 * MOMENTS * distance**2 / 2)
    assert renyi(Steps(3.0, 1 - 1e-12, 7), adjacency, MOMENTS) == pytest.approx(exact, rel=1e-6)


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
