"""`safexplain tune` as a stranger uses it: files in, a searched and audited release out, errors in one line."""

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields

import numpy as np
import pytest
import torch
from cases import digits, write_case
from torch import nn

from safexplain import HardenedIG, Hardening
from safexplain.audit import Recipe
from safexplain.cli import _run
from safexplain.cli.run import tune
from safexplain.loading.models import load_model
from safexplain.tune import Point, Study, Tuned
from safexplain.verdict.judgement import EXIT_CODES

pytest.importorskip("optuna")

COMMAND = ("tune", "model.pt2", "--data", "data.npz", "--recipe", "recipe.toml", "--policy", "policy.toml",
           "--explainer", "InputXGradient", "--references", 6)  # fmt: skip
"""With a policy under which attacks are few and quick."""

Cli = Callable[..., tuple[int, str, str]]


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with an overfitted digits network, its data and recipe, and public digits."""
    folder = tmp_path_factory.mktemp("case")
    x, y = digits(500)
    policy = 'patience = [1]\nsuite = ["Threshold", "LikelihoodRatio", "Stacked"]\n'
    write_case(folder, network, x[:300], y[:300], Recipe(lr=3e-3, epochs=30, batch_size=32), policy)
    np.savez(folder / "public.npz", x=x[300:], y=y[300:])
    return folder


@pytest.fixture(scope="module")
def searched(case, tmp_path_factory):
    """Exit code, printed object and run directory of a search of 12 trials."""
    run = tmp_path_factory.mktemp("searched") / "run"
    arguments = [*COMMAND, "--public", "public.npz", "--trials", 12, "--run-dir", run, "--json"]
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.chdir(case)
        patch.setenv("SAFEXPLAIN_USES", str(run.parent / "uses.sqlite"))
        code = _run([str(a) for a in arguments])
    assert errors.getvalue() == ""
    return code, json.loads(printed.getvalue()), run


def test_one_json_object_is_printed_and_the_exit_code_is_the_confirmations(searched):
    code, content, run = searched
    assert {"front", "chosen", "confirmed", "trials"} <= content.keys()
    assert content["trials"] == 12
    assert code == EXIT_CODES[content["confirmed"]["verdict"]]
    assert content["chosen"]["number"] in [point["number"] for point in content["front"]]
    assert {"native", "recommended", "public models"} <= content["reference"].keys()
    for point in (*content["front"], *content["reference"].values()):
        assert Point.from_dict(point).to_dict() == point
    assert content["run_dir"] == str(run)


def test_the_files_of_a_search_are_in_the_run_directory(searched):
    _, content, run = searched
    assert {"front.html", "front.json", "hardening.json", "report.html", "certificate.json", "signals.npz"} <= set(
        content["files"].values()
    )
    assert [name for name in content["files"].values() if not (run / name).is_file()] == []
    kept = json.loads((run / "front.json").read_text())
    assert kept == {name: value for name, value in content.items() if name in kept}
    assert Hardening.from_json((run / "hardening.json").read_text()).to_dict() == content["chosen"]["hardening"]
    said = json.loads((run / "certificate.json").read_text())["predicate"]
    assert said["search"]["trials"] == 12
    assert said["search"]["digest"] == content["digest"]
    assert said["hardening"] == content["chosen"]["hardening"]
    page = (run / "front.html").read_text()
    assert "model.pt2" in page
    for name in ("native", "recommended", "public models"):
        assert f'alt="{name} explanation: predicted ' in page  # the same examples under each


def test_hardening_json_goes_to_audit_and_to_a_hardened_explainer(searched, cli, tmp_path):
    _, content, run = searched
    chosen = Hardening.from_json((run / "hardening.json").read_text())
    assert chosen.to_dict() == content["chosen"]["hardening"]
    x = torch.rand(2, 1, 8, 8)
    released = HardenedIG(load_model("model.pt2").model, hardening=chosen).attribute(x, target=0, n_steps=2)
    assert released.shape == x.shape
    given = [a for a in COMMAND[1:] if a not in (6,)]
    code, out, error = cli("audit", *given, 0, "--hardening", run / "hardening.json", "--run-dir", tmp_path, "--json")
    assert code in (1, 3), error
    assert json.loads(out)["references"] == 0
    audited = json.loads((tmp_path / "certificate.json").read_text())["predicate"]
    assert audited["hardening"] == content["chosen"]["hardening"]


def test_a_finished_search_is_taken_up_without_another_trial(searched, cli, monkeypatch):
    code, content, run = searched
    models = {path: path.stat().st_mtime_ns for path in run.glob("models/*.pt")}
    assert models
    monkeypatch.setenv("SAFEXPLAIN_USES", str(run.parent / "uses.sqlite"))
    again, out, error = cli(*COMMAND, "--public", "public.npz", "--trials", 12, "--run-dir", run, "--resume")
    assert (again, error) == (code, "")
    text = " ".join(out.split())
    for said in ("12 releases tried", "native", "recommended", "public models", "chosen", "leak", "utility", "signs"):
        assert said in text
    assert str(run / "front.html") in text
    kept = json.loads((run / "front.json").read_text())
    assert (kept["digest"], kept["front"]) == (content["digest"], content["front"])
    assert {path: path.stat().st_mtime_ns for path in run.glob("models/*.pt")} == models
    assert cli(*COMMAND, "--trials", 12, "--run-dir", run)[0] == 2  # without --resume it is somebody's


BAD = {
    "no trials": ((*COMMAND, "--trials", 0), "trials"),
    "public data that is not public": ((*COMMAND, "--public", "data.npz"), "300 of 300"),
    "an option of audit": ((*COMMAND, "--hardening", "none"), "hardening"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(cli, name, tmp_path):
    arguments, said = BAD[name]
    code, out, error = cli(*arguments, "--run-dir", tmp_path / "run")
    lines = [line for line in error.splitlines() if line.strip() and "left" not in line]
    assert (code, out) == (2, "")
    assert len(lines) == 1, error
    assert lines[0].startswith("error: ")
    assert said in lines[0]


def test_without_optuna_it_is_said_how_to_install_it(cli, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, error = cli(*COMMAND, "--trials", 12, "--run-dir", tmp_path / "run")
    assert code == 2
    assert "safexplain[tune]" in error
    assert error.count("\n") == 1


def test_an_interrupted_search_shows_what_it_found_and_says_how_to_go_on(searched, cli, monkeypatch, tmp_path):
    _, content, _ = searched
    front = tuple(Point.from_dict(point) for point in content["front"])
    plain = {f.name: content[f.name] for f in fields(Study)}
    points = tuple(Point.from_dict(point) for point in plain["points"])
    reference = {name: Point.from_dict(point) for name, point in plain["reference"].items()}
    study = Study(**{**plain, "points": points, "reference": reference, "notes": (), "interrupted": True})
    found = Tuned(front, front[0], None, study)
    monkeypatch.setattr(tune, "searched", lambda *args, **options: found)
    for style in ("--json", "--quiet", ""):
        run = tmp_path / f"run{style}"
        code, out, error = cli(*COMMAND, "--run-dir", run, *([style] if style else []))
        assert code == 130
        assert f"--run-dir {run} " in error
        assert "--resume" in error
        if style == "--json":
            content = json.loads(out)
            assert (content["exit_code"], content["run_dir"]) == (130, str(run))
            assert content["front"]
        else:
            assert out if style != "--quiet" else "INCONCLUSIVE" in out
        assert (run / "front.html").is_file()
        assert not (run / "certificate.json").exists()
