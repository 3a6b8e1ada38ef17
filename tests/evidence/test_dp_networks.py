"""The task "network" of audit/suites/dp_attacks: trained and explained as it says, resumed, merged, and it runs."""

import copy
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

from evidence import DATA, needs, twice

from audit.shared import run as common
from audit.suites.attack_table import tasks as attack_table
from audit.suites.dp_attacks import heads as dp_heads
from audit.suites.dp_attacks import nets as dp_nets
from audit.suites.dp_attacks import networks as dp_networks
from audit.suites.dp_attacks import plan
from audit.suites.dp_attacks import released as dp_released
from audit.suites.dp_attacks import suite as dp_attacks
from audit.suites.third_party import suite as third_party
from safexplain import Hardening
from safexplain._progress import silent
from safexplain.audit import Population, Shadows, collect_signals
from safexplain.audit.asked import SUMMARIES

NET = "mobilenet_v1_0.25_128_imagenet"
needs_weights, needs_cifar10 = needs(f"weights/{NET}.npz"), needs("cifar10.npz")
CPU = torch.device("cpu")
GIVEN = Namespace(data=DATA, weights=None)
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


def test_training_spends_what_the_budget_says(pool):
    for epsilon in (0.5, 2.0):
        statement = tuned(pool, epsilon).statement
        budget = plan.Budget.of(epsilon, SIZE)
        assert statement.epsilons.add_remove == pytest.approx(budget.add_remove, rel=1e-6)
        assert statement.epsilons.substitute == pytest.approx(budget.substitute, rel=1e-6)
    assert math.isinf(tuned(pool, math.inf).statement.epsilons.add_remove)


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


def test_networks_without_noise_overfit_and_networks_with_it_do_not(pool):
    members = torch.from_numpy(pool.membership[0])
    size = replace(SIZE, epochs=40, lr=5e-3)
    public, private = (tuned(pool, e, size).model(pool.x).argmax(1) == pool.y for e in (math.inf, 0.5))
    assert public[members].float().mean() > 0.9
    assert private[members].float().mean() < 0.6


@pytest.fixture
def options(pool, tmp_path, monkeypatch):
    """What `run` needs, with the small network and pool in place of those from files."""
    monkeypatch.setattr(dp_networks, "network", lambda *_: (small(), {"small": "0"}))
    monkeypatch.setattr(dp_networks.Pool, "of", lambda *_: pool)
    return Namespace(cache=tmp_path, data=tmp_path, device="cpu", epsilon=[0.5, math.inf])


def test_a_run_releases_every_model_under_every_budget(pool, options):
    found = dp_networks.run(SIZE, options, "cifar10", "all")
    assert [b.name for b in found.budgets] == list(found.accuracy) == ["0.5", "inf"]
    assert set(found.signals) == {(e, b.name) for e in dp_released.EXPLAINERS for b in found.budgets}
    model = tuned(pool, math.inf, seed=1000).model
    expected = dp_networks.explained(model, pool.x, pool.y, 100, SIZE.mapped, SIZE.points)
    for explainer in dp_released.EXPLAINERS:
        signals = found.signals[explainer, "inf"]
        assert (signals.membership == pool.membership[:, : len(signals)]).all()
        assert signals.values["l1"][0] == pytest.approx(expected[f"{explainer} l1"], rel=1e-5)
        assert not np.allclose(signals.values["l1"][1], expected[f"{explainer} l1"], rtol=1e-3)
    whole = found.whole("IG", 1, (3, 4, 4))
    assert whole.attributions[0] == pytest.approx(expected["map IG"], rel=1e-4, abs=1e-7)
    assert {"InputXGradient deletion", "random deletion", "confidence"} <= found.faithfulness["inf"].keys()
    right = expected["label"] == pool.y.numpy()
    for side, rows in (("members", pool.membership[0]), ("non_members", ~pool.membership[0])):
        assert found.accuracy["inf"][side][0] == pytest.approx(right[rows].mean())


