"""A sentence claims no more than was judged; D1 and D3 are defects of version 0.1, as measured from outside."""

import json
from dataclasses import replace

import numpy as np
import pytest
from worlds import EXCESS, LOOSE, recognised, rows_of, synthetic

from safexplain.audit import Signals, certify
from safexplain.cli import _run

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture(scope="module")
def leaking(tmp_path_factory):
    """A file whose explanations leak, with losses, which only RMIA needs, and inputs by which uses are counted."""
    path = tmp_path_factory.mktemp("d1") / "signals.npz"
    recognised(synthetic(leak=0.8, examples=1000, models=18, others=("loss",))).save(path)
    return path


@pytest.fixture
def attack(capfd):
    def call(*arguments):
        exit_code = _run(["attack", *map(str, arguments), "--json"])
        return exit_code, json.loads(capfd.readouterr().out)

    return call


@pytest.mark.parametrize("attacks", ["Threshold,RMIA", "LikelihoodRatio"])
def test_d1_a_restricted_suite_never_certifies_a_file_that_leaks(attack, leaking, tmp_path, attacks):
    (tmp_path / "once.toml").write_text('claim = "whole"\npatience = [1]\n')
    for policy in ((), ("--policy", tmp_path / "once.toml"), ("--policy", tmp_path / "once.toml", "--max-tpr", 0.45)):
        code, found = attack(leaking, "--attacks", attacks, *policy)
        assert found["verdict"] != "certified"
        assert code != 0


def test_d3_a_leak_that_needs_the_label_is_found_by_default():
    """Small on members where the label is 1, and large where it is 0: without the label, nothing."""
    rng = np.random.default_rng(0)
    member = rng.random((17, 2000)) < 0.5
    label = np.broadcast_to(rng.random(2000) < 0.5, member.shape) * 1.0
    towards = np.where(label == 1, -1.5, 1.5) * member
    l1 = np.exp(rng.normal(0, 0.5, member.shape) + towards)
    per_label = Signals(member, {"l1": l1, "label": label, "mean": towards + rng.normal(0, 2.0, member.shape)})
    result = certify(replace(per_label, meta={"targets": [0]}), EXCESS)
    assert result.verdict == "leak"
    assert result.strongest.role == "explanation+label"


def test_d4_one_leaking_model_among_several_is_a_leak_and_is_named():
    signals = synthetic(examples=600, models=9, targets=range(3), seed=3)
    l1 = signals.values["l1"] * np.exp(-2.0 * signals.membership * (np.arange(9) == 1)[:, None])
    result = certify(replace(signals, values={"l1": l1}), LOOSE)
    assert (result.verdict, result.target, result.targets) == ("leak", 1, 3)
    assert result.sentence.startswith("Leak proven for model 1: ")
    assert [one.own_verdict == "leak" for one in result.others] == [False, False]


QUICK = replace(LOOSE, suite=("Threshold", "LikelihoodRatio"), max_tpr=0.05)


def test_d7_a_group_counts_once_and_bounds_are_those_of_so_many_units():
    signals = synthetic(examples=2000, group=10, models=5, seed=0)
    signals = replace(signals, groups=np.arange(2000) // 10)
    grouped = certify(signals, QUICK)
    assert grouped.grouped == 2000
    assert grouped.members + grouped.non_members == 200
    alone = certify(rows_of(signals, np.arange(0, 2000, 10)), QUICK)
    assert (alone.members, alone.non_members) == (grouped.members, grouped.non_members)
    widths = [np.diff(r.bounds(r.attacks[0]))[0] for r in (grouped, alone)]
    assert widths[0] == pytest.approx(widths[1], abs=0.04)
