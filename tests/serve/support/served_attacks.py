"""Attacks of a security team on a running service; docs/evidence/red_team.md says what they gained from version 0.2.0.

Each attack starts the real command, `safexplain serve` or `mlflow models serve`, and speaks HTTP to it as a client whom
nobody chose; memory and processor time are the server's own, from /proc (Linux). Servers with the same settings are
shared by attacks, which ask under names of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from served_digits import digits
from servers import EXPLAIN, INFER, PREDICT
from sklearn.datasets import load_digits
from torch import Tensor, nn

from safexplain._digest import file_sha256, model_digest
from safexplain._versions import versions
from safexplain.hardening.hardening import Hardening
from safexplain.loading import load_model
from safexplain.verdict.certificate.sign import sign_certificate
from safexplain.verdict.certificate.write import statement, write_json
from safexplain.verdict.evidence import Control, Evidence
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.policy import Policy
from safexplain.verdict.words import written

ROOT = Path(__file__).resolve().parents[3]
MB = 10**6
BUDGET = 100
"""Questions of a client at the shared server."""

Found = tuple[str, dict[str, Any], bool]
"""What an attack gains, in words; the numbers behind it; whether it fails as it must."""

Rows = NDArray[np.float32]


# ------------------------------------------------------------------------------------------------ files


@cache
def folder() -> Path:
    """For files and servers of this process; removed at its end."""
    made = Path(tempfile.mkdtemp(prefix="safexplain-red-team-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


class Slow(nn.Module):
    """Multiplies matrices for a while, for each row.

    Args:
        size: of the matrices.
        times: products.
    """

    def __init__(self, size: int, times: int) -> None:
        super().__init__()
        self.times, self.first, self.last = times, nn.Linear(64, size), nn.Linear(size, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 10) logits."""
        h = self.first(x)
        square = torch.softmax(h.unsqueeze(1) * h.unsqueeze(2), 2)
        for _ in range(self.times):
            square = square @ square
        return self.last(square.sum(1))  # type: ignore[no-any-return]


@cache
def model(kind: str = "digits", seed: int = 0) -> Path:
    """A model's file: `digits`, trained; `slow`, 1 s a row; `busy`, 10 ms a row; `large`, 60 MB."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net: nn.Module = {
            "digits": lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
            "slow": lambda: Slow(1500, 5),
            "busy": lambda: Slow(300, 8),
            "large": lambda: nn.Sequential(nn.Linear(64, 3900), nn.ReLU(), nn.Linear(3900, 3900), nn.Linear(3900, 10)),
        }[kind]()
    if kind == "digits":
        x, y = torch.from_numpy(digits()[:400]), torch.from_numpy(load_digits().target[:400])
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    shapes = ({0: torch.export.Dim("batch")},)
    path = folder() / f"{kind}-{seed}.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.rand(3, 64),), dynamic_shapes=shapes), path)
    return path


def certificate(path: Path, of: Path, hardening: Hardening, private_key: Path | None = None) -> Path:
    """A certificate that an audit might have written about a model's file, or a forger: nothing was audited."""
    policy = Policy(claim="whole", patience=(1,))
    evidence = (Evidence("LikelihoodRatio", "l1", "explanation", 1, 45, 60, 30),
                Evidence("LikelihoodRatio", "loss", "loss", 1, 350, 400, 300))  # fmt: skip
    controls = (Control("blind baseline", None, "the inputs are not in the signals", {}),
                Control("null model", False, "the null model tells nothing", {"auc": 0.5}))  # fmt: skip
    judged = Judgement(policy, evidence, 5000, 5000, 16, controls, uses=1)
    content = statement(
        subject={
            of.name: {"safexplainModelDigest": model_digest(load_model(of).model).hex(), "sha256": file_sha256(of)}
        },
        explainer={"method": "InputXGradient", "output": "probability", "options": {}},
        hardening=hardening.to_dict(), audit={**judged.to_dict(), **written(judged)},
        utility=None, materials={}, environment=versions(),
    )  # fmt: skip
    return write_json(path, content if private_key is None else sign_certificate(content, private_key))


@cache
def certified() -> Path:
    """A certificate without signature about the model of digits."""
    return certificate(folder() / "certificate.json", model(), Hardening.recommended())


