"""Payloads: a request holds inputs and nothing else, and an answer what is listed."""

import asyncio
import json
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    InputError,
    LedgerError,
    RefusedError,
    RequestError,
    UnavailableError,
)
from safexplain.serve import Limits, Service, protocol
from safexplain.serve.inputs import Bounds, client_name, numbers
from safexplain.serve.protocol import Intake, metadata_v2
from safexplain.serve.service import problem_of


def plain(reply):
    """The members of a response, as a client reads them."""
    return orjson.loads(orjson.dumps(reply[0], option=orjson.OPT_SERIALIZE_NUMPY))


def explain_v1(*given):
    return plain(protocol.explain_v1(*given))


def infer_v2(*given):
    return plain(protocol.infer_v2(*given))


@pytest.fixture(scope="module")
def service(made):
    with Service.load(made.model, made.certificate, limits=Limits(questions=100_000, looks=100_000)) as loaded:
        yield loaded


def tensor(rows, **changes):
    return {"name": "input", "shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist(), **changes}


def test_v2_gives_the_tensors_that_are_asked_for(service, made):
    rows = made.rows[:2]
    both = infer_v2(service, {"id": "7", "inputs": [tensor(rows)]}, "a")
    assert both["id"] == "7"
    assert both.keys() == {"model_name", "model_version", "id", "outputs", "parameters"}
    assert both["parameters"] == {"certificate": service.digest}
    explanation, label = both["outputs"]
    expected = service.explain(rows, client="a")
    assert (explanation["name"], explanation["datatype"], explanation["shape"]) == ("explanation", "FP32", [2, 64])
    assert explanation["data"] == expected.explanation.ravel().tolist()
    assert label == {"name": "label", "datatype": "INT64", "shape": [2], "data": expected.label.tolist()}
    one = infer_v2(service, {"inputs": [tensor(rows)], "outputs": [{"name": "label"}]}, "a")
    assert [output["name"] for output in one["outputs"]] == ["label"]
    nested = infer_v2(service, {"inputs": [tensor(rows, data=rows.tolist())]}, "a")
    assert nested["outputs"] == both["outputs"]
    assert metadata_v2(service)["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 64]}]


def test_probabilities_are_a_tensor_only_of_a_service_that_gives_them(service, made):
    asked = {"inputs": [tensor(made.rows[:1])], "outputs": [{"name": "probabilities"}]}
    with pytest.raises(RequestError) as caught:
        infer_v2(service, asked, "a")
    assert caught.value.field == "outputs"
    uncertified = {"uncertified": True, "explainer": "Saliency", "probabilities": True}
    with Service.load(made.model, None, **uncertified) as generous:
        everything = infer_v2(generous, {"inputs": asked["inputs"]}, "a")
        assert [output["name"] for output in everything["outputs"]] == ["explanation", "label", "probabilities"]
        (only,) = infer_v2(generous, asked, "a")["outputs"]
        assert (only["shape"], round(sum(only["data"]), 5)) == ([1, 10], 1.0)
        v1 = explain_v1(generous, {"instances": made.rows[:1].tolist()}, "a")
        assert v1.keys() == {"explanations", "probabilities", "uncertified"}


@pytest.mark.parametrize(
    ("where", "name"), [("request", "explain_parameters"), ("tensor", "n_steps"), ("output", "target")]
)
def test_a_client_chooses_nothing_in_v2(service, made, where, name):
    parts = {"request": {}, "tensor": tensor(made.rows[:1]), "output": {"name": "label"}}
    for chosen in ({name: 1}, {"parameters": {name: 1}}):
        parts_now = {key: {**value, **(chosen if key == where else {})} for key, value in parts.items()}
        payload = {**parts_now["request"], "inputs": [parts_now["tensor"]], "outputs": [parts_now["output"]]}
        with pytest.raises(RequestError) as caught:
            infer_v2(service, payload, "a")
        assert caught.value.field == name


ROW = [0.5] * 64


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (None, "the request: "),
        ({"Instances": [ROW]}, "instances: Field required"),
        ({"instances": [ROW, ROW[:-1]]}, "all of one length"),
        ({"instances": [[*ROW[:-1], True]]}, "expected nothing but lists of numbers"),
        ({"instances": [{"input": ROW, "target": 1}]}, "got an object with 'input'"),
        ({"instances": [[10**400] * 64]}, "numbers that float32 can hold"),
        ({"instances": [[math.nan] * 64]}, "expected finite numbers"),
        ({"instances": [ROW[:-1]]}, "of shape"),
        ({"instances": [ROW] * 65}, "64"),
    ],
)
def test_a_malformed_v1_request_is_refused_in_words(service, payload, says):
    with pytest.raises(RequestError, match=says) as caught:
        explain_v1(service, payload, "a")
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "x"}, "inputs.name: Input should be 'input'"),
        ({"shape": [1, 63]}, "expected 63 numbers for the shape"),
        ({"shape": []}, "inputs.shape: .*at least 1 item"),
        ({"shape": [1, -64]}, "greater than or equal to 0"),
        ({"shape": [2**31, 1]}, "less than 2147483648"),
        ({"datatype": "BYTES"}, "inputs.datatype"),
        ({"data": [1.0] * 63}, "expected 64 numbers .* got 63"),
        ({"data": [ROW[:32], ROW[32:]]}, r"got the shape \[2, 32\]"),
        ({"data": [[1.0], [2.0, 3.0]]}, "all of one length"),
        ({"extra": 1}, "'extra' is not a field of a request"),
        ({"parameters": {"content_type": "np"}}, "'content_type' is not a field of a request"),
    ],
)
def test_a_malformed_v2_tensor_is_refused_in_words(service, made, change, says):
    with pytest.raises(RequestError, match=says) as caught:
        infer_v2(service, {"inputs": [tensor(made.rows[:1], **change)]}, "a")
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": []}, "inputs: .*at least 1 item"),
        ({"id": "x" * 257}, "at most 256 characters"),
        ({"outputs": [{"name": "probabilities"}]}, "outputs: expected explanation or label"),
        ({"outputs": [{"name": "label"}, {"name": "label"}]}, "each once"),
    ],
)
def test_a_malformed_v2_request_is_refused_in_words(service, made, change, says):
    with pytest.raises(RequestError, match=says) as caught:
        infer_v2(service, {"inputs": [tensor(made.rows[:1])], **change}, "a")
    assert caught.value.status == 422


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), min_size=1, max_size=4))
def test_numbers_arrive_as_they_were_sent(values):
    assert numbers(values, "data").tolist() == np.array(values, np.float32).tolist()


