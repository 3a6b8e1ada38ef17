"""Output perturbation: the stability that its noise is for holds, and the noise is for it."""

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from privacy_oracle import signed_rows, two_gaussians
from scipy.stats import gamma, kstest, norm

from safexplain.dp import noise_multiplier
from safexplain.dp.linear import classifier
from safexplain.dp.linear.classifier import (
    DPLogisticRegression,
    PerturbedOutput,
    in_unit_ball,
    largest_weight,
    perturbed_output,
    stability,
    stable_minimiser,
)
from safexplain.errors import RefusedError


def leaning(*records):
    """Twenty thousand records that push weights to one side, and the one in question."""
    return np.array([(0.0, -1.0)] * 20_000 + list(records))


SIDES = ((0.92, 0.39), (-0.92, 0.39))
"""Two records that both lie on the far side of weights (0, -w), with features almost opposite."""


def apart(first, second, regularization):
    return np.linalg.norm(stable_minimiser(first, regularization) - stable_minimiser(second, regularization))


def test_the_bound_is_nearly_reached_so_that_less_noise_would_not_do():
    bound = stability(10.0, "substitute")
    assert 0.8 * bound < apart(leaning(SIDES[0]), leaning(SIDES[1]), 10.0) <= bound


def test_a_record_added_or_removed_moves_the_weights_half_as_far():
    bound = stability(10.0, "add_remove")
    assert 0.8 * bound < apart(leaning(), leaning(SIDES[1]), 10.0) <= bound == stability(10.0, "zero_out")
    assert apart(leaning((0.0, 0.0)), leaning(SIDES[1]), 10.0) <= bound  # an empty record is none
    assert apart(leaning(SIDES[0]), leaning(SIDES[1]), 10.0) > bound


def test_without_a_certificate_nothing_is_released(monkeypatch):
    with pytest.raises(RefusedError, match="nothing is released"):
        stable_minimiser(signed_rows(50, 3), 1.0, 1e-18)
    monkeypatch.setattr(classifier, "MAX_ITERATIONS", 1)
    with pytest.raises(RefusedError, match="nothing is released"):
        stable_minimiser(signed_rows(50, 3), 1.0)


def test_refusing_for_want_of_precision_follows_from_the_shape_alone():
    for rows in (np.zeros((50, 3)), signed_rows(50, 3), np.tile([1.0, 0.0, 0.0], (50, 1))):
        with pytest.raises(RefusedError, match="50 records"):
            stable_minimiser(rows, 1.0, 2e-13)
        stable_minimiser(rows, 1.0, 1e-10)


FAR = {
    "short rows and one that stops them": np.append(np.full((9_999, 1), 1e-3), [[-1.0]], axis=0),
    "separable": np.abs(signed_rows(2_000, 3)),
    "many weights": np.abs(signed_rows(1_000, 150)),
}


@pytest.mark.parametrize(("rows", "regularization"), [*((rows, 1e-6) for rows in FAR), ("separable", 1e-2)])
def test_weights_of_thousands_are_reached_in_a_few_steps_so_that_no_record_decides_whether_there_is_an_answer(
    rows, regularization, monkeypatch
):
    monkeypatch.setattr(classifier, "MAX_ITERATIONS", 40)  # of 500; steps of at most log(1 + d) took thousands
    assert np.isfinite(stable_minimiser(FAR[rows], regularization)).all()


@pytest.mark.parametrize("regularization", [1e-3, 1e3])
def test_the_largest_weight_bounds_every_minimiser_and_is_nearly_reached(regularization):
    alike = np.tile([1.0, 0.0], (100, 1))
    bound = largest_weight(100, regularization)
    for rows in (alike, signed_rows(100, 2)):
        assert np.linalg.norm(stable_minimiser(rows, regularization, 1e-6)) <= bound * (1 + 1e-6)
    assert np.linalg.norm(stable_minimiser(alike, 1e3, 1e-6)) > 0.45 * largest_weight(100, 1e3)


# Radial noise: exact density ratios


def log_ratio(first, second, mechanism):
    """Largest log ratio of the densities of what is released: where one minimiser lies behind the other."""
    return mechanism.noise_rate * apart(first, second, mechanism.regularization)


@pytest.mark.parametrize(("adjacency", "first"), [("substitute", leaning(SIDES[0])), ("add_remove", leaning())])
def test_the_density_ratio_is_within_epsilon_and_nearly_reaches_it(adjacency, first):
    mechanism = PerturbedOutput.radial(1.0, 2, adjacency)
    assert 0.8 < log_ratio(first, leaning(SIDES[1]), mechanism) <= mechanism.epsilon(adjacency) <= 1.0


@pytest.mark.parametrize(
    ("adjacency", "epsilon", "logit_noise"),
    [("substitute", 8.0, 0.1), ("add_remove", 0.01, 10.0), ("zero_out", 0.5, 1.0)],
)
def test_calibration_spends_the_budget_and_no_more(adjacency, epsilon, logit_noise):
    mechanism = PerturbedOutput.radial(epsilon, 24, adjacency, logit_noise=logit_noise)
    assert 0.999999 * epsilon <= mechanism.epsilon(adjacency) <= epsilon
    assert mechanism.epsilon("zero_out") == mechanism.epsilon("add_remove") < mechanism.epsilon("substitute")


