"""Every example runs as it stands, and prints what the documentation shows."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from safexplain.audit import Recipe
from safexplain.loading.data import load_data
from safexplain.loading.models import load_model

ROOT = Path(__file__).parents[2]


def run(name: str, folder: Path, *arguments: str) -> str:
    """Standard output of an example, with warnings as errors, in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::UserWarning", str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(port: int, x: object, customer: str = "ann") -> tuple[int, dict[str, object]]:
    """Status and content of a service's reply."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}", json.dumps({"x": x}).encode(), {"X-Customer": customer}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


PRINTED = {
    "harden_captum": (
        "released: (200, 64) torch.float32 gradient kept: False",
        "asked again, the same answer bit for bit: True",
        "asked in another batch, the same answer: True",
        r"still on top: (6[5-9]|[78]\d|90)%",
    ),
    "public_explainer": ("bit for bit: True", "By construction: InputXGradient of 3 models of public data"),
    "harden_anchors": (
        r"three native answers:   \d{2,}\ntraining rows in three hardened answers: 0\n",
        "fields of a hardened answer: anchor, precision, coverage\n",
        "the same answer: True",
    ),
    "harden_superpixels": (r"pixel by pixel: 0\.000\d\n", r"as superpixels: 0\.0(0[3-9]|1\d|2[0-4])\d\n"),
    "attack_own_signals": ("leaking.npz: leak", "quiet.npz: certified"),
    "dp_own_loop": (
        "epsilon 4.197 (one record added or removed), 8.000 (one record substituted)",
        r"accuracy: [89]\d",
        "only its accountant's history is known",
        "As claimed: all 10 checks",
    ),
    "audit_canaries": (
        "right: As claimed: all 7 checks of the steps",
        "\nright: Not refuted: epsilon for a substituted record is at least",
        "\nwrong: Refuted: the noise has 0.16",
        "\nwrong: Refuted: epsilon for a substituted record is at least",
    ),
    "audit_endpoint": (
        "Asked are 9,616 questions (1,600 examples, 6 each, and 16 asked twice), of a budget of 10,000",
        "Leak proven: asking ",
        "The verdict is about the explanations and labels of http://",
    ),
}
"""Example -> texts or patterns in what it prints."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises(name, tmp_path):
    for example, library in (("harden_anchors", "alibi"), ("harden_superpixels", "skimage")):
        if name == example:
            pytest.importorskip(library)
    printed = run(name, tmp_path)
    assert [text for text in PRINTED[name] if text not in printed and not re.search(text, printed)] == []


@pytest.mark.slow
def test_members_of_a_pre_training_are_found_through_the_fine_tuned_model(tmp_path):
    printed = run("audit_pretraining", tmp_path)
    norms, prediction, hardened, _ = (float(auc) for auc in re.findall(r"AUC (\d\.\d+)", printed))
    assert min(norms, prediction) > 0.6
    assert abs(hardened - 0.5) < 0.1
    assert "hardened: leak" not in printed


@pytest.mark.slow
def test_the_audit_files_are_what_the_command_line_takes(tmp_path):
    run("write_audit_files", tmp_path)
    data = load_data(tmp_path / "data.npz")
    loaded = load_model(tmp_path / "model.pt2", input_shape=data.x.shape[1:])
    assert loaded.fresh is not None
    assert Recipe.from_toml(tmp_path / "recipe.toml").epochs == 60
    assert 0.4 < np.mean(data.member) < 0.6


@pytest.mark.slow
def test_fine_tuning_keeps_its_budget_and_writes_what_goes_with_the_model(tmp_path):
    printed, card = run("dp_fine_tune", tmp_path), (tmp_path / "MODEL_CARD.md").read_text()
    private, without = (float(part) for part in re.findall(r"(0\.\d+) ±", printed))
    assert 0.8 < private < without
    assert printed.count("Epsilon, one record substituted       8.000") == 2
    assert f"{without:.3f}" not in card
    assert "several records of one person" in card


@pytest.mark.slow
def test_a_bank_writes_letters_from_a_private_model_whose_training_the_ledger_counts(tmp_path):
    printed = run("credit_recourse", tmp_path)
    right, majority = (float(v) for v in re.findall(r"([0-9.]+)%[;\n]", printed)[:2])
    assert right > majority + 10
    assert "spent: 1.00 of 2 (1.00 in total)" in printed
    letters = (tmp_path / "letters.txt").read_text().split("\n\n---\n\n")
    assert f"{len(letters)} letters." in printed
    assert letters[0] in printed
    told = [letter for letter in letters if "would have been approved" in letter]
    assert len(told) > 0.95 * len(letters)
    assert all("Lower your revolving balance" in x or "Raise" in x or "Change" in x for x in told)
    assert not any("home" in letter for letter in letters)  # immutable
    assert not any(re.search(r"\d\.\d{3}", letter) for letter in letters)  # numbers that a person would write
    answers = (tmp_path / "answers.csv").read_text().splitlines()
    assert len(answers) == 1 + 4000
    assert answers[0].endswith("approved,has_recourse,proven")


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"[" * 200_000, " while decoding a JSON array"), (b'{"y": [1]}', "{name: number}} with the 10 features")],
)
def test_the_recourse_service_replies_to_a_body_that_it_cannot_use(body, said):
    handler = runpy.run_path(str(ROOT / "examples" / "recourse_service.py"))["Handler"]
    assert 0 < handler.timeout <= 60
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=handler, args=(theirs, ("127.0.0.1", 0), None))
    with ours, theirs:
        ours.settimeout(30)
        serving.start()
        ours.sendall(b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        reply = ours.recv(10_000)
        while b"}" not in reply:
            reply += ours.recv(10_000)
        serving.join(30)
    assert not serving.is_alive()
    assert reply.startswith(b"HTTP/1.0 400 ")
    assert said in json.loads(reply.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.slow
def test_the_recourse_service_answers_over_http_until_the_budget_is_used_up(tmp_path):
    script = [sys.executable, str(ROOT / "examples" / "recourse_service.py"), "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(script, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split()[-1])
            data = load_breast_cancer()
            x = dict(zip(map(str, data.feature_names[:10]), data.data[0, :10], strict=True))
            first = ask(port, x)
            assert first[0] == 200
            assert first[1].keys() == {"favourable", "ways"}
            assert first[1]["favourable"] or "Lower mean " in first[1]["ways"][0][0]
            assert ask(port, x) == first
            assert "public range 0 to 40" in ask(port, {**x, "mean radius": 99})[1]["error"]
            assert ask(port, {"mean radius": 9})[0] == ask(port, [9.0] * 10)[0] == ask(port, "x")[0] == 400
            codes = [ask(port, {**x, "mean radius": 10 + i})[0] for i in range(1, 12)]
            assert codes == [200] * 9 + [429] * 2
            assert ask(port, x) == first
            assert ask(port, x, customer="bob") == first
        finally:
            server.kill()
