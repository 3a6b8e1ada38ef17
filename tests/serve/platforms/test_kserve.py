"""KServe's own ModelServer, twice: the promises of every platform, V2 too, and its own endpoints closed."""

import asyncio
import importlib.util
import json
import pickle
import subprocess
import sys
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import yaml
from servers import free_port

from tests.serve.platforms.contract import KEY, QUESTIONS, SECRETS, V2, Contract
from tests.serve.platforms.servers import ROOT, environment, found, marked, native, running

if importlib.util.find_spec("kserve") is None:
    pytest.skip("KServe is not installed: make test-serve", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # what its dependencies warn of is theirs

EXPLAIN, INFER = "/v1/models/digits:explain", "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def server(noisy, tmp_path_factory):
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
    commands = {port: [*command, f"--http_port={port}"] for port in (free_port(), free_port())}
    probe = container["readinessProbe"]["httpGet"]["path"]
    with running(commands, folder, folder / "ledger.db", probe, **own) as started:
        yield started


class TestKServe(Contract):
    """And what KServe adds."""

    explain: ClassVar = EXPLAIN
    predict: ClassVar = EXPLAIN.replace("explain", "predict")
    public: ClassVar = ("/health/live", "/health/ready", "/metrics", "/v1/models/digits", "/v2/models/digits")

    def test_v2_has_the_same_answers_and_one_budget_with_v1(self, server, expected, noisy):
        x, want = noisy.rows[20 : 20 + QUESTIONS], expected.explain(noisy.rows[20 : 20 + QUESTIONS])
        answer = server.ask(INFER, V2().question(x), "greedy")
        np.testing.assert_array_equal(np.float32(V2().arrays(answer)), want.explanation)
        np.testing.assert_array_equal(np.float32(self.arrays(self.ask(server, x, "greedy"))), want.explanation)
        assert self.ask(server, noisy.rows[:1], "greedy").status_code == 429

    def test_no_header_or_native_number_is_in_answers_of_kserves_own_routes(self, server, noisy):
        x = marked(noisy.rows[40:42], 3)
        cloud = {"Ce_Id": "event-1723", "Ce_Source": "source-5512", "Ce_Type": "kind-8841", "Ce_Specversion": "1.0"}
        length = {"Inference_Header_Content_Length": "length-6621"}
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

    def test_a_model_that_somebody_unloads_answers_on(self, server, noisy):
        for _ in range(2):  # replicas are asked in turn
            server.ask("/v2/repository/models/digits/unload", b"")
        assert all(self.ask(server, noisy.rows[:1], "ward-3").status_code == 200 for _ in range(2))


def test_kserves_own_hooks_whose_endpoints_copy_headers_into_answers_give_none(expected):
    from fastapi import HTTPException
    from kserve.model import InferenceVerb

    from safexplain.serve.kserve import HardenedModel

    model, question = HardenedModel(expected), ({"instances": [[0.5] * 64]}, {"x-client-id": "ann"})
    hooks = [model.explain, model.predict, *(partial(model, verb=verb) for verb in InferenceVerb)]
    for ask in hooks:
        with pytest.raises(HTTPException, match="only at the HTTP routes") as refused:
            asyncio.run(ask(*question))
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
