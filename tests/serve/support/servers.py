"""Servers as they run in production: uvicorn in a thread."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
