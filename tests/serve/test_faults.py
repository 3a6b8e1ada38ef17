"""What a service does when something breaks: no answer without a charge, no wrong answer, and it recovers by itself."""

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from served_digits import KEY, certified
from servers import EXPLAIN, Command, ask, listening, wait_until
from torch import nn

from safexplain.errors import CertificateError, SafexplainError
from safexplain.hardening.hardening import Hardening
from safexplain.serve import Limits, Service, app, protocol
from safexplain.serve.questions import Questions

PLENTY = Limits(questions=1_000_000)


def questions(rows, count, seed=0):
    """Distinct inputs near rows."""
    draw = np.random.default_rng(seed)
    picked = rows[draw.integers(len(rows), size=count)]
    return np.clip(picked + 0.05 * draw.random(picked.shape), 0, 1).astype(np.float32)


def is_problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    return response.json()


def head_of(body):
    """Of a request whose body has yet to come."""
    head = f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n"


def maps_in(response):
    """As they were written, in float32."""
    return np.array(response.json()["explanations"], np.float32)


def counted(ledger, client):
    return ledger.counts().get(client, 0)


class Load:
    """Clients that ask one new question after the other until they are stopped.

    Attributes:
        answered: client -> its questions that were answered, as (row, explanation).
        refused: statuses of all others; 0 where the connection broke.
    """

    def __init__(self, url, rows, clients=4):
        self.url, self.stopped = url, threading.Event()
        self.answered = {f"client {i}": [] for i in range(clients)}
        self.refused = []
        self._rows = {name: iter(questions(rows, 20_000, seed)) for seed, name in enumerate(self.answered)}

    def __enter__(self):
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in self.answered]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def count(self):
        return sum(map(len, self.answered.values()))

    def _run(self, name):
        with httpx.Client(timeout=60) as client:
            while not self.stopped.is_set():
                row = next(self._rows[name])
                body = {"instances": [row.tolist()]}
                try:
                    got = client.post(self.url + EXPLAIN, json=body, headers={"X-Client-Id": name})
                except httpx.HTTPError:
                    self.refused.append(0)
                    continue
                if got.status_code == 200:
                    self.answered[name].append((row, got.json()["explanations"][0]))
                else:
                    self.refused.append(got.status_code)


