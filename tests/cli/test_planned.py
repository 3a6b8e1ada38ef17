"""`--plan` says what it will cost and does nothing; `--quick` looks and certifies nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit import AuditOptions, Policy, Population, Recipe, Shadows, Signals
from safexplain.audit.planning import Plan, Stage, plan_audit
from safexplain.audit.references.training import train_one
from safexplain.audit.run import Pool
from safexplain.audit.splits import Splits
from safexplain.cli.run import planned
from safexplain.cli.run.quick import EXAMPLES, REFERENCES, QuickLook

pytestmark = pytest.mark.usefixtures("few_trees")

Cli = Callable[..., tuple[int, str, str]]
RECIPE = Recipe(lr=1e-2, epochs=20, batch_size=32)
ROWS = 500
ASKED = ("audit", "state.pt", "--arch", "plan_arch:build", "--data", "data.npz", "--recipe", "recipe.toml",
         "--explainer", "Saliency", "--policy", "policy.toml")  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an overfitted network, its data, its recipe and a policy that is soon asked."""
    folder = tmp_path_factory.mktemp("planned")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 12)).astype(np.float32), rng.integers(0, 3, ROWS)
    member = rng.random(ROWS) < 0.5
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = train_one(RECIPE, network(), torch.from_numpy(x[member]), torch.from_numpy(y[member]), generator)
    np.savez(folder / "data.npz", x=x, y=y, member=member)
    torch.save(net.state_dict(), folder / "state.pt")
    source = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(),"
    (folder / "plan_arch.py").write_text(source + " nn.Linear(32, 3))\n")
    (folder / "recipe.toml").write_text(RECIPE.to_toml())
    suite = '["Threshold", "LikelihoodRatio", "Stacked"]'
    (folder / "policy.toml").write_text(f"fpr = 0.1\nmax_tpr = 0.2\npatience = [1, 20]\nsuite = {suite}\n")
    return folder


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are measured as fast as they can be."""
    monkeypatch.setattr("safexplain.audit.planning.plan_audit", partial(plan_audit, budget=0.5))


def files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if "__pycache__" not in p.parts)


def test_a_plan_writes_nothing_and_prints_its_keys(cli: Cli, case: Path) -> None:
    before = files(case)
    code, out, err = cli(*ASKED, "--references", 4, "--plan", "--json", "--run-dir", "never")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {
        "seconds",
        "memory_bytes",
        "disk_bytes",
        "best_certifiable",
        "stages",
        "machine",
        "warnings",
    } <= found.keys()
    assert found["seconds"] > 0 < found["memory_bytes"]
    assert 0 < found["best_certifiable"] <= 1
    assert found["claim"] == "excess"
    assert not found["reachable"]
    assert files(case) == before


def test_a_plan_is_a_table_of_stages_for_a_person(cli: Cli, case: Path) -> None:
    code, out, _ = cli(*ASKED, "--references", 4, "--plan")
    assert code == 0
    for said in ("training reference models", "attacking (native)", "Memory: about", "Disk: about", "Best verdict"):
        assert said in out
    code, out, _ = cli(*ASKED, "--references", 0, "--plan", "--quiet")
    assert code == 0
    assert len(out.split()) == 2  # a time


def test_errors_while_planning_are_one_line(cli: Cli) -> None:
    code, out, err = cli(*ASKED, "--references", 2, "--plan")
    assert (code, out) == (2, "")
    assert err.startswith("error: references: expected 0 or at least 4")


def test_an_interrupted_plan_has_nothing_to_take_up(cli: Cli, case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safexplain.audit.planning.plan_audit", interrupted)
    before = files(case)
    code, out, err = cli(*ASKED, "--plan")
    assert (code, out, err) == (130, "", "interrupted\n")
    assert files(case) == before


def test_a_quick_look_is_marked_everywhere_and_certifies_nothing(cli: Cli, case: Path) -> None:
    code, out, _ = cli(*ASKED, "--quick", "--json", "--run-dir", "quick")
    found = json.loads(out)
    assert found["quick"] is True
    assert found["references"] <= REFERENCES
    assert found["policy"]["patience"] == [1, 5]
    assert (code, found["verdict"]) in ((1, "leak"), (3, "inconclusive"))
    if code == 3:
        assert "quick look" in found["sentence"]
    assert any(note.startswith("A quick look: 4 reference models") for note in found["notes"])
    assert "certificate" not in found["files"]
    written = {path.name for path in (case / "quick").iterdir()}
    assert {"report.html", "signals.npz"} <= written
    assert "certificate.json" not in written
    assert "Quick look." in (case / "quick" / "report.html").read_text()
    assert not Path(os.environ["SAFEXPLAIN_USES"]).exists()  # no example of a certificate was looked at


def test_a_quick_look_asks_only_about_examples_that_certify_nothing(cli: Cli, case: Path) -> None:
    code, *_ = cli(*ASKED, "--quick", "--quiet", "--run-dir", "asked")
    assert code in (1, 3)
    asked = Signals.load(case / "asked" / "signals.npz").examples
    with np.load(case / "data.npz") as data:
        member, pool = (
            data["member"],
            Pool(Population.of(data["x"], data["y"]), Shadows((network(),), data["member"][None])),
        )
    whole = pool.signals()
    scored = Splits.of(whole, Policy.from_toml(case / "policy.toml"), trains=True).certification
    assert asked is not None
    assert whole.examples is not None
    assert scored.sum() > 0.6 * len(member)
    assert not np.isin(asked, whole.examples[scored]).any()


def test_a_quick_look_does_not_stand_beside_a_certificate(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "certificate.json").write_text("{}")
    code, _, err = cli(*ASKED, "--quick", "--run-dir", tmp_path, "--resume")
    assert code == 2
    assert "certificate.json of a whole audit" in err


def test_canaries_are_planned_too(cli: Cli, case: Path) -> None:
    before = files(case)
    code, out, _ = cli("canaries", "--preset", "logit-768", "--runs", 40, "--scenario", "S1", "--plan", "--json")
    found = json.loads(out)
    assert (code, found["claim"]) == (0, "epsilon")
    assert found["best_certifiable"] > found["limit"] / 2 > 0
    assert {"seconds", "memory_bytes", "disk_bytes", "stages"} <= found.keys()
    code, out, _ = cli("canaries", "--preset", "logit-768", "--runs", 40, "--scenario", "S1", "--plan")
    assert code == 0
    assert "told apart without an error" in " ".join(out.split())
    assert files(case) == before


def test_a_plan_of_a_quick_look_costs_less(cli: Cli) -> None:
    whole, quick = (json.loads(cli(*ASKED, "--plan", "--json", *more)[1]) for more in ((), ("--quick",)))
    models = [next(s["count"] for s in plan["stages"] if s["stage"].startswith("training")) for plan in (whole, quick)]
    labels = [next(s["count"] for s in plan["stages"] if s["stage"].startswith("asking")) for plan in (whole, quick)]
    assert models == [16, REFERENCES]
    assert labels[1] < labels[0] / 10


@pytest.mark.parametrize(("rows", "share", "free"), [(9000, 0.5, True), (9000, 0.01, False), (300, 0.5, False)])
def test_a_quick_look_takes_both_sides_and_each_class_its_share(rows: int, share: float, free: bool) -> None:
    rng = np.random.default_rng(1)
    population = Population.of(rng.normal(size=(rows, 3)), rng.choice(4, rows, p=[0.1, 0.2, 0.3, 0.4]))
    member = rng.random(rows) < share
    look = QuickLook.of(population, member, Policy(), AuditOptions(slices={"a": np.arange(rows)}), 16, 0)
    assert len(look.pool) <= EXAMPLES
    inside = look.member[look.asked]
    assert look.policy.uncounted == free
    assert look.policy.patience == (1, 5)
    assert "counts as a use" in look.options.notes[-1] or free
    if rows == 9000:
        assert inside.sum() == (1000 if share == 0.5 else member.sum())
        shares = np.bincount(look.pool.y.numpy()[look.asked]) / len(look.asked)
        assert np.allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=0.03)
    given = {"recipe": None, "population": look.pool}
    found = look.arguments(given, planned=False)
    assert len(found["population"]) == len(found["member"]) == len(found["options"].slices["a"]) == len(look.asked)


def test_what_does_not_fit_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan((Stage("training", 7200.0, 3, "models"),), 10**15, 10**16, 0.05, 0.02, "excess", 100, 90)
    assert planned.show_plan(plan, tmp_path / "a" / "b", json_=False, quiet=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Warning: this machine has" in out
    assert "are free: give a --run-dir elsewhere" in out
    assert "out of reach" in out
    assert planned.warnings_of(replace(plan, memory_bytes=1, disk_bytes=1), 2, 2) == []
    assert [planned.spoken(s) for s in (3.21, 59.0, 600.0, 36000.0)] == ["3.2 s", "59 s", "10 min", "10.0 h"]
