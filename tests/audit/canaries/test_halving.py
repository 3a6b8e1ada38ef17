"""Several scenarios within minutes: right trainings are refuted as seldom as promised, and nothing is left unsaid."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain._privacy_loss import Steps
from safexplain.audit.canaries import probe as module
from safexplain.audit.canaries.probe import CanaryProbe, audit_within, runs_within, stages_of
from safexplain.errors import ConfigurationError
from safexplain.verdict.canaries.result import Claim

SIGMA = 2.0
DATA = torch.tensor([[1.0], [0.0], [0.0], [0.0]]), torch.tensor([0, 1, 0, 1])


def noisy_sum(dataset, generator):
    """One step of the Gaussian mechanism, whose record 0 is the worst case."""
    return sum(dataset[i][0] for i in range(len(dataset))) + SIGMA * torch.randn(1, generator=generator)


def probes(claimed_noise, seed, scenarios=4):
    claim = Claim(Steps(claimed_noise, 1.0, 1, "full-batch"), 1e-5)
    made = {"canary": (torch.tensor([-1.0]), 1), "target": 0, "score": lambda total: float(total[0])}
    return {
        f"scenario {i}": CanaryProbe(noisy_sum, DATA, claim=claim, seed=100 * seed + i, **made)
        for i in range(scenarios)
    }


@pytest.fixture
def runs(monkeypatch):
    """In place of minutes, which are as long as a machine makes them."""
    return lambda count: monkeypatch.setattr(module, "runs_within", lambda probe, minutes: count)


@pytest.mark.parametrize(("claimed_noise", "refuted"), [(SIGMA, range(2)), (10 * SIGMA, range(3, 6))])
def test_a_right_training_is_not_refuted_however_many_looks_there_are(runs, claimed_noise, refuted):
    runs(400)
    audits = [audit_within(probes(claimed_noise, seed), 1.0)[0] for seed in range(5)]
    assert sum(any(found.verdict == "refuted" for found in audit) for audit in audits) in refuted


def test_all_looks_together_hold_at_the_confidence_and_half_of_the_scenarios_go_on(runs):
    runs(400)
    found, others = audit_within(probes(SIGMA, 0), 1.0)
    assert not others
    assert [1 - (1 - one.confidence) * 4 * 3 for one in found] == pytest.approx([0.95] * 4)
    assert sorted(one.runs for one in found) == [32, 32, 98, 232]
    assert stages_of(4, 400) == [(4, 32), (2, 98), (1, 232)]


def test_scenarios_that_there_is_no_time_for_are_named(runs):
    runs(45)
    found, others = audit_within(probes(SIGMA, 0), 1.0)
    assert len(found) == 2
    assert others == dict.fromkeys(["scenario 2", "scenario 3"], "no time for it in 1 minutes")
    runs(20_000)
    found, others = audit_within(probes(10 * SIGMA, 0), 1.0)
    assert (len(found), found[0].verdict) == (1, "refuted")
    assert {*others.values()} == {"another canary refuted the claim"}
    with pytest.raises(ConfigurationError, match="minutes above 0"):
        audit_within({}, 1.0)


def test_a_training_that_has_no_gradients_of_records_is_audited_by_the_other_scenarios(runs):
    runs(80)

    def linear(dataset, generator):
        model = nn.Linear(1, 2)
        nn.init.normal_(model.weight, generator=generator)
        return model

    claim = Claim(None, 1e-5, epsilon=1.0)
    two = {
        name: CanaryProbe(linear, DATA, claim=claim, scenario=name, method="clopper-pearson")
        for name in ("gradient", "mislabelled")
    }
    found, others = audit_within(two, 1.0)
    assert [one.scenario for one in found] == ["mislabelled"]
    assert "steps of an Opacus DPOptimizer" in others["gradient"]


def test_every_class_has_its_part_of_the_time():
    claim, options = Claim(None, 1e-5, epsilon=1.0), {"method": "clopper-pearson", "score": lambda total: np.sum(0.0)}
    one, two = (
        CanaryProbe(noisy_sum, DATA, claim=claim, scenario="outlier", target=target, **options)
        for target in (0, "classes")
    )
    for probe in (one, two):
        probe.__dict__["_plain"] = (None, 0.1)
    assert runs_within(one, 1.0) == 600
    assert runs_within(two, 1.0) == 300
