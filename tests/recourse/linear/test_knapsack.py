from itertools import pairwise

import numpy as np
import pytest
from recourse_linear_oracle import all_counts, integer_program

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear import solve
from safexplain.recourse.linear.program import Slack
from safexplain.recourse.linear.solve import Items, linear_recourse

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
