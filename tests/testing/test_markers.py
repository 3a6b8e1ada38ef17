"""Markers are found wherever an object can be read, planting ends when it should, and results are compared exactly."""

from __future__ import annotations

import copy
import functools
import weakref
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients, NoiseTunnel, Saliency
from torch import nn

from safexplain.errors import ConfigurationError
from safexplain.testing import MARKER_NUMBER, MARKER_TEXT, find_markers, planted, same
from safexplain.testing.compare import difference
from safexplain.testing.plants import PLANTS
from safexplain.testing.snapshot import Snapshot


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("__private", "kept")

    def __init__(self, kept):
        self.__private, self.kept = None, kept


class Talkative:
    def __repr__(self):
        return f"<map {MARKER_NUMBER:.4f}>"


class Hoarder:
    """Gives away in a copy what it does not show itself."""

    def __deepcopy__(self, memo):
        return [MARKER_TEXT]


class WithConstant:
    secret = (MARKER_TEXT,)


class Shy:
    """Gives away in a pickle what it does not show itself."""

    def __reduce__(self):
        return Plain, (), {"x": MARKER_NUMBER}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(marked(3))
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SubclassedArray(np.ndarray):
    pass


Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    rows: list


def marked(n, dtype=torch.float32):
    return torch.full((n,), MARKER_NUMBER, dtype=dtype)


def with_attribute(tensor, value):
    tensor.note = value
    return tensor


def slice_of_marked():
    return torch.cat([torch.zeros(2), marked(2)])[:2]


def product():
    return (torch.ones(3, requires_grad=True) * marked(3)).clamp(-1, 1).sum()


def with_gradient():
    leaf = torch.ones(3, requires_grad=True)
    leaf.grad = marked(3)
    return leaf


def closure():
    secret = marked(3)
    return lambda: secret.sum()


def generator():
    secret = MARKER_TEXT
    yield 1
    yield secret


def started_generator():
    g = generator()
    next(g)
    return g


def deep(levels=2000):
    value = MARKER_TEXT
    for _ in range(levels):
        value = [value]
    return value


def cycle():
    a = Plain()
    a.again, a.rows = a, [MARKER_TEXT]
    return a


def subclassed_array():
    array = np.zeros(2).view(SubclassedArray)
    array.note = MARKER_TEXT
    return array


