import os
from itertools import product

import numpy as np
import pytest

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import EUCLIDEAN, L1, L2
from safexplain.recourse.linear import program
from safexplain.recourse.linear.program import Answer, Change, Query, _Search, cheapest
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.solution import Solution

SPAN = 3


def solve_program(w, x, bias=0.0, target=0.0, cost=EUCLIDEAN, constraints=None, frozen=None):
    """Every query by the program, whatever could be solved without it."""
    x = np.atleast_2d(np.asarray(x, dtype=float))
    rules = Constraints(len(w)) if constraints is None else constraints
    score = x @ w + bias
    frozen, bias = np.zeros(x.shape, dtype=bool) if frozen is None else frozen, np.broadcast_to(bias, len(x))
    rows, valid, proven = x.copy(), score >= target, score >= target
    for at in np.flatnonzero(score < target):
        found = cheapest(w, float(bias[at]), target, x[at], cost, rules, frozen[at], 0.0, 10.0)
        proven[at], valid[at] = found.proven, found.row is not None
        if found.row is not None:
            rows[at] = found.row
            assert cost.distance(rows[at] - x[at]) ** cost.power == pytest.approx(found.paid)
            assert found.bound == pytest.approx(found.paid, rel=2e-6)
    lost = np.zeros(len(x), dtype=bool)
    return Solution(x, rows, valid, cost.distance(rows - x), score, score >= target, lost, proven=proven)


def costs(rng, d):
    return [
        L1(rng.uniform(0.3, 3, d)),
        L2(rng.uniform(0.3, 3, d)),
        L1(rng.uniform(0.3, 3, d), rise=rng.uniform(0.3, 3, d), fall=rng.uniform(0.3, 3, d)),
        L2(rise=2.0, fall=0.5),
    ]


