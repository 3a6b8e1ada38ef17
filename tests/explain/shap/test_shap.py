"""Of shap's explainers only hardened values leave, in the native shapes, for every kind of trees and any model."""

import copy
import hashlib
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression

from safexplain import GaussianNoise, HardenedKernelExplainer, HardenedTreeExplainer, Hardening, TopKSet, harden
from safexplain.errors import ConfigurationTypeError, InputError, RefusedError
from safexplain.explain.shap import _background_digest
from safexplain.outputs import as_module

shap = pytest.importorskip("shap")

KEY = b"the key of the service, as bytes"
NOISY, PLAIN = Hardening.ranked(key=KEY), Hardening.none()
RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 5)).astype(np.float32).astype(np.float64)
TWO = (X[:, 0] + X[:, 1] > 0).astype(int)
THREE = np.digitize(X[:, 0] - X[:, 2], [-0.5, 0.5])
ASKED, PUBLIC = X[:4], X[100:120]


@cache
def model(name: str) -> Any:
    if name.startswith("xgboost"):
        xgboost = pytest.importorskip("xgboost")
        fitted = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(X, THREE if "three" in name else TWO)
        return fitted.get_booster() if name.endswith("booster") else fitted
    if name.startswith("lightgbm"):
        lightgbm = pytest.importorskip("lightgbm")
        fitted = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(X, THREE if "three" in name else TWO)
        return fitted.booster_ if name.endswith("booster") else fitted
    made = {
        "forest": (RandomForestClassifier(5, random_state=0), TWO),
        "forest of three classes": (RandomForestClassifier(5, random_state=0), THREE),
        "boosting": (GradientBoostingClassifier(n_estimators=5, random_state=0), TWO),
        "histograms": (HistGradientBoostingClassifier(max_iter=5, random_state=0), TWO),
        "regression": (RandomForestRegressor(5, random_state=0), X[:, 1]),
    }[name]
    return made[0].fit(X, made[1])


TREES = (
    *("forest", "forest of three classes", "boosting", "histograms", "regression"),
    *("xgboost", "xgboost of three classes", "xgboost booster"),
    *("lightgbm", "lightgbm of three classes", "lightgbm booster"),
)


def native_values(explainer: Any, *asked: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LightGBM's, about lists of arrays
        return explainer.shap_values(*asked, **options)


def native_trees(name: str, *data: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return shap.TreeExplainer(model(name), *data)


@pytest.mark.parametrize(
    ("name", "data"), [(name, None) for name in TREES] + [("forest of three classes", PUBLIC), ("xgboost", PUBLIC)]
)
def test_without_hardening_the_values_are_the_native_ones(name, data):
    hardened = HardenedTreeExplainer(model(name), data, hardening=PLAIN)
    native = native_trees(name, data)
    expected = native_values(native, ASKED)
    np.testing.assert_allclose(hardened.shap_values(ASKED), expected, atol=1e-6)
    np.testing.assert_allclose(hardened(ASKED).values, expected, atol=1e-6)
    assert hardened.shap_values(ASKED[0]).shape == expected.shape[1:]


@pytest.mark.parametrize("name", ["forest", "boosting", "lightgbm of three classes"])
def test_every_row_is_hardened_by_itself_and_asking_again_gives_the_same(name):
    explainer = HardenedTreeExplainer(model(name), hardening=NOISY)
    released = explainer.shap_values(ASKED)
    assert np.array_equal(released[2], explainer.shap_values(ASKED[2]))
    assert np.array_equal(released[[3, 1]], explainer.shap_values(ASKED[[3, 1]]))
    assert np.array_equal(released, HardenedTreeExplainer(model(name), hardening=NOISY).shap_values(ASKED))
    assert not np.allclose(released, native_values(native_trees(name), ASKED), atol=1e-3)
    other = HardenedTreeExplainer(model(name), hardening=Hardening.ranked(key=KEY[::-1]))
    assert not np.array_equal(released, other.shap_values(ASKED))


def test_without_hardening_kernel_values_are_the_native_ones():
    predict = model("forest").predict_proba
    for asked in (predict, lambda rows: predict(rows)[:, 1]):
        np.random.seed(3)  # noqa: NPY002 - shap draws from it
        expected = shap.KernelExplainer(asked, PUBLIC).shap_values(ASKED, nsamples=12, silent=True)
        np.random.seed(3)  # noqa: NPY002
        explainer = HardenedKernelExplainer(asked, PUBLIC, hardening=PLAIN, model_digest=b"the model's name")
        np.testing.assert_allclose(explainer.shap_values(ASKED, nsamples=12), expected)


def test_kernel_values_are_drawn_from_generators_of_their_own():
    explainer = HardenedKernelExplainer(model("forest").predict_proba, PUBLIC, hardening=NOISY)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    released = explainer.shap_values(ASKED, nsamples=12)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    assert np.array_equal(released[2], explainer.shap_values(ASKED[2], nsamples=12))
    assert np.array_equal(released, explainer.shap_values(ASKED, nsamples=12))
    rows = [ASKED[i : i + 1] for i in range(4)] * 3
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda row: explainer.shap_values(row, nsamples=12), rows))
    for i, found in enumerate(together):
        assert np.array_equal(found[0], released[i % 4])


