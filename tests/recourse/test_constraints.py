import pickle
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L2
from safexplain.recourse.solution import as_rows

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
        ({"lower": {"age": 5}, "upper": {"age": 3}}, "age: no allowed value"),
        ({"lower": np.inf}, "no allowed value"),
        ({"lower": {"age": 1.2}, "upper": {"age": 1.8}, "integer": "age"}, "whole number"),
        ({"increasing": ("age",), "decreasing": ("age",)}, "immutable"),
        ({"immutable": NAMES}, "nothing may; free one"),
        ({"immutable": ("hight",)}, "known: age, income, children, rent, own, other"),
        ({"integer": (6,)}, "expected a column from 0 to 5, got 6"),
        ({"one_hot": (("rent", "own"), ("own", "other"))}, "own is listed more than once"),
        ({"one_hot": (("rent",),)}, "at least two"),
        ({"one_hot": (HOUSING,), "upper": dict.fromkeys(HOUSING, 0)}, "the limits exclude all categories"),
        ({"lower": [1.0, 2.0]}, "6 numbers"),
        ({"upper": {"age": np.nan}}, "NaN for age"),
        ({"upper": {"age": [1, 2]}}, r"upper of age: expected one number, got shape \(2,\)"),
        ({"integer": {"income": 500}}, r"expected names.*pass integer=\('income',\), and numbers as .* step="),
    ],
)
def test_constraints_that_nothing_satisfies_are_refused_at_once(options, said):
    with pytest.raises(ConfigurationError, match=said):
        Constraints(NAMES, **options)


@pytest.mark.parametrize("features", [0, (), ("age", "age"), 2.5, {"age": (18, 99)}])
def test_features_are_a_number_of_columns_or_distinct_names(features):
    with pytest.raises(ConfigurationError, match="features"):
        Constraints(features)


RATE = Constraints(("rate",), lower=-0.3, upper=0.1)


@pytest.mark.parametrize(("value", "shown"), [(0.1, r"got 0\.10000000149"), (-0.3, r"got -0\.300000011921")])
def test_a_limit_that_float32_rounded_is_refused_with_its_digits_and_what_to_do(value, shown):
    rounded = np.float32([[value]])
    with pytest.raises(InputError, match=rf"expected rate from -0\.3 to 0\.1, {shown} \(row 0\).*float32") as caught:
        RATE.check(np.float64(rounded))
    assert "np.clip(np.float64(x), constraints.low, constraints.high)" in str(caught.value)
    RATE.check(np.clip(np.float64(rounded), RATE.low, RATE.high))
    RATE.check(np.float64(np.float32([[0.05]])))


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (0, 17.0, r"expected age from 18 to 100, got 17 \(row 1\)"),
        (2, 1.5, r"whole numbers for the integer feature children \(row 1\)"),
        (5, 0.0, "write only zeros"),
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


def test_constraints_survive_pickling_and_compare_by_value():
    limits = {"step": {"income": 500}, "largest_change": {"age": 5}, "rules": (Rule("children", "age", 2),)}
    rules = loan(**limits, most_changes=2)
    back = pickle.loads(pickle.dumps(rules))
    assert back == rules
    assert hash(back) == hash(rules)
    assert rules != loan(**limits, most_changes=3)
    np.testing.assert_array_equal(back.project(X, X + 0.7), rules.project(X, X + 0.7))
    lists = ("immutable", "integer", "increasing", "decreasing", "one_hot")
    assert Constraints(NAMES, **dict.fromkeys(lists)) == Constraints(NAMES)


def test_every_broken_constraint_is_seen():
    columns, values = zip((0, 39), (0, 101), (1, -1), (2, 2.5), (2, 13), (3, 0), (4, 1), (3, 0.5), strict=True)
    x = np.repeat(X[:1], 9, axis=0)
    changed = x + np.array([1, 5.5, 0, 0, 0, 0])
    assert loan().satisfied(x, changed).all()
    changed[np.arange(1, 9), columns] = values
    assert loan().satisfied(x, changed).tolist() == [True] + [False] * 8


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
    assert not np.signbit(got[got == 0]).any()
    allowed = np.array([[a, b, 0.5, *one] for a, b, one in product(range(-3, 4), range(-3, 4), np.eye(3))])
    allowed = allowed[rules.satisfied(np.repeat(query, len(allowed), axis=0), allowed)]
    assert len(allowed)
    assert L2().distance(wanted - got)[0] <= L2().distance(wanted - allowed).min() + 1e-12


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"most_changes": 0}, "most_changes: expected a whole number of at least 1, got 0"),
        ({"largest_change": {"age": -1}}, "largest_change of age: expected a number from 0 up, got -1"),
        ({"largest_change": {"rent": 0.5}, "one_hot": (HOUSING,)}, "rent is a category.*immutable"),
        ({"largest_change": 0}, r"nothing may; free one.*of age, income, children, rent, own, \.\.\."),
        ({"step": {"income": np.inf}}, "step of income: expected a number from 0 up"),
        ({"step": {"children": 0.5}, "integer": "children"}, "step of children: expected a whole number, .* got 0.5"),
        ({"step": {"income": 500}, "largest_change": {"income": 499}}, "income: its step of 500 exceeds .* 499"),
        ({"rules": Rule("age", "age")}, "got age on both sides"),
        ({"rules": (Rule("age", "own"),), "one_hot": (HOUSING,)}, "own is a category"),
        ({"rules": (("age", "income"),)}, r"expected Rule\(when, then, \.\.\.\), got \('age', 'income'\)"),
    ],
)
def test_limits_of_changes_that_contradict_each_other_name_the_feature_and_the_fix(options, said):
    with pytest.raises((ConfigurationError, TypeError), match=said):
        Constraints(NAMES, **options)


