"""The command line as a stranger uses it: files in, one verdict out, errors in one line."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from safexplain.audit import Population, Recipe, Signals
from safexplain.audit.controls import holdout_uses
from safexplain.audit.references.training import train_one
from safexplain.cli import _run
from safexplain.cli.audit import audit_command, tune_command
from safexplain.cli.options import Options
from safexplain.cli.run import demo
from safexplain.cli.run.question import explainers_of, parse_hardening
from safexplain.errors import ConfigurationError, InputError
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.loading.models.load import load_model
from safexplain.verdict.evidence import EXIT_CODES

pytestmark = pytest.mark.usefixtures("few_trees")


Cli = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
RECIPE = Recipe(lr=3e-3, epochs=40, batch_size=32)


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an overfitted digits network in every format, its data and its recipe."""
    folder = tmp_path_factory.mktemp("case")
    digits = load_digits()
    x, y = (digits.images[:400, None] / 16).astype(np.float32), digits.target[:400]
    member = np.random.default_rng(0).random(400) < 0.5
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = train_one(RECIPE, network(), torch.from_numpy(x[member]), torch.from_numpy(y[member]), generator)
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    batch = torch.export.Dim("batch")
    program = torch.export.export(net, (torch.from_numpy(x[:2]),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "model.pt2")
    torch.save(net.state_dict(), folder / "state.pt")
    torch.save(net, folder / "pickled.pt")
    source = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64),"
    (folder / "digits_arch.py").write_text(source + " nn.ReLU(), nn.Linear(64, 10))\n")
    (folder / "recipe.toml").write_text(RECIPE.to_toml())
    return folder


POLICY = "fpr = 0.05\nmax_tpr = 0.25\npatience = [1]\nreferences = 8\nuncounted = true\n"
"""Small enough to decide with a few hundred members."""


def synthetic(path: Path, *, shift: float, examples: int = 1200, models: int = 9, levels: tuple[int, ...] = ()) -> Path:
    """Signals of explanations that move members by `shift` standard deviations; with labels where levels are given."""
    rng = np.random.default_rng(0)
    membership = rng.random((models, examples)) < 0.5
    values = {"l1": np.exp(rng.normal(size=membership.shape) - shift * membership)}
    if levels:
        values["label"] = (rng.random(membership.shape) < 0.5).astype(np.float64)
    for level in levels:
        if level > 1:
            values[f"l1@{level}"] = np.exp(rng.normal(size=membership.shape) - shift * membership)
            values[f"kept@{level}"] = np.clip(0.5 + 0.2 * rng.normal(size=membership.shape), 0, 1)
    Signals(membership, values, meta={"targets": [0]}).save(path)
    (path.parent / "small.toml").write_text(POLICY)
    return path


# --- attack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "examples", "verdict", "code"), [
    (3.0, 1200, "leak", 1),
    (0.0, 1200, "certified", 0),
    (0.0, 60, "inconclusive", 3),
])  # fmt: skip
def test_attack_prints_one_json_object_and_the_exit_code_is_the_verdict(
    cli: Cli, tmp_path: Path, shift: float, examples: int, verdict: str, code: int
) -> None:
    path = synthetic(tmp_path / "signals.npz", shift=shift, examples=examples)
    got, out, err = cli("attack", path, "--json", "--policy", tmp_path / "small.toml")
    content = json.loads(out)
    assert (got, content["verdict"], err) == (code, verdict, "")
    assert content["sentence"].startswith({0: "Certified", 1: "Leak proven", 3: "Inconclusive"}[code])
    assert {a["attack"] for a in content["attacks"]} >= {"LikelihoodRatio"}
    for attack in content["attacks"]:
        assert 0 <= attack["auc"] <= 1
        for rate in attack["tpr"]:
            assert rate["realised_fpr"] <= rate["fpr"]
            assert rate["low"] <= rate["tpr"] <= rate["high"]
    for one in content["evidence"]:
        assert 0 <= one["low"] <= one["high"] <= 1
        assert one["judged"] is True  # there are no labels to compare with: the whole is judged
    (level,) = content["levels"]
    assert (level["patience"], level["labels"], level["added"]) == (1, None, None)
    assert level["whole"]["low"] <= level["whole"]["high"]


