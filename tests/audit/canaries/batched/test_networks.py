"""Networks side by side in one tensor: the same as torch's modules and as autograd, one example at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from audit.suites.paper_c_canaries.mlp import MLP
from safexplain.audit.canaries.batched import LinearHead
from safexplain.dp.heads.closed_form import Rows
from safexplain.dp.sgd.clipping import AutoSClipping, FlatClipping

D, N, RUNS = 6, 15, 3
NETWORKS = [
    LinearHead(D, 4), LinearHead(D, 2, bias=False, one_logit=True), MLP(D, (5,), 3), MLP(D, (5, 4), 3, "relu"),
]  # fmt: skip
every_network = pytest.mark.parametrize("network", NETWORKS, ids=repr)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def data(network, seed=0, runs=RUNS):
    g = seeded(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = torch.randint(0, network.classes, (N,), generator=g)
    return x, y, torch.randn(runs, network.parameters, generator=g, dtype=torch.float64)


def module(network, theta):
    """The torch module with the parameters of one run."""
    widths = (D, *getattr(network, "hidden", ()), network.outputs)
    layers, at = [], 0
    for i, (below, width) in enumerate(pairwise(widths)):
        layer = nn.Linear(below, width, bias=network.bias).double()
        matrix = theta[at : at + width * (below + network.bias)].view(width, -1)
        at += matrix.numel()
        layer.weight.data = matrix[:, :below].clone()
        if network.bias:
            layer.bias.data = matrix[:, below].clone()
        layers.append(layer)
        if i < len(widths) - 2:
            layers.append(nn.Tanh() if network.activation == "tanh" else nn.ReLU())
    assert at == network.parameters
    return nn.Sequential(*layers)


def loss(logits, y):
    """Cross-entropy of one example."""
    if logits.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(logits[0], y.to(logits))
    return F.cross_entropy(logits[None], y[None])


def slow_gradients(network, theta, x, y):
    """(n, P) by autograd through the module, one example at a time, put into the order of theta."""
    net, found = module(network, theta), []
    for row, label in zip(x, y, strict=True):
        net.zero_grad()
        loss(net(row), label).backward()
        parts = []
        for layer in net:
            if isinstance(layer, nn.Linear):
                bias = [] if layer.bias is None else [layer.bias.grad[:, None]]
                parts.append(torch.cat([layer.weight.grad, *bias], 1).flatten())
        found.append(torch.cat(parts))
    return torch.stack(found)


def slow_sum(network, theta, x, y, clipping):
    gradients = slow_gradients(network, theta, x, y)
    factors = [1.0 if clipping is None else float(clipping.factors(g.norm()[None])) for g in gradients]
    return sum((f * g for f, g in zip(factors, gradients, strict=True)), torch.zeros_like(theta))


@pytest.mark.parametrize(
    ("network", "clipping"),
    [*((network, FlatClipping(0.9)) for network in NETWORKS),
     (NETWORKS[0], AutoSClipping(0.9)), (NETWORKS[-1], AutoSClipping(0.9)), (NETWORKS[0], None), (NETWORKS[-1], None)],
    ids=repr,
)  # fmt: skip
def test_the_clipped_sum_is_that_of_autograd_one_example_at_a_time(network, clipping):
    x, y, theta = data(network)
    before, rows = theta.clone(), Rows.of(x, y, bias=network.bias)
    index = torch.randint(0, N, (9,), generator=seeded(1))
    weight = torch.rand(RUNS, 9, generator=seeded(2)) < 0.7
    for weights in (weight, None):
        found = network.clipped_sum(theta, rows.take(index), weights, clipping)
        assert found.shape == theta.shape
        for run in range(RUNS):
            chosen = index if weights is None else index[weights[run]]
            slow = slow_sum(network, theta[run], x[chosen], y[chosen], clipping)
            assert (found[run] - slow).abs().max() < 1e-12
            assert slow.abs().max() > 0.1
    assert torch.equal(theta, before)
    assert torch.equal(rows.x[:, :D], x)


def test_heads_start_at_zero():
    head = LinearHead(D, 3).initial(4, seeded(), torch.device("cpu"), torch.float64)
    assert head.shape == (4, 3 * (D + 1))
    assert not head.any()


@pytest.mark.gpu
@every_network
def test_a_gpu_sums_the_same(network):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    x, y, theta = data(network)
    on_cpu = network.clipped_sum(theta, Rows.of(x, y, bias=network.bias), None, FlatClipping(0.5))
    on_gpu = network.clipped_sum(theta.cuda(), Rows.of(x.cuda(), y.cuda(), bias=network.bias), None, FlatClipping(0.5))
    assert torch.allclose(on_cpu, on_gpu.cpu(), atol=1e-11)