def test_no_rows_have_no_values():
    for explainer in explainers():
        assert explainer.shap_values(ASKED[:0]).shape[:2] == (0, 5)


def test_two_outputs_that_say_the_same_share_their_noise():
    released = HardenedTreeExplainer(model("forest"), hardening=NOISY).shap_values(ASKED)
    assert np.array_equal(released[..., 0], -released[..., 1])
    three = HardenedTreeExplainer(model("forest of three classes"), hardening=NOISY).shap_values(ASKED)
    assert not np.array_equal(three[..., 0], -three[..., 1])
    apart = RandomForestRegressor(5, random_state=0).fit(X, X[:, :2])
    released = HardenedTreeExplainer(apart, hardening=NOISY).shap_values(ASKED)
    assert not np.isclose(released[..., 0], -released[..., 1]).any()


def explainers() -> list[Any]:
    return [
        HardenedTreeExplainer(model("forest"), PUBLIC, hardening=NOISY, feature_names=list("abcde")),
        HardenedKernelExplainer(model("forest").predict_proba, PUBLIC, list("abcde"), hardening=NOISY),
    ]


@pytest.mark.parametrize("place", [0, 1], ids=["trees", "kernel"])
def test_an_explanation_holds_values_names_and_a_copy_of_the_rows_asked_about(place):
    explainer = explainers()[place]
    explanation = explainer(ASKED)
    assert isinstance(explanation, shap.Explanation)
    assert explanation.base_values is None
    assert np.array_equal(explanation.data, ASKED)
    assert not np.shares_memory(explanation.data, ASKED)
    assert explanation.feature_names == list("abcde")
    assert explainers()[0]._explained is not None
    nameless = HardenedKernelExplainer(model("forest").predict_proba, PUBLIC, hardening=NOISY)(ASKED[:1])
    assert nameless.feature_names == [f"Feature {i}" for i in range(5)]
    held = {k for k in dir(explanation) if not k.startswith("_") and isinstance(getattr(explanation, k), np.ndarray)}
    assert held == {"values", "data"}
    again = pickle.loads(pickle.dumps(explanation))
    assert np.array_equal(again.values, explanation.values)


NOT_DRAWN = ("waterfall", "force")


