"""Features of a frozen backbone: what the head sees, computed once."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from safexplain.dp.heads import features, head_input, linear_head
from safexplain.errors import InputError


class Net(nn.Module):
    """A small convolutional network that counts the rows it sees."""

    def __init__(self, middle=None):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), middle or nn.Dropout(0.5))
        self.tail = nn.ModuleDict({"fc": nn.Linear(5, 4)})
        self.seen = 0

    def forward(self, x):
        """(n, 3, h, w) -> (n, 4)."""
        self.seen += len(x)
        return self.tail["fc"](self.body(x).mean((2, 3)))


class AlwaysDropout(nn.Module):
    def forward(self, x):
        """Drops in eval mode too."""
        return F.dropout(x, 0.5, training=True)


@pytest.fixture
def x():
    return torch.randn(50, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net(x):
    net = Net()
    net.train()(x)  # statistics of the batch normalisation
    net.seen = 0
    return net


HEAD = "tail.fc"


def test_features_are_what_the_head_receives_in_eval_mode(net, x):
    found = features(net.train(), HEAD, x, batch_size=16)
    with torch.no_grad():
        expected = net.eval().body(x).mean((2, 3))
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(net.tail["fc"](found), net(x), atol=1e-6)
    assert not torch.allclose(found, net.train().body(x).mean((2, 3)), atol=1e-2), "train mode would be seen"


def test_modes_and_statistics_of_every_module_are_as_before(net, x):
    net.train()
    net.body.eval()
    before = [m.training for m in net.modules()]
    state = copy.deepcopy(net.state_dict())
    features(net, HEAD, x)
    assert [m.training for m in net.modules()] == before
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert True in before
    assert False in before
    with pytest.raises(InputError):
        features(net, HEAD, x * float("nan"))
    assert [m.training for m in net.modules()] == before


def test_the_second_call_does_not_run_the_model(net, x, tmp_path):
    first = features(net, HEAD, x, cache=tmp_path)
    ran, net.seen = net.seen, 0
    again = features(net, HEAD, x, cache=tmp_path)
    assert ran >= len(x)
    assert net.seen == 0
    assert torch.equal(first, again)
    assert [p.suffix for p in tmp_path.iterdir()] == [".npy"]


def test_changed_weights_rows_or_precision_are_computed_anew(net, x, tmp_path):
    first = features(net, HEAD, x, cache=tmp_path)
    with torch.no_grad():
        net.body[0].weight[0, 0, 0, 0] += 0.5
    changed = features(net, HEAD, x, cache=tmp_path)
    assert not torch.equal(first, changed)
    x[3] += 1
    assert not torch.equal(changed, features(net, HEAD, x, cache=tmp_path))
    assert features(net.double(), HEAD, x.double(), cache=tmp_path).dtype == torch.float64
    assert len(list(tmp_path.iterdir())) == 4


def test_another_head_on_the_same_backbone_needs_no_new_features(net, x, tmp_path):
    first = features(net, HEAD, x, cache=tmp_path)
    nn.init.normal_(net.tail["fc"].weight)
    net.seen = 0
    assert torch.equal(features(net, HEAD, x, cache=tmp_path), first)
    assert net.seen == 0
    assert isinstance(net.tail["fc"], nn.Linear)


def test_an_interrupted_call_goes_on_where_it_stopped(net, x, tmp_path, monkeypatch):
    monkeypatch.setattr("safexplain.dp.heads._PIECE", 50)
    whole = features(net, HEAD, x, batch_size=10)

    def stop(stage, done, total):
        if done > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        features(net, HEAD, x, batch_size=10, cache=tmp_path, progress=stop)
    assert len(list(tmp_path.iterdir())) == 3
    net.seen, reports = 0, []
    found = features(net, HEAD, x, batch_size=10, cache=tmp_path, progress=lambda *a: reports.append(a))
    assert torch.equal(found, whole)
    assert reports == [("features", 40, 50), ("features", 50, 50)]
    assert net.seen < 40
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"\x93NUMPY", None])
def test_a_damaged_file_is_computed_anew(net, x, tmp_path, damage):
    first = features(net, HEAD, x, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    if damage is None:
        np.save(path, np.zeros((3, 5), np.float32))
    else:
        path.write_bytes(damage)
    assert torch.equal(features(net, HEAD, x, cache=tmp_path), first)


@pytest.mark.parametrize("middle", [AlwaysDropout(), nn.BatchNorm2d(5, track_running_stats=False)])
def test_features_that_depend_on_chance_or_on_other_rows_are_refused(x, middle):
    with pytest.raises(InputError, match="are random or depend on the other rows"):
        features(Net(middle), HEAD, x)


def test_gradients_pass_through_the_head_input(net, x):
    x.requires_grad_()
    head_input(net.eval(), HEAD, x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 0
    assert not net.tail["fc"]._forward_pre_hooks


def test_a_head_that_is_not_there_or_not_linear_is_named(net, x):
    with pytest.raises(InputError, match=r"'head'.*tail\.fc"):
        linear_head(net, "head")
    with pytest.raises(InputError, match="Conv2d"):
        features(net, "body.0", x)


def test_an_input_of_the_head_that_is_not_two_dimensional_is_refused():
    tokens = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"\(n, d\)"):
        features(tokens, "2", torch.randn(5, 6, 3))
    assert features(tokens, "2", torch.randn(5, 3)).shape == (5, 4)


def test_a_head_that_is_called_twice_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(self.head(x))

    with pytest.raises(InputError, match="2 times"):
        features(Twice(), "head", torch.randn(5, 3))


def test_infinite_features_and_no_rows_are_refused(net, x):
    with pytest.raises(InputError, match="NaN or infinite"):
        features(net, HEAD, x * float("inf"))
    with pytest.raises(InputError, match="at least one row"):
        features(net, HEAD, x[:0])
