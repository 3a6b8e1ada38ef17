"""One model, one digest: pairs of models whose digests must differ, and pairs whose digests must be equal."""

import copy
import functools
import io
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from captum.attr import Saliency
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from safexplain import GaussianNoise, HardenedSaliency, Hardening, harden
from safexplain import _digest as identity
from safexplain._digest import OPAQUE_DIGEST, explained_digest, model_digest
from safexplain._digest.model_state import network_of
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError, RefusedError
from safexplain.loading.exported import ExportedModel
from safexplain.outputs import Probability

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
TEMPERATURE = 2.0


class Net(nn.Module):
    """State in every place that a module has."""

    def __init__(self, seed=0, temperature=2.0, shift=0.0, mask=1.0, hidden=8):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(6, hidden), nn.Linear(hidden, 3)
        self.temperature = temperature
        self.shift = torch.full((3,), shift)
        self.register_buffer("mask", torch.full((3,), mask), persistent=False)

    def forward(self, x):
        return self.last(self.first(x).relu()) * self.mask / self.temperature + self.shift


class Given(nn.Module):
    """A network that computes with something that it is given."""

    def __init__(self, given, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.given = nn.Linear(6, 3), given

    def forward(self, x):
        return self.layer(x) if self.given is None else self.layer(x) + 0


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


class Scaled(Wrapper):
    def forward(self, x):
        return self.model(x) * 2


def dynamic(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)


def scripted(**arguments):
    return torch.jit.script(Net(**arguments).eval())


def exported(**arguments):
    return torch.export.export(Net(**arguments).eval(), (X,)).module()


def exported_and_loaded(**arguments):
    file = io.BytesIO()
    torch.export.save(torch.export.export(Net(**arguments).eval(), (X,)), file)
    file.seek(0)
    return torch.export.load(file).module()


def traced_fx(**arguments):
    return torch.fx.symbolic_trace(Net(**arguments).eval())


class Weights(torch.Tensor):
    """A tensor subclass that holds its numbers in inner tensors, as torchao's do."""

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scale)
        raise NotImplementedError(str(function))


