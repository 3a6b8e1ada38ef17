"""Attacks on real servers: each fails, as the red team's suite makes them, in a small size."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from request_fuzz import fuzzed
from served_attacks import (
    ATTACKS,
    PREDICT,
    Server,
    certificate,
    command,
    folder,
    invented,
    model,
    public_rows,
)

from safexplain.hardening.hardening import Hardening

pytestmark = pytest.mark.slow  # tests/serve/test_attacks.py and test_faults.py have the small versions


@pytest.mark.parametrize("attack", [pytest.param(f, id=f.__name__) for f in ATTACKS])
def test_the_attack_fails(attack):
    if attack.__name__ == "by_mlflow":
        pytest.importorskip("mlflow.pyfunc")
    text, numbers, held = attack(True)
    assert held, (text, numbers)


@pytest.mark.parametrize("quick", [True, False])
def test_no_malformed_request_is_an_error_of_the_server_or_is_told_more_than_is_listed(quick):
    text, numbers, held = fuzzed(quick)
    assert held, (text, numbers)


def test_what_is_answered_is_what_the_ledger_counts_over_kills_and_reloads():
    path = Path(shutil.copy(model(), folder() / "soaked.pt2"))
    right = certificate(folder() / "soaked.json", path, Hardening.recommended())
    given = ("--questions", 10**6, "--public-data", public_rows(), "--watch", 0.5)
    server = Server("soak", command(*given, certificate=right, of=path))
    numbers, over, answered = itertools.count(), threading.Event(), []

    def client():
        """Asks one question after the other, each until it is answered."""
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not over.is_set():
                i, status = next(numbers), 503
                body, name = {"instances": invented(1, i).tolist()}, {"X-Client-Id": f"name-{i % 500}"}
                while status == 503:
                    try:
                        status = http.post(PREDICT, json=body, headers=name).status_code
                    except httpx.TransportError:  # it was killed
                        time.sleep(0.2)
                answered.append(status)

    try:
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(client) for _ in range(4)]
            for step in range(8):
                time.sleep(1.5)
                if step in (2, 5):
                    server.stop(kill=True)
                    server.start()
                else:
                    shutil.copy(path, path.with_suffix(".new"))
                    os.replace(path.with_suffix(".new"), path)
            over.set()
            for one in running:
                one.result()
        assert set(answered) == {200}
        assert server.charged() == len(answered)
    finally:
        over.set()
        server.stop()
    assert server.log.read_text().count("now serving") >= 1