def test_at_every_level_labels_what_is_added_and_both_stand_side_by_side(cli: Cli, tmp_path: Path) -> None:
    path = synthetic(tmp_path / "signals.npz", shift=3.0, levels=(1, 5))
    (tmp_path / "small.toml").write_text(POLICY.replace("[1]", "[1, 5]"))
    code, out, err = cli("attack", path, "--json", "--policy", tmp_path / "small.toml")
    content = json.loads(out)
    assert (code, content["claim"], err) == (1, "excess", "")
    assert [line["patience"] for line in content["levels"]] == [1, 5]
    for line in content["levels"]:
        assert line["labels"]["tpr"] < 0.15  # these labels tell nothing
        assert line["added"]["low"] > 0.2
        assert line["added"]["low"] <= line["added"]["high"]
        assert line["whole"]["low"] > line["labels"]["tpr"]
    judged = {(e["attack"], e["role"], e["judged"]) for e in content["evidence"]}
    assert ("Stacked", "explanation+label", True) in judged
    assert ("LikelihoodRatio", "explanation", False) in judged
    assert ("LabelPatience", "label", False) in judged


def test_a_level_that_the_file_lacks_decides_nothing_unless_the_policy_names_a_weaker_attacker(
    cli: Cli, tmp_path: Path
) -> None:
    path = synthetic(tmp_path / "signals.npz", shift=0.0)
    (tmp_path / "patient.toml").write_text(POLICY.replace("[1]", "[1, 200]"))
    code, out, _ = cli("attack", path, "--policy", tmp_path / "patient.toml")
    text = " ".join(out.split())
    assert code == 3
    assert "patience = [1]" in text
    assert "200 times nothing judged" in text
    assert cli("attack", path, "--policy", tmp_path / "small.toml", "--quiet")[:2] == (0, "CERTIFIED\n")


def test_the_tables_name_every_attack_by_level(cli: Cli, tmp_path: Path) -> None:
    path = synthetic(tmp_path / "signals.npz", shift=3.0, levels=(1, 5))
    (tmp_path / "small.toml").write_text(POLICY.replace("[1]", "[1, 5]"))
    code, out, _ = cli("attack", path, "--policy", tmp_path / "small.toml")
    text = " ".join(out.split())
    assert code == 1
    for said in ("Likelihood ratio", "Stacked", "asked once", "asked 5 times", "explanations add"):
        assert said in text
    assert "Leak proven: asking " in text
    assert "blind baseline (the inputs are not in the signals" in text  # not run, and why


def test_a_policy_file_is_read_and_options_go_before_it(cli: Cli, tmp_path: Path) -> None:
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
    (tmp_path / "release.toml").write_text('release = "everything"\n')
    (tmp_path / "excess.toml").write_text('claim = "excess"\n')
    for arguments, words in (
        (("--policy", tmp_path / "none.toml"), "cannot read the policy"),
        (("--attacks", ","), "separated by commas"),
        (("--policy", tmp_path / "release.toml"), "release: expected one of"),
        (("--policy", tmp_path / "excess.toml", "--max-tpr", 0.01), "max_excess"),
    ):
        code, _, error = cli("attack", path, *arguments)
        assert (code, words in error) == (2, True), error


