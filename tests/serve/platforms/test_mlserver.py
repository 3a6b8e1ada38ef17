"""MLServer's own server answers from a service, over REST and gRPC, and nothing but the listed arrays leaves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safexplain.serve import Service
from tests.serve.platforms.servers import (
    ROOT,
    Server,
    environment,
    everything,
    found,
    free_port,
    marked,
    native,
    running,
)

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("mlserver") is None, reason="MLServer is not installed: make test-serve"
    ),
    pytest.mark.filterwarnings("ignore"),  # what its dependencies warn of is theirs
]

INFER = "/v2/models/digits/infer"
SECRETS = {"Authorization": "Bearer sesame-7431", "Cookie": "session=chocolate-9120", "X_Request_Id": "trace-4471"}
MOST = 6
"""Distinct questions of a client a day."""


def settings(**changes: Any) -> dict[str, Any]:
    """Those of examples/serve, for a budget that tests can spend."""
    given: dict[str, Any] = json.loads((ROOT / "examples/serve/mlserver/model-settings.json").read_text())
    given["parameters"]["extra"]["limits"] = {"questions": MOST}
    return {**given, **changes}


def written(folder: Path, made: Any, given: dict[str, Any], **server: Any) -> tuple[int, int, int]:
    """A folder that `mlserver start` reads; the ports of HTTP, gRPC and metrics."""
    made.copy(folder)
    ports = free_port(), free_port(), free_port()
    names = dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True))
    example = json.loads((ROOT / "examples/serve/mlserver/settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **example, **names, **server}))
    (folder / "model-settings.json").write_text(json.dumps(given))
    return ports


def start(folder: Path) -> list[str]:
    """What the command `mlserver start` does."""
    return ["-c", "from mlserver.cli import main; main()", "start", str(folder)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlserver") / ""


@pytest.fixture(scope="module")
def ports(folder: Path, made: Any) -> tuple[int, int, int]:
    return written(folder, made, settings())


@pytest.fixture(scope="module")
def server(folder: Path, ports: tuple[int, int, int]) -> Iterator[Server]:
    with running(start(folder), folder, ports[0], "/v2/models/digits/ready") as started:
        yield started


@pytest.fixture(scope="module")
def reference(made: Any) -> Iterator[Service]:
    """The same service in this process."""
    with Service.load(made.model, made.certificate) as service:
        yield service


@pytest.fixture(scope="module")
def grpc_infer(server: Server, ports: tuple[int, int, int]) -> Iterator[Any]:
    """Ask a tensor by Triton's gRPC client, which is the one that MLServer brings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tritonclient.grpc as triton

    def ask(x: np.ndarray, client: str, **parameters: Any) -> Any:
        given = triton.InferInput("input", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        try:
            answer = asked.infer("digits", [given], headers={"x-client-id": client}, parameters=parameters or None)
        except triton.InferenceServerException as error:
            server.said.append(str(error).encode())
            return error
        server.said.append(answer.get_response().SerializeToString())
        return answer

    with triton.InferenceServerClient(f"127.0.0.1:{ports[1]}") as asked:
        yield ask


def tensor(x: np.ndarray, **more: Any) -> dict[str, Any]:
    data = {"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return {"inputs": [data], **more}


def test_tensors_are_those_of_the_service(server: Server, reference: Service, made: Any) -> None:
    x = made.rows[:2]
    expected = reference.explain(x)
    answer = server.ask(INFER, tensor(x, id="a"), "rest").json()
    tensors = {one["name"]: one for one in answer["outputs"]}
    assert tensors.keys() == {"explanation", "label"}
    assert (answer["id"], tensors["explanation"]["shape"]) == ("a", [2, 64])
    np.testing.assert_array_equal(tensors["explanation"]["data"], expected.explanation.ravel())
    assert tensors["label"]["data"] == expected.label.tolist()
    (label,) = server.ask(INFER, tensor(x, outputs=[{"name": "label"}]), "rest").json()["outputs"]
    assert label == tensors["label"]
    known = server.ask("/v2/models/digits").json()
    assert known["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 64]}]


def test_grpc_has_the_same_tensors(grpc_infer: Any, reference: Service, made: Any) -> None:
    x = made.rows[2:4]
    expected, answer = reference.explain(x), grpc_infer(x, "grpc")
    np.testing.assert_array_equal(answer.as_numpy("explanation"), expected.explanation)
    np.testing.assert_array_equal(answer.as_numpy("label"), expected.label)


def test_mlservers_own_client_is_answered(server: Server, folder: Path, reference: Service, made: Any) -> None:
    x = made.rows[:2]
    (folder / "asked.jsonl").write_text("".join(json.dumps(tensor(row[None])) + "\n" for row in x))
    command = [
        "-c",
        "from mlserver.cli import main; main()",
        "infer",
        "-u",
        server.url.partition("//")[2],
        "-m",
        "digits",
    ]
    command += ["-i", str(folder / "asked.jsonl"), "-o", str(folder / "answered.jsonl"), "-H", "x-client-id:cli"]
    subprocess.run([sys.executable, *command], env=environment(), check=True, capture_output=True, timeout=120)
    answers = [json.loads(line) for line in (folder / "answered.jsonl").read_text().splitlines()]
    answers.sort(key=lambda answer: answer["parameters"]["batch_index"])
    found = [next(o["data"] for o in answer["outputs"] if o["name"] == "explanation") for answer in answers]
    np.testing.assert_array_equal(found, reference.explain(x).explanation)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"parameters": {"explain_parameters": {"n_steps": 9}}}, "explain_parameters"),
        ({"parameters": {"target": 3}}, "target"),
        ({"parameters": {"content_type": "pd"}}, "content_type"),
        ({"outputs": [{"name": "probabilities"}]}, "probabilities"),
        ({"id": "\N{SNOWMAN}"}, "id"),
        ({"id": "a\r\nX-Evil: 1"}, "id"),
        ({"inputs": [{**tensor(np.zeros((1, 64)))["inputs"][0], "parameters": {"baselines": 0}}]}, "baselines"),
        ({"inputs": [{**tensor(np.zeros((1, 64)))["inputs"][0], "name": "x"}]}, "input"),
        (tensor(np.zeros((1, 63))), "shape"),
        (tensor(np.full((1, 64), 1e39)), "finite"),
    ],
)
def test_what_cannot_be_answered_is_a_422_that_names_it(server: Server, more: dict[str, Any], named: str) -> None:
    refused = server.ask(INFER, {**tensor(np.zeros((1, 64))), **more}, "clumsy")
    assert refused.status_code == 422
    assert named in refused.json()["error"]


