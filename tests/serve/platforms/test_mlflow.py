"""A release saved for MLflow and loaded in a process; MLflow's own server refuses it."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from safexplain.errors import CertificateError

pytest.importorskip("mlflow.pyfunc", reason='MLflow is not installed: pip install "safexplain[mlflow]"')

import mlflow

from safexplain.errors import BudgetExhausted, ConfigurationError, InputError, RefusedError, RequestError
from safexplain.serve import mlflow as adapter
from safexplain.serve.service import Service
from tests.serve.platforms.contract import KEY, MARK, QUESTIONS


@pytest.fixture(scope="module")
def release(noisy, tmp_path_factory):
    """A saved release, whose hardening has noise and so needs the key."""
    folder = tmp_path_factory.mktemp("mlflow") / "release"
    adapter.save_model(folder, noisy.model, noisy.certificate, model_config={"limits": {"questions": QUESTIONS}})
    return folder


@pytest.fixture(autouse=True)
def with_key(monkeypatch):
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", KEY)


@pytest.fixture
def loaded(release):
    model = mlflow.pyfunc.load_model(str(release), model_config={"limits": {"questions": 500}})
    yield model
    model.unwrap_python_model().service.close()


def test_model_file_and_certificate_are_saved_byte_for_byte_and_neither_key_nor_row_nor_pickle(release, noisy):
    files = {file.name: file for file in release.rglob("*") if file.is_file()}
    assert files["model.pt2"].read_bytes() == noisy.model.read_bytes()
    assert files["certificate.json"].read_bytes() == noisy.certificate.read_bytes()
    assert not any(KEY.encode() in file.read_bytes() for file in files.values())
    assert not {file.suffix for file in files.values()} & {".pkl", ".pickle", ".joblib"}
    assert "input_example" not in " ".join(files)


def test_public_rows_are_saved_where_they_are_given(noisy, tmp_path):
    np.savez(tmp_path / "public.npz", x=noisy.public, y=np.zeros(len(noisy.public), int))
    adapter.save_model(tmp_path / "release", noisy.model, noisy.certificate, public=tmp_path / "public.npz")
    stored = tmp_path / "release" / "artifacts" / "public.npz"
    assert stored.read_bytes() == (tmp_path / "public.npz").read_bytes()
    mlflow.pyfunc.load_model(str(tmp_path / "release")).unwrap_python_model().service.close()
    stored.unlink()
    with pytest.raises(InputError, match=r"public\.npz"):
        mlflow.pyfunc.load_model(str(tmp_path / "release"))


def test_the_signature_says_that_explain_is_a_parameter_and_off(release):
    params = mlflow.models.get_model_info(str(release)).signature.params
    assert {p.name: p.default for p in params} == {"explain": False, "client": ""}


def test_a_release_is_logged_to_a_run_and_loaded_from_there(noisy, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tmp_path.joinpath("runs").as_uri())
    try:
        with mlflow.start_run():
            with pytest.raises(ConfigurationError, match="SAFEXPLAIN_NOISE_KEY"):
                adapter.log_model("digits", noisy.model, noisy.certificate, model_config={"key": KEY})
            info = adapter.log_model("digits", noisy.model, noisy.certificate)
        model = mlflow.pyfunc.load_model(info.model_uri)
    finally:
        mlflow.set_tracking_uri(before)
    x = noisy.rows[:2]
    np.testing.assert_array_equal(model.predict(x, params={"explain": True}), expected.explain(x).explanation)
    model.unwrap_python_model().service.close()
    assert not any(KEY.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"model_config": {"key": "k" * 32}}, ConfigurationError, "SAFEXPLAIN_NOISE_KEY"),
        ({"model_config": {"uncertified": True}}, ConfigurationError, "'uncertified'"),
        ({"signature": None}, TypeError, "signature"),
        ({"input_example": [[0.0] * 64]}, TypeError, "input_example"),
        ({"public": "nowhere.npz"}, FileNotFoundError, "nowhere"),
    ],
)
def test_what_must_not_be_saved_is_refused(noisy, tmp_path, options, error, said):
    with pytest.raises(error, match=said):
        adapter.save_model(tmp_path / "release", noisy.model, noisy.certificate, **options)
    assert not (tmp_path / "release").exists()


def test_a_release_whose_model_is_another_one_is_not_loaded(release, made, tmp_path):
    other = Path(shutil.copytree(release, tmp_path / "other"))
    shutil.copy(made.model, other / "artifacts" / "model.pt2")
    with pytest.raises(CertificateError):
        mlflow.pyfunc.load_model(str(other))


def test_labels_without_parameters_and_the_services_own_maps_with_explain(loaded, expected, noisy):
    x = noisy.rows[:5]
    answer = expected.explain(x)
    assert loaded.predict(x).tolist() == answer.label.tolist()
    maps = loaded.predict(x, params={"explain": True})
    assert maps.dtype == np.float32
    np.testing.assert_array_equal(maps, answer.explanation)


def test_refused_rows_are_not_quoted(loaded):
    for rows in (np.full((1, 3), MARK), [[str(MARK)] * 64], pd.DataFrame({"a": [str(MARK)], "b": [MARK]}), None):
        with pytest.raises(RequestError) as caught:
            loaded.predict(rows)
        assert str(MARK) not in str(caught.value)
        assert caught.value.__cause__ is None


def test_the_parameter_client_says_whose_budget_is_spent_and_a_question_asked_before_is_free(release, noisy):
    model = mlflow.pyfunc.load_model(str(release), model_config={"limits": {"questions": 2}})
    model.predict(noisy.rows[:2], params={"client": "a"})
    with pytest.raises(BudgetExhausted):
        model.predict(noisy.rows[2:3], params={"client": "a"})
    model.predict(noisy.rows[:2], params={"client": "a", "explain": True})
    model.predict(noisy.rows[2:3], params={"client": "b"})
    model.unwrap_python_model().service.close()


def test_the_saved_files_are_served_by_the_command_that_the_refusal_names(release, monkeypatch):
    monkeypatch.setenv("__pyfunc_model_path__", str(release))
    with pytest.raises(RefusedError, match="safexplain serve") as refused:
        mlflow.pyfunc.load_model(str(release))
    model, certificate = re.search(r"--model (\S+) --certificate (\S+)`", str(refused.value)).groups()
    with Service.load(model, certificate) as service:
        assert service.ready()["status"] == "ready"