def drawn_from() -> list[Any]:
    """Explanations of sets: of trees with an output for each class, of boosted trees with one, and of any function."""
    pandas = pytest.importorskip("pandas")
    hardening = Hardening(clip=TopKSet(k=2, ordered=True))
    return [
        HardenedTreeExplainer(model("forest"), hardening=hardening)(X[:20])[..., 1],
        HardenedTreeExplainer(model("xgboost"), hardening=hardening)(pandas.DataFrame(X[:20], columns=list("abcde"))),
        HardenedTreeExplainer(model("lightgbm"), hardening=Hardening(clip=TopKSet(k=2)))(X[:20]),
        HardenedKernelExplainer(model("boosting").predict, PUBLIC, hardening=hardening)(X[:6]),
    ]


@pytest.mark.parametrize("plot", NOT_DRAWN)
def test_plots_that_add_sizes_up_are_refused_with_what_to_draw_instead(plot):
    for explanation in drawn_from():
        for asked in (explanation, explanation[0], copy.copy(explanation[1]), explanation.abs[2]):
            if plot == "force" or asked.values.ndim == 1:
                with pytest.raises(RefusedError, match=r"draw shap\.plots\.bar\(explanation\)"):
                    getattr(shap.plots, plot)(asked)


def test_of_several_outputs_one_has_to_be_named_to_be_drawn():
    figures = pytest.importorskip("matplotlib.pyplot")
    explanation = HardenedTreeExplainer(model("forest of three classes"))(X[:9])
    for asked in (explanation, explanation[0]):
        with pytest.raises(RefusedError, match=r"one output, got 3: draw explanation\[\.\.\., 1\]"):
            shap.plots.bar(asked, show=False)
        shap.plots.bar(asked[..., 2], show=False)
    figures.close("all")


def test_what_would_tell_more_cannot_be_read():
    for explainer in explainers():
        for name in ("expected_value", "model", "data", "masker", "fnull", "explain", "explain_row"):
            assert not hasattr(explainer, name)


@pytest.mark.parametrize(
    ("name", "columns"), [("forest", 7), ("histograms", 3), ("xgboost booster", 7), ("lightgbm booster", 3)]
)
def test_rows_of_other_columns_than_the_model_has_are_refused(name, columns):
    explainer = HardenedTreeExplainer(model(name), hardening=NOISY)
    with pytest.raises(InputError, match="5 features"):
        explainer.shap_values(np.zeros((2, columns)))
    around = harden(native_trees(name), NOISY)
    with pytest.raises(InputError, match="features"):
        around.shap_values(np.zeros((2, 0)))


def test_no_message_tells_the_output_of_the_model():
    explainer = HardenedTreeExplainer(model("forest"), PUBLIC, hardening=NOISY)
    explainer._explainer.model.values = explainer._explainer.model.values * 2
    explainer._explainer.model.predict = lambda X: np.full((len(X), 2), 0.123456)
    with pytest.raises(InputError, match="do not add up") as told:
        explainer.shap_values(ASKED)
    assert "0.12345" not in str(told.value)
    assert told.value.__cause__ is None


def test_categories_of_a_data_frame_go_to_the_library_as_they_are():
    pandas, lightgbm = pytest.importorskip("pandas"), pytest.importorskip("lightgbm")
    frame = pandas.DataFrame(X[:, :2], columns=["a", "b"])
    frame["town"] = pandas.Categorical(np.where(X[:, 2] > 0, "north", "south"))
    fitted = lightgbm.LGBMClassifier(n_estimators=4, verbose=-1, n_jobs=1).fit(frame, TWO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = shap.TreeExplainer(fitted).shap_values(frame[:4])
    assert np.allclose(HardenedTreeExplainer(fitted, hardening=PLAIN).shap_values(frame[:4]), expected)
    noisy = HardenedTreeExplainer(fitted, hardening=NOISY, model_digest=b"model, version 1")
    assert np.array_equal(noisy.shap_values(frame[:4])[1], noisy.shap_values(frame[1:2])[0])
    own = HardenedTreeExplainer(fitted, hardening=NOISY)  # whose trees shap cannot read: they are the library's own
    assert own._digest() == HardenedTreeExplainer(copy.deepcopy(fitted), hardening=NOISY)._digest()
    again = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1).fit(frame, TWO)
    assert own._digest() != HardenedTreeExplainer(again, hardening=NOISY)._digest()


