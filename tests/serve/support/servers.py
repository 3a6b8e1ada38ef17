"""Servers as they run in production: `safexplain serve` in processes of its own, and uvicorn in a thread."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from safexplain.serve.http import Connection

EXPLAIN, PREDICT, INFER = "/v1/models/model:explain", "/v1/models/model:predict", "/v2/models/model/infer"


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_until(true: Callable[[], object], seconds: float = 180.0, what: str = "it did not happen") -> None:
    """Until it is, or an error."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def ask(url: str, rows: np.ndarray, client: str = "ann", **options: Any) -> httpx.Response:
    """The answer to a V1 request."""
    body = {"instances": rows.tolist()}
    return httpx.post(url + EXPLAIN, json=body, headers={"X-Client-Id": client}, timeout=60, **options)


@contextmanager
def listening(application: Any) -> Iterator[str]:
    """An application in a thread, with the connections of `safexplain serve`: its address."""
    server = uvicorn.Server(uvicorn.Config(application, http=Connection, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=30)


class Command:
    """`safexplain serve` and what it says.

    Args:
        folder: for what it says.
        arguments: of the command, but for the port.
        environment: more variables.
    """

    def __init__(self, folder: Path, arguments: Sequence[Any], **environment: str) -> None:
        self.port, self.log = free_port(), folder / "serve.log"
        self.url = f"http://127.0.0.1:{self.port}"
        program = [sys.executable, "-c", "import sys, safexplain.cli; sys.exit(safexplain.cli.main())", "serve"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*program, "--port", str(self.port), *map(str, arguments)],
                stdout=log, stderr=log, cwd=folder, env=os.environ | environment,
            )  # fmt: skip

    def ready(self) -> Command:
        """Once it answers."""
        wait_until(lambda: self.process.poll() is not None or self._live(), what="safexplain serve did not start")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def _live(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(self.url + "/health/live").status_code == 200
        return False

    def started(self) -> int:
        """Workers that ever answered."""
        return self.log.read_text().count("Application startup complete")

    def workers(self) -> list[int]:
        """Process numbers of the workers."""
        pid, found = self.process.pid, []
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def stop(self) -> None:
        """As a supervisor of processes does."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
