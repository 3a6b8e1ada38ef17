"""audit/suites/dp_attacks, its task "heads", and dp_defaults: what they compute is right, and they run."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri
from torch import nn

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from evidence import ROOT

from audit.suites.attack_table import tasks as attack_table
from audit.suites.dp_attacks import attacks, plan
from audit.suites.dp_attacks import heads as dp_heads
from audit.suites.dp_attacks import released as dp_released
from audit.suites.dp_defaults import suite as dp_defaults
from audit.suites.dp_defaults import tables as default_tables
from safexplain import Hardening
from safexplain.audit import Population, Shadows, collect_signals
from safexplain.dp.heads import Heads


class Net(nn.Module):
    """A small frozen backbone and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(54, 10)

    def forward(self, x):
        """(n, 3, 8, 8) -> (n, 10)."""
        return self.head(self.body(x))


@pytest.fixture
def released(monkeypatch):
    """A network, three heads, inputs, labels, and what the library's explainers say of each head."""
    net = Net().eval()
    generator = torch.Generator().manual_seed(1)
    heads = Heads(torch.randn(3, 10, 54, generator=generator), torch.randn(3, 10, generator=generator))
    x, y = torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 10
    models = []
    for weight, bias in zip(heads.weight, heads.bias, strict=True):
        model = Net().eval()
        model.head.weight.data, model.head.bias.data = weight.clone(), bias.clone()
        models.append(model)
    shadows = Shadows(tuple(models), np.random.default_rng(0).random((3, 20)) < 0.5)
    pool = Population.of(x.numpy(), y.numpy())
    monkeypatch.setitem(attack_table.OPTIONS, "IG", {"n_steps": 4})
    each = {
        name: collect_signals(shadows, pool, attack_table.release(name, Hardening.none()), patience=(1,))
        for name in dp_released.EXPLAINERS
    }
    return net, heads, x, y, each


def test_explanations_of_all_heads_at_once_are_those_of_the_library(released):
    net, heads, x, _, each = released
    gradient = dp_heads.gradients(net, heads, x)
    found = {
        "InputXGradient": x * gradient,
        "Saliency": gradient.abs(),
        "IG": dp_heads.integrated(net, heads, x, points=4),
    }
    for name, signals in each.items():
        expected = torch.from_numpy(signals.attributions)
        assert torch.allclose(found[name].flatten(2), expected, rtol=1e-3, atol=1e-6), name
    assert not torch.allclose(found["IG"], found["InputXGradient"], rtol=0.01)
    assert not torch.allclose(found["IG"], dp_heads.integrated(net, heads, x, points=1), rtol=0.01)
    assert not torch.allclose(found["Saliency"][0], found["Saliency"][1], rtol=0.01)


def test_budgets_are_calibrated_for_add_remove_and_say_what_that_is_for_a_swap():
    size = plan.Size()
    assert size.steps == 300
    half = plan.Budget.of(0.5, size)
    assert half.add_remove == pytest.approx(0.5, abs=1e-3)
    assert 1.5 * half.add_remove < half.substitute < 3 * half.add_remove
    none = plan.Budget.of(math.inf, size)
    assert (none.sigma, none.to_dict()["substitute"]) == (0.0, None)
    assert half.sigma > plan.Budget.of(2.0, size).sigma > 0


def test_what_is_allowed_is_what_the_best_test_finds():
    """One step with everybody in the batch is N(0, s^2) against N(1, s^2), for which the best test is known."""
    size = plan.Size(epochs=1, sample_rate=1.0)
    budget = plan.Budget.of(1.0, size)
    found = attacks.allowed(budget, size)
    for rate in attacks.RATES:
        best = float(ndtr(ndtri(rate) + 1 / budget.sigma))
        assert best <= found["by the curve"][str(rate)] <= 1.05 * best
        assert found["by the curve"][str(rate)] <= found["by epsilon"][str(rate)]
    assert found["auc"] == pytest.approx(float(ndtr(1 / budget.sigma / math.sqrt(2))), abs=0.003)
    assert attacks.allowed(plan.Budget.of(math.inf, size), size)["auc"] == 1


def test_the_search_chooses_by_validation_and_its_best_by_the_reported_records():
    runs = {
        dp_defaults.DEFAULTS: [[0.0, 0.80], [0.0, 0.82]],
        dp_defaults.BEFORE: [[0.0, 0.5], [0.0, 0.5]],
        "one": [[0.9, 0.70], [0.8, 0.80]],
        "two": [[0.8, 0.86], [0.9, 0.84]],
    }
    found = dp_defaults.summed_up(runs)
    assert found["chosen"] == ["one", "two"]
    assert found["chosen by validation"][0] == pytest.approx((0.70 + 0.84) / 2)
    assert found["best"] == "two"
    assert found["defaults - best"] == pytest.approx([-0.04, 0.02])
    assert dp_defaults.missed({"task": {"summary": {"1": found}}}) == ["task, epsilon 1: -4.0 ± 2.0 points from two"]


def test_committed_results_say_where_the_defaults_fall_short():
    found = json.loads((ROOT / "audit" / "results" / "dp_defaults.json").read_text())
    assert set(found["results"]) == set(dp_defaults.TASKS)
    for result in found["results"].values():
        assert {e: dp_defaults.summed_up(runs)["best"] for e, runs in result["accuracies"].items()} == {
            e: row["best"] for e, row in result["summary"].items()
        }
    assert dp_defaults.missed(found["results"]) == []
    assert default_tables.accuracy(found).count("\n") == 10
