"""What is promised of classifiers of tables: the usual files, no code run, their own columns and classes."""

import io
import lzma
import pickle
import zlib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn.base
import torch
from memory import peak_of
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

from safexplain import model_digest
from safexplain.columns import Columns
from safexplain.errors import InputError
from safexplain.loading import load_model
from safexplain.loading.data import load_for_classifier
from safexplain.loading.estimators import SkopsSerializer, identify_estimator, load_estimator
from safexplain.outputs import EstimatorModule

skops = pytest.importorskip("skops.io")
xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
FRAME = pd.DataFrame({"age": X[:, 0], "job": np.where(X[:, 1] > 0, "clerk", "boss"), "debt": X[:, 2]})


def saved(model: Any, path: Path) -> Path:
    skops.dump(model, path)
    return path


def pipeline() -> Pipeline:
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["age", "debt"]), ("texts", OneHotEncoder(handle_unknown="ignore"), ["job"])]
    )
    return Pipeline([("columns", columns), ("model", LogisticRegression())])


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(3, random_state=0), HistGradientBoostingClassifier(max_iter=3), LogisticRegression()],
    ids=["forest", "histogram boosting", "logistic regression"],
)
def test_a_classifier_of_scikit_learn_comes_back_from_skops_as_the_same_model(model, tmp_path):
    model.fit(X, Y)
    loaded = load_model(saved(model, tmp_path / "m.skops"))
    assert model_digest(loaded.model) == model_digest(EstimatorModule(model))
    np.testing.assert_array_equal(loaded.model(torch.from_numpy(X)), model.predict_proba(X).astype(np.float32))


def test_xgboosts_own_formats_tell_rounds_and_depth_and_say_what_they_do_not(tmp_path):
    model = xgboost.XGBClassifier(n_estimators=7, max_depth=2, learning_rate=0.1).fit(X, Y)
    model.save_model(tmp_path / "m.ubj")
    found = load_estimator(tmp_path / "m.ubj")
    np.testing.assert_array_equal(found.estimator.predict_proba(X), model.predict_proba(X))
    again = found.template.get_params()
    assert (again["n_estimators"], again["max_depth"]) == (7, 2)
    assert "learning_rate" in found.unrecorded
    assert "records only the number of rounds" in found.notes[0]


def test_lightgbms_text_tells_the_hyper_parameters_too(tmp_path):
    labels = np.digitize(X[:, 0], [-0.5, 0.5])
    model = lightgbm.LGBMClassifier(n_estimators=6, num_leaves=5, learning_rate=0.2, verbose=-1).fit(X, labels)
    model.booster_.save_model(tmp_path / "m.txt")
    found = load_estimator(tmp_path / "m.txt")
    module = EstimatorModule(found.estimator)
    np.testing.assert_allclose(module(torch.from_numpy(X)), model.predict_proba(X), rtol=1e-6)
    again = found.template.get_params()
    assert (again["n_estimators"], again["num_leaves"], again["learning_rate"]) == (6, 5, 0.2)
    assert found.unrecorded == ()


def test_of_lightgbms_text_columns_are_matched_by_name_spaces_or_not(tmp_path):
    frame = pd.DataFrame(X, columns=["net income", "age", "debt", "rate"])
    model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(frame, Y)
    model.booster_.save_model(tmp_path / "m.txt")
    turned = frame[["rate", "debt", "net income", "age"]].assign(label=Y, member=np.arange(len(Y)) % 2)
    turned.to_csv(tmp_path / "data.csv", index=False)
    path = tmp_path / "data.csv"
    read = load_for_classifier(load_estimator(tmp_path / "m.txt"), path, public=path)
    np.testing.assert_array_equal(read.data.x, X)
    np.testing.assert_array_equal(read.public, X)


def test_a_pickle_is_only_loaded_by_name_and_skops_is_recommended(tmp_path):
    path = tmp_path / "m.joblib"
    joblib.dump(LogisticRegression().fit(X, Y), path, compress=3)
    with pytest.raises(InputError, match=r"can run any code.*skops\.io\.dump.*--trust-pickle"):
        load_estimator(path)
    assert load_estimator(path, trust_pickle=True).estimator.n_features_in_ == 4


