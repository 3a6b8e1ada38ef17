"""A platform's server in processes of its own, all that it says to anybody, and numbers that must not be in that."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from captum.attr import InputXGradient
from servers import wait_until

from safexplain.loading import load_model

ROOT = Path(__file__).parents[3]


class Server:
    """Replicas that share a ledger, asked in turn, and what they have answered.

    Args:
        urls: of each replica, or one behind which the platform has its own.
        ledger: the SQLite file of their ledger.
        logs: folder of their logs.
    """

    def __init__(self, urls: Sequence[str], ledger: Path, logs: Path) -> None:
        self.url, self.ledger, self.logs = urls[0], ledger, logs
        self.said: list[bytes] = []
        self._turns = itertools.cycle(urls)

    def ask(self, path: str, payload: Any = None, client: str = "", **headers: str) -> httpx.Response:
        """The response to a POST of JSON (bytes as they are), or to a GET without a payload; "" sends no header."""
        given = {"Content_Type": "application/json", "X_Client_Id": client, **headers}
        sent = {name.replace("_", "-"): value.encode() for name, value in given.items() if value}
        body = (
            payload
            if payload is None or isinstance(payload, bytes)
            else json.dumps(payload, default=np.ndarray.tolist).encode()
        )
        method = "GET" if body is None else "POST"
        response = httpx.request(method, next(self._turns) + path, content=body, headers=sent, timeout=60)
        self.said.append(everything(response))
        return response

    def logged(self) -> bytes:
        """Every byte of the logs."""
        return b"\n".join(file.read_bytes() for file in self.logs.rglob("*") if file.is_file())

    def heard(self) -> bytes:
        """Every byte of responses and logs."""
        return b"\n".join([*self.said, self.logged()])


def everything(response: httpx.Response) -> bytes:
    """Head and body."""
    head = b"\n".join(name + b": " + value for name, value in response.headers.raw)
    return head + b"\n\n" + response.content


def environment(**more: str) -> dict[str, str]:
    """For a process that serves this repository's package, with no settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAFEXPLAIN_", "MLSERVER_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


@contextmanager
def running(
    commands: dict[int, Sequence[str]], folder: Path, ledger: Path, ready: str, **more: str
) -> Iterator[Server]:
    """Servers, from when all of them answer `ready` with 200.

    Args:
        commands: by their port, the arguments of this Python that start each.
        folder: where they run; their logs are in its folder `logs`.
        ledger: that they share.
        ready: path that tells.
        more: environment variables.
    """
    logs = folder / "logs"
    logs.mkdir()
    with ExitStack() as stack:
        for port, command in commands.items():
            out = stack.enter_context((logs / f"{port}.log").open("wb"))
            process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment(**more), stdout=out, stderr=subprocess.STDOUT
            )
            stack.callback(_stop, process)
        server = Server([f"http://127.0.0.1:{port}" for port in commands], ledger, logs)

        def answered() -> bool:
            assert process.poll() is None, server.logged().decode()
            with suppress(httpx.TransportError):
                return all(httpx.get(f"http://127.0.0.1:{port}{ready}", timeout=5).is_success for port in commands)
            return False

        wait_until(answered, 120, f"not ready: {server.logged().decode()}")
        yield server


def _stop(process: subprocess.Popen[bytes]) -> None:
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
            mantissa, exponent = f"{abs(value):.7e}".split("e")  # the last digit may be rounded, and is not sought
            scientific = rf"{re.escape(mantissa[:-2])}\d*e{exponent[0]}0?{int(exponent[1:])}\b".encode()
            raw = [np.float32(value).tobytes(), np.float64(value).tobytes()]
            if any(form in heard for form in (plain.encode(), *raw)) or re.search(scientific, heard):
                leaked.append(f"{name} {value}")
    return leaked
