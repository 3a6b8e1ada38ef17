"""The command line as a stranger uses it: files in, one verdict out, errors in one line."""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import digits, export, write_case
from torch import nn

from safexplain.audit import Recipe, Signals
from safexplain.audit.controls import splits as holdout_uses
from safexplain.cli import _run
from safexplain.cli.audit import audit_command, tune_command
from safexplain.cli.options import Options
from safexplain.cli.run.question import explainers_of, parse_hardening
from safexplain.errors import ConfigurationError, InputError
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.loading.models import load_model
from safexplain.verdict.judgement import EXIT_CODES

pytestmark = pytest.mark.usefixtures("few_trees")


Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
RECIPE = Recipe(lr=3e-3, epochs=40, batch_size=32)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with an overfitted digits network in every format, its data and its recipe."""
    folder = tmp_path_factory.mktemp("case")
    torch.save(write_case(folder, network, *digits(400), RECIPE, POLICY), folder / "pickled.pt")
    source = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64),"
    (folder / "digits_arch.py").write_text(source + " nn.ReLU(), nn.Linear(64, 10))\n")
    return folder


POLICY = "fpr = 0.05\nmax_tpr = 0.25\npatience = [1]\nreferences = 8\nuncounted = true\n"
"""Small enough to decide with a few hundred members."""


def synthetic(path: Path, *, shift: float, examples: int = 1200) -> Path:
    """Signals of explanations that move members by `shift` standard deviations."""
    rng = np.random.default_rng(0)
    membership = rng.random((9, examples)) < 0.5
    values = {"l1": np.exp(rng.normal(size=membership.shape) - shift * membership)}
    Signals(membership, values, meta={"targets": [0]}).save(path)
    (path.parent / "small.toml").write_text(POLICY)
    return path


@pytest.mark.parametrize(("shift", "examples", "verdict", "code"), [
    (3.0, 1200, "leak", 1),
    (0.0, 1200, "certified", 0),
    (0.0, 60, "inconclusive", 3),
])  # fmt: skip
def test_attack_prints_one_json_object_and_the_exit_code_is_the_verdict(cli, tmp_path, shift, examples, verdict, code):
    path = synthetic(tmp_path / "signals.npz", shift=shift, examples=examples)
    got, out, err = cli("attack", path, "--json", "--policy", tmp_path / "small.toml")
    content = json.loads(out)
    assert (got, content["verdict"], err) == (code, verdict, "")
    assert content["sentence"].startswith({0: "Certified", 1: "Leak proven", 3: "Inconclusive"}[code])
    assert {a["attack"] for a in content["attacks"]} >= {"LikelihoodRatio"}
    assert all(one["judged"] for one in content["evidence"])  # there are no labels to compare with
    (level,) = content["levels"]
    assert (level["patience"], level["labels"], level["added"]) == (1, None, None)


def test_a_policy_file_is_read_and_options_go_before_it(cli, tmp_path):
    path = synthetic(tmp_path / "signals.npz", shift=0.0, examples=1000)
    (tmp_path / "policy.toml").write_text(f'{POLICY}selection = 0.5\nsuite = ["LikelihoodRatio"]\n')
    _, out, _ = cli("attack", path, "--policy", tmp_path / "policy.toml", "--max-tpr", 0.3, "--json")
    content = json.loads(out)
    assert (content["policy"]["fpr"], content["policy"]["max_tpr"]) == (0.05, 0.3)
    assert {a["attack"] for a in content["attacks"]} == {"LikelihoodRatio"}
    sizes = content["splits"]
    assert sizes["selection"] + sizes["certification"] == 1000
    assert 400 < sizes["selection"] < 600
    code, out, _ = cli("attack", path, "--policy", tmp_path / "policy.toml", "--split", "selection", "--json")
    assert code == 3
    assert json.loads(out)["split"] == "selection"
    code, _, error = cli("attack", path, "--attacks", ",")
    assert (code, "separated by commas" in error) == (2, True), error


def test_an_exported_model_is_audited_natively_and_hardened(cli, tmp_path):
    run = tmp_path / "run"
    command = ("audit", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml", "--references", 4)
    code, out, _ = cli(*command, "--explainer", "Saliency", "--run-dir", run, "--json", "--seed", 3)
    content = json.loads(out)
    assert code == {"certified": 0, "leak": 1, "inconclusive": 3}[content["verdict"]]
    assert content["configuration"] == "recommended"
    found, natively = (
        {(a["attack"], a["signal"]) for a in result["attacks"]} for result in (content, content["compared"]["native"])
    )
    read = {"attributions", "attributions:sign", "label", "loss"}
    assert {s for _, s in natively} >= {"l1", "l2", "variance", "mean", *read}
    assert {s for _, s in found} >= read
    assert {("LikelihoodRatio", "attributions@32"), ("RMIA", "loss")} <= found
    assert [level["patience"] for level in content["levels"]] == [1, 32]
    assert {c["name"]: c["failed"] for c in content["controls"]} == {
        "exact copies": False,
        "blind baseline": False,
        "null model": False,
        "shuffled membership": False,
        "references": False,
        "recipe": False,
        "accuracy": False,
    }
    assert content["uses"] == 1
    ratios = [
        {a["signal"]: a["auc"] for a in result["attacks"] if a["attack"] == "LikelihoodRatio"}
        for result in (content["compared"]["native"], content)
    ]
    native, released = ratios
    assert native["l1"] > 0.53
    assert "l1" not in released  # every released map has the same
    assert content["utility"]["top_overlap"] > 0.8
    signals = Signals.load(run / "signals.npz")
    assert signals.membership.shape == (5, 400)
    assert np.array_equal(signals.membership[0], np.load("data.npz")["member"])
    certificate = json.loads((run / "certificate.json").read_text())
    assert certificate["predicate"]["verdict"] == content["verdict"]
    assert certificate["subject"][0]["digest"]["sha256"] == load_model("model.pt2").sha256
    assert "key" not in json.dumps(certificate["predicate"]["hardening"])
    assert (run / "report.html").stat().st_size > 10_000
    again = cli("attack", run / "signals.npz", "--seed", 3, "--quiet")
    assert again[0] == code  # the same configuration: the same use (another one: tests/verdict/test_claims.py)


def test_a_state_dict_with_its_architecture_and_an_unhardened_release(cli, tmp_path):
    command = ("audit", "state.pt", "--arch", "digits_arch:build", "--data", "data.npz", "--hardening", "none")
    extra = ("--references", 0, "--explainer", "InputXGradient", "--output", "logit", "--run-dir", tmp_path / "run")
    code, out, _ = cli(*command, *extra, "--json")
    content = json.loads(out)
    assert content["configuration"] == "native"
    assert content["compared"] == {}
    assert content["references"] == 0
    assert content["verdict"] != "certified"
    assert code in (1, 3)


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """A folder with a table whose rows belong to persons and regions, a model of its other columns, and its recipe."""
    folder, rng = tmp_path_factory.mktemp("columns"), np.random.default_rng(0)
    x, y, member = rng.normal(size=(120, 3)), rng.integers(0, 2, 120), rng.random(120) < 0.5
    names = [f"feature {j}" for j in range(3)]
    lines = [
        ",".join([*map(str, row), f"p{i // 3}", "ns"[i % 2], str(label), str(int(inside))])
        for i, (row, label, inside) in enumerate(zip(x.tolist(), y.tolist(), member.tolist(), strict=True))
    ]
    (folder / "rows.csv").write_text("\n".join([",".join([*names, "person", "region", "label", "member"]), *lines]))
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    export(model, np.zeros((2, 3), np.float32), folder / "model.pt2")
    (folder / "recipe.toml").write_text("epochs = 2\n")
    (folder / "policy.toml").write_text('patience = [1, 2]\nfpr = 0.1\nmax_tpr = 0.3\nsuite = ["LikelihoodRatio"]\n')
    return folder


def test_several_explainers_groups_and_slices_come_from_the_command_line(cli, columns, tmp_path):
    command = ("audit", columns / "model.pt2", "--data", columns / "rows.csv", "--recipe", columns / "recipe.toml")
    asked = ("--explainer", "IG,Saliency", "--option", "IG.n_steps=4", "--policy", columns / "policy.toml")
    beside = ("--group-column", "person", "--slice-by", "region", "--references", 4, "--hardening", "none")
    code, out, error = cli(*command, *asked, *beside, "--run-dir", tmp_path / "run", "--json")
    assert code in EXIT_CODES.values(), error
    signals = Signals.load(tmp_path / "run" / "signals.npz")
    assert signals.attributions is not None
    assert signals.attributions.shape == (5, 120, 6)  # the region, which the model does not take, is no feature
    assert signals.values["l1@2"].shape == (5, 120, 2)
    assert signals.groups is not None
    assert len(np.unique(signals.groups)) == 40
    assert set(signals.slices["region"].tolist()) == {"n", "s"}
    said = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]["explainer"]
    assert (said["method"], said["options"]) == ("IG+Saliency", {"IG": {"n_steps": 4}})
    assert any("groups have members and non-members" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize(
    ("explainers", "options", "said"),
    [
        ("IG,Saliency", ["n_steps=4"], "METHOD.NAME=VALUE"),
        ("IG,Saliency", ["Lime.n_samples=4"], "METHOD.NAME=VALUE"),
        ("IG,Tarot", [], "Tarot"),
        ("", [], "expected one of IG"),
    ],
)
def test_explainers_that_cannot_be_asked_together_are_refused(explainers, options, said):
    with pytest.raises(ConfigurationError, match=f"(?i){said}"):
        explainers_of(explainers, options)


def test_explainers_of_public_rows_are_refused_without_such_and_public_rows_without_these():
    with pytest.raises(ConfigurationError, match="ProtoDash is made from public rows: give --public FILE"):
        explainers_of("IG,ProtoDash", [])
    with pytest.raises(ConfigurationError, match="--public only works with Anchors"):
        explainers_of("IG", [], np.zeros((2, 3), dtype=np.float32))


def test_one_explainer_keeps_its_options_and_several_have_them_by_name():
    assert explainers_of("IG", ["n_steps=4"]) == ([HARDENED["IG"]], {"n_steps": 4})
    several = explainers_of("IG, Saliency", ["Saliency.abs=false"])
    assert several == ([HARDENED["IG"], HARDENED["Saliency"]], {"Saliency": {"abs": False}})


def test_a_hardening_is_named_or_written_or_in_a_file(tmp_path):
    assert parse_hardening("recommended") is None  # it depends on what is explained
    assert parse_hardening("none") == Hardening.none()
    assert parse_hardening("deepleak") == Hardening.deepleak()
    written = Hardening.deepleak().to_json()
    (tmp_path / "hardening.json").write_text(written)
    (tmp_path / "model.pt2").write_bytes(b"PK\x03\x04\xff\xfe")
    assert parse_hardening(written) == parse_hardening(str(tmp_path / "hardening.json")) == Hardening.deepleak()
    for nothing, said in (("strong", "deepleak"), (str(tmp_path / "model.pt2"), "not a text file")):
        with pytest.raises(ConfigurationError, match=said):
            parse_hardening(nothing)


def test_audit_and_tune_share_their_options_and_audit_has_at_most_32():
    audits, tunes = ({*inspect.signature(command).parameters} for command in (audit_command, tune_command))
    assert {f.name for f in fields(Options)} <= audits & tunes
    assert len(audits - {"model"}) <= 32


@pytest.mark.slow
def test_the_demo_shows_a_leak_and_takes_it_away(cli, tmp_path):
    code, out, _ = cli("demo", "--run-dir", tmp_path / "demo", "--json")
    content = json.loads(out)
    assert content["compared"]["native"]["verdict"] == "leak"
    assert content["verdict"] == "certified"
    assert code == 0
    for name in ("report.html", "certificate.json", "signals.npz", "native-signals.npz"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000


def test_the_demo_counts_its_uses_apart_from_other_audits_of_the_same_digits(monkeypatch, tmp_path):
    counted: list[Path] = []

    def run_demo(cache: Path, **options: object) -> None:
        counted.append(holdout_uses.default_path())
        raise InputError("stop here")

    monkeypatch.setattr("safexplain.cli.run.preview.run_demo", run_demo)
    for named, expected in ((None, tmp_path / "run" / "uses.sqlite"), ("elsewhere.sqlite", Path("elsewhere.sqlite"))):
        monkeypatch.delenv(holdout_uses.VARIABLE, raising=False)
        if named:
            monkeypatch.setenv(holdout_uses.VARIABLE, named)
        assert _run(["demo", "--run-dir", str(tmp_path / "run"), *(["--resume"] if counted else [])]) == 2
        assert counted[-1] == expected
        assert os.environ.get(holdout_uses.VARIABLE) == named
