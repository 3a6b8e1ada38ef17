from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recourse_linear_oracle import all_counts, integer_program

from safexplain.errors import ConfigurationError, InputError
from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear import solve
from safexplain.recourse.linear.program import Slack
from safexplain.recourse.linear.solve import Items, linear_recourse


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


LARGE, SMALL = (4, 23), (2, 4)
WIDE = [(LARGE, L1), (SMALL, L1), (SMALL, L2)]


def wide(seed, columns):
    """One query whose weights and scales may each span four decades: w, b, x, scale, constraints."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(columns[0], columns[1] + 1))
    w, scale = (
        size * 10 ** rng.uniform(-half, half, d)
        for size, half in zip((rng.normal(size=d), rng.uniform(0.3, 3, d)), rng.choice([0, 1, 2], 2), strict=True)
    )
    whole = int(rng.integers(1, d + 1))
    ends = [whole]
    while len(ends) < 3 and d - ends[-1] >= 2 and rng.random() < 0.6:
        ends.append(ends[-1] + int(rng.integers(2, min(5, d - ends[-1]) + 1)))
    groups = [np.arange(start, stop) for start, stop in pairwise(ends)]
    span = rng.choice([4, 30]) if columns == SMALL else rng.choice([4, 30, 1000])
    rules = Constraints(d, lower=-span, upper=span, integer=tuple(range(whole)), one_hot=tuple(map(tuple, groups)))
    x = np.clip(4 * rng.normal(size=d), -span, span)
    x[:whole] = np.rint(x[:whole])
    for group in groups:
        x[group] = np.arange(len(group)) == rng.integers(len(group))
    lower, upper = (side[0] for side in rules.bounds(x[None]))
    most = (np.abs(w) * np.where(w > 0, np.minimum(upper - x, 20), np.minimum(x - lower, 20))).sum()
    return w, float(-(w @ x) - 10 ** rng.uniform(-2, -0.1) * most), x, scale, rules


def excesses(seeds, columns, cost):
    """By what share answers cost more than the best, one for each problem that has an answer."""
    found = []
    for seed in seeds:
        w, b, x, scale, rules = wide(seed, columns)
        answer = linear_recourse(w, b, x, cost=cost(scale), constraints=rules)
        if answer.favourable[0]:
            continue
        if columns == LARGE:
            best = integer_program(w, b, x, 1 / scale, rules)
        else:
            best = all_counts(w, b, x, 1 / scale, rules, cost.power)
        assert answer.valid[0] == np.isfinite(best)
        if answer.valid[0]:
            found.append(answer.distance[0] / best - 1)
    return np.array(found)


def test_euclidean_answers_do_not_switch_a_category_that_fine_steps_can_save():
    rules = Constraints(4, lower=-15, upper=15, integer=(0,), one_hot=((1, 2),))
    w, b, x, scale = np.array([0.0474, 0.052, -60.4, 0.033]), 59.3, np.array([-5, 0, 1, 0.5]), (22, 0.17, 39, 21)
    found = linear_recourse(w, b, x, cost=L2(scale), constraints=rules)
    assert found.distance[0] == pytest.approx(all_counts(w, b, x, 1 / np.array(scale), rules, 2), rel=1e-9)
    assert found.change[0, 0] > 9
    assert found.distance[0] < 2 < L2(scale).distance(np.array([0, 1, -1, 0]))


@pytest.mark.parametrize("power", [1, 2])
def test_the_least_of_each_item_and_the_counts_near_it_are_those_of_trying_all(power):
    step, unit, most = np.array([0.7, 2.0, 0.3]), np.array([0.5, 3.0, 0.4]), np.array([[9.0, 6.0, 4.0]] * 2)
    gain, cost = np.array([[0.0, 1.0, 3.0]] * 2), np.array([[0.0, 1.5, 2.5]] * 2)
    room, rate = np.array([[0.8, 2.0]] * 2), np.array([0.4, 1.5])
    items = Items(step, unit, most, (gain,), (cost,), Slack(room, rate, power))
    level, gap = np.array([1.1, 2.5]), np.array([1.3, 4.0])
    low, high = items.near(level, gap)
    parts = np.linspace(0, 1, 2001)[:, None, None] * room
    free = (rate * parts**power - level[:, None] * parts).min(axis=0).sum(axis=1)
    found = items.least(level)
    np.testing.assert_allclose(found[:, 0], (cost - level[:, None] * gain).min(axis=1))
    np.testing.assert_allclose(found[:, -1], free, atol=1e-5)
    for row, (m, g) in enumerate(zip(level, gap, strict=True)):
        for i in range(3):
            counts = np.arange(most[row, i] + 1)
            worth = (unit[i] * counts) ** power - m * step[i] * counts
            assert (low[row, i], high[row, i]) == tuple(counts[worth <= worth.min() + g][[0, -1]])
            assert found[row, 1 + i] == pytest.approx(worth.min())


def test_columns_whose_steps_cost_alike_are_traded_far_from_the_relaxed_counts():
    w, unit, b = np.array([0.541, 1.730, 1.542]), np.array([0.453, 0.550, 0.490]), -142.31
    rules = Constraints(3, lower=0, upper=120, integer=(0, 1, 2))
    best = all_counts(w, b, np.zeros(3), unit, rules, 1)
    found = linear_recourse(w, b, np.zeros(3), cost=L1(1 / unit), constraints=rules)
    assert found.distance[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(("columns", "cost"), WIDE)
def test_answers_are_optimal_when_scales_span_four_decades(columns, cost):
    excess = excesses(range(60), columns, cost)
    assert len(excess) > 40
    assert excess.min() > -1e-9
    assert excess.max() < 1e-6


@pytest.mark.parametrize("kind", ["equal", "nearly equal", "correlated"])
def test_answers_are_optimal_when_columns_cost_alike_for_what_they_gain(kind):
    rng = np.random.default_rng(7)
    for _ in range(4):
        w = 2.0 * rng.integers(10, 50_000 if kind == "nearly equal" else 60, 10)
        unit = {"equal": w, "nearly equal": w * (1 + 1e-3 * rng.random(10)), "correlated": w + 20}[kind]
        rules = Constraints(10, lower=-4, upper=4, integer=tuple(range(10)))
        x = np.rint(rng.uniform(-4, 2, 10))
        b = 2 * np.floor((-(w @ x) - rng.uniform(0.1, 0.5) * 4 * w.sum()) / 2) - 1  # odd: no steps gain just that
        found = linear_recourse(w, b, x, cost=L1(1 / unit), constraints=rules)
        assert found.distance[0] == pytest.approx(integer_program(w, b, x, unit, rules), rel=1e-6)


@pytest.mark.parametrize(("columns", "cost"), WIDE)
def test_lists_that_grow_too_long_are_left_to_the_integer_program(columns, cost, monkeypatch):
    for seed in range(10):
        w, b, x, scale, rules = wide(seed, columns)
        monkeypatch.undo()
        listed = linear_recourse(w, b, x, cost=cost(scale), constraints=rules)
        monkeypatch.setattr(solve, "STATES", 0)
        programmed = linear_recourse(w, b, x, cost=cost(scale), constraints=rules)
        assert listed.proven[0]
        assert programmed.proven[0]
        assert programmed.distance == pytest.approx(listed.distance, rel=2e-6)
