"""KServe's own ModelServer answers from a service: V1, V2 and gRPC, and nothing but the listed arrays leaves."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from safexplain.errors import CertificateError
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
    pytest.mark.skipif(importlib.util.find_spec("kserve") is None, reason="KServe is not installed: make test-serve"),
    pytest.mark.filterwarnings("ignore"),  # what its dependencies warn of is theirs
]

SECRETS = {
    "Authorization": "Bearer sesame-7431",
    "Cookie": "session=chocolate-9120",
    "X_Forwarded_For": "198.51.100.77",
    "X_Request_Id": "trace-4471-marker",
    "User_Agent": "curious/31.41",
}
MOST = 6
"""Distinct questions of a client a day."""

TWO_NAMES = """
import sys, kserve
from safexplain.serve import Service
from safexplain.serve.kserve import HardenedModel

class Plain(kserve.Model):
    async def explain(self, payload, headers=None):
        return {"explanations": []}

plain, model = Plain("plain"), HardenedModel(Service.load(sys.argv[1], sys.argv[2]))
plain.ready = True
server = kserve.ModelServer(http_port=int(sys.argv[3]), enable_grpc=False)
server.register_model(model, "second")
server.start([plain, model])
"""
"""A service under a second name, and so behind KServe's own endpoints, beside a model that is not hardened."""


