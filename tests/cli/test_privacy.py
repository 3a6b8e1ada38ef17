"""A model trained with differential privacy, audited: its guarantee stands in certificate and report."""

import html
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import digits, export
from torch import nn

from safexplain.audit import Recipe
from safexplain.cli import _run
from safexplain.dp import DPFineTuner, PrivacyStatement, Steps
from safexplain.verdict.canaries.result import CanaryResult, Claim, Errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a network trained with DP, its data, its statement, and another network."""
    return network(tmp_path_factory.mktemp("dp"), epsilon=8)


def network(folder: Path, *, epsilon: float) -> Path:
    """The folder, filled."""
    x, y = digits(400)
    x = x.reshape(400, 64)
    member = np.random.default_rng(0).random(400) < 0.5
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    inside = torch.from_numpy(x[member]), torch.from_numpy(y[member])
    done = DPFineTuner(
        net, inside, epsilon=epsilon, delta=1e-4, epochs=4, batch_size=40, lr=0.01, pretrained=False
    ).fit()
    done.statement.save(folder / "privacy.json")
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    export(done.model, x[:2], folder / "model.pt2")
    export(net, x[:2], folder / "other.pt2")
    (folder / "recipe.toml").write_text(Recipe(epochs=2).to_toml())
    return folder


def audit(folder: Path, model: str, run: Path, *extra: object) -> int:
    arguments = ["audit", folder / model, "--data", folder / "data.npz", "--recipe", folder / "recipe.toml"]
    more = ["--privacy", folder / "privacy.json", "--references", 4, "--run-dir", run, "--quiet"]
    more += ["--explainer", "Saliency"]
    return _run([str(a) for a in (*arguments, *more, *extra)])


def canaries(path: Path, claim: Claim, wrong: int) -> Path:
    """A finding of 1,000 runs, as many of which were taken for the other world."""
    half = wrong // 2
    errors = Errors(claim.mechanism.steps if claim.mechanism else 1, 0.0, half, 500, half, 500)
    path.write_text(json.dumps(CanaryResult("gradient", claim, "pld", 0.95, (errors,), 1000, 5.0).to_dict()))
    return path


def test_the_guarantee_stands_in_certificate_and_report(trained, tmp_path, capfd):
    stated = PrivacyStatement.load(trained / "privacy.json")
    found = canaries(tmp_path / "canaries.json", Claim.of(stated), 200)
    assert audit(trained, "model.pt2", tmp_path / "run", "--canaries", found) in (0, 1, 3)
    predicate = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]
    assert predicate["privacy"] == json.loads((trained / "privacy.json").read_text())
    assert predicate["canaries"] == json.loads(found.read_text())
    notes = " ".join(predicate["notes"])
    assert "Reference models were trained with differential privacy, as the target was: noise multiplier" in notes
    assert "not by the recipe (epochs = 2 and batch_size = 64)" in notes
    assert "Reference models were trained by the privacy statement" in notes
    report = (tmp_path / "run" / "report.html").read_text()
    assert "What the training guarantees" in report
    assert "several records of one person" in report
    assert "What canaries say about the training" in report
    assert predicate["canaries"]["sentence"] in html.unescape(report)
    capfd.readouterr()
    certificate = tmp_path / "run" / "certificate.json"
    assert _run(["verify", str(certificate), "--model", str(trained / "model.pt2"), "--any-verdict"]) == 0
    out = capfd.readouterr().out
    assert "as stated: epsilon" in out
    assert predicate["canaries"]["sentence"] in out


def test_where_epsilon_alone_satisfies_the_policy_the_certificate_is_by_guarantee(tmp_path, capfd):
    """Four reference models certify nothing by measurement; here nothing needs to be measured."""
    network(tmp_path, epsilon=1)
    assert audit(tmp_path, "model.pt2", tmp_path / "run") == 0
    certificate = tmp_path / "run" / "certificate.json"
    content = json.loads(certificate.read_text())["predicate"]["audit"]
    assert content["basis"] == "by guarantee"
    assert content["implied"]["tpr"] <= content["implied"]["by_epsilon"] < 0.02
    report = (tmp_path / "run" / "report.html").read_text()
    assert "by guarantee" in report
    assert "As good as the privacy statement." in report
    assert "Not differential privacy." not in report
    capfd.readouterr()
    assert _run(["verify", str(certificate), "--model", str(tmp_path / "model.pt2")]) == 0
    assert "by guarantee" in capfd.readouterr().out


def test_a_statement_about_other_weights_or_none_is_refused(trained, tmp_path, capfd):
    assert audit(trained, "other.pt2", tmp_path / "run") == 2
    assert "about other weights" in capfd.readouterr().err
    planned = replace(PrivacyStatement.load(trained / "privacy.json"), weights="")
    path = planned.save(tmp_path / "planned.json")
    assert audit(trained, "model.pt2", tmp_path / "run", "--privacy", path) == 2
    assert "names no weights, so nothing binds it to this model" in capfd.readouterr().err


def test_canaries_of_another_training_or_against_the_statement_are_refused(trained, tmp_path, capfd):
    claim = Claim.of(PrivacyStatement.load(trained / "privacy.json"))
    refuting = canaries(tmp_path / "refuting.json", claim, 0)
    assert audit(trained, "model.pt2", tmp_path / "run", "--canaries", refuting) == 2
    assert "refute the privacy statement" in capfd.readouterr().err
    other = canaries(tmp_path / "other.json", Claim(Steps(22.3557, 1.0, 500, "full-batch"), 1e-4), 200)
    assert audit(trained, "model.pt2", tmp_path / "run", "--canaries", other) == 2
    assert "expected canaries of the training in the privacy statement" in capfd.readouterr().err
    assert not list((tmp_path / "run").rglob("*.pt")), "nothing was trained"
