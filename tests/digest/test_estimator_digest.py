"""Fitted scikit-learn estimators have a name that survives a restart and changes with the fit."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from safexplain._digest import OPAQUE_DIGEST, _estimator_digests, estimator_digest, model_digest
from safexplain.errors import OpaqueModelWarning

X, Y = load_breast_cancer(return_X_y=True)
MAKERS = {
    "forest": lambda: RandomForestClassifier(5, random_state=0),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=3, random_state=0),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "network": lambda: MLPClassifier((8,), solver="sgd", max_iter=2, random_state=0),
    "machine": lambda: make_pipeline(StandardScaler(), SVC()),
}


@pytest.fixture(params=MAKERS)
def fitted(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence
        return MAKERS[request.param]().fit(X[:200], Y[:200])


def test_a_copy_from_a_file_and_another_look_have_the_same_digest(fitted):
    digest = estimator_digest(fitted)
    assert digest is not None
    assert len(digest) == 32
    assert estimator_digest(pickle.loads(pickle.dumps(fitted))) == digest
    fitted.predict(X[:3])
    _estimator_digests.clear()
    assert estimator_digest(fitted) == digest


@pytest.mark.filterwarnings("ignore")
def test_another_fit_has_another_digest(fitted):
    digest = estimator_digest(fitted)
    assert estimator_digest(fitted.fit(X[200:400], Y[200:400])) != digest


@pytest.mark.filterwarnings("ignore")
def test_a_step_of_a_pipeline_that_is_fitted_by_itself_is_seen():
    pipeline = MAKERS["pipeline"]().fit(X[:200], Y[:200])
    digest = estimator_digest(pipeline)
    pipeline[-1].fit(X[200:400], Y[200:400])
    assert estimator_digest(pipeline) != digest


@pytest.mark.parametrize("make", [lambda: SGDClassifier(random_state=0), MAKERS["network"]])
def test_learning_on_in_place_is_seen(make):
    model = make().partial_fit(X[:100], Y[:100], classes=[0, 1])
    digest = estimator_digest(model)
    assert estimator_digest(model) == digest
    assert estimator_digest(model.partial_fit(X[100:200], Y[100:200])) != digest


def test_the_digest_of_a_prediction_function_is_that_of_its_estimator(recwarn):
    model, other = MAKERS["forest"]().fit(X[:200], Y[:200]), MAKERS["forest"]().fit(X[200:], Y[200:])
    for wrap in (lambda m: m.predict_proba, lambda m: lambda x: m.predict(x)):
        assert model_digest(wrap(model)) not in (model_digest(wrap(other)), OPAQUE_DIGEST)
        assert model_digest(wrap(model)) == model_digest(wrap(pickle.loads(pickle.dumps(model))))
    assert not recwarn


def test_what_cannot_be_pickled_is_opaque_and_said_so_once_for_an_object():
    opaque = make_pipeline(FunctionTransformer(lambda x: x), LogisticRegression(max_iter=5000)).fit(X[:50], Y[:50])
    assert estimator_digest(opaque) is None
    with pytest.warns(OpaqueModelWarning, match="scikit-learn"):
        assert model_digest(opaque.predict) == OPAQUE_DIGEST
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model_digest(opaque.predict) == OPAQUE_DIGEST


def test_records_are_read_by_their_fields_not_by_the_bytes_between():
    kind = np.dtype([("a", np.int8), ("b", np.float64)], align=True)
    one, two = (np.frombuffer(bytes([fill]) * (2 * kind.itemsize), kind).copy() for fill in (0, 255))
    for array in (one, two):
        array["a"], array["b"] = 1, 2.5
    assert one.tobytes() != two.tobytes()
    models = [LogisticRegression(), LogisticRegression()]
    models[0].table_, models[1].table_ = one, two
    assert estimator_digest(models[0]) == estimator_digest(models[1])
    two["a"][0] = 3
    _estimator_digests.clear()
    assert estimator_digest(models[0]) != estimator_digest(models[1])


class Around(torch.nn.Module):
    """Reads what an estimator has learnt, as `estimator.classes_`."""

    def __init__(self, estimator):
        super().__init__()
        self.estimator = estimator

    def forward(self, x):
        return torch.from_numpy(self.estimator.predict_proba(x.numpy())[:, np.argsort(self.estimator.classes_)])


def test_a_module_around_an_estimator_has_the_digest_of_its_fit():
    one, again, other = (Around(LogisticRegression(max_iter=5000).fit(X[:n], Y[:n])) for n in (50, 50, 60))
    assert model_digest(one) == model_digest(again)
    assert model_digest(one) != model_digest(other)


@pytest.mark.parametrize("algorithm", ["kd_tree", "ball_tree", "brute"])
def test_neighbours_that_were_asked_are_the_same_model(algorithm):
    """scikit-learn's trees count the queries; the counts are no part of what they answer."""
    fresh, other = (KNeighborsClassifier(algorithm=algorithm).fit(X + moved, Y) for moved in (0.0, 1e-6))
    before, elsewhere = estimator_digest(fresh), pickle.loads(pickle.dumps(fresh))
    _estimator_digests.clear()
    fresh.predict(X[:9])
    assert before == estimator_digest(fresh) == estimator_digest(elsewhere) != estimator_digest(other)
