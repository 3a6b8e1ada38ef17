"""The service over HTTP: real servers on loopback, a client, and a browser on the page of the interface."""

import re

import httpx
import pytest
from fastapi import FastAPI
from servers import EXPLAIN, INFER, PREDICT, listening
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware

from safexplain.serve import Limits, Service, app, router
from safexplain.serve.questions import Questions


@pytest.fixture(scope="module")
def client(made):
    with (
        listening(app(Service.load(made.model, made.certificate, limits=Limits(questions=60)))) as url,
        httpx.Client(base_url=url, headers={"X-Client-Id": "module"}) as made_client,
    ):
        yield made_client


def test_explanations_come_with_the_digest_of_their_certificate(client, made):
    with Service.load(made.model, made.certificate) as service:
        expected = service.explain(made.rows[:2], client="a")
    answer = client.post(EXPLAIN, json={"instances": made.rows[:2].tolist()})
    assert answer.status_code == 200
    assert answer.json() == {"explanations": expected.explanation.tolist()}
    assert answer.headers["x-safexplain-certificate"] == expected.certificate
    assert answer.headers["cache-control"] == "no-store"
    assert "x-safexplain-uncertified" not in answer.headers
    labels = client.post(PREDICT, json={"instances": made.rows[:2].tolist()})
    assert labels.json() == {"predictions": expected.label.tolist()}
    tensor = {"name": "input", "shape": [2, 64], "datatype": "FP32", "data": made.rows[:2].ravel().tolist()}
    infer = client.post(INFER, json={"inputs": [tensor]}).json()
    assert infer["outputs"][0]["data"] == expected.explanation.ravel().tolist()
    assert infer["outputs"][1]["data"] == expected.label.tolist()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 422),
        (b'{"instances": [[NaN]]}', {}, 422),
        (b"[" * 100_000, {}, 413),
        (b"[" * 1000, {}, 422),
        (b'{"instances": []}', {"content-type": "text/plain"}, 415),
        (b'{"instances": []}', {"cookie": "session=1", "origin": "https://elsewhere.example"}, 403),
        (b'{"instances": []}', {"content-encoding": "gzip"}, 415),
        (b" " * 200_001, {}, 413),
        (b'{"instances": []}', {"x-client-id": "user:root"}, 422),
    ],
)
def test_bodies_that_cannot_be_read_are_problems(client, body, headers, status):
    answer = client.post(EXPLAIN, content=body, headers={"content-type": "application/json", **headers})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status


