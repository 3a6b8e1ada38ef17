from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError
from safexplain.ledger import Approximate, Laplace, Ledger, Pure
from safexplain.ledger.composition import AMOUNT, NEVER, ORDERS, budgeted, charged, charged_loss, renyi
from safexplain.ledger.releases import as_release, from_json, to_json
from tests.ledger.conftest import gaussian

EVERY = (Pure(0.1), Approximate(0.0, 1e-9), Approximate(2.0, 0.5), gaussian(0.3), Laplace(0.2), Laplace(0.2, steps=7))


@pytest.mark.parametrize("release", EVERY)
def test_a_release_survives_being_recorded(release):
    assert from_json(to_json(release)) == release


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Pure, (0.0,), "Pure epsilon must be at least 1e-12"),
        (Pure, (-1.0,), "at least"),
        (Pure, (math.inf,), "finite"),
        (Pure, (math.nan,), "finite"),
        (Pure, ("0.1",), "must be a number"),
        (Pure, (True,), "must be a number"),
        (Approximate, (0.1, 0.0), "delta must be greater than 0"),
        (Approximate, (0.1, 1.0), "less than 1"),
        (Approximate, (-0.1, 0.1), "epsilon must be at least 0"),
        (Laplace, (0.1, 10**400), "steps: expected at most"),
        (Laplace, (0.1, 0), "steps: expected a whole number"),
        (Laplace, (0.1, 2.5), "steps"),
    ],
)
def test_values_that_make_no_sense_are_refused(kind, values, says):
    with pytest.raises(ConfigurationError, match=says):
        kind(*values)


def test_a_charge_names_exactly_one_release():
    assert as_release(epsilon=0.1) == Pure(0.1)
    assert as_release(epsilon=0.1, delta=1e-9) == Approximate(0.1, 1e-9)
    assert as_release(mu=0.1) == gaussian(0.1)
    for wrong in ({}, {"epsilon": 0.1, "mu": 0.1}, {"release": Pure(0.1), "epsilon": 0.1}, {"mu": 0.1, "delta": 1e-9}):
        with pytest.raises(ConfigurationError, match=r"exactly one|goes with epsilon"):
            as_release(**wrong)
    for mu in (0.0, 1e-170):
        with pytest.raises(ConfigurationError, match="mu must be at least 1e-12"):
            as_release(mu=mu)
    with pytest.raises(ConfigurationTypeError, match="expected Pure"):
        as_release(0.1)


def test_a_gaussian_release_of_0_2_is_read_as_a_concentrated_one():
    assert from_json('{"kind": "gaussian", "mu": 0.3}') == gaussian(0.3)


def test_a_numpy_number_is_a_number():
    assert to_json(Pure(np.float64(0.1))) == '{"kind": "pure", "epsilon": 0.1}'


@pytest.mark.parametrize("whole", [1.0, 2.0, 0.3, 1 / 3, 100.0, 1e-6])
def test_equal_parts_fill_a_budget(whole):
    for parts in (3, 6, 7, 9, 10, 11, 30, 49, 1000):
        assert parts * charged(whole / parts) <= budgeted(whole) < (parts + 1) * charged(whole / parts)


def test_no_charge_is_lost_in_rounding():
    for value in (1e-12, 0.1, 1 / 3, 0.1 + 0.2, 123.456):
        assert charged(value) / AMOUNT == pytest.approx(value, rel=1e-14, abs=0)


def test_nothing_above_0_counts_as_0_and_nothing_is_too_large_to_count():
    assert [charged(value) for value in (0.0, 5e-324, 1e-31, 1e-30)] == [0, 1, 1, 1]
    assert [charged_loss(value) for value in (1e-300, 1e300, math.inf)] == [1, NEVER, NEVER]


@pytest.mark.parametrize("release", [gaussian(1e150), Laplace(1e300), Pure(1e300)])
def test_a_release_too_large_for_any_budget_is_refused_as_such(tmp_path, release):
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", epsilon=1.0, delta=1e-6) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("ann", release)


def test_a_budget_without_delta_pays_for_no_delta_however_small(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", epsilon=1.0) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("ann", Approximate(0.0, 1e-31))


@pytest.mark.parametrize("epsilon", [0.001, 0.03, 0.5, 3.0])
def test_renyi_divergence_of_laplace_and_gaussian_noise_is_that_of_dp_accounting(epsilon):
    orders = ORDERS[::50]
    for release, event in (
        (Laplace(epsilon), LaplaceDpEvent(1 / epsilon)),
        (gaussian(epsilon), GaussianDpEvent(1 / epsilon)),
    ):
        oracle = RdpAccountant(list(orders)).compose(event)._rdp
        ours = renyi(release, orders)
        assert np.all(ours >= np.minimum(oracle, np.where(orders * epsilon < 0.01, 0, np.inf)) * (1 - 1e-9))
        assert ours == pytest.approx(oracle, rel=2e-2 if epsilon < 0.01 else 1e-3)


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 5.0])
def test_renyi_divergence_of_a_pure_release_is_that_of_randomised_response(epsilon):
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for order in (1.5, 2.0, 8.0, 40.0):
        exact = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert float(renyi(Pure(epsilon), order)) == pytest.approx(exact, rel=1e-3)
        assert float(renyi(Pure(epsilon), order)) >= exact * (1 - 1e-6)


def discrete_laplace_delta(steps, one_step, level):
    """Hockey-stick divergence of discrete Laplace noise between 0 and `steps`, by adding up."""
    x = np.arange(-4000, 4000 + steps)
    p = np.exp(-one_step * np.abs(x)) * math.tanh(one_step / 2)
    q = np.exp(-one_step * np.abs(x - steps)) * math.tanh(one_step / 2)
    return float(np.maximum(0, p - math.exp(level) * q).sum())


@pytest.mark.parametrize(("steps", "one_step"), [(1, 0.5), (3, 0.3), (4, 0.05)])
def test_noise_on_a_grid_is_counted_with_the_continuous_noise_that_covers_it(steps, one_step):
    release = Laplace(steps * one_step, steps=steps)
    levels = np.linspace(0, release.epsilon * 0.999, 60)
    exact = np.array([discrete_laplace_delta(steps, one_step, level) for level in levels])
    covering = 1 - np.exp((levels - release.continuous_epsilon) / 2)
    assert np.all(exact <= covering + 1e-9)
    assert np.any(exact > 1 - np.exp((levels - release.epsilon) / 2) + 1e-7), "the same epsilon would not cover it"
