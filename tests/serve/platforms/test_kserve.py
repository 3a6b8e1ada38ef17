"""KServe's own ModelServer, twice: the promises of every platform, V2 and gRPC too, and its own endpoints closed."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from servers import free_port

from tests.serve.platforms.contract import KEY, QUESTIONS, SECRETS, V2, Contract
from tests.serve.platforms.servers import ROOT, Server, environment, found, marked, native, running

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("kserve") is None, reason="KServe is not installed: make test-serve"),
    pytest.mark.filterwarnings("ignore"),  # what its dependencies warn of is theirs
]

EXPLAIN, INFER = "/v1/models/digits:explain", "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return [free_port() for _ in range(4)]


@pytest.fixture(scope="module")
def server(noisy: Any, ports: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The container of examples/serve/kserve.yaml, twice, with a ledger in a file."""
    folder = tmp_path_factory.mktemp("kserve")
    noisy.copy(folder)
    container = yaml.safe_load((ROOT / "examples/serve/kserve.yaml").read_text())
    (container,) = container["spec"]["predictor"]["containers"]
    given = [a.replace("/mnt/models", str(folder)) for a in container["args"]]
    given = [a.replace("$(LEDGER)", f"sqlite:///{folder}/ledger.db") for a in given]
    command = [*container["command"][1:], *given]
    settings = {variable["name"]: variable.get("value") for variable in container["env"]}["SAFEXPLAIN_SERVE"]
    settings = {**json.loads(settings), "limits": {"questions": QUESTIONS}}
    own = {"SAFEXPLAIN_SERVE": json.dumps(settings), "SAFEXPLAIN_NOISE_KEY": KEY}
    pairs = (ports[:2], ports[2:])
    commands = {http: [*command, f"--http_port={http}", f"--grpc_port={grpc}"] for http, grpc in pairs}
    probe = container["readinessProbe"]["httpGet"]["path"]
    with running(commands, folder, folder / "ledger.db", probe, **own) as started:
        yield started


@pytest.fixture(scope="module")
def grpc_infer(server: Server, ports: list[int]) -> Iterator[Any]:
    """Ask a tensor by KServe's gRPC stub."""
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
        metadata = (("x-client-id", client), ("authorization", SECRETS["Authorization"]))
        try:
            response = stub.ModelInfer(request, metadata=metadata)
        except grpc.RpcError as error:
            server.said.append(str(error).encode())
            return error
        server.said.append(response.SerializeToString())
        return response

    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        yield ask


class TestKServe(Contract):
    """And what KServe adds."""

    explain: ClassVar = EXPLAIN
    predict: ClassVar = EXPLAIN.replace("explain", "predict")
    public: ClassVar = ("/health/live", "/health/ready", "/metrics", "/v1/models/digits", "/v2/models/digits")

    def test_grpc_has_the_tensors_of_v2_and_one_budget_with_http(self, server, grpc_infer, expected, noisy):
        x = noisy.rows[20 : 21 + QUESTIONS]
        want = expected.explain(x[:-1])
        for raw in (False, True):
            explanation, label = grpc_infer(x[:-1], "greedy", raw=raw).outputs
            assert (explanation.name, list(explanation.shape), label.name) == ("explanation", [QUESTIONS, 64], "label")
            np.testing.assert_array_equal(explanation.contents.fp32_contents, want.explanation.ravel())
            assert list(label.contents.int64_contents) == want.label.tolist()
            (alone,) = grpc_infer(x[:-1], "greedy", raw=raw, outputs=("label",)).outputs
            assert alone == label
        answer = server.ask(INFER, V2().question(x[:-1]), "greedy")
        np.testing.assert_array_equal(np.float32(V2().arrays(answer)), want.explanation)
        assert self.ask(server, x[-1:], "greedy").status_code == 429
        assert grpc_infer(x[-1:], "greedy").code().name == "RESOURCE_EXHAUSTED"
        for error in (grpc_infer(x[:1], "clumsy", n_steps=9), grpc_infer(x[:1] * np.nan, "clumsy")):
            assert error.code().name == "INVALID_ARGUMENT"

    def test_no_header_or_native_number_is_in_answers_of_grpc_and_of_its_own_routes(self, server, grpc_infer, noisy):
        x = marked(noisy.rows[40:42], 3)
        cloud = {"Ce_Id": "event-1723", "Ce_Source": "source-5512", "Ce_Type": "kind-8841", "Ce_Specversion": "1.0"}
        length = {"Inference_Header_Content_Length": "length-6621"}
        grpc_infer(x, "client-marker-55", raw=True)
        grpc_infer(x, "client-marker-55", n_steps=3)
        unreadable = json.dumps(V2().question(x.tolist())).replace("FP32", 'FP32", "more": NaN, "x": "').encode()
        for path, payload, more in (
            (EXPLAIN, self.question(x), cloud),
            (INFER, unreadable, length),
            (INFER.replace("infer", "versions/1/infer"), unreadable, {}),
            (INFER.replace("infer", "versions/1/infer"), V2().question(x), {}),
            ("/v1/models/nobody:explain", self.question(x), {}),
        ):
            server.ask(path, payload, "client-marker-55", **SECRETS, **more)
        said = b"\n".join(server.said)
        for value in (*SECRETS.values(), "event-1723", "source-5512", "kind-8841", "length-6621", "client-marker-55"):
            assert value.encode() not in said
        assert b"Traceback" not in said
        assert found(native(noisy.model, x), server.heard()) == []


def test_kserves_own_endpoints_which_copy_headers_into_answers_get_none(expected):
    from fastapi import HTTPException

    from safexplain.serve.kserve import HardenedModel

    model = HardenedModel(expected)
    for ask in (model.explain, model.predict):
        with pytest.raises(HTTPException) as refused:
            asyncio.run(ask({"instances": [[0.5] * 64]}, {"x-client-id": "ann"}))
        assert refused.value.status_code == 404


def test_a_container_with_a_bad_certificate_ends_and_says_why(made, tmp_path):
    bad = tmp_path / "certificate.json"
    bad.write_text(made.certificate.read_text().replace("certified", "leaks"))
    command = [sys.executable, "-m", "safexplain.serve.kserve", f"--model={made.model}", f"--certificate={bad}"]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "not served: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_model_stays_in_its_process(expected):
    from safexplain.serve.kserve import HardenedModel

    with pytest.raises(TypeError, match="--workers 1"):
        pickle.dumps(HardenedModel(expected))