def test_json_that_cannot_be_read_is_refused_by_mlserver(server: Server) -> None:
    for body in (b"{", b'{"inputs": [NaN]}', b"[]"):
        assert server.ask(INFER, body, "clumsy").status_code == 422


def test_grpc_refuses_parameters_and_inputs_that_are_not_finite(grpc_infer: Any, made: Any) -> None:
    assert "n_steps" in grpc_infer(made.rows[:1], "clumsy", n_steps=9).message()
    assert "finite" in grpc_infer(made.rows[:1] * np.nan, "clumsy").message()


def test_a_spent_budget_is_a_429_for_rest_and_grpc_together(server: Server, grpc_infer: Any, made: Any) -> None:
    x = made.rows[20 : 21 + MOST]
    assert server.ask(INFER, tensor(x[: MOST - 1]), "greedy").status_code == 200
    assert grpc_infer(x[MOST - 1 : MOST], "greedy").as_numpy("label").shape == (1,)
    refused = server.ask(INFER, tensor(x[MOST:]), "greedy")
    assert refused.status_code == 429
    assert refused.json().keys() == {"error"}  # MLServer has no place for Retry-After
    assert server.ask(INFER, tensor(x[:MOST]), "greedy").status_code == 200  # asked before
    assert "budget" in grpc_infer(x[MOST:], "greedy").message()
    forged = {**tensor(x[MOST:]), "parameters": {"headers": {"x-client-id": "another"}}}
    assert server.ask(INFER, forged, "greedy").status_code == 429
    assert server.ask(INFER, tensor(x[MOST:]), "another").status_code == 200


