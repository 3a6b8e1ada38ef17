"""The exact step within a box, against solvers that know nothing of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

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


def least_cost(squared, w, x, slope, at, rise, lower, upper):
    """By linear programming over the parts above and below x, or by SLSQP; None where the box holds no such point."""
    best = np.where(slope > 0, upper, lower)
    if slope @ (best - at) < rise - 1e-9:
        return None
    if not squared:
        eye = np.eye(WIDTH)
        found = linprog(
            np.r_[w, w],
            A_ub=np.vstack([-np.r_[slope, -slope], np.c_[eye, -eye], np.c_[-eye, eye]]),
            b_ub=np.r_[-(rise - slope @ (x - at)), upper - x, x - lower],
        )
        return found.fun
    found = minimize(
        lambda z: ((z - x) * w) @ ((z - x) * w) / 2,
        best,
        jac=lambda z: (z - x) * w**2,
        bounds=list(zip(lower, upper, strict=True)),
        constraints={"type": "ineq", "fun": lambda z: slope @ (z - at) - rise, "jac": lambda z: slope},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.fun


@pytest.mark.parametrize("squared", [True, False])
def test_a_step_is_the_cheapest_that_rises_enough(squared):
    weight, *rest = problems(120, 0)
    points, _ = solved(squared, weight, *rest)
    price, reachable = Price(torch.tensor(weight), torch.tensor(weight), squared), 0
    for k, (x, slope, at, rise, lower, upper) in enumerate(zip(*rest, strict=True)):
        point = points[k]
        assert ((point >= lower) & (point <= upper)).all()
        cheapest = least_cost(squared, weight, x, slope, at, rise, lower, upper)
        if cheapest is None:
            assert slope @ point == pytest.approx(slope @ np.where(slope > 0, upper, lower), abs=1e-9)
            continue
        reachable += 1
        assert slope @ (point - at) >= rise - 1e-9
        assert float(price.energy(torch.tensor(point - x))) == pytest.approx(cheapest, rel=1e-5, abs=1e-7)
    assert 20 < reachable < 120


@given(st.integers(0, 10_000), st.booleans())
def test_no_feasible_point_is_cheaper(seed, squared):
    weight, *rest = problems(8, seed)
    x, slope, at, rise, lower, upper = rest
    points, multiplier = solved(squared, weight, *rest)
    price = Price(torch.tensor(weight), torch.tensor(weight), squared)
    cost = price.energy(torch.tensor(points - x)).numpy()
    tries = lower + np.random.default_rng(seed).random((300, *x.shape)) * (upper - lower)
    enough = ((tries - at) * slope).sum(axis=2) >= rise
    others = price.energy(torch.tensor(tries - x)).numpy()
    assert (others >= cost - 1e-9)[enough].all()
    dual = others + multiplier * (rise - ((tries - at) * slope).sum(axis=2))  # weak duality, for any try
    reached = ((points - at) * slope).sum(axis=1) >= rise - 1e-9
    assert (dual >= cost - 1e-7 * (1 + cost + multiplier))[:, reached].all()


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
