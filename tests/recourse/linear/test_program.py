from __future__ import annotations

import os
from itertools import product

import numpy as np
import pytest

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import EUCLIDEAN, L1, L2
from safexplain.recourse.linear import program
from safexplain.recourse.linear.program import cheapest
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


def test_nothing_is_printed(capfd):
    for seed in range(100, 130):
        w, x, rules, cost, _ = discrete(seed)
        solve_program(w, x, target=float(w @ x + 3), cost=cost, constraints=rules)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_what_others_print_meanwhile_is_kept(capfd):
    with program._silent():
        os.write(1, b"HighsMipSolverData::something\nhello\n")
    assert capfd.readouterr().out == "hello\n"
