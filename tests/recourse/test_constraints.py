from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2, MAD

NAMES = ("age", "income", "children", "rent", "own", "other")
HOUSING = ("rent", "own", "other")


def loan(**changes):
    options = {
        "lower": {"age": 18, "income": 0, "children": 0},
        "upper": {"age": 100, "children": 12},
        "integer": ("age", "children"),
        "increasing": ("age",),
        "one_hot": (HOUSING,),
    }
    return Constraints(NAMES, **(options | changes))


X = np.array([[40.0, 1000.0, 2.0, 1.0, 0.0, 0.0], [25.0, 0.0, 0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lower": {"age": 5}, "upper": {"age": 3}}, "age: no value"),
        ({"lower": np.inf}, "no value"),
        ({"lower": {"age": 1.2}, "upper": {"age": 1.8}, "integer": "age"}, "whole number"),
        ({"increasing": ("age",), "decreasing": ("age",)}, "immutable"),
        ({"immutable": NAMES}, "nothing may change"),
        ({"lower": 1, "upper": 1}, "nothing may change"),
        ({"immutable": ("hight",)}, "known: age, income, children, rent, own, other"),
        ({"integer": (6,)}, "column 6 of 6"),
        ({"integer": (-1,)}, "column -1"),
        ({"one_hot": (("rent", "own"), ("own", "other"))}, "own is listed more than once"),
        ({"one_hot": (("rent", "rent"),)}, "more than once"),
        ({"one_hot": (("rent",),)}, "at least two"),
        ({"one_hot": (HOUSING,), "upper": dict.fromkeys(HOUSING, 0)}, "no category"),
        ({"one_hot": (HOUSING,), "lower": {"rent": 1, "own": 1}}, "no category"),
        ({"one_hot": (HOUSING,), "lower": {"rent": 0.2}, "upper": {"rent": 0.8}}, "category"),
        ({"lower": [1.0, 2.0]}, "6 numbers"),
        ({"upper": {"age": np.nan}}, "NaN for age"),
        ({"lower": "a"}, "lower: expected numbers, got 'a'"),
        ({"lower": "5"}, "lower: expected numbers, got '5'"),
        ({"upper": {"age": "x"}}, "upper of age: expected numbers, got 'x'"),
        ({"upper": {"age": [1, 2]}}, r"upper of age: expected one number, got shape \(2,\)"),
        ({"upper": 10**400}, "upper: a number is too large"),
        ({"immutable": 2.5}, "immutable: unknown feature 2.5"),
        ({"one_hot": 3}, "at least two"),
    ],
)
def test_constraints_that_nothing_satisfies_are_refused_at_once(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Constraints(NAMES, **options)


@pytest.mark.parametrize("features", [0, -2, "age", (), ("age", "age"), 2.5, None])
def test_features_are_a_number_of_columns_or_distinct_names(features):
    with pytest.raises(ConfigurationError, match="features"):
        Constraints(features)


def test_none_is_no_feature():
    lists = ("immutable", "integer", "increasing", "decreasing", "one_hot")
    assert Constraints(NAMES, **dict.fromkeys(lists)) == Constraints(NAMES)


RATE = Constraints(("rate",), lower=-0.3, upper=0.1)


@pytest.mark.parametrize(("value", "shown"), [(0.1, r"at 0\.10000000149011612"), (-0.3, r"at -0\.30000001192092896")])
def test_a_limit_that_float32_rounded_is_told_apart_from_a_value_outside(value, shown):
    rounded = np.float32([[value]])
    with pytest.raises(InputError, match=rf"rate lies outside -0\.3 to 0\.1, {shown} \(row 0\).*float32") as caught:
        RATE.check(np.float64(rounded))
    assert "np.clip(np.float64(x), constraints.low, constraints.high)" in str(caught.value)
    RATE.check(np.clip(np.float64(rounded), RATE.low, RATE.high))
    for outside in (value * (1 + 3e-7), 2 * value):
        with pytest.raises(InputError, match=r"outside -0\.3 to 0\.1 \(row 0\); correct the rows"):
            RATE.check(np.array([[outside]]))
    RATE.check(np.float64(np.float32([[0.05]])))


def test_names_without_a_list_of_names_say_what_to_pass():
    with pytest.raises(ConfigurationError, match="pass features="):
        Constraints(3, immutable=("age",))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (0, 17.0, r"age lies outside 18 to 100 \(row 1\)"),
        (2, 1.5, r"children is an integer feature and not whole \(row 1\)"),
        (5, 0.0, r"unseen category.*writes all zeros"),
        (3, 1.0, "exactly one 1"),
        (5, 0.5, "exactly one 1"),
    ],
)
def test_queries_that_break_the_constraints_are_refused_with_their_rows(column, value, said):
    loan().check(X)
    bad = X.copy()
    bad[1, column] = value
    with pytest.raises(InputError, match=said):
        loan().check(bad)