def subclass(seed, scale):
    net = nn.Linear(6, 3, bias=False)
    numbers = torch.randint(-9, 9, (3, 6), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    net.weight = nn.Parameter(Weights(numbers, torch.tensor(scale)), requires_grad=False)
    return net


class Listed(nn.Module):
    """Layers in a plain list, which `modules()` does not find."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = [nn.Linear(6, 6), nn.Linear(6, 3)]

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


class Functional(nn.Module):
    def __init__(self, activation):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.activation = nn.Linear(6, 3), activation

    def forward(self, x):
        return self.activation(self.layer(x))


def quantised_buffer(scale, zero=0):
    net = nn.Linear(6, 3)
    nn.init.ones_(net.weight)
    nn.init.zeros_(net.bias)
    net.register_buffer("table", torch.quantize_per_tensor(torch.zeros(4), scale, zero, torch.qint8))
    return net


def per_channel(scales):
    net = nn.Identity()
    net.table = torch.quantize_per_channel(torch.zeros(2, 2), torch.tensor(scales), torch.zeros(2), 0, torch.qint8)
    return net


def sparse(value):
    net = nn.Identity()
    net.table = torch.tensor([[0.0, value], [0.0, 0.0]]).to_sparse()
    return net


def lstm(seed):
    torch.manual_seed(seed)
    return nn.LSTM(6, 4)


def times(factor):
    return lambda x: x * factor


def tensor_closure(weights):
    return lambda x: NET(x) @ weights


NET = Net()

DIFFER = {
    "weights": lambda: (Net(0), Net(1)),
    "a number": lambda: (Net(temperature=2.0), Net(temperature=2.5)),
    "a plain tensor": lambda: (Net(shift=0.0), Net(shift=0.1)),
    "a non-persistent buffer": lambda: (Net(mask=1.0), Net(mask=0.9)),
    "dynamic int8": lambda: (dynamic(Net(0)), dynamic(Net(1))),
    "dynamic int8 LSTM": lambda: (dynamic(nn.Sequential(lstm(0))), dynamic(nn.Sequential(lstm(1)))),
    "exported": lambda: (exported(seed=0), exported(seed=1)),
    "exported, a number": lambda: (exported(temperature=2.0), exported(temperature=2.5)),
    "exported, a buffer": lambda: (exported(mask=1.0), exported(mask=0.9)),
    "fx, a number": lambda: (traced_fx(temperature=2.0), traced_fx(temperature=2.5)),
    "a class": lambda: (nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU())),
    "names": lambda: (nn.Sequential(nn.Flatten(), nn.ReLU()), nn.Sequential(nn.Flatten(), nn.Identity(), nn.ReLU())),
    "slope": lambda: (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
    "a bool": lambda: (Given(True), Given(False)),
    "a text": lambda: (Given("mean"), Given("sum")),
    "a tuple": lambda: (Given((1, 2)), Given((1, 3))),
    "a list": lambda: (Given([1.0]), Given([2.0])),
    "a list of tensors": lambda: (Given([torch.zeros(2)]), Given([torch.ones(2)])),
    "layers in a list": lambda: (Listed(0), Listed(1)),
    "a function": lambda: (Functional(F.relu), Functional(F.gelu)),
    "a lambda's constant": lambda: (Functional(lambda x: x * 2), Functional(lambda x: x * 3)),
    "a lambda's closure": lambda: (Functional(times(2.0)), Functional(times(3.0))),
    "a quantised buffer's scale": lambda: (quantised_buffer(0.1), quantised_buffer(0.2)),
    "a quantised buffer's zero point": lambda: (quantised_buffer(0.1, 0), quantised_buffer(0.1, 1)),
    "scales of channels": lambda: (per_channel([0.1, 0.2]), per_channel([0.1, 0.3])),
    "a sparse tensor": lambda: (sparse(1.0), sparse(2.0)),
    "a tensor subclass": lambda: (subclass(0, 0.1), subclass(1, 0.1)),
    "a tensor subclass's scale": lambda: (subclass(0, 0.1), subclass(0, 0.2)),
    "float16": lambda: (Net().half(), Net()),
    "float64 with more digits": lambda: (Given(torch.tensor([0.1], dtype=torch.float64)), Given(torch.tensor([0.1]))),
    "a wrapper that computes": lambda: (Scaled(NET), NET),
    "functions that compute": lambda: (lambda x: NET(x) * 2, lambda x: NET(x) * 3),
    "operations": lambda: (lambda x: NET(x) * 2, lambda x: NET(x) / 2),
    "a closure's tensor": lambda: (tensor_closure(torch.eye(3)), tensor_closure(-torch.eye(3))),
    "a partial's argument": lambda: tuple(functools.partial(lambda x, k: NET(x) * k, k=k) for k in (1.0, 2.0)),
    "other arguments": lambda: (lambda x: NET(x), lambda x: NET(-x)),
    "a part of the answer": lambda: (lambda x: NET(x), lambda x: NET(x)[0]),
}

EQUAL = {
    "built twice": lambda: (Net(), Net()),
    "the mode": lambda: (Net(), Net().eval().requires_grad_(False)),
    "DataParallel": lambda: (NET, nn.DataParallel(NET)),
    "compiled": lambda: (NET, torch.compile(NET)),
    "probability": lambda: (NET, Probability(NET)),
    "a module that hands on": lambda: (NET, Wrapper(NET)),
    "a lambda": lambda: (NET, lambda x: NET(x)),
    "a lambda with a closure": lambda: (NET, (lambda model: lambda x: model(x))(NET)),
    "a lambda that calls forward": lambda: (NET, lambda x: NET.forward(x)),
    "a partial": lambda: (NET, functools.partial(NET)),
    "forward": lambda: (NET, NET.forward),
    "a method that hands on": lambda: (NET, SimpleNamespace(call=Wrapper(NET).forward).call),
    "float64": lambda: (NET, copy.deepcopy(NET).double()),
    "memory format": lambda: (nn.Conv2d(3, 4, 3), None),
    "in place": lambda: (nn.ReLU(inplace=True), nn.ReLU()),
    "compiled in place": lambda: (NET, compiled_in_place()),
    "dynamic int8": lambda: (dynamic(Net()), dynamic(Net())),
    "exported, saved and loaded": lambda: (exported(), exported_and_loaded()),
    "exported behind our interface": lambda: (exported(), ExportedModel(exported(), (6,))),
    "a tensor subclass": lambda: (subclass(0, 0.1), subclass(0, 0.1)),
    "a text that nothing reads": lambda: (noted(Net(), "/here/model.pt"), noted(Net(), "/there/model.pt")),
    "a name that is not used": lambda: (lambda x: NET(x) * 2, lambda rows: NET(rows) * 2),
}


def compiled_in_place():
    model = copy.deepcopy(NET)
    model.compile()
    return model


def noted(model, path):
    model.name_or_path = path
    return model


def digests_of(pairs):
    """Name of a pair -> the digests of its two models."""
    found = {}
    for name, pair in pairs.items():
        one, other = pair()
        other = copy.deepcopy(one).to(memory_format=torch.channels_last) if other is None else other
        found[name] = model_digest(one), model_digest(other)
    return found


def test_what_changes_the_model_changes_the_digest():
    found = digests_of(DIFFER)
    assert [name for name, digests in found.items() if OPAQUE_DIGEST in digests] == []
    assert [name for name, (one, other) in found.items() if one == other] == []


def test_what_leaves_the_model_as_it_is_leaves_the_digest():
    found = digests_of(EQUAL)
    assert [name for name, digests in found.items() if OPAQUE_DIGEST in digests] == []
    assert [name for name, (one, other) in found.items() if one != other] == []


def test_noise_of_a_probability_is_not_that_of_its_logit():
    """The digest names the model; the noise is tied to what is explained of it too."""
    assert explained_digest(NET) == model_digest(NET)
    assert explained_digest(Probability(NET)) != explained_digest(NET)
    assert explained_digest(Probability(NET)) == explained_digest(Probability(nn.DataParallel(NET)))


class Remote(nn.Module):
    """Asks a service."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask

    def forward(self, x):
        return self.ask(x)


class Formula(nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


@pytest.mark.parametrize(
    "model",
    [
        Formula(),
        Remote(object().__eq__),
        nn.Sequential(Remote(len)),
    ],
)
def test_a_module_in_which_nothing_is_seen_is_refused_with_what_to_do(model):
    with pytest.raises(RefusedError, match=r"model_digest="):
        model_digest(model)


def test_modules_of_torch_that_need_no_state_have_their_digests():
    kinds = [nn.Softmax(1), nn.Identity(), nn.Flatten(), nn.Sequential(nn.ReLU(), nn.Flatten())]
    assert len({model_digest(model) for model in kinds}) == len(kinds)


class Counting(nn.Module):
    """Keeps in its attributes what it saw: nothing of this may reach the digest."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.calls, self.last, self.seen, self.kept = 0, None, [], {}
        self.total = torch.zeros(3)
        self.register_buffer("table", torch.zeros(1), persistent=False)
        self.register_buffer("running", torch.zeros(3), persistent=False)
        self.config = SimpleNamespace(temperature=1.0, used=0)

    def forward(self, x):
        self.calls += 1
        self.last = x
        self.seen.append(len(x))
        self.kept["x"] = x
        self.config.used += 1
        self._grow(len(x))
        self.running.add_(1)
        return self.layer(x) / self.config.temperature + self.table[:1] * 0

    def _grow(self, size):
        self.total[: size % 3] = size
        self.register_buffer("table", torch.zeros(size), persistent=False)


def test_what_forward_writes_itself_does_not_count():
    """Otherwise the same query had other noise at each call, and the average of the answers had none."""
    model = Counting()
    before = model_digest(model)
    for size in (1, 4, 2):
        with torch.no_grad():
            model(torch.randn(size, 6))
        assert model_digest(model) == before
    model.config.temperature = 2.0
    assert model_digest(model) != before


def test_what_hooks_write_does_not_count():
    model = Net()
    before = model_digest(model)

    def keep(module, inputs, output):
        module.activation = output.detach()

    model.first.register_forward_hook(keep)
    model(X)
    assert model_digest(model) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "temperature", 3.0),
        lambda model: model.shift.add_(1),
        lambda model: setattr(model, "shift", torch.ones(3)),
        lambda model: model.mask.mul_(2),
        lambda model: model.first.weight.data.mul_(1.01),
        lambda model: setattr(model, "last", nn.Linear(8, 3)),
        lambda model: setattr(model, "extra", 1),
    ],
)
def test_a_change_in_place_is_seen_at_the_next_call(change):
    model = Net()
    wrapped = nn.DataParallel(model)
    before = model_digest(wrapped)
    with torch.no_grad():
        change(model)
    assert model_digest(wrapped) == model_digest(model) == identity._hash(model) != before


def test_a_torchscript_model_is_refused_with_the_way_out():
    for made in (scripted(), nn.Sequential(scripted(), nn.Softmax(1))):
        with pytest.raises(InputError, match=r"TorchScript.*torch\.export\.export"):
            model_digest(made)


def test_a_change_of_a_quantised_model_is_seen_too():
    model, other = dynamic(Net(0)), dynamic(Net(1))
    before = model_digest(model)
    model.first._packed_params._packed_params = other.first._packed_params._packed_params
    assert model_digest(model) != before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["parallel", "compile", "probability", "wrap", "sequence", "function"]), max_size=5))
def test_no_pile_of_wrappers_changes_the_digest(pile):
    made = NET
    for name in pile:
        if not isinstance(made, nn.Module):  # a function: no module takes it
            break
        made = {
            "parallel": nn.DataParallel,
            "compile": torch.compile,
            "probability": Probability,
            "wrap": Wrapper,
            "sequence": nn.Sequential,
            "function": lambda model: lambda x: model(x),
        }[name](made)
    assert network_of(made) is NET
    assert model_digest(made) == model_digest(NET)


def test_a_global_number_that_a_function_reads_counts(monkeypatch):
    def heated(x):
        return NET(x) / TEMPERATURE

    before = model_digest(heated)
    monkeypatch.setitem(globals(), "TEMPERATURE", 3.0)
    assert model_digest(heated) != before


@pytest.mark.filterwarnings("ignore::safexplain.errors.WeakKeyWarning")
def test_a_digest_of_ones_own_stands_for_what_cannot_be_seen():
    hardening = Hardening(noise=GaussianNoise(1.0, key=b"sixteen bytes or more"))
    model = Remote(lambda x: x)
    with pytest.raises(RefusedError, match="model_digest="):
        HardenedSaliency(model, hardening=hardening).attribute(X, target=0)
    named, same, other = (
        HardenedSaliency(model, hardening=hardening, model_digest=name).attribute(X, target=0)
        for name in (b"version 1 of it!", b"version 1 of it!", b"version 2 of it!")
    )
    assert torch.equal(named, same)
    assert not torch.equal(named, other)
    wrapped = harden(Saliency(model), hardening, model_digest=b"version 1 of it!")
    assert torch.equal(wrapped.attribute(X, target=0), named)


def test_a_digest_of_ones_own_is_bytes_and_long_enough():
    for name, error in ((b"short", ConfigurationError), ("text of 16 bytes", ConfigurationTypeError)):
        with pytest.raises(error, match="model_digest"):
            harden(Saliency(NET), model_digest=name)
