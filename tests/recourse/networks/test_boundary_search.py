"""The exact step within a box, against its dual problem."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from safexplain.recourse.constraints import Constraints
from safexplain.recourse.networks.boundary_search import Price, linear_step
from safexplain.recourse.networks.discrete_search import Moves

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
