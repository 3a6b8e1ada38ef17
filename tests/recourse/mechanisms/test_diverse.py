"""Several answers to one query: each later one keeps the features that dominated the earlier ones."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from safexplain.dp import PrivacyStatement, Steps
from safexplain.recourse import L1, L2, Constraints, DPModelRecourse

RULES = Constraints(7, lower=-6, upper=6, integer=(0, 1), one_hot=((2, 3, 4),))
W = np.array([1.0, -0.7, -1.0, 0.5, 1.5, 2.0, 0.4])
STATED = PrivacyStatement("a loop of our own", 400, 1e-5, phases=(Steps(4.0, 1.0, 10, "full-batch"),))


def line(weights, bias, **options):
    """Recourse from a linear model that refuses below 0."""
    model = LogisticRegression()
    model.coef_, model.intercept_, model.classes_ = np.array([weights]), np.array([bias]), np.array([0, 1])
    return DPModelRecourse(model, privacy=STATED.bound_to(model), **options)


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


@pytest.mark.parametrize("cost", [L1(), L2((1, 2, 1, 1, 1, 3, 0.5))])
def test_later_answers_leave_alone_what_dominated_the_earlier_ones(cost):
    x, mechanism = queries(), line(W, -4.0, cost=cost, constraints=RULES)
    answers = mechanism.explain_diverse(x, 4)
    assert len(answers) == 4
    assert leaves_alone(answers, cost, RULES)
    assert not leaves_alone((answers[0], answers[0]), cost, RULES)
    np.testing.assert_array_equal(answers[0].counterfactual, mechanism.explain(x, infeasible="mark").counterfactual)
    for earlier, later in pairwise(answers):
        assert earlier.valid[later.valid].all()
        assert (later.distance >= earlier.distance - 1e-9)[later.valid].all()
        assert RULES.satisfied(x, later.counterfactual).all()
    assert (answers[1].valid & ~answers[1].favourable).sum() > 10


def test_when_the_options_run_out_later_answers_are_not_valid():
    answers = line([1.0, 2.0], -1.0, cost=L1()).explain_diverse([[0.0, 0.0], [5.0, 0.0]], 5)
    assert [bool(found.valid[0]) for found in answers] == [True, True, False, False, False]
    assert not answers[2].change.any()
    assert [found.change[0].tolist() for found in answers[:2]] == [[0, pytest.approx(0.5)], [pytest.approx(1), 0]]
    for found in answers:
        assert found.favourable.tolist() == [False, True]
        assert found.valid[1]
