"""The service of hardened explanations beside the same service with plain Captum: requests a second and waiting times.

Three servers with the same HTTP application, each in a process of its own with one thread of PyTorch: the hardened
service; Captum's explainer of the same model behind the same reading, checks and batches; and one that answers the
shape of what came. All run in turn in every round, and ratios are taken within a round. `--before PATH` adds a checkout
of an earlier version. Targets on ResNet-18: at least .9 times as many requests as Captum's, and remembered answers at
least 20 times as often as computed ones from one client.

    python -m audit.benchmarks.serving [--rounds 4] [--seconds 1.5] [--only NAME] [--before PATH] [--out FILE]
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
import torch
from captum.attr import InputXGradient
from torch import Tensor, nn

from safexplain.serve.budget import Limits
from safexplain.serve.http import app
from safexplain.serve.inputs import Bounds
from safexplain.serve.service import Answer, Batches, Metrics, Problem, Service, problem_of

from ..shared.run import ROOT, finish
from .harness import Benchmark, at_least, use_threads

CLIENTS = (1, 8, 64)
KINDS = ("captum", "hardened", "echo")
TARGETS = {"hardened": 0.9, "remembered": 20.0}
PUBLIC = 50


@dataclass(frozen=True)
class Setting:
    """A model, explained by InputXGradient."""

    shape: tuple[int, ...]  # of one input
    network: Callable[[], nn.Module]  # makes the model
    longer: float = 1.0  # windows are so many times as long

    def public(self) -> np.ndarray:
        """Rows for the search of near-duplicates."""
        return np.random.default_rng(1).random((PUBLIC, *self.shape), np.float32)


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(weights=None)  # type: ignore[no-any-return]


def digits() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


SETTINGS = {
    "ResNet-18, 3 x 224 x 224, InputXGradient": Setting((3, 224, 224), resnet, 2.0),
    "ResNet-18, 3 x 64 x 64, InputXGradient": Setting((3, 64, 64), resnet),
    "digits MLP, 64, InputXGradient": Setting((64,), digits),
}


class Plain:
    """Captum behind the same application: what `app` asks of a service, without anything that protects."""

    name, digest, uncertified = "model", "0" * 64, True

    @property
    def now(self) -> Plain:
        """What a reload would exchange."""
        return self

    def __init__(self, setting: Setting, model: nn.Module) -> None:
        self.shape, self.bounds, self.metrics = setting.shape, Bounds.of(setting.shape, 64), Metrics()
        self._model, self._explainer, self._batches = model, InputXGradient(model), Batches()

    def _computed(self, x: Tensor) -> list[tuple[int, np.ndarray]]:
        with torch.no_grad():
            target = self._model(x).argmax(1)
        maps = self._explainer.attribute(x.requires_grad_(), target=target).detach().numpy()
        return list(zip(target.tolist(), maps, strict=True))

    def record_problem(self, operation: str, client: str, error: BaseException) -> Problem:
        """Nothing is recorded."""
        return problem_of(error)

    def explain(self, x: Any, *, client: str) -> Answer:
        """As the service, unhardened."""
        array = np.asarray(x, np.float32)
        if array.shape[1:] != self.shape or not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ValueError("expected numbers from 0 to 1 of the right shape")
        waiting: Future[Any] = self._batches.submit(self._computed, torch.from_numpy(array))
        found = waiting.result(600)
        maps = np.stack([m for _, m in found])
        return Answer(maps, np.array([label for label, _ in found]), self.digest, True)

    def close(self) -> None:
        """Stop."""
        self._batches.close()


class Echo(Plain):
    """Reads and writes, and computes nothing."""

    def explain(self, x: Any, *, client: str) -> Answer:
        """The shape of the inputs."""
        return Answer([list(np.asarray(x).shape)], np.zeros(1, np.int64), self.digest, True)


def serve(kind: str, name: str, port: int, folder: str) -> None:
    """One server, until it is stopped."""
    import uvicorn

    use_threads(1)
    torch.manual_seed(0)
    setting = SETTINGS[name]
    model = setting.network().eval()
    if kind == "hardened":
        service: Any = Service.load(
            model, None, uncertified=True, explainer="InputXGradient", input_shape=setting.shape, input_range=(0, 1),
            public=setting.public(), ledger=f"sqlite:///{folder}/ledger.db",
            limits=Limits(questions=10**9, looks=10**9), timeout=600.0,
        )  # fmt: skip
    else:
        service = (Plain if kind == "captum" else Echo)(setting, model)
    made = app(service)
    gc.collect()
    gc.freeze()  # as `safexplain serve` does
    uvicorn.run(made, port=port, log_level="error", access_log=False)


class Server:
    """A server in a process of its own; `before` is the hardened one of the checkout at `root`."""

    ticks: ClassVar[int] = os.sysconf("SC_CLK_TCK")

    def __init__(self, kind: str, name: str, folder: str, root: Path = ROOT) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        Path(folder, kind).mkdir()
        options = {"--serve": "hardened" if kind == "before" else kind, "--port": str(self.port), "--only": name,
                   "--folder": f"{folder}/{kind}"}  # fmt: skip
        command = [sys.executable, "-m", "audit.benchmarks.serving", *itertools.chain(*options.items())]
        self.process = subprocess.Popen(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})

    def wait(self, seconds: float = 120.0) -> None:
        """Until it answers."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise RuntimeError("the server did not start")

    def seconds(self) -> float:
        """Of processor time until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / self.ticks

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(60)


class Bodies:
    """Requests that differ in one number of one image; made without writing an image anew."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        image = np.random.default_rng(0).integers(0, 256, shape) / 255
        image.flat[-1] = 0.5
        text = orjson.dumps({"instances": [image.round(4).tolist()]})
        self.before, _, self.after = text.rpartition(b"0.5")
        self.numbers = itertools.count(1)

    def new(self) -> bytes:
        """One that nobody has asked."""
        return self.old(next(self.numbers))

    def old(self, i: int) -> bytes:
        """The i-th."""
        return b"%s0.%07d%s" % (self.before, i, self.after)


