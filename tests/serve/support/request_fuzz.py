"""Requests that are nearly right."""

from __future__ import annotations

import json
import random

from servers import EXPLAIN, INFER, PREDICT

PATHS = (EXPLAIN, PREDICT, INFER)


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
