"""A service gets from a certificate what was audited, for every map of the catalog, and nothing else."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explain_nets import certificate, image_net, images, net_for, quiet
from over_http import released_over_http
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from safexplain import HardenedKernelShap, Hardening, Probability
from safexplain._digest import file_sha256, model_digest
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain import CATALOG
from safexplain.explain.hardened import HARDENED
from safexplain.explain.isolation import one_at_a_time
from safexplain.explain.libraries import global_generators
from safexplain.explain.served import load_release
from safexplain.hardening.noise import KEY_VARIABLE, query_seeds
from safexplain.outputs import EstimatorModule, as_module

pytestmark = quiet

KEY = b"the key of the service, as bytes"
TARGET = torch.tensor([1, 0, 2, 1])
MAPS = [row for row in CATALOG.values() if row.entry == "attribute" and row.name != "LayerFeaturePermutation"]
"""All but one whose native class fails on a target, see `target_for`."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def seeded(explain: Any, *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it
    return explain(*args, **options)


@pytest.mark.parametrize("row", MAPS, ids=lambda row: row.name)
def test_every_map_is_served_as_it_was_audited(row, tmp_path):
    model, x, options = net_for(row), images(), {"nt_samples": 3} if row.nt_type else {}
    explainer = {"method": row.name, "output": "logit", "options": options, "shape": [3, 8, 8]}
    path = certificate(tmp_path, model, explainer=explainer)
    release, target = load_release(model, path, key=KEY), model(x).argmax(1)
    audited = HARDENED[row.name].catalogued()(model, hardening=Hardening.ranked(KEY))
    if row.stochastic and not row.mixes_batch:  # each example has the random numbers of its own question
        rows = []
        for i, seed in enumerate(query_seeds(KEY, inputs=x, method=f"{row.name} samples")):
            with global_generators((x,), seed):
                rows.append(audited.attribute(x[i : i + 1], target=target[i : i + 1], **options).detach().numpy())
        expected = np.concatenate(rows)
    else:
        expected = seeded(audited.attribute, x, target=target, **options).detach().numpy()
    served = released_over_http(model, path, x, key=KEY) if not row.mixes_batch else seeded(release.explain, x, target)
    assert served.tobytes() == expected.astype(np.float32).tobytes(), "byte for byte what the audit asked"
    assert (release.method, release.shape, release.mixes_batch) == (row.name, (3, 8, 8), row.mixes_batch)
    assert release.digest == file_sha256(path)
    assert not release.uncertified


def test_scores_are_those_of_the_audited_model(tmp_path):
    model, x = image_net(), images()
    release = load_release(Probability(model), certificate(tmp_path, model), key=KEY)
    with torch.inference_mode(False):
        scores = release.predict(x.requires_grad_(True))
    assert not scores.requires_grad
    assert torch.equal(scores, model(x).detach())


def test_of_several_explainers_each_example_has_a_map_by_each_name(tmp_path):
    model, x = image_net(), images()
    joint = {"method": "IG+Saliency", "options": {"IG": {"n_steps": 7}}}
    release = load_release(model, certificate(tmp_path, model, explainer=joint), key=KEY)
    served = release.explain(x, TARGET)
    assert isinstance(served, list)
    assert json.loads(json.dumps(served)) == served
    alone = load_release(model, certificate(tmp_path, model), key=KEY)
    np.testing.assert_array_equal(np.float32([one["IG"] for one in served]), alone.explain(x, TARGET))
    assert [sorted(one) for one in served] == [["IG", "Saliency"]] * 4


def test_an_empty_batch_gives_no_answers(tmp_path):
    model, none = image_net(), torch.tensor([], dtype=torch.long)
    release = load_release(model, certificate(tmp_path, model), key=KEY)
    assert release.explain(images()[:0], none).shape == (0, 3, 8, 8)  # type: ignore[union-attr]
    joint = {"method": "IG+Saliency", "options": {}}
    release = load_release(model, certificate(tmp_path, model, explainer=joint), key=KEY)
    assert release.explain(images()[:0], none) == []


def test_another_verdict_is_served_only_where_that_is_said_and_then_says_so(tmp_path):
    model = image_net()
    release = load_release(model, certificate(tmp_path, model, references=0), key=KEY, uncertified=True)
    assert release.uncertified
    assert not load_release(model, certificate(tmp_path, model), key=KEY, uncertified=True).uncertified
    with pytest.raises(CertificateError, match="another model"):
        load_release(image_net(1), certificate(tmp_path, model, references=0), key=KEY, uncertified=True)