def test_paths_and_methods_that_are_not_there_are_problems(client):
    for method, path, status in (("GET", "/x", 404), ("GET", EXPLAIN, 405), ("POST", "/v1/models/other:explain", 404)):
        answer = client.request(method, path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_spent_budget_is_429_with_the_time_of_renewal(client, made):
    mine = {"X-Client-Id": "spender"}
    assert client.post(EXPLAIN, json={"instances": made.rows[:60].tolist()}, headers=mine).status_code == 200
    answer = client.post(EXPLAIN, json={"instances": made.rows[60:61].tolist()}, headers=mine)
    assert answer.status_code == 429
    assert answer.json()["renews"].endswith("Z")
    assert 0 < int(answer.headers["retry-after"]) <= 86400
    assert client.post(EXPLAIN, json={"instances": made.rows[:60].tolist()}, headers=mine).status_code == 200
    other = client.post(EXPLAIN, json={"instances": made.rows[60:61].tolist()}, headers={"X-Client-Id": "other"})
    assert other.status_code == 200
    with httpx.Client(base_url=client.base_url) as anonymous:  # all who give no name share one budget
        assert anonymous.post(EXPLAIN, json={"instances": made.rows[:60].tolist()}).status_code == 200
        assert anonymous.post(EXPLAIN, json={"instances": made.rows[60:61].tolist()}).status_code == 429


def test_health_and_metrics_say_what_is_served(client):
    assert client.get("/health/live").json() == {"status": "live"}
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json().keys() >= {"status", "certificate", "verdict", "age"}
    assert ready.json()["verdict"] == "certified"
    assert ready.json()["claim"] in ("whole", "excess")
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v1/models/model").json() == {"name": "model", "ready": True}
    assert client.get("/v2/models/model").json()["inputs"][0]["shape"] == [-1, 64]
    text = client.get("/metrics").text
    assert 'safexplain_requests_total{operation="explain",status="200"}' in text
    assert "module" not in text, "no client is named in metrics"
    for name, edges in (
        ("request_seconds", "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1.0 2.5 5.0 10.0 30.0 +Inf"),
        ("batch_rows", "1.0 2.0 4.0 8.0 16.0 32.0 64.0 128.0 +Inf"),
    ):
        found = re.findall(rf'safexplain_{name}_bucket{{.*?le="(.*?)"', text)
        assert list(dict.fromkeys(found)) == edges.split()


def test_an_uncertified_service_says_so_everywhere(made):
    service = Service.load(made.model, None, uncertified=True, explainer="InputXGradient")
    with listening(app(service)) as url:
        answer = httpx.post(url + EXPLAIN, json={"instances": made.rows[:1].tolist()})
        assert answer.json()["uncertified"] is True
        assert answer.headers["x-safexplain-uncertified"] == "true"
        assert httpx.get(url + "/health/ready").json()["uncertified"] is True


class Keys(AuthenticationBackend):
    async def authenticate(self, conn):
        key = conn.headers.get("authorization", "")
        return (AuthCredentials(["authenticated"]), SimpleUser(key)) if key else None


def test_the_authenticated_user_goes_before_the_header(made, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    service = Service.load(made.model, made.certificate, ledger=url, limits=Limits(questions=5))
    application = FastAPI()
    application.include_router(router(service), prefix="/explanations")
    application.add_middleware(AuthenticationMiddleware, backend=Keys())
    with listening(application) as address:
        for i in range(5):
            httpx.post(
                address + "/explanations" + EXPLAIN,
                json={"instances": made.rows[i : i + 1].tolist()},
                headers={"Authorization": "ada", "X-Client-Id": f"invented {i}"},
            ).raise_for_status()
        refused = httpx.post(
            address + "/explanations" + EXPLAIN,
            json={"instances": made.rows[5:6].tolist()},
            headers={"Authorization": "ada", "X-Client-Id": "another"},
        )
    service.close()
    assert refused.status_code == 429
    with Questions(url) as asked:
        assert list(asked.counts()) == ["user:ada"]


def test_the_interface_is_described_with_examples_that_work(client):
    described = client.get("/openapi.json").json()
    for path in (EXPLAIN, PREDICT, INFER):
        post = described["paths"][path]["post"]
        body = post["requestBody"]["content"]["application/json"]
        assert body["schema"]["additionalProperties"] is False
        answer = client.post(path, json=body["example"], headers={"X-Client-Id": "reader"})
        assert answer.status_code == 200
        example = post["responses"]["200"]["content"]["application/json"]["example"]
        assert example.keys() <= answer.json().keys()
        assert "default" in post["responses"]
    page = client.get("/docs").text
    assert "<script" in page
    assert "//cdn" not in page, "scripts and styles come from this server"


def test_a_question_that_came_before_is_answered_alike(made):
    """Of the same client, under the same certificate, for as long as it is remembered, and the same in V1 and V2."""
    service = Service.load(made.model, made.certificate, limits=Limits(questions=3))
    v1 = {"instances": made.rows[:2].tolist()}
    tensor = {"name": "input", "shape": [2, 64], "datatype": "FP32", "data": made.rows[:2].ravel().tolist()}
    v2 = {"inputs": [tensor], "outputs": [{"name": "label"}], "id": "seven"}
    asked = [(EXPLAIN, v1), (PREDICT, v1), (INFER, v2)]
    with listening(app(service)) as url, httpx.Client(base_url=url, headers={"X-Client-Id": "ann"}) as client:
        first = [client.post(path, json=body) for path, body in asked]
        assert {response.status_code for response in first} == {200}
        for (path, body), response in zip(asked, first, strict=True):
            again = client.post(path, json=body)
            assert again.content == response.content
            assert again.headers["x-safexplain-certificate"] == service.digest
        text = service.metrics.text()[0].decode()
        assert 'safexplain_answers_total{source="remembered"} 8.0' in text  # infer asked for the labels of predict
        other = client.post(EXPLAIN, json=v1, headers={"X-Client-Id": "ben"})
        assert other.json() == first[0].json()
        assert 'safexplain_answers_total{source="computed"} 6.0' in service.metrics.text()[0].decode()
        service._memory.clear()  # forgotten
        assert client.post(EXPLAIN, json=v1).content == first[0].content
        assert 'safexplain_answers_total{source="computed"} 8.0' in service.metrics.text()[0].decode()
