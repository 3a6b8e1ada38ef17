"""audit/suites/paper_b_recourse/networks.py: trained as it says, targets that can be missed, and a quick run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evidence import twice

from audit.shared.run import Unusable
from audit.suites.paper_b_recourse import networks, tables, tasks

SMALL = tasks.synthetic(10, rows=240, public=20)
PLAN = tasks.Plan(lambda _: SMALL, models=4, size=None)


def quiet(*_):
    pass


def test_networks_that_know_their_members_are_found_and_private_ones_are_held_to_what_is_proven():
    by_heart = networks.measured(SMALL, PLAN, networks.Condition("by heart", 60), quiet)
    private = networks.measured(SMALL, PLAN, networks.Condition("private", 3, 1.0), quiet)
    assert by_heart["train_accuracy"] > by_heart["test_accuracy"] + 0.05
    assert (by_heart["stated"], by_heart["ceiling"]) == (None, None)
    assert private["stated"]["epsilon"] == pytest.approx(1.0, abs=1e-3)
    assert private["stated"]["epsilon"] <= 1.0
    assert private["ceiling"] == pytest.approx(np.e / (1 + np.e), abs=1e-3)
    names = {(a["attack"], a["signal"]) for a in by_heart["attacks"]}
    assert set(tables.OF_NETWORKS.values()) <= names
    assert by_heart["valid"] > 0.95


def test_a_condition_gives_the_same_network_again_and_another_one_for_another_seed():
    x, y = SMALL.x[:80], SMALL.y[:80]
    for condition in (networks.Condition("native", 2), networks.Condition("private", 2, 4.0)):
        first, again, other = (condition.trained(x, y, s).explain(x).score for s in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def cell_like(auc, balanced=0.5, ceiling=None, null=0.5):
    attack = {"attack": "A", "signal": "s", "auc": auc, "auc_low": auc - 0.01, "null_auc": null,
              "balanced_accuracy": {"value": balanced, "low": balanced - 0.01}}  # fmt: skip
    return {"ceiling": ceiling, "attacks": [attack]}


def test_missed_targets_are_named():
    def missed(found, private):
        return networks.missed({"heloc": {"cells": {networks.TO_THE_END: found, "private": private}}})

    fine = cell_like(0.5, 0.5, 0.73)
    assert missed(cell_like(0.7), fine) == []
    assert "by heart" in missed(cell_like(0.6), fine)[0]
    assert "what is proven" in missed(cell_like(0.7), cell_like(0.5, 0.76, 0.73))[0]
    assert missed(cell_like(0.7), cell_like(0.5, 0.735, 0.73)) == []  # within its interval
    assert "null" in missed(cell_like(0.7), cell_like(0.5, 0.5, 0.73, null=0.6))[0]


def test_only_known_tasks_are_run(tmp_path):
    with pytest.raises(Unusable, match="unknown tasks"):
        networks.main(["--task", "iris", "--out", str(tmp_path / "out.json")])
    assert all(networks.NETWORKS[t] == replace(tasks.TASKS[t], models=p.models) for t, p in networks.NETWORKS.items())


@pytest.mark.slow
def test_the_suite_runs_and_resumes(tmp_path):
    found = twice("audit.suites.paper_b_recourse.networks", tmp_path)
    cells = found[0]["results"]["breast cancer"]["cells"]
    assert set(cells) == {c.title for c in networks.CONDITIONS}
    assert found[1]["results"]["breast cancer"]["cells"] == cells
    assert tables.networks(found[0]).count("\n") == len(cells) + 1
