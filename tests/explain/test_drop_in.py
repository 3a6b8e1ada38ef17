"""A snippet of each library's documentation, with nothing but the import changed, runs and gives hardened answers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from safexplain.errors import NotHardenedError
from safexplain.explain.alibi.rules import REFUSED, ROWS

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMES = ["income", "age", "debt", "years"]
MODEL = RandomForestClassifier(5, random_state=0).fit(X, Y)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Could not find an anchor"),
    pytest.mark.filterwarnings("ignore::safexplain.errors.NoKeyWarning"),
    pytest.mark.filterwarnings("ignore::safexplain.errors.OpaqueModelWarning"),  # functions that stand for models
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the libraries
]


# --- Alibi -----------------------------------------------------------------------------------------------------------


def test_alibis_anchors_of_tables() -> None:
    pytest.importorskip("alibi")
    from safexplain.alibi import AnchorTabular

    explainer = AnchorTabular(MODEL.predict_proba, NAMES, seed=1)
    explainer.fit(X, disc_perc=(25, 50, 75))
    explanation = explainer.explain(X[0], threshold=0.8)
    assert all(any(name in condition for name in NAMES) for condition in explanation.anchor)
    assert 0 <= np.asarray(explanation.precision).item() <= 1
    assert "raw" not in explanation.data


def test_alibis_anchors_of_images_and_texts() -> None:
    pytest.importorskip("alibi")
    from safexplain.alibi import AnchorImage

    def predict(images: Any) -> Any:
        share = np.asarray(images).reshape(len(images), -1).mean(axis=1)
        return np.column_stack([share < 0.5, share >= 0.5]).astype(float)

    image = RNG.random((8, 8, 1)) / 4
    explainer = AnchorImage(predict, (8, 8, 1), segmentation_fn=lambda im: np.arange(64).reshape(8, 8) // 32, seed=0)
    explanation = explainer.explain(image, threshold=0.9, p_sample=0.5, coverage_samples=50)
    assert explanation.anchor.shape == (8, 8, 1)
    assert explanation.segments.shape == (8, 8)


def test_alibis_shapley_values() -> None:
    pytest.importorskip("alibi")
    pytest.importorskip("shap")
    from safexplain.alibi import KernelShap, TreeShap

    kernel = KernelShap(MODEL.predict_proba, feature_names=NAMES, link="logit", seed=0)
    kernel.fit(X[:20])
    explanation = kernel.explain(X[:2], nsamples=20, silent=True)
    assert [values.shape for values in explanation.shap_values] == [(2, 4), (2, 4)]
    tree = TreeShap(MODEL, model_output="raw", task="classification")
    tree.fit()
    explanation = tree.explain(X[:2])
    assert [values.shape for values in explanation.shap_values] == [(2, 4), (2, 4)]
    assert not {"expected_value", "raw"} & set(explanation.data)


def test_every_alibi_explainer_with_a_rule_can_be_imported() -> None:
    import safexplain.alibi

    assert set(safexplain.alibi.__all__) == set(ROWS)


def test_alibis_explanations_of_a_whole_data_set_say_why_they_are_not_hardened() -> None:
    for name in REFUSED:
        with pytest.raises(NotHardenedError, match="it describes the model over a data set, not one decision"):
            exec(f"from safexplain.alibi import {name}")


# --- AIX360 and lime -------------------------------------------------------------------------------------------------


def test_aix360s_protodash_with_a_public_set() -> None:
    pytest.importorskip("aix360")
    from safexplain.aix360 import ProtodashExplainer

    explainer = ProtodashExplainer(public=X[:60])
    weights, chosen, _ = explainer.explain(X[60:61], X[:60], m=3)
    assert weights.shape == chosen.shape == (3,)
    with pytest.raises(TypeError, match=r"ProtodashExplainer\(public=rows\)"):
        ProtodashExplainer()


@pytest.mark.parametrize("library", ["lime", "aix360"])
def test_limes_tables(library: str) -> None:
    pytest.importorskip("lime")
    LimeTabularExplainer = importlib.import_module(f"safexplain.{library}").LimeTabularExplainer
    explainer = LimeTabularExplainer(X, feature_names=NAMES, class_names=["no", "yes"], discretize_continuous=True)
    exp = explainer.explain_instance(X[0], MODEL.predict_proba, num_features=2, top_labels=1, num_samples=50)
    label = exp.available_labels()[0]
    assert len(exp.as_list(label=label)) == 2
    assert {name for name, _ in exp.as_list(label=label)} <= set(NAMES)
    assert np.isnan(exp.score)
    assert np.isnan(exp.predict_proba).all()


def test_limes_texts_and_images() -> None:
    pytest.importorskip("lime")
    from safexplain import lime

    def of_texts(texts: list[str]) -> Any:
        share = np.array([0.9 if "good" in text else 0.1 for text in texts])
        return np.column_stack([1 - share, share])

    explainer = lime.lime_text.LimeTextExplainer(class_names=["bad", "good"], random_state=0)
    exp = explainer.explain_instance("a good day", of_texts, num_features=2, num_samples=50)
    assert {word for word, _ in exp.as_list()} <= {"a", "good", "day"}

    def of_images(images: Any) -> Any:
        share = np.asarray(images)[:, :4].mean(axis=(1, 2, 3))
        return np.column_stack([1 - share, share])

    explainer = lime.lime_image.LimeImageExplainer(random_state=0)
    squares = lambda image: np.arange(64).reshape(8, 8) // 16  # noqa: E731
    image = RNG.random((8, 8, 3))
    exp = explainer.explain_instance(
        image, of_images, top_labels=1, hide_color=0, num_samples=20, segmentation_fn=squares
    )
    shown, mask = exp.get_image_and_mask(exp.local_exp and min(exp.local_exp), positive_only=False, num_features=2)
    assert shown.shape == image.shape
    assert mask.shape == (8, 8)


# --- shap ------------------------------------------------------------------------------------------------------------


def test_shaps_trees_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("shap")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from safexplain import shap

    explainer = shap.TreeExplainer(MODEL)
    values = explainer(X[:20])
    assert values.values.shape == (20, 4, 2)
    shap.plots.bar(values[:, :, 1], show=False)
    assert explainer.shap_values(X[:3]).shape == (3, 4, 2)
    explainer = shap.KernelExplainer(MODEL.predict_proba, shap.sample(X, 10), link="logit")
    assert explainer.shap_values(X[:3, :], nsamples=20).shape == (3, 4, 2)
    assert explainer(X[:2]).values.shape == (2, 4, 2)


# --- what is not hardened --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("captum", "NoiseTunnel"),
        ("alibi", "CEM"),
        ("aix360", "CEMExplainer"),
        ("lime", "RecurrentTabularExplainer"),
        ("shap", "PermutationExplainer"),
    ],
)
def test_what_is_not_hardened_says_so_and_names_what_is(library: str, name: str) -> None:
    module = importlib.import_module(f"safexplain.{library}")
    known = next(n for n in module.__all__ if n[0].isupper())
    with pytest.raises(AttributeError, match=rf"safexplain\.{library}\.{name} is not hardened.*{known}"):
        getattr(module, name)
    with pytest.raises(NotHardenedError, match=rf"safexplain\.{library}\.{name} is not hardened.*{known}"):
        exec(f"from safexplain.{library} import {name}")
    assert issubclass(NotHardenedError, ImportError)
    assert not hasattr(module, name)


@pytest.mark.parametrize("library", ["captum", "alibi", "aix360", "lime", "shap"])
def test_all_that_is_listed_is_there_and_takes_a_hardening(library: str) -> None:
    pytest.importorskip(library)
    module = importlib.import_module(f"safexplain.{library}")
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        found = getattr(module, name)
        if isinstance(found, type) and found.__module__.startswith("safexplain"):
            assert found.__doc__, name


def test_the_modules_import_no_library_before_it_is_used() -> None:
    code = (
        "import sys, safexplain.alibi, safexplain.aix360, safexplain.lime, safexplain.shap\n"
        "from safexplain.explain.aix360 import HardenedProtoDash, harden_aix360\n"
        "native = type('ProtodashExplainer', (), {'__module__': 'aix360.algorithms.protodash.PDASH'})\n"
        "harden_aix360(native(), public=[[1.0, 2.0]] * 3)\n"
        "HardenedProtoDash([[1.0, 2.0]] * 3)\n"
        "found = {'alibi', 'aix360', 'lime', 'shap', 'cvxpy', 'osqp', 'spacy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
