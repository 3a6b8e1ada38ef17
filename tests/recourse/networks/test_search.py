"""Search for recourse on networks: valid, near, within the constraints, and without a trace on the model."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.recourse.constraints import Constraints, Rule
from safexplain.recourse.cost import L1, L2, MAD
from safexplain.recourse.linear.solve import linear_recourse
from safexplain.recourse.networks import search
from safexplain.recourse.networks.boundary_search import Boundary, NetworkScore, Price
from safexplain.recourse.networks.search import (
    SearchOptions,
    _best_scattered,
    _better_of,
    _directions,
    network_recourse,
)

COSTS = [L2(), L2(tuple(np.linspace(0.5, 2.0, 8))), L1(), MAD(tuple(np.linspace(2.0, 0.5, 8)))]


def network(features=8, outputs=1, hidden=16, seed=0, activation=nn.ReLU, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = [nn.Linear(features, hidden), activation(), nn.Linear(hidden, hidden), activation()]
    net = nn.Sequential(*layers, nn.Linear(hidden, outputs))
    with torch.no_grad():
        for part in net:
            if isinstance(part, nn.Linear):
                part.weight.mul_(2.0)
    return net.to(dtype).eval()


def queries(net, count=40, features=8, seed=0):
    """Rows that the network does not favour."""
    x = np.random.default_rng(seed).normal(size=(40 * count, features))
    with torch.no_grad():
        out = net(torch.tensor(x, dtype=next(net.parameters()).dtype))
    return x[(out.reshape(-1) < -0.05).numpy()][:count]


def scores_of_single_rows(net, rows):
    dtype = next(net.parameters()).dtype
    with torch.no_grad():
        return np.array([float(net(torch.tensor(row[None], dtype=dtype))) for row in rows])


@pytest.mark.parametrize(
    ("cost", "dtype"), [*zip(COSTS, [torch.float32, torch.float64, torch.float64, torch.float32], strict=True)], ids=str
)
def test_answers_reach_the_target_by_the_models_own_score_one_row_at_a_time(cost, dtype):
    net = network(dtype=dtype)
    x = queries(net)
    for target in (0.0, 0.7):
        found = network_recourse(net, x, cost=cost, target=target)
        assert found.valid.mean() >= 1.0 - 0.05 * (target > 0)
        assert (scores_of_single_rows(net, found.counterfactual) >= target)[found.valid].all()
        assert found.distance == pytest.approx(cost.distance(found.counterfactual - x))
        assert ((found.distance > 0) == found.valid).all()


def linear(weights, bias):
    net = nn.Linear(len(weights), 1).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor(weights)[None])
        net.bias.fill_(bias)
    return net


SCALED = L2(tuple(np.linspace(0.5, 2.0, 12)))


@pytest.mark.parametrize(
    ("cost", "constraints", "aim"),
    [
        (L1(), Constraints(12), 1.001),
        (SCALED, Constraints(12, lower=-4, upper=4, immutable=(0, 1), increasing=(2,), decreasing=(3,)), 1.001),
        (SCALED, Constraints(12, one_hot=((0, 1, 2), (3, 4, 5, 6))), 1.005),
        (SCALED, Constraints(12, integer=tuple(range(12)), lower=-9, upper=9), 1.03),
        (L1(), Constraints(12, integer=(7, 8), one_hot=((0, 1, 2), (3, 4, 5, 6)), lower=-9, upper=9), 1.01),
    ],
    ids=["free", "box", "one-hot", "integer", "mixed"],
)
def test_a_linear_model_gets_the_answers_of_linear_recourse(cost, constraints, aim):
    rng = np.random.default_rng(1)
    weights = rng.normal(size=12)
    x = constraints.project(rows := rng.normal(size=(150, 12)).clip(-4, 4) - 0.3 * weights, rows)
    for group in constraints.groups:
        x[:, group] = np.eye(len(group))[rng.integers(0, len(group), len(x))]
    found = network_recourse(linear(weights, -1.0), x, cost=cost, constraints=constraints)
    exact = linear_recourse(weights, -1.0, x, cost=cost, constraints=constraints)
    assert (found.favourable == exact.favourable).all()
    assert (found.valid >= exact.valid).all()
    unfavourable = found.valid & exact.valid & ~found.favourable
    ratio = found.distance[unfavourable] / exact.distance[unfavourable]
    assert ratio.mean() <= aim
    assert ratio.max() <= 1 + 10 * (aim - 1)


DISCRETE = Constraints(9, integer=(0, 1, 2), lower=0, upper=4, one_hot=((3, 4, 5), (6, 7, 8)), increasing=(0,))


def every_row():
    whole = np.array(list(itertools.product(range(5), repeat=3)), dtype=float)
    options = np.array([np.r_[a, b] for a, b in itertools.product(np.eye(3), np.eye(3))])
    return np.array([np.r_[w, o] for w, o in itertools.product(whole, options)])


@pytest.mark.parametrize("cost", [L2(), L1()], ids=str)
def test_discrete_answers_are_those_of_trying_every_row(cost):
    net, grid = network(9, activation=nn.Tanh, dtype=torch.float64, seed=3), every_row()
    scores = scores_of_single_rows(net, grid)
    x = grid[scores < 0][::7][:60]
    for target in (0.0, np.quantile(scores, 0.97)):  # near the top some queries have no recourse
        found = network_recourse(net, x, cost=cost, constraints=DISCRETE, target=target)
        distance = np.array(
            [
                cost.distance(allowed - row).min(initial=np.inf)
                for row in x
                for allowed in [grid[(scores >= target) & (grid[:, 0] >= row[0])]]
            ]
        )
        assert not (found.valid & np.isinf(distance)).any()
        assert found.valid[np.isfinite(distance)].mean() >= 0.97
        ratio = found.distance[found.valid] / distance[found.valid]
        assert ratio.min() >= 1 - 1e-12
        assert ratio.mean() <= 1.03
        assert (ratio < 1 + 1e-9).mean() >= 0.85


MIXED = Constraints(
    8, lower=-3, upper=3, immutable=(0,), integer=(1, 2), increasing=(3,), decreasing=(4,), one_hot=((5, 6, 7),)
)


@pytest.mark.parametrize("cost", COSTS[1:3], ids=str)
def test_answers_stay_within_the_constraints(cost):
    net = network(seed=5)
    x = queries(net, 60).clip(-3, 3)
    x[:, 1:3] = np.rint(x[:, 1:3])
    x[:, 5:] = np.eye(3)[np.arange(len(x)) % 3]
    frozen = np.zeros(x.shape, dtype=bool)
    frozen[::2, 3], frozen[::3, 6] = True, True
    found = network_recourse(net, x, cost=cost, constraints=MIXED, frozen=frozen)
    assert MIXED.satisfied(x, found.counterfactual, frozen).all()
    assert (found.counterfactual[:, 0] == x[:, 0]).all()
    assert (found.counterfactual[::2, 3] == x[::2, 3]).all()
    assert (found.counterfactual[::3, 5:] == x[::3, 5:]).all()
    assert found.valid.mean() > 0.5
    assert (scores_of_single_rows(net, found.counterfactual)[found.valid] >= 0).all()
    assert np.isfinite(found.counterfactual).all()


def test_favourable_queries_stay_as_they_are_and_hopeless_ones_are_marked():
    net = linear(np.array([1.0, 1.0]), 0.0)
    x = np.array([[1.0, 1.0], [-1.0, 0.5], [-4.0, -4.0]])
    found = network_recourse(net, x, constraints=Constraints(2, lower=-5, upper=1))
    assert found.favourable.tolist() == [True, False, False]
    assert found.valid.all()
    hopeless = network_recourse(net, x, constraints=Constraints(2, lower=-5, upper=1), frozen=np.array([True, False]))
    assert hopeless.valid.tolist() == [True, True, False]
    for result, row in ((found, 0), (hopeless, 0), (hopeless, 2)):
        assert (result.counterfactual[row] == x[row]).all()
        assert result.distance[row] == 0


def test_later_starts_leave_a_plateau():
    class Flat(nn.Module):
        def forward(self, rows):
            return (rows.norm(dim=1) - 1.0).clamp_min(0.0) - 0.5  # flat around the origin

    found = network_recourse(Flat(), np.zeros((1, 4)))
    alone = network_recourse(Flat(), np.zeros((1, 4)), options=SearchOptions(starts=1))
    assert not alone.valid[0]
    assert found.valid[0]
    assert found.distance[0] == pytest.approx(1.5, rel=1e-3)


class First(nn.Module):
    """Scores a row by its first column."""

    def forward(self, rows):
        return rows[:, 0]


def task(rise, fall, target=1.0, batch_size=8192):
    torch.set_default_dtype(torch.float64)
    try:
        score = NetworkScore(First(), batch_size=batch_size)
    finally:
        torch.set_default_dtype(torch.float32)
    return Boundary(score, target, Price(torch.tensor(rise).double(), torch.tensor(fall).double(), squared=True), 10)


def test_directions_are_steps_of_cost_one_any_way():
    units = torch.tensor([0.5, 1.0, 3.0]).double()  # the lower price of rising and falling
    steps = _directions(task([0.5, 4.0, 3.0], [2.0, 1.0, 3.0]), 2000, torch.Generator().manual_seed(1)) * units
    assert steps.norm(dim=1).numpy() == pytest.approx(1.0)
    assert (steps.mean(dim=0).abs() < 0.05).all()
    assert steps.square().mean(dim=0).numpy() == pytest.approx(1 / 3, abs=0.03)


def test_of_two_rows_the_valid_one_is_better_then_the_nearer_then_that_of_higher_score():
    pairs = torch.tensor(
        [
            [[2, 0], [0, 0]], [[0, 0], [2, 0]],  # one is valid
            [[2, 0], [3, 0]], [[3, 0], [2, 0]], [[1.5, 2], [2, 0]],  # both are: the nearer
            [[0.2, 9], [0.1, 0]], [[0.1, 0], [0.2, 9]],  # none is: the higher score
            [[2, 0.5], [2, -0.5]], [[0.5, 1], [0.5, 0]],  # a tie: the first
        ]
    ).double()  # fmt: skip
    better = _better_of(task([1.0, 1.0], [1.0, 1.0]), torch.zeros(9, 2).double(), pairs[:, 0], pairs[:, 1])
    second = (better != pairs[:, 0]).any(dim=1)
    assert second.tolist() == [False, True, False, True, True, False, True, False, False]
    assert (better == torch.where(second[:, None], pairs[:, 1], pairs[:, 0])).all()


def test_scattered_points_lie_at_all_distances_and_the_nearest_valid_or_the_highest_is_taken():
    prices = torch.tensor([0.5, 2.0]).double()
    one = task([0.5, 2.0], [0.5, 2.0], batch_size=512)
    x = torch.tensor([[0.0, 1.0], [-4.0, 0.0], [-100.0, 3.0]]).double()
    low, high = torch.full((3, 2), -200.0).double(), torch.tensor([[50.0, 1.5], [50.0, 50.0], [-90.0, 50.0]]).double()
    found = _best_scattered(one, x, x, low, high, torch.Generator().manual_seed(3))
    steps = _directions(one, 256, torch.Generator().manual_seed(3)).numpy()
    for row in range(3):
        reach = 10 * (1 + np.abs(x[row].numpy() * prices.numpy()).max())
        points = x[row].numpy() + reach * np.logspace(-3, 0, 256)[:, None] * steps
        points = np.clip(points, low[row].numpy(), high[row].numpy())
        far = np.linalg.norm((points - x[row].numpy()) * prices.numpy(), axis=1)
        valid = points[:, 0] >= 1.0
        expected = np.where(valid, far, np.inf).argmin() if valid.any() else points[:, 0].argmax()
        assert found[row].numpy() == pytest.approx(points[expected])
        assert bool(valid.any()) == (row < 2)


def test_searches_start_in_turn_around_the_query_and_around_the_best(monkeypatch):
    one, x = task([0.5, 2.0], [0.5, 2.0]), torch.tensor([[0.0, 1.0], [-4.0, 0.0]]).double()
    origin, generator, begun = x + 0.25, torch.Generator().manual_seed(0), []
    far = [[np.inf, 3.0], [np.inf], [np.inf, 2.0], [np.inf, 4.0], [5.0, 2.0], [5.0, 1.0]]  # the second: the lost row

    def nearest(task, x, aim, start, lower, upper):
        begun.append(start)
        return start + 1.0, torch.tensor(far[len(begun) - 1]).double()

    def scattered(*given):
        return _directions(one, 256, given[-1])[:1]

    monkeypatch.setattr(search, "nearest", nearest)
    monkeypatch.setattr(search, "_best_scattered", scattered)
    found = search._nearest_of_starts(one, x, torch.ones(2).double(), origin, x - 9, x + 9, 5)
    best, at = origin + 1.0, torch.full((2,), np.inf).double()
    at[1] = 3.0
    assert begun[1].equal(_directions(one, 256, generator)[:1])
    for k in range(1, 5):
        away = ((best - x) * torch.tensor([0.5, 2.0])).norm(dim=1)
        radius = torch.where(at.isfinite(), away, away.clamp_min(1.0) * k)[:, None] * _directions(one, 1, generator)
        start = origin + 1.5 * radius if k % 2 else best + 0.7 * radius
        assert begun[k + 1].numpy() == pytest.approx(start.numpy())
        new = torch.tensor(far[k + 1])
        best, at = torch.where((new < at)[:, None], start + 1.0, best), torch.minimum(new.double(), at)
    assert found.numpy() == pytest.approx(best.numpy())
    for starts in (1, 2):
        begun[:] = []
        search._nearest_of_starts(one, x, torch.ones(2).double(), origin, x - 9, x + 9, starts)
        assert len(begun) == (1, 3)[starts - 1]


def test_the_same_call_gives_the_same_answer_and_so_does_another_batch():
    net = network()
    x = queries(net, 12)
    whole, again = (network_recourse(net, x, constraints=Constraints(8, lower=-4, upper=4)) for _ in range(2))
    assert (whole.counterfactual == again.counterfactual).all()
    small = network_recourse(net, x, constraints=Constraints(8, lower=-4, upper=4), options=SearchOptions(batch_size=5))
    some = x[:4]
    alone = [network_recourse(net, row, constraints=Constraints(8, lower=-4, upper=4)).distance[0] for row in some]
    assert np.quantile(np.abs(small.distance / whole.distance - 1), 0.9) < 1e-3
    assert np.quantile(np.abs(np.array(alone) / whole.distance[:4] - 1), 0.9) < 1e-3


def test_no_queries_give_no_answers():
    found = network_recourse(network(), np.empty((0, 8)))
    assert len(found) == 0
    assert found.counterfactual.shape == (0, 8)


D = 8
RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=D)
X = np.hstack([RNG.normal(size=(24, 5)), np.eye(3)[RNG.integers(0, 3, 24)]])
BIAS = -2.0 - float(np.median(X @ WEIGHTS))
FEW = SearchOptions(starts=3)
PRICES = {
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


def small_network(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, 1)).double()


PAIRS = [*zip(LIMITS, [*PRICES, "L1", "L2"], strict=True), ("all", "asymmetric L1"), ("all", "asymmetric L2")]


@pytest.mark.parametrize(("limit", "cost"), PAIRS)
def test_where_the_score_is_linear_the_search_finds_nearly_the_proven_answers(limit, cost):
    rules = limited(**LIMITS[limit])
    x = X[:8]
    exact = linear_recourse(WEIGHTS, BIAS, x, cost=PRICES[cost], constraints=rules)
    found = network_recourse(line(), x, cost=PRICES[cost], constraints=rules, options=FEW)
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
    rules, model = limited(**LIMITS[limit]), small_network()
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
    found = network_recourse(model, X[:6], target=5.0, cost=PRICES[cost], constraints=rules, options=FEW)
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