def test_radial_noise_has_the_density_that_the_proof_uses():
    mechanism, signed = PerturbedOutput.radial(1.0, 3, "substitute"), signed_rows(5, 3)
    noise = perturbed_output(signed, mechanism, np.random.default_rng(0), runs=8000)
    noise -= stable_minimiser(signed, mechanism.regularization)
    length = np.linalg.norm(noise, axis=1)
    assert kstest(length, gamma(3, scale=1 / mechanism.noise_rate).cdf).pvalue > 0.01
    assert kstest(length, gamma(3, scale=1.1 / mechanism.noise_rate).cdf).pvalue < 1e-6
    assert noise.std(axis=0) == pytest.approx(1.0, rel=0.05)  # logit_noise


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_gaussian_noise_covers_the_largest_move_at_the_stated_epsilon_and_delta(adjacency):
    sigma = noise_multiplier(1.0, 1.0, 1, 1e-5, adjacency, sampling="full-batch")
    mechanism = PerturbedOutput.gaussian(sigma)
    std = sigma * stability(mechanism.regularization, "add_remove")
    distance = stability(mechanism.regularization, adjacency) / std
    assert 0.99 < get_epsilon_gaussian(1 / distance, 1e-5) <= 1.0
    assert get_epsilon_gaussian(0.5 / distance, 1e-5) > 1.5  # half of the noise
    reached = apart(leaning(*SIDES[: adjacency == "substitute"]), leaning(SIDES[1]), mechanism.regularization)
    assert 0.8 * distance < reached / std <= distance


def test_gaussian_noise_has_the_stated_standard_deviation():
    mechanism, signed = PerturbedOutput.gaussian(3.0, logit_noise=0.5), signed_rows(5, 3)
    noise = perturbed_output(signed, mechanism, np.random.default_rng(0), runs=4000)
    noise -= stable_minimiser(signed, mechanism.regularization)
    assert kstest(noise.ravel(), norm(scale=0.5).cdf).pvalue > 0.01
    assert kstest(noise.ravel(), norm(scale=0.475).cdf).pvalue < 0.01
    assert 3.0 * stability(mechanism.regularization, "add_remove") == pytest.approx(0.5)


def model(**options):
    return DPLogisticRegression(
        **{"mechanism": "output", "norm_bound": 5.0, "classes": [0, 1], "random_state": 0, **options}
    )


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_estimator_releases_what_was_checked_here(delta):
    X, y = two_gaussians(30, 2)
    fitted = model(delta=delta, epsilon=2.0, random_state=np.random.default_rng(7)).fit(X, y)
    sigma = noise_multiplier(2.0, 1.0, 1, 1e-5, "substitute", sampling="full-batch")
    mechanism = (
        PerturbedOutput.gaussian(sigma, logit_noise=0.1) if delta else PerturbedOutput.radial(2.0, 3, logit_noise=0.1)
    )
    signed = in_unit_ball(X, 5.0, 0.3) * (2 * y - 1)[:, None]
    (mine,) = perturbed_output(signed, mechanism, np.random.default_rng(7))
    scale = np.hypot(1, 0.3)
    np.testing.assert_allclose(fitted.coef_[0] * 5.0 * scale, mine[:2], rtol=1e-6)
    np.testing.assert_allclose(fitted.intercept_ * scale / 0.3, mine[2:], rtol=1e-6)


@pytest.mark.parametrize(
    ("adjacency", "delta", "classes"),
    [
        ("substitute", 0.0, [0, 1]),
        ("substitute", 1e-5, [0, 1, 2, 3]),
        ("add_remove", 0.0, [0, 1, 2, 3]),
        ("add_remove", 1e-5, [0, 1, 2, 3]),
        ("zero_out", 1e-5, [0, 1]),
    ],
)
def test_the_statement_spends_the_budget_and_no_more(adjacency, delta, classes):
    stated = model(epsilon=2.0, delta=delta, adjacency=adjacency, classes=classes).fit(*two_gaussians(60, 2)).privacy_
    assert 1.999 < stated.epsilons.of(adjacency) <= 2.0
    assert stated.delta == delta
    assert bool(stated.phases) == bool(delta)
    assert (f"{len(classes)} classes one-vs-rest" in stated.mechanism) == (len(classes) > 2)
    hidden = adjacency == "add_remove"
    assert stated.phases == () or stated.phases[0].steps == (4 if len(classes) > 2 else 1) + hidden


@pytest.mark.parametrize(("mechanism", "delta"), [("output", 1e-5), ("objective", 0.0)])
def test_the_number_of_records_is_told_with_noise_where_it_is_not_public(mechanism, delta):
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2

    def told(adjacency, rows):
        options = {"mechanism": mechanism, "delta": delta, "norm_bound": 3.0, "classes": [0, 1]}
        fits = (DPLogisticRegression(1.0, adjacency=adjacency, random_state=i, **options) for i in range(20))
        return [model.fit(X[:rows], y[:rows]).privacy_.records for model in fits]

    assert set(told("substitute", 60)) == {60}
    assert len(set(told("add_remove", 60))) > 5
    assert set(told("add_remove", 60)) & set(told("add_remove", 59))