def read(intake, client, *parts):
    async def stream():
        for part in parts:
            if part is None:
                raise AssertionError("read on")
            yield part

    async def run():
        async with intake.body(stream(), client) as body:
            return bytes(body)

    return asyncio.run(run())


def test_a_body_that_is_too_long_is_not_read_to_its_end(service):
    intake = Intake(service)
    most = service.now.bounds.size
    assert read(intake, "a", b"1" * (most - 8), b"12345678")[-8:] == b"12345678"
    with pytest.raises(RequestError) as caught:
        read(intake, "a", b"1" * most, b"1", None)
    assert caught.value.status == 413


def test_of_the_bytes_on_their_way_one_client_has_a_share(service, monkeypatch):
    """And they count as long as they are answered."""
    monkeypatch.setattr(protocol, "MAX_BYTES_IN_FLIGHT", 4000)
    intake = Intake(service)

    async def parts(size):
        yield b"1" * size

    async def run():
        async with intake.body(parts(900), "eve"):
            with pytest.raises(UnavailableError):
                async with intake.body(parts(200), "eve"):
                    pass
            async with intake.body(parts(3000), "ann"):
                with pytest.raises(UnavailableError):
                    async with intake.body(parts(200), "ben"):
                        pass
        async with intake.body(parts(3000), "eve"):
            pass

    asyncio.run(run())