HELD = Plain(x=MARKER_TEXT)
HIDDEN = {
    "text": (lambda: f"... {MARKER_TEXT} ...", "released"),
    "bytes": (lambda: b"x" + MARKER_TEXT.encode(), "released"),
    "number": (lambda: MARKER_NUMBER, "released"),
    "numpy number": (lambda: np.float32(MARKER_NUMBER), "released"),
    "text in JSON": (lambda: f'{{"raw": {MARKER_NUMBER}}}', "released"),
    "dictionary value": (lambda: {"a": [1, (MARKER_NUMBER,)]}, "released['a'][1][0]"),
    "dictionary key": (lambda: {MARKER_TEXT: 1}, "released.keys()"),
    "set": (lambda: {MARKER_TEXT}, "released{...}"),
    "named tuple": (lambda: Pair(1, MARKER_TEXT), "released[1]"),
    "attribute": (lambda: Plain(raw=MARKER_TEXT), "released.raw"),
    "slot": (lambda: Slots(MARKER_TEXT), "released.kept"),
    "dataclass": (lambda: Record([marked(1)]), "released.rows[0].untyped_storage()"),
    "class constant": (WithConstant, "released.secret[0]"),
    "tensor": (lambda: marked(1), "released.untyped_storage()"),
    "float64 tensor": (lambda: marked(1, torch.float64), "released.untyped_storage()"),
    "bfloat16 tensor": (lambda: marked(4, torch.bfloat16), "released.untyped_storage()"),
    "float16 tensor": (lambda: marked(4, torch.float16), "released.untyped_storage()"),
    "rest of the storage": (slice_of_marked, "released.untyped_storage()"),
    "empty view": (lambda: marked(4)[:0], "released.untyped_storage()"),
    "sparse tensor": (lambda: marked(2).to_sparse(), "released.values().untyped_storage()"),
    "tensor attribute": (lambda: with_attribute(torch.zeros(1), MARKER_TEXT), "released.note"),
    "saved for backward": (product, "released.grad_fn.next_functions[0]._saved_self.untyped_storage()"),
    "custom function": (lambda: Square.apply(torch.ones(1, requires_grad=True)), "released.grad_fn.saved_tensors[0]"),
    "gradient": (with_gradient, "released.grad.untyped_storage()"),
    "leaf behind a graph": (
        lambda: with_attribute(torch.ones(1, requires_grad=True), MARKER_TEXT) + 1,
        "released.grad_fn.next_functions[0].variable.note",
    ),
    "array": (lambda: np.array([1.0, MARKER_NUMBER]), "released.tobytes()"),
    "base of an array": (lambda: np.array([0.0, MARKER_NUMBER])[:1], "released.base.tobytes()"),
    "base of a base": (lambda: np.frombuffer(marked(3).numpy().tobytes(), "f4")[:0], "released.base"),
    "big-endian array": (lambda: np.array([MARKER_NUMBER], ">f8"), "released.tobytes()"),
    "array of text": (lambda: np.array([MARKER_TEXT]), "released.tobytes()"),
    "array of objects": (lambda: np.array([Plain(x=MARKER_TEXT)], object), "released.flat[0].x"),
    "array subclass": (subclassed_array, "released.note"),
    "closure": (closure, "released.__closure__[secret].untyped_storage()"),
    "default argument": (lambda: lambda x=MARKER_TEXT: x, "released.__defaults__[0]"),
    "partial": (lambda: functools.partial(print, MARKER_TEXT), "released.args[0]"),
    "method": (lambda: Plain(x=MARKER_TEXT).__init__, "released.__self__.x"),
    "generator": (started_generator, "released.gi_frame.f_locals['secret']"),
    "weak reference": (lambda: weakref.ref(HELD), "released().x"),
    "error": (lambda: ValueError("row", MARKER_NUMBER), "released.args[1]"),
    "repr": (Talkative, "repr(released)"),
    "copy": (Hoarder, "copy.deepcopy(released)[0]"),
    "pickle": (Shy, "pickle.dumps(released)"),
    "deep nesting": (deep, "released" + "[0]" * 2000),
    "cycle": (cycle, "released.rows[0]"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_marker_is_found_where_it_can_be_read(name):
    make, way = HIDDEN[name]
    found = find_markers(make())
    assert any(f == way or f.startswith(f"{way}.") for f in found), found


def clean():
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 5))
    x = torch.from_numpy(rng.standard_normal((200, 50))).float().requires_grad_()
    return [net, net(x), rng.random(20_000), {"a": "text", 3: (1.5, None, ...)}, lambda: x, Record([7391.0, "7391"])]


def test_nothing_is_found_where_no_marker_is():
    assert find_markers(clean()) == []


def test_modules_and_code_are_not_searched():
    def uses_the_constant():
        return MARKER_TEXT

    assert find_markers(uses_the_constant) == []
    assert find_markers([np, torch, Plain]) == []


