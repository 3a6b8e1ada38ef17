"""Asked politely: what a busy server asks for is obeyed, and every way to fail ends in one clear sentence."""

import email.utils
import json
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from safexplain.audit.endpoint import target as module
from safexplain.audit.endpoint.payload import Payload
from safexplain.audit.endpoint.target import Client, EndpointError
from safexplain.errors import ConfigurationError, MissingExtraError

X = np.zeros((3, 6), np.float32)


@pytest.fixture
def slept(monkeypatch):
    """Seconds that were waited, none of which pass."""
    waits = []
    clock = SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=waits.append)
    monkeypatch.setattr(module, "time", clock)
    return waits


def client(url, **content):
    asking = {"rate": 1e6, "retries": 3, **content.pop("asking", {})}
    return Client(url, Payload.from_dict({"asking": asking, **content}))


def instead(service, *answers):
    """Answer the first requests like this, then rightly."""
    service.before = lambda path, number: answers[number] if number < len(answers) else None


def test_retry_after_is_obeyed_and_what_was_refused_does_not_count(service, slept):
    date = email.utils.formatdate(time.time() + 100, usegmt=True)
    instead(service, (429, {"Retry-After": "7"}, b""), (503, {"Retry-After": date}, b"busy"))
    asked = client(service.url)
    assert len(asked.explain(X)["labels"]) == 3
    assert slept[0] == 7
    assert 60 <= slept[1] <= 100
    assert (asked.store.asked, len(service.bodies)) == (3, 3)


def test_without_retry_after_waits_double(service, slept):
    instead(service, (429, {}, b""), (429, {}, b""), (429, {}, b""))
    client(service.url).explain(X)
    assert all(0.25 * 2**i <= wait <= 0.5 * 2**i for i, wait in enumerate(slept))
    assert len(slept) == 3


def test_a_wait_that_is_too_long_ends_the_audit_with_the_time(service, slept):
    problem = json.dumps({"title": "Too Many Requests", "detail": "the budget renews at midnight"}).encode()
    instead(service, (429, {"Retry-After": "86400"}, problem))
    with pytest.raises(
        EndpointError, match=r"status 429, 'the budget renews at midnight'.*86,400 seconds, until .* UTC"
    ):
        client(service.url).explain(X)
    assert slept == []


def test_tries_end_and_what_may_have_been_answered_counts(service, slept):
    instead(service, *[(500, {}, b'{"error": "oops"}')] * 4)
    asked = client(service.url)
    with pytest.raises(EndpointError, match=r"it fails \(status 500, 'oops'\), after 4 tries"):
        asked.explain(X)
    assert (asked.store.asked, len(service.bodies)) == (12, 4)


def test_the_budget_is_never_exceeded_by_a_retry(service, slept):
    instead(service, (502, {}, b""), (502, {}, b""))
    asked = client(service.url, asking={"budget": 7})
    with pytest.raises(
        EndpointError, match=r"budget of 7 questions is spent \(1 left, 3 needed; the last answer: it fails"
    ):
        asked.explain(X)
    assert (asked.store.asked, len(service.bodies)) == (6, 2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html><body>Log in"), r"not JSON \(text/html: '<html><body>Log in'"),
        ((200, {}, b"[" * 100_000), "not JSON"),
        ((302, {"Location": "http://elsewhere/?token=1"}, b""), r"redirects \(status 302\)"),
        ((401, {}, b'{"message": "who are you"}'), "rejects the question .status 401, 'who are you'.*TOML"),
        ((422, {}, b'{"detail": [{"loc": 1}]}'), r"rejects the question \(status 422\)"),
    ],
)
def test_what_is_no_answer_is_not_asked_again(service, slept, answer, said):
    instead(service, answer)
    with pytest.raises(EndpointError, match=said):
        client(service.url).explain(X)
    assert len(service.bodies) == 1


def test_an_answer_that_breaks_off_is_asked_again(service, slept):
    instead(service, (200, {"Content-Length": "1000", "Connection": "close"}, b'{"explanations": '))
    assert len(client(service.url, asking={"timeout": 5}).explain(X)["labels"]) == 3


def test_a_server_that_says_nothing_times_out(slept):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(EndpointError, match=r"no answer within 0.1 seconds, after 2 tries"):
            client(url, asking={"timeout": 0.1, "retries": 1}).explain(X)


def test_a_server_that_drips_times_out_too(slept):
    ended = threading.Event()

    def drip():
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not ended.wait(0.01):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            asked = client(f"http://127.0.0.1:{server.getsockname()[1]}/", asking={"timeout": 0.2, "retries": 0})
            with pytest.raises(EndpointError, match=r"no answer within 0.2 seconds"):
                asked.explain(X)
        finally:
            ended.set()
            thread.join()


def test_nobody_there_is_said_and_costs_nothing(slept):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://user:word@127.0.0.1:{taken.getsockname()[1]}/x?token=s3cret"
    asked = client(url, asking={"retries": 1})
    with pytest.raises(EndpointError, match=r"^http://127.0.0.1:\d+/x: no connection") as raised:
        asked.explain(X)
    assert not {"word", "s3cret"} & set(str(raised.value).replace("?", " ").split())
    assert asked.store.asked == 0


def test_headers_and_credentials_reach_the_service(service, slept):
    url = service.url.replace("http://", "http://me:word@") + "?key=1"
    client(url, request={"headers": {"X-Client-Id": "auditor"}}).explain(X)
    (headers,) = service.headers
    assert headers["X-Client-Id"] == "auditor"
    assert headers["Authorization"].startswith("Basic ")
    assert service.paths == ["/v1/models/model:explain?key=1"]


def test_no_more_requests_a_second_than_the_rate(service, monkeypatch):
    now = [100.0]
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=sleep))
    asked = client(service.url, asking={"rate": 4})
    for _ in range(3):
        asked.explain(X)
    assert waits == [0.25, 0.25]


@pytest.mark.parametrize("url", ["localhost:8000/x", "http://h:port/x"])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigurationError, match="expected the URL"):
        client(url)


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"safexplain\[endpoint\]"):
        client("http://h/x")
