"""Modules in place of functions: the same numbers, bit by bit, and methods that are themselves on them."""

import copy
import pickle

import pytest
import torch
from captum.attr import DeepLift, GuidedBackprop
from explain_nets import certificate, quiet
from torch import nn
from torch.nn import functional as F

from safexplain import HardenedDeepLift, HardenedGuidedBackprop
from safexplain._digest import model_digest
from safexplain.errors import CertificateError, InputError, RefusedError
from safexplain.explain import rewrite_functional
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
PLAIN = Hardening.none()


class Block(nn.Module):
    """A residual block with its activations as functions, or as modules, written by hand."""

    def __init__(self, channels, modules):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.inner, self.outer = (nn.ReLU(), nn.ReLU()) if modules else (F.relu, torch.relu)

    def forward(self, x):
        return self.outer(x + self.bn2(self.conv2(self.inner(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, modules=False):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.blocks = nn.Conv2d(3, 6, 3), nn.Sequential(*(Block(6, modules) for _ in range(3)))
        self.head = nn.Linear(6, 4)
        self.relu, self.pool = (nn.ReLU(), nn.MaxPool2d(2)) if modules else (torch.relu, lambda x: F.max_pool2d(x, 2))

    def forward(self, x):
        return self.head(self.blocks(self.pool(self.relu(self.stem(x)))).mean((2, 3)))


def nets():
    """The same network with functions and with modules, with statistics of some data."""
    functions, modules = ResNet(), ResNet(modules=True)
    for _ in range(5):
        functions(2 * torch.randn(8, 3, 12, 12))
    modules.load_state_dict(functions.state_dict())
    return functions.eval(), modules.eval()


def pictures(batch=4):
    return torch.randn(batch, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [DeepLift, GuidedBackprop])
def test_a_method_gives_on_a_rewritten_network_what_it_gives_on_one_written_with_modules(kind):
    functions, modules = nets()
    hardened = {DeepLift: HardenedDeepLift, GuidedBackprop: HardenedGuidedBackprop}[kind]
    x, expected = pictures(), kind(modules).attribute(pictures(), target=1)
    assert not torch.equal(kind(functions).attribute(x, target=1), expected)  # what Captum gives without a word
    with pytest.raises(RefusedError):
        hardened(functions, hardening=PLAIN).attribute(x, target=1)
    rewritten = rewrite_functional(functions)
    assert rewrite_functional(modules) is modules
    assert torch.equal(hardened(rewritten, hardening=PLAIN).attribute(x, target=1), expected)


def test_a_relu_module_beside_relus_as_functions_is_refused_and_rewritten():
    model, x = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Calls(torch.relu)).eval(), torch.randn(4, 6)
    with pytest.raises(RefusedError, match="calls 1 of 2 ReLUs as functions"):
        HardenedGuidedBackprop(model, hardening=PLAIN).attribute(x, target=1)
    by_hand = nn.Sequential(model[0], nn.ReLU(), model[2].first, nn.ReLU(), model[2].last)
    found = HardenedGuidedBackprop(rewrite_functional(model), hardening=PLAIN).attribute(x, target=1)
    assert torch.equal(found, GuidedBackprop(by_hand).attribute(x, target=1))


def test_a_module_that_is_called_twice_becomes_two():
    class Reused(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.third(self.act(self.second(self.act(self.first(x)))))

    model, x = Reused().eval(), torch.randn(4, 6)
    rewritten = rewrite_functional(model)
    assert len([part for part in rewritten.modules() if isinstance(part, nn.ReLU)]) == 2
    by_hand = nn.Sequential(model.first, nn.ReLU(), model.second, nn.ReLU(), model.third)
    expected = DeepLift(by_hand).attribute(x, target=1)
    assert torch.equal(HardenedDeepLift(rewritten, hardening=PLAIN).attribute(x, target=1), expected)


class Calls(nn.Module):
    """One call between two layers."""

    def __init__(self, call):
        super().__init__()
        self.first, self.last, self.call = nn.Linear(6, 8), nn.Linear(8, 3), call

    def forward(self, x):
        return self.last(self.call(self.first(x)))


CALLS = {
    "F.relu": (F.relu, nn.ReLU),
    "torch.relu_": (torch.relu_, nn.ReLU),
    "x.relu": (lambda x: x.relu(), nn.ReLU),
    "x.relu_": (lambda x: x.relu_(), nn.ReLU),
    "F.leaky_relu": (lambda x: F.leaky_relu(x, 0.3), nn.LeakyReLU),
    "F.elu": (lambda x: F.elu(x, alpha=0.7), nn.ELU),
    "F.softplus": (lambda x: F.softplus(x, 2.0), nn.Softplus),
    "torch.sigmoid": (torch.sigmoid, nn.Sigmoid),
    "x.tanh_": (lambda x: x.tanh_(), nn.Tanh),
    "F.max_pool1d": (lambda x: F.max_pool1d(x[:, None], 3, stride=1, padding=1)[:, 0], nn.MaxPool1d),
    "torch.max_pool1d": (lambda x: torch.max_pool1d(x[:, None], 3, 1, 1)[:, 0], nn.MaxPool1d),
}


def test_each_of_these_calls_becomes_a_module_that_computes_the_same():
    for name in CALLS:
        call, module = CALLS[name]
        model, x = Calls(call).eval(), 3 * torch.randn(50, 6)
        rewritten = rewrite_functional(model)
        assert [type(part) for part in rewritten.modules() if isinstance(part, module)] == [module]
        with torch.no_grad():
            assert torch.equal(rewritten(x), model(x))


def test_what_is_changed_in_place_is_changed_for_those_who_use_it_later():
    def both(x):
        x.relu_()
        return x * 2

    model, x = Calls(both).eval(), torch.randn(20, 6)
    rewritten = rewrite_functional(model)
    assert any(isinstance(part, nn.ReLU) for part in rewritten.modules())
    with torch.no_grad():
        assert torch.equal(rewritten(x), model(x))


def test_parameters_and_buffers_are_shared_under_the_same_names_and_the_model_stays_as_it_was():
    model, _ = nets()
    before, names = copy.deepcopy(model.state_dict()), [name for name, _ in model.named_modules()]
    rewritten = rewrite_functional(model)
    assert [name for name, _ in model.named_modules()] == names
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    shared = dict(rewritten.named_parameters()) | dict(rewritten.named_buffers())
    assert shared.keys() == own.keys()
    assert all(shared[name] is tensor for name, tensor in own.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(part.training for part in rewritten.modules())


def test_the_digest_is_the_same_each_time_and_survives_pickling_and_a_certificate_is_about_it(tmp_path):
    model, _ = nets()
    first, again = rewrite_functional(model), rewrite_functional(copy.deepcopy(model))
    assert model_digest(first) == model_digest(again) == model_digest(pickle.loads(pickle.dumps(first)))
    assert model_digest(first) != model_digest(model)
    explainer = {"method": "DeepLift", "output": "logit", "options": {}, "softmax": False}
    path = certificate(tmp_path, first, explainer=explainer, hardening=Hardening.recommended())
    maps = HardenedDeepLift.from_certificate(again, path).attribute(pictures(), target=1)
    expected = HardenedDeepLift(first, hardening=Hardening.recommended()).attribute(pictures(), target=1)
    assert torch.equal(maps, expected)
    with pytest.raises(CertificateError, match="another model"):
        HardenedDeepLift.from_certificate(model, path)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x: x.relu() if x.sum() > 0 else x, "cannot be traced"),
        (lambda x: x.relu() * float(x.mean()), "cannot be traced"),
        (
            lambda x: x.relu() if isinstance(x, torch.Tensor) else x.relu() + 1,
            "expected the same outputs after rewriting",
        ),
    ],
    ids=["a branch", "a number", "a class"],
)
def test_a_network_that_cannot_be_followed_is_refused_with_the_reason(forward, reason):
    with pytest.raises(RefusedError, match=reason):
        rewrite_functional(Calls(forward).eval(), inputs=torch.randn(4, 6))


def test_training_mode_is_refused_and_dropout_as_a_function_stays_off():
    class Dropping(Calls):
        def forward(self, x):
            return self.last(F.dropout(torch.relu(self.first(x)), 0.5, self.training))

    model = Dropping(None)
    with pytest.raises(InputError, match="training mode"):
        rewrite_functional(model)
    x = torch.randn(5, 6)
    assert torch.equal(rewrite_functional(model.eval())(x), model(x))


def test_outputs_are_compared_on_the_inputs_that_are_given():
    model = Calls(torch.relu).eval()
    with pytest.raises(InputError, match="fails for inputs"):
        rewrite_functional(model, torch.randn(4, 7))
    assert torch.equal(rewrite_functional(model, torch.randn(4, 6))(torch.ones(2, 6)), model(torch.ones(2, 6)))
