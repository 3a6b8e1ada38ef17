"""Audits of a fine-tuned model from the command line: who was in the pre-training data, or in the fine-tuning data?"""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import digits, export
from html_page import Page
from torch import nn

from safexplain.audit import FineTune, Population, Recipe, Shadows, Signals, fine_tune
from safexplain.audit.references import shadows
from safexplain.audit.references.shadows import train_one
from safexplain.cli.run import recipes

pytestmark = pytest.mark.usefixtures("few_trees")

Cli = Callable[..., tuple[int, str, str]]

PRETRAINING = Recipe(lr=3e-3, epochs=20, batch_size=32)
TUNING = Recipe(lr=3e-3, epochs=10, batch_size=32)
ARCH = """from torch import nn


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
"""
POLICY = "fpr = 0.1\nmax_tpr = 0.4\npatience = [1]\nreferences = 4\nuncounted = true\n"
AUDIT = ("audit", "state.pt", "--arch", "tuned_arch:build", "--data", "downstream.npz", "--explainer", "InputXGradient")
POOL = ("--pretraining-pool", "pool.npz", "--recipe", "both.toml")
SMALL = ("--references", "4", "--policy", "policy.toml")


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A model that was pre-trained on half of 400 digits and fine-tuned on other digits in three groups of classes."""
    folder = tmp_path_factory.mktemp("stages")
    x, y = digits(700)
    member = np.random.default_rng(0).random(400) < 0.5
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    inside = np.flatnonzero(member)
    train_one(PRETRAINING, net, torch.tensor(x[inside]), torch.tensor(y[inside]), torch.Generator().manual_seed(0))
    down, groups, tuned = x[400:], np.minimum(y[400:] // 4, 2), np.arange(300) % 4 > 0
    how = FineTune(Population.of(down[tuned], groups[tuned]), TUNING, sample=1.0)
    model = fine_tune(Shadows((net,), member[None]), how).models[0]
    np.savez(folder / "pool.npz", x=x[:400], y=y[:400], member=member)
    np.savez(folder / "downstream.npz", x=down, y=groups, member=tuned)
    torch.save(model.state_dict(), folder / "state.pt")
    (folder / "tuned_arch.py").write_text(ARCH)
    (folder / "both.toml").write_text(f'{TUNING.to_toml()}trainable = "head"\n[pretraining]\n{PRETRAINING.to_toml()}')
    (folder / "block.toml").write_text("trainable = 1\n")
    (folder / "policy.toml").write_text(POLICY)
    export(model, x[:2], folder / "model.pt2")
    return folder


def test_an_audit_of_the_pretraining_data_says_so_everywhere_and_is_taken_up_after_a_kill(cli, tmp_path, monkeypatch):
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    arguments = (*AUDIT, *POOL, *SMALL, "--run-dir", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "fine_tune", killed)
        code, _, err = cli(*arguments)
    assert (code, "--resume" in err) == (130, True)
    assert len(list((tmp_path / "run" / "models").glob("*.pt"))) == 4

    asked = []
    together = shadows.train_together

    def counting(recipe: Recipe, models: list[nn.Module], *rest: object, **options: object) -> object:
        asked.append(recipe.epochs)
        return together(recipe, models, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shadows, "train_together", counting)
    code, out, err = cli(*arguments, "--resume")
    assert asked[-1] == TUNING.epochs
    assert PRETRAINING.epochs not in asked  # the pre-trained ones were kept
    assert code in (0, 1, 3), err
    said = " ".join(out.split())
    assert "The verdict is about who was in the pre-training data, and says nothing about the fine-tuning data." in said
    assert "Accuracy of the model on the fine-tuning data: " in said
    assert "pre-trained on random halves of the pool (400 examples), then fine-tuned (the head) on 225 of" in said
    assert "by a default" not in said

    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]
    assert certificate["subject_data"] == "pre-training"
    assert any(name.startswith("pre-training pool") for name in certificate["materials"])
    assert "pre-training recipe sha256" in certificate["materials"]
    assert "who was in the pre-training data?" in " ".join(
        Page((tmp_path / "run" / "report.html").read_text()).text.split()
    )
    signals = Signals.load(tmp_path / "run" / "signals.npz")
    assert signals.membership[0].tolist() == np.load("pool.npz")["member"].tolist()
    assert signals.meta["labels"] == "foreign"
    assert signals.values["prediction"].shape[2] == 3

    verified = cli("verify", tmp_path / "run" / "certificate.json", "--model", "state.pt", "--any-verdict", "--json")
    assert json.loads(verified[1])["subject_data"] == "pre-training"


def test_defaults_are_named_and_all_rows_of_the_data_may_be_members(cli, tmp_path, case):
    data = dict(np.load(case / "downstream.npz"))
    np.savez(tmp_path / "all.npz", x=data["x"], y=data["y"], member=np.ones(300, dtype=bool))
    arguments = [str(a).replace("downstream.npz", str(tmp_path / "all.npz")) for a in AUDIT]
    more = ("--pretraining-pool", "pool.npz", "--recipe", "block.toml", "--hardening", "none", *SMALL)
    code, out, err = cli(*arguments, *more, "--run-dir", tmp_path / "run")
    said = " ".join(out.split())
    assert code in (0, 1, 3), err
    assert "No [pretraining] in the recipe: reference models were pre-trained by a default" in said
    assert "fine-tuned (the last block and the head) on 300 of the 300 rows" in said


def test_without_a_pool_a_model_of_two_stages_is_audited_about_its_fine_tuning_data(cli, tmp_path):
    more = ("--recipe", "both.toml", "--hardening", "none", *SMALL)
    code, out, err = cli(*AUDIT, *more, "--run-dir", tmp_path / "run")
    assert code in (0, 1, 3), err
    assert "who was in the fine-tuning data, and says nothing about the pre-training data" in " ".join(out.split())
    assert "started from weights that had seen other data" in " ".join(out.split())
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())["predicate"]
    assert certificate["subject_data"] == "fine-tuning"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*POOL[:2], "--recipe", "zero.toml"), 'trainable: expected "head", "all", "lora", or a number of blocks'),
        ((*POOL[:2], "--recipe", "wrong.toml"), "wrong.toml: pretraining: unknown ['speed']"),
    ],
)
def test_options_that_do_not_go_together_stop_before_anything_is_made(cli, case, tmp_path, arguments, message):
    (case / "zero.toml").write_text("trainable = 0")
    (case / "wrong.toml").write_text("[pretraining]\nspeed = 1")
    code, _, err = cli(*AUDIT, *arguments, "--run-dir", tmp_path / "run")
    assert (code, message in err) == (2, True), err
    assert not (tmp_path / "run").exists()


def test_an_exported_graph_needs_arch_to_be_pretrained(cli, tmp_path):
    command = ["model.pt2" if a == "state.pt" else a for a in AUDIT if a not in ("--arch", "tuned_arch:build")]
    code, _, err = cli(*command, *POOL, *SMALL, "--run-dir", tmp_path / "run")
    assert (code, "pass --arch, how the network is built" in err) == (2, True), err
