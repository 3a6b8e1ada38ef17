"""The reference trainings against loops that train with torch.optim and one record's gradient at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from audit.suites.paper_c_canaries.mlp import MLP
from safexplain.audit.canaries import batched as module
from safexplain.audit.canaries.batched import LinearHead, reference
from safexplain.audit.canaries.canary import gradients
from safexplain.audit.canaries.probe import ModuleNetwork
from safexplain.dp.heads.closed_form import HeadRecipe
from safexplain.dp.sgd.clipping import FlatClipping
from safexplain.errors import InputError

N, D, CLASSES, STEPS = 14, 4, 3, 12
RECIPE = HeadRecipe(CLASSES, STEPS, 1.0, float(N), FlatClipping(0.7), lr=0.3, momentum=0.5)
NETWORKS = [LinearHead(D, CLASSES), LinearHead(D, CLASSES, bias=False), MLP(D, (5,), CLASSES, "relu")]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(N, D, generator=seeded(1), dtype=torch.float64)
    return x, torch.arange(N) % CLASSES


def slow_losses(network, theta, x, y):
    """The network written out, from its flat layout."""
    sizes = [D, *getattr(network, "hidden", ()), CLASSES]
    for i, (inner, outer) in enumerate(pairwise(sizes)):
        columns = inner + network.bias
        weight, theta = theta[: outer * columns].view(outer, columns), theta[outer * columns :]
        x = (x.relu() if i else x) @ weight[:, :inner].T + (weight[:, inner] if network.bias else 0)
    return nn.functional.cross_entropy(x, y, reduction="none")


def slow_training(network, x, y, start, *, clip=None, left_out=None, optimizer="sgd"):
    """Parameters before the first and after each step of full-batch training, by torch.optim."""
    theta = start.clone().requires_grad_()
    made = torch.optim.Adam([theta], RECIPE.lr) if optimizer == "adam" else torch.optim.SGD([theta], 0.3, momentum=0.5)
    found = [start]
    for _ in range(STEPS):
        total = torch.zeros_like(start)
        for row in range(N):
            if row != left_out:
                loss = slow_losses(network, theta, x[row : row + 1], y[row : row + 1]).sum()
                gradient = torch.autograd.grad(loss, theta)[0]
                total += gradient * (1.0 if clip is None else min(1.0, clip / float(gradient.norm())))
        theta.grad = total / N
        made.step()
        found.append(theta.detach().clone())
    return found


@pytest.mark.parametrize(("network", "optimizer"), [(NETWORKS[0], "adam"), (NETWORKS[1], "sgd"), (NETWORKS[2], "sgd")])
def test_the_target_is_the_record_that_the_training_is_least_sure_of(network, optimizer):
    x, y = data()
    recipe = replace(RECIPE, optimizer=optimizer, momentum=0.0 if optimizer == "adam" else 0.5)
    start = network.initial(1, seeded(), x.device, x.dtype)[0]
    found = reference(network, x, y, recipe, generator=seeded(), initial=start)
    path = slow_training(network, x, y, start, optimizer=optimizer)[1:]
    confidence = torch.stack([(-slow_losses(network, theta, x, y)).exp() for theta in path]).mean(0)
    torch.testing.assert_close(found.confidence, confidence)
    torch.testing.assert_close(found.theta, path[-1])
    assert found.target == int(confidence.argmin())
    assert found.bound == 0.7


@pytest.mark.parametrize("network", NETWORKS[::2])
def test_movement_and_drift_are_those_of_a_clipped_training_without_the_target(network):
    x, y = data()
    start = network.initial(1, seeded(), x.device, x.dtype)[0]
    found = reference(network, x, y, RECIPE, generator=seeded(), initial=start)
    path = torch.stack(slow_training(network, x, y, start, clip=0.7, left_out=found.target))
    movement = path.diff(dim=0).abs().sum(0)
    torch.testing.assert_close(found.movement, movement)
    assert found.least_moving == int(movement.argmin())
    torch.testing.assert_close(found.drift, path[:, found.least_moving] - start[found.least_moving])
    with_target = torch.stack(slow_training(network, x, y, start, clip=0.7)).diff(dim=0).abs().sum(0)
    assert (found.movement - with_target).abs().max() > 1e-3


def test_one_logit_gives_the_confidence_of_both_classes(monkeypatch):
    monkeypatch.setattr(module, "_READS", 1)
    x, y = data()
    recipe = replace(RECIPE, classes=2, one_logit=True)
    found = reference(LinearHead(D, 2, one_logit=True), x, y % 2, recipe, generator=seeded())
    p = (x @ found.theta[:D] + found.theta[D]).sigmoid()
    torch.testing.assert_close(found.confidence, torch.where(y % 2 == 1, p, 1 - p))


def test_adam_has_no_drift_to_take_off():
    x, y = data()
    recipe = replace(RECIPE, optimizer="adam", momentum=0.0)
    found = reference(LinearHead(D, CLASSES), x, y, recipe, generator=seeded())
    assert found.movement is not None
    assert found.drift is None


class Branching(nn.Module):
    """Reads a number out of its input, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(D, CLASSES).double()

    def forward(self, x):
        return self.inner(x if float(x.detach().sum()) > 1e9 else x.tanh())


def a_convolution() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, CLASSES)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize(("make", "shape"), [(a_convolution, (1, 4, 4)), (Branching, (D,))])
def test_gradients_of_a_module_are_those_of_one_record_at_a_time(make, shape):
    model = make()
    x, y = torch.randn(5, *shape, dtype=torch.float64), torch.arange(5) % CLASSES
    x.requires_grad_()
    network = ModuleNetwork(model, CLASSES)
    found = gradients(network, network.theta, x, y)
    model.eval()
    for row in range(5):
        loss = nn.functional.cross_entropy(model(x[row : row + 1]), y[row : row + 1])
        one = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        torch.testing.assert_close(found[row], torch.cat([g.flatten() for g in one]))
    wanted = torch.autograd.grad(torch.cat([g.flatten() for g in one]).square().sum(), x)[0][-1]
    torch.testing.assert_close(torch.autograd.grad(found[-1].square().sum(), x)[0][-1], wanted)


def test_a_module_is_left_as_it_was_and_frozen_parameters_are_no_part_of_theta():
    model = a_convolution().train()
    model[0].requires_grad_(False)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    x, y = torch.randn(6, 1, 4, 4, dtype=torch.float64), torch.arange(6) % CLASSES
    network = ModuleNetwork(model, CLASSES)
    assert network.theta.shape == (3 + 3 + 12 * CLASSES + CLASSES,)
    assert gradients(network, network.theta, x, y).shape == (6, network.parameters)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_training_that_diverges_is_named():
    recipe = replace(RECIPE, lr=1e300, clipping=None, l2=1e9)
    with pytest.raises(InputError, match="lower the learning rate"):
        reference(LinearHead(D, CLASSES), *data(), recipe, generator=seeded(), movement=False)


def test_a_module_of_other_outputs_or_nothing_to_train_is_refused():
    x, y = data()
    network = ModuleNetwork(nn.Linear(D, 2).double(), CLASSES)
    with pytest.raises(InputError, match="expected logits of shape"):
        gradients(network, network.theta, x, y)
    with pytest.raises(InputError, match="requires_grad"):
        ModuleNetwork(nn.Linear(D, 2).requires_grad_(False), 2)
