"""BentoML's own server answers from a service, and says nothing else, neither to clients nor in its log."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safexplain.errors import ConfigurationError, RequestError
from safexplain.serve import Service
from tests.serve.platforms.servers import ROOT, Server, found, free_port, marked, native, running

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("bentoml") is None, reason="BentoML is not installed: make test-serve"),
    pytest.mark.filterwarnings("ignore"),  # what its dependencies warn of is theirs
]

KEY = "a noise key of thirty-two bytes."

MARK = 0.8451927
"""Stands in requests that are refused, so that it must be found in no answer and no log."""

QUESTIONS = 6


@pytest.fixture(scope="module")
def server(noisy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The example, two workers, with a smaller budget."""
    folder = tmp_path_factory.mktemp("bento")
    noisy.copy(folder)
    example = (ROOT / "examples" / "serve" / "bento.py").read_text()
    assert '"questions": 1000' in example
    (folder / "bento.py").write_text(example.replace('"questions": 1000', f'"questions": {QUESTIONS}'))
    port = free_port()
    own = {"BENTOML_HOME": str(folder), "BENTOML_DO_NOT_TRACK": "1", "SAFEXPLAIN_NOISE_KEY": KEY}
    command = ["-m", "bentoml", "serve", "bento:Explainer", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, folder, port, "/readyz", **own) as started:
        yield started


@pytest.fixture(scope="module")
def expected(noisy: Any) -> Iterator[Service]:
    with Service.load(noisy.model, noisy.certificate, key=KEY.encode()) as service:
        yield service


def test_explanations_and_labels_are_those_of_the_service(server, expected, noisy):
    x = noisy.rows[:3]
    want = expected.explain(x)
    explained = server.ask("/explain", {"x": x.tolist()}, "ward-3")
    labels = server.ask("/predict", {"x": x.tolist()}, "ward-3")
    np.testing.assert_array_equal(np.float32(explained.json()), want.explanation)
    assert labels.json() == want.label.tolist()
    assert explained.headers["X-Safexplain-Certificate"] == expected.digest


def test_bentomls_own_client_gets_the_same_arrays_and_the_problem(server, expected, noisy):
    import bentoml

    x = noisy.rows[:2]
    with bentoml.SyncHTTPClient(server.url) as client:
        np.testing.assert_array_equal(np.float32(client.explain(x=x)), expected.explain(x).explanation)
        with pytest.raises(bentoml.exceptions.BentoMLException, match="expected inputs of shape"):
            client.explain(x=x[:, 1:])


def test_workers_grant_one_budget_and_say_when_it_renews(server, noisy):
    rows = noisy.rows[100:120]
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda row: server.ask("/explain", {"x": [row.tolist()]}, "patient"), rows))
    assert sum(answer.status_code == 200 for answer in answers) == QUESTIONS
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == len(rows) - QUESTIONS
    assert refused[0].headers["Content-Type"] == "application/problem+json"
    assert int(refused[0].headers["Retry-After"]) > 0
    assert refused[0].json()["renews"]
    granted = next(row for row, answer in zip(rows, answers, strict=True) if answer.status_code == 200)
    assert server.ask("/predict", {"x": [granted.tolist()]}, "patient").status_code == 200
    assert server.ask("/predict", {"x": rows[:1].tolist()}, "another").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"x": [[MARK] * 3]}, "input"),
        ({"x": [[str(MARK)] * 64]}, "x"),
        ({"x": [[MARK], [MARK, MARK]]}, "x"),
        ({"x": {"data": [MARK]}}, "x"),
        ({"x": None}, "x"),
        ({}, "x"),
        ({"x": [[0.5] * 64], "n_steps": MARK}, "n_steps"),
        ({"x": [[0.5] * 64], "target": [3]}, "target"),
        ([MARK], None),
        (b'{"x": [[%f' % MARK, None),
        (b'{"x": [[NaN, %f]]}' % MARK, "input"),
        (b"\xff%f" % MARK, None),
        (b"", None),
        (b'{"x": ' + b"[" * 5000 + b"%f" % MARK + b"]" * 5000 + b"}", None),
    ],
)
@pytest.mark.parametrize("path", ["/explain", "/predict"])
def test_what_is_refused_is_a_422_that_names_the_field_and_quotes_nothing(server, path, body, field):
    for kind in ("application/json", "multipart/form-data", "text/plain"):
        answer = server.ask(path, body, "clumsy", Content_Type=kind)
        assert answer.status_code == 422
        assert answer.json().get("field") == field or field is None
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert b"0.845" not in server.heard()
    assert b"Traceback" not in server.heard()


def test_pickles_are_not_read(server):
    answer = server.ask("/explain", b"\x80\x04N.", "clumsy", Content_Type="application/vnd.bentoml+pickle")
    assert answer.status_code == 415


def test_no_native_number_no_input_and_no_key_is_in_any_answer_or_log(server, noisy):
    rows = marked(noisy.rows[:2], 1)
    for path in ("/explain", "/predict"):
        assert server.ask(path, {"x": rows.tolist()}, "m").status_code == 200
        assert server.ask(path, {"x": rows[:, 1:].tolist()}, "m").status_code == 422
    for path in ("/schema.json", "/docs.json", "/metrics", "/livez", "/readyz"):
        assert server.ask(path).status_code == 200
    assert found(native(noisy.model, rows), server.heard()) == []
    assert KEY.encode() not in server.heard()


def test_without_the_ledger_nothing_is_answered_and_with_it_again_everything(server, noisy):
    ledger = server.log.parent / "questions.sqlite"
    aside = ledger.with_name("aside")
    ledger.rename(aside)
    ledger.mkdir()
    try:
        answer = server.ask("/explain", {"x": noisy.rows[200:201].tolist()}, "late")
        assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
        assert server.ask("/readyz").status_code == 503
    finally:
        ledger.rmdir()
        aside.rename(ledger)
    assert server.ask("/explain", {"x": noisy.rows[200:201].tolist()}, "late").status_code == 200


def test_a_ledger_that_workers_cannot_share_is_refused():
    from safexplain.serve.bentoml import service_class

    with pytest.raises(ConfigurationError, match="URL"):
        service_class(Path("model.pt2"), "certificate.json", ledger=object())


def test_bodies_that_are_too_long_are_refused_unread(monkeypatch):
    from safexplain.serve import bentoml as adapter
    from safexplain.serve import protocol

    monkeypatch.setattr(protocol, "MOST_BYTES", 10)

    class Long:
        async def stream(self) -> Any:
            yield b"12345678"
            yield b"12345678"
            raise AssertionError("read on")

    question = asyncio.run(adapter.Question.from_http_request(Long(), None))
    with pytest.raises(RequestError) as caught:
        adapter._rows(question.x)
    assert caught.value.status == 413
