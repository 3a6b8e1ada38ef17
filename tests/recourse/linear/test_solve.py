from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recourse_linear_oracle import all_counts, integer_program

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear.solve import linear_recourse


def problem(seed, whole, sizes, free, *, grid=False, span=4):
    """One query: w, b, x, scale, constraints. The first column may not fall, the second may not change."""
    rng = np.random.default_rng(seed)
    d = whole + sum(sizes) + free
    w, scale = rng.normal(size=d), 1 / rng.uniform(0.3, 3, size=d)
    if grid:  # whole weights: many choices tie
        w, scale = np.sign(w) * rng.integers(1, 30, d), 1 / rng.integers(1, 10, d)
    ends = whole + np.cumsum([0, *sizes])
    groups = tuple(tuple(range(start, stop)) for start, stop in pairwise(ends))
    rules = Constraints(
        d, lower=-span, upper=span, integer=tuple(range(whole)), one_hot=groups, increasing=(0,), immutable=(1,)
    )
    x = np.clip(1.5 * rng.normal(size=d), -span, span)
    x[:whole] = np.rint(x[:whole])
    for group in groups:
        x[list(group)] = 0
        x[rng.choice(group)] = 1
    lower, upper = (side[0] for side in rules.bounds(x[None]))
    most = np.maximum(w * (upper - x), w * (lower - x)).sum()
    b = -(w @ x) - rng.uniform(0.02, 1.1) * most
    return w, float(np.round(b) if grid else b), x, scale, rules


def check(found, w, b, target, rules=None, frozen=None):
    """What every answer promises."""
    for array in (found.counterfactual, found.distance, found.score):
        assert np.isfinite(array).all()
    changed = found.counterfactual[found.valid]
    for score in (changed @ w + b, (changed * w).sum(axis=1) + b, (changed * w)[:, ::-1].sum(axis=1) + b):
        assert (score >= target).all()
    np.testing.assert_array_equal(found.counterfactual[~found.valid], found.x[~found.valid])
    np.testing.assert_array_equal(found.counterfactual[found.favourable], found.x[found.favourable])
    assert not found.distance[~found.valid | found.favourable].any()
    assert found.valid[found.favourable].all()
    assert not found.censored.any()
    if rules is not None:
        assert rules.satisfied(found.x, found.counterfactual, frozen).all()


def test_without_constraints_the_closed_form_meets_the_target():
    rng = np.random.default_rng(0)
    w, x = 3 * rng.normal(size=6), rng.normal(size=(50, 6))
    found = linear_recourse(w, -4.0, x, target=0.5)
    check(found, w, -4.0, 0.5)
    gap = 0.5 - (x @ w - 4)
    away = gap > 0
    np.testing.assert_allclose(found.counterfactual[away], (x + gap[:, None] * w / (w @ w))[away], rtol=1e-9)
    np.testing.assert_allclose(found.distance[away], gap[away] / np.linalg.norm(w), rtol=1e-9)
    published = x + gap[:, None] * w / np.linalg.norm(w)  # the paper's formula divides once
    assert np.abs(published @ w - 4 - 0.5)[away].min() > 0.1


@pytest.mark.parametrize("power", [1, 2])
def test_continuous_answers_with_limits_are_optimal(power):
    for seed in range(30):
        w, b, x, scale, rules = problem(seed, 0, (), 7)
        cost = (L1, L2)[power - 1](scale)
        found = linear_recourse(w, b, x, cost=cost, constraints=rules)
        check(found, w, b, 0.0, rules)
        best = all_counts(w, b, x, 1 / scale, rules, power)
        assert found.valid[0] == np.isfinite(best), seed
        if np.isfinite(best):
            assert found.distance[0] == pytest.approx(best, rel=1e-8), seed


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("shape", [(8, (3, 4), 6), (20, (3,), 0), (2, (12,), 3)])
def test_whole_numbers_and_categories_match_an_integer_program(shape, grid):
    gaps = []
    for seed in range(15):
        w, b, x, scale, rules = problem(seed, *shape, grid=grid)
        found = linear_recourse(w, b, x, cost=L1(scale), constraints=rules)
        check(found, w, b, 0.0, rules)
        best = integer_program(w, b, x, 1 / scale, rules)
        assert found.valid[0] == np.isfinite(best)
        if np.isfinite(best) and best > 0:
            gaps.append(found.distance[0] / best - 1)
    assert len(gaps) >= 6
    assert min(gaps) > -1e-9
    assert max(gaps) < 1e-9


