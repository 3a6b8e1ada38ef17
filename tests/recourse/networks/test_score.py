"""What a search asks of a model, and that it leaves the model as it was."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from safexplain.errors import InputError
from safexplain.recourse.networks.boundary_search import NetworkScore
from safexplain.recourse.networks.search import network_recourse

ROWS = np.random.default_rng(0).normal(size=(20, 5))


class Odd(nn.Module):
    """Dropout, batch statistics, and a parameter that is frozen."""

    def __init__(self, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.5)
        self.last = nn.Linear(16, outputs)
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.norm(self.first(x)))))


class Of(nn.Module):
    """A function of rows as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, rows):
        return self.function(rows)


class WithoutBackward(torch.autograd.Function):
    """A score that was never given a derivative."""

    @staticmethod
    def forward(ctx, rows):
        return rows[:, 0] - 9


def test_the_model_is_left_as_it_was():
    model = Odd().train()
    model.norm.eval()
    model.last.weight.grad = torch.ones_like(model.last.weight)
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    calls: list[int] = []
    model.last.register_forward_hook(lambda *_: calls.append(1))
    found = network_recourse(model, ROWS, target=0.3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert calls
    assert len(model.last._forward_hooks) == 1
    assert (model.last.weight.grad == 1).all()
    assert model.first.weight.grad is None
    assert not model.first.bias.requires_grad
    assert (found.counterfactual == network_recourse(model.eval(), ROWS, target=0.3).counterfactual).all()


def test_training_flags_come_back_after_an_error():
    model = Odd(outputs=3).train()
    with pytest.raises(InputError, match="class 7"):
        network_recourse(model, ROWS, favourable=7)
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize("favourable", [0, 2])
def test_answers_for_one_class_of_many_are_predicted_as_that_class(favourable):
    model = Odd(outputs=3).eval()
    found = network_recourse(model, ROWS, favourable=favourable)
    with torch.no_grad():
        predicted = model(torch.tensor(found.counterfactual, dtype=torch.float32)).argmax(dim=1).numpy()
        before = model(torch.tensor(ROWS, dtype=torch.float32))
    assert found.valid.all()
    assert (predicted == favourable).all()
    assert (found.favourable == (before.argmax(dim=1).numpy() == favourable)).all()
    others = before[:, [k for k in range(3) if k != favourable]].amax(dim=1)
    assert found.score == pytest.approx((before[:, favourable] - others).numpy(), abs=1e-6)


def test_class_0_of_a_single_logit_is_its_negative():
    model = Odd().eval()
    one, zero = (NetworkScore(model, favourable=k).values(torch.tensor(ROWS)) for k in (1, 0))
    assert torch.equal(one, -zero)
    flat = NetworkScore(nn.Sequential(model, nn.Flatten(0)))
    assert torch.equal(flat.values(torch.tensor(ROWS)), one)


def test_gradients_are_those_of_each_row_whatever_the_batch():
    model = Odd().double().eval()
    rows = torch.tensor(ROWS)
    values, slopes = NetworkScore(model, batch_size=3).gradients(rows)
    assert values.dtype == slopes.dtype == torch.float64
    for k in range(len(rows)):
        leaf = rows[k : k + 1].clone().requires_grad_()
        model(leaf).sum().backward()
        assert torch.allclose(leaf.grad[0], slopes[k], rtol=1e-10)


def test_rows_are_rounded_to_the_type_of_the_network():
    seen = []
    model = nn.Linear(5, 1)
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    NetworkScore(model).values(torch.tensor(ROWS))
    NetworkScore(model.half().bfloat16()).values(torch.tensor(ROWS))
    NetworkScore(Of(lambda rows: seen.append(rows.dtype) or rows[:, 0])).values(torch.tensor(ROWS))
    assert seen == [torch.float32, torch.bfloat16, torch.float32]


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (lambda rows: rows.sum(), r"expected logits of shape \(20,\).*got \(\)"),
        (lambda rows: (rows[:, 0] - 9).detach(), "differentiate"),
        (WithoutBackward.apply, "differentiate"),
        (lambda rows: rows[:, 0] * torch.nan, "expected finite scores, got others for rows 0, 1, 2, 3, 4, ..."),
        (nn.Linear(5, 2), r"with a column for class 2, got \(20, 2\)"),
    ],
)
def test_unusable_scores_are_refused(score, says):
    network, favourable = (score, 2) if isinstance(score, nn.Module) else (Of(score), 1)
    with pytest.raises(InputError, match=says):
        network_recourse(network, ROWS, favourable=favourable)


def test_scores_that_overflow_on_the_way_are_not_answers():
    found = network_recourse(Of(lambda rows: -(rows[:, 0] + 9).clamp_min(1e-3).log() + 1.0), ROWS)
    assert np.isfinite(found.counterfactual).all()
    assert found.valid.all()


@pytest.mark.gpu
def test_a_network_on_a_gpu_gets_answers_like_one_on_the_cpu():
    model = Odd().eval()
    here = network_recourse(model, ROWS, target=0.3)
    there = network_recourse(model.cuda(), ROWS, target=0.3)
    assert there.valid.all()
    assert there.distance == pytest.approx(here.distance, rel=1e-2)


def test_rows_that_a_network_does_not_take_are_refused_with_their_width():
    with pytest.raises(InputError, match="the model fails on rows of 4 features"):
        network_recourse(nn.Linear(3, 2), np.zeros((2, 4)))