async def ask(reader: Any, writer: Any, client: int, body: bytes) -> float:
    """Seconds until an answer is there whole."""
    begun = time.perf_counter()
    head = (
        "POST /v1/models/model:explain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"X-Client-Id: client-{client}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode())
    writer.write(body)
    await writer.drain()
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
    got = await reader.readexactly(length)
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise RuntimeError(f"{answer[:200]!r} {got[:300]!r}")
    return time.perf_counter() - begun


async def load(port: int, clients: int, seconds: float, body: Callable[[], bytes]) -> tuple[list[float], float]:
    """Waiting times of all requests that were begun within these seconds, and how long it took to answer them all."""
    waits: list[float] = []
    begun = time.perf_counter()

    async def one(client: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
        while not waits or time.perf_counter() - begun < seconds:
            waits.append(await ask(reader, writer, client, body()))
        writer.close()

    await asyncio.gather(*(one(i) for i in range(clients)))
    return waits, time.perf_counter() - begun


@contextlib.contextmanager
def running(name: str, before: Path | None) -> Iterator[dict[str, Server]]:
    """The servers of a setting."""
    with tempfile.TemporaryDirectory() as folder:
        servers = {kind: Server(kind, name, folder) for kind in KINDS}
        if before is not None:
            servers["before"] = Server("before", name, folder, before)
        try:
            for server in servers.values():
                server.wait()
            yield servers
        finally:
            for server in servers.values():
                server.stop()


def measure(name: str, rounds: int, seconds: float, before: Path | None = None) -> dict[str, Any]:
    """Clients -> what each server did, and that of an earlier version where there is a checkout of it."""
    setting, found = SETTINGS[name], {}
    bodies, last = Bodies(setting.shape), 1
    remembered = itertools.cycle([bodies.old(9_000_000 + i) for i in range(last)])
    with running(name, before) as servers:

        def window(kind: str, clients: int, seconds: float) -> dict[str, Any]:
            server = servers["hardened" if kind == "remembered" else kind]
            make = (lambda: next(remembered)) if kind in ("remembered", "echo") else bodies.new
            start = server.seconds()
            waits, took = asyncio.run(load(server.port, clients, seconds, make))
            return {"waits": waits, "rate": len(waits) / took, "cpu": (server.seconds() - start) / len(waits)}

        computing = [kind for kind in servers if kind != "echo"]
        for kind in servers:  # the first explanation, and the first answer of each thread, take longer
            window(kind, 8, 0.2)
        for clients in CLIENTS:
            for i in range(clients):  # every client has asked the remembered questions
                asyncio.run(_prime(servers["hardened"].port, i, [next(remembered) for _ in range(last)]))
            windows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in (*servers, "remembered")}
            for i in range(rounds):
                for kind in computing if i % 2 == 0 else computing[::-1]:
                    windows[kind].append(window(kind, clients, seconds * setting.longer))
                for kind in ("remembered", "echo"):
                    windows[kind].append(window(kind, clients, seconds / 2))
            found[str(clients)] = summary(windows)
            print(f"{name}, {clients} clients: {found[str(clients)]}", file=sys.stderr, flush=True)
    return found


