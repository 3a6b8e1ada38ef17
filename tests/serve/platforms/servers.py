"""A platform's server in a process of its own, all that it says to anybody, and numbers that must not be in that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from captum.attr import InputXGradient

from safexplain.loading import load_model

ROOT = Path(__file__).parents[3]
JSON = {"Content-Type": "application/json"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@dataclass
class Server:
    """A server that runs, and what it has answered."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]
    said: list[bytes] = field(default_factory=list)

    def ask(self, path: str, payload: Any = None, client: str = "", **headers: str) -> httpx.Response:
        """The response to a POST of JSON (bytes as they are), or to a GET where there is no payload."""
        named = {"X-Client-Id": client} if client else {}
        given = {**named, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if payload is None:
            response = httpx.get(self.url + path, headers=given, timeout=60)
        else:
            body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            response = httpx.post(self.url + path, content=body, headers={**JSON, **given}, timeout=60)
        self.said.append(everything(response))
        return response

    def heard(self) -> bytes:
        """Every byte of responses and of the log."""
        return b"\n".join([*self.said, self.log.read_bytes()])


def everything(response: httpx.Response) -> bytes:
    """Head and body."""
    head = b"\n".join(name + b": " + value for name, value in response.headers.raw)
    return head + b"\n\n" + response.content


def environment(**more: str) -> dict[str, str]:
    """For a process that serves this repository's package, with no settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAFEXPLAIN_", "MLSERVER_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path, port: int, ready: str, **more: str) -> Iterator[Server]:
    """A server on a port, from when `ready` is answered with 200.

    Args:
        command: arguments of this Python.
        folder: where it runs and writes its log.
        port: of HTTP.
        ready: path that tells.
        more: environment variables.
    """
    log = folder / f"server-{port}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment(**more), stdout=out, stderr=subprocess.STDOUT
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        for _ in range(600):
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(server.url + ready, timeout=5).status_code == 200:
                    break
            time.sleep(0.1)
        else:
            raise AssertionError(f"not ready within a minute: {log.read_text()}")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def marked(rows: np.ndarray, seed: int) -> np.ndarray:
    """Inputs whose numbers are seen nowhere else, so that they are found wherever they are copied to."""
    noise = np.random.default_rng(seed).uniform(0.001, 0.03, rows.shape)
    return (rows + noise).astype(np.float32)


def native(model: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    """What must not leave for these inputs: the inputs, the unhardened maps, scores and probabilities."""
    net, inputs = load_model(model).model, torch.from_numpy(x)
    scores = net(inputs).detach()
    maps = InputXGradient(net).attribute(inputs.clone().requires_grad_(), target=scores.argmax(1)).detach()
    return {"input": x, "map": maps.numpy(), "score": scores.numpy(), "probability": scores.softmax(1).numpy()}


def found(numbers: dict[str, np.ndarray], heard: bytes) -> list[str]:
    """Which numbers are in these bytes: as text with six digits or more, or as four or eight bytes."""
    leaked = []
    for name, values in numbers.items():
        for value in values[np.abs(values) > 1e-3].ravel().tolist():
            plain = np.format_float_positional(abs(value), precision=7, fractional=False, unique=False, trim="k")[:-1]
            mantissa, exponent = f"{abs(value):.7e}".split(
                "e"
            )  # the last digit of either may be rounded, and is not sought
            scientific = rf"{re.escape(mantissa[:-2])}\d*e{exponent[0]}0?{int(exponent[1:])}\b".encode()
            raw = [np.float32(value).tobytes(), np.float64(value).tobytes()]
            if any(form in heard for form in (plain.encode(), *raw)) or re.search(scientific, heard):
                leaked.append(f"{name} {value}")
    return leaked
