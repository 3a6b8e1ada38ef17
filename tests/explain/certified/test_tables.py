"""What explains rows of a table is audited, loaded from its certificate and served as maps are."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explain_nets import certificate
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn

from safexplain import HardenedAnchors, HardenedIG, HardenedProtoDash, Hardening, Probability
from safexplain.audit import Policy, Population, audit
from safexplain.errors import CertificateError, ConfigurationError, InputError, RefusedError
from safexplain.explain import CATALOG, anchor_hardening
from safexplain.explain.aix360 import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.explain.alibi import (
    HardenedAlibiKernelShap,
    HardenedAnchorImage,
    HardenedAnchorTabular,
    HardenedTreeShap,
    Rule,
)
from safexplain.explain.served import TABLE_METHODS, load_release
from safexplain.explain.shap import HardenedKernelExplainer, HardenedLinearExplainer, HardenedTreeExplainer
from safexplain.explain.tables import TableExplainer, TableExplainerFactory
from safexplain.hardening.noise import KEY_VARIABLE
from safexplain.outputs import as_module

pytestmark = pytest.mark.filterwarnings("ignore:Could not find an anchor")

KEY = b"the key of the service, as bytes"
RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 4)).astype(np.float32)
Y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)
PUBLIC, ASKED = X[60:], torch.from_numpy(X[:3])
NAMES = ["income", "age", "debt", "years"]


@dataclass(frozen=True)
class Case:
    """How a method is audited."""

    kind: type[TableExplainer]
    hardening: Hardening
    made: dict[str, Any]
    options: dict[str, Any]


RANKED, NAMED = Hardening.ranked(), {"feature_names": NAMES}
CASES = {
    "LimeTabular": Case(
        HardenedLimeTabular, Hardening.recommended(), {**NAMED, "kernel_width": 1.5}, {"num_samples": 60}
    ),
    "Anchors": Case(
        HardenedAnchorTabular,
        anchor_hardening(),
        {**NAMED, "seed": 1, "disc_perc": [20, 50, 80]},
        {"threshold": 0.8, "coverage_samples": 200},
    ),
    "ProtoDash": Case(HardenedProtoDash, RANKED, {}, {"m": 3}),
    "AlibiKernelShap": Case(HardenedAlibiKernelShap, RANKED, NAMED, {"nsamples": 30}),
    "TreeShap": Case(HardenedTreeShap, RANKED, NAMED, {}),
    "TreeExplainer": Case(HardenedTreeExplainer, RANKED, NAMED, {}),
    "KernelExplainer": Case(HardenedKernelExplainer, RANKED, NAMED, {"nsamples": 14}),
}
NEEDS = {"Anchors": "alibi", "ProtoDash": "aix360", "LimeTabular": "lime", "AlibiKernelShap": "alibi shap"}
NEEDS |= {"TreeShap": "alibi shap", "TreeExplainer": "shap", "KernelExplainer": "shap"}


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


few_cases = pytest.mark.parametrize("case", ["LimeTabular", "Anchors", "KernelExplainer"], indirect=True)
"""A library each, with and without noise."""


@pytest.fixture(params=CASES)
def case(request):
    for library in NEEDS[request.param].split():
        pytest.importorskip(library)
    return CASES[request.param]


def forest(seed: int = 0) -> Any:
    return RandomForestClassifier(5, random_state=seed).fit(X, Y)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def made_of(case: Case, public: Any = PUBLIC) -> TableExplainerFactory:
    return case.kind.catalogued(public, **case.made)


def about(path: Path, case: Case, model: Any, **changes: Any) -> Path:
    of = made_of(case)
    options = {**case.options, "made_with": changes.pop("made_with", of.made_with)}
    softmax = isinstance(model, nn.Module)
    explainer = {"method": of.method, "options": options, "softmax": softmax, "shape": [4]} | changes.pop("said", {})
    return certificate(path, as_module(model), explainer=explainer, hardening=case.hardening, **changes)


def test_every_method_of_the_catalog_is_loaded_from_a_certificate():
    of_rows = {row.name for row in CATALOG.values() if row.entry != "attribute"}
    assert of_rows == set(TABLE_METHODS) == {*CASES, "LinearExplainer"} == {*NEEDS, "LinearExplainer"}
    for name, kind in TABLE_METHODS.items():
        assert kind._row is CATALOG[name]


@pytest.mark.parametrize("name", ["TreeShap", "TreeExplainer"])
def test_a_network_has_no_trees_to_explain(name, tmp_path):
    pytest.importorskip("shap")
    pytest.importorskip("alibi")
    with pytest.raises(InputError, match=r"trees|tables"):
        load_release(network(), about(tmp_path, CASES[name], network()), key=KEY, public=PUBLIC)


def test_a_service_tells_what_was_audited(case, tmp_path):
    model: Any = network() if case.kind in (HardenedLimeTabular, HardenedProtoDash) else forest()
    release = load_release(model, about(tmp_path, case, model), key=KEY, public=PUBLIC)
    target = release.predict(ASKED).argmax(1)
    module = as_module(model)
    forward = Probability(module) if isinstance(model, nn.Module) else module
    with_service_key = case.hardening if case.hardening.noise is None else case.hardening.with_key(KEY)
    audited = made_of(case)(forward, hardening=with_service_key)
    numbers = audited.attribute(ASKED, target=target, **case.options).numpy()
    served = release.explain(ASKED, target)
    assert np.isfinite(numbers).all()
    assert numbers.any()
    if audited.explainer._has_answers:
        assert served == [audited.explainer._to_answer(one) for one in numbers]
        assert json.loads(json.dumps(served)) == served
    else:
        np.testing.assert_array_equal(np.asarray(served), numbers)
    one_by_one = [release.explain(ASKED[i : i + 1], target[i : i + 1])[0] for i in range(3)]
    assert all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(one_by_one, served, strict=True)
    )
    assert (release.shape, release.mixes_batch, release.uncertified) == ((4,), False, False)


@pytest.mark.slow
def test_an_audit_ends_in_a_certificate_that_a_service_loads(tmp_path):
    pytest.importorskip("lime")
    case, member, tree = CASES["LimeTabular"], np.arange(30) % 2 == 0, RandomForestClassifier(3, random_state=0)
    fitted = clone(tree).fit(X[:30][member], Y[:30][member])
    run = audit(
        fitted, Population.of(X[:30], Y[:30]), tree, member=member, explainer=made_of(case), hardening=case.hardening,
        arguments={"num_samples": 20}, references=4, policy=Policy(patience=(1,), uncounted=True, reason="an example"),
    )  # fmt: skip
    path = run.save(tmp_path / "run") / "certificate.json"
    release = load_release(fitted, path, key=KEY, public=PUBLIC, uncertified=True)
    assert (release.method, release.shape) == ("LimeTabular", (4,))
    assert len(release.explain(ASKED, release.predict(ASKED).argmax(1))) == len(ASKED)
    with pytest.raises(CertificateError, match="another background"):
        load_release(fitted, path, key=KEY, public=X[:40], uncertified=True)


@few_cases
def test_what_differs_from_the_audit_is_refused(case, tmp_path):
    path, kind = about(tmp_path, case, forest()), case.kind
    given: dict[str, Any] = {"public": PUBLIC, "key_file": tmp_path / "key"}
    given["key_file"].write_bytes(KEY)
    kind.from_certificate(forest(), path, **given, **case.made)
    with pytest.raises(CertificateError, match="another model"):
        kind.from_certificate(forest(1), path, **given)
    other = PUBLIC.copy()
    other[0, 0] += 1
    expected = made_of(case).made_with["public"]["sha256"][:12]
    with pytest.raises(CertificateError, match=f"another background: expected 40 x 4 rows with SHA-256 {expected}"):
        kind.from_certificate(forest(), path, **given | {"public": other})
    with pytest.raises(RefusedError, match="pass public="):
        load_release(forest(), path, key=KEY)
    with pytest.raises(RefusedError, match=r"surprise: expected None, as in the certificate"):
        kind.from_certificate(forest(), path, **given, surprise=1)
    with pytest.raises(CertificateError, match="certifies nothing"):
        kind.from_certificate(forest(), about(tmp_path, case, forest(), references=0), **given)
    with pytest.raises(CertificateError, match=f"use {kind._row.hardened_name}"):  # type: ignore[union-attr]
        HardenedIG.from_certificate(forest(), about(tmp_path, case, forest()))
    wrong = {"options": {"surprise": 1, "made_with": made_of(case).made_with}}
    with pytest.raises(CertificateError, match="'surprise' is not an option"):
        kind.from_certificate(forest(), about(tmp_path, case, forest(), said=wrong), **given)
    old = {**made_of(case).made_with, "libraries": {"lime": "0.1"}}
    with pytest.raises(CertificateError, match=r"lime 0\.1, but .* is installed"):
        kind.from_certificate(forest(), about(tmp_path, case, forest(), made_with=old), **given)
    with pytest.raises(CertificateError, match="does not state the arguments"):
        kind.from_certificate(forest(), about(tmp_path, case, forest(), said={"options": {}}), **given)


@few_cases
def test_before_an_audit_a_service_tells_what_an_audit_of_the_plain_choice_would_ask(case):
    model, hardening = forest(), case.hardening if case.hardening.noise is None else case.hardening.with_key(KEY)
    said = {"method": case.kind._row.name, "hardening": case.hardening}  # type: ignore[union-attr]
    before = load_release(model, None, key=KEY, public=PUBLIC, uncertified=True, **said)
    target = before.predict(ASKED).argmax(1)
    asked = case.kind.catalogued(PUBLIC)(as_module(model), hardening=hardening)
    numbers = asked.attribute(ASKED, target=target).numpy()
    audited = [asked.explainer._to_answer(one) for one in numbers] if asked.explainer._has_answers else numbers
    assert np.array_equal(before.explain(ASKED, target), audited)
    assert before.uncertified
    assert len(before.digest) == 64


@few_cases
def test_rows_with_other_columns_than_the_background_are_refused(case, tmp_path):
    path, key = about(tmp_path, case, forest()), tmp_path / "key"
    key.write_bytes(KEY)
    loaded: Any = case.kind.from_certificate(forest(), path, public=PUBLIC, key_file=key)
    asked = getattr(loaded, case.kind._row.entry)  # type: ignore[union-attr]
    for wrong in (X[0, :3], X[:1, :3], "a row", X[:2, :, None]):
        with pytest.raises(InputError, match="rows of"):
            asked(wrong)
    with pytest.raises(InputError, match="rows of 4 features"):
        load_release(forest(), path, public=PUBLIC, key=KEY).explain(ASKED[:, :3], torch.tensor([0, 1, 0]))


@pytest.mark.parametrize(
    ("kind", "names"), [(HardenedLimeTabular, ["a", "b", "c"]), (HardenedAnchors, ["a", "a", "b", "c"])]
)
def test_every_column_of_the_background_has_one_name(kind, names):
    pytest.importorskip("lime" if kind is HardenedLimeTabular else "alibi")
    with pytest.raises(InputError, match="4 distinct names"):
        kind.catalogued(PUBLIC, feature_names=names)(network(), hardening=anchor_hardening(KEY))


def test_lime_explains_the_predicted_class_with_the_audited_options(tmp_path):
    pytest.importorskip("lime")
    case, model = CASES["LimeTabular"], network()
    path = about(tmp_path, case, model)
    loaded = HardenedLimeTabular.from_certificate(model, path, public=PUBLIC)
    release = load_release(model, path, public=PUBLIC)
    target = release.predict(ASKED).argmax(1)
    answer = loaded.explain_instance(X[0])
    assert list(answer.local_exp) == [int(target[0])]
    assert dict(answer.local_exp[int(target[0])]) == dict(enumerate(release.explain(ASKED, target)[0].tolist()))
    assert loaded.explain_instance(X[0], num_samples=60).as_map() == answer.as_map()
    other = 1 - int(target[0])
    assert list(loaded.explain_instance(X[0], labels=(other,)).local_exp) == [other]
    for options in ({"num_samples": 61}, {"top_labels": 2}, {"num_features": 2}, {"predict_fn": model}):
        with pytest.raises(RefusedError, match=next(iter(options))):
            loaded.explain_instance(X[0], **options)


def test_anchors_say_the_rule_that_was_audited(tmp_path):
    pytest.importorskip("alibi")
    model, case = forest(), CASES["Anchors"]
    path = about(tmp_path, case, model)
    (tmp_path / "key").write_bytes(KEY)
    loaded = HardenedAnchors.from_certificate(model, path, public=PUBLIC, key_file=tmp_path / "key")
    assert isinstance(loaded, HardenedAnchors)
    answer = loaded.explain(X[0])
    release = load_release(model, path, public=PUBLIC, key=KEY)
    told = release.explain(ASKED, torch.tensor([0, 0, 0]))[0]
    assert set(answer.data) == {"anchor", "precision", "coverage"}
    assert answer.anchor == told["anchor"]
    assert set(told["anchor"]) == set(loaded._explain(X[0], **case.options).anchor)
    assert answer.precision == pytest.approx(told["precision"])
    with pytest.raises(RefusedError, match="threshold"):
        loaded.explain(X[0], threshold=0.9)
    with pytest.raises(CertificateError, match=r"use HardenedAnchors\.from_certificate"):
        HardenedAnchorImage.from_certificate(model, path)
    with pytest.raises(RefusedError, match="rows of tables"):
        HardenedAnchorImage.catalogued(PUBLIC)


def test_every_rule_of_an_anchor_is_read_back_from_its_numbers():
    pytest.importorskip("alibi")
    rows = np.column_stack([X, RNG.integers(0, 3, 100)]).astype(np.float32)
    y = (rows[:, 0] + (rows[:, 4] == 1) > 0.3).astype(int)
    names = [*NAMES, "town"]
    made = HardenedAnchors.catalogued(rows[60:], feature_names=names, categorical_names={4: ["A", "B", "C"]})
    fitted = as_module(RandomForestClassifier(5, random_state=0).fit(rows, y))
    asked = made(fitted, hardening=Hardening.none())
    conditions = set()
    for row in rows[:12].astype(np.float64):
        numbers = asked.explainer._numbers(row, 0, {}).astype(np.float32)
        told = asked.explainer._to_answer(numbers)
        assert set(told["anchor"]) <= {text for rule in asked.explainer._rules for text in rule.texts}
        assert len(told["anchor"]) == int(numbers[:-2].reshape(-1, 2).any(1).sum())
        conditions |= set(told["anchor"])
    assert any(text.startswith("town = ") for text in conditions)
    found = asked.explainer._to_answer(np.array([0.0] * 10 + [1 / 3, 2 / 3]))
    assert found == {"anchor": [], "precision": 0.333333, "coverage": 0.666667}
    rule = Rule("x", ["x <= 1.00", "1.00 < x <= 2.00", "2.00 < x <= 3.00", "x > 3.00"], categorical=False)
    assert rule.texts == {
        "x <= 3.00": (0, 0.25),
        "x <= 2.00": (0, 0.5),
        "x <= 1.00": (0, 0.75),
        "x > 1.00": (0.25, 0),
        "1.00 < x <= 3.00": (0.25, 0.25),
        "1.00 < x <= 2.00": (0.25, 0.5),
        "x > 2.00": (0.5, 0),
        "2.00 < x <= 3.00": (0.5, 0.25),
        "x > 3.00": (0.75, 0),
    }
    assert all(rule.text_of(np.float32(numbers)) == text for text, numbers in rule.texts.items())


def test_protodash_answers_about_one_row_with_its_places_in_order(tmp_path):
    pytest.importorskip("aix360")
    model, case = network(), CASES["ProtoDash"]
    path = about(tmp_path, case, model)
    (tmp_path / "key").write_bytes(KEY)
    loaded = HardenedProtoDash.from_certificate(model, path, public=PUBLIC, key_file=tmp_path / "key")
    weights, chosen, _ = loaded.explain(X[:1])
    told = load_release(model, path, public=PUBLIC, key=KEY).explain(ASKED, torch.tensor([0, 0, 0]))[0]
    assert told["prototypes"] == chosen.tolist()
    np.testing.assert_allclose(told["weights"], weights, rtol=1e-6)
    np.testing.assert_allclose(told["rows"], PUBLIC[chosen])
    for wrong in ({"X": X[:2]}, {"X": X[:1], "Y": PUBLIC[:9]}, {"X": X[:1], "m": 4}):
        with pytest.raises(RefusedError):
            loaded.explain(**wrong)


@pytest.mark.parametrize("kind", [HardenedAlibiKernelShap, HardenedTreeShap])
def test_shapley_values_are_those_of_the_predicted_class_alone(kind, tmp_path):
    pytest.importorskip("alibi")
    pytest.importorskip("shap")
    model, case = forest(), CASES[kind._row.name]
    path = about(tmp_path, case, model)
    (tmp_path / "key").write_bytes(KEY)
    loaded = kind.from_certificate(model, path, public=PUBLIC, key_file=tmp_path / "key")
    release = load_release(model, path, public=PUBLIC, key=KEY)
    target = release.predict(ASKED).argmax(1)
    values = np.stack(loaded.explain(X[:3]).shap_values)
    np.testing.assert_allclose(
        values[target.numpy(), np.arange(3)].astype(np.float32), np.asarray(release.explain(ASKED, target)), rtol=1e-6
    )
    assert np.isnan(values[1 - target.numpy(), np.arange(3)]).all()


def test_a_linear_model_is_served_as_it_was_audited(tmp_path):
    pytest.importorskip("shap")
    model = LogisticRegression().fit(X, np.digitize(X[:, 0], [-0.5, 0.5]))
    case = Case(HardenedLinearExplainer, Hardening.none(), NAMED, {})
    path = about(tmp_path, case, model)
    release = load_release(model, path, public=PUBLIC)
    target = release.predict(ASKED).argmax(1).numpy()
    expected = (X[:3] - PUBLIC.mean(0)) * model.coef_[target]
    np.testing.assert_allclose(np.asarray(release.explain(ASKED, torch.from_numpy(target))), expected, atol=1e-6)
    values = HardenedLinearExplainer.from_certificate(model, path, public=PUBLIC).shap_values(X[:3])
    np.testing.assert_allclose(values[np.arange(3), :, target], expected, atol=1e-6)
    assert np.isnan(values[np.arange(3), :, (target + 1) % 3]).all()
    np.testing.assert_array_equal(
        HardenedLinearExplainer.from_certificate(model, path, public=PUBLIC).shap_values(X[0]), values[0]
    )


def test_a_background_is_asked_for_before_anything():
    pytest.importorskip("aix360")
    for kind in (HardenedLimeTabular, HardenedAnchors, HardenedProtoDash):
        with pytest.raises(ConfigurationError, match=r"catalogued\(public=rows\)"):
            kind.catalogued()
    with pytest.raises(InputError, match="finite"):
        HardenedProtoDash.catalogued(np.full((5, 2), np.nan))
    with pytest.raises(InputError, match="rows"):
        HardenedProtoDash.catalogued(np.zeros(5))
    with pytest.raises(ConfigurationError, match="got kernel"):
        HardenedLimeTabular.catalogued(PUBLIC, kernel=print)
    with pytest.raises(ConfigurationError, match="random_state: expected numbers, texts"):
        HardenedLimeTabular.catalogued(PUBLIC, random_state=np.random.RandomState(0))


def test_what_explains_no_rows_has_no_certificate(tmp_path):
    pytest.importorskip("lime")
    for kind in (HardenedLimeText, HardenedLimeImage):
        with pytest.raises(RefusedError, match="only explainers of rows"):
            kind.catalogued(PUBLIC)
        with pytest.raises(CertificateError, match=r"use HardenedLimeTabular\.from_certificate"):
            kind.from_certificate(forest(), about(tmp_path, CASES["LimeTabular"], forest()))


def test_a_row_outside_of_the_background_is_not_printed(capsys):
    pytest.importorskip("alibi")
    towns = np.column_stack([X, np.zeros(100)]).astype(np.float32)
    made = HardenedAnchors.catalogued(towns, feature_names=[*NAMES, "town"], categorical_names={4: ["A", "B"]})
    net = nn.Sequential(nn.Linear(5, 2)).eval()
    asked = made(net, hardening=anchor_hardening(KEY))
    with torch.no_grad():
        net[0].weight[:], net[0].bias[:] = torch.tensor([[0.0, 0, 0, 0, -9], [0, 0, 0, 0, 9]]), torch.tensor([1.0, 0.0])
    asked.explainer._numbers(np.array([0.0, 0, 0, 0, 1]), 1, {})
    assert capsys.readouterr().out == "", "alibi says that no row of the background has the value of this one"