@pytest.mark.parametrize(
    ("shape", "power"), [((3, (3,), 3), 2), ((4, (), 0), 1), ((2, (3, 3), 0), 2), ((2, (4, 3), 2), 1)]
)
def test_whole_numbers_and_categories_match_enumeration(shape, power):
    met = 0
    for seed in range(6):
        w, b, x, scale, rules = problem(seed, *shape, span=3)
        cost = (L1, L2)[power - 1](scale)
        found = linear_recourse(w, b, x, cost=cost, constraints=rules)
        check(found, w, b, 0.0, rules)
        best = all_counts(w, b, x, 1 / scale, rules, power)
        assert found.valid[0] == np.isfinite(best)
        if np.isfinite(best):
            assert found.distance[0] == pytest.approx(best, rel=1e-7)
            met += 1
    assert met >= 2


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(3, (3,), 3), (0, (), 5), (5, (), 0), (0, (3, 4), 1), (2, (), 3)]),
    st.sampled_from([L1, L2]),
    st.floats(-3, 3),
    st.booleans(),
)
def test_answers_keep_the_constraints_and_reach_the_target(seed, shape, kind, target, grid):
    w, b, x, scale, rules = problem(seed, *shape, grid=grid)
    rows = np.repeat(x[None], 5, axis=0)
    frozen = np.random.default_rng(seed).random(rows.shape) < 0.3
    found = linear_recourse(w, b, rows, target=target, cost=kind(scale), constraints=rules, frozen=frozen)
    check(found, w, b, target, rules, frozen)
    free = linear_recourse(w, b, rows, target=target, cost=kind(scale), constraints=rules)
    check(free, w, b, target, rules)
    assert free.valid[found.valid].all()
    assert (free.distance[found.valid] <= found.distance[found.valid] * (1 + 1e-3) + 1e-12).all()


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
)
def test_rounding_never_leaves_an_answer_below_the_target(w, x, b, target):
    for cost in (L1(), L2()):
        check(linear_recourse(w, b, [x], target=target, cost=cost), np.array(w), b, target)


def test_a_target_met_exactly_by_whole_steps_needs_no_step_more():
    found = linear_recourse([1.0, 1.0], -3.0, [[0.0, 0.0]], cost=L1(), constraints=Constraints(2, integer=(0, 1)))
    assert found.distance.tolist() == [3.0]
    exact = linear_recourse([0.1, 0.7], -0.3, [[0.0, 0.0]], cost=L1((1, 9)), constraints=Constraints(2, integer=(0, 1)))
    check(exact, np.array([0.1, 0.7]), -0.3, 0.0)


def test_a_box_whose_corner_just_reaches_the_target_is_used():
    found = linear_recourse([1.0, 2.0], -3.0, [[0.0, 0.0]], constraints=Constraints(2, lower=0, upper=1))
    assert found.valid.all()
    np.testing.assert_array_equal(found.counterfactual, [[1, 1]])
    mixed = linear_recourse([1.0, 2.0], -3.0, [[0.0, 0.0]], constraints=Constraints(2, lower=0, upper=1, integer=(0,)))
    np.testing.assert_array_equal(mixed.counterfactual, [[1, 1]])


def test_each_query_may_have_its_own_bias():
    x, b = np.zeros((3, 2)), np.array([-1.0, -2.0, 1.0])
    found = linear_recourse([3.0, 4.0], b, x, constraints=Constraints(2))
    np.testing.assert_allclose(found.distance, [1 / 5, 2 / 5, 0], rtol=1e-9)
    np.testing.assert_array_equal(found.score, b)


def test_frozen_columns_need_no_other_constraints():
    frozen = np.array([[True, False], [False, False], [True, True]])
    found = linear_recourse([3.0, 4.0], -1.0, np.zeros((3, 2)), frozen=frozen)
    np.testing.assert_allclose(found.distance, [1 / 4, 1 / 5, 0], rtol=1e-9)
    assert found.valid.tolist() == [True, True, False]


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_weights_of_any_size_do(size):
    w = size * np.array([3.0, -4.0])
    for rules in (None, Constraints(2), Constraints(2, integer=(0,))):
        found = linear_recourse(w, -size, [[0.0, 0.0]], constraints=rules)
        check(found, w, -size, 0.0)
        assert found.distance[0] == pytest.approx(0.2 if rules is None or not rules.whole.any() else 0.25)


def test_a_model_without_weights_has_no_recourse():
    for rules in (None, Constraints(2, upper=5)):
        found = linear_recourse([0.0, 0.0], -1.0, np.ones((2, 2)), constraints=rules)
        assert not found.valid.any()
        assert found.proven.all()
    assert linear_recourse([0.0, 0.0], 1.0, np.ones((2, 2))).valid.all()


def test_an_answer_too_far_for_float64_is_no_answer():
    found = linear_recourse([1e-300], -1e300, [[0.0]])
    assert not found.valid.any()
    assert found.distance.tolist() == [0.0]


def test_the_answer_to_a_query_does_not_depend_on_its_company():
    w, b, x, scale, rules = problem(3, 6, (4, 3), 3)
    rng = np.random.default_rng(0)
    rows = np.repeat(x[None], 60, axis=0)
    rows[:, 2:6] = rng.integers(-3, 4, size=(60, 4))
    together = linear_recourse(w, b, rows, cost=L2(scale), constraints=rules)
    alone = [linear_recourse(w, b, row, cost=L2(scale), constraints=rules).distance[0] for row in rows]
    np.testing.assert_allclose(together.distance, alone, rtol=1e-9)
    assert linear_recourse(w, b, rows[:0], constraints=rules).counterfactual.shape == (0, len(w))


def test_constraints_and_costs_of_other_models_and_scores_that_overflow_are_refused():
    with pytest.raises(ConfigurationError, match="expected 2 columns, as the model has, got 3"):
        linear_recourse([1.0, 1.0], 0.0, [[0, 0]], constraints=Constraints(3))
    with pytest.raises(ConfigurationError, match="scale"):
        linear_recourse([1.0, 1.0], 0.0, [[0, 0]], cost=L2((1, 1, 1)))
    with pytest.raises(InputError, match="overflow"):
        linear_recourse([1e300, 1e300], 0.0, [[1e300, 0]])
