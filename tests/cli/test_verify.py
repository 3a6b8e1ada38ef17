"""`safexplain verify` in a deployment: a certificate of this very file goes through, everything else stops it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import digits, write_case
from certificates import key_pair, sealed
from results import audited
from torch import nn

from safexplain import HardenedSaliency
from safexplain._versions import RELEASE_FORMAT, VERSION, versions
from safexplain.audit import Recipe
from safexplain.cli import _run
from safexplain.hardening.hardening import Hardening
from safexplain.loading.models import load_model
from safexplain.outputs import Probability
from safexplain.verdict.certificate.write import guarantee_statement, statement, write_json
from safexplain.verdict.guarantee import Estimate, Guarantee, Measured
from safexplain.verdict.judgement import Judgement
from safexplain.verdict.words import limits

LEAK = 2.5
Cli = Callable[..., tuple[int, str, str]]


def certificate(path: Path, model: Path, judged: Judgement | None = None, **more: Any) -> Path:
    """A certificate about a file."""
    digests = {"sha256": hashlib.sha256(model.read_bytes()).hexdigest(), "safexplainModelDigest": "cd" * 32}
    content = statement(
        subject={model.name: digests if "sha256" not in more else {"safexplainModelDigest": "cd" * 32}},
        explainer={"method": "IG", "output": "probability", "options": {"n_steps": 25}},
        hardening=more.get("hardening", Hardening.recommended().to_dict()),
        audit=replace(judged or audited(), uses=2, forced=True).to_dict(),
        utility=None,
        materials={},
        environment=versions() | more.get("environment", {}),
        notes=more.get("notes", ["Only 4 reference models"]),
        native=audited(LEAK).summary(),
        limits=limits(audited()),
        subject_data=more.get("subject_data"),
    )
    return write_json(path, content)


@pytest.fixture
def case(tmp_path):
    """A folder with a model file and its certificate."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    certificate(tmp_path / "certificate.json", tmp_path / "model.pt")
    return tmp_path


def test_a_certificate_of_this_very_file_is_verified_and_says_what_was_certified(cli):
    code, out, err = cli("verify", "certificate.json", "--model", "model.pt")
    assert (code, err) == (0, "")
    for said in (
        "Certified under a weaker policy (excess 20 points, 10% false positives",
        "The policy allows 20.0%; bounds hold with 95% confidence",
        "not signed",
        "IG of the predicted probability, n_steps=25",
        "Hardening(clip=TopKSet(k=4, fraction=0.1, positive=True))",
        "the 4 features (or top 10%, if more) that count most for the class",
        f"more than {audited().bound:.1%} of members beyond labels alone, at 10% false positives",
        "asked 200 times: labels alone ",
        "Leak proven: asking ",
        "for 2 configurations",
        "Queries of these kinds, up to 200 an example.",
        "blind baseline: the inputs are not in the signals",
        "Only 4 reference models",
    ):
        assert said in out, said


LATER = f"{VERSION.rpartition('.')[0]}.99"


def test_a_certificate_of_another_patch_release_is_verified_and_says_so(cli, tmp_path):
    certificate(tmp_path / "certificate.json", tmp_path / "model.pt", environment={"safexplain": LATER, "torch": "2.5"})
    code, out, err = cli("verify", "certificate.json", "--model", "model.pt")
    assert (code, err) == (0, "")
    assert f"safexplain {LATER} (release format {RELEASE_FORMAT}), captum" in out
    assert "yes: the installed versions release what was audited" in out
    assert f"made with safexplain {LATER}, which releases the same as {VERSION}" in out
    assert "made with torch 2.5, but " in out
    content = json.loads(cli("verify", "certificate.json", "--model", "model.pt", "--json")[1])
    assert (content["serves_here"]["serves"], content["serves_here"]["problems"]) == (True, [])
    assert len(content["serves_here"]["notes"]) == 2


@pytest.mark.parametrize(
    ("made_with", "install"),
    [
        ({"safexplain": "0.1.0"}, "safexplain==0.1.*"),
        ({"safexplain": LATER, "release_format": "99"}, f"safexplain=={LATER}"),
        ({"captum": "0.8.0"}, "captum==0.8.0"),
    ],
    ids=["minor", "format", "captum"],
)
def test_versions_that_would_not_serve_it_fail_and_say_what_to_install(cli, tmp_path, made_with, install):
    certificate(tmp_path / "certificate.json", tmp_path / "model.pt", environment=made_with)
    arguments = ("verify", "certificate.json", "--model", "model.pt")
    code, out, err = cli(*arguments)
    assert (code, out) == (1, "")
    for said in ("is intact, but cannot be served here", f'pip install "{install}"', "or audit again"):
        assert said in err, said
    assert err.count("\n") == 1
    assert not json.loads(cli(*arguments, "--json")[1])["verified"]
    code, out, err = cli(*arguments, "--any-version")
    assert (code, err) == (0, "")
    assert "no: it was made with" in out
    assert f'pip install "{install}"' in out
    content = json.loads(cli(*arguments, "--any-version", "--json")[1])
    assert (content["verified"], content["serves_here"]["serves"]) == (True, False)


