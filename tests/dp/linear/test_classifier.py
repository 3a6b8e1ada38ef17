"""DPLogisticRegression: a scikit-learn classifier that reads nothing off the data but through its mechanism."""

import copy
import pickle

import numpy as np
import pytest
from privacy_oracle import two_gaussians
from scikit_learn_checks import expected_failed_checks
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from safexplain.dp import epsilons
from safexplain.dp.linear.classifier import DPLogisticRegression
from safexplain.errors import ConfigurationError, InputError, WeakDeltaWarning

MECHANISMS = ["noisy-gd", "objective", "output"]
each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


def model(**options):
    return DPLogisticRegression(**{"norm_bound": 5.0, "classes": [0, 1], "random_state": 0, **options})


def test_at_epsilon_one_half_noisy_descent_loses_at_most_two_points_in_a_hundred_dimensions():
    X, y = two_gaussians(15_000, 100)
    exact, private = (
        estimator.fit(X[:5000], y[:5000]).score(X[5000:], y[5000:])
        for estimator in (LogisticRegression(max_iter=500), model(epsilon=0.5, norm_bound=10.0))
    )
    assert 0.925 < exact < 0.935
    assert private >= 0.91


@each_mechanism
def test_three_classes_are_told_apart(mechanism):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 3000)
    X = rng.normal(size=(3000, 4)) + 4 * np.eye(4)[y]
    fitted = model(epsilon=4.0, classes=["a", "b", "c"], norm_bound=6.0, mechanism=mechanism).fit(
        X, np.array(list("abc"))[y]
    )
    assert fitted.coef_.shape == (3, 4)
    assert fitted.intercept_.shape == (3,)
    assert fitted.score(X, np.array(list("abc"))[y]) > 0.9
    np.testing.assert_allclose(fitted.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize(
    ("missing", "reason"), [("norm_bound", "sqrt\\(n_features\\)"), ("classes", "labels that occur")]
)
def test_what_must_be_public_is_asked_for_never_inferred(missing, reason):
    with pytest.raises(ConfigurationError, match=f"{missing} is missing.*{reason}"):
        model(**{missing: None}).fit(*two_gaussians(50, 3))


@each_mechanism
def test_a_class_that_does_not_occur_is_fitted_like_any_other(mechanism):
    X, _ = two_gaussians(50, 3)
    fitted = model(classes=[5, 7, 9], mechanism=mechanism).fit(X, np.full(50, 7))
    assert fitted.classes_.tolist() == [5, 7, 9]
    assert fitted.coef_.shape == (3, 3)
    assert fitted.coef_.all()


def test_a_label_outside_of_the_public_list_is_refused():
    X, y = two_gaussians(50, 3)
    with pytest.raises(InputError, match=r"classes=\[0, 1\], got 2; 1 of 50 rows have such labels"):
        model().fit(X, np.where(np.arange(50) == 3, 2, y))


@each_mechanism
def test_rows_beyond_the_bound_count_as_rows_on_it(mechanism):
    X, y = two_gaussians(80, 3)
    X *= (5.0 / np.linalg.norm(X, axis=1))[:, None]
    fitted, longer, vast = (model(mechanism=mechanism).fit(X * s, y) for s in (1.0, 40.0, 1e300))
    np.testing.assert_allclose(fitted.coef_, longer.coef_, rtol=1e-5)
    assert np.isfinite(vast.coef_).all()


@each_mechanism
def test_a_change_of_units_changes_nothing_if_the_bound_goes_with_it(mechanism):
    X, y = two_gaussians(80, 3)
    fitted, scaled = (model(mechanism=mechanism, norm_bound=5.0 * s).fit(X * s, y) for s in (1.0, 1000.0))
    np.testing.assert_allclose(fitted.coef_, scaled.coef_ * 1000, rtol=1e-5)
    np.testing.assert_allclose(fitted.intercept_, scaled.intercept_, rtol=1e-5)


def test_without_a_constant_column_there_is_no_intercept():
    assert model(intercept_scaling=0.0).fit(*two_gaussians(50, 3)).intercept_ == 0


@each_mechanism
def test_every_fit_draws_fresh_noise_that_the_global_seed_does_not_fix(mechanism):
    X, y = two_gaussians(50, 3)
    np.random.seed(0)  # noqa: NPY002
    one = model(mechanism=mechanism, random_state=None).fit(X, y).coef_
    np.random.seed(0)  # noqa: NPY002
    assert not np.allclose(one, model(mechanism=mechanism, random_state=None).fit(X, y).coef_)


@each_mechanism
def test_a_random_state_repeats_the_noise_and_a_generator_goes_on(mechanism):
    X, y = two_gaussians(50, 3)
    assert (model(mechanism=mechanism).fit(X, y).coef_ == model(mechanism=mechanism).fit(X, y).coef_).all()
    ongoing = model(mechanism=mechanism, random_state=np.random.RandomState(1))
    assert not np.isclose(ongoing.fit(X, y).coef_, copy.copy(ongoing).fit(X, y).coef_).any()


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove", "zero_out"])
def test_the_statement_accounts_for_the_noise_that_was_added(adjacency):
    X, y = two_gaussians(500, 3)
    stated = model(epsilon=2.0, adjacency=adjacency).fit(X, y).privacy_
    (phase,) = stated.phases
    assert phase.sampling == "full-batch"
    assert phase.steps == 100 + (adjacency == "add_remove")
    recounted = epsilons(phase.noise_multiplier, 1.0, phase.steps, 1e-5, sampling="full-batch")
    assert recounted.of(adjacency) == pytest.approx(2.0, rel=1e-3)
    assert stated.epsilons.of(adjacency) <= 2.0
    assert (stated.records == 500) == (adjacency != "add_remove")


def test_the_statement_says_that_the_noise_is_cryptographic_unless_it_comes_from_a_seed():
    X, y = two_gaussians(100, 3)
    secure, seeded = (model(random_state=s).fit(X, y).privacy_ for s in (None, 0))
    assert any("AES-256 in counter mode under fresh keys" in line for line in secure.assumptions)
    assert any("a seed set by the user" in line for line in seeded.assumptions)
    assert not any("AES" in line for line in seeded.assumptions)


def test_a_pure_statement_has_delta_zero_and_an_epsilon_that_holds_for_both_adjacencies():
    X, y = two_gaussians(500, 3)
    stated = model(epsilon=2.0, mechanism="objective").fit(X, y).privacy_
    assert stated.delta == 0
    assert 1.9999 < stated.epsilons.substitute <= 2.0
    assert stated.epsilons.add_remove <= stated.epsilons.substitute
    several = model(epsilon=2.0, mechanism="objective", classes=[0, 1, 2, 3]).fit(X, y).privacy_
    assert 1.9999 < several.epsilons.substitute <= 2.0
    assert "4 classes one-vs-rest" in several.mechanism


@each_mechanism
def test_the_number_of_records_is_hidden_under_add_remove_and_said_to_be_public_elsewhere(mechanism):
    X, y = two_gaussians(500, 3)
    hidden = model(adjacency="add_remove", mechanism=mechanism).fit(X, y).privacy_
    public = model(mechanism=mechanism).fit(X, y).privacy_
    assert (hidden.count_noised, public.count_noised) == (True, False)
    assert not any("number of records is public" in line for line in hidden.assumptions)
    assert any("number of records is public" in line for line in public.assumptions)
    assert public.records == 500


@each_mechanism
def test_what_is_released_lies_on_a_public_grid(mechanism):
    """Noise near 0 in floating-point numbers would tell by its last digits what it was added to."""
    X, y = two_gaussians(200, 3)
    released = model(mechanism=mechanism, norm_bound=4.0, intercept_scaling=0, logit_noise=0.7).fit(X, y).coef_
    steps = 4.0 * released / 2.0 ** (-1 - 27)
    assert (steps == np.round(steps)).all()
    assert np.abs(steps).max() > 1e6


def test_a_delta_that_would_allow_publishing_a_record_warns():
    X, y = two_gaussians(500, 3)
    with pytest.warns(WeakDeltaWarning, match="at least one over the 500 records"):
        model(delta=0.01).fit(X, y)
    model(delta=0.01, mechanism="objective").fit(X, y)  # spends no delta


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": np.inf}, {"delta": 0.0}, {"adjacency": "row"}, {"mechanism": "newton"}, {"norm_bound": -1.0},
        {"classes": [0, 1, 1]}, {"classes": [[0, 1]]}, {"steps": 0}, {"max_grad_norm": 0.0}, {"logit_noise": -1.0},
        {"intercept_scaling": -1.0}, {"centre": True, "intercept_scaling": 0.0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        model(**wrong).fit(*two_gaussians(50, 3))


def test_coefficients_tell_the_whole_model():
    X, y = two_gaussians(200, 3)
    fitted = model().fit(X, y)
    logits = X @ fitted.coef_[0] + fitted.intercept_[0]
    np.testing.assert_allclose(fitted.decision_function(X), logits)
    np.testing.assert_allclose(fitted.predict_proba(X), np.stack([expit(-logits), expit(logits)], axis=1))
    assert (fitted.predict(X) == (logits > 0)).all()
    assert fitted.n_features_in_ == 3
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict(X) == fitted.predict(X)).all()
    assert again.privacy_ == fitted.privacy_


def test_it_keeps_the_conventions_of_scikit_learn():
    given = DPLogisticRegression(1000.0, mechanism="objective", norm_bound=10.0, classes=[0, 1, 2], random_state=0)
    results = check_estimator(given, on_skip=None, on_fail=None)
    failed = {r["check_name"] for r in results if r["status"] == "failed"}
    assert failed == set(expected_failed_checks(given))
    assert sum(r["status"] == "passed" for r in results) > 40