@pytest.mark.slow
def test_a_killed_worker_gave_no_answer_without_its_charge_and_is_replaced(made, tmp_path):
    """Two workers and one ledger; one is killed as by the kernel when memory is short, again and again."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    arguments = ["--model", made.model, "--certificate", made.certificate, "--ledger", url]
    server = Command(tmp_path, [*arguments, "--workers", 2, "--questions", 1_000_000])
    try:
        server.ready()
        wait_until(lambda: server.started() == 2)
        with Load(server.url, made.rows) as load:
            for kill in range(2):
                before = load.count()
                wait_until(lambda b=before: load.count() > b + 40)
                os.kill(server.workers()[0], signal.SIGKILL)
                wait_until(lambda k=kill: server.started() == 3 + k)
            before = load.count()
            wait_until(lambda: load.count() > before + 40)
        assert set(load.refused) <= {0}
        assert len(load.refused) <= 2 * len(load.answered)  # those that the killed worker was at
        with Questions(url) as ledger:
            charged = {name: counted(ledger, name) for name in load.answered}
            for name, answered in load.answered.items():
                for start in range(0, len(answered), 64):
                    part = answered[start : start + 64]
                    again = ask(server.url, np.stack([row for row, _ in part]), name)
                    assert again.json()["explanations"] == [e for _, e in part]
                assert counted(ledger, name) == charged[name]  # each was charged when it was answered
                assert 0 <= charged[name] - len(answered) <= 2  # and besides only what the killed ones were at
            assert ledger.verify()
    finally:
        server.stop()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def postgres(tmp_path):
    """A server and how to stop it at once."""
    pytest.importorskip("psycopg", reason="PostgreSQL is not tested: psycopg is not installed")
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL is not tested: pgserver is not installed")
    from pgserver._commands import pg_ctl

    server = pgserver.get_server(tmp_path / "pg", cleanup_mode="stop")
    yield server, lambda: pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=server.pgdata, user=server.system_user)
    server.cleanup()


def test_without_its_ledger_nothing_is_answered_and_with_it_all_is_again(made, postgres):
    """PostgreSQL goes away and comes back; the service is not restarted."""
    server, stop = postgres
    with Questions(server.get_uri(), timeout=2.0) as ledger:
        service = Service.load(made.model, made.certificate, ledger=server.get_uri())
        with listening(app(service)) as url:
            assert ask(url, made.rows[:2]).status_code == 200
            stop()
            for rows in (made.rows[2:4], made.rows[1:3]):
                problem = is_problem(got := ask(url, rows), 503)
                assert got.headers["retry-after"] == "5"
                assert "ledger" in problem["detail"]
                assert "explanations" not in problem
                assert str(server.pgdata) not in got.text
            assert httpx.get(url + "/health/ready").status_code == 503
            assert httpx.get(url + "/health/live").status_code == 200
            assert ask(url, made.rows[:2]).status_code == 200  # charged before, and remembered
            server.ensure_postgres_running()
            assert ask(url, made.rows[1:4]).status_code == 200
            assert httpx.get(url + "/health/ready").json()["status"] == "ready"
            assert counted(ledger, "ann") == 4
            assert ledger.verify()


@pytest.mark.slow
def test_a_ledger_that_goes_away_under_load_loses_no_charge(made, postgres):
    """What was answered before, between and after is all in the ledger."""
    server, stop = postgres
    with Questions(server.get_uri(), timeout=2.0) as ledger:
        service = Service.load(made.model, made.certificate, ledger=server.get_uri(), limits=PLENTY)
        with listening(app(service)) as url, Load(url, made.rows) as load:
            wait_until(lambda: load.count() > 100)
            stop()
            wait_until(lambda: 503 in load.refused)
            before = load.count()
            time.sleep(1)
            assert load.count() <= before + len(load.answered)
            server.ensure_postgres_running()
            wait_until(lambda: load.count() > before + 100)
        assert set(load.refused) == {503}
        for name, answered in load.answered.items():
            assert counted(ledger, name) >= len({row.tobytes() for row, _ in answered})
            assert counted(ledger, name) <= len(answered) + 2
        assert ledger.verify()


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
            for i in range(6):
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


def test_a_certificate_of_another_model_is_not_taken_over(made, noisy, tmp_path):
    files = made.copy(tmp_path)
    with Service.load(files.model, files.certificate, key=KEY) as service:
        before = service.explain(made.rows[:2]).explanation
        files.certificate.write_bytes(noisy.certificate.read_bytes())
        with pytest.raises(CertificateError):
            service.reload()
        assert service.ready()["status"] == "degraded"
        assert np.array_equal(service.explain(made.rows[:2], client="ben").explanation, before)


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


def test_a_client_that_does_not_read_holds_nobody_up(made):
    """Answers that nobody takes wait in their connections alone."""
    service = Service.load(made.model, made.certificate, limits=PLENTY)
    with listening(app(service)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        body = json.dumps({"instances": questions(made.rows, 64).tolist()}).encode()
        head = head_of(body)
        stuck = []
        for _ in range(20):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((host, int(port)))
            one.setblocking(False)
            for _ in range(5):
                try:
                    one.sendall(head + body)
                except BlockingIOError:
                    break
            stuck.append(one)
        for i in range(20):
            assert ask(url, made.rows[i : i + 1]).status_code == 200
        for one in stuck:
            one.close()


class Gated(nn.Module):
    """Waits until it may answer."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.entered, self.open = threading.Event(), threading.Event()

    def forward(self, x):
        self.entered.set()
        self.open.wait(30)
        return self.net(x)

    def __deepcopy__(self, memo):
        return self
