"""`safexplain serve`, started as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import httpx
import numpy as np
import pytest
from explain_nets import certificate
from served_digits import certified, digits, exported, trained

from safexplain import Hardening
from safexplain.cli import _run
from safexplain.cli.serve import ServeOptions
from safexplain.loading import load_model
from safexplain.serve.questions import Questions

EXPLAIN = "/v1/models/model:explain"
ROWS = digits()[400:460].tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    certified(exported(trained(), folder / "model.pt2"), folder)
    np.savez(folder / "public.npz", x=digits()[900:1700])
    return folder


@contextmanager
def serving(folder: Path, *options: str):
    """The command in a process of its own: its address and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    call = "import sys; from safexplain.cli import main; main()"
    arguments = ["serve", "--model", "model.pt2", "--certificate", "certificate.json", "--port", str(port), *options]
    log = folder / f"log {port}"
    with open(log, "wb") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(
            [sys.executable, "-c", call, *arguments], cwd=folder, stdout=file, stderr=file, env=environment
        )
        try:
            until = time.monotonic() + 120
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health/live")
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield f"http://127.0.0.1:{port}", process, log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.mark.slow
def test_a_model_and_its_certificate_are_served_until_the_budget_is_spent(folder, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db"
    options = ("--ledger", url, "--questions", "20", "--public-data", "public.npz", "--audit-log", f"{tmp_path}/asked")
    with serving(folder, *options) as (address, _, log), httpx.Client(base_url=address) as client:
        mine = {"X-Client-Id": "clinic-7"}
        answer = client.post(EXPLAIN, json={"instances": ROWS[:20]}, headers=mine)
        assert answer.status_code == 200
        assert len(answer.json()["explanations"]) == 20
        refused = client.post(EXPLAIN, json={"instances": ROWS[20:21]}, headers=mine)
        assert refused.status_code == 429
        assert client.get("/health/ready").json()["budget"]["near_duplicates"] == "recognised"
        assert "certified" in log.read_text()
        assert "/docs" in log.read_text()
    with Questions(url) as asked:
        assert asked.counts() == {"clinic-7": 20}
    lines = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [line["status"] for line in lines] == [200, 429]


def refused(capfd, folder, *options: object) -> str:
    """What the command says when it does not start."""
    code = _run(["serve", "--port", "0", *map(str, options)])
    said = capfd.readouterr().err
    assert code == 2
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1, said
    return said


def test_everything_that_is_missing_is_named_in_one_message_before_a_model_is_read(folder, capfd, monkeypatch):
    gone = {"orjson", "uvicorn", "psycopg", "shap"}
    monkeypatch.setattr("safexplain.cli.serve.find_spec", lambda name: None if name in gone else name)
    options = ("--uncertified", "--explainer", "TreeExplainer", "--ledger", "postgresql://x/y")
    said = refused(capfd, folder, "--model", folder / "none.pt2", *options)
    assert all(name in said for name in gone)
    assert "safexplain[serve,postgres,shap]" in said


def test_what_may_not_be_served_is_refused_in_one_sentence(folder, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAFEXPLAIN_NOISE_KEY", raising=False)
    monkeypatch.delenv("SAFEXPLAIN_SERVE", raising=False)
    model, good = folder / "model.pt2", folder / "certificate.json"
    assert "uncertified" in refused(capfd, folder, "--model", model)
    assert "cannot be read" in refused(capfd, folder, "--model", tmp_path / "none.pt2", "--certificate", good)
    other = exported(trained(3), tmp_path / "other.pt2")
    assert "another model" in refused(capfd, folder, "--model", other, "--certificate", good)
    explainer = {"method": "InputXGradient", "options": {}}
    loaded, (a, b) = load_model(model).model, (tmp_path / "a", tmp_path / "b")
    a.mkdir(), b.mkdir()
    weak = certificate(a, loaded, explainer=explainer, hardening=Hardening.recommended(), references=0)
    assert "certifies nothing" in refused(capfd, folder, "--model", model, "--certificate", weak)
    noisy = certificate(b, loaded, explainer=explainer, hardening=Hardening.ranked())
    assert "expected a noise key" in refused(capfd, folder, "--model", model, "--certificate", noisy)
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "password")
    assert "expected at least 16 random bytes" in refused(capfd, folder, "--model", model, "--certificate", noisy)
    assert "LOW:HIGH" in refused(capfd, folder, "--model", model, "--certificate", good, "--input-range", "1")
    assert "period" in refused(capfd, folder, "--model", model, "--certificate", good, "--period", "hour")


def test_the_hardening_of_a_service_before_its_audit_is_named_as_in_an_audit() -> None:
    defaults = {field.name: field.default.default for field in fields(ServeOptions)}

    def asked(text: str | None) -> str | None:
        options = ServeOptions(**{**defaults, "model": Path("model.pt2"), "hardening": text})
        return json.loads(options.settings()).get("hardening")

    assert asked("recommended") is asked(None) is None  # what is usual for the method and the model
    assert Hardening.from_json(asked("deepleak")) == Hardening.deepleak()