@pytest.fixture(scope="module")
def folder(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With model and certificate, as KServe mounts them."""
    return Path(made.copy(tmp_path_factory.mktemp("kserve")).model).parent


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def server(folder: Path, ports: tuple[int, int]) -> Iterator[Server]:
    """The container of examples/serve/kserve.yaml, with a ledger in a file."""
    container = yaml.safe_load((ROOT / "examples/serve/kserve.yaml").read_text())
    (container,) = container["spec"]["predictor"]["containers"]
    given = [a.replace("/mnt/models", str(folder)) for a in container["args"] if "--cache" not in a]
    given = [a.replace("$(LEDGER)", f"sqlite:///{folder}/ledger.db") for a in given]
    command = [*container["command"][1:], *given, f"--http_port={ports[0]}", f"--grpc_port={ports[1]}"]
    settings = {variable["name"]: variable.get("value") for variable in container["env"]}["SAFEXPLAIN_SERVE"]
    settings = {**json.loads(settings), "limits": {"questions": MOST}}
    probe = container["readinessProbe"]["httpGet"]["path"]
    with running(command, folder, ports[0], probe, SAFEXPLAIN_SERVE=json.dumps(settings)) as started:
        yield started


@pytest.fixture(scope="module")
def reference(made: Any) -> Iterator[Service]:
    """The same service in this process."""
    with Service.load(made.model, made.certificate) as service:
        yield service


@pytest.fixture(scope="module")
def grpc_infer(server: Server, ports: tuple[int, int]) -> Iterator[Any]:
    """Ask a tensor by KServe's gRPC stub."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import grpc
        from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
        from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    def ask(x: np.ndarray, client: str, *, raw: bool = False, outputs: tuple[str, ...] = (), **parameters: int) -> Any:
        request = messages.ModelInferRequest(model_name="digits", id="q")
        tensor = request.inputs.add(name="input", datatype="FP32", shape=list(x.shape))
        if raw:
            request.raw_input_contents.append(x.astype(np.float32).tobytes())
        else:
            tensor.contents.fp32_contents.extend(x.ravel().tolist())
        for name in outputs:
            request.outputs.add(name=name)
        for name, value in parameters.items():
            request.parameters[name].int64_param = value
        try:
            response = stub.ModelInfer(
                request, metadata=(("x-client-id", client), ("authorization", "Bearer sesame-7431"))
            )
        except grpc.RpcError as error:
            server.said.append(str(error).encode())
            return error
        server.said.append(response.SerializeToString())
        return response

    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        yield ask


def tensor(x: np.ndarray, **more: Any) -> dict[str, Any]:
    data = {"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    return {"inputs": [data], **more}


def test_explanations_and_labels_are_those_of_the_service(server: Server, reference: Service, made: Any) -> None:
    x = made.rows[:3]
    expected = reference.explain(x)
    explained = server.ask("/v1/models/digits:explain", {"instances": x.tolist()}, "v1")
    predicted = server.ask("/v1/models/digits:predict", {"instances": x.tolist()}, "v1")
    assert explained.status_code == predicted.status_code == 200
    assert explained.json().keys() == {"explanations"}
    assert predicted.json() == {"predictions": expected.label.tolist()}
    np.testing.assert_array_equal(explained.json()["explanations"], expected.explanation)


def test_v2_has_the_same_arrays_as_tensors(server: Server, reference: Service, made: Any) -> None:
    x = made.rows[3:5]
    expected = reference.explain(x)
    answer = server.ask("/v2/models/digits/infer", tensor(x, id="a"), "v2").json()
    tensors = {one["name"]: one for one in answer["outputs"]}
    assert tensors.keys() == {"explanation", "label"}
    assert tensors["explanation"]["shape"] == [2, 64]
    np.testing.assert_array_equal(tensors["explanation"]["data"], expected.explanation.ravel())
    assert tensors["label"]["data"] == expected.label.tolist()
    assert server.ask("/v2/models/digits").json()["inputs"] == [
        {"name": "input", "datatype": "FP32", "shape": [-1, 64]}
    ]


@pytest.mark.parametrize("raw", [False, True])
def test_grpc_has_the_same_tensors(grpc_infer: Any, reference: Service, made: Any, raw: bool) -> None:
    x = made.rows[5:7]
    expected = reference.explain(x)
    answer = grpc_infer(x, "grpc", raw=raw)
    explanation, label = answer.outputs
    assert (explanation.name, list(explanation.shape), label.name) == ("explanation", [2, 64], "label")
    np.testing.assert_array_equal(explanation.contents.fp32_contents, expected.explanation.ravel())
    assert list(label.contents.int64_contents) == expected.label.tolist()
    (alone,) = grpc_infer(x, "grpc", raw=raw, outputs=("label",)).outputs
    assert alone == label


@pytest.mark.parametrize(
    ("path", "payload", "field"),
    [
        ("/v1/models/digits:explain", {"instances": [], "target": 3}, "target"),
        ("/v1/models/digits:explain", {"instances": [], "explain_parameters": {"n_steps": 9}}, "explain_parameters"),
        ("/v1/models/digits:predict", {"instances": [], "probabilities": True}, "probabilities"),
        ("/v2/models/digits/infer", {**tensor(np.zeros((1, 64))), "n_steps": 9}, "n_steps"),
        ("/v2/models/digits/infer", {**tensor(np.zeros((1, 64))), "parameters": {"baselines": 1}}, "baselines"),
        ("/v2/models/digits/infer", {**tensor(np.zeros((1, 64))), "outputs": [{"name": "probabilities"}]}, "outputs"),
        ("/v1/models/digits:explain", {"instances": [[0.5] * 63]}, "input"),
        ("/v1/models/digits:explain", b'{"instances": [[NaN]]}', None),
        ("/v1/models/digits:explain", {"instances": [[1e39] * 64]}, "input"),
        ("/v1/models/digits:explain", [1, 2], None),
        ("/v1/models/digits:explain", b"{", None),
    ],
)
def test_what_cannot_be_answered_is_a_422_that_names_the_field(
    server: Server, path: str, payload: Any, field: str | None
) -> None:
    refused = server.ask(path, payload, "clumsy")
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json().get("field") == field


def test_grpc_refuses_parameters_and_inputs_that_are_not_finite(grpc_infer: Any, made: Any) -> None:
    for error in (grpc_infer(made.rows[:1], "clumsy", n_steps=9), grpc_infer(made.rows[:1] * np.nan, "clumsy")):
        assert error.code().name == "INVALID_ARGUMENT"
    assert "n_steps" in grpc_infer(made.rows[:1], "clumsy", n_steps=9).details()


def test_a_spent_budget_is_a_429_with_its_renewal_for_http_and_grpc_together(
    server: Server, grpc_infer: Any, made: Any
) -> None:
    path, x = "/v1/models/digits:explain", made.rows[20 : 21 + MOST]
    assert server.ask(path, {"instances": x[: MOST - 1].tolist()}, "greedy").status_code == 200
    assert not isinstance(grpc_infer(x[MOST - 1 : MOST], "greedy"), Exception)
    refused = server.ask(path, {"instances": x[MOST:].tolist()}, "greedy")
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 86400
    assert refused.json()["renews"] > "2026"
    assert server.ask(path, {"instances": x[:MOST].tolist()}, "greedy").status_code == 200  # asked before
    assert server.ask(path, {"instances": x[MOST:].tolist()}, "another").status_code == 200
    assert grpc_infer(x[MOST:], "greedy").code().name == "RESOURCE_EXHAUSTED"


def test_no_header_of_a_request_comes_back_in_any_response(server: Server, made: Any) -> None:
    good = {"instances": made.rows[30:31].tolist()}
    cloud = {"Ce_Id": "event-1723", "Ce_Source": "source-5512", "Ce_Type": "kind-8841", "Ce_Specversion": "1.0"}
    asked: list[tuple[str, Any, dict[str, str]]] = [
        ("/v1/models/digits:explain", good, {}),
        ("/v1/models/digits:explain", good, cloud),
        ("/v1/models/digits:predict", good, cloud),
        ("/v1/models/digits:explain", b"{", {}),
        ("/v1/models/digits:explain", {"instances": [], "target": 1}, {}),
        ("/v1/models/nobody:explain", good, {}),
        ("/v2/models/digits/infer", tensor(made.rows[30:31]), {}),
        ("/v2/models/digits/infer", b"{", {"Inference_Header_Content_Length": "length-6621"}),
        ("/v2/models/digits/versions/1/infer", tensor(made.rows[30:31]), {}),
        ("/v2/models/digits", None, {}),
        ("/nowhere", None, {}),
    ]
    for path, payload, more in asked:
        response = everything(server.ask(path, payload, "client-marker-55", **SECRETS, **more))
        for value in (*SECRETS.values(), *cloud.values(), "length-6621", "client-marker-55"):
            assert value == "1.0" or value.encode() not in response, (path, value)


def test_kserves_own_endpoints_copy_headers_and_a_hardened_model_behind_them_does_not(
    made: Any, tmp_path: Path
) -> None:
    port, good = free_port(), {"instances": made.rows[:1].tolist()}
    command = ["-c", TWO_NAMES, str(made.model), str(made.certificate), str(port)]
    with running(command, tmp_path, port, "/health/ready") as server:
        plain = everything(server.ask("/v1/models/plain:explain", good, **SECRETS))
        assert b"sesame-7431" in plain
        assert b"chocolate-9120" in plain
        for path in ("/v1/models/second:explain", "/v1/models/second:predict"):
            answer = server.ask(path, good, "ann", **SECRETS)
            assert answer.status_code == 200
            assert not [value for value in SECRETS.values() if value.encode() in everything(answer)]
        assert (
            server.ask("/v2/models/second/infer", tensor(made.rows[:1])).json()["outputs"][0]["name"] == "explanation"
        )
        refused = server.ask("/v1/models/second:explain", {**good, "target": 1}, **SECRETS)
        assert refused.status_code == 422
        assert refused.json()["detail"]["field"] == "target"
        assert server.ask("/v2/repository/models/model/unload", b"").status_code == 200  # whoever reaches the port
        assert server.ask("/v1/models/model:explain", good, "ann").status_code == 200
        assert not [value for value in SECRETS.values() if value.encode() in everything(refused)]


def test_no_native_number_and_no_input_is_in_any_response_or_log(server: Server, grpc_infer: Any, made: Any) -> None:
    x = marked(made.rows[40:42], 3)
    for verb in ("explain", "predict"):
        assert server.ask(f"/v1/models/digits:{verb}", {"instances": x.tolist()}, "marked").status_code == 200
    server.ask("/v2/models/digits/infer", tensor(x), "marked")
    server.ask("/v2/models/digits/infer", tensor(x, parameters={"n_steps": 1}), "marked")
    server.ask("/v1/models/digits:explain", {"instances": [*x.tolist(), None]}, "marked")
    server.ask("/v1/models/digits:explain", json.dumps({"instances": x.tolist()}).encode()[:-1], "marked")
    unreadable = json.dumps(tensor(x)).replace("FP32", 'FP32", "more": NaN, "x": "').encode()
    for path in ("/v2/models/digits/infer", "/v2/models/digits/versions/1/infer"):
        assert server.ask(path, unreadable, "marked").status_code in (422, 501)
    grpc_infer(x, "marked", raw=True)
    grpc_infer(x, "marked", n_steps=3)
    server.ask("/metrics")
    assert found(native(made.model, x), server.heard()) == []
    assert b"Traceback" not in b"\n".join(server.said)


def test_it_is_not_ready_and_answers_nothing_without_its_ledger(made: Any, tmp_path: Path) -> None:
    port, ledger = free_port(), tmp_path / "ledger.db"
    command = ["-m", "safexplain.serve.kserve", "--model", str(made.model), "--certificate", str(made.certificate)]
    command += [f"--ledger=sqlite:///{ledger}", f"--http_port={port}", f"--grpc_port={free_port()}"]
    with running(command, tmp_path, port, "/v2/models/model/ready") as server:
        for path in tmp_path.glob("ledger.db*"):
            path.unlink()
        assert server.ask("/v2/models/model/ready").status_code == 503
        assert server.ask("/health/ready").status_code == 503
        refused = server.ask("/v1/models/model:explain", {"instances": made.rows[:1].tolist()})
        assert refused.status_code == 503
        assert refused.headers["content-type"] == "application/problem+json"


def test_a_container_with_a_bad_certificate_ends_and_says_why(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "certificate.json"
    bad.write_text((folder / "certificate.json").read_text().replace("certified", "leaks"))
    command = [sys.executable, "-m", "safexplain.serve.kserve", f"--model={folder}/model.pt2", f"--certificate={bad}"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "not served: " in ended.stderr
    assert "Traceback" not in ended.stderr


class Slow:
    """A service that answers when it is told to."""

    name = "slow"
    shape = (1,)
    digest = "0" * 64
    uncertified = False

    def __init__(self) -> None:
        self.go = threading.Event()

    def explain(self, x: Any, *, client: str) -> Any:
        assert self.go.wait(20)
        raise CertificateError("of another model: 0.123456789")

    def ready(self) -> dict[str, Any]:
        return {"status": "ready"}


def test_explaining_does_not_hold_up_the_event_loop_and_errors_say_no_more_than_they_may() -> None:
    from fastapi import HTTPException

    from safexplain.serve.kserve import HardenedModel

    service = Slow()
    model = HardenedModel(service)  # type: ignore[arg-type]

    async def asked() -> HTTPException:
        waiting = asyncio.create_task(model.explain({"instances": [[1.0]]}))
        assert await asyncio.wait_for(model.healthy(), 10)  # while the other is on its way
        assert not waiting.done()
        service.go.set()
        with pytest.raises(HTTPException) as refused:
            await waiting
        return refused.value

    refused = asyncio.run(asked())
    assert refused.status_code == 503
    assert "0.123456789" not in json.dumps(refused.detail)
    assert refused.__cause__ is None
    assert refused.__context__ is None


def test_a_model_stays_in_its_process() -> None:
    from safexplain.serve.kserve import HardenedModel

    with pytest.raises(TypeError, match="--workers 1"):
        pickle.dumps(HardenedModel(Slow()))  # type: ignore[arg-type]
