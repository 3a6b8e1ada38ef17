"""A sentence claims no more than was judged; D1 and D3 are defects of version 0.1, as measured from outside."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from worlds import EXCESS, recognised, synthetic

from safexplain.audit import Signals, certify
from safexplain.cli import _run

pytestmark = pytest.mark.usefixtures("few_trees")


# ------------------------------------------------------------------------- D1: which attacks are run decides nothing


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


# ------------------------------------------------------------------------------------- D3: a leak that needs the label


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
