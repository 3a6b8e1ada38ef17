"""What changes cost: up and down, by name, and by percentiles of public data."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError
from safexplain.recourse.cost import L1, L2, MAD, Percentile, check_cost, for_columns

INCOMES = np.repeat([10.0, 20.0, 30.0, 50.0, 100.0], [10, 40, 30, 15, 5])
PUBLIC = {"income": INCOMES, "owns": np.array([0.0, 1.0, 0.0, 0.0]), "score": np.arange(1000.0)}
SHARES = {10: 0.05, 20: 0.30, 30: 0.65, 50: 0.875, 100: 0.975}  # halves of what is at a value and all below


@pytest.mark.parametrize("cost", [L1, L2, MAD])
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
        ({"rise": 0}, "rise: .*for free"),
        ({"fall": (1, -1)}, "fall: expected positive finite"),
        ({"rise": np.inf}, "rise: expected positive finite"),
        ({"fall": "dear"}, "fall: expected numbers"),
        ({"scale": {"age": 0}}, "scale"),
        ({"scale": 5.0}, "scale: expected one number a column"),
    ],
)
def test_prices_that_are_none_are_refused(given, said):
    for cost in (L1, L2):
        with pytest.raises(ConfigurationError, match=said):
            cost(**given)


def test_prices_for_other_columns_are_refused():
    with pytest.raises(ConfigurationError, match="rise: expected 3 numbers, one a column, got 2"):
        L1(rise=(1, 2)).distance(np.zeros(3))
    with pytest.raises(ConfigurationError, match="unknown feature 'aeg'; known: age, income"):
        for_columns(L1({"aeg": 1}), ("age", "income"), 2)
    with pytest.raises(ConfigurationError, match="scale: given by name"):
        L1({"age": 1}).distance(np.zeros(2))


@pytest.mark.parametrize("cost", [L1((2, 3), rise=(1, 5)), Percentile(np.column_stack([INCOMES, np.arange(100.0)]))])
@pytest.mark.parametrize(
    ("column", "x", "low", "high"), [(0, 22.0, 5.0, 120.0), (1, 30.0, 30.0, 60.0), (1, 9.0, 20.0, 21.0)]
)
def test_a_curve_is_the_cost_of_one_column_between_its_points_too(cost, column, x, low, high):
    points, costs = cost.curve(column, x, low, high)
    assert points[0] == low
    assert points[-1] == high
    assert (np.diff(points) > 0).all()
    tried = np.random.default_rng(0).uniform(low, high, 200)
    start = np.full((200, 2), 7.0)
    start[:, column] = x
    change = np.zeros((200, 2))
    change[:, column] = tried - x
    np.testing.assert_allclose(np.interp(tried, points, costs), cost.distance(change, start), atol=1e-12)


def test_a_curve_needs_finite_limits():
    for cost in (L1(), Percentile(PUBLIC)):
        with pytest.raises(ConfigurationError, match="finite limits"):
            cost.curve(0, 1.0, 0.0, np.inf)


def test_a_percentile_cost_is_the_share_of_the_public_that_is_overtaken():
    cost = Percentile(PUBLIC)
    for a in SHARES:
        for b in SHARES:
            change = np.array([b - a, 0.0, 0.0])
            share = abs(SHARES[b] - SHARES[a]) + 0.01 * abs(b - a) / 90
            assert cost.distance(change, np.array([a, 0.0, 500.0])) == pytest.approx(share)
    halfway = cost.distance(np.array([5.0, 0, 0]), np.array([20.0, 0, 0]))
    assert halfway == pytest.approx((SHARES[30] - SHARES[20]) / 2 + 0.01 * 5 / 90)


def test_no_change_is_free_beyond_the_public_values_and_none_costs_more_than_a_population():
    cost = Percentile(PUBLIC)
    for start, change in ((100.0, 50.0), (10.0, -5.0), (200.0, 1e-3)):
        paid = cost.distance(np.array([change, 0, 0]), np.array([start, 0, 0]))
        assert paid == pytest.approx(0.01 * abs(change) / 90)
    assert cost.distance(np.array([90.0, 0, 0]), np.array([10.0, 0, 0])) < 1.01


def test_another_category_costs_what_two_columns_cost():
    cost = Percentile({"rents": [0, 1, 1], "owns": [1, 0, 0]})
    assert cost.distance(np.array([-1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(1.0)
    dear = Percentile({"rents": [0, 1, 1], "owns": [1, 0, 0]}, category=2)
    assert dear.distance(np.array([-1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(4.0)


def test_percentiles_find_their_columns_by_name():
    cost = Percentile(PUBLIC).named(("score", "income"))
    assert cost.distance(np.array([0.0, 10.0]), np.array([3.0, 20.0])) == pytest.approx(0.35 + 0.01 * 10 / 90)
    with pytest.raises(ConfigurationError, match="public: no column 'rent'"):
        Percentile(PUBLIC).named(("rent", "income"))
    with pytest.raises(ConfigurationError, match="expected 2 columns, as the queries have, got 3"):
        for_columns(Percentile(PUBLIC), None, 2)


def test_percentiles_read_frames_and_leave_out_what_is_missing():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"income": [1.0, np.nan, 2.0, 3.0], "age": [20, 30, 40, 50]})
    bare = Percentile({"income": [1, 2, 3], "age": [20, 30, 40, 50]})
    assert Percentile(frame) == bare
    assert hash(Percentile(frame)) == hash(pickle.loads(pickle.dumps(bare)))
    mixed = Percentile(pandas.DataFrame({"job": ["clerk", "none"], "age": [20, 30]}))  # for a preprocessing
    with pytest.raises(ConfigurationError, match=r"public: expected numbers.*preprocessing"):
        mixed.distance(np.zeros(2), np.zeros(2))


@pytest.mark.parametrize(
    ("public", "said"),
    [
        ({"income": [5, 5, 5]}, "'income' has one value only"),
        ({"income": [1, np.inf]}, "'income' has infinite values"),
        ({"income": [np.nan, None]}, "'income' has no values"),
        ({"income": ["a", "b"]}, "public, 'income'"),
        ([1.0, 2.0, 3.0], r"shape \(m, d\)"),
        ({}, "at least one column"),
        (np.zeros((0, 2)), "column 0 has no values"),
        (None, "public"),
    ],
)
def test_public_data_that_have_no_percentiles_are_refused(public, said):
    with pytest.raises(ConfigurationError, match=said):
        Percentile(public)


def test_a_percentile_cost_needs_to_know_where_a_change_starts():
    with pytest.raises(InputError, match=r"distance\(change, x\)"):
        Percentile(PUBLIC).distance(np.zeros(3))


@pytest.mark.parametrize("category", [0, -1, np.nan])
def test_categories_are_not_for_free(category):
    with pytest.raises(ConfigurationError, match="category"):
        Percentile(PUBLIC, category=category)


def test_what_is_no_cost_is_refused_with_those_there_are():
    with pytest.raises(ConfigurationTypeError, match=r"L2\(\), L1\(\), MAD\(scale\) or Percentile\(public\), got 'L1'"):
        check_cost("L1")
