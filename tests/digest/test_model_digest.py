"""The digests of models, weights and fitted estimators: equal in every form and process, and of nothing else."""

import copy
import functools
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from torch import nn

from safexplain import _digest as identity
from safexplain._digest import (
    OPAQUE_DIGEST,
    _estimator_digests,
    estimator_digest,
    model_digest,
    modules_of,
    trained_digest,
    weights_digest,
)
from safexplain.errors import ConfigurationError, OpaqueModelWarning
from safexplain.outputs import EstimatorModule


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


NET = net()


class Service:
    def __init__(self, model):
        self.parts = {"models": [model]}

    def __call__(self, x):
        return self.predict(x)

    def predict(self, x):
        return self.parts["models"][0](x)


class Slotted:
    __slots__ = ("model",)

    def __init__(self, model):
        self.model = model

    def __call__(self, x):
        return self.model(x)


def by_global(x):
    return (lambda z: NET(z))(x)


def by_default(x, model=NET):
    return model(x)


@pytest.mark.parametrize(
    "forward",
    [
        NET.forward,
        functools.partial(lambda model, x: model(x), NET),
        by_global,
        by_default,
        Service(NET).predict,
        Slotted(NET),
        (lambda model: lambda x: model(x).softmax(1))(NET),
        functools.wraps(by_default)((lambda model: lambda x: model(x))(NET)),
    ],
)
def test_the_module_behind_a_callable_is_found(forward):
    assert modules_of(forward) == (NET,)


def test_modules_inside_others_are_dropped_and_the_order_is_fixed():
    one, two = net(1), net(2)

    def forward(x):
        return one[0](x) + two(x) + one(x) + two[4](x)

    assert modules_of(forward) in ((one, two), (two, one))
    assert modules_of(forward) == modules_of(forward)


def test_a_callable_without_a_module_gets_the_constant_and_one_warning():
    def opaque(x):
        return x.sum(1)

    with pytest.warns(OpaqueModelWarning, match="opaque"):
        assert model_digest(opaque) == OPAQUE_DIGEST
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model_digest(opaque) == OPAQUE_DIGEST


def test_circular_and_unfinished_objects_are_searched_without_harm():
    loop = Service(NET)
    loop.itself = loop

    def early():
        return late

    if False:
        late = None
    loop.early = early
    assert modules_of(loop) == (NET,)


def test_what_is_known_is_not_hashed_again(monkeypatch):
    model, calls = net(), []
    hash_once = identity._hash
    monkeypatch.setattr(identity, "_hash", lambda m: calls.append(1) or hash_once(m))
    assert len({model_digest(model) for _ in range(5)}) == 1
    assert len(calls) == 1


def test_the_cache_does_not_keep_a_model_alive():
    import gc
    import weakref

    model = net()
    model_digest(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_the_digest_is_the_same_in_another_process():
    script = (
        "import torch; from torch import nn; from safexplain._digest import model_digest; torch.manual_seed(0);"
        "net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)); print(model_digest(net).hex());"
        "from sklearn.ensemble import RandomForestClassifier; from safexplain._digest import estimator_digest;"
        "print(estimator_digest(RandomForestClassifier(3, random_state=0).fit([[0], [1], [2]], list('aba'))).hex())"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    torch.manual_seed(0)
    forest = RandomForestClassifier(3, random_state=0).fit([[0], [1], [2]], list("aba"))
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    assert out.split() == [model_digest(network).hex(), estimator_digest(forest).hex()]


@pytest.mark.gpu
def test_the_digest_is_the_same_on_every_device():
    assert model_digest(net().cuda()) == model_digest(net())


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


def a_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def test_form_names_and_mode_do_not_matter():
    model = a_net()
    exported = torch.export.export(model, (torch.ones(2, 4),)).module()
    wrapped = nn.ModuleDict({"other": copy.deepcopy(model)})
    assert (
        weights_digest(model) == weights_digest(exported) == weights_digest(wrapped.eval()) == weights_digest(a_net())
    )


def test_one_changed_weight_does():
    model = a_net()
    before = weights_digest(model)
    with torch.no_grad():
        model[2].weight[1, 1] += 1e-6
    assert weights_digest(model) != before


RNG = np.random.default_rng(0)
ROWS, LABELS = RNG.normal(size=(60, 3)), np.arange(60) % 3


WEIGHTS_MADE = {
    "linear": LogisticRegression,
    "regression": Ridge,
    "forest": lambda: ExtraTreesClassifier(3, random_state=0),
    "histograms": lambda: HistGradientBoostingClassifier(max_iter=3, random_state=0),
    "pipeline": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
}
each_kind = pytest.mark.parametrize("make", WEIGHTS_MADE.values(), ids=WEIGHTS_MADE)


@each_kind
def test_a_trained_model_keeps_its_digest_in_a_file_and_another_training_has_another(make):
    fitted = make().fit(ROWS, LABELS)
    found = trained_digest(fitted)
    assert found == trained_digest(fitted) == trained_digest(pickle.loads(pickle.dumps(fitted)))
    assert len(bytes.fromhex(found)) == 32
    assert found == trained_digest(make().fit(ROWS, LABELS))
    assert found != trained_digest(make().fit(ROWS + RNG.normal(size=ROWS.shape), LABELS))


@each_kind
def test_what_is_not_fitted_has_none(make):
    with pytest.raises(ConfigurationError, match="fit"):
        trained_digest(clone(make()))


def test_linear_models_are_their_numbers_and_labels_whoever_holds_them():
    fitted = LogisticRegression().fit(ROWS, LABELS)
    other = SGDClassifier(alpha=7.0)
    other.coef_, other.intercept_, other.classes_ = fitted.coef_, fitted.intercept_, LABELS[:3].astype(np.int32)
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
    for make, place in ((LogisticRegression, "coef_"), (lambda: WEIGHTS_MADE["forest"](), "n_outputs_")):
        model = make().fit(ROWS, LABELS)
        before = trained_digest(model)
        if place == "coef_":
            model.coef_[1, 1] = np.nextafter(model.coef_[1, 1], np.inf)
        else:
            model.estimators_[2].tree_.threshold[0] += 1e-9
        assert trained_digest(model) != before


def test_a_module_around_an_estimator_is_the_estimator():
    fitted = LogisticRegression().fit(ROWS, LABELS)
    assert trained_digest(EstimatorModule(fitted)) == trained_digest(fitted)


def test_what_is_no_model_is_named():
    for model in (None, LogisticRegression):
        with pytest.raises(ConfigurationError, match="expected a torch module, a fitted linear model"):
            trained_digest(model)


def test_an_estimator_that_cannot_be_read_has_none():
    fitted = ExtraTreesClassifier(3).fit(ROWS, LABELS)
    fitted.lock_ = threading.Lock()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        trained_digest(fitted)
