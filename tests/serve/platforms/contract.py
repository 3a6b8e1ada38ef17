"""The promises that every platform keeps, for each platform's test to run against the platform's own server.

A test of a platform is a module with a fixture `server`, of that scope, and a subclass of `Contract` (requests of the
V1 protocol) or `V2`, which says how else the platform is asked and read, and what only that platform promises.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from servers import wait_until

from tests.serve.platforms.servers import found, marked, native

KEY = "a noise key of thirty-two bytes."

QUESTIONS = 6
"""Distinct questions of a client a day, in every server."""

MARK = 0.8451927
"""Stands in requests that are refused, so that it must be found in no answer and no log."""

SECRETS = {
    "Authorization": "Bearer sesame-7431",
    "Cookie": "session=chocolate-9120",
    "X_Forwarded_For": "198.51.100.77",
    "User_Agent": "curious/31.41",
}
"""Headers of a request that must be in no answer."""

FIELD = "the field of the rows"

REFUSED = {
    "shape": ([[MARK] * 3], "input"),
    "range": ([[MARK] * 63 + [1e39]], "input"),
    "text": ([[str(MARK)] * 64], FIELD),
    "nothing": (None, FIELD),
}
"""Rows, and the field that the answer names; `tests/serve/test_protocol.py` has every rule."""


class Contract:
    """The promises."""

    explain: ClassVar = "/v1/models/model:explain"
    predict: ClassVar = "/v1/models/model:predict"
    field: ClassVar = "instances"
    ready: ClassVar = "/health/ready"
    not_ready: ClassVar = 503
    public: ClassVar = ("/health/live", "/health/ready", "/metrics", "/v1/models/model", "/v2/models/model")
    """Paths that anybody may ask."""

    def question(self, rows: Any, explained: bool = True) -> dict[str, Any]:
        """The request about rows."""
        return {self.field: rows}

    def choosing(self, name: str, value: Any) -> dict[str, Any]:
        """A request that tries to say how it is answered."""
        return {**self.question([[0.5] * 64]), name: value}

    def naming(self, rows: Any, client: str) -> dict[str, Any]:
        """A request that tries to say in its body who asks."""
        return {**self.question(rows), "client": client}

    def nested(self) -> list[dict[str, Any]]:
        """Requests with the text HOLE, each in a place for something nested deep."""
        return [self.question("HOLE"), self.choosing("n_steps", "HOLE")]

    def arrays(self, response: httpx.Response) -> Any:
        """The explanations or labels of an answer."""
        (arrays,) = response.json().values()
        return arrays

    def certificate(self, response: httpx.Response) -> str:
        """The digest that an answer names."""
        return response.headers["X-Safexplain-Certificate"]

    def check_problem(self, response: httpx.Response, field: str | None = None) -> None:
        """What is not answered is a problem (RFC 9457), which names the field if there is one."""
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json().get("field") == field or field is None

    def check_renewal(self, response: httpx.Response) -> None:
        """A spent budget says when it renews."""
        assert 0 < int(response.headers["Retry-After"]) <= 86400
        assert response.json()["renews"]

    def ask(self, server: Any, rows: Any, client: str, explained: bool = True, **headers: str) -> httpx.Response:
        path = self.explain if explained else self.predict
        return server.ask(path, self.question(rows, explained), client, **headers)

    def test_explanations_and_labels_are_those_of_the_service(self, server, expected, noisy):
        x, want = noisy.rows[:3], expected.explain(noisy.rows[:3])
        for _ in range(2):  # whichever replica it comes to
            explained = self.ask(server, x, "ward-3")
            labels = self.ask(server, x, "ward-3", explained=False)
            np.testing.assert_array_equal(np.float32(self.arrays(explained)), want.explanation)
            assert list(self.arrays(labels)) == want.label.tolist()
            assert self.certificate(explained) == self.certificate(labels) == expected.digest

    def test_replicas_grant_one_budget_and_say_when_it_renews(self, server, noisy):
        rows = noisy.rows[100:120]
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda row: self.ask(server, [row], "patient"), rows))
        granted = [row for row, answer in zip(rows, answers, strict=True) if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert (len(granted), len(refused)) == (QUESTIONS, len(rows) - QUESTIONS)
        for answer in refused:
            self.check_problem(answer)
            self.check_renewal(answer)
        for row in granted:  # what was asked before is free
            assert self.ask(server, [row], "patient", explained=False).status_code == 200
        assert self.ask(server, rows[:1], "another").status_code == 200

    def test_names_that_look_alike_are_one_client_and_the_rest_is_refused(self, server, noisy):
        assert self.ask(server, noisy.rows[130 : 130 + QUESTIONS], "ann").status_code == 200
        for alike in ("ann", "\uff41\uff4e\uff4e", "a\uff4en"):
            assert self.ask(server, noisy.rows[120:121], alike).status_code == 429
        for other in ("Ann", "anna"):
            assert self.ask(server, noisy.rows[120:121], other).status_code == 200
        for name in ("an\tn", "ann\x07", "ann\x85", "user:ann"):
            assert 400 <= self.ask(server, noisy.rows[120:121], name).status_code < 500

    def test_nothing_but_the_header_names_a_client(self, server, noisy):
        rows = noisy.rows[140 : 141 + QUESTIONS]
        assert self.ask(server, rows[:-1], "spent").status_code == 200
        assert server.ask(self.explain, self.naming(rows[-1:], "invented"), "spent").status_code in (422, 429)
        answers = [server.ask(self.explain, self.naming([row], f"name {row.sum()}")) for row in noisy.rows[150:160]]
        assert sum(answer.status_code == 200 for answer in answers) <= QUESTIONS

    @pytest.mark.parametrize("case", REFUSED)
    def test_rows_that_cannot_be_answered_are_a_422_that_names_the_field_and_quotes_nothing(self, server, case):
        rows, field = REFUSED[case]
        for explained in (True, False):
            refused = self.ask(server, rows, "clumsy", explained)
            assert refused.status_code == 422
            self.check_problem(refused, self.field if field == FIELD else field)
        assert b"0.8451" not in server.heard()
        assert b"Traceback" not in server.heard()

    @pytest.mark.parametrize("name", ["n_steps", "explain_parameters"])
    def test_what_a_request_tries_to_choose_is_refused_by_name(self, server, name):
        refused = server.ask(self.explain, self.choosing(name, MARK), "clumsy")
        assert refused.status_code == 422
        self.check_problem(refused, name)
        assert b"0.8451" not in server.heard()

    def test_no_body_however_malformed_is_answered_or_logged(self, server):
        good = json.dumps(self.question("HOLE")).encode()
        bodies = [good.replace(b'"HOLE"', b"[[NaN, %f]]" % MARK), good.replace(b'"HOLE"', b"[[1%s]]" % (b"0" * 400))]
        bodies += [b"", b"{", b"\xff%f" % MARK, b"[%f]" % MARK, b"%f" % MARK, b'{"a": %f}' % MARK, good[:-4]]
        for depth in (70, 1000, 5000):
            hole = b"[" * depth + b"%f" % MARK + b"]" * depth
            bodies += [json.dumps(body).encode().replace(b'"HOLE"', hole) for body in self.nested()]
        for body in bodies:
            assert server.ask(self.explain, body, "clumsy").status_code in (400, 413, 422), body[:80]
        self.check_unread(server)

    def check_unread(self, server: Any) -> None:
        """Nothing of bodies that cannot be read is in an answer or a log."""
        assert b"0.8451" not in server.heard()
        assert b"Traceback" not in server.heard()

    @pytest.mark.parametrize("kind", ["", "text/plain"])
    def test_requests_that_any_web_page_can_have_sent_are_refused(self, server, noisy, kind):
        assert self.ask(server, noisy.rows[:1], "ward-3", Content_Type=kind).status_code in (415, 422)

    def test_a_body_longer_than_any_question_is_refused(self, server):
        refused = server.ask(self.explain, b" " * (33 << 20), "clumsy")
        assert refused.status_code == 413
        self.check_problem(refused)

    def test_no_native_number_no_header_and_no_key_is_in_any_answer_or_log(self, server, noisy):
        rows = marked(noisy.rows[:2], 1)
        for explained in (True, False):
            for body, status in ((rows, 200), (rows[:, 1:], 422)):
                assert self.ask(server, body, "client-marker-55", explained, **SECRETS).status_code == status
        server.ask(self.explain, json.dumps(self.question(rows.tolist())).encode()[:-1], "client-marker-55", **SECRETS)
        for path in self.public:
            assert server.ask(path, **SECRETS).status_code == 200, path
        assert server.ask("/nowhere", **SECRETS).status_code == 404
        said = b"\n".join(server.said)
        assert [value for value in (*SECRETS.values(), "client-marker-55") if value.encode() in said] == []
        assert found(native(noisy.model, rows), server.heard()) == []
        assert KEY.encode() not in server.heard()

    def test_without_the_ledger_nothing_new_is_answered_and_with_it_again_everything(self, server, noisy):
        aside = server.ledger.with_name("aside")
        server.ledger.rename(aside)
        server.ledger.mkdir()
        try:
            for row in noisy.rows[200:204]:
                refused = self.ask(server, [row], "late")
                assert refused.status_code in (503, self.not_ready)
                self.check_problem(refused)
            wait_until(lambda: server.ask(self.ready).status_code == self.not_ready, 10)
        finally:
            server.ledger.rmdir()
            aside.rename(server.ledger)
        wait_until(lambda: all(self.ask(server, noisy.rows[200:201], "late").is_success for _ in range(4)), 10)


class V2(Contract):
    """The promises, asked in the tensors of the V2 protocol."""

    explain: ClassVar = "/v2/models/model/infer"
    predict: ClassVar = "/v2/models/model/infer"
    field: ClassVar = "data"

    def question(self, rows: Any, explained: bool = True) -> dict[str, Any]:
        size = [len(rows), len(rows[0])] if isinstance(rows, list | np.ndarray) else [1, 64]
        tensor = {"name": "input", "shape": size, "datatype": "FP32", "data": rows}
        return {"inputs": [tensor], "outputs": [{"name": "explanation" if explained else "label"}]}

    def choosing(self, name: str, value: Any) -> dict[str, Any]:
        return {**self.question([[0.5] * 64]), "parameters": {name: value}}

    def naming(self, rows: Any, client: str) -> dict[str, Any]:
        return {**self.question(rows), "parameters": {"headers": {"x-client-id": client}}}

    def nested(self) -> list[dict[str, Any]]:
        (tensor,) = self.question("HOLE")["inputs"]
        strange = [{**tensor, "data": [0.5] * 64, name: "HOLE"} for name in ("name", "datatype", "shape")]
        return [*super().nested(), *({"inputs": [one]} for one in strange)]

    def arrays(self, response: httpx.Response) -> Any:
        (tensor,) = response.json()["outputs"]
        return np.reshape(tensor["data"], tensor["shape"])

    def certificate(self, response: httpx.Response) -> str:
        return response.json()["parameters"]["certificate"]
