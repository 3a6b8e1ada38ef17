"""What changes cost: up and down, and by name."""

import pickle

import numpy as np
import pytest

from safexplain.errors import ConfigurationError
from safexplain.recourse.cost import L1, L2, MAD, for_columns


def test_costs_are_the_norms_they_are_named_after():
    delta = np.array([[3.0, -4.0], [0.0, 0.0]])
    np.testing.assert_allclose(L2().distance(delta), [5, 0])
    np.testing.assert_allclose(L1().distance(delta), [7, 0])
    np.testing.assert_allclose(L2((3, 2)).distance(delta), [np.sqrt(5), 0])
    np.testing.assert_allclose(MAD((3, 2)).distance(delta), [3, 0])
    assert L2().distance(delta[0]).shape == ()
    assert L1().distance(np.zeros((4, 5, 2))).shape == L2().distance(np.zeros((4, 5, 2))).shape == (4, 5)


@pytest.mark.parametrize("cost", [L2((1, 2, 3)), L1((1, 2, 3))])
def test_parts_of_columns_add_up_to_the_distance(cost):
    delta = np.random.default_rng(0).normal(size=(7, 3))
    np.testing.assert_allclose(cost.parts(delta).sum(axis=1), cost.distance(delta) ** cost.power)


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_a_norm_overflows_only_where_it_is_too_large(size):
    delta = np.array([[3 * size, 4 * size], [3.0, 4.0]])
    np.testing.assert_allclose(L2().distance(delta), [5 * size, 5])


@pytest.mark.parametrize("scale", [(1, 0), (1, np.inf), (), 2.0, (1, 1e-320), ["1", "2"], [1, None]])
def test_scales_that_are_no_units_are_refused(scale):
    for cost in (L1, L2, MAD):
        with pytest.raises(ConfigurationError, match="scale"):
            cost(scale)


def test_a_zero_median_deviation_is_explained():
    with pytest.raises(ConfigurationError, match=r"column 1 has scale 0; .*more than half of the rows share"):
        MAD((1.0, 0.0))
    with pytest.raises(ConfigurationError, match="public data"):
        MAD()


def test_costs_compare_by_value():
    assert L2([1, 2]) == L2(np.array([1.0, 2.0]))
    assert hash(L2([1, 2])) == hash(L2((1.0, 2.0)))
    assert L1((1, 2)) != MAD((1, 2))


@pytest.mark.parametrize("cost", [L1, L2])
def test_a_rise_and_a_fall_cost_what_they_are_said_to(cost):
    priced = cost((2, 4), rise=(1, 3), fall=(5, 1))
    up, down = (priced.parts(np.diag([sign * 2.0, sign * 4.0])).diagonal() for sign in (1, -1))
    np.testing.assert_allclose(up, np.array([1.0, 3.0]) ** priced.power)
    np.testing.assert_allclose(down, np.array([5.0, 1.0]) ** priced.power)
    change = np.array([2.0, -4.0])
    assert priced.distance(change) == pytest.approx(2 if priced.power == 1 else np.sqrt(2))
    rise, fall = priced.units(2)
    np.testing.assert_allclose([rise, fall], [[0.5, 0.75], [2.5, 0.25]])


def test_one_number_a_mapping_and_numbers_in_order_mean_the_same():
    features = ("income", "age")
    costs = [
        L1((1000, 1), rise=(2, 1), fall=3.0),
        L1({"income": 1000}, rise={"income": 2}, fall={"age": 3, "income": 3}),
        L1({"age": 1, "income": 1000}, rise=[2, 1], fall=np.array([3.0, 3.0])),
    ]
    change = np.array([[500.0, -2.0], [-500.0, 2.0]])
    for cost in costs:
        np.testing.assert_allclose(cost.named(features).distance(change), [1 + 6, 1.5 + 2])
    assert hash(costs[1]) == hash(pickle.loads(pickle.dumps(costs[1])))
    assert costs[1].named(features) != costs[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rise": 0}, "rise: .*free changes"),
        ({"fall": (1, -1)}, "fall: expected positive finite"),
        ({"fall": "dear"}, "fall: expected numbers"),
        ({"scale": {"age": 0}}, "scale"),
    ],
)
def test_prices_that_are_none_are_refused(given, said):
    for cost in (L1, L2):
        with pytest.raises(ConfigurationError, match=said):
            cost(**given)


def test_prices_for_other_columns_are_refused():
    with pytest.raises(ConfigurationError, match="rise: expected 3 numbers, one for each column, got 2"):
        L1(rise=(1, 2)).distance(np.zeros(3))
    with pytest.raises(ConfigurationError, match="expected 2 numbers, one for each column, got 3"):
        L2((1, 2, 3)).distance(np.zeros((1, 2)))
    with pytest.raises(ConfigurationError, match=r"unknown feature 'aeg'; did you mean 'age'\?; known: age, income"):
        for_columns(L1({"aeg": 1}), ("age", "income"), 2)
    with pytest.raises(ConfigurationError, match="scale: given by name"):
        L1({"age": 1}).distance(np.zeros(2))
