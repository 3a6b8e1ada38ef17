"""What a service does when something breaks: no answer without a charge, no wrong answer, and it recovers by itself."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import numpy as np
import pytest
from served_digits import KEY, certified
from servers import EXPLAIN, ask, listening

from safexplain.errors import SafexplainError
from safexplain.hardening.hardening import Hardening
from safexplain.serve import Limits, Service, app, http, protocol

PLENTY = Limits(questions=1_000_000)


def head_of(body):
    """Of a request whose body has yet to come."""
    head = f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n"


def maps_in(response):
    """As they were written, in float32."""
    return np.array(response.json()["explanations"], np.float32)


def test_reloading_under_load_fails_no_request_and_mixes_nothing(made, tmp_path):
    """Good certificates and bad ones by turns: every answer is one that its certificate stands for, and none fails."""
    files = made.copy(tmp_path)
    good = [files.certificate.read_bytes()]
    good.append(certified(files.model, tmp_path, Hardening.ranked().without_noise()).read_bytes())
    rows, expected = made.rows[:3], {}
    for content in good:
        files.certificate.write_bytes(content)
        with Service.load(files.model, files.certificate, key=KEY) as service:
            expected[service.digest] = service.explain(rows).explanation
    one, other = expected.values()
    assert not np.array_equal(one, other)
    files.certificate.write_bytes(good[0])
    service = Service.load(files.model, files.certificate, key=KEY, limits=PLENTY)
    failed, digests, stopped = [], set(), threading.Event()

    def client(url, name):
        with httpx.Client(timeout=60) as one:
            while not stopped.is_set():
                body = {"instances": rows.tolist()}
                got = one.post(url + EXPLAIN, json=body, headers={"X-Client-Id": name})
                digest = got.headers.get("x-safexplain-certificate")
                if got.status_code != 200 or not np.array_equal(maps_in(got), expected[digest]):
                    failed.append((got.status_code, digest))
                digests.add(digest)

    with listening(app(service)) as url, ThreadPoolExecutor(4) as pool:
        for i in range(4):
            pool.submit(client, url, f"client {i}")
        try:
            for i in range(3):
                files.certificate.write_bytes(good[(i + 1) % 2])
                service.reload()
                files.certificate.write_bytes(b"{" if i % 2 else good[0].replace(b"certified", b"certifies"))
                with pytest.raises(SafexplainError):
                    service.reload()
                ready = httpx.get(url + "/health/ready")
                assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
                time.sleep(0.1)
        finally:
            stopped.set()
        pool.shutdown()
        assert not failed
        assert digests == set(expected)
        files.certificate.write_bytes(good[0])
        service.reload()
        assert httpx.get(url + "/health/ready").json()["status"] == "ready"


def test_without_its_ledger_nothing_is_answered_and_with_it_all_is_again(made, tmp_path):
    path, away = tmp_path / "ledger.db", tmp_path / "away.db"
    service = Service.load(made.model, made.certificate, ledger=f"sqlite:///{path}")
    with listening(app(service)) as url:
        assert ask(url, made.rows[:2]).status_code == 200
        path.rename(away)
        got = ask(url, made.rows[2:4])
        assert (got.status_code, got.headers["retry-after"]) == (503, "5")
        assert "ledger" in got.json()["detail"]
        assert "explanations" not in got.text
        assert str(tmp_path) not in got.text
        assert httpx.get(url + "/health/ready").status_code == 503
        assert httpx.get(url + "/health/live").status_code == 200
        away.rename(path)
        assert ask(url, made.rows[1:4]).status_code == 200
        assert httpx.get(url + "/health/ready").json()["status"] == "ready"


def test_a_head_that_trickles_is_cut_off_and_later_requests_have_the_full_time(made, monkeypatch):
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.5)
    with listening(app(Service.load(made.model, made.certificate))) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for first in (b"", f"GET /health/live HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()):
            with socket.create_connection((host, int(port)), timeout=10) as slow:
                slow.sendall(first)
                got = b""
                while first and b"}" not in got:
                    got += slow.recv(65536)
                assert got.startswith(b"HTTP/1.1 200 ") == bool(first)
                slow.sendall(f"POST {EXPLAIN} HTTP/1.1\r\nX-Slow: ".encode())
                with suppress(ConnectionResetError):
                    assert slow.recv(65536) == b""
        assert ask(url, made.rows[:1]).status_code == 200


def test_a_body_that_trickles_is_cut_off_and_holds_nobody_up(made, monkeypatch):
    monkeypatch.setattr(protocol, "BODY_SECONDS", 0.5)
    service = Service.load(made.model, made.certificate)
    with listening(app(service)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        body = json.dumps({"instances": made.rows[:1].tolist()}).encode()
        head = head_of(body)
        slow = []
        for _ in range(150):  # more than are answered at once
            one = socket.create_connection((host, int(port)))
            one.sendall(head + body[:10])
            slow.append(one)
        assert ask(url, made.rows[:2]).status_code == 200
        for one in slow:
            one.settimeout(30)
            got = b""
            while b"\r\n\r\n" not in got or b"}" not in got:
                part = one.recv(65536)
                if not part:
                    break
                got += part
            assert got.startswith(b"HTTP/1.1 408 ")
            assert b"application/problem+json" in got
            assert b"within 0.5 s" in got
            one.close()
        assert b'safexplain_requests_total{operation="explain",status="408"} 150.0' in service.metrics.text()[0]
