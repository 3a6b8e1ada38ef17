"""Markers are found wherever an answer holds them, planting ends when it should, and results are compared exactly."""

import copy
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from captum.attr import InputXGradient, IntegratedGradients, NoiseTunnel, Saliency
from torch import nn

from safexplain.errors import ConfigurationError
from safexplain.testing import find_markers, planted
from safexplain.testing.check import Snapshot, difference
from safexplain.testing.markers import MARKER_NUMBER, MARKER_TEXT, PLANTS


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


class Talkative:
    def __repr__(self):
        return f"<map {MARKER_NUMBER:.4f}>"


Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    rows: list


def marked(n, dtype=torch.float32):
    return torch.full((n,), MARKER_NUMBER, dtype=dtype)


def with_attribute(tensor, value):
    tensor.note = value
    return tensor


def cycle():
    a = Plain()
    a.again, a.rows = a, [MARKER_TEXT]
    return a


def deep(levels=2000):
    value = MARKER_TEXT
    for _ in range(levels):
        value = [value]
    return value


HELD = {
    "text": (f"... {MARKER_TEXT} ...", "released"),
    "bytes": (b"x" + MARKER_TEXT.encode(), "released"),
    "number": (MARKER_NUMBER, "released"),
    "number in a text": (f'{{"raw": {MARKER_NUMBER}}}', "released"),
    "dictionary value": ({"a": [1, (MARKER_NUMBER,)]}, "released['a'][1][0]"),
    "dictionary key": ({MARKER_TEXT: 1}, "released.keys()"),
    "set": ({MARKER_TEXT}, "released{...}"),
    "attribute": (Plain(raw=MARKER_TEXT), "released.raw"),
    "slot": (Slots(MARKER_TEXT), "released.kept"),
    "dataclass": (Record([marked(1)]), "released.rows[0]"),
    "tensor": (marked(1), "released"),
    "bfloat16 tensor": (marked(4, torch.bfloat16), "released"),
    "sparse tensor": (marked(2).to_sparse(), "released"),
    "tensor attribute": (with_attribute(torch.zeros(1), MARKER_TEXT), "released.note"),
    "big-endian array": (np.array([MARKER_NUMBER], ">f8"), "released"),
    "array of text": (np.array([MARKER_TEXT]), "released.flat[0]"),
    "array of objects": (np.array([Plain(x=MARKER_TEXT)], object), "released.flat[0].x"),
    "error": (ValueError("row", MARKER_NUMBER), "released.args[1]"),
    "repr": (Talkative(), "released"),
    "deep nesting": (deep(), "released" + "[0]" * 2000),
    "cycle": (cycle(), "released.rows[0]"),
}


def test_a_marker_is_found_where_an_answer_holds_it():
    assert [name for name, (answer, place) in HELD.items() if place not in find_markers(answer)] == []


def test_nothing_is_found_where_no_marker_is():
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 5))
    x = torch.from_numpy(rng.standard_normal((200, 50))).float()
    answer = [net, net(x), rng.random(20_000), {"a": "text", 3: (1.5, None, ...)}, Record([7391.0, "7391"])]
    assert find_markers([*answer, np, Plain, lambda secret=MARKER_TEXT: secret]) == []


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