def discrete(seed):
    """One query of whole numbers and categories, with every kind of constraint in turn, and its weights."""
    rng = np.random.default_rng(seed)
    d = 7
    extra = [
        {},
        {"most_changes": 2},
        {"largest_change": {0: 2, 1: 1}, "step": {2: 2}},
        {"rules": (Rule(0, 1), Rule(1, 0))},
        {"rules": (Rule(0, 1, per_unit=0.5, at_least=1), Rule(5, 3, per_unit=2)), "most_changes": 3},
    ][seed % 5]
    rules = Constraints(
        d, lower=-SPAN, upper=SPAN, integer=(0, 1, 2, 3), one_hot=((4, 5, 6),), increasing=(1,), **extra
    )
    x = np.append(rng.integers(-SPAN, SPAN + 1, 4), np.eye(3)[rng.integers(3)]).astype(float)
    w = rng.normal(size=d)
    w[seed % 2] *= -1 if w[seed % 2] > 0 else 1
    return w, x, rules, costs(rng, d)[(seed // 5) % 4], rng


def every_row(d=4, span=SPAN):
    numbers = np.array(list(product(range(-span, span + 1), repeat=d)), dtype=float)
    return np.vstack([np.hstack([numbers, np.tile(category, (len(numbers), 1))]) for category in np.eye(3)])


ROWS = every_row()


@pytest.mark.parametrize("kind", range(0, 20, 2))  # of each kind of constraints two, of each cost two or three
def test_discrete_answers_are_those_of_trying_every_row(kind):
    found_none = 0
    for seed in range(kind, kind + 80, 20):
        w, x, rules, cost, _ = discrete(seed)
        allowed = ROWS[rules.satisfied(np.broadcast_to(x, ROWS.shape), ROWS)]
        scores = allowed @ w
        target = float(np.quantile(scores[scores > w @ x], 0.9)) if seed < 60 else float((ROWS @ w).max()) - 1e-6
        best = cost.distance(allowed - x)[scores >= target].min(initial=np.inf)
        found = solve_program(w, x, target=target, cost=cost, constraints=rules)
        assert found.proven[0], seed
        assert found.valid[0] == np.isfinite(best), seed
        found_none += not found.valid[0]
        if found.valid[0]:
            assert found.distance[0] == pytest.approx(best, rel=1e-6), seed
            assert rules.satisfied(found.x, found.counterfactual)[0]
            assert (found.counterfactual @ w)[0] >= target
    assert found_none <= 1


@pytest.mark.parametrize("which", range(4))
def test_no_row_that_a_search_at_random_finds_is_cheaper(which):
    rng = np.random.default_rng(which)
    d = 5
    w = np.array([1.0, -0.5, 2.0, 0.7, 0.1])
    cost = costs(rng, d)[which]
    rules = Constraints(
        d,
        lower=-4,
        upper=4,
        increasing=(0, 3),
        most_changes=3,
        rules=(Rule(0, 3, per_unit=0.5), Rule(2, 1, at_least=0.5), Rule(3, 0, per_unit=0.1)),
    )
    x = rng.uniform(-2, 2, size=(3, d))
    target = 5.0
    found = solve_program(w, x, target=target, cost=cost, constraints=rules)
    assert found.proven.all()
    assert found.valid.all()
    assert rules.satisfied(x, found.counterfactual).all()
    assert (found.counterfactual @ w >= target).all()
    for row, distance, answer in zip(x, found.distance, found.counterfactual, strict=True):
        near = rng.random((20000, 1)) < 0.5
        tried = np.where(near, answer + 0.05 * rng.normal(size=(20000, d)), rng.uniform(-4, 4, size=(20000, d)))
        tried = np.where(rng.random(tried.shape) < 0.5, row, tried)
        start = np.broadcast_to(row, tried.shape)
        tried = rules.project(start, tried)
        good = rules.satisfied(start, tried) & (tried @ w >= target)
        assert good.any()
        assert cost.distance(tried[good] - row).min() >= distance * (1 - 1e-6)


def test_columns_of_any_size_are_solved():
    """Incomes of a million with weights of a millionth, beside shares of a thousandth."""
    size = np.array([1e6, 1.0, 1e-3, 1e4])
    w = np.array([1.0, 0.7, -0.8, 0.5]) / size
    x = np.array([[41_000.0, 2.0, 0.004, 12_000.0]])
    rules = Constraints(4, lower=0, upper=10 * size, integer=(0, 3), rules=(Rule(0, 3, per_unit=0.01),))
    for cost in (L1(size), L2(size)):
        found = solve_program(w, x, target=9.0, cost=cost, constraints=rules)
        small = Constraints(4, lower=0, upper=10, rules=(Rule(0, 3),))
        same = solve_program(w * size, x / size, target=9.0, cost=type(cost)(), constraints=small)
        assert found.proven.all()
        assert found.distance == pytest.approx(same.distance, rel=1e-4)  # whole dollars


def test_what_is_out_of_reach_is_proven_to_be():
    rules = Constraints(3, lower=-1, upper=1, rules=(Rule(0, 1, per_unit=5),))
    w = np.array([1.0, -1.0, 0.5])
    frozen = np.array([[True, True, True], [False, False, False]])
    found = solve_program(w, np.zeros((2, 3)), target=0.4, constraints=rules, frozen=frozen)
    assert found.valid.tolist() == [False, True]
    assert found.proven.all()
    beyond = solve_program(w, np.zeros(3), target=2.4, constraints=rules)
    assert not beyond.valid[0]
    assert beyond.proven[0]
    assert (beyond.counterfactual == 0).all()
    at_least = Constraints(2, lower=-1, upper={0: 1, 1: 2}, rules=(Rule(0, 1, at_least=0.5),))
    just = solve_program(np.array([1.0, -0.1]), np.zeros(2), target=0.85, constraints=at_least)
    np.testing.assert_allclose(just.counterfactual, [[1, 1.5]], rtol=1e-6)


def test_nothing_is_printed(capfd):
    for seed in range(100, 130):
        w, x, rules, cost, _ = discrete(seed)
        solve_program(w, x, target=float(w @ x + 3), cost=cost, constraints=rules)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_what_others_print_meanwhile_is_kept(capfd):
    with program._silent():
        os.write(1, b"HighsMipSolverData::something\nhello\n")
    os.write(1, b"later\n")
    assert capfd.readouterr().out == "hello\nlater\n"


UP_AND_DOWN = Constraints(3, step={1: 0.5}, rules=(Rule(0, 1),), lower=-50, upper=50)


def test_only_changes_that_raise_the_score_or_follow_a_rule_are_open():
    free = np.zeros(4, dtype=bool)
    rules = Constraints(4, lower=-5, upper=5, rules=(Rule(0, 3),))
    query = Query.of(np.zeros(4), np.array([2.0, -1.0, 0.0, -1.0]), EUCLIDEAN, rules, free)
    assert (query.low.tolist(), query.high.tolist()) == ([0, -5, 0, -5], [5, 0, 0, 5])
    one_way = L2(rise=(1, 1, 1, 2), fall=4.0)
    near = Query.of(np.zeros(4), np.array([2.0, -1.0, 0.0, -1.0]), one_way, rules, free).narrowed(16.0)
    assert near.low == pytest.approx([0, -1, 0, -1], rel=2e-9)
    assert near.high == pytest.approx([4, 0, 0, 2], rel=2e-9)
    whole = Query.of(np.zeros(3), np.array([1.0, -1.0, 1.0]), EUCLIDEAN, UP_AND_DOWN, free[:3]).narrowed(1.69)
    assert (whole.low[1], whole.high[1]) == (-1.0, 1.0)


@pytest.mark.parametrize("kind", [L1, L2])
def test_the_guess_of_the_cost_is_that_without_limits_and_the_radius_grows_from_it(kind, monkeypatch):
    w, x, cost = np.array([2.0, -1.0, 0.5]), np.array([0.3, 0.1, -1.0]), kind((1, 2, 0.5), rise=2.0)
    query = Query.of(x, w, cost, Constraints(3), np.zeros(3, dtype=bool))
    least = linear_recourse(w, 0.5, x, target=4.0, cost=cost).distance[0] ** cost.power
    assert _Search(w, 0.5, 4.0, query, 0.0).unlimited() == pytest.approx(least)
    radii = []
    answers = {3: Answer(x + 1, 1e6 * least, 2e-3), 4: Answer(x + 1, 1e6 * least, 1e3 * least)}

    def within(search, near, radius):
        radii.append(radius / least)
        return answers.get(len(radii), Answer(None, np.inf, np.inf))

    monkeypatch.setattr(_Search, "within", within)
    asked = w, 0.5, 4.0, x, cost, Constraints(3), np.zeros(3, dtype=bool)
    assert cheapest(*asked, 0.0, 9.0) is answers[4]
    assert radii == pytest.approx([4, 64, 1024, 1e6 * (1 + 1e-6)])
    radii.clear()
    answers.clear()
    found = cheapest(*asked, 3 * least, 9.0)
    assert (found.row, found.paid, found.bound) == (None, np.inf, pytest.approx(radii[-1] * least))
    assert radii == pytest.approx(12 * 16.0 ** np.arange(14))


def test_lines_under_a_square_touch_it_at_the_change_and_at_the_steps_beside_it():
    x, frozen = np.array([0.3, -0.2, 0.1]), np.zeros(3, dtype=bool)
    for rise, fall, at, size in ((3.0, 1.0, 1, 0.5), (1.0, 2.0, 0, 0.0)):
        query = Query.of(x, np.array([1.0, 0.4, 1.0]), L2(rise=rise, fall=fall), UP_AND_DOWN, frozen)
        change = Change(query.narrowed(1e4), 1e4)
        row = x + 7.0 * (np.arange(3) == at)
        assert change.refine(row)
        assert not change.refine(row)
        slope, value = np.array(change._lines[at]).T
        tried = np.arange(-40, 41) * 0.5
        below, square = (slope * tried[:, None] + value).max(axis=1), (np.where(tried > 0, rise, fall) * tried) ** 2
        assert (below <= square * (1 + 1e-9) + 1e-9).all()
        touched = tried[np.isclose(below, square, rtol=1e-9)]
        assert set(touched) >= ({6.5, 7.0, 7.5} if size else {7.0})
