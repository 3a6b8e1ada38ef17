"""`safexplain serve`, started as a user starts it."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from explain_nets import certificate
from served_digits import certified, exported, trained

from safexplain import Hardening
from safexplain.cli import _run
from safexplain.cli.serve import ServeOptions
from safexplain.loading import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    certified(exported(trained(), folder / "model.pt2"), folder)
    return folder


def refused(capfd, folder, *options: object) -> str:
    """What the command says when it does not start."""
    code = _run(["serve", "--port", "0", *map(str, options)])
    said = capfd.readouterr().err
    assert code == 2
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1, said
    return said


def test_what_is_not_installed_is_named_before_a_model_is_read(folder, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = refused(capfd, folder, "--model", folder / "none.pt2", "--uncertified", "--explainer", "Saliency")
    assert 'uvicorn is not installed; install the extra: pip install "safexplain[serve]"' in said


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
    noisy = certificate(tmp_path, load_model(model).model, explainer=explainer, hardening=Hardening.ranked())
    assert "expected a noise key" in refused(capfd, folder, "--model", model, "--certificate", noisy)
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "password")
    assert "expected at least 16 random bytes" in refused(capfd, folder, "--model", model, "--certificate", noisy)
    assert "LOW:HIGH" in refused(capfd, folder, "--model", model, "--certificate", good, "--input-range", "1")
    assert "period" in refused(capfd, folder, "--model", model, "--certificate", good, "--period", "hour")


def test_the_hardening_of_a_service_before_its_audit_is_named_as_in_an_audit():
    defaults = {field.name: field.default.default for field in fields(ServeOptions)}

    def asked(text: str | None) -> str | None:
        options = ServeOptions(**{**defaults, "model": Path("model.pt2"), "hardening": text, "looks": 3})
        found = json.loads(options.settings())
        assert (Path(found["model"]).name, found["limits"]["looks"]) == ("model.pt2", 3)
        return found.get("hardening")

    assert asked("recommended") is asked(None) is None  # what is usual for the method and the model
    assert Hardening.from_json(asked("deepleak")) == Hardening.deepleak()
