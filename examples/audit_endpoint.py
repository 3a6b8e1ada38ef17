"""A foreign API is audited by its answers: Captum's own saliency behind HTTP, in a form of its own."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import captum.attr
import numpy as np
import torch
from sklearn.datasets import load_digits
from write_audit_files import RECIPE, train

from safexplain import HardenedSaliency, Hardening
from safexplain.audit import Policy, Population, audit
from safexplain.audit.endpoint.target import Endpoint

PAYLOAD = """
request = { inputs = "pixels" }
answer = { explanations = "results.heat", labels = "results.digit" }
asking = { rate = 1000, budget = 10000 }
"""
EXAMPLES = 1600


def build(seed: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


class Api(BaseHTTPRequestHandler):
    """POST {"pixels": rows} -> {"results": [{"digit": ..., "heat": [...]}, ...]}"""

    model: torch.nn.Module

    def do_POST(self) -> None:  # noqa: D102
        x = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["pixels"], requires_grad=True)
        digits = self.model(x).argmax(1)
        heat = captum.attr.Saliency(torch.nn.Sequential(self.model, torch.nn.Softmax(1))).attribute(x, digits)
        pairs = zip(digits.tolist(), heat.tolist(), strict=True)
        body = json.dumps({"results": [{"digit": digit, "heat": row} for digit, row in pairs]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


torch.manual_seed(0)
x, y = (load_digits().data[:EXAMPLES] / 16).astype(np.float32), load_digits().target[:EXAMPLES]
member = np.random.default_rng(0).random(EXAMPLES) < 0.5
Api.model = build(0)
train(Api.model, torch.from_numpy(x[member]), torch.from_numpy(y[member]))
server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=server.serve_forever, daemon=True).start()
Path("payload.toml").write_text(PAYLOAD)
endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/why", "payload.toml", classes=10, store="answers.sqlite")
policy = Policy(fpr=0.05, max_tpr=0.06, patience=(1, 5), references=8, uncounted=True)
print("Asked are", endpoint.plan(EXAMPLES, policy.patience))
given = {"build": build, "member": member, "references": 8, "policy": policy}
found = audit(endpoint, Population.of(x, y), RECIPE, explainer=HardenedSaliency, hardening=Hardening.none(), **given)
print(found.result.sentence, *found.notes, sep="\n")