def keys(name: str) -> tuple[Path, Path]:
    """Files of a new private and public key."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, private, public = Ed25519PrivateKey.generate(), folder() / f"{name}.pem", folder() / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@cache
def public_rows() -> Path:
    """A file of rows that nobody trained on."""
    np.savez(folder() / "public.npz", x=digits()[900:1700], y=np.zeros(800, int))
    return folder() / "public.npz"


# ------------------------------------------------------------------------------------------------ servers


class Server:
    """A command that serves, in a process of its own, from when it answers.

    Args:
        name: of its folder, where its ledger is `ledger.db`.
        command: arguments of this Python; `{port}` and `{folder}` are filled in.
        ready: path that answers 200 once it serves.
        environment: more variables.

    Raises:
        RuntimeError: it ended, or did not answer within three minutes; what it said.
    """

    def __init__(self, name: str, command: Sequence[object], ready: str = "/health/live", **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.folder = folder() / name
        self.folder.mkdir(exist_ok=True)
        self.ready_path, self.url = ready, f"http://127.0.0.1:{self.port}"
        filled = {"{port}": str(self.port), "{folder}": str(self.folder)}
        self.command = [re.sub(r"\{\w+\}", lambda m: filled[m[0]], str(part)) for part in command]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("SAFEXPLAIN_")}
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**kept, "PYTHONPATH": search, "PATH": programs, "OMP_NUM_THREADS": "1", **environment}
        self.environment = {k: v.replace("{folder}", str(self.folder)) for k, v in self.environment.items()}
        self.log = self.folder / "log"
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self.start()

    def start(self) -> None:
        """Start it, or start it again on the same port and ledger."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        for _ in range(1800):
            if self.process.poll() is not None:
                break
            with contextlib.suppress(httpx.HTTPError):
                if self.http.get(self.ready_path).status_code == 200:
                    return
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(self.log.read_text())

    def stop(self, kill: bool = False) -> None:
        """End it."""
        (self.process.kill if kill else self.process.terminate)()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def post(self, path: str, body: bytes, client: str = "", **headers: str) -> httpx.Response:
        """The response to these bytes; `content_type=""` sends none."""
        given = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        named = [(k.encode(), v.encode()) for k, v in given.items() if v]
        named += [(b"x-client-id", client.encode())] if client else []
        return self.http.post(path, content=body, headers=named)

    def ask(self, rows: Rows, client: str = "", path: str = EXPLAIN, **headers: str) -> httpx.Response:
        """The response to a question in V1."""
        return self.post(path, json.dumps({"instances": rows.tolist()}).encode(), client, **headers)

    def processes(self) -> list[Path]:
        """/proc of the server and of all that it started."""
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError):
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
                found.append(Path(f"/proc/{pid}"))
        return found

    def memory(self, field: str = "VmRSS") -> int:
        """Bytes, now or (VmHWM) at the most."""
        texts = [(process / "status").read_text() for process in self.processes()]
        return sum(1024 * int(n) for text in texts for n in re.findall(rf"{field}:\s+(\d+)", text))

    def peak(self, call: Callable[[], object]) -> int:
        """The most bytes during a call beyond those before it."""
        for process in self.processes():
            (process / "clear_refs").write_text("5")
        before = self.memory()
        call()
        return self.memory("VmHWM") - before

    def seconds(self) -> float:
        """Of processor time until now."""
        texts = [(process / "stat").read_text().rpartition(")")[2].split() for process in self.processes()]
        return sum(int(text[11]) + int(text[12]) for text in texts) / os.sysconf("SC_CLK_TCK")

    def charged(self, client: str | None = None) -> int:
        """Questions of a client, or of all, that the ledger counts."""
        show = [sys.executable, "-m", "safexplain", "ledger", "show", str(self.folder / "ledger.db"), "--json"]
        said = json.loads(subprocess.run(show, env=self.environment, capture_output=True, check=True).stdout)
        return sum(asked for name, asked in said["questions"].items() if client in (None, name))

    def audit_log(self) -> list[dict[str, Any]]:
        """Entries of the file."""
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    def waits_for(self, true: Callable[[], object], seconds: float = 60.0) -> bool:
        """Whether it became true in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if true():
                return True
            time.sleep(0.05)
        return False


def command(*options: object, certificate: Path | None = None, of: Path | None = None) -> list[object]:
    """`safexplain serve` of a model, by default that of digits, as certified or not."""
    right = ["--certificate", certificate] if certificate else ["--uncertified", "--explainer", "InputXGradient"]
    given = ["--model", of or model(), *right, "--port", "{port}", "--ledger", "sqlite:///{folder}/ledger.db"]
    return ["-m", "safexplain", "serve", *given, "--audit-log", "{folder}/audit.log", *options]


@cache
def shared(name: str) -> Server:
    """A server for several attacks, until this process ends.

    `plain`: a certified model of digits, 100 questions a client. `public`: the same with public rows. `signed`: the
    same with a signed certificate, a public key and files that are watched.
    """
    if name == "plain":
        made = Server(name, command("--questions", BUDGET, certificate=certified()))
    elif name == "public":
        given = ("--questions", 100_000, "--public-data", public_rows())
        made = Server(name, command(*given, certificate=certified()))
    else:
        private, public = keys("ours")
        path = certificate(folder() / "signed.json", model(), Hardening.recommended(), private)
        made = Server(name, command("--public-key", public, "--watch", 0.2, certificate=path))
    atexit.register(made.stop)
    return made


def answered(responses: Sequence[httpx.Response]) -> int:
    """How many are answers."""
    return sum(r.status_code == 200 for r in responses)


def at_once(calls: Sequence[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    """Responses to requests that are sent at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


