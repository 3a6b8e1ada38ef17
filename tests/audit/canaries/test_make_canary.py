"""Canaries against loops over one record's gradient at a time, random search, and the paper's own loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from audit.suites.paper_c_canaries.mlp import MLP
from safexplain.audit.canaries import canary as similarity
from safexplain.audit.canaries.batched import LinearHead, reference, true_class_probability
from safexplain.audit.canaries.canary import Reference, Target, make_canary
from safexplain.audit.canaries.probe import ModuleNetwork
from safexplain.dp.heads.closed_form import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import InputError

N, D, CLASSES = 60, 12, 4
HEAD = LinearHead(D, CLASSES)
NETWORKS = [HEAD, LinearHead(D, 2, bias=False, one_logit=True), MLP(D, (8,), CLASSES)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(classes: int, seed: int = 1, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(n) % classes
    means = torch.randn(classes, D, generator=seeded(99), dtype=torch.float64)
    return means[y] + torch.randn(n, D, generator=seeded(seed), dtype=torch.float64), y


def trained(network, clip: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, Reference]:
    x, y = records(network.classes)
    recipe = HeadRecipe(
        network.classes, 20, 1.0, N, FlatClipping(clip), lr=0.2, bias=network.bias, one_logit=network.one_logit
    )
    return x, y, reference(network, x, y, recipe, generator=seeded())


def slow_gradient(network, theta, x, y) -> torch.Tensor:
    """Of one record, by autograd."""
    leaf = theta.clone().requires_grad_()
    logits = network.logits(leaf[None], x[None])[0]
    if logits.shape[1] == 1:
        value = nn.functional.binary_cross_entropy_with_logits(logits[0, 0], torch.tensor(float(y)).to(logits))
    else:
        value = nn.functional.cross_entropy(logits, torch.tensor([int(y)]))
    return torch.autograd.grad(value, leaf)[0]


def slow_cosine(network, theta, z, other) -> float:
    a, b = slow_gradient(network, theta, *z), slow_gradient(network, theta, *other)
    return float(nn.functional.cosine_similarity(a, b, 0))


@pytest.mark.parametrize("network", NETWORKS)
def test_similarity_is_that_of_autograd_gradients(network, monkeypatch):
    x, y, found = trained(network)
    target = Target(network, found.theta, x[3], int(y[3]))
    monkeypatch.setattr(similarity, "_NUMBERS", 7 * network.parameters)  # in pieces
    fast = target.to_all(x[:20], y[:20])
    gradients = torch.stack([slow_gradient(network, found.theta, x[i], y[i]) for i in range(20)])
    torch.testing.assert_close(fast.norm, gradients.norm(dim=1))
    torch.testing.assert_close(fast.cosine, nn.functional.cosine_similarity(gradients, gradients[3:4]))
    assert target.norm == pytest.approx(float(gradients[3].norm()))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_crafted_input_opposes_its_target_within_the_range_of_the_data(network):
    x, y, found = trained(network)
    canary = make_canary("crafted", network, x, y, found, generator=seeded())
    z = x[found.target], y[found.target]
    random = [slow_cosine(network, found.theta, z, (x[i], z[1])) for i in range(N)]
    assert canary.y == int(z[1])
    assert canary.cosine == pytest.approx(slow_cosine(network, found.theta, z, (canary.x, canary.y)))
    assert canary.cosine < min(random) - 0.1
    assert canary.cosine < -0.7 or isinstance(network, MLP)
    assert (x.amin(0) <= canary.x).all()
    assert (canary.x <= x.amax(0)).all()
    assert canary.norms[1] == pytest.approx(max(canary.norms[0], 1.0), rel=0.15)
    assert canary.norms[1] > 0.9  # fills the clipping bound


@pytest.mark.parametrize("network", NETWORKS)
def test_a_mislabelled_canary_has_the_label_that_a_loop_finds(network):
    x, y, found = trained(network)
    for row in (found.target, 7, 20):
        canary = make_canary("mislabelled", network, x, y, replace(found, target=row))
        z = x[row], y[row]
        cosines = {c: slow_cosine(network, found.theta, z, (x[row], c)) for c in range(network.classes) if c != y[row]}
        assert canary.y == min(cosines, key=cosines.get)
        assert canary.cosine == pytest.approx(min(cosines.values()))
        assert torch.equal(canary.x, x[row])


@pytest.mark.parametrize("network", NETWORKS)
def test_a_natural_canary_is_the_auxiliary_record_that_a_loop_finds(network, monkeypatch):
    x, y, found = trained(network)
    auxiliary = records(network.classes, seed=2, n=50)
    monkeypatch.setattr(similarity, "_NUMBERS", 9 * network.parameters)
    canary = make_canary("natural", network, x, y, found, auxiliary=auxiliary)
    z = x[found.target], y[found.target]
    cosines = [slow_cosine(network, found.theta, z, other) for other in zip(*auxiliary, strict=True)]
    best = min(range(50), key=cosines.__getitem__)
    assert torch.equal(canary.x, auxiliary[0][best])
    assert canary.y == int(auxiliary[1][best])
    assert canary.cosine == pytest.approx(cosines[best])


def test_a_gradient_canary_is_at_the_parameter_that_moves_least():
    x, y, found = trained(HEAD)
    canary = make_canary("gradient", HEAD, x, y, found)
    assert (canary.target, canary.coordinate) == (found.target, int(found.movement.argmin()))
    assert canary.drift is found.drift


def test_half_precision_crafts_in_single_precision():
    x, y = records(CLASSES)
    x, recipe = x.half(), HeadRecipe(CLASSES, 20, 1.0, N, FlatClipping(1.0), lr=0.2)
    canary = make_canary("crafted", HEAD, x, y, reference(HEAD, x, y, recipe, generator=seeded()))
    assert canary.x.dtype == torch.float32
    assert canary.cosine < -0.7


def a_convolution() -> tuple[nn.Module, torch.Tensor, torch.Tensor, Reference]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.rand(30, 1, 6, 6, generator=seeded())
    y = torch.arange(30) % 3
    return model, x, y, reference_of(model, x, y, 3)


def reference_of(model, x, y, classes) -> Reference:
    network = ModuleNetwork(model, classes)
    confidence = true_class_probability(network, network.theta[None], x, y)
    return Reference(network.theta, int(confidence.argmin()), confidence)


@pytest.mark.parametrize("scenario", ["crafted", "mislabelled", "natural"])
def test_any_module_gets_record_canaries(scenario):
    model, x, y, found = a_convolution()
    network = ModuleNetwork(model, 3)
    auxiliary = torch.rand(40, 1, 6, 6, generator=seeded(8)), torch.arange(40) % 3
    canary = make_canary(scenario, network, x, y, found, auxiliary=auxiliary, generator=seeded())
    assert canary.x.shape == (1, 6, 6)
    z = x[found.target], y[found.target]
    tried = {
        "crafted": [(x[i], z[1]) for i in range(30)],
        "mislabelled": [(z[0], c) for c in range(3) if c != int(z[1])],
        "natural": list(zip(*auxiliary, strict=True)),
    }[scenario]
    slow = min(slow_cosine(network, found.theta, z, other) for other in tried)
    assert canary.cosine < slow - 0.1 if scenario == "crafted" else canary.cosine == pytest.approx(slow, abs=1e-5)


@pytest.mark.parametrize(
    ("scenario", "arguments", "error", "says"),
    [
        ("natural", {}, InputError, r"give auxiliary=\(x, y\)"),
        (
            "natural",
            {"auxiliary": (torch.zeros(2, D + 1), torch.zeros(2).long())},
            InputError,
            r"auxiliary: .*\(n, 12\)",
        ),
        ("natural", {"auxiliary": (torch.zeros(2, D), torch.full((2,), CLASSES))}, InputError, "labels 0 to 3"),
    ],
)
def test_what_cannot_be_crafted_is_named(scenario, arguments, error, says):
    x, y, found = trained(HEAD)
    with pytest.raises(error, match=says):
        make_canary(scenario, HEAD, x, y, found, **arguments)


def test_data_that_are_not_finite_are_refused():
    x, y, found = trained(HEAD)
    with pytest.raises(InputError, match="expected finite x, got NaN"):
        make_canary("crafted", HEAD, x.log(), y, found)


def test_inputs_that_are_no_real_numbers_cannot_be_crafted_but_mislabelled():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(9, 2))
    x, y = torch.randint(5, (8, 3), generator=seeded()), torch.arange(8) % 2
    found = reference_of(model, x, y, 2)
    network = ModuleNetwork(model, 2)
    with pytest.raises(InputError, match="craft it on embeddings"):
        make_canary("crafted", network, x, y, found)
    assert make_canary("mislabelled", network, x, y, found).y == 1 - int(y[found.target])
