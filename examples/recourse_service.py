"""A recourse service over HTTP; several processes may share the ledger and the model.

    python examples/recourse_service.py 8000
    curl -X POST localhost:8000 -H "X-Customer: ann" -d '{"x": [0.1, -0.3, ...]}'    # 10 numbers

Replies 200, 429 (budget used up), 400 (unusable row) or 503 (no ledger). Authenticate customers before this.
"""

import json
import pickle
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sklearn.datasets import load_breast_cancer

from safexplain.ledger import BudgetExhausted, Ledger, LedgerError
from safexplain.recourse import Constraints, LaplaceScore, MeteredRecourse

RELEASED = ("counterfactual", "valid", "favourable", "score")
PUBLIC_TOP = [40, 50, 250, 3000, 0.2, 0.4, 0.6, 0.3, 0.4, 0.1]  # of what can be measured, not of these data


def train() -> LaplaceScore:
    data = load_breast_cancer()
    x = (2 * data.data[:, :10] / PUBLIC_TOP - 1).clip(-1, 1)
    smaller, box = [-1.0] * 10, Constraints(10, lower=-1.0, upper=1.0)  # is better: textbook knowledge, not these data
    return LaplaceScore(epsilon=0.1, public_weights=smaller, norm_bound=3.2, constraints=box).fit(x, data.target)


class Handler(BaseHTTPRequestHandler):  # noqa: D101
    timeout = 10  # seconds of silence, after which a request whose body does not come is given up

    def do_POST(self) -> None:  # noqa: D102
        try:
            body = json.loads(self.rfile.read(max(0, min(int(self.headers["Content-Length"] or 0), 1_000_000))))
            if not isinstance(body, dict) or "x" not in body:
                raise ValueError('expected {"x": [10 numbers]}')
            answer = self.recourse.explain([body["x"]], principal=self.headers["X-Customer"], infeasible="mark")
            self._reply(200, {name: getattr(answer, name)[0].tolist() for name in RELEASED})
        except BudgetExhausted as error:
            self._reply(429, {"error": str(error), "renews": error.renews and error.renews.isoformat()})
        except (LedgerError, ValueError, TypeError, RecursionError, TimeoutError) as error:
            self._reply(503 if isinstance(error, LedgerError) else 400, {"error": str(error)})

    def _reply(self, code: int, content: dict[str, object]) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


if __name__ == "__main__":
    kept = Path("model.pickle")  # trained once: another fit is another model, whose answers are charged anew
    if not kept.exists():
        kept.write_bytes(pickle.dumps(train()))
    budget = Ledger("sqlite:///budget.db", epsilon=1.0, period="month", total_epsilon=50.0)
    Handler.recourse = MeteredRecourse(pickle.loads(kept.read_bytes()), budget)
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler) as server:
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()
