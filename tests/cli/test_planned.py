"""The plan comes first; `--plan` is all that is done; `--quick` looks, and decides nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import write_case
from torch import nn

from safexplain.audit import AuditOptions, Policy, Recipe
from safexplain.audit.planning import Plan, Rates, Stage
from safexplain.cli.run import preview
from safexplain.cli.run.preview import FEWEST, quick_changes

pytestmark = pytest.mark.usefixtures("few_trees")

Cli = Callable[..., tuple[int, str, str]]
RECIPE = Recipe(lr=1e-2, epochs=20, batch_size=32)
ROWS = 500
ASKED = ("audit", "state.pt", "--arch", "plan_arch:build", "--data", "data.npz", "--recipe", "recipe.toml",
         "--explainer", "Saliency", "--policy", "policy.toml")  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with an overfitted network, its data, its recipe and a policy that is soon asked."""
    folder = tmp_path_factory.mktemp("planned")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 12)).astype(np.float32), rng.integers(0, 3, ROWS)
    suite = '["Threshold", "LikelihoodRatio", "Stacked"]'
    policy = f"fpr = 0.1\nmax_tpr = 0.2\npatience = [1, 20]\nsuite = {suite}\n"
    write_case(folder, network, x, y, RECIPE, policy)
    source = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(),"
    (folder / "plan_arch.py").write_text(source + " nn.Linear(32, 3))\n")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts)


def test_a_plan_writes_nothing_and_is_an_object_or_a_table_of_stages(cli, case):
    before = files(case)
    code, out, _ = cli(*ASKED, "--references", "4,8", "--plan", "--json", "--run-dir", "never")
    found = json.loads(out)
    assert code == 0
    assert {"memory_bytes", "disk_bytes", "stages", "machine", "warnings"} <= found.keys()
    assert found["seconds"] > 0 < found["memory_bytes"]
    assert 0 < found["best_certifiable"] <= 1
    assert (found["claim"], found["reachable"]) == ("excess", False)
    assert [look[:2] for look in found["later"]] == [[8, ROWS]]
    code, out, _ = cli(*ASKED, "--references", 4, "--plan")
    assert code == 0
    for said in ("training reference models", "attacking (native)", "Memory: about", "Disk: about", "Best verdict"):
        assert said in out
    code, out, _ = cli(*ASKED, "--references", 0, "--plan", "--quiet")
    assert (code, len(out.split())) == (0, 2)  # a time
    assert files(case) == before


def with_files(data: str = "data.npz", recipe: str = "recipe.toml") -> tuple[str, ...]:
    """The audit with other data, or another recipe."""
    return ("audit", "state.pt", "--arch", "plan_arch:build", "--data", data, "--recipe", recipe, *ASKED[8:])


def test_an_audit_says_first_what_it_will_do_and_how_long_that_takes(cli, case):
    code, out, err = cli(*ASKED, "--scored", 200, "--references", 4, "--json", "--run-dir", "whole")
    assert code in (0, 1, 3)
    first, second, *_ = err.splitlines()
    assert first.startswith("200 of 500 examples scored, 4 references, 1 and 20 queries, about ")
    assert first.endswith("; nothing certifiable; --quick for a first look in 2 min")  # the policy asks for 8
    assert second.startswith("References train on 250 rows, half of --data")
    found = json.loads(out)
    assert found["members"] + found["non_members"] == 200
    assert (case / "whole" / "certificate.json").exists()


def test_a_screen_of_a_model_that_saw_nobody_sees_nothing(cli, case):
    with np.load(case / "data.npz") as data:
        x, y = np.random.default_rng(5).normal(size=data["x"].shape), data["y"]
        np.savez(case / "others.npz", x=x.astype(np.float32), y=y, member=data["member"])
    words = ["others.npz" if word == "data.npz" else word for word in ASKED]
    code, out, _ = cli(*words, "--quick", "--json")
    found = json.loads(out)
    assert (code, found["quick"], found["likely"], found["references"]) == (3, True, False, 2)
    assert found["sentence"].startswith("No leak seen by a weak attack, which finds ")
    assert {one["what"] for one in found["seen"]} > {"the label alone", "the native explanation"}
    words = ["/bin/safexplain", "audit", "--quick", "--run-dir", "a b"]
    assert preview.full_command(words) == "safexplain audit --run-dir 'a b' --resume"