def test_types_that_skops_does_not_know_are_refused_by_name_and_accepted_by_name(tmp_path):
    model = make_pipeline(FunctionTransformer(np.cbrt), FunctionTransformer(io.StringIO), LogisticRegression())
    model.steps.pop(1)
    model.fit(X, Y).marker = Path("somewhere")
    path = saved(model, tmp_path / "m.skops")
    with pytest.raises(InputError, match=r"not known to be harmless: .*pathlib.*--trust-type pathlib"):
        load_estimator(path)
    named = skops.get_untrusted_types(file=path)
    assert load_estimator(path, trust_types=named).trusted == tuple(named)


@pytest.mark.parametrize("field", ["children_left", "feature"])
def test_a_tree_whose_nodes_point_outside_of_it_is_refused_before_anything_follows_them(field, tmp_path):
    model = RandomForestClassifier(2, random_state=0).fit(X, Y)
    getattr(model.estimators_[1].tree_, field)[0] = 10**6
    with pytest.raises(InputError, match="nodes point outside"):
        load_estimator(saved(model, tmp_path / "m.skops"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Ridge().fit(X, Y), "regressor"),
        (LogisticRegression(), "unfitted"),
        (LinearSVC().fit(X, Y), "CalibratedClassifierCV"),
        (StandardScaler().fit(X), "which is not a classifier"),
        ({"model": 1}, "expected one fitted classifier or Pipeline, got a dict"),
        (RandomForestClassifier(2).fit(X, np.stack([Y, Y], 1)), "labels at once"),
    ],
    ids=["regressor", "unfitted", "without probabilities", "transformer", "dictionary", "several labels"],
)
def test_what_gives_no_class_probabilities_is_refused_in_words(model, said, tmp_path):
    with pytest.raises(InputError, match=said):
        load_estimator(saved(model, tmp_path / "m.skops"))


def test_boosted_regressors_are_refused(tmp_path):
    xgboost.XGBRegressor(n_estimators=2).fit(X, X[:, 0]).save_model(tmp_path / "m.json")
    regressor = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1).fit(X, X[:, 0])
    regressor.booster_.save_model(tmp_path / "m.txt")
    for name in ("m.json", "m.txt"):
        with pytest.raises(InputError, match="regressor"):
            load_estimator(tmp_path / name)


@pytest.mark.parametrize("name", ["m.txt", "m.skops"])
def test_a_file_that_is_cut_short_is_refused_in_a_sentence(name, tmp_path):
    path = tmp_path / name
    if name == "m.txt":
        lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(X, Y).booster_.save_model(path)
    else:
        saved(LogisticRegression().fit(X, Y), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"save it|damaged|expected"):
        load_model(path)


def test_another_release_of_scikit_learn_is_refused_and_another_patch_is_a_note(tmp_path, monkeypatch):
    model = LogisticRegression().fit(X, Y)
    path = tmp_path / "m.pkl"
    for made, allowed in (("0.24.2", False), (sklearn.base.__version__ + ".post1", True)):
        with monkeypatch.context() as changed:
            changed.setattr(sklearn.base, "__version__", made)
            path.write_bytes(pickle.dumps(model))
        if allowed:
            assert made in load_estimator(path, trust_pickle=True).notes[0]
        else:
            with pytest.raises(InputError, match=f"made with scikit-learn {made}"):
                load_estimator(path, trust_pickle=True)


def test_a_pipeline_with_text_columns_works_from_a_csv(tmp_path):
    labels = np.where(Y, "good", "bad")
    model = pipeline().fit(FRAME, labels)
    table = FRAME.assign(customer=range(len(FRAME)), label=labels, member=[i % 2 for i in range(len(FRAME))])
    table[["debt", "customer", "job", "age", "label", "member"]].to_csv(tmp_path / "data.csv", index=False)
    FRAME[:9].to_csv(tmp_path / "public.csv", index=False)
    found = load_estimator(saved(model, tmp_path / "m.skops"))
    read = load_for_classifier(found, tmp_path / "data.csv", public=tmp_path / "public.csv")
    assert read.columns is not None
    assert read.data.feature_names == ("age", "job", "debt")
    assert read.columns.categorical_names == {1: ["boss", "clerk"]}
    assert any("left out: customer" in note for note in read.notes)
    np.testing.assert_array_equal(read.data.y, Y)  # "bad", "good" as the model has them
    module = EstimatorModule(found.estimator, columns=read.columns)
    own = module(torch.from_numpy(read.data.x))
    np.testing.assert_allclose(own, model.predict_proba(FRAME), atol=1e-5)
    assert read.public is not None
    assert read.public.shape == (9, 3)
    other = EstimatorModule(found.estimator, columns=Columns.of(FRAME[:1]))
    assert model_digest(other) != model_digest(module)  # another code is another model
    stored = SkopsSerializer.of()
    np.testing.assert_array_equal(stored.read(stored.write(model)).predict_proba(FRAME), model.predict_proba(FRAME))