def test_before_an_audit_method_and_hardening_are_said(tmp_path):
    model, x = image_net(), images()
    path = certificate(tmp_path, model, hardening=Hardening.recommended(), explainer={"options": {}})
    certified = load_release(model, path)
    said: dict[str, Any] = {"method": "IG", "hardening": Hardening.recommended()}
    release = load_release(model, None, uncertified=True, shape=(3, 8, 8), **said)
    assert release.uncertified
    assert release.certificate is None
    assert release.shape == (3, 8, 8)
    assert len(release.digest) == 64
    assert release.digest != load_release(model, None, uncertified=True, **said | {"method": "Saliency"}).digest
    np.testing.assert_array_equal(release.explain(x, TARGET), certified.explain(x, TARGET))
    of_probabilities = nn.Sequential(model, nn.Softmax(1)).eval()
    plain = load_release(of_probabilities, None, uncertified=True, shape=(3, 8, 8), **said)
    np.testing.assert_allclose(plain.explain(x, TARGET), certified.explain(x, TARGET), atol=1e-5)
    assert load_release(model, None, uncertified=True, method="IG").hardening == Hardening.recommended()
    for arguments in ({**said, "uncertified": False}, {"uncertified": True}):
        with pytest.raises(ConfigurationError, match="uncertified=True and explainer="):
            load_release(model, None, **arguments)
    with pytest.raises(ConfigurationError, match="explainer, hardening: stated by the certificate"):
        load_release(model, path, **said)
    with pytest.raises(RefusedError, match="noise key"):
        load_release(model, None, uncertified=True, method="IG", hardening=Hardening.ranked())
    with pytest.raises(InputError, match="training mode"):
        load_release(image_net().train(), None, uncertified=True, **said)


class Locked(nn.Module):
    """Cannot be copied, so that hooks are set on the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.guard = image_net(), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.net(x)
        return y


def test_predictions_wait_for_explanations_that_hook_the_very_model(tmp_path):
    model = Locked().eval()
    explainer = {"method": "GuidedBackprop", "output": "probability", "options": {}}
    release = load_release(model, certificate(tmp_path, model, explainer=explainer), key=KEY)
    answered: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: answered.append(release.predict(images())))
    with one_at_a_time((Probability(model),)):
        thread.start()
        thread.join(0.2)
        assert not answered, "as while an explanation has its hooks on the model"
    thread.join()
    assert torch.equal(answered[0], model(images()).detach())
    assert load_release(model, certificate(tmp_path, model), key=KEY)._alone == (), "IG sets no hooks"


RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)).astype(np.float32)
Y = (X[:, 0] + 0.5 * RNG.normal(size=90) > 0).astype(int) + (X[:, 1] > 1)
ASKED = torch.from_numpy(X[:3])
CLASSES = torch.tensor([0, 1, 2])
ESTIMATORS = {
    "forest": RandomForestClassifier(5, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
}


def about(path: Path, estimator: Any, **explainer: Any) -> Path:
    said = {"method": "KernelShap", "options": {"n_samples": 20}, "softmax": False, "shape": [4]} | explainer
    return certificate(path, as_module(estimator), explainer=said, hardening=Hardening.recommended())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_classifier_is_served_from_its_certificate(name, tmp_path):
    fitted = ESTIMATORS[name].fit(X, Y)
    path = about(tmp_path, fitted)
    torch.manual_seed(0)
    explainer = HardenedKernelShap.from_certificate(fitted, path)
    loaded = explainer.attribute(ASKED, target=CLASSES)
    release = load_release(fitted, path)
    rows = []
    for i, seed in enumerate(query_seeds(b"", inputs=ASKED, method="KernelShap samples")):
        with global_generators((ASKED,), seed):  # each question has random numbers of its own
            rows.append(explainer.attribute(ASKED[i : i + 1], target=CLASSES[i : i + 1]))
    np.testing.assert_array_equal(release.explain(ASKED, CLASSES), torch.cat(rows).numpy())
    torch.manual_seed(0)
    asked = HardenedKernelShap.catalogued()(EstimatorModule(fitted), hardening=Hardening.recommended())
    assert torch.equal(asked.attribute(ASKED, target=CLASSES, n_samples=20), loaded)
    np.testing.assert_allclose(release.predict(ASKED).numpy(), fitted.predict_proba(X[:3]), rtol=1e-6)
    assert release.shape == (4,)


def test_another_fit_is_another_model_also_one_in_place(tmp_path):
    fitted, other = (RandomForestClassifier(5, random_state=s).fit(X, Y) for s in (0, 1))
    path = about(tmp_path, fitted)
    with pytest.raises(CertificateError, match="another model"):
        load_release(other, path)
    release = load_release(fitted, path)
    fitted.fit(X[:60], Y[:60])
    with pytest.raises(RefusedError, match="model has changed"):
        release.explain(ASKED, CLASSES)


def test_a_classifier_is_a_module_from_its_fit_on():
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
def test_labels_that_are_no_places_stand_in_their_order(labels, places):
    fitted = LogisticRegression().fit(X, np.array(labels)[Y])
    out = as_module(fitted)(ASKED).numpy()
    assert out.shape == (3, max(places) + 1)
    np.testing.assert_allclose(out[:, places], fitted.predict_proba(X[:3]), rtol=1e-5)


def test_columns_keep_the_names_that_a_classifier_was_fitted_with():
    frame = pytest.importorskip("pandas").DataFrame(X, columns=list("abcd"))
    fitted = RandomForestClassifier(3, random_state=0).fit(frame, Y)
    np.testing.assert_allclose(as_module(fitted)(ASKED).numpy(), fitted.predict_proba(frame[:3]), rtol=1e-6)