def test_what_cannot_be_pickled_copied_or_printed_is_searched_all_the_same():
    class Stubborn:
        def __init__(self):
            self.raw = marked(2)

        def __reduce__(self):
            raise TypeError

        def __repr__(self):
            raise ValueError

    assert find_markers(Stubborn(), name="x") == ["x.raw.untyped_storage()"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def rows():
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


def test_what_the_entry_returns_goes_through_the_transform_and_afterwards_not():
    model, before = net(), InputXGradient.attribute
    expected = InputXGradient(model).attribute(rows().requires_grad_(), target=1)
    with planted(InputXGradient, "attribute", lambda result, explainer: result * 2) as planting:
        doubled = InputXGradient(model).attribute(rows().requires_grad_(), target=1)
    assert torch.equal(doubled, expected * 2)
    assert planting.calls == 1
    assert InputXGradient.attribute is before


def test_an_inherited_entry_is_planted_in_the_class_alone():
    class Own(Saliency):
        pass

    x = rows().requires_grad_()
    with planted(Own, "attribute", lambda result, explainer: type(explainer).__name__):
        assert Own(net()).attribute(x, target=1) == "Own"
        assert isinstance(Saliency(net()).attribute(x, target=1), torch.Tensor)
    assert "attribute" not in vars(Own)


def test_the_planted_entry_ends_with_an_error_too():
    before = Saliency.attribute
    with pytest.raises(ZeroDivisionError), planted(Saliency, "attribute", lambda result, explainer: 1 / 0):
        Saliency(net()).attribute(rows().requires_grad_(), target=1)
    assert Saliency.attribute is before


def test_wrappers_that_call_wrapped_meet_the_plant_as_well():
    with planted(IntegratedGradients, "attribute", lambda result, explainer: torch.zeros_like(result)) as planting:
        smooth = NoiseTunnel(IntegratedGradients(net())).attribute(rows(), target=1, nt_samples=2)
    assert planting.calls > 0
    assert not smooth.any()


def test_an_entry_without_wrapped_gets_none_and_keeps_its_signature():
    class Native:
        def explain(self, x, *, deep=False):
            return [x] if not deep else [self.explain(x)]

    with planted(Native, "explain", lambda result, explainer: [*result, MARKER_TEXT]) as planting:
        assert not hasattr(Native.explain, "__wrapped__")
        assert Native().explain(1) == [1, MARKER_TEXT]
        assert Native().explain(1, deep=True) == [[1], MARKER_TEXT]  # planted once, not in the call within
        with pytest.raises(TypeError):
            Native().explain(1, True)
    assert planting.calls == 2


def test_a_name_that_is_no_method_cannot_be_planted():
    with pytest.raises(ConfigurationError, match="got 'explain'"), planted(Saliency, "explain", max):
        pass


@pytest.mark.parametrize("where", [where for where in PLANTS if "explainer" not in where])
@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3, 3)])
def test_every_plant_can_be_found_and_leaves_the_map_as_it_is(where, shape):
    raw = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = PLANTS[where](raw, None)
    assert find_markers(result)
    first = result[0] if isinstance(result, tuple) else result
    assert first.shape == raw.shape
    assert first.dtype == raw.dtype
    assert where == "the native numbers themselves" or torch.equal(first.detach().as_subclass(torch.Tensor), raw)
    assert find_markers(raw) == []
    assert find_markers(PLANTS[where]((raw, raw), None))


def test_a_subclass_hands_its_marker_on_through_operations():
    result = PLANTS["a tensor subclass"](torch.ones(3), None)
    assert find_markers((result + 1).detach().clone())
    assert not find_markers(torch.tensor(result.tolist()))


# Comparing results.


def nested(number=1.0):
    return {"scores": np.array([number, np.nan]), "more": [torch.ones(2), Record([1, "a"]), None], "n": 3}


