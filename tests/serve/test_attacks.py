"""What nobody should send, and what nobody should get: malformed requests, and markers through HTTP."""

import base64
import json
import logging
import random
import socket
import subprocess
import sys

import anyio
import httpx
import numpy as np
import pytest
import torch
from captum.attr import InputXGradient
from memory import peak_of
from served_digits import KEY
from servers import EXPLAIN, INFER, PREDICT, ask, listening

from safexplain.errors import RequestError
from safexplain.loading import load_model
from safexplain.outputs import Probability
from safexplain.serve import Limits, Service, app, protocol
from safexplain.serve.inputs import numbers
from safexplain.testing import find_markers, planted
from safexplain.testing.markers import MARKER_NUMBER, PLANTS

PATHS = (EXPLAIN, PREDICT, INFER)
PLENTY = Limits(questions=10**9, looks=10**9)
HOSTILE = [
    b"", b"null", b"0", b'""', b"\x00", b"\xff\xfe", b"\xef\xbb\xbf{}", b"1e", b'{"instances":[[NaN]]}',
    b'{"instances":[[1e999]]}', b'{"instances":[[%s]]}' % (b"9" * 5000), b'{"instances":[[null]]}',
    b'{"instances":"\\ud800"}', b'{"instances":[[1]],"instances":[[2]]}', b'{"instances":[[1]]',
    b'{"instances":{"0":[1]}}', b'{"instances":[{"b64":"AAAA"}]}', b'{"instances":[[1]]}x',
    b'{"__proto__":{},"instances":[]}', b"[" * 100_000, b'{"a":' * 5000,
    b'{"instances":' + b"[" * 900 + b"]" * 900 + b"}", b'{"instances":' + b"[" * 70 + b"1" + b"]" * 70 + b"}",
    b'{"inputs":[{}]}', b'{"inputs":[[]]}', b'{"id":{"a":1},"inputs":[]}', b'{"inputs":[],"parameters":[1]}',
    *(b'{"inputs":[{"name":"input","shape":%s,"datatype":"FP32","data":%s}]}' % pair for pair in (
        (b"[2147483647,2147483647]", b"[]"), (b"[2147483647,0]", b"[]"), (b"[0]", b"[]"), (b"[1.0,64]", b"[1]"),
        (b"[1,1,1,1,1,1,1,1]", b"[1]"), (b"[1,64]", b"[[1],[2,3]]"), (b"[1]", b'{"a":1}'))),
    b'{"inputs":[{"name":{"a":1},"shape":[1],"datatype":"FP32","data":[1]}],"outputs":[{"name":["label"]}]}',
]  # fmt: skip
"""Each is sent on every path."""


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


LISTED = {
    "explanations", "predictions", "model_name", "model_version", "id", "outputs", "parameters",
    "type", "title", "status", "detail", "instance", "field", "renews",
}  # fmt: skip
"""What may stand at the top of an answer or a refusal."""


def check(response: httpx.Response, sent: object) -> int:
    """Answered with what is listed, or refused in the words of this package."""
    assert response.status_code < 500, (sent, response.text)
    assert set(content := response.json()) <= LISTED, (sent, content)
    assert {output["name"] for output in content.get("outputs", ())} <= {"explanation", "label"}, (sent, content)
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/problem+json", sent
        problem = response.json()
        assert problem["status"] == response.status_code
        assert problem["type"].startswith("urn:safexplain:problem:")
        for word in ("Traceback", 'File "', ".py", "numpy", "torch", "Error("):
            assert word not in problem["detail"].replace(str(sent), ""), (sent, problem)
    return response.status_code


