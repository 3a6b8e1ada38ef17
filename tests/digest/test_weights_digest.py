"""The digest of weights names a model in whatever form it travels."""

import copy
import pickle
import threading

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from safexplain._digest import trained_digest, weights_digest
from safexplain.errors import ConfigurationError
from safexplain.outputs import EstimatorModule


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_form_names_and_mode_do_not_matter():
    model = net()
    exported = torch.export.export(model, (torch.ones(2, 4),)).module()
    wrapped = nn.ModuleDict({"other": copy.deepcopy(model)})
    assert weights_digest(model) == weights_digest(exported) == weights_digest(wrapped.eval()) == weights_digest(net())


def test_one_changed_weight_does():
    model = net()
    before = weights_digest(model)
    with torch.no_grad():
        model[2].weight[1, 1] += 1e-6
    assert weights_digest(model) != before


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 3)), np.arange(60) % 3


MAKERS = {
    "linear": LogisticRegression,
    "regression": Ridge,
    "forest": lambda: ExtraTreesClassifier(3, random_state=0),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
}
each_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_kind
def test_a_trained_model_keeps_its_digest_in_a_file_and_another_training_has_another(make):
    fitted = make().fit(X, Y)
    found = trained_digest(fitted)
    assert found == trained_digest(fitted) == trained_digest(pickle.loads(pickle.dumps(fitted)))
    assert len(bytes.fromhex(found)) == 32
    assert found == trained_digest(make().fit(X, Y))
    assert found != trained_digest(make().fit(X + RNG.normal(size=X.shape), Y))


@each_kind
def test_what_is_not_fitted_has_none(make):
    with pytest.raises(ConfigurationError, match="fit"):
        trained_digest(clone(make()))


def test_linear_models_are_their_numbers_and_labels_whoever_holds_them():
    fitted = LogisticRegression().fit(X, Y)
    other = SGDClassifier(alpha=7.0)
    other.coef_, other.intercept_, other.classes_ = fitted.coef_, fitted.intercept_, Y[:3].astype(np.int32)
    found = trained_digest(fitted)
    assert trained_digest(other) == found
    other.coef_ = scipy.sparse.csr_matrix(fitted.coef_)
    assert trained_digest(other) == found
    for changed in (
        {"coef_": fitted.coef_[::-1]},
        {"intercept_": fitted.intercept_ + 1},
        {"classes_": ["a", "b", "c"]},
    ):
        assert trained_digest(_with(other, changed)) != found


def _with(model, changed):
    other = copy.deepcopy(model)
    vars(other).update(changed)
    return other


def test_one_number_written_into_a_model_changes_its_digest_whatever_was_asked_before():
    for make, place in ((LogisticRegression, "coef_"), (lambda: MAKERS["forest"](), "n_outputs_")):
        model = make().fit(X, Y)
        before = trained_digest(model)
        if place == "coef_":
            model.coef_[1, 1] = np.nextafter(model.coef_[1, 1], np.inf)
        else:
            model.estimators_[2].tree_.threshold[0] += 1e-9
        assert trained_digest(model) != before


def test_a_module_around_an_estimator_is_the_estimator():
    fitted = LogisticRegression().fit(X, Y)
    assert trained_digest(EstimatorModule(fitted)) == trained_digest(fitted)


def test_what_is_no_model_is_named():
    for model in (None, LogisticRegression):
        with pytest.raises(ConfigurationError, match="expected a torch module, a fitted linear model"):
            trained_digest(model)


def test_an_estimator_that_cannot_be_read_has_none():
    fitted = ExtraTreesClassifier(3).fit(X, Y)
    fitted.lock_ = threading.Lock()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        trained_digest(fitted)
