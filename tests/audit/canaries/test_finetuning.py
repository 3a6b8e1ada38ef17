"""`audit_training`: what a `DPFineTuner` would train is trained many times, with and without a record."""

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.audit.canaries import audit_training
from safexplain.dp import DPFineTuner
from safexplain.dp import heads as dp_head
from safexplain.errors import ConfigurationError, InputError

CLOUDS = torch.Generator().manual_seed(0)
Y = torch.randint(2, (40,), generator=CLOUDS)
X = torch.randn(40, 6, generator=CLOUDS) + Y[:, None]
OTHERS = torch.randn(40, 6, generator=CLOUDS), torch.randint(2, (40,), generator=CLOUDS)


def tuner(model: nn.Module, **options: object) -> DPFineTuner:
    chosen = {"epsilon": 12.0, "delta": 1e-4, "steps": 10, "batch_size": 40, "lr": 0.5, "optimizer": "sgd", **options}
    return DPFineTuner(model, (X, Y), device="cpu", pretrained=False, **chosen)


def per_example(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def half(outputs, targets):
    return per_example(outputs, targets) / 2


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def test_the_gradient_of_a_head_is_left_to_the_white_box():
    with pytest.raises(ConfigurationError, match="white-box"):
        audit_training(tuner(network(), trainable="head"), "gradient", runs=20)


def test_heads_are_trained_by_the_tuners_own_code(monkeypatch):
    tuned = tuner(network(), trainable="head")
    right = audit_training(tuned, runs=40)
    assert right.scenario == "crafted"
    assert right.epsilon_lower <= right.claim.substitute
    arrays = OTHERS[0].numpy(), OTHERS[1].numpy()
    assert audit_training(tuned, "natural", runs=20, auxiliary=arrays).scenario == "natural"
    monkeypatch.setattr(dp_head, "gaussian", lambda like, *_, **__: 0.1 * torch.randn_like(like))
    assert audit_training(tuned, runs=120).verdict == "refuted"


def test_a_training_by_persons_is_audited_through_its_own_code():
    tuned = tuner(network(), groups=np.arange(40) // 4, batch_size=10, trainable="head", steps=2)
    found = audit_training(tuned, "mislabelled", runs=8)
    assert found.claim.mechanism == tuned.plan.phase()
    with pytest.raises(ConfigurationError, match="no gradients of single records"):
        audit_training(tuned, "gradient", runs=8)


def test_a_whole_network_is_trained_again_for_every_run(tmp_path):
    tuned = tuner(network(), loss=per_example)
    before = {name: p.clone() for name, p in tuned.prepared().named_parameters()}
    found = audit_training(tuned, runs=8, cache=tmp_path)
    assert (found.scenario, found.runs) == ("mislabelled", 8)
    assert found.claim.mechanism == tuned.plan.phase()
    assert all(torch.equal(p, before[name]) for name, p in tuned.prepared().named_parameters())
    stored = sorted(tmp_path.rglob("run-0.npz"))
    audit_training(tuner(network(), loss=half), runs=8, cache=tmp_path)
    assert len(sorted(tmp_path.rglob("run-0.npz"))) == len(stored) + 1  # another loss is another training


def test_a_gradient_canary_goes_through_the_tuners_own_loop(tmp_path):
    found = audit_training(tuner(network(), mode="hooks"), "gradient", runs=24, cache=tmp_path)
    assert found.epsilon_lower > 0


def test_the_same_training_on_other_data_has_the_same_plan():
    tuned = tuner(network())
    again = tuned.with_data(OTHERS, seed=3)
    assert (again.plan, again.config.seed, tuned.config.seed) == (tuned.plan, 3, None)
    assert torch.equal(again.records.x, OTHERS[0])
    with pytest.raises(InputError, match="expected 40 records"):
        tuned.with_data((X[:5], Y[:5]), seed=0)
    with pytest.warns(DeprecationWarning, match="use with_data"):
        assert tuned.again(OTHERS, seed=4).config.seed == 4
