"""audit/suites/dp_attacks, its task "heads": what it computes beside the library is right, and it runs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from evidence import ROOT, needs, twice

from audit.suites.attack_table import suite as attack_table
from audit.suites.dp_attacks import heads as dp_heads
from audit.suites.dp_attacks import suite as dp_attacks
from safexplain import Hardening
from safexplain.audit import Population, Shadows, collect_signals
from safexplain.audit.collect import SUMMARIES
from safexplain.dp.heads.closed_form import Heads


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
def released():
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
    each = {
        name: collect_signals(shadows, pool, attack_table.release(name, Hardening.none()), patience=(1,)).values
        for name in dp_heads.EXPLAINERS
    }
    return net, heads, x, y, each


def test_explanations_of_all_heads_at_once_are_those_of_the_library(released):
    net, heads, x, _, each = released
    found = dp_heads.explained(net, heads, x)
    for name, values in each.items():
        for summary in SUMMARIES:
            assert found[f"{name} {summary}"] == pytest.approx(values[summary], rel=1e-4, abs=1e-6)
    assert not np.allclose(found["Saliency l1"], found["InputXGradient l1"], rtol=0.01)
    assert not np.allclose(found["Saliency l1"][0], found["Saliency l1"][1], rtol=0.01)


def test_label_loss_and_margin_are_those_of_the_library(released):
    net, heads, x, y, each = released
    with torch.no_grad():
        found = dp_heads.predicted(heads, net.body(x), y)
    for name in ("label", "loss", "margin"):
        assert found[name] == pytest.approx(each["Saliency"][name], rel=1e-4, abs=1e-5)


def test_the_promise_is_reached_by_randomised_response_and_broken_by_less_noise():
    delta = dp_attacks.DELTA
    for epsilon in (0.5, 1.0, 3.0):
        told = math.exp(epsilon) / (1 + math.exp(epsilon))  # the truth, with this probability
        assert told == pytest.approx(dp_attacks.promised(epsilon, 1 - told), abs=2 * delta)
        more = told + 0.01
        assert more > dp_attacks.promised(epsilon, 1 - more) + 2 * delta
    assert dp_attacks.promised(math.inf, 0.01) == 1
    assert dp_attacks.promised(8.0, 0.5) <= 1
    assert dp_attacks.promised(1e-9, 0.01) == pytest.approx(0.01 + delta)


def test_budgets_are_calibrated_for_add_remove_and_say_what_that_is_for_a_swap():
    size = dp_heads.Size()
    assert size.steps == 300
    half = dp_heads.Budget.of(0.5, size)
    assert half.add_remove == pytest.approx(0.5, abs=1e-3)
    assert 1.5 * half.add_remove < half.substitute < 3 * half.add_remove
    none = dp_heads.Budget.of(math.inf, size)
    assert (none.sigma, none.to_dict()["substitute"]) == (0.0, None)
    assert half.sigma > dp_heads.Budget.of(2.0, size).sigma > 0


def test_paper_a_spends_about_twice_what_it_claims(monkeypatch):
    accounted = json.loads((ROOT / "audit" / "results" / "dp_attacks.json").read_text())["accounting_of_the_paper"]
    monkeypatch.setattr(dp_attacks, "CLAIMED", (2.0,))
    for again, row in zip(dp_attacks.misaccounted(), [r for r in accounted if r["claimed"] == 2.0], strict=True):
        assert {k: v for k, v in again.items() if k in ("data", "sigma_by")}.items() <= row.items()
        for number in ("sigma", "add_remove", "substitute"):
            assert again[number] == pytest.approx(row[number], rel=1e-3)
    assert dp_attacks.missed_accounting(accounted) == []
    assert all(r["add_remove"] > 1.8 * r["claimed"] for r in accounted)
    assert all(r["substitute"] > r["add_remove"] for r in accounted)
    wrong = [r | {"add_remove": r["claimed"]} for r in accounted]
    assert len(dp_attacks.missed_accounting(wrong)) == len(dp_attacks.MISACCOUNTED)


def cell(auc_low, tpr_low, realised):
    rate = {"low": tpr_low, "realised_fpr": realised}
    return {
        "means": {"LikelihoodRatio on l1": {"auc": {"low": auc_low}}},
        "non_members": 2000,
        "attacks": [{"attack": "LikelihoodRatio", "signal": "l1", "tpr": [rate]}],
    }


@pytest.mark.parametrize(
    ("name", "given", "missed"),
    [
        ("0.5", cell(0.5, 0.02, 0.01), 0),
        ("0.5", cell(0.5, 0.05, 0.01), 1),
        ("0.5", cell(0.5, 0.001, 0.0), 0),
        ("inf", cell(0.6, 0.5, 0.01), 0),
        ("inf", cell(0.52, 0.5, 0.01), 1),
    ],
)
def test_a_broken_promise_or_the_absence_of_a_leak_is_named(name, given, missed):
    budgets = {"0.5": {"add_remove": 0.5}, "inf": {"add_remove": None}}
    assert len(dp_attacks.missed({"budgets": budgets, "cells": {f"Saliency {name}": given}})) == missed


def test_results_of_other_tasks_are_kept_unless_they_were_quick(tmp_path):
    out = tmp_path / "out.json"
    assert dp_attacks.earlier(out, False) == {}
    out.write_text(json.dumps({"quick": False, "results": {"vit": 1}}))
    assert dp_attacks.earlier(out, False) == {"vit": 1}
    assert dp_attacks.earlier(out, True) == {}


def test_heads_without_noise_overfit_and_heads_with_it_do_not():
    size = replace(dp_heads.QUICK, models=4, epochs=30)
    seen = torch.randn(150, 64, generator=torch.Generator().manual_seed(0))
    coins = np.random.default_rng(0).random((4, 150)) < 0.5
    pool = dp_heads.Pool(seen, torch.arange(150) % 10, coins, {})
    budgets = [dp_heads.Budget.of(e, size) for e in (0.5, math.inf)]
    heads = dp_heads.train(size, pool, 5 * seen, budgets, lambda *_: None)
    right = (heads.logits(5 * seen).argmax(-1) == pool.y).numpy()
    assert heads.weight.shape == (8, 10, 64)
    private, public = ((right[s] & pool.membership).sum() / pool.membership.sum() for s in (slice(4), slice(4, 8)))
    assert public > 0.9
    assert private < 0.5


@pytest.mark.slow
@needs("cifar10.npz", f"weights/{dp_heads.QUICK.net}.npz")
def test_the_suite_runs_quickly_and_resumes(tmp_path):
    first, again = (found["results"]["heads"] for found in twice("audit.suites.dp_attacks", tmp_path))
    assert len(first["cells"]) == 2 * len(dp_attacks.EPSILONS)
    assert first["budgets"].keys() == first["accuracy"].keys() == {"0.5", "1", "2", "8", "inf"}
    assert {k: v for k, v in first.items() if k != "run"} == {k: v for k, v in again.items() if k != "run"}
