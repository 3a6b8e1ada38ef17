"""A booster's file is handed to its library only where no number in it points outside of it."""

import json
import re
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from safexplain.errors import InputError
from safexplain.loading import estimators
from safexplain.loading.estimators import load_estimator, read_lightgbm, read_xgboost

xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6)).astype(np.float32)
X[:, 5] = RNG.integers(0, 12, 300)
TWO = (X[:, 0] * X[:, 1] + (X[:, 5] % 3 == 0) > 0).astype(int)
THREE = np.digitize(X[:, 0] + X[:, 2], [-0.5, 0.5])
CATEGORICAL = {"enable_categorical": True, "feature_types": ["q"] * 5 + ["c"]}
OF_XGBOOST: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (TWO, {}),
    "three classes": (THREE, {}),
    "pruned": (TWO, {"gamma": 4.0}),
    "forests": (THREE, {"num_parallel_tree": 3}),
    "dart": (TWO, {"booster": "dart", "rate_drop": 0.3}),
    "linear": (TWO, {"booster": "gblinear"}),
    "categories": (TWO, CATEGORICAL),
}
OF_LIGHTGBM: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (TWO, {}),
    "three classes": (THREE, {}),
    "forest": (TWO, {"boosting_type": "rf", "subsample": 0.5, "subsample_freq": 1}),
    "linear trees": (TWO, {"linear_tree": True}),
    "no splits": (TWO, {"min_child_samples": 1000}),
}


@pytest.fixture
def here(monkeypatch):
    """The library reads files of these tests in this process, which is faster."""

    def read(code: str, raw: bytes) -> bytes:
        scope: dict[str, Any] = {"raw": bytearray(raw)}
        exec(code, scope)
        return bytes(scope["found"])

    monkeypatch.setattr(estimators, "_read_in_child", read)


@pytest.fixture
def unread(monkeypatch):
    """No library reads the file, so that only the checks can refuse it."""
    monkeypatch.setattr(estimators, "_read_in_child", lambda code, raw: raw)


def of_xgboost(name: str) -> Any:
    y, options = OF_XGBOOST[name]
    return xgboost.XGBClassifier(n_estimators=3, max_depth=4, n_jobs=1, **options).fit(X, y)


