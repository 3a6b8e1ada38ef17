"""Thousands of requests that are nearly right, against a running service: no 500, nothing beyond what is listed.

`malformed` writes them; schemathesis makes others from the service's own description at /openapi.json.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import h11
import httpx
from served_attacks import EXPLAIN, INFER, MB, PREDICT, Found, Server, certified, command, digits

PATHS = (EXPLAIN, PREDICT, INFER)

LISTED = {
    EXPLAIN: {"explanations", "uncertified"},
    PREDICT: {"predictions", "uncertified"},
    INFER: {"model_name", "model_version", "id", "outputs", "parameters"},
    "problem": {"type", "title", "status", "detail", "instance", "field", "renews"},
}
"""What may stand at the top of an answer."""

FOREIGN = ("Traceback", 'File "', ".py", "numpy", "torch", "Error(")
"""Words that tell of the code behind the service."""


def value(draw: random.Random, depth: int = 0) -> object:
    """Any JSON value, mostly of the kinds that go wrong."""
    kind = draw.randrange(12 if depth < 6 else 8)
    if kind < 8:
        return draw.choice(
            [None, True, False, 0, -1, 1.5, 1e308, -1e-320, 2**63, 2**64, -(2**63), 10**30, "", "NaN", "1", "\u0000",
             "\U0001f600" * 9, "input", "x" * 400, draw.random(), draw.randrange(1000), [], {}]
        )  # fmt: skip
    if kind < 10:
        return [value(draw, depth + 1) for _ in range(draw.randrange(5))]
    names = ["instances", "inputs", "data", "shape", "name", "target", "__class__", "parameters", "outputs", "id", "é"]
    return {draw.choice(names): value(draw, depth + 1) for _ in range(draw.randrange(5))}


def changed(draw: random.Random, good: object) -> object:
    """A good request in which one thing was replaced."""
    if isinstance(good, dict) and good and draw.random() < 0.9:
        name = draw.choice(sorted(good))
        return {**good, name: changed(draw, good[name])} if draw.random() < 0.8 else {**good, "target": value(draw)}
    if isinstance(good, list) and good and draw.random() < 0.9:
        at = draw.randrange(len(good))
        return [*good[:at], changed(draw, good[at]), *good[at + 1 :]]
    return value(draw)


def malformed(draw: random.Random, row: list[float]) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers and body of a request that is nearly one."""
    path = draw.choice(PATHS)
    tensor = {"name": "input", "shape": [1, len(row)], "datatype": "FP32", "data": row}
    good: object = {"inputs": [tensor], "outputs": [{"name": "label"}]} if path == INFER else {"instances": [row]}
    kind = draw.randrange(8)
    body = json.dumps(value(draw) if kind == 0 else changed(draw, good) if kind < 5 else good).encode()
    headers, method = {"content-type": "application/json", "x-client-id": "ann"}, "POST"
    if kind == 5:
        body = body[: draw.randrange(len(body))] if draw.random() < 0.5 else body.replace(b":", b"", 1)
    elif kind == 6:
        at = draw.randrange(len(body))
        body = body[:at] + bytes(draw.randrange(256) for _ in range(3)) + body[at + 2 :]
    elif kind == 7:
        headers |= draw.choice(
            [{"content-type": "text/plain"}, {"content-type": "\xe9"}, {"content-encoding": "gzip"},
             {"content-length": "99999999999"}, {"x-client-id": "\x7f"}, {"x-client-id": ""},
             {"x-client-id": "\xe9" * 300}, {"content-type": "application/json; charset=utf-7"}]
        )  # fmt: skip
        method, path = draw.choice(["POST", "POST", "POST", "PUT", "DELETE", "GET"]), draw.choice([path, path + "/x"])
    return method, path, headers, body


def wrong(path: str, response: httpx.Response, sent: str) -> str:
    """What is wrong with a response: a server's error, a field that is not listed, words about code; or nothing."""
    if response.status_code >= 500:
        return f"{response.status_code}"
    if response.text == "Invalid HTTP request received.":  # so says uvicorn, before any application
        return ""
    kind, content = response.headers["content-type"], response.json()
    if response.status_code == 200:
        outputs = {o.get("name") for o in content.get("outputs", ())} - {"explanation", "label"}
        beyond = set(content) - LISTED[path] | outputs | set(content.get("parameters", ())) - {"certificate"}
        return f"answered with {sorted(beyond)}" if beyond else ""
    if kind != "application/problem+json" or content["status"] != response.status_code:
        return f"{response.status_code} as {kind}"
    beyond = set(content) - LISTED["problem"]
    said = [word for word in FOREIGN if word in content["detail"].replace(sent, "")]
    return f"a problem with {sorted(beyond)} and {said}" if beyond or said else ""


def mutated(server: Server, count: int) -> tuple[dict[str, int], list[str]]:
    """Statuses of so many malformed requests and how often each came, and what was wrong."""
    draw, row = random.Random(count), digits()[1000].tolist()
    seen: dict[str, int] = {}
    faults: list[str] = []
    for _ in range(count):
        method, path, headers, body = malformed(draw, row)
        pairs = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
        try:
            got = server.http.request(method, path, headers=pairs, content=body)
        except (httpx.LocalProtocolError, h11.LocalProtocolError):  # no client can send it by HTTP
            status = "not sent"
        else:
            status, fault = str(got.status_code), wrong(path, got, str((path, body[:300])))
            faults += [f"{method} {path} {body[:200]!r}: {fault}"] if fault else []
        seen[status] = seen.get(status, 0) + 1
    return seen, faults


def described(server: Server, examples: int) -> str:
    """What schemathesis finds; "" if nothing, or where it is not installed.

    Args:
        server: which.
        examples: for each operation, at most.
    """
    options = {
        "--checks": "not_a_server_error,content_type_conformance,response_schema_conformance",
        "--phases": "examples,coverage,fuzzing",
        "--max-examples": str(examples),
        "--header": "X-Client-Id:ann",
        "--seed": "0",
    }
    run = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
    run += [part for pair in options.items() for part in pair]
    done = subprocess.run(run, cwd=server.folder, capture_output=True, text=True)
    (server.folder / "schemathesis").write_text(done.stdout + done.stderr)
    return "" if done.returncode == 0 else "\n".join(re.findall(r"^- .*", done.stdout, re.MULTILINE)) or done.stdout


def fuzzed(quick: bool) -> Found:
    """Malformed requests and those of schemathesis to one server, and its memory."""
    count = 300 if quick else 10_000
    server = Server("fuzzed", command("--questions", 10**9, certificate=certified()))
    found: dict[str, Any] = {}
    try:
        server.post(EXPLAIN, json.dumps({"instances": digits()[:64].tolist()}).encode())
        peak = server.peak(lambda: found.update(zip(("statuses", "faults"), mutated(server, count), strict=True)))
        has = find_spec("schemathesis") is not None
        faults = [*found["faults"], *filter(None, [described(server, 5 if quick else 200) if has else ""])]
        alive = server.ask(digits()[:1]).status_code == 200
    finally:
        server.stop()
    text = f"{count:,} mutated bodies{' and schemathesis' if has else ''}: {len(faults)} faults, {peak / MB:+,.0f} MB"
    numbers = {"statuses": found["statuses"], "faults": faults[:10], "peak": peak, "schemathesis": has}
    return text, numbers, alive and not faults and peak < 200 * MB