def test_equal_results_are_the_same_whatever_they_are_made_of():
    for value in (nested(), cycle(), float("nan"), np.float32(2), torch.ones(0), b"x", {1, 2}, Pair(1, Plain(a=2))):
        assert same(value, copy.deepcopy(value))
    assert same(nested(), nested(1.0 + 1e-9), atol=1e-8)
    assert same(torch.tensor([float("inf")]), torch.tensor([float("inf")]), atol=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (nested(), nested(1.5), "result['scores']: 1 of 2 values differ, by up to 0.5"),
        (1, 1.0, "result: expected int, got float"),
        ([1], (1,), "expected list, got tuple"),
        ([1, 2], [1], "expected [0], [1], got [0]"),
        ({"a": 1}, {"b": 1}, "expected ['a'], got ['b']"),
        ({1}, {2}, "has 1"),
        ("a", "b", "expected 'a', got 'b'"),
        (torch.ones(2), torch.ones(2, 1), "expected shape (2,), got (2, 1)"),
        (torch.ones(2), torch.ones(2).double(), "expected dtype torch.float32, got torch.float64"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "1 of 2 values differ"),
        (torch.ones(1), torch.tensor([float("nan")]), "1 of 1 values differ"),
        (np.array(["a"], object), np.array(["b"], object), "expected 'a', got 'b'"),
        (Record([1]), Record([2]), "result.rows[0]: expected 1, got 2"),
        (Plain(a=1), Plain(a=1, raw=2), "expected .a, got .a, .raw"),
        (1.0, 1.1, "expected 1.0, got 1.1"),
        (float("inf"), 1.0, "expected inf, got 1.0"),
    ],
)
def test_different_results_are_told_with_the_first_difference(a, b, says):
    assert says in str(difference(a, b))
    assert not same(a, b)


# Snapshots.


def left(change, model=None):
    model, x = model or image_model(), rows()
    before = Snapshot(model, {"inputs": x})
    change(model, x)
    found = before.differences()
    before.restore()
    assert before.differences() == []
    return found


def image_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Sequential(nn.ReLU()))


CHANGES = {
    "a hook": (lambda m, x: m[0].register_forward_hook(print), "forward_hooks of 0 changed: 0 before, 1 after"),
    "a hook before": (lambda m, x: m.register_forward_pre_hook(print), "forward_pre_hooks of Sequential changed"),
    "a backward hook": (lambda m, x: m[2][0].register_full_backward_hook(print), "backward_hooks of 2.0 changed"),
    "an attribute": (lambda m, x: setattr(m[1], "note", 1), "attribute note of 1 came"),
    "a setting": (lambda m, x: setattr(m[2][0], "inplace", True), "inplace of 2.0 changed from False to True"),
    "the mode": (lambda m, x: m[1].eval(), "training of 1 changed from True to False"),
    "a parameter": (lambda m, x: m[0].weight.data.add_(1e-6), "weight of 0 were written to"),
    "another parameter": (lambda m, x: setattr(m[0], "bias", nn.Parameter(m[0].bias.data)), "parameters of 0 changed"),
    "frozen": (lambda m, x: m[0].weight.requires_grad_(False), "weight of 0 had requires_grad=True and have False"),
    "a gradient": (lambda m, x: m(x).sum().backward(), "weight of 0 have another .grad than before"),
    "a buffer": (lambda m, x: m(x), "running_mean of 1 were written to"),
    "the inputs": (lambda m, x: x[0].zero_(), "inputs were written to"),
    "inputs with gradients": (lambda m, x: x.requires_grad_(), "inputs had requires_grad=False and have True"),
    "a submodule": (lambda m, x: m.append(nn.ReLU()), "modules of Sequential changed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_left_behind_is_seen_and_put_back(name):
    change, says = CHANGES[name]
    assert any(says in sentence for sentence in left(change))


def test_nothing_is_seen_where_nothing_changed():
    model = image_model().eval()
    assert left(lambda m, x: m(x), model) == []
    assert left(lambda m, x: m[0].register_forward_hook(print).remove(), model) == []


def test_a_global_hook_is_seen_and_put_back():
    found = left(lambda m, x: nn.modules.module.register_module_forward_hook(lambda *_: None))
    assert any("global" in sentence for sentence in found)


def test_a_gradient_that_was_there_keeps_its_numbers():
    model = image_model()
    model[0].weight.grad = torch.ones(3, 4)
    assert left(lambda m, x: m[0].weight.grad.zero_(), model) == ["weight of 0 have another .grad than before"]
    assert model[0].weight.grad.sum() == 12