def test_no_header_of_a_request_comes_back_in_any_response(server: Server, made: Any) -> None:
    asked: list[tuple[str, Any]] = [
        (INFER, tensor(made.rows[30:31])),
        (INFER + "_stream", tensor(made.rows[30:31])),
        (INFER, {"inputs": []}),
        (INFER + "_stream", {"inputs": []}),
        (INFER, b"{"),
        ("/v2/models/nobody/infer", tensor(made.rows[30:31])),
    ]
    for path, payload in asked:
        response = everything(server.ask(path, payload, "client-marker-55", **SECRETS))
        assert not [value for value in (*SECRETS.values(), "client-marker-55") if value.encode() in response], path


def test_an_error_in_a_stream_is_an_answer_without_tensors_and_no_traceback(server: Server, made: Any) -> None:
    for path in (INFER + "_stream", INFER.replace("infer", "generate_stream")):
        refused = server.ask(path, tensor(made.rows[:1], parameters={"n_steps": 1}), "streaming")
        (line,) = [line for line in refused.text.splitlines() if line]
        said = json.loads(line.removeprefix("data: "))
        assert (said["outputs"], said["parameters"]["status"]) == ([], 422)
        assert "n_steps" in said["parameters"]["error"]


def test_no_native_number_and_no_input_is_in_any_response_log_or_metric(
    server: Server, grpc_infer: Any, ports: tuple[int, int, int], made: Any
) -> None:
    x = marked(made.rows[40:42], 3)
    assert server.ask(INFER, tensor(x), "marked").status_code == 200
    assert server.ask(INFER + "_stream", tensor(x), "marked").status_code == 200
    server.ask(INFER, tensor(x, parameters={"n_steps": 1}), "marked")
    server.ask(INFER, json.dumps(tensor(x)).encode()[:-1], "marked")
    grpc_infer(x, "marked")
    grpc_infer(x, "marked", n_steps=3)
    Server(f"http://127.0.0.1:{ports[2]}", server.log, server.process, server.said).ask("/metrics")
    assert b"model_infer_request" in server.said[-1]
    assert found(native(made.model, x), server.heard()) == []
    assert b"Traceback" not in b"\n".join(server.said)


def test_it_is_not_ready_and_answers_nothing_without_its_ledger(made: Any, tmp_path: Path) -> None:
    ports = written(tmp_path, made, settings())
    with running(start(tmp_path), tmp_path, ports[0], "/v2/models/digits/ready") as server:
        for path in tmp_path.glob("ledger.db*"):
            path.unlink()
        refused = server.ask(INFER, tensor(made.rows[:1]))
        assert refused.status_code in (400, 503)
        for _ in range(100):
            if server.ask("/v2/models/digits/ready").status_code == 400:  # MLServer's way to say that it is not
                break
            time.sleep(0.1)
        else:
            raise AssertionError("ready")
        assert "Traceback" not in refused.text


@pytest.mark.parametrize(
    ("changes", "server", "said"),
    [
        ({"cache_enabled": True}, {}, "cache_enabled"),
        ({"max_batch_size": 4, "max_batch_time": 0.1}, {}, "max_batch_size"),
        ({"parallel_workers": None}, {"parallel_workers": 1}, "parallel_workers"),
        ({}, {"debug": True}, "debug: expected false"),
        ({"name": "other"}, {"certificate": "altered"}, "CertificateError"),
    ],
)
def test_a_setting_that_would_undo_the_service_is_refused_at_the_start(
    made: Any, tmp_path: Path, changes: dict[str, Any], server: dict[str, Any], said: str
) -> None:
    altered = server.pop("certificate", None)
    written(tmp_path, made, settings(**changes), **server)
    if altered:
        path = tmp_path / "certificate.json"
        path.write_text(path.read_text().replace("certified", "leaks"))
    command = [sys.executable, *start(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert said in ended.stdout + ended.stderr
    assert "failed to load during startup" in ended.stdout + ended.stderr
