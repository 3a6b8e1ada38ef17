"""Two replicas on a local Ray cluster: one budget, the same answers, and nothing native in answers or Ray's logs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("ray.serve", reason='Ray Serve is not installed: pip install "safexplain[ray]"')

import ray
from ray import serve

from safexplain.errors import ConfigurationError
from safexplain.serve import Limits, Service
from safexplain.serve import ray as adapter
from tests.serve.platforms.servers import ROOT, everything, found, free_port, marked, native

KEY = "a noise key of thirty-two bytes."

MARK = 0.8451927
"""Stands in requests that are refused, so that it must be found in no answer and no log."""

QUESTIONS = 10

LEDGER, AUDIT = "questions.sqlite", "asked.jsonl"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Of Ray's session and the ledger; its path is short, since Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def served(noisy: Any, folder: Path) -> Iterator[httpx.Client]:
    """A client of two replicas, which share a ledger in a file."""
    port = free_port()
    variables = {
        "PYTHONPATH": str(ROOT),
        "SAFEXPLAIN_NOISE_KEY": KEY,
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=str(folder))
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            application = adapter.deployment(
                noisy.model,
                noisy.certificate,
                replicas=2,
                actor={"num_cpus": 0.1},
                audit_log=folder / AUDIT,
                ledger=f"sqlite:///{folder / LEDGER}",
                limits=Limits(questions=QUESTIONS),
            )
            serve.run(application, name="digits", route_prefix="/")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                yield client
        finally:
            serve.shutdown()
            ray.shutdown()


@pytest.fixture(scope="module")
def expected(noisy: Any) -> Iterator[Service]:
    with Service.load(noisy.model, noisy.certificate, key=KEY.encode()) as service:
        yield service


def _explain(client: httpx.Client, rows: Any, who: str) -> httpx.Response:
    """On a connection of its own, for which Ray chooses a replica anew."""
    url = client.base_url.join("/v1/models/model:explain")
    return httpx.post(url, json={"instances": rows}, headers={"X-Client-Id": who}, timeout=60)


def _at_once(ask: Any, arguments: Any) -> list[httpx.Response]:
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, arguments))


def _logged(folder: Path) -> dict[str, bytes]:
    """What every process of Ray has written, by file, and the audit log."""
    files = [*folder.rglob("logs/**/*"), folder / AUDIT]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def test_both_replicas_give_equal_answers_to_equal_questions(served, folder, expected, noisy):
    rows = noisy.rows[:2]
    answers = _at_once(lambda i: _explain(served, rows.tolist(), f"client {i}"), range(24))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    np.testing.assert_array_equal(np.float32(answers[0].json()["explanations"]), expected.explain(rows).explanation)
    replicas = [text for name, text in _logged(folder).items() if name.startswith("replica_digits")]
    assert sum(b"POST /v1/models/model:explain 200" in text for text in replicas) == 2


def test_two_replicas_grant_one_budget(served, noisy):
    rows = noisy.rows[100:130]
    answers = _at_once(lambda row: _explain(served, [row.tolist()], "patient"), rows)
    refused = [answer for answer in answers if answer.status_code == 429]
    assert (len(answers) - len(refused), sum(answer.status_code == 200 for answer in answers)) == (QUESTIONS, QUESTIONS)
    for answer in refused:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.json()["renews"]
    granted = [row for row, answer in zip(rows, answers, strict=True) if answer.status_code == 200]
    again = _at_once(lambda row: _explain(served, [row.tolist()], "patient"), granted)
    assert {answer.status_code for answer in again} == {200}
    assert _explain(served, rows[:1].tolist(), "another").status_code == 200


def test_both_replicas_write_who_asked_when_into_one_audit_log(served, folder, noisy):
    answers = _at_once(lambda i: _explain(served, noisy.rows[300:301].tolist(), f"audited {i}"), range(8))
    assert {answer.status_code for answer in answers} == {200}
    lines = [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]
    asked = {line["client"]: line for line in lines if line["client"].startswith("audited")}
    assert len(asked) == 8
    assert len({line["questions"][0] for line in asked.values()}) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"instances": [[MARK] * 3]}, "input"),
        ({"instances": [[str(MARK)] * 64]}, "instances"),
        ({"instances": [[0.5] * 64], "n_steps": MARK}, "n_steps"),
        ({"instances": [[0.5] * 64], "target": [3]}, "target"),
    ],
)
def test_what_is_refused_is_named_and_neither_answered_nor_logged(served, folder, body, field):
    for _ in range(4):  # whichever replica it comes to
        answer = httpx.post(served.base_url.join("/v1/models/model:explain"), json=body, timeout=60)
        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert str(MARK) not in answer.text
    assert not [name for name, text in _logged(folder).items() if str(MARK).encode() in text]


def test_no_native_number_no_input_and_no_key_is_in_any_answer_or_log(served, folder, noisy):
    rows = marked(noisy.rows[:2], 1)
    answers = _at_once(lambda i: _explain(served, rows.tolist(), f"client {i}"), range(8))
    assert {answer.status_code for answer in answers} == {200}
    refused = _explain(served, rows[:, 1:].tolist(), "client 0")
    heard = b"\n".join([*map(everything, [*answers, refused]), *_logged(folder).values()])
    assert found(native(noisy.model, rows), heard) == []
    assert KEY.encode() not in heard


def test_without_the_ledger_nothing_is_answered_and_with_it_again_everything(served, folder, noisy):
    ledger, aside = folder / LEDGER, folder / "aside"
    ledger.rename(aside)
    ledger.mkdir()
    try:
        answers = [_explain(served, noisy.rows[200 + i : 201 + i].tolist(), "late") for i in range(4)]
        assert [answer.status_code for answer in answers] == [503] * 4
        assert answers[0].headers["Content-Type"] == "application/problem+json"
        assert served.get("/health/ready").status_code == 503
    finally:
        ledger.rmdir()
        aside.rename(ledger)
    assert _explain(served, noisy.rows[200:201].tolist(), "late").status_code == 200


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"replicas": 2}, "2 budgets"),
        ({"key": KEY.encode()}, "SAFEXPLAIN_NOISE_KEY"),
        ({"actor": {"runtime_env": {"env_vars": {"SAFEXPLAIN_NOISE_KEY": KEY}}}}, "SAFEXPLAIN_NOISE_KEY"),
        ({"ledger": object()}, "URL"),
    ],
)
def test_what_replicas_could_not_share_or_ray_must_not_keep_is_refused(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        adapter.deployment("model.pt2", "certificate.json", **settings)