def test_a_screen_takes_references_only_where_training_them_is_short():
    given = SimpleNamespace(policy=Policy(), options=AuditOptions())
    plan = Plan((), 0, 0, 0.01, 0.02, "excess", 600, 600, scored=1200, references=8)
    short = quick_changes(replace(plan, rates=Rates(training=5, native=0.005, released=0.005)), given)
    long = quick_changes(replace(plan, rates=Rates(training=1000, native=1, released=1)), given)
    assert (short["references"], short["options"].scored) == (2, 1000)
    assert (long["references"], long["options"].scored) == (0, FEWEST)
    assert short["policy"].patience == (1,)
    assert short["policy"].uncounted
    assert short["options"].quick


def test_copies_on_both_sides_are_refused_by_name_or_dropped_and_counted(cli, case):
    with np.load(case / "data.npz") as data:
        x, member = data["x"].copy(), data["member"]
        x[np.flatnonzero(~member)[:3]] = x[np.flatnonzero(member)[:3]]
        np.savez(case / "copies.npz", x=x, y=data["y"], member=member)
    audit = (*with_files(data="copies.npz"), "--references", 0)
    code, _, err = cli(*audit)
    assert (code, "--drop-copies" in err) == (2, True)
    code, out, _ = cli(*audit, "--drop-copies", "--json")
    assert code == 3
    assert "3 members and 3 non-members that are exact copies of each other were left out." in json.loads(out)["notes"]


def test_references_that_would_train_on_too_few_rows_are_refused_at_once(cli, case):
    (case / "larger.toml").write_text(f"examples = 3000\n{RECIPE.to_toml()}")
    code, out, err = cli(*with_files(recipe="larger.toml"), "--run-dir", "refused")
    assert (code, out) == (2, "")
    assert "trained on 3,000 rows according to the recipe, but reference models would train on only 250" in err
    assert not (case / "refused").exists()


def test_above_an_hour_it_is_said_what_would_be_faster(capsys):
    stages = Stage("training reference models", 3600, 16, "models"), Stage("explaining (native)", 7200, 10_000)
    plan = Plan(stages, 0, 0, 0.009, 0.02, "excess", 600, 600, scored=1200, examples=6000, references=16,
                patience=(1, 32), rates=Rates(label=0.01))  # fmt: skip
    preview.announce(plan, (), gradients=True, gpu=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("This takes 3.0 h here. Faster: --references 8 (95 min); --explainer InputXGradient, if ")
    assert second == (
        "1,200 of 6,000 examples scored, 16 references, 1 and 32 queries, about 3.0 h; certifiable from +0.9 points;"
        " --quick for a first look in 2 min"
    )
    again = replace(plan, stages=(Stage("attacking", 600),), later=((32, 2400, 1800.0), (64, 4800, 9000.0)))
    assert "about 10 min (while undecided, again with 32 and 2,400 in 40 min); certifiable" in preview.plan_sentence(
        again
    )


def test_canaries_are_planned_too(cli, case):
    before = files(case)
    code, out, _ = cli("canaries", "--preset", "logit-768", "--runs", 40, "--scenario", "S1", "--plan", "--json")
    found = json.loads(out)
    assert (code, found["claim"]) == (0, "epsilon")
    assert found["best_certifiable"] > found["limit"] / 2 > 0
    assert {"seconds", "memory_bytes", "disk_bytes", "stages"} <= found.keys()
    assert files(case) == before


def test_what_does_not_fit_is_warned_of(tmp_path, capsys):
    plan = Plan((Stage("training", 7200.0, 3, "models"),), 10**15, 10**16, 0.05, 0.02, "excess", 100, 90)
    assert preview.show_plan(plan, tmp_path / "a" / "b", json_=False, quiet=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Warning: the audit needs about" in out
    assert "are free: choose a --run-dir on another disk" in out
    assert "out of reach" in out
    assert preview.shortages(replace(plan, memory_bytes=1, disk_bytes=1), 2, 2) == []
