"""Many at once get what each alone would get, bit for bit; batches form under load, and nobody waits without one."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from explain_nets import certificate, quiet
from served_digits import KEY, trained
from torch import nn

from safexplain.hardening.clips import RankNorm
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise
from safexplain.serve import Limits, Service

PLENTY = Limits(questions=10**9, looks=10**9)
THREADS = 64
HARDENINGS = {
    "ranks with noise": Hardening.ranked(),
    "noise alone": Hardening(clip=RankNorm(), noise=GaussianNoise(0.05), grid=2.0**-6),
}


def loaded(model, folder, method, hardening):
    path = certificate(
        folder, model, explainer={"method": method, "options": {}, "output": "logit"}, hardening=hardening
    )
    return Service.load(model, path, key=KEY, limits=PLENTY, input_shape=(64,), batch_rows=16)


@quiet
@pytest.mark.parametrize(("method", "hardening"), [("DeepLift", "ranks with noise"), ("InputXGradient", "noise alone")])
def test_sixty_four_threads_get_the_answers_of_one(made, tmp_path, method, hardening):
    """Requests of one to four rows, explanations and labels mixed, some of them equal at the same time."""
    model = trained(3, epochs=20)
    rows = made.rows[:60]
    with loaded(model, tmp_path, method, HARDENINGS[hardening]) as service:
        expected = {i: service.explain(rows[i : i + 1], client="alone") for i in range(len(rows))}
        draw = np.random.default_rng(0)
        asked = [draw.choice(len(rows), size=draw.integers(1, 5)) for _ in range(2 * THREADS)]
        gate = threading.Barrier(THREADS)

        def client(number):
            gate.wait()
            got = []
            for indices in asked[number::THREADS]:
                name = f"client {number % 40}"  # some share a name, and so what is remembered
                got.append((indices, service.explain(rows[indices], client=name)))
                got.append((indices, service.predict(rows[indices], client=name)))
            return got

        with ThreadPoolExecutor(THREADS) as pool:
            answers = [answer for got in pool.map(client, range(THREADS)) for answer in got]
        assert len(answers) == 4 * THREADS
        for indices, answer in answers:
            for i, label in zip(indices, answer.label, strict=True):
                assert label == expected[i].label[0]
            if answer.explanation is not None:
                for i, one in zip(indices, answer.explanation, strict=True):
                    assert one.tobytes() == expected[i].explanation[0].tobytes()
        batches = counted(service, "safexplain_batch_rows_count")
        rows_in_batches = counted(service, "safexplain_batch_rows_sum")
        assert rows_in_batches - len(rows) > 1.5 * (batches - len(rows))  # those before the threads had one row each


def counted(service, name):
    """A number in the metrics."""
    text = service.metrics.text()[0].decode()
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name)))


class Slow(nn.Module):
    """Takes a while, so that others come meanwhile."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.sizes = nn.Linear(8, 3), []

    def forward(self, x):
        if not x.requires_grad:
            self.sizes.append(len(x))
            time.sleep(0.02)
        return self.net(x)

    def __deepcopy__(self, memo):
        return self


def test_questions_that_come_while_others_are_computed_are_computed_together():
    model = Slow().eval()
    with Service.load(
        model, None, uncertified=True, explainer="InputXGradient", input_shape=(8,), limits=PLENTY, batch_rows=16
    ) as service:
        rows = np.random.default_rng(0).random((32 * 4, 1, 8), np.float32)
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda i: service.explain(rows[i], client=f"client {i}"), range(len(rows))))
        assert len(answers) == len(rows)
        assert max(model.sizes) <= 16
        assert len(model.sizes) <= len(rows) / 3
        assert counted(service, 'safexplain_batch_rows_bucket{le="1.0"}') < len(rows) / 8


def test_a_charge_that_takes_long_holds_no_other_question_up(made, monkeypatch):
    with Service.load(made.model, made.certificate, limits=PLENTY) as service:
        charging, go_on = threading.Event(), threading.Event()
        budget = service.now.budget
        charge = budget.charge

        def slow(client, digests, x):
            if client == "ann":
                charging.set()
                go_on.wait(60)
            charge(client, digests, x)

        monkeypatch.setattr(budget, "charge", slow)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(service.explain, made.rows[:1], client="ann")
            charging.wait(60)
            begun = time.monotonic()
            service.explain(made.rows[1:2], client="ben")
            assert time.monotonic() - begun < 25
            go_on.set()
            first.result(60)
