"""The exact step within a box, against its dual problem; the search that takes such steps, one row at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.networks.boundary_search import (
    Boundary,
    NetworkScore,
    Price,
    _ActiveRows,
    _advance,
    linear_step,
    nearest,
    shorten,
)
from safexplain.recourse.networks.search import Moves

WIDTH = 6


def problems(count, seed, outside=True):
    """Weights, x, slopes, where they were taken, the rise that is wanted, and a box, which need not hold x."""
    rng = np.random.default_rng(seed)
    x, at = rng.normal(size=(count, WIDTH)), rng.normal(size=(count, WIDTH))
    slope = rng.normal(size=(count, WIDTH)) * (rng.random((count, WIDTH)) < 0.8)
    centre = x + outside * rng.normal(size=x.shape)
    lower, upper = centre - rng.exponential(size=x.shape), centre + rng.exponential(size=x.shape)
    pinned = rng.random(x.shape) < 0.2
    upper = np.where(pinned, lower, upper)
    return rng.uniform(0.3, 3.0, WIDTH), x, slope, at, rng.normal(size=count), lower, upper


def solved(squared, weight, *rest):
    points, multiplier = linear_step(
        Price(torch.tensor(weight), torch.tensor(weight), squared), *map(torch.tensor, rest)
    )
    return points.numpy(), multiplier.numpy()


@given(st.integers(0, 10_000), st.booleans())
def test_a_step_is_the_cheapest_that_rises_enough(seed, squared):
    weight, x, slope, at, rise, lower, upper = problems(8, seed)
    points, multiplier = solved(squared, weight, x, slope, at, rise, lower, upper)
    assert ((points >= lower) & (points <= upper)).all()

    def risen(rows):
        return (slope * (rows - at)).sum(axis=1)

    def cost(rows):
        return (weight * (rows - x)) ** 2 / 2 if squared else np.abs(weight * (rows - x))

    most = risen(np.where(slope > 0, upper, lower))
    np.testing.assert_allclose(np.minimum(risen(points), rise), np.minimum(most, rise), atol=1e-9)
    price = multiplier[:, None] * slope
    ends = [np.clip(end, lower, upper) for end in (-np.inf, np.inf, x, x + price / weight**2)]
    dual = np.min([cost(end) - price * (end - at) for end in ends], axis=0).sum(axis=1) + multiplier * rise
    paid = cost(points).sum(axis=1)
    assert (paid <= dual + 1e-7 * (1 + paid + multiplier))[most >= rise].all()  # no row of the box costs less


def test_columns_that_do_not_move_are_bit_for_bit_those_of_x():
    weight, x, slope, at, rise, lower, upper = problems(50, 1, outside=False)
    lower[:, 0] = upper[:, 0] = x[:, 0]
    points, _ = solved(False, weight, x, slope, at, rise, np.minimum(lower, x), np.maximum(upper, x))
    assert (points[:, 0] == x[:, 0]).all()
    assert ((points == x).sum(axis=1) >= 1).all()
    assert ((points != x) & (points != lower) & (points != upper)).sum(axis=1).max() <= 1  # a sum: one stops half way


def test_moves_are_every_allowed_neighbour_and_nothing_else():
    constraints = Constraints(6, integer=(0, 1), upper={0: 3}, lower={0: 0}, one_hot=((3, 4, 5),), immutable=(4,))
    x = np.array([[3.0, 0.0, 0.5, 1.0, 0.0, 0.0], [0.0, 2.0, 0.5, 0.0, 1.0, 0.0]])
    lower, upper = (torch.tensor(b) for b in constraints.bounds(x))
    after, allowed = Moves.of(constraints, torch.device("cpu")).apply(torch.tensor(x), lower, upper)
    found = [{tuple(row.tolist()) for row in rows[mask]} for rows, mask in zip(after, allowed, strict=True)]
    assert found[0] == {
        (2.0, 0.0, 0.5, 1.0, 0.0, 0.0),
        (3.0, 1.0, 0.5, 1.0, 0.0, 0.0),
        (3.0, -1.0, 0.5, 1.0, 0.0, 0.0),
        (3.0, 0.0, 0.5, 0.0, 0.0, 1.0),
    }
    assert found[1] == {
        (1.0, 2.0, 0.5, 0.0, 1.0, 0.0),
        (0.0, 3.0, 0.5, 0.0, 1.0, 0.0),
        (0.0, 1.0, 0.5, 0.0, 1.0, 0.0),
    }


class Wavy(nn.Module):
    """A score with valleys, in float64."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, rows):
        return rows[:, 0] * rows[:, 1] + (3 * rows[:, 2]).sin() - rows[:, 2].square() / 4 + self.own


