"""An attacker who runs noisy gradient descent thousands of times on two neighbouring data sets proves no more than its
epsilon, and more where the noise is for half of the sensitivity.

He knows everything but which of the two it is. From half of the runs he takes the threshold of his score, from the
other half an exact lower bound on epsilon (95%, Clopper-Pearson).
"""

import numpy as np
import pytest

from safexplain._privacy_loss import noise_multiplier
from safexplain.dp.linear.classifier import (
    DPLogisticRegression,
    NoisyGradientDescent,
    PerturbedObjective,
    in_unit_ball,
    noisy_gradient_descent,
    perturbed_minimiser,
)
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


def descend(rows, labels, rng, accounted, runs=RUNS, *, hidden=False, seen=True, logit_noise=0.3):
    """(runs, p + 1) weights of the second class less the first. `hidden`: a noised number of records is accounted for,
    and used unless `seen` is False. Gradients stay above the clip bound: each step releases the whole of it."""
    features = in_unit_ball(np.array(rows, float), 1.0, 0.0)
    sigma = noise_multiplier(CLAIM, 1.0, 100 + hidden, DELTA, accounted, sampling="full-batch")
    descent = NoisyGradientDescent(sigma, 100, 0.1, logit_noise, hidden and seen)
    return np.diff(noisy_gradient_descent(features, np.array(labels), 2, descent, rng, runs)[0], axis=1)[:, 0]


def flip_bound(accounted):
    """From the weight of the second class less the first; gradients stay above the clip bound, so that each step
    releases the whole of it."""
    rng, features = np.random.default_rng(0), in_unit_ball(np.ones((1, 1)), 1.0, 0.0)
    descent = NoisyGradientDescent(
        noise_multiplier(CLAIM, 1.0, 100, DELTA, accounted, sampling="full-batch"), 100, 0.1, 0.3
    )
    weights = (noisy_gradient_descent(features, np.array([label]), 2, descent, rng, RUNS)[0] for label in (1, 0))
    return lower_bound(*(np.diff(found, axis=1)[:, 0, 0] for found in weights), DELTA)


def test_noisy_descent_keeps_its_epsilon_when_a_label_is_substituted():
    assert 0.6 < flip_bound("substitute") <= CLAIM


def test_noise_for_half_of_the_sensitivity_is_caught():
    assert flip_bound("add_remove") > 1.6


def test_noisy_descent_keeps_its_epsilon_when_a_record_is_removed():
    rng, options = np.random.default_rng(0), {"accounted": "add_remove", "hidden": True}
    first = descend([[0.0, 1.0], [1.0, 0.0]], [0, 1], rng, **options)[:, 0]
    second = descend([[0.0, 1.0]], [0], rng, **options)[:, 0]
    assert 0.6 < lower_bound(first, second, DELTA) <= CLAIM


@pytest.mark.parametrize(("seen", "least", "most"), [(True, 0.0, CLAIM), (False, 4.0, np.inf)])
def test_a_hidden_number_of_records_stays_hidden_and_one_that_is_used_exactly_is_caught(seen, least, most):
    """Weights so wide that the number of records sets the step; the attacker looks at their size."""
    rng, options = np.random.default_rng(0), {"hidden": True, "seen": seen, "logit_noise": 1e4}
    sizes = [
        np.linalg.norm(descend(np.zeros((n, 20)), np.zeros(n, int), rng, "add_remove", RUNS // 8, **options), axis=1)
        for n in (1, 2)
    ]
    assert least <= lower_bound(*sizes, DELTA) <= most


@pytest.mark.parametrize("mechanism", ["noisy-gd", "objective"])
def test_the_estimator_releases_the_weights_of_its_mechanism(mechanism):
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