def test_another_model_or_background_has_other_noise_and_a_copy_has_the_same():
    def noise_of(*made: Any) -> Any:
        explainer = HardenedTreeExplainer(*made, hardening=Hardening(noise=GaussianNoise(1.0, key=KEY)))
        return explainer.shap_values(ASKED) - HardenedTreeExplainer(*made, hardening=PLAIN).shap_values(ASKED)

    forest = model("boosting")
    other = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(X[:140], TWO[:140])
    first = noise_of(forest)
    np.testing.assert_allclose(first, noise_of(copy.deepcopy(forest)), atol=1e-9)
    for changed in ((other,), (forest, PUBLIC), (forest, PUBLIC[:10])):
        assert not np.allclose(first, noise_of(*changed), atol=1e-3)


def test_harden_takes_the_native_explainers():
    native = native_trees("forest", PUBLIC)
    hardened = harden(native, NOISY)
    assert isinstance(hardened, HardenedTreeExplainer)
    made = HardenedTreeExplainer(model("forest"), PUBLIC, hardening=NOISY)
    assert np.array_equal(hardened.shap_values(ASKED), made.shap_values(ASKED))
    kernel = harden(shap.KernelExplainer(model("forest").predict_proba, PUBLIC), NOISY)
    assert isinstance(kernel, HardenedKernelExplainer)
    again = pickle.loads(pickle.dumps(kernel))
    assert np.array_equal(again.shap_values(ASKED[:1]), kernel.shap_values(ASKED[:1]))
    with pytest.raises(ConfigurationTypeError, match="already hardened"):
        harden(hardened)
    linear = shap.LinearExplainer(LogisticRegression().fit(X, TWO), PUBLIC)
    np.testing.assert_allclose(harden(linear, PLAIN).shap_values(ASKED), linear.shap_values(ASKED))
    with pytest.raises(RefusedError, match="KernelExplainer, LinearExplainer, TreeExplainer, got"):
        harden(shap.PermutationExplainer(model("forest").predict_proba, PUBLIC))


def test_what_cannot_be_explained_is_refused_with_what_can():
    with pytest.raises(InputError, match="use KernelExplainer"):
        HardenedTreeExplainer(LogisticRegression().fit(X, TWO))
    explainer = HardenedTreeExplainer(model("forest"))
    for wrong in ("a row", X[:2, :, None]):
        with pytest.raises(InputError, match="rows of"):
            explainer.shap_values(wrong)


def test_a_background_is_known_by_its_numbers_or_its_texts():
    whole, texts = np.arange(6).reshape(2, 3), np.array([["a", "bc"]])
    for rows, stored in ((whole, whole.astype(float)), (csr_matrix(whole), whole * 1.0), (texts.astype(object), texts)):
        expected = hashlib.blake2b(repr(stored.shape).encode() + stored.tobytes(), digest_size=16).hexdigest()
        assert _background_digest(rows) == _background_digest(stored) == expected


def test_classes_are_found_by_their_labels_and_not_by_their_places():
    labels = np.array([1, 4])[TWO]
    fitted = RandomForestClassifier(5, random_state=0).fit(X, labels)
    module = as_module(fitted)
    asked = HardenedTreeExplainer.catalogued()(module, hardening=PLAIN)
    import torch

    x = torch.from_numpy(ASKED.astype(np.float32))
    found = asked.attribute(x, target=torch.tensor([1, 4, 1, 4])).numpy()
    expected = shap.TreeExplainer(fitted).shap_values(ASKED)
    np.testing.assert_allclose(found, expected[np.arange(4), :, [0, 1, 0, 1]], atol=1e-6)
    with pytest.raises(InputError, match="expected a class that the model was trained on, got 2"):
        asked.attribute(x, target=torch.tensor([2, 2, 2, 2]))
