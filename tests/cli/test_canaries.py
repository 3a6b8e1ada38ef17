"""`safexplain canaries`: a claim of DP training audited from the command line."""

import json

import numpy as np
import pytest

from safexplain.audit.canaries import run as module
from safexplain.audit.canaries.run import FinishedRuns
from safexplain.cli import _run
from safexplain.cli.run.canaries import load_canary_config

PROMISED = ("epsilon_lower", "confidence", "epsilon_add_remove", "epsilon_substitute", "ceiling", "verdict", "runs")


@pytest.fixture
def config(tmp_path):
    """dp.toml and its data: 60 records of 2 classes, full batches, 20 steps."""
    rng = np.random.default_rng(0)
    for name in ("train", "others"):
        y = rng.integers(2, size=60)
        np.savez(tmp_path / f"{name}.npz", x=(rng.normal(size=(60, 6)) + y[:, None]).astype(np.float32), y=y)
    (tmp_path / "dp.toml").write_text(
        """
        [data]
        file = "train.npz"
        auxiliary = "others.npz"

        [training]
        steps = 20
        batch_size = 60
        clip = 1.0
        lr = 0.5

        [claim]
        epsilon = 12.0
        delta = 1e-5
        """
    )
    return tmp_path / "dp.toml"


def run(*arguments: object) -> int:
    runs = () if {"--runs", "--minutes"} & {*arguments} else ("--runs", 400)
    return _run(["canaries", *map(str, (*runs, *arguments))])


def test_a_configuration_is_audited_and_the_files_are_written(config, tmp_path, capfd):
    code = run("--config", config, "--run-dir", tmp_path / "run", "--json")
    content = json.loads(capfd.readouterr().out)
    assert code == 3
    assert all(name in content for name in (*PROMISED, "seconds_per_run"))
    assert content["epsilon_substitute"] == 12.0
    assert content["epsilon_add_remove"] < content["epsilon_lower"] < 12
    assert content["runs"] == 400
    assert content["claim"]["mechanism"]["sample_rate"] == 1.0
    written = json.loads((tmp_path / "run" / "canaries.json").read_text())
    assert written["epsilon_lower"] == content["epsilon_lower"]


def test_a_broken_claim_exits_with_1_and_too_few_runs_with_3(config, tmp_path, capfd):
    text = config.read_text().replace("epsilon = 12.0", "epsilon = 12.0\nadjacency = 'add_remove'")
    config.write_text(text.replace("lr = 0.5", "lr = 0.5\nnoise_multiplier = 3.6"))
    loud = config.with_name("loud.toml")
    loud.write_text(config.read_text().replace("epsilon = 12.0", "epsilon = 1.0"))
    assert run("--config", loud, "--run-dir", tmp_path / "a", "--quiet") == 1
    assert capfd.readouterr().out == "refuted\n"
    assert run("--config", config, "--run-dir", tmp_path / "b", "--quiet", "--runs", 8) == 3
    assert capfd.readouterr().out == "not refuted\n"


def test_all_scenarios_share_the_confidence(config, tmp_path, capfd):
    assert run("--config", config, "--run-dir", tmp_path / "run", "--scenario", "all") == 3
    out = capfd.readouterr().out
    for name in ("worst-case", "gradient", "crafted", "mislabelled", "natural"):
        assert name in out
    assert "Each bound holds at 98.8%, and all together at 95%." in out
    assert "The worst case is simulated" in out
    content = json.loads((tmp_path / "run" / "canaries.json").read_text())
    assert {s["confidence"] for s in content["scenarios"].values()} == {0.9875}
    trained = {name: s["epsilon_lower"] for name, s in content["scenarios"].items() if name != "worst-case"}
    assert content["detectable"] == min(s["detectable"] or 500 for n, s in content["scenarios"].items() if n in trained)
    assert content["epsilon_lower"] in trained.values()


FUNCTION = """
import torch

def train(dataset, generator):
    x, y = (torch.stack(part) for part in zip(*[dataset[i] for i in range(len(dataset))]))
    mean, deviation = x.mean(0), x.std(0)
    w = torch.zeros(2, x.shape[1])
    for _ in range(20):
        z = (x - mean) / deviation
        g = ((z @ w.T).softmax(1) - torch.nn.functional.one_hot(y, 2))[:, :, None] * z[:, None]
        g = g * (1 / g.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
        w = w - 0.5 * (g.sum(0) + 12.0 * torch.randn(w.shape, generator=generator)) / len(x)
    model = torch.nn.Linear(x.shape[1], 2)
    with torch.no_grad():
        model.weight.copy_(w / deviation)
        model.bias.copy_(-(w / deviation) @ mean)
    return model

def bias(model):
    return [0.0, model.bias[0].item()]
"""
"""Its features are standardised by private data."""


