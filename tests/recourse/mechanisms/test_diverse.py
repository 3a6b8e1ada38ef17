from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.mechanisms.mechanism import diverse

RULES = Constraints(7, lower=-6, upper=6, integer=(0, 1), one_hot=((2, 3, 4),))
W = np.array([1.0, -0.7, -1.0, 0.5, 1.5, 2.0, 0.4])


def queries(n=40):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 7))
    x[:, :2] = np.rint(x[:, :2])
    x[:, 2:5] = np.eye(3)[rng.integers(0, 3, n)]
    return x


def main_feature(found, cost, rules):
    """The feature with the largest share of each answer's cost, written as a loop: a set of columns a query."""
    main = []
    for row in found.change:
        parts = cost.parts(row[None])[0]
        features = [{column} for column in range(len(row)) if not any(column in group for group in rules.groups)]
        features += [set(group.tolist()) for group in rules.groups]
        main.append(max(features, key=lambda columns: sum(parts[list(columns)])) if row.any() else set())
    return main


def leaves_alone(answers, cost, rules):
    """Whether every later answer keeps what dominated each earlier one."""
    for at, earlier in enumerate(answers):
        for query, columns in enumerate(main_feature(earlier, cost, rules)):
            if any(later.change[query, list(columns)].any() for later in answers[at + 1 :]):
                return False
    return True


@pytest.mark.parametrize("cost", [L1(), L2(), L2((1, 2, 1, 1, 1, 3, 0.5))])
def test_later_answers_leave_alone_what_dominated_the_earlier_ones(cost):
    x = queries()
    solve = partial(linear_recourse, W, -4.0, x, cost=cost, constraints=RULES)
    answers = diverse(lambda frozen: solve(frozen=frozen), x, 4, cost=cost, constraints=RULES)
    assert len(answers) == 4
    assert leaves_alone(answers, cost, RULES)
    assert not leaves_alone((answers[0], answers[0]), cost, RULES)
    np.testing.assert_array_equal(answers[0].counterfactual, solve().counterfactual)
    for earlier, later in pairwise(answers):
        assert earlier.valid[later.valid].all()
        assert (later.distance >= earlier.distance - 1e-9)[later.valid].all()
        assert RULES.satisfied(x, later.counterfactual).all()
    changed = answers[1].valid & ~answers[1].favourable
    assert changed.sum() > 10


def test_when_the_options_run_out_later_answers_are_not_valid():
    calls = []

    def solve(frozen):
        calls.append(frozen.copy())
        return linear_recourse([1.0, 2.0], -1.0, np.zeros((1, 2)), cost=L1(), frozen=frozen)

    answers = diverse(solve, np.zeros(2), 5, cost=L1())
    assert [bool(found.valid[0]) for found in answers] == [True, True, False, False, False]
    assert not answers[2].change.any()
    assert len(calls) == 3  # nothing new to freeze: not asked again
    assert [int(frozen.sum()) for frozen in calls] == [0, 1, 2]


def test_favourable_queries_have_the_same_answer_throughout():
    x = np.array([[5.0, 0.0], [0.0, 0.0]])
    answers = diverse(lambda frozen: linear_recourse([1.0, 2.0], -1.0, x, frozen=frozen), x, 3)
    for found in answers:
        assert found.favourable.tolist() == [True, False]
        assert found.valid[0]
        np.testing.assert_array_equal(found.counterfactual[0], x[0])