def test_every_plant_can_be_found_and_leaves_the_map_as_it_is():
    raw = torch.randn(2, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    for where, plant in PLANTS.items():
        if "explainer" in where:
            continue
        result = plant(raw, None)
        first = result[0] if isinstance(result, tuple) else result
        assert find_markers(result), where
        assert find_markers(plant((raw, raw), None)), where
        assert (first.shape, first.dtype) == (raw.shape, raw.dtype)
        assert where == "the native numbers themselves" or torch.equal(first.detach(), raw), where
    assert find_markers(raw) == []


def nested(number=1.0):
    return {"scores": np.array([number, np.nan]), "more": [torch.ones(2), Record([1, "a"]), None], "n": 3}


def test_equal_results_are_the_same_whatever_they_are_made_of():
    for value in (nested(), cycle(), float("nan"), np.float32(2), torch.ones(0), b"x", {1, 2}, Pair(1, Plain(a=2))):
        assert difference(value, copy.deepcopy(value)) is None
    assert difference(nested(), nested(1.0 + 1e-9), 1e-8) is None
    assert difference(torch.tensor([float("inf")]), torch.tensor([float("inf")]), 1e-3) is None


DIFFERENT = [
    (nested(), nested(1.5), "result['scores']: Tensor-likes are not equal! Mismatched elements: 1 / 2 (50.0%)"),
    (1, 1.0, "result: expected int, got float"),
    ([1], (1,), "expected list, got tuple"),
    ({"a": 1}, {"b": 1}, "expected ['a'], got ['b']"),
    ({1}, {2}, "expected {1}, got {2}"),
    (torch.ones(2), torch.ones(2, 1), "'shape' do not match: torch.Size([2, 1]) != torch.Size([2])"),
    (torch.ones(2), torch.ones(2).double(), "'dtype' do not match: torch.float64 != torch.float32"),
    (torch.ones(1), torch.tensor([float("nan")]), "Mismatched elements: 1 / 1"),
    (np.array(["a"], object), np.array(["b"], object), "expected 'a', got 'b'"),
    (Plain(a=1), Plain(a=1, raw=2), "expected .a, got .a, .raw"),
    (1.0, 1.1, "Expected 1.0 but got 1.1"),
]


def test_different_results_are_told_with_the_first_difference():
    assert [(says, difference(a, b)) for a, b, says in DIFFERENT if says not in str(difference(a, b))] == []


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
    "a hook": (lambda m, x: m[0].register_forward_hook(print), "forward_hooks of Sequential.0 changed"),
    "a backward hook": (lambda m, x: m[2][0].register_full_backward_hook(print), "backward_hooks of Sequential.2.0"),
    "an attribute": (lambda m, x: setattr(m[1], "note", 1), "note of Sequential.1 changed"),
    "the mode": (lambda m, x: m[1].eval(), "training of Sequential.1 changed"),
    "a parameter": (lambda m, x: m[0].weight.data.add_(1e-6), "values of weight of Sequential.0 changed"),
    "frozen": (lambda m, x: m[0].weight.requires_grad_(False), "requires_grad of weight of Sequential.0 changed"),
    "a gradient": (lambda m, x: m(x).sum().backward(), "grad of weight of Sequential.0 changed"),
    "a buffer": (lambda m, x: m(x), "values of running_mean of Sequential.1 changed"),
    "the inputs": (lambda m, x: x[0].zero_(), "values of inputs changed"),
    "inputs with gradients": (lambda m, x: x.requires_grad_(), "requires_grad of inputs changed"),
    "a submodule": (lambda m, x: m.append(nn.ReLU()), "modules of Sequential changed"),
}


def test_whatever_is_left_behind_is_seen_and_put_back():
    for change, says in CHANGES.values():
        found = left(change)
        assert any(says in sentence for sentence in found), (says, found)


def test_nothing_is_seen_where_nothing_changed():
    model = image_model().eval()
    assert left(lambda m, x: m(x), model) == []
    assert left(lambda m, x: m[0].register_forward_hook(print).remove(), model) == []


def test_records_masked_arrays_packed_bytes_and_what_is_behind_a_view_are_read():
    record = np.array([("a", MARKER_NUMBER)], dtype=[("name", "U3"), ("value", "f4")])
    masked = np.ma.array([1.0, MARKER_NUMBER], mask=[False, True])
    view = torch.tensor([0.0, 1.0, MARKER_NUMBER])[:2]
    for value in (record, record[0], masked, view, np.float32(MARKER_NUMBER).tobytes(), bytearray(b"7391.46")):
        assert find_markers({"x": value}), type(value)
        assert not find_markers({"x": np.zeros(3)})
