"""Searches in networks under largest changes, steps, numbers of changes, rules, boxes and every cost."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.networks.search import SearchOptions, network_recourse

D = 8
RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=D)
X = np.hstack([RNG.normal(size=(24, 5)), np.eye(3)[RNG.integers(0, 3, 24)]])
BIAS = -2.0 - float(np.median(X @ WEIGHTS))
FEW = SearchOptions(starts=3)
COSTS = {
    "L1": L1(),
    "L2": L2((1, 2, 1, 0.5, 1, 1, 1, 1)),
    "asymmetric L1": L1(rise=(3, 1, 1, 0.4, 1, 1, 2, 1), fall=(1, 2, 1, 1, 3, 1, 1, 1)),
    "asymmetric L2": L2(rise=(3, 1, 1, 0.4, 1, 1, 2, 1), fall=(1, 2, 1, 1, 3, 1, 1, 1)),
}
LIMITS = {
    "largest change": {"largest_change": 1.0},
    "steps": {"step": {0: 0.5, 1: 0.3, 3: 1.0}, "largest_change": {1: 1.2}},
    "three changes": {"most_changes": 3},
    "one change": {"most_changes": 1},
    "rules": {"rules": (Rule(0, 1, per_unit=2), Rule(3, 4), Rule(7, 2, at_least=0.5))},
    "all": {"most_changes": 3, "step": {0: 0.5}, "largest_change": 2.5, "rules": (Rule(3, 1), Rule(4, 0))},
}


def limited(**limits):
    return Constraints(D, lower=-5, upper=5, one_hot=((5, 6, 7),), **limits)


def line():
    model = nn.Linear(D, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(WEIGHTS)[None])
        model.bias.fill_(BIAS)
    return model


def network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, 1)).double()


PAIRS = [*zip(LIMITS, [*COSTS, "L1", "L2"], strict=True), ("all", "asymmetric L1"), ("all", "asymmetric L2")]


@pytest.mark.parametrize(("limit", "cost"), PAIRS)
def test_where_the_score_is_linear_the_search_finds_nearly_the_proven_answers(limit, cost):
    rules = limited(**LIMITS[limit])
    x = X[:8]
    exact = linear_recourse(WEIGHTS, BIAS, x, cost=COSTS[cost], constraints=rules)
    found = network_recourse(line(), x, cost=COSTS[cost], constraints=rules, options=FEW)
    assert exact.proven.all()
    assert rules.satisfied(x, found.counterfactual).all()
    assert not (found.valid & ~exact.valid).any()
    assert found.valid.sum() >= 0.95 * exact.valid.sum()
    both = found.valid & exact.valid & ~exact.favourable
    assert both.sum() > 2
    excess = found.distance[both] / exact.distance[both] - 1
    assert excess.min() > -1e-6
    assert excess.mean() < 0.1
    assert np.median(excess) < 0.01


@pytest.mark.parametrize("limit", ["steps", "all"])
def test_answers_of_a_network_keep_every_limit_and_reach_the_target(limit):
    rules, model = limited(**LIMITS[limit]), network()
    target = float(np.quantile(model(torch.tensor(X)).detach().numpy(), 0.7))
    found = network_recourse(model, X, target=target, constraints=rules, options=FEW)
    asked = ~found.favourable
    assert rules.satisfied(X, found.counterfactual).all()
    scores = model(torch.tensor(found.counterfactual))[:, 0].detach().numpy()
    assert (scores[found.valid] >= target).all()
    assert found.valid[asked].mean() > 0.5
    assert found.proven.tolist() == found.favourable.tolist()
    free = network_recourse(model, X, target=target, constraints=limited(), options=FEW)
    broken = free.valid & ~rules.satisfied(X, free.counterfactual)
    assert broken.sum() > 5  # the limit matters


RECORDED = {  # limit, cost: distances at the target 5
    ("steps", "L2"): [0.688143888, 1.60404161, 1.78264794, 3.10512206, 1.72787173, 3.23595912],
    ("three changes", "asymmetric L2"): [1.12240663, 1.13071504, 3.59967097, 0.0, 1.51172611, 2.20366257],
    ("rules", "L2"): [0.650959, 3.72723264, 1.30428284, 2.49353601, 1.58794347, 4.22682275],
    ("all", "asymmetric L1"): [2.46584311, 3.7974013, 5.1285591, 7.73008485, 3.57776647, 0.0],
}


@pytest.mark.parametrize(("limit", "cost"), RECORDED)
def test_searches_under_limits_find_what_they_found_before(limit, cost):
    rng, model = np.random.default_rng(5), nn.Sequential(nn.Linear(D, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.tensor(rng.normal(size=tuple(parameter.shape))))
    rules = limited(**LIMITS[limit])
    found = network_recourse(model, X[:6], target=5.0, cost=COSTS[cost], constraints=rules, options=FEW)
    assert found.distance == pytest.approx(RECORDED[limit, cost], rel=1e-6)


def test_a_query_may_lie_outside_its_box_where_it_is_frozen():
    frozen, x = np.zeros(X.shape, dtype=bool), X.copy()
    frozen[:, 1], x[:, 1] = True, 50.0
    for rules in (limited(), limited(most_changes=2)):
        exact = linear_recourse(WEIGHTS, BIAS - 50 * WEIGHTS[1], x, constraints=rules, frozen=frozen)
        model = line()
        with torch.no_grad():
            model.bias.sub_(50 * WEIGHTS[1])
        found = network_recourse(model, x, constraints=rules, frozen=frozen)
        assert (found.counterfactual[:, 1] == 50).all()
        assert found.valid.sum() >= 0.9 * exact.valid.sum() > 10