@pytest.mark.parametrize("kind", ["xgboost", "lightgbm", "histogram"])
def test_boosters_that_want_pandas_categories_and_missing_values_get_them(kind, tmp_path):
    frame = FRAME.assign(job=FRAME["job"].astype("category"))
    frame.loc[::7, "debt"] = np.nan
    made = {
        "xgboost": lambda: xgboost.XGBClassifier(n_estimators=3, enable_categorical=True),
        "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=3, verbose=-1),
        "histogram": lambda: HistGradientBoostingClassifier(max_iter=3, categorical_features="from_dtype"),
    }[kind]()
    model = made.fit(frame, Y)
    frame.assign(label=Y, member=[i % 2 for i in range(len(frame))]).to_csv(tmp_path / "data.csv", index=False)
    path = saved(model, tmp_path / "m.skops")
    named = skops.get_untrusted_types(file=path) if kind == "histogram" else []  # functools.partial, which may call all
    read = load_for_classifier(found := load_estimator(path, trust_types=named), tmp_path / "data.csv")
    assert read.columns is not None
    assert read.columns.as_category
    assert np.isfinite(read.data.x).all()
    module = EstimatorModule(found.estimator, columns=read.columns)
    np.testing.assert_allclose(module(torch.from_numpy(read.data.x)), model.predict_proba(frame), atol=1e-5)


def test_codes_go_there_and_back_and_through_their_file(tmp_path):
    frame = pd.DataFrame({"n": [1.0, np.nan, 3.0], "t": ["b", None, "a"]})
    columns = Columns.of(frame)
    assert Columns.read(columns.save(tmp_path / "columns.json")) == columns
    back = columns.decode(columns.encode(frame))
    pd.testing.assert_frame_equal(back.astype({"n": float}), frame.fillna({"t": np.nan}))
    for asked in ("z", ""):
        with pytest.raises(InputError, match=r"expected one of .*, got"):
            columns.encode(pd.DataFrame({"n": [1.0], "t": [asked]}))
    with pytest.raises(InputError, match="missing: t"):
        columns.encode(frame[["n"]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop(columns="age"), "lacks columns that the model was fitted with: age"),
        (lambda t: t.assign(label="neither"), "expected labels among the model's classes bad, good, got 'neither'"),
    ],
    ids=["missing column", "unknown label"],
)
def test_a_table_of_another_model_is_refused_in_words(change, said, tmp_path):
    labels = np.where(Y, "good", "bad")
    found = load_estimator(saved(pipeline().fit(FRAME, labels), tmp_path / "m.skops"))
    table = FRAME.assign(label=labels, member=[i % 2 for i in range(len(FRAME))])
    change(table).to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(InputError, match=said):
        load_for_classifier(found, tmp_path / "data.csv")


def test_a_forest_fitted_without_names_takes_all_columns_in_their_order(tmp_path):
    model = ExtraTreesClassifier(2, random_state=0).fit(X, Y)
    found = load_estimator(saved(model, tmp_path / "m.skops"))
    table = pd.DataFrame(X, columns=list("abcd")).assign(label=Y, member=[i % 2 for i in range(len(X))])
    table.to_csv(tmp_path / "data.csv", index=False)
    read = load_for_classifier(found, tmp_path / "data.csv")
    assert read.columns is None
    np.testing.assert_allclose(read.data.x, X)
    table.drop(columns="d").to_csv(tmp_path / "data.csv", index=False)
    with pytest.raises(InputError, match=r"expected 4 columns of features, .* got 3"):
        load_for_classifier(found, tmp_path / "data.csv")


@pytest.mark.parametrize("pack", [zlib.compress, lzma.compress])
def test_what_is_compressed_is_told_by_its_first_byte_and_not_unpacked(pack):
    raw = pack(b"\x80" + bytes(2**25))
    found = list[str]()
    assert peak_of(lambda: found.append(identify_estimator(raw))) < 2**24
    assert found == ["pickle"]


def test_a_category_has_one_code():
    text = Columns.of(FRAME).to_json()
    with pytest.raises(InputError, match=r"each once, got .*clerk"):
        Columns.from_json(text.replace('"boss"', '"clerk"'))
