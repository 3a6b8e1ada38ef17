"""PublicDirection: steps along a public direction whose noise covers what one record can change them by."""

from __future__ import annotations

import numpy as np
import pytest
from recourse_privacy_oracle import SIDES, largest_loss, leaning, log_probabilities, lower_bound, two_gaussians
from scipy.stats import kstest, laplace

from safexplain.errors import ConfigurationError, InfeasibleError, InputError
from safexplain.recourse import L1, L2, Constraints, Percentile, PublicDirection, Rule
from safexplain.recourse.mechanisms import public_direction
from safexplain.recourse.mechanisms.stable_score import StableScore

UP = np.array([1.0, 0.0])


def mechanism(direction=(1.0, 1.0), **options):
    return PublicDirection(np.asarray(direction), **{"epsilon": 1.0, "norm_bound": 5.0, "random_state": 0, **options})


def trained(X, y, direction=(1.0, 1.0), **options):
    return mechanism(direction, **options).fit(X, y)


def with_weights(given, weights):
    """The same mechanism as if training had given other weights."""
    model = given._get("model")
    given._set(model=StableScore(np.asarray(weights), model.norm_bound, model.constant, model.stability))
    return given


def exact_step(fitted, x):
    """(n,) what no answer may tell: the step without noise, by the formula of the class's docstring."""
    model, u = fitted._get("model"), np.asarray(fitted.direction)
    scale = model.norm_bound * np.hypot(1, model.constant)
    w, b = model.weights[:-1] / scale, model.weights[-1] * model.constant / np.hypot(1, model.constant)
    gap, slope = fitted.target - (np.atleast_2d(x) @ w + b), w @ u
    low, high = fitted._ends()
    if fitted.slope_floor is not None:
        slope = max(slope, fitted.slope_floor)
    return np.clip(gap / slope, low, high) if slope > 0 else np.where(gap > 0, high, low)


# The sensitivity


def largest_change(seed, rounds=4000, **options):
    """Largest change of the step over the sensitivity, among weights at most S apart, aligned to do harm."""
    rng, worst = np.random.default_rng(seed), 0.0
    X, y = two_gaussians(40, 2)
    fitted = trained(X, y, rng.normal(size=2), regularization=8.0, target=rng.choice([0.0, 0.4]), **options)
    model = fitted._get("model")
    low, high = fitted._ends()
    move = model.moved(np.asarray(fitted.direction))
    for _ in range(rounds):
        x = rng.normal(size=(1, 2)) * rng.choice([0.1, 1.0, 6.0])
        weights = rng.normal(size=3) * rng.choice([0.3, 1.0, 3.0])
        harm = model.lifted(x)[0] + rng.choice([low, high, rng.uniform(low, high), 0.0]) * move
        shift = rng.choice([-1, 1]) * harm / np.linalg.norm(harm) * model.stability
        steps = [exact_step(with_weights(fitted, w), x)[0] for w in (weights, weights + shift)]
        worst = max(worst, abs(steps[0] - steps[1]) / fitted.sensitivity(x)[0])
    return worst


@pytest.mark.parametrize("floor", [0.05, 0.3])
@pytest.mark.parametrize("smallest", [None, 0.0])
def test_no_change_of_weights_moves_the_step_beyond_the_sensitivity(floor, smallest):
    for seed in range(4):
        found = largest_change(seed, 600, slope_floor=floor, largest_step=3.0, smallest_step=smallest)
        assert 0.2 < found <= 1 + 1e-9


def test_the_sensitivity_is_nearly_reached():
    assert max(largest_change(s, slope_floor=0.3, largest_step=20.0, smallest_step=0.0) for s in range(3)) > 0.85


def test_without_a_floor_the_whole_range_is_the_sensitivity_and_is_reached():
    assert mechanism(largest_step=3.0).fit(*two_gaussians(40, 2)).sensitivity(np.zeros((2, 2))).tolist() == [3.0, 3.0]
    assert 0.99 < largest_change(0, 600, largest_step=3.0) <= 1 + 1e-9


def test_a_sensitivity_that_forgets_the_slope_is_exceeded(monkeypatch):
    def gap_only(self, lifted):
        return self._get("model").sensitivity(lifted) / self.slope_floor

    monkeypatch.setattr(PublicDirection, "_sensitivity", gap_only)
    assert largest_change(0, slope_floor=0.05, largest_step=20.0) > 1.5


@pytest.mark.parametrize("bad", [-5.0, -0.01, 0.0, 0.01])
def test_a_direction_that_points_the_wrong_way_costs_validity_and_not_privacy(bad):
    fitted = trained(*two_gaussians(40, 2), UP, slope_floor=0.2, largest_step=4.0, epsilon=1e4)
    with_weights(fitted, [bad, 1.0, 0.3])
    answer = fitted.explain([[-1.0, -3.0], [1.0, -3.0]])
    assert np.isfinite(answer.counterfactual).all()
    assert (answer.score >= -4.0 * 0.2 - 1e-9).all()
    np.testing.assert_allclose(answer.change[:, 0], np.maximum(exact_step(fitted, answer.x), 0), atol=1e-2)