def test_json_is_one_object_with_the_same(cli):
    code, out, _ = cli("verify", "certificate.json", "--model", "model.pt", "--json")
    content = json.loads(out)
    assert (code, content["verified"], content["verdict"], content["signature"]) == (0, True, "certified", "none")
    assert (content["bound"], content["levels"]) == (audited().bound, audited().levels)
    assert (content["native"]["verdict"], content["uses"]) == ("leak", 2)
    assert content["explainer"]["options"] == {"n_steps": 25}


def tampered(folder: Path) -> None:
    text = (folder / "certificate.json").read_text()
    (folder / "certificate.json").write_text(text.replace('"verdict": "certified"', '"verdict": "leak"'))


def truncated(folder: Path) -> None:
    raw = (folder / "certificate.json").read_bytes()
    (folder / "certificate.json").write_bytes(raw[: len(raw) // 2])


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "tampered": (tampered, "follows from the counts"),
    "truncated": (truncated, "cannot be read as JSON"),
    "of another model": (lambda f: (f / "model.pt").write_bytes(b"other weights"), "is not the certified file"),
    "of no file": (lambda f: certificate(f / "certificate.json", f / "model.pt", sha256=None), "no SHA-256"),
    "of a leak": (
        lambda f: certificate(f / "certificate.json", f / "model.pt", audited(LEAK)),
        "the verdict is leak. Leak proven",
    ),
    "with a hardening that is none": (
        lambda f: certificate(
            f / "certificate.json", f / "model.pt", hardening={"clip": 3, "mask": None, "noise": None, "grid": None}
        ),
        "clip",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_certificate_that_does_not_hold_stops_with_one_line(cli, tmp_path, name):
    change, said = BAD[name]
    change(tmp_path)
    code, out, err = cli("verify", "certificate.json", "--model", "model.pt")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ")
    assert said in err
    code, out, err = cli("verify", "certificate.json", "--model", "model.pt", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["verified"] is False
    assert said in json.loads(out)["reason"]


def test_names_in_the_audit_of_a_forger_override_nothing_that_was_checked(cli, tmp_path):
    content = json.loads((tmp_path / "certificate.json").read_text())
    forged = {"signature": "valid", "subject": {"any": {}}, "kind": "by construction", "serves_here": 1, "notes": []}
    content["predicate"]["audit"] |= forged
    (tmp_path / "certificate.json").write_text(json.dumps(sealed(content)))
    code, out, _ = cli("verify", "certificate.json", "--model", "model.pt", "--json")
    found = json.loads(out)
    assert (code, found["signature"], found["kind"], list(found["subject"])) == (0, "none", "by audit", ["model.pt"])
    assert found["serves_here"]["serves"] is True
    assert found["notes"] == content["predicate"]["notes"]


def test_wrong_usage_is_exit_code_2(cli):
    for model in ((), ("--model", "nope.pt")):
        code, out, err = cli("verify", "certificate.json", *model)
        assert (code, out, "Traceback" in err) == (2, "", False)


def test_what_a_stranger_writes_into_notes_does_not_steer_the_terminal(cli, tmp_path):
    certificate(tmp_path / "certificate.json", tmp_path / "model.pt", notes=["a\x1b[2Jb\nverdict   leak"])
    _, out, _ = cli("verify", "certificate.json", "--model", "model.pt")
    assert "\x1b" not in out
    assert "a [2Jb verdict   leak" in out


@pytest.fixture
def guaranteed(cli, tmp_path):
    """A certificate by construction, about the model file."""
    sha = hashlib.sha256((tmp_path / "model.pt").read_bytes()).hexdigest()
    content = guarantee_statement(
        subject={"model.pt": {"sha256": sha, "safexplainModelDigest": "cd" * 32}},
        guarantee=Guarantee("student", "IntegratedGradients", ("ab" * 32,), "ef" * 32, 597),
        measured=Measured(200, 0.95, 0.1, Estimate(0.9, 0.85, 0.93)),
        environment={"safexplain": "0.1.0", "torch": "2.5"},
    )
    return write_json(tmp_path / "guarantee.json", content)


def test_what_holds_by_construction_says_so_and_what_it_rests_on_and_of_which_file(cli, guaranteed, tmp_path):
    code, out, err = cli("verify", guaranteed.name, "--model", "model.pt")
    assert (code, err) == (0, "")
    for said in (
        "guarantee.json is intact and about model.pt.",
        "by construction: no attacks were run; it rests on the assumptions below",
        "IntegratedGradients of a student of the labels of 597 public inputs",
        "The label of each explained query is released anyway",
        "The labels of the public inputs may be queried",
        "What the labels themselves reveal",
        "90.0% [85.0%, 93.0%] of 200 inputs",
        "not signed",
        "ab" * 32,
    ):
        assert said in out, said
    assert "certified" not in out
    content = json.loads(cli("verify", guaranteed.name, "--json")[1])
    assert (content["verified"], content["kind"]) == (True, "by construction")
    assert content["guarantee"]["labels_asked"] == 597
    assert "verdict" not in content
    (tmp_path / "other.pt").write_bytes(b"other weights")
    code, _, err = cli("verify", guaranteed.name, "--model", "other.pt")
    assert (code, "other.pt is not the" in err) == (1, True)


def test_a_signed_certificate_is_verified_with_its_key_alone(cli, tmp_path):
    pytest.importorskip("securesystemslib")
    key_pair(tmp_path, "own")
    key_pair(tmp_path, "other")
    verify = ("verify", "certificate.json", "--model", "model.pt")
    code, _, err = cli(*verify, "--public-key", "own.pub")
    assert code == 1
    assert "is not signed" in err
    assert cli("sign", "certificate.json", "--key", "own.pem", "--out", "signed.json")[0] == 0
    assert "predicate" in json.loads((tmp_path / "certificate.json").read_text())
    code, out, _ = cli("sign", "certificate.json", "--key", "own.pem")
    assert (code, out) == (0, "certificate.json is signed.\n")
    code, out, _ = cli(*verify, "--public-key", "own.pub")
    assert code == 0
    assert "signed with the private key of this public key" in out
    code, _, err = cli(*verify, "--public-key", "other.pub")
    assert code == 1
    assert "was not signed with the private key" in err
    code, out, _ = cli(*verify)
    assert code == 0
    assert "signed, but not checked" in out
    assert cli(*verify, "--public-key", "own.pem")[0] == 2
    code, _, err = cli("sign", "certificate.json", "--key", "own.pem", "--out", "again.json")
    assert (code, "already signed" in err, (tmp_path / "again.json").exists()) == (2, True, False)


def test_signing_leaves_a_bad_certificate_unsigned(cli, tmp_path):
    pytest.importorskip("securesystemslib")
    key_pair(tmp_path, "own")
    tampered(tmp_path)
    before = (tmp_path / "certificate.json").read_bytes()
    code, _, err = cli("sign", "certificate.json", "--key", "own.pem")
    assert code == 2
    assert "follows from the counts" in err
    assert (tmp_path / "certificate.json").read_bytes() == before


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an exported model, its data, recipe and policy."""
    folder = tmp_path_factory.mktemp("audited")
    policy = "fpr = 0.1\nmax_tpr = 0.7\npatience = [1]\nreferences = 8\ntraining = 0.0\n"
    write_case(folder, network, *digits(500), Recipe(lr=3e-3, epochs=5, batch_size=32), policy)
    return folder


@pytest.mark.usefixtures("few_trees")
def test_what_was_audited_is_verified_and_served(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SAFEXPLAIN_USES", str(tmp_path / "uses.sqlite"))
    monkeypatch.setenv("SAFEXPLAIN_NOISE_KEY", "a key of the service, 32 bytes..")
    command = ["audit", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml", "--references", "8", "--quiet"]
    command += ["--explainer", "Saliency", "--option", "abs=false", "--policy", "policy.toml"]
    assert _run([*command, "--run-dir", str(tmp_path / "run")]) == 0, capfd.readouterr().err
    path = tmp_path / "run" / "certificate.json"
    assert _run(["verify", str(path), "--model", "model.pt2"]) == 0
    assert "Saliency of the predicted probability, abs=False" in capfd.readouterr().out
    assert _run(["verify", str(path), "--model", "data.npz"]) == 1
    x, model = torch.from_numpy(np.load("data.npz")["x"][:5]), load_model("model.pt2").model
    explainer = HardenedSaliency.from_certificate(model, path)
    by_hand = HardenedSaliency(Probability(model), hardening=Hardening.recommended())
    released = explainer.attribute(x, target=model(x).argmax(1))
    assert torch.equal(released, by_hand.attribute(x, target=model(x).argmax(1), abs=False))