def test_an_interrupted_run_goes_on_from_models_and_checkpoint_and_ends_the_same(options, tmp_path, monkeypatch):
    whole = dp_networks.run(SIZE, Namespace(**vars(options) | {"cache": tmp_path / "whole"}), "cifar10", "all")
    fine_tuned, started = dp_networks.fine_tuned, []

    def interrupted(start, size, x, y, budget, **given):
        def stop(stage, done, total, note=""):
            if done == 5 and len(started) == 2:
                raise KeyboardInterrupt

        started.append(given["seed"])
        return fine_tuned(start, size, x, y, budget, **given | {"progress": stop})

    monkeypatch.setattr(dp_networks, "fine_tuned", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dp_networks.run(SIZE, options, "cifar10", "all")
    assert len(list(tmp_path.glob("dp_networks/*.checkpoint"))) == 1

    steps = {}

    def counted(start, size, x, y, budget, **given):
        told = steps.setdefault(given["seed"], [])
        return fine_tuned(
            start, size, x, y, budget, **given | {"progress": lambda _, done, total, note="": told.append(done)}
        )

    monkeypatch.setattr(dp_networks, "fine_tuned", counted)
    again = dp_networks.run(SIZE, options, "cifar10", "all")
    assert steps == {1: [6, 7, 8, 9, 10], 1000: list(range(1, 11)), 1001: list(range(1, 11))}
    assert not list(tmp_path.glob("dp_networks/*.checkpoint"))
    for key, signals in whole.signals.items():
        for name, values in signals.values.items():
            assert again.signals[key].values[name] == pytest.approx(values, rel=1e-4, abs=1e-7)


def test_what_is_stored_is_used_for_the_same_model_only(pool, options):
    start = dp_networks.Start(small(), "0", SIZE, CPU, options.cache)
    budget = plan.Budget.of(0.5, SIZE)
    model = dp_networks.Model(start, pool, pool.membership[0], budget, seed=0)
    others = [
        replace(model, seed=1),
        replace(model, members=pool.membership[1]),
        replace(model, budget=plan.Budget.of(1.0, SIZE)),
        replace(model, start=replace(start, digest="1")),
        replace(model, start=replace(start, size=replace(SIZE, lr=1.0))),
        replace(model, start=replace(start, trainable="lora")),
        replace(model, pool=replace(pool, x=pool.x + 1)),
    ]
    assert replace(model).key == model.key
    assert len({m.key for m in (model, *others)}) == 1 + len(others)
    fewer = replace(model, start=replace(start, size=replace(SIZE, models=1)))
    assert fewer.key == model.key, "models that are there already are not trained again for a run with others"


@needs_weights
@pytest.mark.parametrize("side", [32, 45])
def test_the_mobilenet_in_plain_layers_is_the_mobilenet(side):
    nets, _ = third_party.third_party(DATA, (NET,))
    plain = dp_nets.MobileNet(nets[NET]).eval()
    x = torch.rand(4, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert torch.allclose(plain.features(x), nets[NET].features(x), atol=1e-5)
    assert {type(m) for m in plain.modules() if any(True for _ in m.parameters(recurse=False))} == {
        nn.Conv2d,
        nn.Linear,
    }


@needs_weights
def test_all_of_the_mobilenet_trains():
    start, files = dp_nets.network(replace(SIZE, net=NET, side=32), 10, GIVEN, "cifar10", silent)
    assert set(files) == {NET}
    before = copy.deepcopy(start.state_dict())
    x, y = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 10
    budget = plan.Budget.of(8.0, replace(SIZE, epochs=0.2))
    model = dp_nets.fine_tuned(
        start, replace(dp_networks.QUICK, epochs=0.2), x, y, budget, seed=0, device=CPU, checkpoint=None,
        progress=silent,
    ).model  # fmt: skip
    assert all(torch.equal(start.state_dict()[name], tensor) for name, tensor in before.items())
    assert not any(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_vision_transformer_trains_and_is_explained():
    pytest.importorskip("timm")
    torch.manual_seed(0)
    net = dp_nets.transformer("vit_tiny_patch16_224", 32, pretrained=False)
    start = dp_nets.Resized(net, net.get_classifier(), 32)
    size = replace(dp_networks.QUICK, epochs=0.2)
    x, y = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    model = dp_nets.fine_tuned(
        start, size, x, y, plan.Budget.of(8.0, size), seed=0, device=CPU, checkpoint=None,
        progress=silent,
    ).model  # fmt: skip
    other = copy.deepcopy(start)
    other.load_state_dict(model.state_dict())
    found = dp_networks.explained(other.eval(), x, y, batch_size=4, mapped=2, points=2)
    assert all(len(numbers) in (2, 6) and np.isfinite(numbers).all() for numbers in found.values())
    assert (found["Saliency l1"] > 0).all()


def test_weights_that_cannot_be_downloaded_are_named_with_what_to_do(monkeypatch):
    timm = pytest.importorskip("timm")

    def fails(*_, **__):
        raise OSError("no connection\nand a long explanation")

    monkeypatch.setattr(timm, "create_model", fails)
    with pytest.raises(common.Unusable, match=r"vit_tiny_patch16_224 \(no connection\); give --weights FILE"):
        dp_nets.network(replace(dp_networks.FULL, net="vit_tiny_patch16_224"), 10, GIVEN, "cifar10", silent)


def saved_vit(folder, **changed):
    """File of a random vision transformer of timm that is as small as they come, and the network."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("test_vit", num_classes=7, **changed)
    torch.save(net.state_dict(), folder / "vit.pth")
    return net.eval(), folder / "vit.pth"


def test_weights_by_path_are_those_of_the_file_with_a_new_classifier_at_zero(tmp_path):
    net, path = saved_vit(tmp_path)
    size = replace(SIZE, net="test_vit")
    start, about = dp_nets.network(size, 10, Namespace(data=DATA, weights=path), "cifar10", silent)
    x = torch.rand(3, 3, 160, 160, generator=torch.Generator().manual_seed(0)) * 2 - 1
    mean, std = (torch.tensor(net.pretrained_cfg[k])[:, None, None] for k in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(start.eval()(x), torch.zeros(3, 10))
        expected = net.forward_head(net.forward_features(((x + 1) / 2 - mean) / std), pre_logits=True)
        assert torch.allclose(start.net.net(((x + 1) / 2 - mean) / std), expected, atol=1e-5)
    assert about["file"] == "vit.pth"
    assert len(about["sha256"]) == 64


def test_weights_of_another_architecture_and_files_that_are_none_are_named(tmp_path):
    _, path = saved_vit(tmp_path)
    for net, file, said in (
        ("vit_tiny_patch16_224", path, "another architecture"),
        ("test_vit", tmp_path / "none.pth", "there is no file"),
    ):
        with pytest.raises(common.Unusable, match=said):
            dp_nets.network(replace(SIZE, net=net), 10, Namespace(data=DATA, weights=file), "cifar10", silent)


@pytest.mark.parametrize("trainable", dp_networks.TRAINABLE)
def test_of_a_transformer_all_the_last_block_or_adapters_train_and_nothing_else(trainable):
    pytest.importorskip("timm")
    torch.manual_seed(0)
    net = dp_nets.small_vit(10)
    start = dp_nets.Resized(net, net.get_classifier(), 32)
    x, y = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 10
    size = replace(SIZE, epochs=0.3)
    model = dp_nets.fine_tuned(
        start, size, x, y, plan.Budget.of(8.0, size), seed=0, device=CPU, checkpoint=None, progress=silent,
        trainable=trainable,
    ).model  # fmt: skip
    before = start.state_dict()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(before[name], tensor)}
    assert before.keys() == model.state_dict().keys(), "adapters are folded into the weights"
    assert {"net.head.weight", "net.head.bias"} <= moved
    blocks = {name.split(".")[2] for name in moved if ".blocks." in name}
    assert blocks == ({"3"} if trainable == "last-block" else {"0", "1", "2", "3"})
    if trainable == "lora":
        assert all(name.endswith((".qkv.weight", ".proj.weight")) for name in moved if ".blocks." in name)


def test_the_small_transformer_is_trained_once_on_other_images_than_it_is_fine_tuned_on(tmp_path, monkeypatch):
    pytest.importorskip("timm")
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3)), np.arange(100) % 10, {"file": "public"}
    monkeypatch.setitem(plan.SOURCES, "cifar10", (10, lambda folder: images))
    monkeypatch.setattr(dp_nets, "PUBLIC_EPOCHS", 1)
    options = Namespace(data=DATA, cache=tmp_path, weights=None)
    (tmp_path / "dp_networks").mkdir()
    first, about = dp_nets.trained_on_public(100, 43, options, "gtsrb", silent)
    monkeypatch.setattr(dp_nets, "_fit", None)  # not called again
    again, _ = dp_nets.trained_on_public(100, 43, options, "gtsrb", silent)
    assert about["trained on"]["file"] == "public"
    assert torch.equal(first.blocks[0].attn.qkv.weight, again.blocks[0].attn.qkv.weight)
    assert first.get_classifier().out_features == 43
    assert all(public != data for data, public in dp_nets.PUBLIC.items())


def test_the_size_is_that_of_the_task_changed_as_the_options_say(tmp_path):
    none = {
        "models": None,
        "pool": None,
        "net": None,
        "weights": None,
        "arch": "test_vit",
        "on": None,
        "targets": None,
        "explained": None,
    }
    given = {"task": "network", "quick": False, "full": True, "trainable": None} | none
    assert dp_attacks.size_of(Namespace(**given)) == dp_networks.FULL
    assert dp_attacks.size_of(Namespace(**given | {"full": False})) == dp_networks.SMALL
    assert dp_attacks.size_of(Namespace(**given | {"task": "heads"})) == plan.Size()
    assert dp_attacks.size_of(Namespace(**given | {"task": "heads", "quick": True})) == dp_heads.QUICK
    other = dp_attacks.size_of(Namespace(**given | {"net": "mobilenet_v2_1.0_224_imagenet", "models": 5}))
    assert other == replace(dp_networks.FULL, net="mobilenet_v2_1.0_224_imagenet", side=64, models=5)
    assert dp_attacks.size_of(Namespace(**given | {"weights": tmp_path})).net == "test_vit"
    assert [what for _, _, what in dp_attacks.tasks(Namespace(**given))] == list(dp_networks.TRAINABLE)
    assert [data for _, data, _ in dp_attacks.tasks(Namespace(**given | {"task": "heads"}))] == list(plan.SOURCES)


def test_a_full_run_costs_what_its_operations_say():
    one = dp_networks.expected_hours(dp_networks.FULL, 1)
    assert dp_networks.expected_hours(dp_networks.FULL, 3) == pytest.approx(3 * one)
    assert 1 < one < 24


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