def wavy(squared, steps=30, target=1.0):
    rise, fall = torch.tensor([[0.5, 1.0, 2.0], [1.5, 0.7, 2.0]]).double()
    return Boundary(NetworkScore(Wavy()), target, Price(rise, fall, squared), steps)


QUERIES = torch.tensor(
    [[0.0, 0.0, 0.0], [-1.0, 0.5, 2.0], [2.0, -1.0, 0.3], [-0.4, -0.6, -2.0], [0.1, 0.1, 0.5], [0.0, 1.2, 0.0]]
).double()


def slow_step(task, x, aim, lower, upper, at, value, slope, radius, multiplier, idle):
    """One trust-region step of one row, case by case."""
    price, span = task.price, radius / task.price.unit
    box = torch.maximum(lower, at - span), torch.minimum(upper, at + span)
    tried, wanted = (
        part[0] for part in linear_step(price, *(each[None] for each in (x, slope, at, aim - value, *box)))
    )
    new, new_slope = (part[0] for part in task.score.gradients(tried[None]))
    cost = float(price.energy(tried - x))
    extra = cost - float(price.energy(at - x))
    reached = value, new, value + slope @ (tried - at)
    short, new_short, foreseen = (max(float(aim - score), 0.0) for score in reached)
    closed = short - foreseen
    multiplier = max(multiplier, 1.5 * float(wanted), 2 * extra / closed if closed > 1e-12 else 0.0)
    promised, gained = multiplier * closed - extra, multiplier * (short - new_short) - extra
    ratio = gained / promised if promised > 0 else 0.0
    length = float(((tried - at) * price.unit).abs().max())
    if ratio < 0.25:
        radius = 0.35 * min(length, radius)
    elif ratio > 0.75:
        radius = max(radius, 2 * length)
    little = 1e-4 * (cost + multiplier * new_short)
    if promised <= little or (ratio > 1e-3 and gained < little):
        idle += 1
    elif ratio > 1e-3:
        idle = 0
    done = length <= 0 or idle >= 3 or radius < 1e-4 * float(((tried - x) * price.unit).abs().max())
    state = (tried, new, new_slope) if ratio > 1e-3 else (at, value, slope)
    return (*state, radius, multiplier, idle), (tried, new, done)


@pytest.mark.parametrize("squared", [True, False])
def test_steps_of_all_rows_at_once_are_those_of_one_row_at_a_time(squared):
    task, x = wavy(squared), QUERIES
    value, slope = task.score.gradients(x)
    none, lower, upper = torch.zeros_like(value), x - 3, x + 2
    aim = task.aim(value)
    rows = _ActiveRows(none, x, aim, lower, upper, x, value, slope, task.reach(x), none, none)
    states = [(x[k], value[k], slope[k], float(task.reach(x)[k]), 0.0, 0) for k in range(len(x))]
    for _ in range(14):
        tried, scores, done = _advance(task, rows)
        for k in range(len(x)):
            states[k], (point, score, last) = slow_step(task, x[k], aim[k], lower[k], upper[k], *states[k])
            found = (rows.at[k], rows.value[k], rows.slope[k], rows.radius[k], rows.multiplier[k], rows.idle[k])
            for fast, slow in zip((*found, tried[k], scores[k]), (*states[k], point, score), strict=True):
                assert np.asarray(fast) == pytest.approx(np.asarray(slow), rel=1e-5, abs=1e-9)
            assert bool(done[k]) == last
    assert done.any()
    assert not done.all()


