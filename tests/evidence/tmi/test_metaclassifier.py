"""Metaclassifiers: as a loop over points trains them, finding what is there, and nothing where nothing is."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from audit.suites.paper_e_tmi.attacks import Metaclassifier


def world(n, m, k, queries):
    """Prediction vectors: a point's own level, noise of the model and of the query, a shift of its own for members."""
    rng = np.random.default_rng(0)
    member = rng.random((m + 1, n)) < 0.5
    shift = rng.normal(size=(n, k)) + 0.5
    noise = rng.normal(size=(m + 1, n, 1, k)) + 0.5 * rng.normal(size=(m + 1, n, queries, k))
    odds = rng.normal(0, 2, (n, 1, k)) + noise + member[..., None, None] * shift[:, None]
    odds = odds.reshape(m + 1, n, queries * k)
    return odds[0], odds[1:], member[1:]


def rows_of(case, i, attack):
    """The rows of point i, their labels and what the target says, on the attack's scale."""
    target, shadows, membership = case
    queries = attack.queries
    rows = np.array([answer for model in shadows for answer in model[i].reshape(queries, -1)])
    label = np.array([member for member in membership[:, i] for _ in range(queries)])
    asked = target[i].reshape(queries, -1)
    return *(np.array([r / max(1.0, np.linalg.norm(r)) for r in a]) for a in (rows, asked)), label


def prior(label):
    return math.log(label.mean() / (1 - label.mean()))


def slow_mlp(case, i, attack):
    """One `nn.Sequential` and one `torch.optim.Adam` for the point."""
    rows, asked, label = rows_of(case, i, attack)
    x, y = torch.tensor(rows, dtype=torch.float32), torch.tensor(label.astype(np.int64))
    generator = torch.Generator().manual_seed(attack.seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))
    k = x.shape[1]

    def uniform(shape, inputs):
        return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(inputs)

    with torch.no_grad():
        first = uniform((k + 1, 64), k)
        network[0].weight.copy_(first[:-1].T)
        network[0].bias.copy_(first[-1])
        network[2].weight.copy_(uniform((2, 64), 64))
        network[2].bias.copy_(uniform((2,), 64))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
    for _ in range(attack.epochs):
        for index in torch.randperm(len(x), generator=generator).split(64):
            mask = (torch.rand((len(index), 64), generator=generator) >= 0.5) / 0.5
            logits = network[2](network[1](network[0](x[index])) * mask)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, y[index]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        z = network(torch.tensor(asked, dtype=torch.float32)).double()
    return float((z[:, 1] - z[:, 0]).mean()) - prior(label)


@pytest.mark.parametrize(("n", "m", "queries"), [(3, 41, 2), (70, 6, 1)], ids=["several batches", "several parts"])
def test_all_networks_at_once_are_as_one_after_the_other(n, m, queries):
    case = world(n, m, 4, queries)
    attack = Metaclassifier(queries, seed=3)
    found = attack(*case)
    both = case[2].any(0) & ~case[2].all(0)
    points = np.flatnonzero(both)[[0, 1, -1]] if n > 3 else np.flatnonzero(both)
    assert len(points) >= 2
    assert np.allclose(found[points], [slow_mlp(case, i, attack) for i in points], atol=1e-4)