def test_many_bad_rows_are_listed_up_to_five():
    bad = np.repeat(X[:1], 9, axis=0)
    bad[:, 0] = 3
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4, \.\.\."):
        loan().check(bad)


def test_rows_of_another_width_are_refused():
    with pytest.raises(InputError, match=r"\(n, 6\)"):
        loan().check(np.ones((2, 5)))


def test_bounds_follow_the_box_monotone_immutable_and_frozen_columns():
    rules = loan(immutable=("children",), decreasing=("income",))
    frozen = np.zeros(X.shape, dtype=bool)
    frozen[0, 4] = True
    lower, upper = rules.bounds(X, frozen)
    np.testing.assert_array_equal(lower[:, 0], [40, 25])
    np.testing.assert_array_equal(upper[:, 0], [100, 100])
    np.testing.assert_array_equal(upper[:, 1], [1000, 0])
    np.testing.assert_array_equal(lower[:, 2], upper[:, 2])
    np.testing.assert_array_equal(lower[0, 3:], X[0, 3:])  # one frozen member freezes its group
    np.testing.assert_array_equal(upper[0, 3:], X[0, 3:])
    np.testing.assert_array_equal(upper[1, 3:], 1)
    assert frozen.sum() == 1


def test_one_number_a_mapping_and_a_list_mean_the_same():
    as_number, as_list = Constraints(3, lower=2), Constraints(3, lower=[2, 2, 2])
    as_mapping = Constraints(3, lower={0: 2, 1: 2, 2: 2})
    for rules in (as_list, as_mapping, Constraints(3, lower=np.full(3, 2.0))):
        np.testing.assert_array_equal(rules.low, as_number.low)
    assert as_list == as_mapping
    assert hash(as_list) == hash(as_mapping)
    assert Constraints(3, integer=1) == Constraints(3, integer=(1,)) != Constraints(3, integer=(2,))


def test_constraints_survive_pickling():
    rules = loan()
    back = pickle.loads(pickle.dumps(rules))
    assert back == rules
    np.testing.assert_array_equal(back.project(X, X + 0.7), rules.project(X, X + 0.7))


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, 0, 39), (0, 0, 101), (0, 1, -1), (0, 2, 2.5), (0, 3, 0), (0, 4, 1), (0, 3, 0.5), (1, 2, 13)],
)
def test_every_broken_constraint_is_seen(row, column, value):
    changed = X + np.array([1, 5.5, 0, 0, 0, 0])
    assert loan().satisfied(X, changed).all()
    changed[row, column] = value
    assert loan().satisfied(X, changed).tolist() == [row != 0, row != 1]


def test_a_frozen_column_that_changed_is_seen():
    changed = X.copy()
    changed[:, 3:] = [0, 1, 0]
    frozen = np.zeros(X.shape, dtype=bool)
    frozen[1, 3] = True
    assert loan().satisfied(X, changed, frozen).tolist() == [True, False]
    assert loan().project(X, changed, frozen)[:, 3:].tolist() == [[0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, 4),
        ({"upper": {"own": 0}}, 3),
        ({"immutable": ("own",)}, 3),
        ({"immutable": ("rent",)}, 4),
        ({"immutable": ("other",)}, 5),
        ({"lower": {"other": 1}}, 5),
    ],
)
def test_projection_takes_the_largest_open_category(options, chosen):
    query = np.array([[40.0, 1, 0, 0, 0, 1]])
    rules = Constraints(NAMES, one_hot=(HOUSING,), **options)
    wanted = np.array([[40.0, 1, 0, 0.4, 0.9, 0.1]])
    got = rules.project(query, wanted)
    assert got[0, chosen] == 1
    assert rules.satisfied(query, got).all()


