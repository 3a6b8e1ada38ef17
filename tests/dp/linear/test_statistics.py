"""An attacker who runs a mechanism thousands of times on two neighbouring data sets never proves more than its epsilon.

He knows everything but which of the two it is. From half of the runs he takes the threshold of his score, from the
other half an exact lower bound on epsilon (95%, Clopper-Pearson). The same attack proves more than the claim of every
mechanism that is broken on purpose. For noisy gradient descent delta is .1: there the bound comes close to the claim.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from objective_oracle import log_density, newton

from safexplain.dp.accounting import noise_multiplier
from safexplain.dp.linear.classifier import DPLogisticRegression, in_unit_ball
from safexplain.dp.linear.mechanisms import PerturbedObjective, perturbed_minimiser, radial_noise
from safexplain.dp.linear.noisy_gd import NoisyGradientDescent, noisy_gradient_descent
from safexplain.verdict.stats import epsilon_from_errors

CLAIM, DELTA, BOUND, RUNS = 1.0, 0.1, 100.0, 12_000


def lower_bound(first, second, delta=0.0):
    """Lower bound on epsilon from (runs,) scores on each of two data sets, higher on the first."""
    half = len(first) // 2

    def bound(threshold, part):
        on_first, on_second = first[part], second[part]
        false_positives, missed = int((on_second >= threshold).sum()), int((on_first < threshold).sum())
        return epsilon_from_errors(false_positives, len(on_second), missed, len(on_first), delta)

    levels = np.concatenate([np.geomspace(1e-3, 0.5, 60), 1 - np.geomspace(1e-3, 0.5, 60)])
    chosen = slice(None, half)
    candidates = np.quantile(np.concatenate([first[chosen], second[chosen]]), levels, method="lower")
    return bound(max(candidates, key=lambda t: bound(t, chosen)), slice(half, None))


def test_the_bound_is_that_of_randomised_response():
    rng = np.random.default_rng(0)
    first, second = (rng.random(40_000) < np.e / (1 + np.e)) * 1.0, (rng.random(40_000) < 1 / (1 + np.e)) * 1.0
    assert 0.9 < lower_bound(first, second) < 1.0


# Objective perturbation: records (x, label), |x| <= 100. The attacker's score is the exact log density ratio.

PAIRS = {
    "another label": ([(-100, -1), (100, -1)], [(-100, -1), (100, 1)]),
    "another side": ([(-100, -1), (-100, -1)], [(-100, -1), (100, -1)]),
    "far or near": ([(100, 1)], [(0, 1)]),
    "one class or two": ([(0, 1), (-100, -1)], [(0, 1), (0, 1)]),
}


def right(records, logit_noise):
    rows = in_unit_ball(np.array([[float(x)] for x, _ in records]), BOUND, 0.3)
    signed = rows * np.array([[label] for _, label in records])
    mechanism = PerturbedObjective.calibrated(CLAIM, 2, "substitute", logit_noise=logit_noise)
    return (
        signed,
        mechanism.noise_rate,
        mechanism.regularization,
        functools.partial(perturbed_minimiser, signed, mechanism),
    )


def unregularised_intercept(records, logit_noise):
    """scikit-learn's LinearModelLoss under diffprivlib: the intercept is not penalised, and may run away."""
    signed, rate, regularization, _ = right(records, logit_noise)
    penalty = np.array([regularization, 0.0])
    return signed, rate, penalty, lambda rng, runs: newton(signed, radial_noise(rate, (runs, 2), rng), penalty)


def linear_in_the_bound(records, logit_noise):
    """diffprivlib's Vector: rows of norm up to R as they come, log(1 + c R / L) where log(1 + c R^2 / L) is needed."""
    signed = np.array([[float(x * label), 0.0] for x, label in records])
    regularization = 50.0
    rate = (CLAIM - np.log1p(BOUND / (4 * regularization))) / (2 * BOUND)
    draw = lambda rng, runs: newton(signed, radial_noise(rate, (runs, 2), rng), regularization)  # noqa: E731
    return signed, rate, regularization, draw


def objective_bound(mechanism, pair, logit_noise):
    rng = np.random.default_rng(0)
    (first, rate, regularization, draw_first), (second, _, _, draw_second) = (
        mechanism(records, logit_noise) for records in PAIRS[pair]
    )

    def score(weights):
        on_first, on_second = (log_density(weights, rows, rate, regularization) for rows in (first, second))
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(on_first - on_second, nan=0.0)  # infinity less infinity

    return lower_bound(score(draw_first(rng, runs=RUNS)), score(draw_second(rng, runs=RUNS)))


