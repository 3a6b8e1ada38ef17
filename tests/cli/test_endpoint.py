"""`safexplain audit --endpoint`: a running service is audited from the command line, killed and taken up."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from cases import digits, write_case
from torch import nn

from safexplain.audit import Recipe, Signals
from safexplain.cli import _run
from safexplain.cli.run.question import ANSWERS
from safexplain.errors import CertificateError
from safexplain.hardening.hardening import Hardening
from safexplain.serve import Service, app

pytestmark = pytest.mark.usefixtures("few_trees")

POLICY = 'fpr = 0.1\nmax_tpr = 0.6\npatience = [1, 3]\nreferences = 4\nsuite = ["Threshold", "LikelihoodRatio"]\n'
PAYLOAD = '[request]\nheaders = { X-Client-Id = "auditor" }\n[asking]\nrate = 1000\nretries = 0\n'
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with a digits network, its architecture, data, recipe, policy, and payloads of two formats."""
    folder = tmp_path_factory.mktemp("case")
    x, y = digits(120)
    network = partial(nn.Sequential, nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    write_case(folder, network, x.reshape(120, 64), y, Recipe(lr=3e-3, epochs=20, batch_size=32), POLICY)
    source = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Linear(64, 16),"
    (folder / "small_arch.py").write_text(f"{source} nn.ReLU(), nn.Linear(16, 10))\n")
    for form in ("kserve-v1", "v2"):
        (folder / f"{form}.toml").write_text(f'format = "{form}"\n{PAYLOAD}')
    return folder


@contextmanager
def running(application: Any) -> Iterator[str]:
    """A server of this application on loopback, and its URL."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def served(case):
    """This package's own service, with a limit for each client that an audit needs; and how often it was asked."""
    made = Service.load(
        case / "model.pt2", None, uncertified=True, explainer="Saliency", hardening=Hardening.recommended(),
        limits={"questions": 10**6, "looks": 10**6},
    )  # fmt: skip
    asked: list[str] = []
    inner = app(made)

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
        await inner(scope, receive, send)

    with running(counted) as url:
        yield SimpleNamespace(url=url, asked=asked)


def command(url: str, form: str = "kserve-v1.toml") -> list[str]:
    path = "/v2/models/model/infer" if form.startswith("v2") else "/v1/models/model:explain"
    return [
        *("audit", "--endpoint", url + path, "--format", form, "--data", "data.npz", "--recipe", "recipe.toml"),
        *("--arch", "small_arch:build", "--explainer", "Saliency", "--references", "4", "--policy", "policy.toml"),
    ]


@pytest.fixture(scope="module")
def finished(case, served, tmp_path_factory):
    """The run directory of an audit of the service in the format kserve-v1."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(case)
        assert _run([*command(served.url), "--run-dir", str(folder), "--quiet"]) == 3
    return folder


def aucs(result: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(a["attack"], a["signal"]): a["auc"] for a in result["attacks"] if a["level"] == 1}


def test_our_own_service_is_audited_by_both_protocols_and_gets_the_verdict_of_its_model(
    cli, served, finished, tmp_path
):
    code, out, err = cli(*command(served.url, "v2.toml"), "--run-dir", tmp_path / "run", "--json")
    content = json.loads(out)
    assert (content["verdict"], code, "will be asked" in err) == ("inconclusive", 3, True)
    assert content["configuration"] == "endpoint"
    assert (content["compared"], content["utility"], content["native_maps"]) == ({}, None, [])
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.is_file()) == [
        ANSWERS,
        "certificate.json",
        "report.html",
        "signals.npz",
    ]
    one, another = (Signals.load(folder / "signals.npz") for folder in (finished, tmp_path / "run"))
    for name, values in one.values.items():
        np.testing.assert_array_equal(values, another.values[name], err_msg=name)
    other = cli("audit", "model.pt2", *command(served.url)[5:], "--run-dir", tmp_path / "model", "--json")
    of_model = json.loads(other[1])
    assert of_model["verdict"] == content["verdict"]
    shared = aucs(of_model).keys() & aucs(content).keys()
    assert len(shared) >= 5
    assert {name: aucs(content)[name] for name in shared} == pytest.approx(
        {name: aucs(of_model)[name] for name in shared}, abs=1e-3
    )


def test_a_certificate_of_an_endpoint_says_so_and_is_taken_for_no_model(cli, served, finished, case):
    path = finished / "certificate.json"
    code, out, err = cli("verify", path, "--any-verdict")
    said = " ".join(out.split())
    assert (code, err) == (0, "")
    assert f"endpoint {served.url}/v1/models/model:explain, answers with SHA-256" in said
    assert "model not seen: this certificate can neither check a model file nor load an explainer" in said
    assert "the answers of the endpoint; explainer and hardening are those declared for it" in said
    assert json.loads(cli("verify", path, "--any-verdict", "--json")[1])["endpoint"].startswith(served.url)
    code, out, err = cli("verify", path, "--any-verdict", "--model", "model.pt2")
    assert (code, out) == (1, "")
    assert "whose model was not seen, so it cannot be about this model" in err
    with pytest.raises(CertificateError, match="whose model was not seen"):
        Service.load(case / "model.pt2", path, uncertified=True)


def test_without_an_architecture_a_perceptron_stands_for_it_and_a_note_says_so(cli, served, tmp_path):
    arguments = [a for a in command(served.url) if a not in ("--arch", "small_arch:build")]
    code, out, _ = cli(*arguments, "--run-dir", tmp_path / "run", "--json")
    assert code in (0, 1, 3)
    assert any("No --arch: the reference models are perceptrons with 256" in note for note in json.loads(out)["notes"])


def test_what_is_asked_is_said_before_it_begins_and_an_error_says_how_to_go_on(cli, served, case, tmp_path):
    run = tmp_path / "run"
    code, _, err = cli(*command("http://127.0.0.1:9"), "--run-dir", run)
    said = " ".join(err.split())
    assert code == 2
    assert (
        "http://127.0.0.1:9/v1/models/model:explain will be asked 496 questions (120 examples, 4 each, and 16" in said
    )
    assert "no connection" in said
    assert f"Its answers so far are kept: to continue, repeat the command with --run-dir {run} --resume" in said
    (tmp_path / "tight.toml").write_text((case / "v2.toml").read_text() + "budget = 300\n")
    arguments = command(served.url, "v2.toml")
    arguments[arguments.index("v2.toml")] = str(tmp_path / "tight.toml")
    served.asked.clear()
    code, _, err = cli(*arguments, "--run-dir", tmp_path / "other")
    assert (code, served.asked) == (2, [])
    assert not (tmp_path / "other").exists()
    assert "takes 496 questions" in err
    assert "set patience = [1] in a policy (--policy FILE.toml)" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: ["audit", "model.pt2", *a[1:]], "got both (the file is model.pt2)"),
        (lambda a: ["audit", *a[5:]], "expected a MODEL file (or, for audit, --endpoint URL), got neither"),
        (lambda a: [*a, "--pretraining-pool", "data.npz"], "--pretraining-pool only works with a network"),
        (lambda a: [*a, "--format", "kserve"], "json, kserve-v1, v2 or an existing TOML file"),
    ],
)
def test_what_does_not_go_together_is_said(cli, tmp_path, change, said):
    code, out, err = cli(*change(command("http://127.0.0.1:9")), "--run-dir", tmp_path / "run")
    assert (code, out) == (2, "")
    assert said in err
