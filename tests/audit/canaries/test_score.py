"""Scores of models: a higher score speaks for D, which holds the target record."""

from __future__ import annotations

import pytest
import torch

from safexplain.audit.canaries.canary import RecordCanary, margins, record_scores
from safexplain.errors import InputError

BOUND = 1.0


def two_worlds(canary: RecordCanary, runs: int = 12, steps: int = 15) -> tuple[torch.Tensor, ...]:
    """DP-SGD of a linear head with 3 classes, one record of one step of one run at a time: theta (runs, 12), and x, y.

    The first half of the runs is on D.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    y = torch.arange(8) % 3
    found = []
    for run in range(runs):
        theta = torch.zeros(12, dtype=torch.float64)
        for _ in range(steps):
            total = 0.3 * BOUND * torch.randn(12, generator=generator, dtype=torch.float64)
            for row in range(8):
                inputs, label, on_d = x[row], int(y[row]), run < runs // 2
                if row == canary.target and not on_d:
                    inputs, label = canary.x, canary.y
                leaf = theta.clone().requires_grad_()
                weight = leaf.view(3, 4)
                loss = torch.nn.functional.cross_entropy(weight[:, :3] @ inputs + weight[:, 3], torch.tensor(label))
                gradient = torch.autograd.grad(loss, leaf)[0]
                total += gradient * min(1.0, BOUND / float(gradient.norm()))
            theta = theta - 0.05 * total / 8
        found.append(theta)
    return torch.stack(found), x, y


def logits(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    weight = theta.view(-1, 3, 4)
    return weight[..., :3] @ x + weight[..., 3]


@pytest.mark.parametrize("kind", ["crafted", "mislabelled", "natural"])
def test_models_on_d_score_higher(kind):
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[2]
    canary = {
        "crafted": RecordCanary("crafted", 2, -z, 2),
        "mislabelled": RecordCanary("mislabelled", 2, z, 0),
        "natural": RecordCanary("natural", 2, torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64), 1),
    }[kind]
    theta, x, y = two_worlds(canary)
    scores = record_scores(logits(theta, x[2]), logits(theta, canary.x), int(y[2]), canary.y, canary.scenario)
    a, b = scores.chunk(2)
    assert a[:, None].gt(b).double().mean() > 0.9  # the scores the other way round would be below 0.1


def test_a_margin_is_the_log_odds_of_the_label():
    found = torch.randn(5, 4, dtype=torch.float64)
    p = found.softmax(1)[:, 2]
    torch.testing.assert_close(margins(found, 2), (p / (1 - p)).log())


def test_a_margin_of_a_sure_model_is_finite():
    assert margins(torch.tensor([[2000.0, 0.0, -10.0]]), 0).isfinite().all()


@pytest.mark.parametrize(("scenario", "y"), [("crafted", 0), ("natural", 1), ("mislabelled", 1)])
def test_one_logit_scores_as_two_of_which_one_is_0(scenario, y):
    z, c = torch.randn(2, 5, 1, dtype=torch.float64)
    both = [torch.cat([torch.zeros_like(t), t], 1) for t in (z, c)]
    other = y if scenario == "crafted" else 1 - y
    torch.testing.assert_close(record_scores(z, c, y, other, scenario), record_scores(*both, y, other, scenario))


def test_a_mislabelled_canary_is_scored_by_two_logits_at_one_input():
    z = torch.tensor([[1.0, 5.0, 2.0]])
    assert record_scores(z, torch.full_like(z, torch.nan), 1, 2, "mislabelled").tolist() == [3.0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda z: record_scores(z, z, 0, 3, "natural"), "0 to 2"),
        (lambda z: record_scores(z, z, 1, 1, "mislabelled"), "another label"),
    ],
)
def test_what_cannot_be_scored_is_named(call, says):
    with pytest.raises(InputError, match=says):
        call(torch.zeros(2, 3))
