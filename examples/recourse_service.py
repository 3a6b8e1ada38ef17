"""A recourse service over HTTP; several processes may share the ledger and the model. What to change comes in words.

    python examples/recourse_service.py 8000
    curl -X POST localhost:8000 -H "X-Customer: ann" -d '{"x": {"mean radius": 20.6, "mean texture": 25.7, ...}}'

Replies 200, 429 (budget used up), 400 (unusable row) or 503 (no ledger). Authenticate customers before this.
"""

import json
import pickle
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sklearn.datasets import load_breast_cancer

from safexplain.ledger import BudgetExhausted, Ledger, LedgerError
from safexplain.recourse import L1, LaplaceScore, MeteredRecourse, Preprocessing

PUBLIC_TOP = (40, 50, 250, 3000, 0.2, 0.4, 0.6, 0.3, 0.4, 0.1)  # of what can be measured, not of these data
TOP = dict(zip(map(str, load_breast_cancer().feature_names), PUBLIC_TOP, strict=False))


def train() -> LaplaceScore:
    data, people = load_breast_cancer(), Preprocessing(numeric={name: (0, top) for name, top in TOP.items()})
    smaller = {name: -0.6 / top for name, top in TOP.items()}  # is better: textbook knowledge, not these data
    score = LaplaceScore(epsilon=0.5, target=0.5, cost=L1(), public_weights=smaller, preprocessing=people)
    return score.fit(dict(zip(TOP, data.data.T, strict=False)), data.target)


class Handler(BaseHTTPRequestHandler):  # noqa: D101
    timeout = 10  # seconds of silence, after which a request whose body does not come is given up

    def do_POST(self) -> None:  # noqa: D102
        try:
            body = json.loads(self.rfile.read(max(0, min(int(self.headers["Content-Length"] or 0), 1_000_000))))
            if not isinstance(body, dict) or not isinstance(body.get("x"), dict):
                raise ValueError('expected {"x": {name: number}} with the 10 features')
            answers = self.recourse.explain_diverse([body["x"]], 2, principal=self.headers["X-Customer"])
            ways = [answer.reasons()[0] for answer in answers if answer.valid[0]]
            self._reply(200, {"favourable": bool(answers[0].favourable[0]), "ways": ways})
        except BudgetExhausted as error:
            self._reply(429, {"error": str(error), "renews": error.renews and error.renews.isoformat()})
        except (LedgerError, ValueError, TypeError, RecursionError, TimeoutError) as error:
            self._reply(503 if isinstance(error, LedgerError) else 400, {"error": str(error)})

    def _reply(self, code: int, content: dict[str, object]) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


if __name__ == "__main__":
    if not (kept := Path("model.pickle")).exists():  # trained once: another fit is another model, charged anew
        kept.write_bytes(pickle.dumps(train()))
    budget = Ledger("sqlite:///budget.db", epsilon=5.0, period="month", total_epsilon=50.0)
    Handler.recourse = MeteredRecourse(pickle.loads(kept.read_bytes()), budget)
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()