def invented(n: int, seed: int) -> Rows:
    """(n, 64) rows that no other attack asks."""
    return np.random.default_rng(seed).random((n, 64), np.float32)


# ------------------------------------------------------------------------------------------------ memory and time


def texts(n: int) -> str:
    """A list of one long text and many empty ones, 6 n bytes, which NumPy makes 12 n^2 bytes of."""
    return json.dumps(["x" * 3 * n, *[""] * n], separators=(",", ":"))


def padded_texts(quick: bool) -> Found:
    """Texts of unequal length, in V1 and V2, by nobody in particular."""
    server, row = shared("plain"), texts(5_000 if quick else 10_500)
    tensor = f'{{"inputs":[{{"name":"input","shape":[1,64],"datatype":"FP32","data":{row}}}]}}'
    bodies = {EXPLAIN: f'{{"instances":[{row}]}}', PREDICT: f'{{"instances":[{row}]}}', INFER: tensor}
    peaks = {path: server.peak(lambda path=path, body=body: server.post(path, body.encode()))  # type: ignore[misc]
             for path, body in bodies.items()}  # fmt: skip
    text = f"{len(row) / 1e3:.0f} KB: at most {max(peaks.values()) / MB:,.0f} MB more"
    return text, {"bytes": len(row), "peaks": peaks}, max(peaks.values()) < 100 * MB


def by_mlflow(quick: bool) -> Found:
    """Whatever MLflow's own scoring server would take: Parquet, texts, names in the body."""
    from safexplain.serve.mlflow import save_model

    save_model(folder() / "release", model(), certified(), model_config={"limits": {"questions": 5}})
    serve = ["-m", "mlflow", "models", "serve", "--env-manager", "local", "--model-uri", folder() / "release"]
    try:
        Server("mlflow", [*serve, "--port", "{port}"], "/ping").stop()
    except RuntimeError as error:
        held = "safexplain serve --model" in str(error)
        return "its server does not start, and names `safexplain serve`", {"said": str(error)[-200:]}, held
    return "its server is started", {}, False


