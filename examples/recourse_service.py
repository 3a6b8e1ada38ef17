"""A recourse service over HTTP; several processes may share the ledger.

    python examples/recourse_service.py --port 8000
    curl -X POST localhost:8000 -H "X-Customer: ann" -d '{"x": [0.1, -0.3, ...]}'    # 10 numbers

Replies 200 with the answer, 429 when the budget is used up, 400 for unusable rows. Authenticate customers before this.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sklearn.datasets import load_breast_cancer

from safexplain.ledger import BudgetExhausted, Ledger
from safexplain.recourse import Constraints, LaplaceScore, MeteredRecourse

RELEASED = ("counterfactual", "valid", "favourable", "score", "censored")
PUBLIC_TOP = [40, 50, 250, 3000, 0.2, 0.4, 0.6, 0.3, 0.4, 0.1]  # of what can be measured, not of these data


def build(url: str) -> MeteredRecourse:
    data = load_breast_cancer()
    x = 2 * data.data[:, :10] / PUBLIC_TOP - 1
    mechanism = LaplaceScore(
        epsilon=0.1,
        public_weights=[-1.0] * 10,  # smaller is better: textbook knowledge, not these data
        norm_bound=3.2,
        constraints=Constraints(10, lower=-1.0, upper=1.0),
    ).fit(x.clip(-1, 1), data.target)
    return MeteredRecourse(mechanism, Ledger(url, epsilon=1.0, period="month", total_epsilon=50.0))


def handler(recourse: MeteredRecourse) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = recourse.explain([body["x"]], principal=self.headers["X-Customer"], infeasible="mark")
                self.reply(200, {name: getattr(answer, name)[0].tolist() for name in RELEASED})
            except BudgetExhausted as error:
                self.reply(429, {"error": str(error), "renews": error.renews and error.renews.isoformat()})
            except (ValueError, KeyError, TypeError) as error:
                self.reply(400, {"error": str(error)})

        def reply(self, code: int, content: dict[str, object]) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

    return Handler


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=8000)
    server = ThreadingHTTPServer(("127.0.0.1", options.parse_args().port), handler(build("sqlite:///budget.db")))
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
