"""The evidence under audit/: what the suites compute beside the library is right, and they run."""

import importlib
import json
import re
import sys
from argparse import Namespace

import numpy as np
import pytest
from evidence import ROOT, needs, run, twice

from audit import gpu
from audit.shared import resampling
from audit.shared import run as common
from audit.suites.attack_table import suite
from audit.suites.attack_table.tasks import DRAWS
from audit.suites.dp_attacks import heads
from audit.suites.paper_a import suite as paper_a
from audit.suites.paper_c_canaries import images
from safexplain.verdict.stats import roc, tpr_at_fpr


@pytest.fixture
def scores():
    """Low scores for members; a tenth of the non-members, and no member, lies far out."""
    rng = np.random.default_rng(0)
    member = rng.random(4000) < 0.5
    low_is_member = rng.normal(size=4000) - 0.1 * member
    low_is_member[np.flatnonzero(~member)[:200]] += 20
    return low_is_member, member


def test_swapped_axes_report_the_non_members_found_while_few_members_are_lost(scores):
    low_is_member, member = scores
    lost, found = paper_a.swapped_curve(low_is_member, member)
    for rate in (0.001, 0.01, 0.1):
        cut = np.sort(low_is_member[member])[::-1][int(rate * member.sum())]
        assert found[lost <= rate][-1] == pytest.approx((low_is_member[~member] > cut).mean(), abs=2e-3)


def test_the_committed_table_3_is_the_published_one_and_the_corrected_one():
    means = json.loads((ROOT / "audit" / "results" / "paper_a.json").read_text())["figures"]["means"]
    assert np.round(means["l1"]["published"], 4).tolist() == [0.0922, 0.1562, 0.6380]
    assert np.round(means["l1"]["corrected"], 4).tolist() == [0.0118, 0.0622, 0.6380]


def test_weighted_rates_are_the_rates_of_repeated_examples():
    rng = np.random.default_rng(3)
    member = rng.random(500) < 0.5
    signal = np.round(rng.normal(size=500) + 0.5 * member)  # many ties
    weights = rng.multinomial(500, np.full(500, 1 / 500), size=5).T
    weights = np.concatenate([np.ones((500, 1)), weights], axis=1).astype(np.float32)
    auc, tpr = resampling.resampled_rates(signal, member, weights, 0.01)
    for b in range(6):
        again = np.repeat(np.arange(500), weights[:, b].astype(int))
        curve = roc(signal[again], member[again])
        assert auc[b] == pytest.approx(curve.auc, abs=1e-6)
        assert tpr[b] == pytest.approx(tpr_at_fpr(curve, fpr=0.01).tpr, abs=1e-6)


def test_a_finished_part_is_not_made_again_unless_its_parameters_change(tmp_path):
    parts, made = common.Parts(tmp_path, "audit.shared", "safexplain.errors"), []
    for parameters in (["a", 1], ["a", 1], ["a", 2]):
        parts.get(parameters, lambda p=parameters: made.append(p) or {"p": p})
    assert made == [["a", 1], ["a", 2]]