@pytest.mark.parametrize("given", [{"per_unit": -1}, {"at_least": np.nan}, {"per_unit": 0}])
def test_rules_that_ask_for_nothing_are_refused(given):
    with pytest.raises((ConfigurationError, TypeError), match="rule on 'age'"):
        Rule("age", "income", **given)


def test_one_number_for_all_features_is_not_for_categories():
    rules = loan(largest_change=2, step=0.5, integer=())
    assert rules.largest.tolist() == [2, 2, 2, np.inf, np.inf, np.inf]
    assert rules.grid.tolist() == [0.5, 0.5, 0.5, 0, 0, 0]
    assert Constraints(3, step={0: 2}).grid.tolist() == [2, 0, 0]
    assert Constraints(3, integer=(0, 1), step={1: 5}).grid.tolist() == [1, 5, 0]


def test_bounds_end_on_the_last_step_inside_of_limits_and_largest_changes():
    rules = Constraints(
        ("income", "rate"),
        lower=0,
        upper={"income": 3000, "rate": 0.5},
        step={"income": 500, "rate": 0.1},
        largest_change={"income": 1200, "rate": 0.3},
    )
    x = np.array([[1700.0, 0.2], [200.0, 0.05], [2900.0, 0.5]])
    lower, upper = rules.bounds(x)
    np.testing.assert_allclose(lower, [[700, 0.0], [200, 0.05], [1900, 0.2]], atol=1e-12)
    np.testing.assert_allclose(upper, [[2700, 0.5], [1200, 0.35], [2900, 0.5]])
    assert (upper[:, 1] <= 0.5).all()
    assert (lower >= 0).all()
    for ends in (lower, upper):
        assert rules.satisfied(x, ends).all()
    assert not rules.satisfied(x, x + np.array([250.0, 0])).any()
    assert not rules.satisfied(x, x - np.array([1500.0, 0])).any()


def test_a_one_hot_group_counts_as_one_change():
    changed = X + np.array([[1, 5, 0, 0, 0, 0], [0, 0, 0, 0, 1, -1]])
    assert loan().changes(X, changed).tolist() == [2, 1]
    assert loan(most_changes=1).satisfied(X, changed).tolist() == [False, True]
    assert loan(most_changes=2).satisfied(X, changed).all()


DEGREES = Constraints(
    ("age", "education", "employment"),
    integer=("education",),
    increasing=("age",),
    rules=(Rule("education", "age", per_unit=2), Rule("employment", "age")),
)


def test_a_degree_takes_two_years_and_employment_rises_no_faster_than_age():
    kept = [(0, 0, 0), (4, 2, 0), (1, 0, 1), (4, 2, 4), (5, 0, 0), (0, -1, -3)]  # nothing is asked of who falls
    broken = [(3.9, 2, 0), (0, 0, 1), (4, 2, 5)]
    person = np.tile([31.3, 1.0, 4.7], (9, 1))
    for found in (DEGREES.satisfied, DEGREES.keeps_rules):
        assert found(person, person + np.array(kept + broken)).tolist() == [True] * 6 + [False] * 3


def test_a_rule_for_any_rise_asks_for_the_same_however_small_it_is():
    rules = Constraints(2, rules=(Rule(0, 1, per_unit=0, at_least=2),))
    rows = np.zeros((4, 2))
    kept = rules.satisfied(rows, np.array([[1e-9, 2], [9, 2], [0, 0], [1e-9, 1.9]]))
    assert kept.tolist() == [True, True, True, False]


