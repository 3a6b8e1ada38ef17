"""Renyi curves: what trainings and other releases reveal, added up order by order, and never below the truth."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safexplain._privacy_loss import renyi
from safexplain.dp import Steps, composed
from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError
from safexplain.ledger import Concentrated, Pure, Renyi
from safexplain.ledger.composition import OTHER_ORDERS, loss, losses_allowed, renyi_allowed, renyi_epsilon
from safexplain.ledger.releases import TRAINING_ORDERS

TRAINING = Steps(1.2, 0.02, 300)
CURVE = Renyi.of_steps(TRAINING, "add_remove")


def test_a_curve_is_the_sum_of_its_steps_rounded_up():
    phases = (TRAINING, Steps(3.0, 1.0, 7, "full-batch"))
    exact = [renyi(phase, "substitute", TRAINING_ORDERS) * (1 + 1e-7) + phase.steps * 1e-12 for phase in phases]
    assert Renyi.of_steps(phases, "substitute").divergences == pytest.approx(sum(exact), rel=1e-12, abs=0)


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
    assert all(loss(units) < max(x, 0) for units, x in zip(limits, expected, strict=True) if units >= 0)


def test_a_curve_between_two_orders_is_the_straight_line_of_order_less_one_times_divergence():
    curve = Renyi((2.0, 4.0, 9.0), (0.3, 0.5, 0.6))
    found = curve.divergence(np.array([1.5, 2.0, 3.0, 4.0, 8.0, 9.0]))
    assert found == pytest.approx([0.3, 0.3, (0.3 + 1.5) / 2 / 2, 0.5, (1.5 + (4.8 - 1.5) * 0.8) / 7, 0.6])
    assert curve.divergence(9.5) == math.inf


def test_beyond_its_orders_a_curve_promises_nothing_and_every_accounts_orders_are_in():
    assert CURVE.divergence(np.array([2.0, 1e5]))[1] == math.inf
    assert set(OTHER_ORDERS) <= set(TRAINING_ORDERS)
    assert (len(TRAINING_ORDERS), math.fsum(TRAINING_ORDERS)) == (36, 3223.45), "orders of all recorded trainings"


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
        (Renyi, ((2.0, 2.0), (0.1, 0.2)), "ascending"),
        (Renyi, ((2.0, 3.0), (0.2, 0.1)), "that grow with the order"),
        (Renyi, ((2.0, 3.0), (0.0, 0.1)), "at least 1e-24"),
        (Renyi, ((), ()), "orders: expected a sequence"),
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