def test_a_tie_between_categories_keeps_the_query():
    query = np.array([[40.0, 1, 0, 0, 1, 0]])
    got = loan().project(query, np.array([[40.0, 1, 0, 0.5, 0.5, 0.5]]))
    np.testing.assert_array_equal(got, query)


@given(st.lists(st.floats(-8, 8), min_size=6, max_size=6), st.integers(-3, 3), st.integers(0, 2), st.booleans())
def test_projection_is_the_nearest_allowed_row(candidate, count, category, rising):
    rules = Constraints(
        6, lower=-3, upper=3, integer=(0, 1), increasing=(0,) if rising else (), immutable=(2,), one_hot=((3, 4, 5),)
    )
    query = np.array([[count, 1.0, 0.5, *np.eye(3)[category]]])
    wanted = np.array([candidate])
    got = rules.project(query, wanted)
    assert rules.satisfied(query, got).all()
    allowed = np.array([[a, b, 0.5, *one] for a, b, one in product(range(-3, 4), range(-3, 4), np.eye(3))])
    allowed = allowed[rules.satisfied(np.repeat(query, len(allowed), axis=0), allowed)]
    assert len(allowed)
    assert L2().distance(wanted - got)[0] <= L2().distance(wanted - allowed).min() + 1e-12


def test_costs_are_the_norms_they_are_named_after():
    delta = np.array([[3.0, -4.0], [0.0, 0.0]])
    np.testing.assert_allclose(L2().distance(delta), [5, 0])
    np.testing.assert_allclose(L1().distance(delta), [7, 0])
    np.testing.assert_allclose(L2((3, 2)).distance(delta), [np.sqrt(5), 0])
    np.testing.assert_allclose(MAD((3, 2)).distance(delta), [3, 0])
    assert L2().distance(delta[0]).shape == ()
    assert L1().distance(np.zeros((4, 5, 2))).shape == L2().distance(np.zeros((4, 5, 2))).shape == (4, 5)


@pytest.mark.parametrize("cost", [L2((1, 2, 3)), L1((1, 2, 3)), MAD((1, 2, 3))])
def test_parts_of_columns_add_up_to_the_distance(cost):
    delta = np.random.default_rng(0).normal(size=(7, 3))
    np.testing.assert_allclose(cost.parts(delta).sum(axis=1), cost.distance(delta) ** cost.power)
    np.testing.assert_allclose(cost.weights(3), [1, 1 / 2, 1 / 3])


@pytest.mark.parametrize("size", [1e-300, 1e-180, 1e180, 1e300])
def test_a_norm_overflows_only_where_it_is_too_large(size):
    delta = np.array([[3 * size, 4 * size], [3.0, 4.0]])
    np.testing.assert_allclose(L2().distance(delta), [5 * size, 5])


@pytest.mark.parametrize("scale", [(1, 0), (1, -1), (1, np.nan), (1, np.inf), (), 2.0, (1, 1e-320)])
def test_scales_that_are_no_units_are_refused(scale):
    for cost in (L1, L2, MAD):
        with pytest.raises(ConfigurationError, match="scale"):
            cost(scale)


def test_a_zero_median_deviation_is_explained():
    with pytest.raises(ConfigurationError, match=r"column 1 has scale 0; .*more than half of the rows share"):
        MAD((1.0, 0.0))
    with pytest.raises(ConfigurationError, match="public data"):
        MAD()


def test_a_scale_for_other_columns_is_refused():
    with pytest.raises(ConfigurationError, match="expected 2 numbers, one a column, got 3"):
        L2((1, 2, 3)).distance(np.zeros((1, 2)))


def test_costs_compare_by_value():
    assert L2([1, 2]) == L2(np.array([1.0, 2.0]))
    assert hash(L2([1, 2])) == hash(L2((1.0, 2.0)))
    assert L1((1, 2)) != MAD((1, 2))