def test_a_body_holds_the_numbers_and_lists_of_its_rows_and_a_thousand_marks_more():
    image = Bounds.of((3, 8, 8), 64)
    assert image == Bounds(64, 64 * 192, 64 * (1 + 3 + 24))
    assert image.size == (64 * 192 + 64 * 28) * 40 + 16_000
    assert Bounds.of(None, 64) == Bounds(64, 1 << 23, 1 << 17)
    assert Bounds.of(None, 64).size == 32 << 20
    few = Bounds.of((2,), 3)
    for mark, most in ((b",", 1006), (b"[", 1003), (b"{", 1000)):
        body = b'"%s"' % (mark * most)
        assert len(few.load(body)) == most
        with pytest.raises(RequestError, match="at most 3 rows of 2 numbers") as caught:
            few.load(body[:-1] + mark + b'"')
        assert caught.value.status == 413


@pytest.mark.parametrize("shape", [(3, 8, 8), None])
def test_what_a_body_may_hold_follows_from_rows_and_shape(shape):
    bounds = Bounds.of(shape, 64)
    rows = np.full((64, *(shape or (3, 8, 8))), -1.2345678901234567e-308).tolist()
    body = json.dumps({"instances": rows}, indent=1).encode()
    assert len(body) <= bounds.size
    assert bounds.load(body) == {"instances": rows}
    for bomb in (b"{},", b"0,", b"[],", b'"a",', b'"a":0,'):
        with pytest.raises(RequestError) as caught:
            bounds.load(b'{"instances":[' + bomb * (2 << 23))
        assert caught.value.status in (413, 422)
        assert caught.value.status == 413 or bomb == b"0,"


@pytest.mark.parametrize(
    ("named", "user", "expected"),
    [
        ([], "", "anonymous"),
        (["Jos\xc3\xa9"], "", "José"),
        (["\uff53py"], "", "spy"),
        (["x"], "ada", "user:ada"),
        ([], "ada", "user:ada"),
    ],
)
def test_a_user_goes_before_the_header_and_names_that_look_alike_are_one(named, user, expected):
    assert client_name(named, user) == expected


@pytest.mark.parametrize("named", [["a", "b"], ["user:ada"]])
def test_a_header_names_one_client_and_no_user(named):
    with pytest.raises(RequestError) as caught:
        client_name(named)
    assert caught.value.field == "X-Client-Id"


def test_problems_say_what_to_do_and_nothing_that_was_computed():
    renews = datetime.now(UTC) + timedelta(seconds=90)
    spent = problem_of(BudgetExhausted("1,000 of 1,000 asked", renews=renews))
    assert spent.status == 429
    assert 80 < spent.retry_after <= 90
    assert spent.to_dict()["renews"] == renews.isoformat().replace("+00:00", "Z")
    assert problem_of(BudgetExhausted("never")).to_dict()["renews"] is None
    secret = "0.123456"
    hidden = [
        InputError(f"fails on {secret}"),
        RuntimeError(secret),
        LedgerError(f"at {secret}"),
        CertificateError(secret),
        RefusedError(secret),
        KeyboardInterrupt(secret),
    ]
    for error in hidden:
        found = problem_of(error)
        assert secret not in json.dumps(found.to_dict())
    assert [problem_of(e).status for e in hidden] == [422, 500, 503, 503, 503, 500]
    assert [problem_of(e).retry_after for e in hidden] == [0, 0, 5, 0, 0, 0]
    assert problem_of(UnavailableError("overloaded")).retry_after == 1
    request = problem_of(RequestError("expected numbers", field="instances"))
    assert request.to_dict() == {
        "type": "urn:safexplain:problem:request",
        "title": "The request cannot be answered",
        "status": 422,
        "detail": "expected numbers",
        "field": "instances",
    }