def test_a_category_taken_up_is_a_rise_by_one():
    rules = loan(rules=(Rule("own", "income", per_unit=100),))
    bought, richer = X.copy(), X.copy()
    bought[:, 3:] = richer[:, 3:] = [0, 1, 0]
    richer[:, 1] += 100
    assert rules.satisfied(X, bought).tolist() == [False, False]
    assert rules.satisfied(X, richer).tolist() == [True, True]
    np.testing.assert_array_equal(rules.project(X, bought), richer)


@pytest.mark.parametrize(
    ("rules", "wanted", "projected"),
    [
        ((Rule(0, 1, per_unit=0.25),), (3, 0, 0), (3, 0.75, 0)),  # `then` rises
        ((Rule(0, 1, per_unit=0.5),), (3, 1.8, 0), (3, 1.8, 0)),
        ((Rule(0, 1),), (3, 0, 0), (2, 2, 0)),  # as far as it may, and `when` with it
        ((Rule(0, 1, at_least=0.5),), (3, 0, 0), (1.5, 2, 0)),
        ((Rule(0, 1, per_unit=0, at_least=2),), (3, 0, 0), (3, 2, 0)),
        ((Rule(0, 1, at_least=2.5), Rule(0, 2)), (3, 0, 0), (0, 2, 0)),  # back at once, so that no other follows
        ((Rule(0, 1, per_unit=0, at_least=2.5), Rule(0, 2)), (3, 0, 0), (0, 2, 0)),
        ((Rule(0, 1, per_unit=2), Rule(1, 0, per_unit=2)), (1, 1, 0), (0, 0, 0)),  # rules that drive each other
        ((Rule(2, 1),), (0, -1, 2.4), (0, 2, 2)),  # whole steps
        ((Rule(1, 2, per_unit=0.6),), (0, 2, 0), (0, 2, 2)),
        ((Rule(2, 1, per_unit=1.5),), (0, 0, 3), (0, 2, 1)),
    ],
)
def test_rules_are_repaired_by_what_follows_and_else_by_what_leads(rules, wanted, projected):
    x = np.array([[0.25, -0.5, 1.0]])
    limits = Constraints(3, lower=x[0] - 3, upper=x[0] + [3, 2, 3], integer=(2,), rules=rules)
    np.testing.assert_allclose(limits.project(x, x + wanted), x + projected, rtol=1e-12)


@given(
    st.lists(st.floats(-6, 6), min_size=5, max_size=5),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.booleans(),
    st.booleans(),
)
def test_projected_rows_keep_steps_and_rules(candidate, category, per_unit, fixed, both):
    rules = Constraints(
        6,
        lower=-3,
        upper=3,
        step={0: 0.4, 1: 1.5},
        largest_change={2: 1},
        one_hot=((3, 4, 5),),
        immutable=(1,) if fixed else (),
        increasing=(1, 2),
        rules=(Rule(0, 1, per_unit=per_unit, at_least=0.1), Rule(4, 2), *((Rule(1, 0, per_unit=0.5),) if both else ())),
    )
    query = np.array([[0.3, -0.2, 0.5, *np.eye(3)[category]]])
    got = rules.project(query, np.array([[*candidate, 0.5]]))
    assert rules.satisfied(query, got).all()


NUMBERS = {
    "bool": (np.array([[True, False]]), [1, 0]),
    "objects": (np.array([[1, 2.5, True, np.float32(3), Fraction(1, 2)]], dtype=object), [1, 2.5, 1, 3, 0.5]),
    "mask without entries": (np.ma.array([[1.0, 2.0]], mask=[[False, False]]), [1, 2]),
    "tensor with a gradient": (torch.ones(1, 2, requires_grad=True), [1, 1]),
    "list of tensors": ([torch.ones(1, dtype=torch.bfloat16), torch.ones(1, requires_grad=True)], [1, 1]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_whatever_holds_them_and_copied(name):
    given, numbers = NUMBERS[name]
    rows = as_rows(given)
    assert rows.dtype == np.float64
    assert rows.ravel().tolist() == numbers
    rows[:] = 9.0
    assert as_rows(given).ravel().tolist() == numbers


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ma.array([[1.0, 99.0]], mask=[[False, True]]), r"no masked entries, got 1"),
        (np.array([["2020-01-01"]], dtype="datetime64[ns]"), "dates"),
        (np.array([[1.0, "2"]], dtype=object), "expected numbers"),
        (np.array([[1j]]), "expected numbers"),
        ([[10**400]], "too large for float64"),
        ([torch.ones(2, device="meta")], "expected a dense tensor with data"),
        (torch.eye(2).to_sparse(), "expected a dense tensor with data"),
        (np.array([[1.0, np.nan]], dtype=object), "expected finite numbers, got NaN or infinity in row 0"),
    ],
)
def test_what_only_looks_like_numbers_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        as_rows(given)
