"""A model trained with differential privacy, audited: its guarantee stands in certificate and report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Recipe
from safexplain.cli import _run
from safexplain.dp import DPFineTuner


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network trained with DP, its data, its statement, and another network."""
    folder = tmp_path_factory.mktemp("dp")
    digits = load_digits()
    x, y = (digits.data[:400] / 16).astype(np.float32), digits.target[:400]
    member = np.random.default_rng(0).random(400) < 0.5
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    inside = torch.from_numpy(x[member]), torch.from_numpy(y[member])
    done = DPFineTuner(net, inside, epsilon=8, delta=1e-4, epochs=4, batch_size=40, lr=0.01, pretrained=False).fit()
    done.statement.save(folder / "privacy.json")
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    dynamic = ({0: torch.export.Dim("batch")},)
    for name, model in (("model.pt2", done.model), ("other.pt2", net.eval())):
        torch.export.save(torch.export.export(model, (torch.from_numpy(x[:2]),), dynamic_shapes=dynamic), folder / name)
    (folder / "recipe.toml").write_text(Recipe(epochs=2).to_toml())
    return folder


def audit(folder: Path, model: str, run: Path) -> int:
    arguments = ["audit", folder / model, "--data", folder / "data.npz", "--recipe", folder / "recipe.toml"]
    more = ["--privacy", folder / "privacy.json", "--references", 4, "--run-dir", run, "--quiet"]
    return _run([str(a) for a in (*arguments, *more)])


def test_the_guarantee_stands_in_certificate_and_report(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert audit(trained, "model.pt2", tmp_path / "run") in (0, 1, 3)
    stated = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]["privacy"]
    assert stated == json.loads((trained / "privacy.json").read_text())
    report = (tmp_path / "run" / "report.html").read_text()
    assert "What the training guarantees" in report
    assert "several records of one person" in report
    capfd.readouterr()
    certificate = tmp_path / "run" / "certificate.json"
    assert _run(["verify", str(certificate), "--model", str(trained / "model.pt2"), "--any-verdict"]) == 0
    assert "as stated: epsilon" in capfd.readouterr().out


def test_a_statement_about_other_weights_is_refused(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert audit(trained, "other.pt2", tmp_path / "run") == 2
    assert "about other weights" in capfd.readouterr().err