def of_lightgbm(name: str, **fit: Any) -> Any:
    y, options = OF_LIGHTGBM[name]
    return lightgbm.LGBMClassifier(n_estimators=3, verbose=-1, n_jobs=1, **options).fit(X, y, **fit)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "ending"), [("plain", "ubj"), *((name, ("json", "ubj")[i % 2]) for i, name in enumerate(OF_XGBOOST))]
)
def test_what_xgboost_writes_is_read(name, ending, tmp_path):
    fitted, path = of_xgboost(name), tmp_path / f"model.{ending}"
    fitted.save_model(path)
    np.testing.assert_array_equal(load_estimator(path).estimator.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", OF_LIGHTGBM)
def test_what_lightgbm_writes_is_read(name, tmp_path):
    fitted, path = of_lightgbm(name), tmp_path / "model.txt"
    fitted.booster_.save_model(path)
    np.testing.assert_allclose(load_estimator(path).estimator.predict_proba(X), fitted.predict_proba(X), rtol=1e-12)


@pytest.mark.usefixtures("here")
def test_categories_of_lightgbm_are_read(tmp_path):
    fitted, path = of_lightgbm("plain", categorical_feature=[5]), tmp_path / "model.txt"
    fitted.booster_.save_model(path)
    assert re.search("^num_cat=[1-9]", path.read_text(), re.MULTILINE)
    assert load_estimator(path).estimator.predict_proba(X).shape == (300, 2)


def a_number(name: str, value: int) -> Callable[[Any], None]:
    return lambda learner: learner["gradient_booster"]["model"]["trees"][0][name].__setitem__(0, value)


def of_the_model(name: str, value: Any) -> Callable[[Any], None]:
    return lambda learner: learner["gradient_booster"]["model"].update({name: value})


MADE_TO_CRASH: dict[str, Callable[[Any], None]] = {
    "a child far away": a_number("left_children", 10**8),
    "a circle": a_number("left_children", 0),
    "two parents": a_number("left_children", 2),
    "a parent far away": a_number("parents", 10**8),
    "a feature that there is not": a_number("split_indices", 9),
    "a class that there is not": of_the_model("tree_info", [5, 5, 5]),
    "rounds that there are not": of_the_model("iteration_indptr", [0, 1, 10**6, 3]),
    "categories that there are not": a_number("split_type", 1),
    "fewer features than it uses": lambda learner: learner["learner_model_param"].update(num_feature="1"),
}


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("change", MADE_TO_CRASH)
def test_a_number_of_xgboost_that_points_outside_is_refused(change, tmp_path):
    content = json.loads(bytes(of_xgboost("plain").get_booster().save_raw("json")))
    MADE_TO_CRASH[change](content["learner"])
    path = tmp_path / "model.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="malicious"):
        load_estimator(path)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    "raw",
    [
        b'{"learner":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
        b"{L" + (7).to_bytes(8, "big") + b"learner" + b"[" * 10**5,
        b"{L" + (7).to_bytes(8, "big") + b"learner[$d#L" + (2**40).to_bytes(8, "big"),
        b"{L" + (7).to_bytes(8, "big"),
    ],
    ids=["deep", "deep UBJSON", "a long list", "cut short"],
)
def test_what_is_no_model_at_all_is_refused(raw):
    with pytest.raises(InputError, match="malicious"):
        read_xgboost(raw, "it")


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("line", "value"),
    [
        *(("left_child", 10**8), ("left_child", 0), ("split_feature", 10**8), ("split_feature", -5)),
        *(("num_leaves", -1), ("num_cat", 100_000), ("decision_type", 1), ("num_class", 100_000)),
    ],
)
def test_a_line_of_lightgbm_that_points_outside_is_refused(line, value):
    text = of_lightgbm("plain").booster_.model_to_string()
    changed = re.sub(rf"^({line})=\S+", rf"\1={value}", text, count=1, flags=re.MULTILINE)
    assert changed != text
    with pytest.raises(InputError, match="malicious"):
        read_lightgbm(changed, "it")


def test_a_booster_inside_of_a_skops_file_is_checked_too(tmp_path):
    skops = pytest.importorskip("skops.io")
    path = tmp_path / "model.skops"
    for fitted in (of_xgboost("plain"), of_lightgbm("plain")):
        skops.dump(fitted, path)
        np.testing.assert_allclose(load_estimator(path).estimator.predict_proba(X), fitted.predict_proba(X))
    text = fitted.booster_.model_to_string()
    bad = re.sub(r"^left_child=\S+", "left_child=100000000", text, count=1, flags=re.MULTILINE)
    assert bad != text
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    schema = held["schema.json"].decode()
    start = schema.index("left_child=")
    end = schema.index(" ", start)
    held["schema.json"] = (schema[:start] + "left_child=100000000" + schema[end:]).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in held.items():
            archive.writestr(name, raw)
    with pytest.raises(InputError, match="malicious"):
        load_estimator(path)


def test_a_library_that_crashes_hangs_or_takes_too_much_does_so_in_a_child(monkeypatch):
    raw = bytes(of_xgboost("plain").get_booster().save_raw("json"))
    for code, said in (
        ("import os; os.kill(os.getpid(), 11)", "its library crashes"),
        ("import time; time.sleep(60)", "takes longer than 1 s to read it"),
        ("found = bytes(1 << 40)", "its library cannot read it"),
        ("found = bytes(1 << 29)", "File too large"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(estimators, "_XGBOOST", code)
            changed.setattr(estimators, "MOST_SECONDS", 1.0 if "sleep" in code else 60.0)
            with pytest.raises(InputError, match=said):
                read_xgboost(raw, "it")
    monkeypatch.setattr(estimators, "MOST_BYTES", len(raw) - 1)
    with pytest.raises(InputError, match=f"it has {len(raw)} bytes, more than"):
        read_xgboost(raw, "it")