async def _prime(port: int, client: int, bodies: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 26)
    for body in bodies:
        await ask(reader, writer, client, body)
    writer.close()


def summary(windows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians and quartiles over rounds."""
    made: dict[str, Any] = {}
    for kind, each in windows.items():
        waits = [1e3 * wait for one in each for wait in one["waits"]]
        made[kind] = {
            "requests": len(waits),
            "requests_a_second": _quartiles([one["rate"] for one in each]),
            "p50_ms": round(float(np.quantile(waits, 0.5)), 2),
            "p99_ms": round(float(np.quantile(waits, 0.99)), 2),
            "processor_ms": _quartiles([1e3 * one["cpu"] for one in each]),
        }
    pairs = {"hardened_to_captum": ("hardened", "captum"), "remembered_to_computed": ("remembered", "hardened")}
    if "before" in windows:
        pairs["hardened_to_before"] = ("hardened", "before")
    for label, (one, other) in pairs.items():
        rates = [a["rate"] / b["rate"] for a, b in zip(windows[one], windows[other], strict=True)]
        times = [b["cpu"] / max(a["cpu"], 1e-6) for a, b in zip(windows[one], windows[other], strict=True)]
        made[label] = {"rate": _quartiles(rates), "processor": _quartiles(times)}
    return made


def _quartiles(values: list[float]) -> dict[str, float]:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


def judged(results: dict[str, Any]) -> dict[str, Any]:
    """Targets on ResNet-18, and what was reached."""
    targets: dict[str, Any] = {}
    for name, found in results.items():
        if name.startswith("ResNet"):
            worst = min(found[str(n)]["hardened_to_captum"]["rate"]["median"] for n in CLIENTS)
            targets[f"{name}: hardened / Captum"] = at_least(TARGETS["hardened"], worst)
            times = found["1"]["remembered_to_computed"]["rate"]["median"]
            targets[f"{name}: remembered / computed, one client"] = at_least(TARGETS["remembered"], times)
    return targets


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when the targets are met, 1 otherwise."""
    run = Benchmark(
        "serving",
        __doc__,
        argv,
        rounds=4,
        seconds={"type": float, "default": 1.5, "help": "of one window; of those of a large model twice that"},
        only={"choices": SETTINGS, "help": "one setting"},
        before={"type": Path, "metavar": "PATH", "help": "checkout of an earlier version, to run beside"},
        serve={"choices": KINDS, "help": SUPPRESS},
        port={"type": int, "help": SUPPRESS},
        folder={"default": ".", "help": SUPPRESS},
    )
    options = run.options
    if options.serve:
        serve(options.serve, options.only, options.port, options.folder)
        return 0
    if options.quick:
        options.only, options.seconds = "digits MLP, 64, InputXGradient", 0.1
    results = {
        name: measure(name, options.rounds, options.seconds, options.before)
        for name in ([options.only] if options.only else SETTINGS)
    }
    what = "Hardening.recommended(), one thread, one worker, micro-batches of at most 32 rows"
    return run.conclude({"what": what, "seconds_each": options.seconds, "results": results}, judged(results))


if __name__ == "__main__":
    finish(main)
