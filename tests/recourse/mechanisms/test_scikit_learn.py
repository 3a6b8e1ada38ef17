"""Every estimator keeps scikit-learn's contracts, but for stated exceptions, each with its reason."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from recourse_privacy_oracle import two_gaussians
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError
from safexplain.recourse import L1, Constraints, DPModelRecourse, LaplaceScore
from safexplain.recourse.preprocessing import Preprocessing
from safexplain.testing.scikit_learn import LABELS, expected_failed_checks

COMMON = {"epsilon": 1000.0, "norm_bound": 10.0, "random_state": 0}
FIVE = {**COMMON, "classes": (0, 1, 2, 3, 4), "favourable": 1}
GIVEN = {
    "score": LaplaceScore(**COMMON),
    "preprocessing": Preprocessing(numeric={"income": (0, 1)}),
}
SLOW = {"model": DPModelRecourse(**FIVE)}
MECHANISMS = [LaplaceScore, DPModelRecourse]
each_mechanism = pytest.mark.parametrize("kind", MECHANISMS)


def failed(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of check_set_params, that parameters are checked early
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    return {r["check_name"] for r in results if r["status"] == "failed"}


@pytest.mark.parametrize(
    "name", [*GIVEN, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)], ids=[*GIVEN, *SLOW]
)
def test_what_fails_is_what_is_stated(name):
    estimator = (GIVEN | SLOW)[name]
    assert failed(estimator) == set(expected_failed_checks(estimator))


@pytest.mark.parametrize("classes", [(0, 1), ("no", "yes")])
def test_of_a_pair_of_classes_the_checks_that_bring_other_labels_are_expected_to_fail(classes):
    estimator = DPModelRecourse(**{**COMMON, "classes": classes})
    stated = expected_failed_checks(estimator)
    assert failed(estimator) <= set(stated)
    assert stated["check_fit_score_takes_y"] == LABELS
    assert "check_fit_score_takes_y" not in expected_failed_checks(DPModelRecourse(**FIVE))


class AnyLabels(LaplaceScore):
    """Takes its labels from y, which a private model must not: for checks that do not tell theirs."""

    def fit(self, X, y):
        return super().fit(X, (np.asarray(y) != np.ravel(y)[:1]).astype(int))


def test_checks_fail_for_the_stated_reason_and_no_other():
    """With the labels that the check brings they pass."""
    shim = AnyLabels(**COMMON)
    assert failed(shim) <= {check for check, reason in expected_failed_checks(shim).items() if reason != LABELS}


# What users do with them


def made(kind, **options):
    return kind(norm_bound=5.0, random_state=0, **options)


@each_mechanism
def test_a_clone_has_the_parameters_and_not_the_training(kind):
    X, y = two_gaussians(100, 3)
    given = made(kind, epsilon=2.0, cost=L1(), constraints=Constraints(3, immutable=[1]))
    fitted = given.fit(X, y)
    other = clone(fitted)
    assert type(other) is kind
    assert other.get_params(deep=False) == fitted.get_params(deep=False)
    check_is_fitted(fitted)
    assert fitted.n_features_in_ == 3
    with pytest.raises(NotFittedError):
        check_is_fitted(other)
    assert not hasattr(other, "n_features_in_")
    with pytest.raises(ConfigurationError, match="is not trained"):
        other.explain(X)
    assert other.fit(X, y).identity != fitted.identity


def test_a_clone_keeps_a_model_that_was_given():
    model = DPLogisticRegression(norm_bound=5.0, classes=[0, 1], random_state=0).fit(*two_gaussians(100, 3))
    given = DPModelRecourse(model)
    other = clone(given)
    assert other.model is model
    assert (other.explain(np.ones((1, 3))).counterfactual == given.explain(np.ones((1, 3))).counterfactual).all()


def test_a_clone_of_a_seeded_generator_draws_what_the_first_draws():
    X, y = two_gaussians(100, 3)
    given = LaplaceScore(norm_bound=5.0, random_state=np.random.default_rng(0))
    other = clone(given)
    assert other.fit(X, y).score(X).score.tolist() == given.fit(X, y).score(X).score.tolist()


@each_mechanism
def test_parameters_change_all_together_or_not_at_all_and_the_training_is_dropped(kind):
    fitted = made(kind).fit(*two_gaussians(100, 3))
    with pytest.raises(ConfigurationError, match="epsilon"):
        fitted.set_params(target=0.5, epsilon=-1.0)
    with pytest.raises(ConfigurationError, match=r"no parameter gamma; expected some of .*epsilon"):
        fitted.set_params(gamma=1.0)
    assert fitted.target == 0.0
    check_is_fitted(fitted)
    assert fitted.set_params() is fitted
    check_is_fitted(fitted)
    assert fitted.set_params(target=0.5, epsilon=3.0) is fitted
    assert (fitted.target, fitted.epsilon, fitted.guarantee.epsilon) == (0.5, 3.0, 3.0)
    with pytest.raises(NotFittedError):
        check_is_fitted(fitted)


@each_mechanism
def test_nothing_else_changes_a_parameter(kind):
    mechanism = made(kind)
    for change in (lambda: setattr(mechanism, "epsilon", 9.0), lambda: setattr(mechanism, "other", 1)):
        with pytest.raises(FrozenInstanceError, match="set_params"):
            change()
    with pytest.raises(FrozenInstanceError):
        del mechanism.epsilon
    again = pickle.loads(pickle.dumps(mechanism))
    with pytest.raises(FrozenInstanceError):
        again.epsilon = 9.0


@each_mechanism
def test_it_can_end_a_pipeline(kind):
    X, y = two_gaussians(100, 3)
    pipeline = clone(make_pipeline(FunctionTransformer(lambda x: x / 2), made(kind))).fit(X, y)
    assert pipeline[-1].guarantee.epsilon == pytest.approx(1.0, rel=1e-5)
    assert (pipeline[-1].identity == made(kind).fit(X / 2, y).identity) is False
