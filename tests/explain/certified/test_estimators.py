"""A fitted scikit-learn classifier is audited, loaded from its certificate and served, in any process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explain_nets import certificate, quiet
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from safexplain import HardenedKernelShap, Hardening
from safexplain._digest import model_digest
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain.libraries import global_generators
from safexplain.explain.served import load_release
from safexplain.hardening.noise import query_seeds
from safexplain.outputs import EstimatorModule, as_module

pytestmark = quiet

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)).astype(np.float32)
Y = (X[:, 0] + 0.5 * RNG.normal(size=90) > 0).astype(int) + (X[:, 1] > 1)
ASKED = torch.from_numpy(X[:3])
TARGET = torch.tensor([0, 1, 2])
ESTIMATORS = {
    "forest": RandomForestClassifier(5, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
}


def about(path: Path, estimator: Any, **explainer: Any) -> Path:
    said = {"method": "KernelShap", "options": {"n_samples": 20}, "softmax": False, "shape": [4]} | explainer
    return certificate(path, as_module(estimator), explainer=said, hardening=Hardening.recommended())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_classifier_is_served_from_its_certificate(name: str, tmp_path: Path) -> None:
    fitted = ESTIMATORS[name].fit(X, Y)
    path = about(tmp_path, fitted)
    torch.manual_seed(0)
    explainer = HardenedKernelShap.from_certificate(fitted, path)
    loaded = explainer.attribute(ASKED, target=TARGET)
    release = load_release(fitted, path)
    rows = []
    for i, seed in enumerate(query_seeds(b"", inputs=ASKED, method="KernelShap samples")):
        with global_generators((ASKED,), seed):  # each question has random numbers of its own
            rows.append(explainer.attribute(ASKED[i : i + 1], target=TARGET[i : i + 1]))
    np.testing.assert_array_equal(release.explain(ASKED, TARGET), torch.cat(rows).numpy())
    torch.manual_seed(0)
    asked = HardenedKernelShap.catalogued()(EstimatorModule(fitted), hardening=Hardening.recommended())
    assert torch.equal(asked.attribute(ASKED, target=TARGET, n_samples=20), loaded)
    np.testing.assert_allclose(release.predict(ASKED).numpy(), fitted.predict_proba(X[:3]), rtol=1e-6)
    assert release.shape == (4,)


def test_another_fit_is_another_model_also_one_in_place(tmp_path: Path) -> None:
    fitted, other = (RandomForestClassifier(5, random_state=s).fit(X, Y) for s in (0, 1))
    path = about(tmp_path, fitted)
    with pytest.raises(CertificateError, match="another model"):
        load_release(other, path)
    release = load_release(fitted, path)
    fitted.fit(X[:60], Y[:60])
    with pytest.raises(RefusedError, match="model has changed"):
        release.explain(ASKED, TARGET)


def test_a_classifier_is_a_module_from_its_fit_on() -> None:
    fitted = LogisticRegression().fit(X, Y)
    module = as_module(fitted)
    assert not module.training
    assert as_module(module) is module
    assert as_module(fitted, 5)(ASKED).shape == (3, 5)
    assert model_digest(module) == model_digest(EstimatorModule(LogisticRegression().fit(X, Y)))
    with pytest.raises(InputError, match="fit it"):
        as_module(LogisticRegression())
    with pytest.raises(ConfigurationError, match="predict_proba"):
        EstimatorModule(StandardScaler())
    with pytest.raises(InputError, match="or the fitted scikit-learn classifier, got str"):
        load_release("model.joblib", None, uncertified=True, method="KernelShap", hardening=Hardening.none())


@pytest.mark.parametrize(
    ("labels", "places"), [(["a", "b", "c"], [0, 1, 2]), ([0, 1, 3], [0, 1, 3]), ([-1, 0, 1], [0, 1, 2])]
)
def test_labels_that_are_no_places_stand_in_their_order(labels: list[Any], places: list[int]) -> None:
    fitted = LogisticRegression().fit(X, np.array(labels)[Y])
    out = as_module(fitted)(ASKED).numpy()
    assert out.shape == (3, max(places) + 1)
    np.testing.assert_allclose(out[:, places], fitted.predict_proba(X[:3]), rtol=1e-5)


def test_columns_keep_the_names_that_a_classifier_was_fitted_with() -> None:
    frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abcd"))
    fitted = RandomForestClassifier(3, random_state=0).fit(frame, Y)
    np.testing.assert_allclose(as_module(fitted)(ASKED).numpy(), fitted.predict_proba(frame[:3]), rtol=1e-6)