def test_what_the_prediction_tells_is_judged_when_it_is_released(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    member = rng.random((9, 1200)) < 0.5
    values = {
        "l1": np.exp(rng.normal(size=member.shape)),
        "loss": np.exp(rng.normal(size=member.shape) - 3.0 * member),
        "label": (rng.random(member.shape) < 0.5).astype(np.float64),
    }
    Signals(member, values, meta={"targets": [0]}).save(tmp_path / "signals.npz")
    for name, more in (("whole", 'claim = "whole"\n'), ("excess", "")):
        (tmp_path / f"{name}.toml").write_text(f'{POLICY}release = "explanation+prediction"\n{more}')
    assert cli("attack", tmp_path / "signals.npz", "--policy", tmp_path / "whole.toml", "--json")[0] == 1
    code, out, _ = cli("attack", tmp_path / "signals.npz", "--policy", tmp_path / "excess.toml", "--json")
    content = json.loads(out)
    assert code in (0, 3)  # no leak: the explanation adds nothing
    assert {e["role"] for e in content["evidence"] if e["judged"]} == {"explanation+loss"}
    assert "beyond predictions alone" in content["sentence"]


@pytest.mark.parametrize(("leak", "level", "code"), [(2.0, (), 1), (0.0, (), 3), (0.0, (2,), 0)])
def test_predictions_alone_are_enough_to_be_attacked(
    cli: Cli, tmp_path: Path, leak: float, level: tuple[int, ...], code: int
) -> None:
    rng = np.random.default_rng(0)
    member = rng.random((9, 800)) < 0.5
    base, way = rng.normal(size=(2, 1, 800, 3))

    def asked() -> np.ndarray:
        scores = base + leak * member[..., None] * way + rng.normal(size=(9, 800, 3))
        return np.exp(scores) / np.exp(scores).sum(2, keepdims=True)

    values = {"prediction": asked()}
    for many in level:
        values[f"predictions@{many}"] = np.concatenate([asked() for _ in range(many)], axis=2)
        values[f"prediction@{many}"] = values[f"predictions@{many}"].reshape(9, 800, many, 3).mean(2)
    Signals(member, values, meta={"targets": [0]}).save(tmp_path / "predictions.npz")
    (tmp_path / "policy.toml").write_text(f"{POLICY}patience = [1, 2]\n".replace("patience = [1]\n", ""))
    found, out, _ = cli("attack", tmp_path / "predictions.npz", "--policy", tmp_path / "policy.toml", "--json")
    content = json.loads(out)
    assert found == code, content["sentence"]
    assert (content["policy"]["release"], content["claim"]) == ("prediction", "whole")
    assert {e["role"] for e in content["evidence"]} == {"loss"}
    assert {e["attack"] for e in content["evidence"]} == {
        "JointLikelihoodRatio", "PredictionPatience"
    }  # fmt: skip
    assert all(e["judged"] for e in content["evidence"])
    told = cli("attack", tmp_path / "predictions.npz", "--policy", tmp_path / "policy.toml")[1]
    assert "explanation" not in told.replace("predictions.npz", "").lower()


# --- audit ----------------------------------------------------------------------------------------------------------


def test_an_exported_model_is_audited_natively_and_hardened(cli: Cli, tmp_path: Path) -> None:
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


def test_a_state_dict_with_its_architecture_and_an_unhardened_release(cli: Cli, tmp_path: Path) -> None:
    command = ("audit", "state.pt", "--arch", "digits_arch:build", "--data", "data.npz", "--hardening", "none")
    extra = ("--references", 0, "--explainer", "InputXGradient", "--output", "logit", "--run-dir", tmp_path / "run")
    code, out, _ = cli(*command, *extra, "--json")
    content = json.loads(out)
    assert content["configuration"] == "native"
    assert content["compared"] == {}
    assert content["references"] == 0
    assert content["verdict"] != "certified"
    assert code in (1, 3)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(cli: Cli, tmp_path: Path) -> None:
    command = ("audit", "model.pt2", "--data", "data.npz", "--references", 4, "--explainer", "Saliency", "--json")
    command = (*command, "--recipe", "recipe.toml")
    first = json.loads(cli(*command, "--run-dir", tmp_path / "a", "--seed", 1)[1])
    again = json.loads(cli(*command, "--run-dir", tmp_path / "b", "--seed", 1)[1])
    other = json.loads(cli(*command, "--run-dir", tmp_path / "c", "--seed", 2)[1])
    assert first["attacks"] == again["attacks"]
    assert first["attacks"] != other["attacks"]


BAD = {
    "a pickle": (["audit", "pickled.pt", "--data", "data.npz"], "--trust-pickle"),
    "a state dict without arch": (["audit", "state.pt", "--data", "data.npz"], "--arch"),
    "no ReLU to guide": (["audit", "model.pt2", "--data", "data.npz", "--explainer", "GuidedBackprop",
                          "--references", "0"], "ReLU"),
    "unknown explainer option": (["audit", "model.pt2", "--data", "data.npz", "--option", "steps=3",
                                  "--references", "0"], "steps"),
    "broken hardening": (["audit", "model.pt2", "--data", "data.npz", "--hardening", '{"clip": 3}'], "clip"),
    "CUDA that is not there": (["audit", "model.pt2", "--data", "data.npz", "--device", "cuda:77"], "CUDA"),
    "too few references": (["audit", "model.pt2", "--data", "data.npz", "--references", "1"], "at least 2"),
    "policy below chance": (["audit", "model.pt2", "--data", "data.npz", "--max-tpr", "0.001"], "guessing"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(cli: Cli, name: str) -> None:
    arguments, said = BAD[name]
    code, out, err = cli(*arguments)
    lines = [line for line in err.splitlines() if line.strip() and "left" not in line]
    assert (code, out) == (2, "")
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert "Traceback" not in err


def test_a_used_run_directory_needs_resume(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "old.txt").touch()
    code, _, err = cli("audit", "model.pt2", "--data", "data.npz", "--run-dir", tmp_path)
    assert code == 2
    assert "--resume" in err


def test_bad_input_leaves_no_run_directory(cli: Cli, tmp_path: Path) -> None:
    cli("audit", "nope.pt", "--data", "data.npz", "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    shapes = ({0: torch.export.Dim("batch")},)
    example = (torch.zeros(2, 3),)
    torch.export.save(torch.export.export(model, example, dynamic_shapes=shapes), folder / "model.pt2")
    (folder / "recipe.toml").write_text("epochs = 2\n")
    (folder / "policy.toml").write_text('patience = [1, 2]\nfpr = 0.1\nmax_tpr = 0.3\nsuite = ["LikelihoodRatio"]\n')
    return folder


def test_several_explainers_groups_and_slices_come_from_the_command_line(
    cli: Cli, columns: Path, tmp_path: Path
) -> None:
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
def test_explainers_that_cannot_be_asked_together_are_refused(explainers: str, options: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){said}"):
        explainers_of(explainers, options)


def test_explainers_of_public_rows_are_refused_without_such_and_public_rows_without_these() -> None:
    with pytest.raises(ConfigurationError, match="ProtoDash is made from public rows: give --public FILE"):
        explainers_of("IG,ProtoDash", [])
    with pytest.raises(ConfigurationError, match="leave it out"):
        explainers_of("IG", [], np.zeros((2, 3), dtype=np.float32))


def test_one_explainer_keeps_its_options_and_several_have_them_by_name() -> None:
    assert explainers_of("IG", ["n_steps=4"]) == ([HARDENED["IG"]], {"n_steps": 4})
    several = explainers_of("IG, Saliency", ["Saliency.abs=false"])
    assert several == ([HARDENED["IG"], HARDENED["Saliency"]], {"Saliency": {"abs": False}})


def test_a_hardening_is_named_or_written_or_in_a_file(tmp_path: Path) -> None:
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


def test_audit_and_tune_share_their_options_and_audit_has_at_most_32() -> None:
    audits, tunes = ({*inspect.signature(command).parameters} for command in (audit_command, tune_command))
    assert {f.name for f in fields(Options)} <= audits & tunes
    assert len(audits - {"model"}) <= 32


# --- interruptions --------------------------------------------------------------------------------------------------


def start(case: Path, run: Path, *extra: str) -> subprocess.Popen[str]:
    """The audit with plain-loop training (augmentation), slow enough to be interrupted."""
    slow = RECIPE.to_toml().replace('augmentation = "none"', 'augmentation = "flip"').replace("= 40", "= 60")
    (case / "slow.toml").write_text(slow)
    (case / "once.toml").write_text("patience = [1]\n")
    command = ["audit", "model.pt2", "--data", "data.npz", "--recipe", "slow.toml", "--references", "6", "--quiet"]
    command += ["--policy", "once.toml"]
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in background jobs
    code = f"{heard}; from safexplain.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", code, *command, "--explainer", "Saliency", "--run-dir", str(run), *extra]
    return subprocess.Popen(
        arguments, cwd=case, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_audit_keeps_what_was_trained_and_says_how_to_resume(
    case: Path, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    run = tmp_path / "run"
    process = start(case, run, "--json")
    deadline = time.monotonic() + 120
    while not list(run.glob("models/*.pt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    kept = {path.name: path.stat().st_mtime_ns for path in run.glob("models/*.pt")}
    assert process.returncode == code, err
    assert err.count("\n") == 1
    assert err.startswith(f"interrupted; finished models are kept in {run}. To continue: safexplain audit model.pt2 ")
    assert 1 <= len(kept) < 6
    said = json.loads(out)
    assert (said["exit_code"], said["run_dir"], said["error"]) == (code, str(run), err.strip())

    program, *arguments = shlex.split(said["resume"])
    assert program == "safexplain"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    again = [sys.executable, "-m", "safexplain", *arguments]
    done = subprocess.run(again, cwd=case, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode in (0, 1, 3), done.stderr
    after = {path.name: path.stat().st_mtime_ns for path in run.glob("models/*.pt")}
    assert len(after) == 6
    assert kept.items() <= after.items()


@pytest.mark.slow
@pytest.mark.parametrize("command", [["demo"], ["canaries", "--preset", "logit-768"]], ids=lambda c: c[0])
def test_every_long_command_that_is_terminated_says_so(tmp_path: Path, command: list[str]) -> None:
    run = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "safexplain", *command, "--json", "--run-dir", str(run)],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not run.is_dir() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (143, 1), err
    said = json.loads(out)
    assert (said["exit_code"], said["run_dir"]) == (143, str(run))
    assert shlex.split(said["resume"]) == ["safexplain", *command, "--json", "--run-dir", str(run), "--resume"]


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_keeps_what_was_stored(case: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
    command = ["audit", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml", "--references", "6", "--quiet"]
    command += ["--policy", "once.toml"]
    code = f"{limit} from safexplain.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", code, *command, "--explainer", "Saliency", "--run-dir", str(run)]
    done = subprocess.run(arguments, cwd=case, env=environment, text=True, capture_output=True, timeout=180)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr
    assert len(list(run.glob("models/*.pt"))) == 6
    assert not list(run.rglob("*.partial*"))


# --- demo -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_demo_writes_all_files_and_says_its_verdict(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Population.of(demo.digits().x[:599], demo.digits().y[:599])
    monkeypatch.setattr(demo, "digits", lambda: few)
    monkeypatch.setattr(demo, "REFERENCES", 6)
    monkeypatch.setattr(demo, "POLICY", replace(demo.POLICY, patience=(1, 5)))
    code, out, _ = cli("demo", "--run-dir", tmp_path / "demo", "--json")
    content = json.loads(out)
    native, hardened = (
        max(a["auc"] for a in found["attacks"] if a["role"] == "explanation")
        for found in (content["compared"]["native"], content)
    )
    assert native > hardened + 0.02
    assert code == 0  # whatever it finds
    assert content["verdict"] in EXIT_CODES
    for name in ("report.html", "certificate.json", "signals.npz", "native-signals.npz"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000


@pytest.mark.slow
def test_the_demo_shows_a_leak_and_takes_it_away(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "REFERENCES", 16)
    code, out, _ = cli("demo", "--run-dir", tmp_path / "demo", "--json")
    content = json.loads(out)
    assert content["compared"]["native"]["verdict"] == "leak"
    assert content["verdict"] == "certified"
    assert code == 0
    for name in ("report.html", "certificate.json", "signals.npz", "native-signals.npz"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000


def test_the_demo_counts_its_uses_apart_from_other_audits_of_the_same_digits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted: list[Path] = []

    def run_demo(cache: Path, **options: object) -> None:
        counted.append(holdout_uses.default_path())
        raise InputError("stop here")

    monkeypatch.setattr("safexplain.cli.run.demo.run_demo", run_demo)
    for named, expected in ((None, tmp_path / "run" / "uses.sqlite"), ("elsewhere.sqlite", Path("elsewhere.sqlite"))):
        monkeypatch.delenv(holdout_uses.VARIABLE, raising=False)
        if named:
            monkeypatch.setenv(holdout_uses.VARIABLE, named)
        assert _run(["demo", "--run-dir", str(tmp_path / "run"), *(["--resume"] if counted else [])]) == 2
        assert counted[-1] == expected
        assert os.environ.get(holdout_uses.VARIABLE) == named
