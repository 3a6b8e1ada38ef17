"""The task "network" of audit/suites/dp_attacks: trained and explained as it says, resumed, merged, and it runs."""

import json
import math
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
pytest.importorskip("dp_accounting")

from evidence import needs, twice

from audit.suites.attack_table import tasks as attack_table
from audit.suites.dp_attacks import nets as dp_nets
from audit.suites.dp_attacks import networks as dp_networks
from audit.suites.dp_attacks import plan
from audit.suites.dp_attacks import released as dp_released
from safexplain import Hardening
from safexplain._progress import silent
from safexplain.audit import Population, Shadows, collect_signals
from safexplain.audit.asked import SUMMARIES

NET = "mobilenet_v1_0.25_128_imagenet"
needs_weights, needs_cifar10 = needs(f"weights/{NET}.npz"), needs("cifar10.npz")
CPU = torch.device("cpu")
SIZE = replace(dp_networks.QUICK, models=2, pool=40, explained=40, mapped=15, side=8, lr=5e-4)
"""10 steps."""


def small():
    """A small network that is enlarged to 8 x 8, its classifier at zero."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(54, 10))
    return dp_nets.Resized(net, net[-1], 8).eval()


@pytest.fixture
def pool():
    """40 images of 4 x 4, of which each of 2 models has half."""
    x = torch.randn(40, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    coins = np.arange(80).reshape(2, 40) % 2 == [[0], [1]]
    return plan.Pool(x, torch.arange(40) % 10, coins, {"file": "none"})


def tuned(pool, epsilon, size=SIZE, seed=0, **options):
    budget = plan.Budget.of(epsilon, size)
    given = {"seed": seed, "device": CPU, "checkpoint": None, "progress": silent} | options
    members = torch.from_numpy(pool.membership[0])
    return dp_nets.fine_tuned(small(), size, pool.x[members], pool.y[members], budget, **given)


def test_explanations_and_predictions_are_those_of_the_library(monkeypatch):
    monkeypatch.setitem(attack_table.OPTIONS, "IG", {"n_steps": 3})
    models = []
    for seed in (0, 1):
        model = small()
        nn.init.normal_(model.net[-1].weight, generator=torch.Generator().manual_seed(seed))
        models.append(model)
    x, y = torch.randn(20, 3, 4, 4, generator=torch.Generator().manual_seed(2)), torch.arange(20) % 10
    found = [dp_networks.explained(model, x, y, batch_size=7, mapped=10, points=3) for model in models]
    shadows = Shadows(tuple(models), np.random.default_rng(0).random((2, 20)) < 0.5)
    for explainer in dp_released.EXPLAINERS:
        release = attack_table.release(explainer, Hardening.none())
        signals = collect_signals(shadows, Population.of(x.numpy(), y.numpy()), release, patience=(1,))
        named = {f"{explainer} {s}": s for s in SUMMARIES} | {s: s for s in ("label", "loss", "margin")}
        for own, name in named.items():
            known = np.stack([f[own] for f in found])
            expected = signals.values[name][:, : known.shape[1]]
            assert known.shape[1] == (10 if own.startswith("IG") else 20)
            assert known == pytest.approx(expected, rel=1e-4, abs=1e-6)
        if explainer in dp_released.MAPPED:
            maps = np.stack([f[f"map {explainer}"] for f in found])
            assert maps == pytest.approx(signals.attributions[:, :10], rel=1e-3, abs=1e-6)
    assert not np.allclose(found[0]["Saliency l1"], found[0]["InputXGradient l1"], rtol=0.01)
    assert not np.allclose(found[0]["Saliency l1"], found[1]["Saliency l1"], rtol=0.01)


def test_without_privacy_training_is_plain_adam_and_with_it_is_not(pool):
    size = replace(SIZE, sample_rate=1.0, epochs=5)
    members, plain = pool.membership[0], small().train()
    optimizer = torch.optim.Adam(plain.parameters(), lr=size.lr)
    for _ in range(size.steps):
        optimizer.zero_grad()
        functional.cross_entropy(plain(pool.x[members]), pool.y[members]).backward()
        optimizer.step()
    public, private = (tuned(pool, e, size).model for e in (math.inf, 2.0))
    for own, expected, other in zip(public.parameters(), plain.parameters(), private.parameters(), strict=True):
        assert torch.allclose(own, expected, atol=1e-5)
        assert not torch.allclose(other, expected, atol=1e-3)


@pytest.fixture
def options(pool, tmp_path, monkeypatch):
    """What `run` needs, with the small network and pool in place of those from files."""
    monkeypatch.setattr(dp_networks, "network", lambda *_: (small(), {"small": "0"}))
    monkeypatch.setattr(dp_networks.Pool, "of", lambda *_: pool)
    return Namespace(cache=tmp_path, data=tmp_path, device="cpu", epsilon=[0.5, math.inf])


@pytest.mark.slow
@needs_cifar10
@needs("gtsrb.npz")
def test_the_suite_runs_quickly_resumes_and_keeps_the_results_of_the_other_task(tmp_path):
    pytest.importorskip("timm")
    other = {"quick": True, "results": {"heads cifar10": {"of": "another run"}}}
    (tmp_path / "out.json").write_text(json.dumps(other))
    arguments = ("--task", "network", "--trainable", "lora")
    reports = [found["results"] for found in twice("audit.suites.dp_attacks", tmp_path, *arguments)]
    assert all(r["heads cifar10"] == {"of": "another run"} for r in reports)
    first, again = (r["network small_vit gtsrb lora"] for r in reports)
    assert len(first["cells"]) == 3 * len(plan.EPSILONS)
    assert first["budgets"].keys() == first["accuracy"].keys() == {"0.5", "1", "2", "8", "inf"}
    assert {k: v for k, v in first.items() if k != "run"} == {k: v for k, v in again.items() if k != "run"}