def test_without_a_floor_a_wrong_direction_means_the_largest_step():
    fitted = trained(*two_gaussians(40, 2), UP, largest_step=4.0, epsilon=1e4)
    answer = with_weights(fitted, [-1.0, 1.0, 0.3]).explain([[-1.0, -3.0], [1.0, 3.0]])
    np.testing.assert_allclose(answer.change[:, 0], [4.0, 0.0], atol=1e-2)


# The statement


def worst_pair(**options):
    given = {
        "norm_bound": 1.0,
        "intercept_scaling": 0.0,
        "regularization": 5.0,
        "slope_floor": 0.7,
        "largest_step": 1.0,
        "direction": np.array([0.0, -0.1]),
        **options,
    }
    return [PublicDirection(**{"epsilon": 1.0, "random_state": 0, **given}).fit(*leaning(side)) for side in SIDES]


def exact_loss(pair, x):
    logs = []
    for one in pair:
        options = (float(one.sensitivity(x)[0]), one.epsilon, *one._ends())
        logs.append(log_probabilities(exact_step(one, x)[0], *options))
    return largest_loss(*logs)


def test_the_exact_loss_of_an_answer_is_within_epsilon_and_nearly_reaches_it():
    assert 0.75 < exact_loss(worst_pair(), UP) <= 1 + 1e-9
    assert exact_loss(worst_pair(), np.array([2.0, 1.0])) <= 1 + 1e-9


def test_the_loss_of_the_whole_range_is_epsilon():
    pair = [
        with_weights(one, w) for one, w in zip(worst_pair(slope_floor=None), ([0, 1.0, 0], [0, -1.0, 0]), strict=True)
    ]
    assert exact_loss(pair, np.array([0.0, -9.0])) == pytest.approx(1.0, rel=1e-3)


def runs_of(shrink=1.0):
    """Steps of two data sets whose exact steps are the ends of the range; the noise is that of the range, shrunk."""
    pair = worst_pair(slope_floor=None, epsilon=1.0 / shrink)
    for one, sign in zip(pair, (1.0, -1.0), strict=True):
        with_weights(one, [0.0, sign, 0.0])
    return [-one.explain(np.tile([0.0, -9.0], (20_000, 1))).score for one in pair]


def test_an_attacker_proves_no_more_than_epsilon_and_half_of_the_noise_is_caught():
    assert 0.7 < abs_bound(runs_of()) <= 1.0
    assert abs_bound(runs_of(shrink=0.5)) > 1.5


def abs_bound(runs):
    return max(lower_bound(*runs), lower_bound(*runs[::-1]))


def test_the_noise_is_for_the_sensitivity():
    fitted = trained(*two_gaussians(400, 2), regularization=40.0, slope_floor=0.5, largest_step=8.0)
    x = np.array([[0.5, -0.4]])
    step = -fitted.explain(np.repeat(x, 20_000, axis=0)).score / 0.5
    scale = fitted.sensitivity(x)[0]
    assert kstest(step - exact_step(fitted, x)[0], laplace(scale=scale).cdf).pvalue > 1e-3
    assert kstest(step - exact_step(fitted, x)[0], laplace(scale=scale * 1.1).cdf).pvalue < 1e-3


# Answers


def test_a_step_that_is_clear_of_noise_reaches_the_target():
    X, y = two_gaussians(2000, 2)
    fitted = trained(X, y, epsilon=1e6, slope_floor=0.01, largest_step=50.0, target=0.5)
    answer = fitted.explain(X[:100])
    model, asked = fitted._get("model"), ~answer.favourable
    reached = model.lifted(answer.counterfactual) @ model.weights
    np.testing.assert_allclose(reached[asked], 0.5, atol=1e-2)
    assert (reached[~asked] > 0.49).all()
    np.testing.assert_allclose(answer.change[asked, 0], answer.change[asked, 1], atol=1e-12)
    np.testing.assert_allclose(answer.distance, np.linalg.norm(answer.change, axis=1))


def test_changes_lie_along_the_public_direction_whatever_the_data():
    u, (X, y) = np.array([1.0, -0.5, 2.0]), two_gaussians(400, 3)
    for labels in (y, 1 - y, X[:, 1] > 0):
        change = trained(X, np.asarray(labels, dtype=int), u, slope_floor=0.3).explain(X[:50]).change
        moved = change[np.linalg.norm(change, axis=1) > 0]
        assert len(moved) > 5
        np.testing.assert_allclose(moved @ u, np.linalg.norm(moved, axis=1) * np.linalg.norm(u))


def test_the_decision_is_that_of_the_noised_step():
    fitted = trained(*two_gaussians(500, 2), epsilon=0.05, slope_floor=0.3)
    answer = fitted.explain(np.zeros((400, 2)))
    assert 0.2 < answer.favourable.mean() < 0.8  # the private decision would be the same for all
    assert (answer.change[answer.favourable] == 0).all()
    assert ((answer.score >= 0) == answer.favourable).all()


