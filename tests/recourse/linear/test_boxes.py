"""Boxes of single queries beside steps: an answer is a whole number of steps from the query, to the last bit."""

import numpy as np

from safexplain.recourse import L1, Constraints
from safexplain.recourse.linear.solve import linear_recourse


def test_steps_are_counted_from_the_query_where_its_box_does_not_hold_it():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (400, 2))
    rules = Constraints(2, lower=0, upper=200, step={0: 5, 1: 0.3})
    within = (x + rng.uniform(10, 30, x.shape), x + rng.uniform(60, 99, x.shape))
    answer = linear_recourse([1.0, 0.7], -80.0, x, cost=L1(), constraints=rules, within=within)
    assert answer.valid.mean() > 0.5
    assert rules.satisfied(x, answer.counterfactual)[answer.valid].all()
