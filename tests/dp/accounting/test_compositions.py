"""Phases of every kind compose to an upper bound that dp-accounting confirms, in little memory; nothing is raised."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.stats import binom

from safexplain._privacy_loss import (
    MAX_KINDS,
    PrivacyLoss,
    Steps,
    _merged,
    composed,
    epsilon_of,
    epsilons,
    grid_widths,
    one_step,
)
from safexplain._privacy_loss.distributions import CUT_OFF, Losses, Pair, _support, compose
from safexplain.errors import ConfigurationTypeError

NEIGHBORS = {
    "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "substitute": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
MIXED = [Steps(30, 0.001, 10), Steps(1, 0.1, 100)]


def theirs(phases, delta, adjacency, interval=3e-4):
    accountant = PLDAccountant(NEIGHBORS[adjacency], value_discretization_interval=interval)
    for p in phases:
        gaussian = dp_accounting.GaussianDpEvent(p.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(p.sample_rate, gaussian), p.steps)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    ("phases", "adjacency"),
    [
        (MIXED, "substitute"),
        ([Steps(4.0, 0.3, 6), Steps(7.9, 1e-4, 144), Steps(1.9, 0.2, 4)], "substitute"),
        ([Steps(2.0, 0.02, 200), Steps(20.0, 1.0, 9), Steps(20.0, 1.0, 5)], "substitute"),
        ([Steps(3.0 + i / 4, 0.05, 3) for i in range(5)], "add_remove"),
    ],
    ids=["mixed", "three", "full batches", "many"],
)
def test_a_composition_is_what_dp_accounting_says(phases, adjacency):
    """Both are upper bounds, theirs on a grid of 3e-4 for every step."""
    found, expected = composed(phases, 1e-5).of(adjacency), theirs(phases, 1e-5, adjacency)
    assert expected - 1e-3 <= found <= expected * (1 + 1e-3) + 2e-4


def test_very_many_different_phases_count_as_the_worst_of_similar_ones():
    many = [Steps(10 + i / 100, 0.1, 1) for i in range(5 * MAX_KINDS)]
    few = [Steps(10 + i / 100, 0.1, 5) for i in range(2, 5 * MAX_KINDS, 5)]  # each in the middle of five
    assert composed(few, 1e-5).substitute <= composed(many, 1e-5).substitute <= composed(few, 1e-5).substitute * 1.05
    assert [len(_merged(many[:n])) for n in (32, 33, 160)] == [32, 22, 30]
    assert _merged(many)[:2] == [(many[0], 5), (many[5], 1)]
    assert composed(many, 1e-5).substitute == pytest.approx(0.8677498705771712, rel=1e-7)


@pytest.mark.parametrize(
    ("phases", "adjacency", "expected"),
    [
        (MIXED, "add_remove", 7.046788649814793),
        (MIXED, "substitute", 10.516544997777089),
        ([Steps(3.0, 0.1, 5), Steps(4.0, 0.1, 7, "fixed-size"), Steps(9.0, 1.0, 3)], "substitute", 1.7530691655849595),
        ([Steps(3.0, 0.1, 5), Steps(4.0, 0.1, 7, "fixed-size")], "zero_out", 0.7584685350315512),
        ([Steps(100.0, 1e-5, 10**6), Steps(0.5, 0.5, 2)], "substitute", 14.53940530610688),
    ],
)
def test_compositions_stay_as_recorded(phases, adjacency, expected):
    assert epsilon_of(phases, 1e-5, adjacency) == pytest.approx(expected, rel=1e-7)


def losses_of(noise=0.8, q=0.25, width=1e-3):
    return one_step(Steps(noise, q, 1), "substitute", width).directions[0]


def test_connecting_the_dots_is_exact_on_the_grid_and_above_between():
    losses = losses_of(width=0.05)
    fine = losses_of(width=1e-4)
    grid, between = np.arange(0, 3, 0.05), np.arange(0.025, 3, 0.05)
    assert losses.delta(grid) == pytest.approx(fine.delta(grid), abs=1e-9)
    assert (losses.delta(between) >= fine.delta(between) - 1e-9).all()
    assert losses.mass.sum() + losses.infinite == pytest.approx(1)
    assert losses.mass @ np.exp(-losses.values) == pytest.approx(1)  # the probabilities under Q


def test_a_coarser_grid_never_lowers_delta():
    fine = compose([(losses_of(), 5)])
    epsilon = np.linspace(0, 8, 1000)
    for width in (0.0037, 0.05, 0.5):
        coarse = fine.coarser(width)
        assert coarse.width == width
        assert (coarse.delta(epsilon) >= fine.delta(epsilon) - 1e-14).all()
        assert coarse.delta(0.0) < fine.delta(0.0) + width
        assert coarse.mass @ np.exp(-coarse.values) == pytest.approx(fine.mass @ np.exp(-fine.values))


def test_composition_is_convolution():
    one, other = losses_of(0.8, 0.25, 0.01), losses_of(1.5, 0.5, 0.01)
    found = compose([(one, 2), (other, 1)])
    slow = np.convolve(np.convolve(one.mass, one.mass), other.mass)
    start = found.first - (2 * one.first + other.first)
    lower, upper = max(start, 0), min(start + len(found.mass), len(slow))
    assert found.mass[lower - start : upper - start] == pytest.approx(slow[lower:upper], abs=1e-14)
    assert slow[upper:].sum() < 1e-14


def test_too_long_a_composition_goes_to_a_coarser_grid():
    """Of 19,005 cells for one step and 109,437 for fifty; 1.05 times as wide as needed, or twice."""
    one = losses_of(1.0, 0.5, 1e-3)
    whole, below = compose([(one, 50)], 109_437), np.linspace(0, 60, 300)
    assert (whole.width, len(whole.mass)) == (1e-3, 109_437)
    assert whole.first == pytest.approx(-33_602, abs=1)  # rounding decides at which end a cell is added
    for cells, coarser in ((109_436, 2.0), (20_000, 1.05 * 109_437 / 20_000), (2_500, 1.05 * 109_437 / 2_500)):
        found = compose([(one, 50)], cells)
        assert found.width == pytest.approx(1e-3 * coarser, rel=1e-12)
        assert (found.delta(below) >= whole.delta(below) - 1e-13).all()
        assert len(found.mass) <= cells


def test_a_response_that_is_true_three_times_in_four_has_two_losses():
    """log 3 with probability 3/4, and -log 3 with 1/4; in between H(e) = 3/4 - e^e / 4."""
    three = math.log(3)

    def profile(e):
        return np.maximum(0.75 - np.exp(e) / 4, np.maximum(0, 1 - np.exp(e)))

    made = Losses.of_profile(profile, -three, three, three)
    assert (made.first, made.infinite) == (-2, 0)
    assert made.mass == pytest.approx([0, 0.25, 0, 0.75, 0], abs=1e-15)
    assert made.coarser(three) is made
    far = Losses.of_profile(profile, -1000, 1000, 1.0)
    assert (far.first, len(far.mass)) == (-521, 1043)  # losses of up to 520
    assert made.moments == pytest.approx((three / 2, three * math.sqrt(3) / 2))
    assert made.delta([-three, 0.0, three]) == pytest.approx([1 - 1 / 3, 0.5, 0.0])
    assert made.epsilon(0.25) == pytest.approx(math.log(2))  # 3/4 - e^e / 4 = 1/4
    twice = compose([(made, 2)])
    assert twice.delta(0.0) == pytest.approx(9 / 16 - 1 / 16)
    assert twice.epsilon(0.1) == pytest.approx(math.log(9 * (1 - 0.1 * 16 / 9)))  # 9/16 - e^e / 16 = .1


def test_infinite_losses_add_up_and_a_coarser_grid_splits_a_loss_in_two():
    often, seldom = Losses(1.0, 0, np.array([0.9]), 0.1), Losses(1.0, 1, np.array([0.8]), 0.2)
    both = compose([(often, 2), (seldom, 1)])
    assert both.infinite == pytest.approx(1 - 0.9**2 * 0.8, abs=1e-14)
    assert (both.first, both.mass[0]) == (1, pytest.approx(0.9**2 * 0.8))
    assert compose([(Losses(1.0, 0, np.array([1.0]), 0.0), 2)]).infinite == 2 * 1e-15  # that was cut off
    assert compose([(Losses(1.0, 0, np.array([0.0]), 1.0), 2)]).infinite == pytest.approx(1)
    split = Losses(1.0, 0, np.array([0.0, 1.0]), 0.0).coarser(2.0)
    up = (1 - math.exp(-1)) / (1 - math.exp(-2))  # so that E exp(-loss) stays exp(-1)
    assert split.mass == pytest.approx([1 - up, up])
    assert split.values.tolist() == [0.0, 2.0]


def test_ends_of_a_composition_leave_out_next_to_nothing_and_little_more():
    """A hundred steps of plus or minus one: a binomial distribution; and three with one loss of 10 in 1e8."""
    coin = Losses(1.0, -1, np.array([0.5, 0.0, 0.5]), 0.0)
    low, high = _support([(coin, 100)])
    assert low == -high == pytest.approx(-79.81682772500223, rel=1e-9)
    assert binom.sf((high + 100) / 2, 100, 0.5) <= CUT_OFF / 2 < binom.sf((0.95 * high + 100) / 2, 100, 0.5) * 5
    rare = Losses(0.01, 0, np.append(1 - 1e-8, np.append(np.zeros(999), 1e-8)), 0.0)
    assert _support([(rare, 3)]) == (0.0, pytest.approx(23.73432973485737, rel=1e-9))  # 3e-16 lies at 20 and above
    assert _support([(coin, 3), (Losses(1.0, 2, np.array([1.0]), 0.0), 2)]) == (1.0, 7.0)


def test_losses_of_hundreds_are_read_as_small_ones_are():
    """Of 450 and 451, each half of the time: delta(e) is 1/2 (1 - exp(e - 451)) above 450, and with both below.

    An epsilon of more than 500 is infinite.
    """
    far = Losses(1.0, 450, np.array([0.5, 0.5]), 0.0)
    assert far.delta(450.2) == pytest.approx(0.5 * (1 - math.exp(-0.8)))
    assert far.epsilon(0.5 * (1 - math.exp(-0.8))) == pytest.approx(450.2)
    assert far.epsilon(0.4) == pytest.approx(450 + math.log(0.6 / (0.5 + 0.5 * math.exp(-1))))
    ends = [Losses(1.0, first, np.array([0.5, 0.5]), 0.0).epsilon(0.3) for first in (500, 501)]
    assert ends == [pytest.approx(501 + math.log(0.4)), math.inf]


@pytest.mark.parametrize("order", [0.5, -0.5])
def test_a_bound_on_moments_is_hardly_above_them(order):
    short = Losses(0.5, -1, np.array([0.25, 0.75]), 0.0)  # losses of -.5 and 0
    assert short.log_moment(order) == pytest.approx(math.log(0.25 * math.exp(-order / 2) + 0.75))
    for cells in (4096, 4097):  # above 4096, blocks of 16 count as their worst
        long = Losses(1e-3, -3000, np.full(cells, 1 / cells), 0.0)
        worst = np.arange(cells) // 16 * 16 + (15 if order > 0 else 0)
        values = long.values if cells == 4096 else (worst - 3000) * 1e-3
        assert long.log_moment(order) == pytest.approx(math.log(np.exp(order * values).mean()), abs=1e-12)


GRIDS = [
    ([(30, 1e-3, 1, "poisson", 10), (1, 0.1, 1, "poisson", 100)], *[0.0026497608997392698] * 3),
    (
        [(100, 1e-5, 1, "poisson", 10**6), (0.5, 0.5, 1, "poisson", 2), (2, 0.1, 1, "fixed-size", 1)],
        0.014948517091882793, 0.002801467669786773, 0.010570197804353332, 0.014948517091882793,
    ),
    (
        [(50, 1e-4, 1, "poisson", 10**8), (1000, 0.5, 1, "poisson", 10**7)],
        0.015400968985119301, 1.54009689851193e-06, 3.015783551307092e-05,
    ),
    (
        [(5, 1e-6, 1, "poisson", 10**7), (0.2, 0.5, 1, "poisson", 100), (3, 0.1, 1, "poisson", 1000)],
        0.7780870887516927, 0.37996363934979416, 0.07780870887516927, 0.02460527418424929,
    ),
]  # fmt: skip
"""(noise multiplier, sample rate, 1, sampling, number) of kinds of steps; widths for the total and for each kind."""


def test_grids_are_as_wide_as_the_error_that_is_allowed():
    """A hundred full batches at noise 1: sd 10, mean 50 + 4 sd = 90; 2 sd error (90 / 10) is spread over the 100."""
    width = math.sqrt(2 * 10 * 3e-4 * 9 / 100)
    common, own = grid_widths([(Steps(1, 1, 1, "full-batch"), 100)], 3e-4)
    assert [common, *own] == pytest.approx([width, width])
    for kinds, *expected in GRIDS:
        common, own = grid_widths([(Steps(*step), n) for *step, n in kinds], 3e-4)
        assert [common, *own] == pytest.approx(expected, rel=1e-9)
    for (noise, q, steps), error, expected in (  # the widest that is useful, and the finest for which there is memory
        ((4.0, 0.1, 1), 0.1, 0.01269555031588976),
        ((1.0, 0.5, 4), 0.5, 0.10479116285219377),
        ((4.0, 0.01, 100), 0.5, 0.005087192361792237),
        ((1.0, 0.5, 1000000000), 0.0003, 0.39251905755090455),
        ((1.0, 0.5, 10**11), 0.0003, 20 * math.sqrt(1e11) * Pair(1.0, 0.5).moments[1] / 2**20),
        ((0.1, 0.5, 1), 1e-12, 0.0010654710877206423),
    ):
        assert grid_widths([(Steps(noise, q, 1), steps)], error)[0] == pytest.approx(expected, rel=1e-9)


def test_epsilon_and_delta_are_inverse():
    losses = compose([(losses_of(), 5)])
    for delta in (0.3, 1e-2, 1e-5, 1e-9):
        assert losses.delta(losses.epsilon(delta)) == pytest.approx(delta, rel=1e-6)
    assert losses.epsilon(0.999) == 0
    assert losses.epsilon(losses.infinite) == math.inf
    above = Losses(0.1, 5, np.array([1.0]), 0.0)
    assert above.epsilon(1e-9) == pytest.approx(0.5)
    assert above.epsilon(0.9) == 0


@pytest.mark.parametrize("values", [(0.02, 1e-3, 10, 1e-3), (5e-324, 1.0, 1, 1e-5), (1e-6, 1e-3, 10**12, 1e-5)])
def test_next_to_no_noise_guarantees_nothing(values):
    assert epsilons(*values).substitute == math.inf


def test_an_epsilon_above_500_guarantees_nothing(monkeypatch):
    for epsilon, expected in ((500.0, 500.0), (math.nextafter(500.0, 501.0), math.inf)):
        monkeypatch.setattr(PrivacyLoss, "epsilon", lambda self, delta, e=epsilon: e)
        assert epsilon_of([Steps(2.0, 0.3, 1)], 1e-5, "add_remove") == expected


@pytest.mark.parametrize("values", [(1e300, 0.5, 100, 1e-12), (1.0, 5e-324, 10, 1e-12)])
def test_next_to_no_loss_is_zero(values):
    assert epsilons(*values).substitute == 0
    assert epsilon_of([Steps(2.0, 0.3, 1)], Pair(2.0, 0.3).total_variation("add_remove"), "add_remove") == 0.0


def test_noise_whose_square_is_no_number_hides_everything():
    noise = 1e308
    assert epsilons(noise, 1.0, 10, 1e-5, sampling="full-batch").substitute == 0
    alone = composed([Steps(2.0, 0.5, 10)], 1e-5)
    beside = composed([Steps(2.0, 0.5, 10), Steps(noise, 1.0, 10)], 1e-5)
    assert beside.substitute == pytest.approx(alone.substitute, abs=1e-3)


def test_phases_are_steps():
    with pytest.raises(ConfigurationTypeError, match=r"expected a list of Steps"):
        composed([1], 1e-5)


@pytest.mark.parametrize(
    ("noise", "q", "delta"),
    [(0.4687, 3.087e-5, 1e-6), (5.0, 1e-9, 1e-12), (1e4, 0.3, 1e-7), (0.1, 1e-6, 1e-8), (50.0, 0.9, 1e-3)],
)
def test_one_step_at_the_ends_of_the_range_is_exact(noise, q, delta):
    """Against the closed forms of both pairs with 60 digits: never below, and within a few thousandths."""
    mpmath = pytest.importorskip("mpmath")
    found = epsilons(noise, q, 1, delta)
    with mpmath.workdps(60):

        def substituted(epsilon):
            s, p, e = mpmath.mpf(noise), mpmath.mpf(q), mpmath.mpf(epsilon)
            grown = (1 - p) / p * mpmath.e ** (e / 2 + 1 / (2 * s * s)) * (1 - mpmath.e ** (-e)) / 2
            cut = (e / 2 + mpmath.asinh(grown)) * s
            phi, a = mpmath.ncdf, mpmath.e**e
            return (1 - p) * (1 - a) * phi(-cut) + p * (phi(1 / s - cut) - a * phi(-1 / s - cut))

        assert substituted(found.substitute) <= delta * (1 + 1e-6)
        assert substituted(found.substitute * 0.99 - 1e-12) >= delta * (1 - 1e-6)
