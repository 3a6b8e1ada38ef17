from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from safexplain.errors import BudgetExhausted, ConfigurationError, ConfigurationTypeError
from safexplain.ledger import Approximate, Ledger, Pure
from safexplain.ledger.composition import AMOUNT, NEVER, ORDERS, budgeted, charged, charged_loss, renyi
from safexplain.ledger.releases import as_release, from_json, to_json
from tests.ledger.conftest import gaussian

EVERY = (Pure(0.1), Approximate(0.0, 1e-9), Approximate(2.0, 0.5), gaussian(0.3), Pure(0.2), Pure(0.2))


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


def test_gaussian_and_laplace_releases_of_0_2_are_read_as_concentrated_and_pure_ones():
    assert from_json('{"kind": "gaussian", "mu": 0.3}') == gaussian(0.3)
    assert from_json('{"kind": "laplace", "epsilon": 0.3, "steps": 9}') == Pure(0.3)


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


@pytest.mark.parametrize("release", [gaussian(1e150), Pure(1e300)])
def test_a_release_too_large_for_any_budget_is_refused_as_such(tmp_path, release):
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", epsilon=1.0, delta=1e-6) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("ann", release)


def test_a_budget_without_delta_pays_for_no_delta_however_small(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", epsilon=1.0) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("ann", Approximate(0.0, 1e-31))


@pytest.mark.parametrize("epsilon", [0.001, 0.03, 0.5, 3.0])
def test_renyi_divergence_of_gaussian_noise_is_that_of_dp_accounting_and_of_laplace_noise_never_below(epsilon):
    orders = ORDERS[::50]
    oracle = RdpAccountant(list(orders)).compose(GaussianDpEvent(1 / epsilon))._rdp
    assert renyi(gaussian(epsilon), orders) == pytest.approx(oracle, rel=1e-9)
    laplace = RdpAccountant(list(orders)).compose(LaplaceDpEvent(1 / epsilon))._rdp
    assert np.all(renyi(Pure(epsilon), orders) >= np.minimum(laplace, orders * epsilon**2 / 2) * (1 - 1e-9))


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 5.0])
def test_renyi_divergence_of_a_pure_release_is_that_of_randomised_response(epsilon):
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for order in (1.5, 2.0, 8.0, 40.0):
        exact = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert float(renyi(Pure(epsilon), order)) == pytest.approx(exact, rel=1e-3)
        assert float(renyi(Pure(epsilon), order)) >= exact * (1 - 1e-6)
