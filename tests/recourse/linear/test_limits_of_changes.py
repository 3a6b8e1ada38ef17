"""Answers of linear scores under largest changes, steps, largest numbers of changes, rules, and every cost."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from recourse_linear_oracle import every_row, least_cost
from scipy.optimize import linprog

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear import program
from safexplain.recourse.linear.solve import linear_recourse

NAMES = ("age", "income", "education", "employment", "rents", "owns", "family")
COSTS = {
    "L1": L1((5, 10, 1, 3, 1, 1, 1)),
    "L2": L2((5, 10, 1, 3, 1, 1, 1)),
    "asymmetric L1": L1((5, 10, 1, 3, 1, 1, 1), rise=(1, 1, 2, 1, 1, 0.5, 1), fall=(3, 0.4, 1, 2, 1, 1, 1)),
    "asymmetric L2": L2((5, 10, 1, 3, 1, 1, 1), rise={"education": 2, "owns": 0.5}, fall={"age": 3, "income": 0.4}),
}
LIMITS = {
    "steps": {},
    "largest change": {"largest_change": {"income": 15, "employment": 1}},
    "two changes": {"most_changes": 2},
    "one change": {"most_changes": 1},
    "rules": {"rules": (Rule("education", "age", per_unit=2), Rule("employment", "age"))},
    "both directions": {"rules": (Rule("employment", "age"), Rule("age", "employment"))},
    "any degree": {"rules": (Rule("education", "age", per_unit=0, at_least=3), Rule("owns", "income", at_least=5))},
    "all": {
        "most_changes": 3,
        "largest_change": {"income": 20, "age": 4},
        "rules": (Rule("education", "age", per_unit=2), Rule("owns", "employment")),
        "decreasing": ("rents",),
    },
}


def lending(**limits):
    options = {"increasing": ("age",)} | limits
    return Constraints(
        NAMES,
        lower={"age": 18, "income": 0, "education": 0, "employment": 0},
        upper={"age": 70, "income": 60, "education": 4, "employment": 40},
        integer=("age", "education", "employment"),
        one_hot=(("rents", "owns", "family"),),
        step={"income": 5},
        **options,
    )


def people(count, seed=0):
    """Weights, queries and biases, so that some answers are near, some far, and some out of reach."""
    rng = np.random.default_rng(seed)
    x = np.column_stack(
        [
            rng.integers(25, 40, count),
            rng.uniform(3, 25, count).round(1),
            rng.integers(0, 4, count),
            rng.integers(0, 6, count),
            np.eye(3)[rng.integers(0, 3, count)],
        ]
    )
    w = rng.normal(size=7) * [0.2, 0.1, 1, 0.4, 1, 1, 1]
    return w, x, -(x @ w) - rng.uniform(0.1, 4, count)


@cache
def small(limit):
    """Four people, constraints that leave so little that all rows can be tried, and every row that each may become."""
    w, x, b = people(4, seed=sorted(LIMITS).index(limit))
    near = {"age": 5, "income": 25, "education": 3, "employment": 5}
    rules = lending(**LIMITS[limit] | {"largest_change": near | LIMITS[limit].get("largest_change", {})})
    reach = np.array([*near.values(), 1, 1, 1])
    return w, x, b, rules, [every_row(row, rules, row - reach, row + reach) for row in x]


PAIRS = [*zip(LIMITS, [*COSTS, *COSTS], strict=True), *(("all", cost) for cost in COSTS if cost != "asymmetric L2")]
"""Each limit with a cost, and all limits together with each cost."""


@pytest.mark.parametrize(("limit", "cost"), PAIRS)
def test_answers_are_the_cheapest_of_all_rows_that_the_constraints_allow(limit, cost):
    w, x, b, rules, every = small(limit)
    found = linear_recourse(w, b, x, cost=COSTS[cost], constraints=rules)
    assert rules.satisfied(x, found.counterfactual)[found.valid].all()
    assert (found.counterfactual @ w + b >= 0)[found.valid].all()
    assert found.proven.all()
    for at in range(4):
        best = least_cost(x[at], every[at], w, b[at], 0.0, COSTS[cost].named(NAMES))
        assert found.valid[at] == np.isfinite(best)
        assert found.distance[at] == pytest.approx(best if np.isfinite(best) else 0.0, rel=1e-6)


@pytest.mark.parametrize(
    ("cost", "most", "whole"), [("L1", 1, True), ("L2", 3, False), ("L2", 3, True), ("asymmetric L2", 3, True)]
)
def test_the_best_few_features_are_those_of_trying_all_of_them(cost, most, whole):
    rng = np.random.default_rng(most)
    d, n = 10, 3
    w, x, scale = rng.normal(size=d), np.rint(2 * rng.normal(size=(n, d))).clip(-4, 4), rng.uniform(0.5, 2, d)
    x[:, 7:] = np.eye(3)[rng.integers(0, 3, n)]
    kind, sides = (
        (L2, {"rise": 2.0, "fall": rng.uniform(0.3, 3, d)}) if "asym" in cost else (L1 if cost == "L1" else L2, {})
    )
    rules = Constraints(
        d, lower=-5, upper=5, integer=(0, 1, 2, 3) if whole else (), one_hot=((7, 8, 9),), largest_change=3,
        most_changes=most, increasing=(4,),
    )  # fmt: skip
    b = -(x @ w) - rng.uniform(0.5, 8, n)
    found = linear_recourse(w, b, x, cost=kind(scale, **sides), constraints=rules)
    assert rules.satisfied(x, found.counterfactual).all()
    assert found.proven.all()
    for at in range(n):
        kept = itertools.combinations([*range(7), 7], most)  # the category is one feature, that of column 7
        held = np.array([[c not in few and not (c > 6 and 7 in few) for c in range(d)] for few in kept])
        rows, any_ = np.repeat(x[[at]], len(held), axis=0), replace(rules, most_changes=None)
        slow = linear_recourse(w, b[at], rows, cost=kind(scale, **sides), constraints=any_, frozen=held)
        assert slow.proven.all()
        assert found.valid[at] == slow.valid.any()
        if found.valid[at]:
            assert found.distance[at] == pytest.approx(slow.distance[slow.valid].min(), rel=2e-6)


def test_linear_costs_that_differ_up_and_down_match_a_linear_program_in_any_box():
    rng = np.random.default_rng(0)
    w, x, (rise, fall) = rng.normal(size=6), rng.normal(size=(20, 6)), rng.uniform(0.2, 3, (2, 6))
    low, high = x - rng.uniform(0, 1.5, x.shape), x + rng.uniform(0, 1.5, x.shape)
    b, met = -(x @ w) - rng.uniform(0.1, 3, 20), 0
    for at in range(20):
        rules = Constraints(6, lower=low[at], upper=high[at], largest_change=1.0)
        found = linear_recourse(w, b[at], x[at], cost=L1(rise=rise, fall=fall), constraints=rules)
        lower, upper = np.maximum(low[at], x[at] - 1), np.minimum(high[at], x[at] + 1)
        change = np.hstack([np.eye(6), -np.eye(6)])
        limits = np.vstack([change, -change, -np.append(w, -w)])
        sides = np.concatenate([upper - x[at], x[at] - lower, [x[at] @ w + b[at]]])
        best = linprog(np.append(rise, fall), A_ub=limits, b_ub=sides)
        assert found.valid[0] == (best.status == 0)
        assert found.proven[0]
        if found.valid[0]:
            assert found.distance[0] == pytest.approx(best.fun, rel=1e-7, abs=1e-9)
            met += 1
    assert met > 2


def test_a_time_limit_leaves_what_was_found_and_no_proof(monkeypatch):
    monkeypatch.setattr(program, "SHORTEST", 0.0)
    rules = lending(most_changes=2, rules=(Rule("employment", "age"),))
    w, x, b = people(6, seed=2)
    found = linear_recourse(w, b, x, cost=COSTS["L2"], constraints=rules, time_limit=1e-6)
    assert rules.satisfied(x, found.counterfactual).all()
    assert not found.proven.all()
