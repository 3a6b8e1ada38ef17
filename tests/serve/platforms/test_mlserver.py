"""MLServer's own server, twice: the promises of every platform, over gRPC and in streams too."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from servers import free_port

from tests.serve.platforms.contract import KEY, MARK, QUESTIONS, V2, Contract
from tests.serve.platforms.servers import ROOT, Server, environment, found, marked, native, running

if importlib.util.find_spec("mlserver") is None:
    pytest.skip("MLServer is not installed: make test-serve", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # what its dependencies warn of is theirs

MLSERVER = ["-c", "from mlserver.cli import main; main()"]
INFER = "/v2/models/digits/infer"


def written(folder: Path, files: Any, server: dict[str, Any] | None = None, **changes: Any) -> dict[str, int]:
    """A folder that `mlserver start` reads, with the settings of examples/serve; its ports."""
    files.copy(folder)
    examples = ROOT / "examples/serve/mlserver"
    ports = {f"{name}_port": free_port() for name in ("http", "grpc", "metrics")}
    common = json.loads((examples / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **common, **ports, **(server or {})}))
    model = json.loads((examples / "model-settings.json").read_text())
    model["parameters"]["extra"] |= {
        "limits": {"questions": QUESTIONS},
        "ledger": f"sqlite:///{folder.parent}/ledger.db",
    }
    (folder / "model-settings.json").write_text(json.dumps({**model, **changes}))
    return ports


@pytest.fixture(scope="module")
def ports():
    """Of the first replica."""
    return {}


@pytest.fixture(scope="module")
def server(noisy, ports, tmp_path_factory):
    folder, commands = tmp_path_factory.mktemp("mlserver"), {}
    for replica in ("a", "b"):
        folder.joinpath(replica).mkdir()
        ports |= written(folder / replica, noisy)
        commands[ports["http_port"]] = [*MLSERVER, "start", str(folder / replica)]
    with running(
        commands, folder, folder / "ledger.db", INFER.replace("infer", "ready"), SAFEXPLAIN_NOISE_KEY=KEY
    ) as one:
        yield one


@pytest.fixture(scope="module")
def grpc_infer(server, ports):
    """Ask a tensor by Triton's gRPC client, which is the one that MLServer brings."""
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

    with triton.InferenceServerClient(f"127.0.0.1:{ports['grpc_port']}") as asked:
        yield ask


class TestMLServer(V2):
    """And what MLServer adds; its errors are {"error": text}."""

    explain: ClassVar = INFER
    predict: ClassVar = INFER
    ready: ClassVar = "/v2/models/digits/ready"
    not_ready: ClassVar = 400
    public: ClassVar = ("/v2/health/live", "/v2/health/ready", "/v2/models/digits", "/v2")
    test_a_body_longer_than_any_question_is_refused = None  # MLServer reads bodies; the gateway limits them

    nested = Contract.nested  # deeper in other places MLServer's own parser answers 500

    def check_problem(self, response: httpx.Response, field: str | None = None) -> None:
        assert field is None or field in response.text or "expected finite numbers" in response.text

    def check_renewal(self, response: httpx.Response) -> None:
        assert "renews" in response.json()["error"]

    def check_unread(self, server: Server) -> None:
        """MLServer's own error quotes a body to who sent it."""
        assert b"0.8451" not in server.logged()

    def test_a_request_for_all_has_both_tensors_and_its_name(self, server, expected, noisy):
        x = noisy.rows[:2]
        answer = server.ask(INFER, {"inputs": self.question(x)["inputs"], "id": "a"}, "rest").json()
        tensors = {one["name"]: one for one in answer["outputs"]}
        assert tensors.keys() == {"explanation", "label"}
        assert (answer["id"], tensors["explanation"]["shape"]) == ("a", [2, 64])
        assert server.ask("/v2/models/digits").json()["inputs"][0]["shape"] == [-1, 64]

    def test_grpc_has_the_same_tensors_and_one_budget_with_rest(self, server, grpc_infer, expected, noisy):
        x = noisy.rows[20 : 21 + QUESTIONS]
        answer = grpc_infer(x[:-1], "greedy")
        np.testing.assert_array_equal(answer.as_numpy("explanation"), expected.explain(x[:-1]).explanation)
        np.testing.assert_array_equal(answer.as_numpy("label"), expected.predict(x[:-1]).label)
        assert self.ask(server, x[-1:], "greedy").status_code == 429
        assert "budget" in grpc_infer(x[-1:], "greedy").message()
        assert "n_steps" in grpc_infer(x[:1], "clumsy", n_steps=9).message()
        assert "finite" in grpc_infer(x[:1] * np.nan, "clumsy").message()

    @pytest.mark.parametrize(
        ("more", "named"),
        [
            ({"parameters": {"content_type": "pd"}}, "content_type"),
            ({"outputs": [{"name": "probabilities"}]}, "outputs"),
            ({"id": "\N{SNOWMAN}"}, "id"),
            ({"id": "a\r\nX-Evil: 1"}, "id"),
        ],
    )
    def test_what_it_would_pass_on_is_refused_by_name(self, server, more, named):
        refused = server.ask(INFER, {**self.question([[0.0] * 64]), **more}, "clumsy")
        assert (refused.status_code, named in refused.json()["error"]) == (422, True)

    def test_an_error_in_a_stream_is_an_answer_without_tensors_and_no_traceback(self, server):
        for path in (INFER + "_stream", INFER.replace("infer", "generate_stream")):
            refused = server.ask(path, self.choosing("n_steps", MARK), "streaming")
            (line,) = [line for line in refused.text.splitlines() if line]
            said = json.loads(line.removeprefix("data: "))
            assert (said["outputs"], said["parameters"]["status"]) == ([], 422)
            assert "n_steps" in said["parameters"]["error"]

    def test_no_native_number_is_in_grpc_streams_or_metrics(self, server, grpc_infer, ports, noisy):
        x = marked(noisy.rows[40:42], 3)
        assert server.ask(INFER + "_stream", self.question(x), "client-marker-55").status_code == 200
        grpc_infer(x, "client-marker-55")
        grpc_infer(x, "client-marker-55", n_steps=3)
        metrics = httpx.get(f"http://127.0.0.1:{ports['metrics_port']}/metrics").content
        assert b"model_infer_request" in metrics
        assert found(native(noisy.model, x), server.heard() + metrics) == []
        assert b"client-marker-55" not in b"\n".join(server.said)
        assert b"Traceback" not in b"\n".join(server.said)


@pytest.mark.parametrize(
    ("changes", "server", "said"),
    [
        ({"cache_enabled": True}, {}, "cache_enabled"),
        ({"max_batch_size": 4, "max_batch_time": 0.1}, {}, "max_batch_size"),
        ({"parallel_workers": None}, {"parallel_workers": 1}, "parallel_workers"),
        ({}, {"debug": True}, "debug: expected false"),
        ({"parameters": {"uri": "model.pt2", "extra": {"certificate": "settings.json"}}}, {}, "CertificateError"),
    ],
)
def test_a_setting_that_would_undo_the_service_is_refused_at_the_start(made, tmp_path, changes, server, said):
    written(tmp_path, made, server, **changes)
    command = [sys.executable, *MLSERVER, "start", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert said in ended.stdout + ended.stderr
    assert "failed to load during startup" in ended.stdout + ended.stderr
