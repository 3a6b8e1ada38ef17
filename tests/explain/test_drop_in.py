"""A snippet of each library's documentation, with nothing but the import changed, runs and gives hardened answers."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from safexplain.errors import NotHardenedError
from safexplain.explain.alibi import REFUSED

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
        "from safexplain.explain import harden\n"
        "from safexplain.explain.aix360 import HardenedProtoDash\n"
        "native = type('ProtodashExplainer', (), {'__module__': 'aix360.algorithms.protodash.PDASH'})\n"
        "harden(native(), public=[[1.0, 2.0]] * 3)\n"
        "HardenedProtoDash([[1.0, 2.0]] * 3)\n"
        "found = {'alibi', 'aix360', 'lime', 'shap', 'cvxpy', 'osqp', 'spacy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
