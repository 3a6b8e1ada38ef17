"""examples/serve/nginx.conf, in a real nginx: who asks is who authenticated, and nobody holds a connection for long."""

import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from servers import EXPLAIN, free_port, listening, wait_until

from tests.serve.platforms.servers import ROOT

if shutil.which("nginx") is None:
    pytest.skip("there is no nginx", allow_module_level=True)

BODY = {"instances": [[0.5]]}


@pytest.fixture(scope="module")
def seen():
    """The headers of every request that the service behind the gateway has seen."""
    return []


@pytest.fixture(scope="module")
def gateway(seen, tmp_path_factory):
    """The file as it is, but for its place, its certificate and shorter waits."""

    async def service(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"{}"})

    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    (folder / "clients").write_text("ann:{PLAIN}sesame\nbob:{PLAIN}chocolate\n")
    with listening(service) as upstream:
        text = (ROOT / "examples/serve/nginx.conf").read_text()
        for given, own in {
            r"listen 443 ssl;": f"listen 127.0.0.1:{port};",
            r"ssl_certificate.*;": "",
            r"127\.0\.0\.1:8000": upstream.partition("//")[2],
            r"/etc/nginx/clients": str(folder / "clients"),
            r"(client_(header|body)_timeout) 10s;": r"\1 1s;",
            r"http \{": f"http {{ access_log {folder}/access.log; client_body_temp_path {folder}/body;",
        }.items():
            text, changes = re.subn(given, own, text)
            assert changes, given
        (folder / "nginx.conf").write_text(text)
        own = f"daemon off; user root; pid {folder}/pid; error_log {folder}/error.log;"
        files = ["-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
        command = ["nginx", "-p", str(folder), *files, "-g", own]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

        def answers() -> bool:
            assert process.poll() is None, (folder / "error.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        try:
            wait_until(answers, 20)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def until_closed(gateway: str, sent: bytes) -> tuple[float, bytes]:
    """Seconds until the gateway closes a connection on which nothing follows, and what it says."""
    begun, said = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", int(gateway.rpartition(":")[2])), 20) as one:
        one.sendall(sent)
        while part := one.recv(4096):
            said += part
    return time.monotonic() - begun, said


def test_the_client_is_who_authenticated_and_no_header_of_a_client_reaches_the_service(gateway, seen):
    forged = {
        "X-Client-Id": "bob",
        "x_client_id": "bob",
        "Cookie": "session=1",
        "X-Forwarded-User": "bob",
        "Origin": "x",
    }
    assert httpx.post(gateway + EXPLAIN, json=BODY, auth=("ann", "sesame"), headers=forged).status_code == 200
    assert seen[-1].pop("content-length")
    assert seen[-1].pop("host")
    assert seen[-1] == {"content-type": "application/json", "x-client-id": "ann"}


def test_nobody_asks_without_a_password_or_elsewhere_or_too_much(gateway, seen):
    before = len(seen)
    ann = ("ann", "sesame")
    for auth in (None, ("ann", "chocolate"), ("eve", "")):
        assert httpx.post(gateway + EXPLAIN, json=BODY, headers={"X-Client-Id": "bob"}, auth=auth).status_code == 401
    for path in (
        "/metrics",
        "/docs",
        "/v2/repository/models/model/unload",
        "/v1/models/model:explain/../../../metrics",
    ):
        assert httpx.get(gateway + path, auth=ann).status_code == 404
    assert httpx.get(gateway + EXPLAIN, auth=ann).status_code == 403
    assert httpx.post(gateway + EXPLAIN, content=b" " * (3 << 20), auth=ann).status_code == 413
    assert len(seen) == before


@pytest.mark.parametrize(
    "sent",
    [
        b"POST " + EXPLAIN.encode() + b" HTTP/1.1\r\nHost: here\r\nX-Slow:",
        b"POST " + EXPLAIN.encode() + b" HTTP/1.1\r\nHost: here\r\nAuthorization: Basic YW5uOnNlc2FtZQ==\r\n"
        b'Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"instances":',
    ],
    ids=["head", "body"],
)
def test_half_a_request_is_closed_in_time_and_unseen_by_the_service(gateway, seen, sent):
    before = len(seen)
    seconds, said = until_closed(gateway, sent)
    assert seconds < 5
    assert b"200" not in said
    assert len(seen) == before


def test_a_client_beyond_its_rate_is_a_429_and_another_is_not(gateway):
    with httpx.Client(auth=("ann", "sesame")) as client:
        statuses = [client.post(gateway + EXPLAIN, json=BODY).status_code for _ in range(120)]
    assert statuses[0] == 200
    assert set(statuses) == {200, 429}
    assert httpx.post(gateway + EXPLAIN, json=BODY, auth=("bob", "chocolate")).status_code == 200