FOUND = {  # squared, steps: distances, and sums of points
    (True, 3): ([np.inf, np.inf, np.inf, 0.86899134, 0.24536152, 0.34798981],
     [0.50741931, 0.84177457, 2.33805351, -3.69825201, 1.23636746, 1.94703796]),
    (True, 30): ([np.inf, 1.48054008, 1.07172242, 0.82773229, 0.15044632, 0.34798981],
     [0.49607320, -0.46717187, 2.53007185, -3.65538551, 1.02675814, 1.94703796]),
    (False, 30): ([np.inf, 1.94550183, 1.12070612, 1.40490236, 0.21067100, 0.41708332],
     [0.49607320, -1.23630486, 2.42070613, -3.51836011, 1.04119645, 2.03416668]),
}  # fmt: skip


@pytest.mark.parametrize(("squared", "steps"), FOUND)
def test_searches_find_what_they_found_before(squared, steps):
    task, x = wavy(squared, steps), QUERIES
    points, distance = nearest(task, x, task.aim(task.score.values(x)), x, x - 3, x + 2)
    assert distance.numpy() == pytest.approx(FOUND[squared, steps][0], rel=1e-6)
    assert points.sum(dim=1).numpy() == pytest.approx(FOUND[squared, steps][1], rel=1e-6)


def test_the_goal_the_aim_and_the_reach_leave_room_for_rounding():
    task, eps = wavy(True, target=-3.0), np.finfo(float).eps
    assert task.goal == -3.0 + 64 * eps * 4.0
    assert task.reach(QUERIES).numpy() == pytest.approx([10, 50, 20, 50, 20, 18.4])
    aims = task.aim(torch.tensor([-7.0, -3.0]).double())
    assert aims.tolist() == [pytest.approx(-3.0 + 4e-3), -3.0 + (64 * 4 + 16 * 3) * eps]


def test_a_start_counts_from_the_goal_on_and_is_moved_into_the_box():
    task, x = wavy(False, steps=0), torch.tensor([[0.5, 0.5, 0.0]] * 2).double()
    start = torch.tensor([[9.0, goal, 0.0] for goal in (task.goal, math.nextafter(task.goal, 0.0))], dtype=x.dtype)
    at, distance = nearest(task, x, torch.ones(2).double(), start, x - 5, x + torch.tensor([0.5, 3.0, 1.0]))
    assert at.tolist() == [[1.0, *row[1:]] for row in start.tolist()]
    assert distance.tolist() == [pytest.approx(0.75), math.inf]
    one = torch.tensor([[0.0, 1.0, 0.0]]).double()
    aim = torch.full((1,), task.goal, dtype=x.dtype)
    at, distance = nearest(wavy(False, steps=1), one, aim, one, one, one + torch.tensor([2.0, 0.0, 0.0]))
    assert (at[0, 0].item(), distance.item()) == (task.goal, task.goal / 2)


def test_valid_points_are_drawn_towards_the_query_by_sixteen_halvings():
    task, x = wavy(True), torch.zeros(4, 3).double()
    best = torch.tensor([[3, 2, 0], [3, 2, 0], [2, task.goal, 0], [0, 0, 0]], dtype=x.dtype)
    lower = torch.tensor([[0, 0, 0], [0, 1, 0], [0, task.goal, 0], [0, 0, 0]], dtype=x.dtype)
    moved = shorten(task, x, best, torch.tensor([9.0, 9.0, 9.0, math.inf]), lower, x + 5)
    share = math.ceil(math.sqrt(1 / 6) * 2**16) / 2**16
    other = math.ceil((math.sqrt(7 / 3) - 1) / 2 * 2**16) / 2**16  # 3 t (1 + t) = 1
    expected = [[3 * share, 2 * share, 0], [3 * other, 1 + other, 0], [1, task.goal, 0], [0, 0, 0]]
    assert moved.tolist() == expected
