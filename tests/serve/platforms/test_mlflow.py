"""A release saved for MLflow, loaded in a process, and served by `mlflow models serve`: every platform's promises."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from servers import free_port

pytest.importorskip("mlflow.pyfunc", reason='MLflow is not installed: pip install "safexplain[mlflow]"')

import mlflow
from mlflow.pyfunc import scoring_server

from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    ConfigurationError,
    InputError,
    RefusedError,
    RequestError,
)
from safexplain.serve import mlflow as adapter
from tests.serve.platforms.contract import KEY, MARK, QUESTIONS, Contract
from tests.serve.platforms.servers import Server, running


@pytest.fixture(scope="module")
def release(noisy: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved release, whose hardening has noise and so needs the key."""
    folder = tmp_path_factory.mktemp("mlflow") / "release"
    adapter.save_model(folder, noisy.model, noisy.certificate, model_config={"limits": {"questions": QUESTIONS}})
    return folder


@pytest.fixture(autouse=True)
def with_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", KEY)


@pytest.fixture
def loaded(release: Path) -> Iterator[Any]:
    model = mlflow.pyfunc.load_model(str(release), model_config={"limits": {"questions": 500}})
    yield model
    model.unwrap_python_model().service.close()


@pytest.fixture(scope="module")
def server(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`mlflow models serve` with two workers, told by its environment where questions are counted."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    settings = json.dumps({"ledger": f"sqlite:///{folder}/questions.sqlite"})
    own = {"SAFEXPLAIN_NOISE_KEY": KEY, "MLFLOW_PYFUNC_INFERENCE_CONFIG": settings}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # MLflow looks for uvicorn there
    command = ["-m", "mlflow", "models", "serve", "--env-manager", "local", "--model-uri", str(release)]
    command += ["--workers", "2", "--port", str(port)]
    with running({port: command}, folder, folder / "questions.sqlite", "/ping", **own) as started:
        yield started


# what is saved


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


# in a process


def test_labels_without_parameters_and_the_services_own_maps_with_explain(loaded, expected, noisy):
    x = noisy.rows[:5]
    answer = expected.explain(x)
    assert loaded.predict(x).tolist() == answer.label.tolist()
    maps = loaded.predict(x, params={"explain": True})
    assert maps.dtype == np.float32
    np.testing.assert_array_equal(maps, answer.explanation)


def test_arrays_of_any_number_type_lists_and_tables_are_the_same_question(loaded, noisy):
    x = noisy.rows[:3]
    want = loaded.predict(x, params={"explain": True})
    for given in (x.astype(np.float64), x.tolist(), pd.DataFrame(x), pd.DataFrame(x.astype(float))):
        np.testing.assert_array_equal(loaded.predict(given, params={"explain": True}), want)


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


# served by MLflow


class TestMLflow(Contract):
    """And what MLflow adds."""

    explain: ClassVar = "/invocations"
    predict: ClassVar = "/invocations"
    field: ClassVar = "inputs"
    ready: ClassVar = ""  # it has no path that depends on the model
    public: ClassVar = ("/ping", "/health", "/version")

    def question(self, rows: Any, explained: bool = True) -> dict[str, Any]:
        return {"inputs": rows, "params": {"explain": explained}}

    def naming(self, rows: Any, client: str) -> dict[str, Any]:
        return {"inputs": rows, "params": {"explain": True, "client": client}}

    def test_tables_are_read_too(self, server, expected, noisy):
        x = noisy.rows[:2].astype(float)
        table, label = pd.DataFrame(x, columns=[f"p{i}" for i in range(64)]), expected.predict(x).label.tolist()
        split, records = table.to_dict("split", index=False), table.to_dict("records")
        for body in ({"instances": x}, {"dataframe_split": split}, {"dataframe_records": records}):
            assert server.ask("/invocations", body, "ward-3").json() == {"predictions": label}

    @pytest.mark.parametrize(
        ("extra", "field"),
        [
            ({"params": {"explain": True, "client": "ward-3"}}, "client"),
            ({"params": {"explain": "yes"}}, "explain"),
            ({"params": [1]}, "params"),
            ({"instances": [[0.0] * 64]}, "inputs"),
        ],
    )
    def test_parameters_and_formats_are_refused_by_name(self, server, extra, field):
        refused = server.ask("/invocations", {"inputs": [[0.5] * 64], **extra}, "clumsy")
        assert (refused.status_code, refused.json()["field"]) == (422, field)

    def test_no_table_however_malformed_is_answered_or_logged(self, server):
        fields = ("inputs", "instances", "dataframe_split", "dataframe_records")
        bodies = [b'{"%s": %f}' % (field.encode(), MARK) for field in fields]
        bodies += [b'{"dataframe_split": {"columns": ["a"], "data": [["%f"]]}}' % MARK, b"\xff\xfe%f" % MARK]
        for body in bodies:
            assert server.ask("/invocations", body, "clumsy").status_code == 422
        for kind in ("text/csv", "application/vnd.apache.parquet", "text/html"):
            assert server.ask("/invocations", b"PAR1%f" % MARK, "clumsy", Content_Type=kind).status_code == 415
        self.check_unread(server)


# beside other models, and in other versions of MLflow


def test_the_handler_of_other_models_stays_mlflows_own(loaded):
    class Other:
        def unwrap_python_model(self) -> object:
            return object()

    def handler_of(model: Any) -> Any:
        async def transformation(request: Any) -> Any:
            return model

        return transformation

    decorate = scoring_server._async_catch_mlflow_exception
    assert decorate(handler_of(Other())).__code__.co_filename == scoring_server.__file__
    assert decorate(handler_of(loaded)).__code__.co_filename == adapter.__file__


def test_a_scoring_server_that_cannot_be_guarded_does_not_load_the_release(release, monkeypatch):
    monkeypatch.delattr(scoring_server, "_async_catch_mlflow_exception")
    monkeypatch.setenv("__pyfunc_model_path__", str(release))
    with pytest.raises(RefusedError, match="safexplain serve"):
        mlflow.pyfunc.load_model(str(release))
