"""Every estimator keeps scikit-learn's contracts, but for stated exceptions, each with its reason."""

import pickle
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from privacy_oracle import two_gaussians
from scikit_learn_checks import expected_failed_checks
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted

from safexplain.dp import DPLogisticRegression
from safexplain.errors import ConfigurationError
from safexplain.recourse import L1, Constraints, DPModelRecourse, LaplaceScore
from safexplain.recourse.preprocessing import Preprocessing

COMMON = {"epsilon": 1000.0, "norm_bound": 10.0, "random_state": 0}
GIVEN = {
    "score": LaplaceScore(**COMMON),
    "preprocessing": Preprocessing(numeric={"income": (0, 1)}),
}
MECHANISMS = [LaplaceScore, DPModelRecourse]
each_mechanism = pytest.mark.parametrize("kind", MECHANISMS)


def failed(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of check_set_params, that parameters are checked early
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    return {r["check_name"] for r in results if r["status"] == "failed"}


@pytest.mark.parametrize("name", GIVEN)
def test_what_fails_is_what_is_stated(name):
    estimator = GIVEN[name]
    assert failed(estimator) == set(expected_failed_checks(estimator))


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
    again = pickle.loads(pickle.dumps(mechanism))
    with pytest.raises(FrozenInstanceError):
        again.epsilon = 9.0