def small_parts(quick: bool) -> Found:
    """A body of as many empty objects, or zeros, as fit into it."""
    server, size = shared("plain"), (6 if quick else 30) << 20
    peaks, spent = {}, server.seconds()
    for part in ("{},", "0,"):
        body = b'{"instances":[' + part.encode() * (size // len(part)) + b"0]}"
        peaks[part] = server.peak(lambda body=body: server.post(EXPLAIN, body))  # type: ignore[misc]
    spent, most = server.seconds() - spent, max(peaks.values())
    text = f"{size >> 20} MiB: {most / MB:,.0f} MB more, {spent:.1f} s of processor time for both"
    return text, {"bytes": size, "peaks": peaks, "seconds": spent}, most < 3 * size


def begun(server: Server, text: bytes) -> socket.socket:
    """A connection on which a request was begun; closed where the server no longer reads."""
    one = socket.create_connection(("127.0.0.1", server.port), 1)
    with contextlib.suppress(OSError):
        one.sendall(text)
    return one


def is_open(one: socket.socket) -> bool:
    """Whether the server waits for more, and has neither answered nor hung up."""
    one.settimeout(0.01)
    try:
        one.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def unfinished(quick: bool) -> Found:
    """Bodies of 31 MiB that end a byte too early, at the same time."""
    server, n, size = shared("plain"), 12 if quick else 60, 31 << 20
    head = f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin = head.encode() + b"%x\r\n" % size + b" " * size
    before, open_ones = server.memory(), []
    for _ in range(n):
        open_ones.append(begun(server, begin))
    time.sleep(1)
    held, other = server.memory() - before, server.ask(invented(1, 1), "beside").status_code
    for one in open_ones:
        one.close()
    text = f"{n} bodies: {held / MB:,.0f} MB held; another client's answer: {other}"
    return text, {"bodies": n, "held": held, "another": other}, held < 200 * MB and other == 200


def nested(quick: bool) -> Found:
    """Lists in lists, a thousand deep, in each field of a V2 request."""
    server, deep = shared("plain"), "[" * 1000 + "]" * 1000
    fields = {"name": '"input"', "shape": "[1,1]", "datatype": '"FP32"', "data": "[0]"}
    whole = {"id": '"x"', "outputs": '[{"name":"label"}]', "parameters": "{}"}
    statuses = {}
    for name in (*fields, *whole):
        inputs = ",".join(f'"{k}":{deep if k == name else v}' for k, v in fields.items())
        rest = ",".join(f'"{k}":{deep if k == name else v}' for k, v in whole.items())
        statuses[name] = server.post(INFER, f'{{"inputs":[{{{inputs}}}],{rest}}}'.encode()).status_code
    text = ", ".join(f"`{name}` {status}" for name, status in statuses.items())
    return text, statuses, set(statuses.values()) <= {413, 422}


def half_sent_headers(quick: bool) -> Found:
    """Connections whose headers never end, and a client beside them."""
    server, n, patience = shared("plain"), 50 if quick else 500, 40
    lines = f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nX-Slow: ".encode()
    waiting = [begun(server, lines) for _ in range(n)]
    other = server.ask(invented(1, 2), "beside headers").status_code
    server.waits_for(lambda: not any(map(is_open, waiting)), patience)
    left = sum(map(is_open, waiting))
    for one in waiting:
        one.close()
    text = f"{left} of {n} are open after {patience} s; another client's answer: {other}"
    return text, {"open": left, "of": n, "another": other}, left == 0 and other == 200


# ------------------------------------------------------------------------------------------------ free work, free bits


def slower_than_the_timeout(quick: bool) -> Found:
    """Questions that the server gives up on after .3 s, while it works on them."""
    n = 3 if quick else 6
    settings = {"model": str(model("slow")), "uncertified": True, "explainer": "InputXGradient", "timeout": 0.3,
                "limits": {"questions": BUDGET}, "ledger": "sqlite:///{folder}/ledger.db"}  # fmt: skip
    factory = ["-m", "uvicorn", "--factory", "safexplain.serve.http:from_environment", "--port", "{port}"]
    server = Server("slow", factory, SAFEXPLAIN_SERVE=json.dumps(settings))
    try:
        x = invented(n + 1, 3)

        def until_idle() -> float:
            """Seconds of processor time from now until it does nothing."""
            begin = last = server.seconds()
            while True:
                time.sleep(0.5)
                now = server.seconds()
                if now - last < 0.05:
                    return now - begin
                last = now

        begin = server.seconds()
        server.ask(x[:1], "ann")
        until_idle()
        one = server.seconds() - begin
        statuses = [r.status_code for r in at_once([lambda i=i: server.ask(x[i : i + 1], "ann")  # type: ignore[misc]
                                                    for i in range(1, n + 1)])]  # fmt: skip
        after = until_idle()
        charged, again = server.charged("ann"), server.ask(x[:1], "ann").status_code
    finally:
        server.stop(kill=True)
    text = f"{charged} of {n + 1} charged; {after:.0f} s of work after the {n} last had left (one takes {one:.1f} s);"
    text += f" the first, asked again: {again}"
    numbers = {"statuses": statuses, "charged": charged, "seconds_one": one, "seconds_after": after, "again": again}
    return text, numbers, charged >= 1 and again == 200 and after < 2.5 * one


def failing_rows(quick: bool) -> Found:
    """Rows that the model cannot take: a search for the scale at which it overflows, and a flood."""
    server, n, seconds = shared("plain"), 2 * BUDGET if quick else 300, 2 if quick else 10
    row, told = invented(1, 4), list[int]()
    low, high = np.float64(1.0), np.float64(3e38)
    for _ in range(n):
        middle = np.sqrt(low * high) * np.random.default_rng(len(told)).uniform(0.999, 1.001)
        status = server.ask((row * middle).astype(np.float32), "prober").status_code
        told.append(status)
        low, high = (middle, high) if status == 200 else (low, middle) if status == 422 else (low, high)
    bits, until, numbers = sum(s in (200, 422) for s in told), time.monotonic() + seconds, itertools.count(5)

    def flood() -> list[int]:
        found = []
        while time.monotonic() < until:
            found.append(server.ask(1e38 * invented(64, next(numbers)), "flooder").status_code)
        return found

    with ThreadPoolExecutor(8) as pool:
        flooded = [s for one in [pool.submit(flood) for _ in range(8)] for s in one.result()]
    free = sum(s in (200, 422) for s in flooded)
    text = f"{bits} of {n} probes told something, {free} requests of 64 rows reached the model, at a budget of {BUDGET}"
    text += f" ({server.charged('prober')} and {server.charged('flooder')} charged)"
    return text, {"told": bits, "of": n, "floods": free, "refused": len(flooded) - free}, bits <= BUDGET and free <= 1


def full_queue(quick: bool) -> Found:
    """One client with 40 requests of 64 rows at a time, and another who asks 15 times."""
    server = Server("busy", command("--questions", 10**6, of=model("busy")))
    try:
        asked, stop = itertools.count(100_000), time.monotonic() + 600

        def fill() -> None:
            while time.monotonic() < stop:
                with contextlib.suppress(httpx.HTTPError):
                    httpx.post(server.url + EXPLAIN, json={"instances": invented(64, next(asked)).tolist()},
                               headers={"X-Client-Id": "filler"}, timeout=120)  # fmt: skip

        with ThreadPoolExecutor(40) as pool:
            for _ in range(40):
                pool.submit(fill)
            time.sleep(1.5)
            waits, statuses = [], []
            for i in range(5 if quick else 15):
                begin = time.perf_counter()
                statuses.append(server.ask(invented(1, 200_000 + i), "other").status_code)
                waits.append(time.perf_counter() - begin)
                time.sleep(0.2)
            stop = 0.0
            server.stop(kill=True)
    finally:
        server.stop(kill=True)
    refused = sum(s != 200 for s in statuses)
    text = f"{refused} of {len(statuses)} questions of the other refused; the longest wait {max(waits):.1f} s"
    return text, {"refused": refused, "of": len(statuses), "longest": max(waits)}, refused == 0 and max(waits) < 10


def near_duplicates(quick: bool) -> Found:
    """Scripts that dither one image, at a limit of 5 looks, beside somebody who asks images."""
    server, n = shared("public"), 60 if quick else 400
    public, rng = digits()[900:1700], np.random.default_rng(5)
    deviation = public.std(0)
    corners = np.argsort(np.where(deviation > 0, deviation, np.inf))[:8]
    x = digits()[1750]
    noise = np.clip(x + 0.03 * rng.standard_normal((n // 2, 64)), 0, 1).astype(np.float32)
    pixels = np.tile(x, (n, 1))
    pixels[:, corners] = rng.random((n, 8)) * public.max(0)[corners]
    honest = digits()[400 : 600 if quick else 900]
    scripts = {"noise of .03": noise, "eight corner pixels": pixels, "honest images": honest}
    got = {name: [server.ask(one[None], name, PREDICT) for one in rows] for name, rows in scripts.items()}
    shares = {name: answered(responses) / len(responses) for name, responses in got.items()}
    text = "answered: " + ", ".join(f"{answered(r)} of {len(r)} ({name})" for name, r in got.items())
    return text, shares, max(shares["noise of .03"], shares["eight corner pixels"]) <= 0.1 and shares[
        "honest images"
    ] >= 0.99  # fmt: skip


# ------------------------------------------------------------------------------------------------ names and files


def spelled_names(quick: bool) -> Found:
    """One name in full-width letters and with spaces that HTTP does not strip."""
    server, names = shared("plain"), ("spy", "ｓｐｙ", "spy\u2003", "\u00a0spy")
    got = {name: [server.ask(part, name, PREDICT) for part in np.split(invented(BUDGET, 60 + i), 2)]
           for i, name in enumerate(names)}  # fmt: skip
    rows = sum(BUDGET // 2 * answered(r) for r in got.values())
    return f"{rows} questions answered at a budget of {BUDGET}", {"answered": rows}, rows <= BUDGET


def from_a_page(quick: bool) -> Found:
    """What a page on another site can have a browser send: no content type, or somebody's cookies."""
    server, x = shared("plain"), invented(1, 70)
    without = server.ask(x, "page", content_type="").status_code
    cookies = server.ask(x, "page", origin="https://elsewhere.example", cookie="session=1").status_code
    text = f"without a content type {without}; with another site's Origin and a cookie {cookies}"
    return text, {"without": without, "cookies": cookies}, (without, cookies) == (415, 403)


def others_read(quick: bool) -> Found:
    """Another user of the machine opens the ledger, its log and its queue."""
    server = shared("plain")
    server.ask(invented(1, 71), "anybody")
    modes = {path.name: path.stat().st_mode & 0o777 for path in sorted(server.folder.glob("ledger.db*"))}
    open_ones = [name for name, mode in modes.items() if mode & 0o077]
    text = ", ".join(f"`{name}` {mode:04o}" for name, mode in modes.items())
    return text, {name: f"{mode:04o}" for name, mode in modes.items()}, bool(modes) and not open_ones


def named_by_trying(quick: bool) -> Found:
    """Somebody with model, certificate and the audit log asks a server of his own all that might have been asked."""
    server, own = shared("plain"), Server("attacker", command("--questions", 10**6, certificate=certified()))
    try:
        candidates = digits()[: 200 if quick else 1797]
        asked = candidates[:: len(candidates) // 50][:50]
        server.ask(asked, "patient", PREDICT)
        for part in np.split(candidates, range(50, len(candidates), 50)):
            own.ask(part, "attacker", PREDICT)
        mine = {digest for entry in own.audit_log() for digest in entry["questions"]}
    finally:
        own.stop()
    theirs = {d for entry in server.audit_log() if entry.get("client") == "patient" for d in entry["questions"]}
    files = b"".join(path.read_bytes() for path in server.folder.glob("ledger.db*"))
    counts = {"audit log": len(theirs & mine), "ledger": sum(bytes.fromhex(d) in files for d in mine)}
    text = f"named: {counts['audit log']} of {len(theirs)} questions in the audit log, {counts['ledger']} in the ledger"
    return text, counts, not any(counts.values())


@contextlib.contextmanager
def replaced(files: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """Readiness of the server `signed` after files of its options were replaced, which come back at the end."""
    server = shared("signed")

    def readiness() -> dict[str, Any]:
        return dict(server.http.get("/health/ready").json())

    def state() -> tuple[str, str]:
        return readiness()["status"], readiness()["certificate"]

    places = {Path(server.command[server.command.index(option) + 1]): path for option, path in files.items()}
    good, before = {place: place.read_bytes() for place in places}, state()
    for place, path in places.items():
        shutil.copy(path, place)
    server.waits_for(lambda: state() != before)
    try:
        yield readiness()
    finally:
        for place, content in good.items():
            place.write_bytes(content)
        server.waits_for(lambda: state() == before)


def exchanged_key(quick: bool) -> Found:
    """Public key and certificate exchanged for the attacker's while the service runs."""
    before = shared("signed").http.get("/health/ready").json()["certificate"]
    private, public = keys("theirs")
    forged = certificate(folder() / "forged.json", model(), Hardening(), private)
    with replaced({"--public-key": public, "--certificate": forged}) as now:
        taken = now["certificate"] != before
    text = "the attacker's certificate is served" if taken else "refused; the first certificate is served on"
    return text, {"taken": taken, "status": now["status"]}, not taken and now["status"] == "degraded"


def told_reasons(quick: bool) -> Found:
    """Readiness, after a certificate of another model was put in place."""
    shared("signed")
    private = folder() / "ours.pem"
    other = certificate(folder() / "other.json", model(seed=1), Hardening.recommended(), private)
    with replaced({"--certificate": other}) as now:
        said = str(now.get("reload", ""))
    return f"`{said:.60}`", {"said": said}, 0 < len(said) <= 40 and not re.search("[0-9a-f]{12}", said)


def forged_checksum(quick: bool) -> Found:
    """A certificate without signature, its hardening replaced by none and its checksum made anew."""
    forged = certificate(folder() / "unsigned.json", model(), Hardening())
    server = Server("forged", command(certificate=forged))
    said = server.log.read_text()
    server.stop()
    try:
        Server("refused", command("--public-key", keys("ours-too")[1], certificate=forged)).stop()
        refused = False
    except RuntimeError:
        refused = True
    warned = "accident" in said
    text = f"loaded without a key, {'and the log says what that protects from' if warned else 'and nothing is said'};"
    return f"{text} with `--public-key` {'refused' if refused else 'loaded'}", {"warned": warned}, refused and warned


# ------------------------------------------------------------------------------------------------ memory over weeks


def reloads(quick: bool) -> Found:
    """A model of 60 MB, loaded again and again, a question after each."""
    n, path = 5 if quick else 8, folder() / "reloaded.pt2"
    shutil.copy(model("large"), path)
    server = Server("large", command("--watch", 0.1, of=path))
    try:
        sizes: list[int] = []
        for i in range(n + 1):
            server.ask(invented(1, 80 + i), "ann")
            sizes.append(server.memory())
            if i < n:
                loaded, fresh = server.log.read_text().count("now serving"), path.with_suffix(".new")
                shutil.copy(path, fresh)
                os.replace(fresh, path)
                server.waits_for(lambda loaded=loaded: server.log.read_text().count("now serving") > loaded)  # type: ignore[misc]
                time.sleep(0.3)
    finally:
        server.stop()
    grown = sizes[-1] - sizes[n // 2]  # a reload holds two models for a while, and what it took stays with the process
    text = f"{(sizes[-1] - sizes[0]) / MB:+,.0f} MB after {n} reloads, {grown / MB:+,.0f} MB since the middle"
    return text, {"sizes": sizes}, grown < 90 * MB


def many_names(quick: bool) -> Found:
    """A question of each of many names, where near-duplicates are looked for."""
    server, n = shared("public"), 5_000 if quick else 16_000
    part, x, times = n // 10, invented(n, 90), []
    before = server.memory()
    for start in range(0, n, part):
        begin = server.seconds()
        for i in range(start, start + part):
            server.ask(x[i : i + 1], f"name-{i}", PREDICT)
        times.append(1e3 * (server.seconds() - begin) / part)
    grown = server.memory() - before
    text = f"{times[0]:.1f} → {times[-1]:.1f} ms of processor time a question at {n:,} names; {grown / MB:+,.0f} MB"
    slope = 16_000 * float(np.polyfit(np.arange(0, n, part), times, 1)[0])
    return text, {"names": n, "ms": times, "grown": grown, "ms_more_at_16000": slope}, slope < 1.2 and grown < 100 * MB


ATTACKS: tuple[Callable[[bool], Found], ...] = (
    padded_texts, by_mlflow, small_parts, unfinished, nested, half_sent_headers, slower_than_the_timeout, failing_rows,
    full_queue, near_duplicates, spelled_names, from_a_page, others_read, named_by_trying, exchanged_key, told_reasons,
    forged_checksum, reloads, many_names,
)  # fmt: skip
"""What each gains: (small) -> in words, the numbers behind it, and whether it fails as it must."""