@pytest.fixture
def function(config, monkeypatch):
    """The configuration with a training function."""
    (config.parent / "scaled.py").write_text(FUNCTION)
    monkeypatch.chdir(config.parent)
    text = config.read_text().replace("lr = 0.5", "noise_multiplier = 12.0\nfunction = 'scaled:train'")
    config.write_text(text.replace("epsilon = 12.0", ""))
    return config


def test_an_outlier_is_for_a_function(config, tmp_path, capfd):
    assert run("--config", config, "--run-dir", tmp_path / "run", "--scenario", "outlier") == 2
    assert '"outlier" and "white-box" audit your own training function' in capfd.readouterr().err


def test_all_scenarios_of_a_function_skip_those_that_see_its_steps(function, tmp_path, capfd):
    arguments = ("--config", function, "--run-dir", tmp_path / "run", "--scenario", "all", "--runs", 60)
    assert run(*arguments, "--json") == 1
    content = json.loads(capfd.readouterr().out)
    assert list(content["scenarios"]) == ["mislabelled", "crafted", "natural", "outlier"]
    assert list(content["skipped"]) == ["white-box", "gradient"]
    assert "expected steps of an Opacus DPOptimizer, observed none" in content["skipped"]["gradient"]
    assert "noisy = step(clipped, noise, batch)" in content["skipped"]["white-box"]
    assert {each["confidence"] for each in content["scenarios"].values()} == {0.99}
    assert content["scenario"] == "outlier"
    assert run(*arguments, "--resume") == 1
    assert "Skipped white-box, gradient:" in capfd.readouterr().out


def test_all_scenarios_of_a_function_share_minutes(function, capfd):
    assert run("--config", function, "--scenario", "all", "--minutes", 5, "--plan", "--json") == 0
    assert json.loads(capfd.readouterr().out)["seconds"] <= 300


WATCHED = """
import torch
from safexplain.audit.canaries import add_noise

def train(dataset, generator, step=add_noise, noise=12.0):
    x, y = (torch.stack(part) for part in zip(*[dataset[i] for i in range(len(dataset))]))
    w = torch.zeros(2, x.shape[1])
    for _ in range(20):
        g = ((x @ w.T).softmax(1) - torch.nn.functional.one_hot(y, 2))[:, :, None] * x[:, None]
        g = g * (1 / g.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
        w = w - 0.5 * step(g.sum(0), noise * torch.randn(w.shape, generator=generator), range(len(x))) / len(x)
    model = torch.nn.Linear(x.shape[1], 2, bias=False)
    model.weight.data = w
    return model

def quiet(dataset, generator, step=add_noise):
    return train(dataset, generator, step, noise=10.0)
"""


@pytest.mark.parametrize(
    ("name", "code", "says"), [("train", 0, "As claimed: all 7 checks"), ("quiet", 1, "Refuted: the noise has 0.8")]
)
def test_the_steps_of_a_function_are_watched(function, tmp_path, capfd, name, code, says):
    (tmp_path / "watched.py").write_text(WATCHED)
    function.write_text(function.read_text().replace("scaled:train", f"watched:{name}"))
    assert run("--config", function, "--run-dir", tmp_path / "run", "--scenario", "white-box") == code
    told = capfd.readouterr()
    assert says in " ".join((told.out + told.err).split())


def test_a_target_of_every_class_has_a_row_of_its_own(config, function, tmp_path, capfd):
    arguments = ("--config", function, "--run-dir", tmp_path / "run", "--target", "classes", "--runs", 20, "--json")
    run(*arguments)
    content = json.loads(capfd.readouterr().out)
    assert sorted(content["scenarios"]) == ["mislabelled, class 0", "mislabelled, class 1"]
    assert run("--config", function, "--target", "classes", "--plan", "--runs", 40, "--json") == 0
    stages = json.loads(capfd.readouterr().out)["stages"]
    assert [stage["count"] for stage in stages if stage["unit"] == "runs"] == [80]
    function.write_text(function.read_text().replace("function = 'scaled:train'", "lr = 0.5"))
    assert run("--config", function, "--target", "classes") == 2
    assert "only work with a training function of your own" in capfd.readouterr().err