@pytest.mark.parametrize(("pair", "logit_noise"), [*zip(PAIRS, (1.0, 10.0, 10.0, 1.0), strict=True)])
def test_objective_perturbation_keeps_its_epsilon(pair, logit_noise):
    assert objective_bound(right, pair, logit_noise) <= CLAIM


def test_the_attack_on_objective_perturbation_has_power():
    assert max(objective_bound(right, pair, 10.0) for pair in PAIRS) > 0.3


def test_a_linear_power_of_the_norm_bound_is_caught():
    assert objective_bound(linear_in_the_bound, "far or near", 1.0) > 2.5


def test_an_intercept_that_is_not_regularised_is_caught():
    assert objective_bound(unregularised_intercept, "one class or two", 1.0) > 3


# Noisy gradient descent. Gradients stay above the clip bound, so that each step releases the whole of it.


def descend(rows, labels, runs, rng, *, accounted="substitute", hidden=False, logit_noise=0.3, seen=True):
    features = in_unit_ball(np.asarray(rows, dtype=float), 1.0, 0.0)
    steps = 100
    sigma = noise_multiplier(CLAIM, 1.0, steps + hidden, DELTA, accounted, sampling="full-batch")
    descent = NoisyGradientDescent(sigma, steps, 0.1, logit_noise, hidden and seen)
    weights, _ = noisy_gradient_descent(features, np.asarray(labels), 2, descent, rng, runs)
    return np.diff(weights, axis=1)[:, 0]  # (runs, p + 1): the second class against the first


def flip_bound(**options):
    rng = np.random.default_rng(0)
    first, second = (descend([[1.0]], [label], RUNS, rng, **options)[:, 0] for label in (1, 0))
    return lower_bound(first, second, DELTA)


def test_noisy_descent_keeps_its_epsilon_when_a_label_is_substituted():
    assert 0.6 < flip_bound() <= CLAIM


def test_noise_for_half_of_the_sensitivity_is_caught():
    assert flip_bound(accounted="add_remove") > 1.6


def test_noisy_descent_keeps_its_epsilon_when_a_record_is_removed():
    rng = np.random.default_rng(0)
    common, record = [0.0, 1.0], [1.0, 0.0]
    first = descend([common, record], [0, 1], RUNS, rng, accounted="add_remove", hidden=True)[:, 0]
    second = descend([common], [0], RUNS, rng, accounted="add_remove", hidden=True)[:, 0]
    assert 0.6 < lower_bound(first, second, DELTA) <= CLAIM


def number_bound(**options):
    """Weights so wide that the number of records sets the step; the attacker looks at their size."""
    rng = np.random.default_rng(0)
    options = {"accounted": "add_remove", "hidden": True, "logit_noise": 1e4, **options}
    sets = ([[0.0] * 20], [0]), ([[0.0] * 20] * 2, [0, 0])
    first, second = (np.linalg.norm(descend(*data, RUNS // 8, rng, **options), axis=1) for data in sets)
    return lower_bound(first, second, DELTA)


def test_a_hidden_number_of_records_stays_hidden():
    assert number_bound() <= CLAIM


def test_a_hidden_number_of_records_that_is_used_exactly_is_caught():
    assert number_bound(seen=False) > 4


# The estimator itself.


@pytest.mark.parametrize("mechanism", ["noisy-gd", "objective"])
def test_the_estimator_releases_what_was_attacked_here(mechanism):
    rows, labels = np.array([[50.0], [-20.0], [300.0]]), np.array([1, 0, 1])
    model = DPLogisticRegression(
        mechanism=mechanism, norm_bound=BOUND, classes=[0, 1], random_state=np.random.default_rng(7)
    )
    model.fit(rows, labels)
    features, rng = in_unit_ball(rows, BOUND, 0.3), np.random.default_rng(7)
    if mechanism == "objective":
        mine = perturbed_minimiser(features * (2 * labels - 1)[:, None], PerturbedObjective.calibrated(1.0, 2), rng)[0]
    else:
        sigma = noise_multiplier(1.0, 1.0, 100, 1e-5, "substitute", sampling="full-batch")
        mine = np.diff(noisy_gradient_descent(features, labels, 2, NoisyGradientDescent(sigma), rng)[0][0], axis=0)[0]
    scale = np.hypot(1, 0.3)
    np.testing.assert_allclose([model.coef_[0, 0] * BOUND * scale, model.intercept_[0] * scale / 0.3], mine, rtol=1e-6)
