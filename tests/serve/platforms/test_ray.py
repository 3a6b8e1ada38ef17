"""Two replicas on a local Ray cluster: the promises of every platform, the same answers, and one audit log."""

import importlib.util
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers import free_port

from safexplain.errors import ConfigurationError
from safexplain.serve import Limits
from tests.serve.platforms.contract import KEY, QUESTIONS, Contract
from tests.serve.platforms.servers import ROOT, Server

if importlib.util.find_spec("ray") is None:
    pytest.skip('Ray Serve is not installed: pip install "safexplain[ray]"', allow_module_level=True)

pytestmark = pytest.mark.slow  # a cluster of its own


@pytest.fixture(scope="module")
def server(noisy, tmp_path_factory):
    """Two replicas, whose logs lie under a short path, since Ray's sockets are there too."""
    import ray
    from ray import serve

    from safexplain.serve import ray as adapter

    port, ledger = free_port(), tmp_path_factory.mktemp("ray") / "questions.sqlite"
    variables = {
        "PYTHONPATH": str(ROOT),
        "SAFEXPLAIN_NOISE_KEY": KEY,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in variables.items():
            patch.setenv(name, value)
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            application = adapter.deployment(
                noisy.model,
                noisy.certificate,
                replicas=2,
                actor={"num_cpus": 0.1},
                audit_log=Path(folder) / "asked.jsonl",
                ledger=f"sqlite:///{ledger}",
                limits=Limits(questions=QUESTIONS),
            )
            serve.run(application, name="digits", route_prefix="/")
            yield Server([f"http://127.0.0.1:{port}"], ledger, Path(folder))
        finally:
            serve.shutdown()
            ray.shutdown()


class TestRay(Contract):
    """And what two replicas of it promise."""

    def test_both_replicas_give_equal_answers_and_write_who_asked_into_one_audit_log(self, server, noisy):
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda i: self.ask(server, noisy.rows[:2], f"audited {i}"), range(24)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        replicas = [file.read_bytes() for file in server.logs.rglob("logs/**/replica_digits*") if file.is_file()]
        assert sum(b"POST /v1/models/model:explain 200" in text for text in replicas) == 2
        lines = [json.loads(line) for line in (server.logs / "asked.jsonl").read_text().splitlines()]
        asked = {line["client"]: line["questions"] for line in lines if line["client"].startswith("audited")}
        assert len(asked) == 24
        assert len({tuple(questions) for questions in asked.values()}) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 2}, "URL of one ledger"),
        ({"key": KEY.encode()}, "SAFEXPLAIN_NOISE_KEY"),
        ({"actor": {"runtime_env": {"env_vars": {"SAFEXPLAIN_NOISE_KEY": KEY}}}}, "SAFEXPLAIN_NOISE_KEY"),
        ({"ledger": object()}, "URL of one ledger"),
    ],
)
def test_what_replicas_could_not_share_or_ray_must_not_keep_is_refused(settings, said):
    from safexplain.serve import ray as adapter

    with pytest.raises(ConfigurationError, match=said):
        adapter.deployment("model.pt2", "certificate.json", **settings)