def test_a_record_and_a_score_of_ones_own(function, tmp_path, capfd):
    np.savez(tmp_path / "far.npz", x=np.full(6, 500, np.float32), y=1)
    arguments = ["--config", function, "--json", "--runs", 40]
    arguments += ["--scenario", "outlier", "--canary", tmp_path / "far.npz"]
    assert run(*arguments, "--target", 7, "--run-dir", tmp_path / "own") == 1
    assert json.loads(capfd.readouterr().out)["setting"]["target"] == 7
    score = ("--score", "scaled:bias", "--target", 7, "--run-dir", tmp_path / "score")
    assert run(*arguments, *score) in (0, 1, 3)
    assert json.loads(capfd.readouterr().out)["setting"]["score"].startswith("score ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--canary", "far.npz"), "expected target="),
        (("--canary", "far.npz", "--target", "3", "--scenario", "all"), "one --scenario"),
        (("--canary", "train.npz", "--target", "3"), "a class index"),
        (("--target", "first"), "the number of a row, or classes"),
    ],
)
def test_options_that_contradict_each_other_are_one_line_that_says_what_to_do(
    function, tmp_path, capfd, arguments, says
):
    np.savez(tmp_path / "far.npz", x=np.full(6, 500, np.float32), y=1)
    assert run("--config", function, "--run-dir", tmp_path / "run", "--runs", 8, *arguments) == 2
    err = capfd.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_names_of_classes_mean_the_same_in_both_files(config, tmp_path, capfd):
    for name, classes in (("train", ["cat", "dog", "eel"]), ("others", ["dog", "eel"])):
        x = np.eye(60, 6, dtype=np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.array([classes[i % len(classes)] for i in range(60)]))
    assert load_canary_config(config).auxiliary[1].unique().tolist() == [1, 2]
    np.savez(tmp_path / "others.npz", x=x, y=np.array(["fox"] * 60))
    assert run("--config", config, "--run-dir", tmp_path / "run") == 2
    assert "expected those of the data, ('cat', 'dog', 'eel')" in capfd.readouterr().err


def test_an_interruption_keeps_what_is_finished(config, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(module._PARAMETERS, "cpu", 14 * 100)  # blocks of 100 runs
    save, kept = FinishedRuns.save, []

    def interrupted(store, number, values):
        save(store, number, values)
        kept.append(number)
        if len(kept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(FinishedRuns, "save", interrupted)
    arguments = ("--config", config, "--run-dir", tmp_path / "run", "--json")
    assert run(*arguments) == 130
    said = capfd.readouterr()
    assert "finished models are kept" in said.err
    assert json.loads(said.out)["resume"].endswith("--json --resume")
    assert run(*arguments, "--resume") == 3
    assert sorted(kept) == [0, 1, 2, 3]
    resumed = json.loads(capfd.readouterr().out)
    assert run("--config", config, "--run-dir", tmp_path / "other", "--json") == 3
    assert json.loads(capfd.readouterr().out)["errors"] == resumed["errors"]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (("steps = 20", ""), "[training] lacks steps"),
        (("batch_size = 60", "batch_size = 600"), "at most the 60 records"),
        (("lr = 0.5", "rate = 0.5"), "unknown ['rate']"),
        (("lr = 0.5", "clipping = 'none'"), "flat or auto-s"),
        (("[claim]", "[claims]"), "expected the tables claim, data and training"),
        (("epsilon = 12.0", ""), "noise_multiplier"),
        (('auxiliary = "others.npz"', "classes = 1"), "labels up to 1"),
    ],
)
def test_a_wrong_configuration_is_one_line_that_says_what_to_do(config, tmp_path, capfd, edit, says):
    config.write_text(config.read_text().replace(*edit))
    assert run("--config", config, "--run-dir", tmp_path / "run") == 2
    err = capfd.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_neither_or_both_of_configuration_and_preset_are_refused(config, capfd):
    for arguments in ((), ("--config", config, "--preset", "logit-768")):
        assert run(*arguments) == 2
        assert "logit-768: one logit on 768 features" in capfd.readouterr().err