@pytest.fixture
def tree(tmp_path):
    """A repository in small: a suite, what it imports from its neighbours and the library, and what it does not."""
    sources = {
        "audit/suites/one/suite.py": "from safexplain.dp import noise\nfrom ..two.made import made\nfrom . import near",
        "audit/suites/one/near.py": "from ...shared.run import table",
        "audit/suites/two/made.py": "import safexplain.verdict.power",
        "audit/suites/two/other.py": "",
        "audit/shared/run.py": "import numpy",
        "safexplain/__init__.py": "",
        "safexplain/dp/__init__.py": "from safexplain.dp import inner",
        "safexplain/dp/inner.py": "",
        "safexplain/verdict/power.py": "",
        "safexplain/other.py": "",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def code_now(root, *modules):
    common.code_of.cache_clear()
    common.code_digest.cache_clear()
    return common.code_of("audit.suites.one", *modules, root=root)


def test_what_was_stored_is_not_used_again_when_any_code_behind_it_has_changed(tree):
    before, narrow = code_now(tree), code_now(tree, "safexplain.dp")
    assert before == code_now(tree)
    own = ("suites/one/suite", "suites/one/near", "suites/two/made", "shared/run")
    changes = {f"audit/{name}.py": (True, True) for name in own}
    changes |= {"safexplain/dp/__init__.py": (True, True), "safexplain/dp/inner.py": (True, True)}
    changes |= {"safexplain/verdict/power.py": (True, False)}  # named modules of the library, and no others
    changes |= {"safexplain/other.py": (False, False), "audit/suites/two/other.py": (False, False)}
    for name, expected in changes.items():
        source = (tree / name).read_text()
        (tree / name).write_text(source + "\n# changed\n")
        assert (code_now(tree) != before, code_now(tree, "safexplain.dp") != narrow) == expected, name
        (tree / name).write_text(source)


def test_no_path_of_the_machine_is_recorded(monkeypatch):
    script = str(ROOT / "audit" / "suites" / "paper_a" / "__main__.py")
    monkeypatch.setattr(sys, "argv", [script, "--data", "/home/somebody/data", "--quick"])
    found = common.provenance(1.0)
    assert found["command"] == "python -m audit.suites.paper_a --data data --quick"
    assert str(ROOT) not in json.dumps(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batched_training", "dp.head"])
def test_benchmarks_run(tmp_path, name):
    done, report = run(f"audit.benchmarks.{name}", "--quick", out=tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert report.keys() >= {"targets", "seconds", "hardware", "versions", "revision"}


QUICK = {
    "red_team": (),
    "bound_errors": (),
    "broken_trainers": (),
    "paper_b_recourse.evidence": (),
    "releases --task digits": (),
    "paper_d": ("cifar10.npz",),
    "paper_c_canaries.figure3": ("cifar10.npz", f"weights/{images.NETS['quick']}.npz"),
    "dp_attacks --on gtsrb": ("gtsrb.npz", f"weights/{heads.QUICK.net}.npz"),
    "paper_e_tmi": ("tinyimagenet32_100.npz", "cifar10.npz", "gtsrb.npz"),
}
"""Command of a suite -> the files that it needs."""


@pytest.mark.slow
@pytest.mark.parametrize("command", [pytest.param(name, marks=needs(*files)) for name, files in QUICK.items()])
def test_a_suite_runs_quickly_and_resumes(command, tmp_path):
    suite, *arguments = command.split()
    first, again = twice(f"audit.suites.{suite}", tmp_path, *arguments)
    assert first["quick"]
    assert first.keys() == again.keys()


def drawn(*gains, error=0.001):
    """Results of one row in one release at one level: TPR at 1 %, at 5 %, AUC in each draw."""
    each = [{"some, native": {"changes": {"with labels: with it": {"1": [*g, error, error, error]}}}} for g in gains]
    return dict(zip(DRAWS, each, strict=True))


def test_a_row_is_confirmed_by_the_second_draw_of_its_strongest_case_alone():
    rows = (
        ((0.04, 0.0, 0.0), (0.01, 0.0, 0.0), "TPR at 1 %", True),
        ((0.04, 0.0, 0.0), (0.0, 0.04, 0.04), "TPR at 1 %", False),  # another case is not the one that was chosen
        ((0.0, 0.0, 0.003), (0.0, 0.0, 0.003), "AUC", True),
        ((0.004, 0.0, 0.0), (0.04, 0.0, 0.0), None, False),  # too little to matter where it is looked for
    )
    for first, second, case, confirmed in rows:
        found = suite.conclude(drawn(first, second))["with labels: with it"]
        assert (found["confirmed"], found["case"]) == (confirmed, case and f"some, native, 1: {case}")


def test_every_command_exists_and_takes_its_options(tmp_path, capsys):
    for step in gpu.STEPS[1:]:
        full, small = (step.command(tmp_path / "out.json", Namespace(quick=quick, data=tmp_path, cache=tmp_path))[2:]
                       for quick in (False, True))  # fmt: skip
        path = ROOT.joinpath(*step.module.split("."))
        module = importlib.import_module(f"{step.module}.suite" if path.is_dir() else step.module)
        for name, *given in (full, small):
            assert name == step.module
            with pytest.raises(SystemExit) as stopped:
                module.main([*given, "--help"])
            assert stopped.value.code == 0
            known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert {option.partition("=")[0] for option in given if option.startswith("--")} <= known, name
    assert gpu.STEPS[0].command(tmp_path / "x.xml", Namespace(quick=False))[2:6] == ["pytest", "-q", "-m", "gpu"]