def send_all(service, requests) -> dict[int, int]:
    """Statuses and how often, with nothing between application and client."""
    seen: dict[int, int] = {}

    async def run() -> None:
        transport = httpx.ASGITransport(app(service), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for method, path, headers, body in requests:
                pairs = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
                status = check(await client.request(method, path, headers=pairs, content=body), (path, body[:300]))
                seen[status] = seen.get(status, 0) + 1

    anyio.run(run)
    return seen


@pytest.fixture
def service(made):
    with Service.load(made.model, made.certificate, limits=PLENTY) as one:
        yield one


def test_hostile_bodies_are_problems(service, caplog):
    """Whatever the path; the log names no traceback."""
    json_headers = {"content-type": "application/json"}
    seen = send_all(service, [("POST", path, json_headers, body) for path in PATHS for body in HOSTILE])
    assert set(seen) <= {200, 413, 422}  # one of no rows is answered
    assert seen[422] > 80
    assert "Traceback" not in caplog.text


def test_malformed_requests_never_break_the_service(service, made, caplog):
    """Requests that are nearly right, wrong in one place or in all."""
    caplog.set_level(logging.ERROR)
    draw, count = random.Random(1000), 1000
    row = made.rows[0].tolist()
    seen = send_all(service, [malformed(draw, row) for _ in range(count)])
    assert set(seen) <= {200, 404, 405, 413, 415, 422}
    assert seen[422] > count / 3
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert np.array_equal(service.explain(made.rows[:1]).label, service.predict(made.rows[:1]).label)


def test_malformed_requests_never_break_a_real_server(service, made, monkeypatch):
    """Over a socket: headers that are none, bodies that end early, and the service goes on."""
    monkeypatch.setattr(protocol, "BODY_SECONDS", 1.0)
    with listening(app(service)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        for raw in (b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x00" * 100, b"A" * 70_000,
                    f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n".encode(),
                    f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode(),
                    f"POST {EXPLAIN} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{".encode()):  # fmt: skip
            with socket.create_connection((host, int(port)), timeout=30) as one:
                one.sendall(raw)
                one.shutdown(socket.SHUT_WR)
                got = b""
                while part := one.recv(65536):
                    got += part
                assert b"Traceback" not in got
                assert not got.startswith(b"HTTP/1.1 5")
        assert ask(url, made.rows[:2]).status_code == 200


def test_texts_of_unequal_length_are_refused_before_numpy_pads_them():
    texts = ["x" * 15_000, *[""] * 5_000]  # 300 MB as an array

    def refuse():
        for values in (texts, [texts]):
            with pytest.raises(RequestError, match="nothing but lists of numbers"):
                numbers(values, "instances")

    assert peak_of(refuse) < 50e6


@pytest.mark.slow
def test_requests_made_from_the_description_of_the_interface_find_no_fault(service, tmp_path):
    pytest.importorskip("schemathesis")
    checks = "not_a_server_error,content_type_conformance,response_schema_conformance"
    with listening(app(service)) as url:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", checks]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--header", "X-Client-Id:ann"]
        done = subprocess.run([*command, "--seed", "0"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_where_no_shape_is_known_what_the_model_cannot_take_is_the_clients_mistake(caplog):
    """Neither file nor certificate says it; the service goes on, and the right shape is answered."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(72, 3))
    rows = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    with (
        Service.load(net.eval(), None, uncertified=True, explainer="InputXGradient", limits=PLENTY) as service,
        listening(app(service)) as url,
    ):
        for wrong in (rows[:, 0], rows[..., :7], rows.reshape(2, -1), rows[0, 0, 0], rows[..., None], rows[..., :0]):
            got = ask(url, wrong)
            assert check(got, wrong.shape) == 422
            assert got.json()["field"] == "input"
            shape = ", ".join(map(str, wrong.shape[1:]))
            assert got.json()["detail"] == f"the model cannot take inputs of shape ({shape})"
        assert ask(url, rows).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def forms(values: np.ndarray, digits: int = 6) -> set[bytes]:
    """Every way in which such a number might be written, where it is like no other."""
    found: set[bytes] = set()
    for number in np.unique(values.ravel()):
        single, double = np.float32(number), float(number)
        texts = {str(single), repr(double), f"{double:.8f}", f"{double:.7g}", f"{double:.{digits}e}", f"{double:.8g}"}
        found |= {t.encode() for t in texts if sum(c in "123456789" for c in t.partition("e")[0]) >= 5}
        found |= {single.tobytes(), single.byteswap().tobytes(), np.float64(double).tobytes()}
    return {text for text in found if len(text) > 3 and len(set(text)) > 2}


def coded(values: np.ndarray) -> set[bytes]:
    """Arrays in base64, at each of the three places where a number can begin."""
    found: set[bytes] = set()
    for kind in ("<f4", "<f8"):
        raw = np.ascontiguousarray(values, kind).tobytes()
        for start in range(3):
            found.add(base64.b64encode(raw[start : start + 24 - (24 % 3)])[:28])
    return found


def test_no_byte_of_any_answer_or_log_holds_a_native_number_an_input_or_a_probability(noisy, caplog, capfd):
    """Answers and errors of every path, and all logs at the lowest level."""
    files = noisy
    x = np.random.default_rng(5).random((6, 64), np.float32)
    model = load_model(files.model).model
    inputs = torch.from_numpy(x)
    with torch.no_grad():
        scores = model(inputs)
    native = InputXGradient(Probability(model)).attribute(inputs.clone().requires_grad_(), target=scores.argmax(1))
    plain = InputXGradient(model).attribute(inputs.clone().requires_grad_(), target=scores.argmax(1))
    secret = [native.detach().numpy(), plain.detach().numpy(), scores.numpy(), scores.softmax(1).numpy(), x]
    caplog.set_level(logging.DEBUG)
    with (
        Service.load(
            files.model, files.certificate, key=KEY, public=files.public, limits=Limits(questions=5, looks=3)
        ) as service,
        listening(app(service)) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        v1 = {"instances": x.tolist()}
        tensor = {"name": "input", "shape": [6, 64], "datatype": "FP32", "data": x.ravel().tolist()}
        answers = []
        for name, part in (("ann", slice(0, 3)), ("ben", slice(3, 6))):
            headers = {"X-Client-Id": name}
            rows = {"instances": x[part].tolist()}
            three = {**tensor, "shape": [3, 64], "data": x[part].ravel().tolist()}
            answers += [client.post(path, json=rows, headers=headers) for path in (EXPLAIN, PREDICT, EXPLAIN)]
            answers += [client.post(INFER, json={"inputs": [three]}, headers=headers)]
        assert {answer.status_code for answer in answers} == {200}
        near = {"instances": [(x[0] + 1e-4 * i).tolist() for i in range(6)]}
        refused = [
            client.post(EXPLAIN, json=v1), client.post(EXPLAIN, json=near, headers={"X-Client-Id": "ann"}),
            client.post(EXPLAIN, json={**v1, "target": 3}),
            client.post(EXPLAIN, json={"instances": [x[0, :5].tolist()]}),
            client.post(INFER, json={"inputs": [{**tensor, "shape": [5, 64]}]}), client.post(EXPLAIN, json=[v1]),
            client.post(INFER, json={"inputs": [{**tensor, "name": str(x[0, 0])[:4]}]}),
            client.post(EXPLAIN, json={"instances": [[*x[0].tolist()[:-1], "a"]]}),
            client.post(EXPLAIN, content=json.dumps(v1)[:-9], headers={"content-type": "application/json"}),
        ]  # fmt: skip
        assert {answer.status_code for answer in refused} <= {422, 429}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Service, "_find", lambda *given: (_ for _ in ()).throw(RuntimeError(str(x), str(native))))
            broken = client.post(EXPLAIN, json={"instances": x[:1].tolist()}, headers={"X-Client-Id": "eve"})
            assert broken.status_code == 500
        others = [client.get(path) for path in ("/metrics", "/health/ready", "/v2/models/model", "/openapi.json")]
        everything = [*answers, *refused, broken, *others]
    said = capfd.readouterr()
    logs = "\n".join(f"{record.getMessage()} {record.exc_text or ''} {record.args}" for record in caplog.records)
    heads = "\n".join(f"{name}: {text}" for answer in everything for name, text in answer.headers.items())
    spoken = (logs + heads + said.out + said.err).encode()
    assert b'"operation": "explain"' in spoken
    assert all(any(text in json.dumps(values.tolist()).encode() for text in forms(values)) for values in secret)
    released = np.concatenate([answer.json()["explanations"] for answer in answers if "explanations" in answer.text])
    given = {text.encode() for number in np.unique(released) for text in (repr(number), str(np.float32(number)))}
    for values in secret:
        wanted = (forms(values) - given) | coded(values)
        for text in wanted:
            assert text not in spoken, text
            for answer in everything:
                assert text not in answer.content, (text, answer.url)


@pytest.mark.parametrize("plant", list(PLANTS))
def test_markers_planted_in_native_answers_never_come_through(made, caplog, plant):
    """Wherever the native explainer puts them: in its numbers, beside them, in itself."""
    caplog.set_level(logging.DEBUG)
    with (
        Service.load(made.model, made.certificate) as service,
        listening(app(service)) as url,
        planted(InputXGradient, "attribute", PLANTS[plant]) as planting,
    ):
        got = [ask(url, made.rows[:3]), httpx.get(url + "/metrics"), httpx.get(url + "/health/ready")]
        assert planting.calls
    for response in got:
        assert not find_markers(response.content)
        assert not find_markers(dict(response.headers))
        if response.status_code == 200 and "explanations" in response.text:
            assert not find_markers(response.json())
    assert str(int(MARKER_NUMBER)) not in caplog.text
    assert not find_markers([record.getMessage() for record in caplog.records])
