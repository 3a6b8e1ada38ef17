"""A classifier of tables, from the command line to the explainer that its certificate loads, and to no other."""

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from safexplain.errors import SafexplainError
from safexplain.explain.hardened import HARDENED

Cli = Callable[..., tuple[int, str, str]]

skops = pytest.importorskip("skops.io")

COLUMNS = [0, 1, 6, 7, 20]
POLICY = "fpr = 0.1\nmax_tpr = 0.9\nmax_excess = 0.9\nreferences = 4\npatience = [1]\nuncounted = true\n"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A forest of 5 trees, and its data."""
    folder = tmp_path_factory.mktemp("classifier")
    cancer, rng = load_breast_cancer(), np.random.default_rng(0)
    order = rng.permutation(len(cancer.data))
    frame = pd.DataFrame(cancer.data[order][:, COLUMNS], columns=[f"feature {i}" for i in COLUMNS])
    label, member = cancer.target[order], rng.random(len(order)) < 0.5
    trained = np.flatnonzero(member[69:]) + 69
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(frame.iloc[trained], label[trained])
    skops.dump(model, folder / "model.skops")
    frame[69:].assign(label=label[69:], member=member[69:]).to_csv(folder / "data.csv", index=False)
    (folder / "policy.toml").write_text(POLICY)
    return folder


def test_what_the_command_certified_is_loaded_and_nothing_else(case, cli, tmp_path):
    audit = ("audit", "model.skops", "--data", "data.csv", "--policy", "policy.toml", "--references", "4")
    code, out, error = cli(*audit, "--explainer", "FeatureAblation", "--run-dir", tmp_path / "run", "--json")
    assert code == 0, out + error
    certificate, kind = tmp_path / "run" / "certificate.json", HARDENED["FeatureAblation"]
    model = skops.load(case / "model.skops", trusted=["sklearn.tree._tree.Tree"])
    kind.from_certificate(model, certificate, file=case / "model.skops")
    frame = pd.read_csv(case / "data.csv")
    other = RandomForestClassifier(5, max_depth=3, random_state=1).fit(frame[model.feature_names_in_], frame["label"])
    with pytest.raises(SafexplainError, match="about another model"):
        kind.from_certificate(other, certificate)
    code, out, _ = cli("verify", certificate, "--model", "model.skops", "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "certified")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--explainer", "IG"), "expected one of Occlusion, FeatureAblation"),
        (("--explainer", "LimeTabular"), "give --public FILE"),
        (("--output", "logit"), "only probabilities can be explained"),
        (("--arch", "timm:resnet18"), "leave it out"),
    ],
    ids=["gradients", "no public rows", "logit", "arch"],
)
def test_what_a_classifier_cannot_be_asked_is_refused_in_one_line(given, said, cli):
    code, _, error = cli("audit", "model.skops", "--data", "data.csv", *given)
    assert code == 2
    assert said in " ".join(error.split())


def test_how_often_a_prohibited_column_is_a_reason_is_counted_and_the_certificate_names_it(case, cli, tmp_path):
    frame = pd.read_csv(case / "data.csv").rename(columns={"feature 20": "home=owns", "feature 7": "home=rents"})
    model = skops.load(case / "model.skops", trusted=["sklearn.tree._tree.Tree"])
    model.feature_names_in_ = np.array(frame.columns[: len(COLUMNS)], dtype=object)
    skops.dump(model, tmp_path / "model.skops")
    frame.to_csv(tmp_path / "data.csv", index=False)
    audit = ("audit", tmp_path / "model.skops", "--data", tmp_path / "data.csv", "--policy", "policy.toml",
             "--references", "4", "--explainer", "FeatureAblation")  # fmt: skip
    code, out, error = cli(*audit, "--option", "prohibited=home", "--run-dir", tmp_path / "run")
    assert code in (0, 1, 3), out + error
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]
    features = stated["hardening"]["features"]
    assert features["groups"] == {"home": ["home=rents", "home=owns"]}
    assert features["prohibited"] == ["home"]
    with np.load(tmp_path / "run" / "signals.npz") as signals:
        maps = signals["attributions"][0]
    names = features["names"]
    assert np.array_equal(maps[:, names.index("home=owns")], maps[:, names.index("home=rents")])
    share = float((maps[:, names.index("home=owns")] != 0).mean())
    assert 0 < share < 1
    assert stated["utility"]["prohibited"] == pytest.approx(share)
    assert "Prohibited reasons" in (tmp_path / "run" / "report.html").read_text()
    assert "no answer if home is among them" in out + (tmp_path / "run" / "report.html").read_text()
    for option, said in (("prohibited=sex", "got 'sex'"), ("groups=home", "as JSON")):
        code, _, error = cli(*audit, "--option", option)
        assert (code, said in error) == (2, True), error


def test_a_recipe_with_an_unknown_hyper_parameter_is_refused_with_those_that_there_are(cli, tmp_path):
    (tmp_path / "recipe.toml").write_text("epochs = 3\n")
    code, _, error = cli("audit", "model.skops", "--data", "data.csv", "--recipe", tmp_path / "recipe.toml")
    assert code == 2
    assert "has no hyper-parameter epochs; expected among" in " ".join(error.split())


def test_a_pipeline_with_text_columns_is_read_by_default(case, cli, tmp_path):
    pytest.importorskip("shap")
    frame = pd.read_csv(case / "data.csv")
    frame["feature 0"] = np.where(frame["feature 0"] > 14, "large", "small")
    frame.to_csv(tmp_path / "data.csv", index=False)
    encoder = make_column_transformer((OneHotEncoder(), ["feature 0"]), remainder=StandardScaler())
    member = frame.pop("member")
    fitted = make_pipeline(encoder, LogisticRegression()).fit(
        frame[member].drop(columns="label"), frame["label"][member]
    )
    skops.dump(fitted, tmp_path / "model.skops")
    audit = ("audit", tmp_path / "model.skops", "--data", tmp_path / "data.csv", "--policy", "policy.toml")
    code, _, error = cli(*audit, "--references", "4", "--run-dir", tmp_path / "run")
    assert code in (0, 1, 3), error
    assert "No --explainer: LinearExplainer" in " ".join(error.split())
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]
    assert stated["explainer"]["method"] == "LinearExplainer"
    assert stated["hardening"]["clip"]["ordered"]
    with np.load(tmp_path / "run" / "signals.npz") as signals:
        assert signals["attributions"].shape[-1] == len(COLUMNS)
    assert "log odds" in (tmp_path / "run" / "report.html").read_text()
    assert any("log odds of the predicted class" in note for note in stated["notes"])


def test_a_pipeline_that_mixes_columns_is_asked_and_the_reason_is_said(case, cli, tmp_path):
    pytest.importorskip("shap")
    frame = pd.read_csv(case / "data.csv").drop(columns="member")
    fitted = make_pipeline(PCA(3), RandomForestClassifier(3, random_state=0)).fit(
        frame.drop(columns="label"), frame["label"]
    )
    skops.dump(fitted, tmp_path / "model.skops")
    asked = ("audit", tmp_path / "model.skops", "--data", "data.csv", "--policy", "policy.toml", "--references", "4")
    _, _, error = cli(*asked, "--plan")
    assert "No --explainer: FeatureAblation is used (PCA combines several of your columns" in " ".join(error.split())
    code, _, error = cli(*asked, "--explainer", "TreeExplainer")
    assert code == 2
    assert "PCA combines several of your columns" in " ".join(error.split())
