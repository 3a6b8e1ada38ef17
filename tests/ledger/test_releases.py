import itertools
import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent
from dp_accounting.rdp import RdpAccountant

from safexplain.errors import ConfigurationError, ConfigurationTypeError
from safexplain.ledger import Approximate, Concentrated, Pure, Renyi
from safexplain.ledger.composition import (
    AMOUNT,
    INFINITE_LOSS,
    ORDERS,
    budgeted,
    charged,
    charged_loss,
    loss,
    renyi,
    renyi_epsilon,
)
from safexplain.ledger.releases import Training, as_release, from_json, to_json
from tests.ledger.conftest import gaussian


def test_a_release_survives_being_recorded():
    for release in (
        Pure(0.1),
        Approximate(0.0, 1e-9),
        Concentrated(0.3, 1e-7, "substitute"),
        Renyi((1.5, 2.0), (0.25, 0.5), 1e-7, "add_remove"),
        Training(0.5),
        Training(0.25, 1e-7, mu=0.125, adjacency="zero_out"),
        Training(0.25, 1e-7, None, (1.5, 2.0), (0.25, 0.5)),
    ):
        assert from_json(to_json(release)) == release
        assert len(str(release)) < 80
    assert to_json(Pure(np.float64(0.1))) == '{"kind": "pure", "epsilon": 0.1}'
    assert from_json('{"kind": "gaussian", "mu": 0.3}') == Concentrated(0.045), "as 0.2 wrote it"
    assert from_json('{"kind": "laplace", "epsilon": 0.3, "steps": 9}') == Pure(0.3)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (Pure, (0.0,), "Pure epsilon must be at least 1e-12"),
        (Pure, (math.inf,), "finite"),
        (Pure, (True,), "must be a number"),
        (Approximate, (0.1, 0.0), "delta must be greater than 0"),
        (Approximate, (0.1, 1.0), "less than 1"),
        (Approximate, (-0.1, 0.1), "epsilon must be at least 0"),
        (Training, (0.1, 1.0), "less than 1"),
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


def test_equal_parts_fill_a_budget():
    for whole, parts in itertools.product((1.0, 2.0, 0.3, 1 / 3, 100.0, 1e-6), (3, 6, 7, 9, 10, 11, 30, 49, 1000)):
        assert parts * charged(whole / parts) <= budgeted(whole) < (parts + 1) * charged(whole / parts), (whole, parts)


def test_nothing_above_0_counts_as_0_and_nothing_is_too_large_to_count():
    assert [charged(value) for value in (0.0, 5e-324, 1e-31, 1e-30)] == [0, 1, 1, 1]
    assert [charged_loss(value) for value in (1e-300, 1e300, math.inf)] == [1, INFINITE_LOSS, INFINITE_LOSS]
    assert [loss(units) for units in (0, 10**30, 10**72 - 1, 10**72)] == [0.0, 1.0, pytest.approx(1e42), math.inf]
    assert [renyi_epsilon(2.0, divergence, 1e-6) for divergence in (0.0, math.inf)] == [0.0, math.inf]
    assert charged_loss(0.5) / AMOUNT == pytest.approx(0.5 * (1 + 1e-9), rel=1e-15), "rounded up"


@pytest.mark.parametrize("epsilon", [0.001, 0.5, 3.0])
def test_renyi_divergence_of_gaussian_noise_is_that_of_dp_accounting_and_of_laplace_noise_never_below(epsilon):
    assert (len(ORDERS), ORDERS[0], ORDERS[-1]) == (700, 1.1, 1e6)
    assert math.fsum(ORDERS) == pytest.approx(43870032.0543, rel=1e-12)
    orders = ORDERS[::50]
    oracle = RdpAccountant(list(orders)).compose(GaussianDpEvent(1 / epsilon))._rdp
    assert renyi(gaussian(epsilon), orders) == pytest.approx(oracle, rel=1e-9)
    laplace = RdpAccountant(list(orders)).compose(LaplaceDpEvent(1 / epsilon))._rdp
    assert np.all(renyi(Pure(epsilon), orders) >= np.minimum(laplace, orders * epsilon**2 / 2) * (1 - 1e-9))


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 5.0])
def test_renyi_divergence_of_a_pure_release_is_that_of_randomised_response(epsilon):
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for order in (1.5, 2.0, 8.0, 40.0):
        exact = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert float(renyi(Pure(epsilon), order)) == pytest.approx(exact, rel=1e-3)
        assert float(renyi(Pure(epsilon), order)) >= exact * (1 - 1e-6)
