"""Renyi curves: what trainings and other releases reveal, added up order by order, and never below the truth."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, get_epsilon_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from safexplain.dp import Steps, composed
from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError
from safexplain.ledger import Approximate, Concentrated, Pure, Renyi
from safexplain.ledger.composition import (
    OTHER_ORDERS,
    Budget,
    Composition,
    charged,
    loss,
    losses_allowed,
    renyi_allowed,
    renyi_epsilon,
)
from safexplain.ledger.releases import TRAINING_ORDERS
from tests.ledger.conftest import gaussian

TRAINING = Steps(1.2, 0.02, 300)
CURVE = Renyi.of_steps(TRAINING, "add_remove")


def accumulated(releases, budget):
    sums = Composition()
    for release in releases:
        sums = sums.add(release, budget)
    return sums


def slow_divergence(sigma, q, order, substitution):
    """By adaptive quadrature of the definition, in the larger direction."""
    d = 1 / sigma

    def log_density(x, shift):
        return np.logaddexp(math.log1p(-q) - x * x / 2 if q < 1 else -math.inf, math.log(q) - (x - shift) ** 2 / 2)

    def divergence(p, r):
        def value(x):
            return math.exp(order * log_density(x, p) - (order - 1) * log_density(x, r))

        whole = quad(value, -45, 45, epsabs=0, epsrel=1e-11, limit=900, points=[0.0, order * p, order * r])[0]
        return math.log(whole / math.sqrt(2 * math.pi)) / (order - 1)

    under = -d if substitution else 0.0
    return max(divergence(d, under), divergence(under, d))


PAIRS = [
    (0.8, 0.003, 1.2, True), (0.8, 0.25, 2.0, False), (0.8, 0.9, 7.0, True), (0.8, 1.0, 1.2, False),
    (2.0, 0.003, 2.0, False), (2.0, 0.25, 7.0, True), (2.0, 0.9, 1.2, False), (2.0, 1.0, 2.0, True),
    (9.0, 0.003, 7.0, False), (9.0, 0.25, 1.2, True), (9.0, 0.9, 2.0, True), (9.0, 1.0, 7.0, False),
]  # fmt: skip
"""Every two values of two parameters come together once."""


@pytest.mark.parametrize(("sigma", "q", "order", "substitution"), PAIRS)
def test_the_divergence_of_a_step_is_that_of_its_dominating_pair(sigma, q, order, substitution):
    step = Steps(sigma, q, 1, "full-batch" if q == 1 else "poisson")
    fast = float(Renyi.of_steps(step, "substitute" if substitution else "add_remove").divergence(order))
    slow = slow_divergence(sigma, q, order, substitution)
    assert slow * (1 - 1e-9) - 1e-12 <= fast <= slow * (1 + 1e-5) + 1e-10


@pytest.mark.parametrize(("sigma", "q"), [(0.6, 0.001), (1.2, 0.1), (20.0, 0.1)])
def test_curves_under_add_remove_are_those_of_dp_accounting(sigma, q):
    orders = [a for a in TRAINING_ORDERS if a >= 1.5 and a == int(a) and a < 200]
    theirs = RdpAccountant(orders)
    theirs.compose(SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), 40))
    curve = Renyi.of_steps(Steps(sigma, q, 40), "add_remove")
    ours = curve.divergence(np.array([a for a in orders if a <= curve.orders[-1]]))
    np.testing.assert_allclose(ours, theirs._rdp[: len(ours)], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("adjacency", "phases"),
    [
        ("add_remove", (TRAINING,)),
        ("substitute", (Steps(6.0, 0.25, 500),)),
        ("substitute", (Steps(3.0, 0.1, 20), Steps(6.0, 0.25, 30))),
    ],
)
def test_a_curve_says_no_less_than_exact_composition_and_little_more(adjacency, phases):
    exact = composed(phases, 1e-6).of(adjacency)
    found = Renyi.of_steps(phases, adjacency).epsilon_at(1e-6)
    assert exact * (1 - 2e-3) <= found <= 1.15 * exact


@given(st.floats(1.001, 900.0), st.floats(0.5, 50.0))
@settings(max_examples=60, deadline=None)
def test_between_its_orders_a_curve_is_never_below_the_truth(order, sigma):
    truth = order / (2 * sigma**2)
    exact = Renyi(TRAINING_ORDERS, tuple(a / (2 * sigma**2) for a in TRAINING_ORDERS))
    found = float(exact.divergence(order))
    assert truth * (1 - 1e-12) <= found <= truth * (1.12 if order >= TRAINING_ORDERS[0] else 50)


def slow_epsilon(divergence, delta):
    """Canonne, Kamath and Steinke 2020, Proposition 12, for every order of a fine grid."""
    return min(
        divergence(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in 1 + np.logspace(-2, 8, 30_000)
    )


@pytest.mark.parametrize(("rho", "delta"), [(0.045, 1e-6), (2.0, 1e-5), (1e-4, 1e-9), (1e-12, 1e-9)])
def test_a_concentrated_release_implies_the_best_epsilon_of_all_orders(rho, delta):
    slow = slow_epsilon(lambda order: order * rho, delta)
    assert slow * (1 - 1e-9) <= Concentrated(rho).epsilon_at(delta) <= slow * (1 + 1e-4)
    by_its_orders = Renyi(TRAINING_ORDERS, tuple(a * rho for a in TRAINING_ORDERS)).epsilon_at(delta)
    assert slow * (1 - 1e-9) <= by_its_orders <= slow * (1.2 if rho > 1e-3 else 30 if rho > 1e-9 else 1e5)


@pytest.mark.parametrize(("order", "epsilon", "delta"), [(1.5, 3.0, 1e-3), (10.0, 1.0, 5e-7), (65.0, 0.5, 1e-9)])
def test_the_divergence_that_is_allowed_implies_just_the_budget(order, epsilon, delta):
    allowed = renyi_allowed(order, epsilon, delta)
    assert slow_epsilon(lambda a: allowed if a >= order else math.inf, delta) <= epsilon + 1e-9
    assert allowed + math.log1p(-1 / order) - math.log(delta * order) / (order - 1) == pytest.approx(epsilon)
    if allowed > 0:
        assert renyi_epsilon(order, allowed, delta) == pytest.approx(epsilon)
    limits = losses_allowed("renyi", order, epsilon, 2 * delta)
    shares = ((order, delta), *((other, delta / 16) for other in OTHER_ORDERS))
    expected = [renyi_allowed(at, epsilon, part) for at, part in shares]
    assert [loss(units) for units in limits if units >= 0] == pytest.approx([x for x in expected if x > 0], rel=1e-8)
    assert [units for units in limits if units < 0] == [-1] * sum(x <= 0 for x in expected)


def test_a_curve_between_two_orders_is_the_straight_line_of_order_less_one_times_divergence():
    curve = Renyi((2.0, 4.0, 9.0), (0.3, 0.5, 0.6))
    found = curve.divergence(np.array([1.5, 2.0, 3.0, 4.0, 8.0, 9.0]))
    assert found == pytest.approx([0.3, 0.3, (0.3 + 1.5) / 2 / 2, 0.5, (1.5 + (4.8 - 1.5) * 0.8) / 7, 0.6])
    assert curve.divergence(9.5) == math.inf


def test_beyond_its_orders_a_curve_promises_nothing_and_every_accounts_orders_are_in():
    assert CURVE.divergence(np.array([2.0, 1e5]))[1] == math.inf
    assert set(OTHER_ORDERS) <= set(TRAINING_ORDERS)
    assert (len(TRAINING_ORDERS), math.fsum(TRAINING_ORDERS)) == (36, 3223.45), "orders of all recorded trainings"


def exact_epsilon(pures, gaussians, delta):
    """Of randomised responses and Gaussians, by privacy loss distributions, rounded down."""
    options = {"value_discretization_interval": 5e-4, "pessimistic_estimate": False}
    losses = [pld.from_gaussian_mechanism(1 / mu, **options).self_compose(k) for mu, k in Counter(gaussians).items()]
    for epsilon, k in Counter(pures).items():
        losses.append(pld.from_randomized_response(2 / (1 + math.exp(epsilon)), 2, **options).self_compose(k))
    whole = losses[0]
    for one in losses[1:]:
        whole = whole.compose(one)
    return whole.get_epsilon_for_delta(delta)


MIXED = {
    "curves": ([], [0.1] * 40),
    "a curve and pure answers": ([0.05] * 60, [0.4]),
    "many of each": ([0.02] * 50, [0.05] * 50),
}


def by_orders(mu):
    return Renyi(TRAINING_ORDERS, tuple(a * mu * mu / 2 for a in TRAINING_ORDERS))


@pytest.mark.parametrize(
    ("mixed", "kind", "pure_first"),
    [
        ("curves", gaussian, False),
        ("curves", by_orders, False),
        ("a curve and pure answers", by_orders, True),
        ("a curve and pure answers", gaussian, False),
        ("many of each", gaussian, True),
        ("many of each", by_orders, False),
    ],
)
def test_what_is_spent_is_never_below_the_truth_and_far_below_a_sum(mixed, kind, pure_first):
    pures, gaussians = MIXED[mixed]
    delta, budget = 1e-5, Budget(8.0, 1e-5)
    curves, answers = [kind(mu) for mu in gaussians], [Pure(e) for e in pures]
    spent = accumulated([*answers, *curves] if pure_first else [*curves, *answers], budget).spent(budget)
    assert spent >= exact_epsilon(pures, gaussians, delta) - 1e-6
    each = delta / len(gaussians)
    basic = sum(pures) + sum(get_epsilon_gaussian(1 / mu, each) for mu in gaussians)
    assert spent < (1.12 if len(gaussians) == 1 else 0.6) * basic


def test_a_thousand_subsampled_trainings_cost_far_less_than_their_pairs():
    budget, small = Budget(8.0, 1e-5), Steps(4.0, 0.01, 50)
    curve = Renyi.of_steps(small, "add_remove")
    sums = accumulated([curve] * 100, budget)
    exact = composed([replace(small, steps=5000)], 1e-5).add_remove
    assert exact <= sums.spent(budget) <= 1.5 * exact
    pairs = 100 * composed([small], 1e-7).add_remove
    assert sums.spent(budget) < 0.5 * pairs


def test_a_training_calibrated_below_the_budget_fits_and_two_do_not():
    budget = Budget(3.0, 1e-5)
    sums = accumulated([CURVE], budget)
    assert sums.rule == "renyi"
    assert sums.within(budget)
    assert CURVE.epsilon_at(1e-5) <= sums.spent(budget) <= 1.25 * CURVE.epsilon_at(1e-5)
    assert not accumulated([CURVE] * 9, budget).within(budget)


def test_approximate_releases_that_came_first_stay_spent_beside_a_curve():
    budget = Budget(6.0, 1e-5)
    sums = accumulated([Approximate(0.5, 1e-6), CURVE], budget)
    assert (sums.rule, sums.prefix_epsilon, sums.prefix_delta) == ("renyi", charged(0.5), charged(1e-6))
    assert sums.spent(budget) > 0.5 + accumulated([CURVE], budget).spent(budget)


def test_gaussian_pure_and_approximate_releases_join_an_account_of_curves():
    budget = Budget(6.0, 1e-5)
    sums = accumulated([CURVE, gaussian(0.1), Pure(0.1), Pure(0.1), Approximate(0.1, 1e-7)], budget)
    assert (sums.rule, sums.charges, sums.unbounded) == ("renyi", 5, 2)
    alone = accumulated([CURVE], budget).spent(budget)
    assert alone < sums.spent(budget) < alone + 1.0


def test_a_ledger_records_curves_verifies_and_refuses_them_all_or_nothing(make, tmp_path):
    ledger = make(epsilon=3.0, delta=1e-5, total_epsilon=10.0, total_delta=1e-5, adjacency="add_remove")
    charge = ledger.charge("team", CURVE, mechanism="DP-SGD")
    ledger.charge("team", Concentrated(1e-4))
    ledger.charge("team", epsilon=0.01)
    assert [c.release for c in ledger.charges("team")] == [CURVE, Concentrated(1e-4), Pure(0.01)]
    assert charge.release == CURVE
    spent = ledger.spent("team")
    with pytest.raises(BudgetExhausted, match="exceeds the budget"):
        ledger.charge("team", Renyi.of_steps(Steps(0.7, 0.1, 900), "add_remove"))
    assert ledger.spent("team") == spent
    assert ledger.verify() == 3
    ledger.export(tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert (rows[0]["kind"], rows[1]["rho"], "rho" in rows[2]) == ("renyi", 1e-4, False)
    assert rows[0]["adjacency"] == "add_remove"


@pytest.mark.parametrize(
    ("make", "arguments", "says"),
    [
        (Renyi, ((2.0,), (1.0, 2.0)), "one for each of 1 orders, got 2"),
        (Renyi, ((1.0, 2.0), (0.1, 0.2)), "orders: expected numbers above 1"),
        (Renyi, ((3.0, 2.0), (0.1, 0.2)), "ascending"),
        (Renyi, ((2.0, math.inf), (0.1, 0.1)), "orders must be finite"),
        (Renyi, ((2.0, 3.0), (0.2, 0.1)), "that grow with the order"),
        (Renyi, ((2.0, 3.0), (0.0, 0.1)), "at least 1e-24"),
        (Renyi, ((), ()), "orders: expected a sequence"),
        (Renyi, ("2", "3"), "orders: expected a sequence"),
        (Concentrated, (0.0,), "rho must be at least"),
        (Concentrated, (1.0, 0.0), "delta must be greater than 0"),
        (Concentrated, (1.0, 1e-9, "both"), "adjacency: expected one of"),
        (Renyi.of_steps, (Steps(0.0, 0.1, 5),), "phases: expected steps with noise"),
        (Renyi.of_steps, (Steps(1.0, 0.1, 0),), "at least one step"),
    ],
)
def test_what_is_no_curve_is_refused(make, arguments, says):
    with pytest.raises((ConfigurationError, ConfigurationTypeError), match=says):
        make(*arguments)