def test_rows_far_on_the_favourable_side_are_told_so():
    X, y = two_gaussians(4000, 2)
    fitted = trained(X, y, slope_floor=0.5)
    clear = (X @ [1.0, 1.0] > 4)[:500]
    assert fitted.explain(X[:500][clear]).favourable.mean() > 0.97


def test_steps_at_the_ends_of_the_range_are_flagged():
    fitted = trained(*two_gaussians(500, 2), slope_floor=0.3, largest_step=0.5)
    answer = fitted.explain([[-5.0, -5.0], [5.0, 5.0]] * 40)
    assert answer.censored.mean() > 0.5
    steps = -answer.score / 0.3
    assert (answer.censored == (np.abs(steps) >= 0.5 - 1e-12)).all()


def test_constraints_that_cut_the_step_short_make_the_answer_invalid():
    X, y = two_gaussians(500, 2)
    rules = Constraints(2, upper=5.0, lower=-9.0)
    fitted = trained(X, y, slope_floor=0.2, largest_step=20.0, constraints=rules, epsilon=1e4)
    answer = fitted.explain([[-1.0, -1.0], [-8.0, 4.9]], infeasible="mark")
    assert answer.valid.tolist() == [True, False]
    assert (answer.change[1] == 0).all()
    with pytest.raises(InfeasibleError):
        fitted.explain([-8.0, 4.9])
    frozen = trained(X, y, constraints=Constraints(2, immutable=(0,)), slope_floor=0.2, epsilon=1e4)
    assert not frozen.explain([-3.0, -3.0], infeasible="mark").valid[0]
    free = trained(X, y, (0.0, 1.0), constraints=Constraints(2, immutable=(0,)), slope_floor=0.2, epsilon=1e4)
    assert free.explain([-3.0, -3.0]).valid[0]


def test_large_features_do_not_hide_small_steps():
    X, y = two_gaussians(500, 2)
    rules = Constraints(3)
    far = np.column_stack([X, np.full(500, 1e6)])
    fitted = trained(far, y, (1.0, 1.0, 1e-4), norm_bound=2e6, slope_floor=1e-7, largest_step=1.0, constraints=rules)
    assert fitted.explain(far[:20]).valid.all()


def test_costs_are_measured_in_their_own_norm():
    fitted = trained(*two_gaussians(500, 2), slope_floor=0.3, cost=L1())
    answer = fitted.explain([-2.0, -2.0])
    assert answer.distance[0] == pytest.approx(np.abs(answer.change[0]).sum())


def test_the_range_follows_from_the_norm_bound_unless_it_is_given():
    X, y = two_gaussians(50, 2)
    assert trained(X, y)._ends() == (0.0, pytest.approx(10 / np.sqrt(2)))
    assert trained(X, y, slope_floor=1.0)._ends()[0] == pytest.approx(-10 / np.sqrt(2))
    assert trained(X, y, slope_floor=1.0, largest_step=3.0, smallest_step=-1.0)._ends() == (-1.0, 3.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"direction": (0.0, 0.0)},
        {"direction": ((1.0, 1.0),)},
        {"largest_step": 0.0},
        {"slope_floor": -1.0},
        {"smallest_step": 1.0},
        {"epsilon": np.nan},
    ],
)
def test_parameters_that_make_no_sense_are_refused_at_once(wrong):
    with pytest.raises(ConfigurationError):
        mechanism(**wrong)


def test_what_does_not_fit_the_data_is_refused():
    with pytest.raises(ConfigurationError, match="direction: expected one number a feature, 3, got 2"):
        mechanism().fit(*two_gaussians(50, 3))
    with pytest.raises(ConfigurationError, match="call fit"):
        mechanism().explain([0.0, 0.0])
    with pytest.raises(InputError):
        trained(*two_gaussians(50, 2)).explain([1e300, -1e300])
    assert public_direction.ENDS < 1e-6


@pytest.mark.parametrize(
    "limit",
    [
        {"most_changes": 1},
        {"step": {0: 0.3}, "most_changes": 2},
        {"rules": (Rule(0, 2),)},
        {"rules": (Rule(0, 1, per_unit=3),)},
        {"largest_change": {1: 0.2}},
    ],
)
@pytest.mark.parametrize("cost", [L2(), Percentile(np.random.default_rng(0).normal(size=(50, 3)))])
def test_answers_that_break_a_limit_of_changes_are_not_valid(limit, cost):
    x, y = two_gaussians(400, 3)
    rules = Constraints(3, **limit)
    fitted = trained(x, y, (1.0, 1.0, 0.0), epsilon=50.0, slope_floor=0.1, constraints=rules, cost=cost)
    found = fitted.explain(x[:60], infeasible="mark")
    assert rules.satisfied(x[:60], found.counterfactual).all()
    asked = ~found.favourable
    assert asked.sum() > 10
    moved = found.change[asked & found.valid]
    assert (moved[:, 2] == 0).all()
    if "step" in limit:
        assert found.valid.all()
        np.testing.assert_allclose(moved[:, 0] / 0.3, np.rint(moved[:, 0] / 0.3), atol=1e-9)
    else:
        assert not found.valid[asked].all()
