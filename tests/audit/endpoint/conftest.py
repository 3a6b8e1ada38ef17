"""A small world, and services that explain its model over HTTP on this machine, each wrong in whatever way is asked."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from safexplain import HardenedSaliency, Hardening, NormClip, TopKMask
from safexplain.audit import Policy, Population, Recipe, train_shadows
from safexplain.audit.endpoint.target import digests_of

RECIPE = Recipe(optimizer="sgd", lr=0.3, epochs=30, batch_size=20)
POLICY = Policy(
    fpr=0.1, max_tpr=0.8, suite=("Threshold", "LikelihoodRatio"), patience=(1, 3), references=4, uncounted=True
)
HARDENING = Hardening(clip=NormClip(0.8), mask=TopKMask(0.5))
EXAMPLES = 60


def build(seed=0):
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture(scope="package")
def world():
    """A population, its model, its members, and what that model predicts and releases of rows (n, 6)."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, EXAMPLES)
    population = Population.of(rng.normal(size=(EXAMPLES, 6)) + np.eye(3, 6)[y], y)
    shadows = train_shadows(population, RECIPE, build=build, models=1, seed=5)
    model, member = shadows.models[0], shadows.membership[0]

    def predict(x):
        with torch.no_grad():
            return model(torch.from_numpy(x)).softmax(1).numpy()

    def explain(x):
        rows = torch.from_numpy(x)
        target = torch.from_numpy(predict(x).argmax(1))
        forward = nn.Sequential(model, nn.Softmax(1)).eval()
        return HardenedSaliency(forward, hardening=HARDENING).attribute(rows, target=target).numpy()

    return SimpleNamespace(population=population, model=model, member=member, predict=predict, explain=explain)


@pytest.fixture(scope="package")
def parts(tmp_path_factory):
    """What an audit of the small world is given; reference models are trained once."""
    cache = tmp_path_factory.mktemp("models")
    return SimpleNamespace(build=build, recipe=RECIPE, policy=POLICY, hardening=HARDENING, cache=cache)


class Service:
    """A server on loopback; what it was asked, and how it answers.

    Attributes:
        questions: how often each row was asked about, by digest, where an explanation was given.
        bodies, headers: of every request, in order.
        before: called with (path, number of the request) before each answer; what it returns, (status, headers, body),
            is the answer in place of the right one, None: the right one.
        rows: from a request's body to (n, 6).
        answer: from (path, rows) to the body of the answer.
    """

    def __init__(self, world):
        self.questions: Counter[bytes] = Counter()
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.before: Callable[[str, int], tuple[int, dict[str, str], bytes] | None] = lambda path, number: None
        self.rows: Callable[[Any], Any] = lambda body: body["instances"]
        self.answer: Callable[[str, np.ndarray], Any] = lambda path, x: {
            "explanations": world.explain(x).tolist(),
            "labels": world.predict(x).argmax(1).tolist(),
        }
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.bodies.append(body)
                service.headers.append(dict(self.headers))
                service.paths.append(self.path)
                instead = service.before(self.path, len(service.bodies) - 1)
                if instead is None:
                    x = np.array(service.rows(body), np.float32)
                    if not self.path.endswith(":predict"):
                        service.questions.update(digests_of(x))
                    instead = 200, {}, json.dumps(service.answer(self.path, x)).encode()
                status, headers, raw = instead
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": len(raw), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/models/model:explain"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service(world):
    """A server that answers in the format "json"."""
    made = Service(world)
    yield made
    made.close()
