"""Native maps that cannot be right: found, counted, logged once, and the client gets what it got before."""

import logging

import captum.attr
import pytest
import torch
from torch import nn

from safexplain import Hardening, harden
from safexplain.explain.hardened import HARDENED
from safexplain.native_maps import COMPARISONS, FINDINGS, Watch, collecting, watch
from safexplain.outputs import Probability

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=GENERATOR)
MAPS = torch.randn(8, 6, generator=GENERATOR)


def network(between=nn.Tanh):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), between(), nn.Linear(16, 3)).eval()


def found(*maps, **more):
    told, model = Watch(logs=False), network()
    told.add(model, "Saliency", maps, **more)
    return {f.kind: (f.maps, f.of) for f in told.findings(model)}


def broken(change):
    """A native explainer that gives something else than it should."""

    class Broken(captum.attr.Saliency):
        def attribute(self, inputs, target=None, abs=True, additional_forward_args=None):
            return change(super().attribute(inputs, target=target, abs=abs))

    return Broken


def some(where, value):
    maps = MAPS.clone()
    maps[where] = value
    return maps


WRONG = {
    "not finite": some((slice(0, 5), 2), torch.nan),
    "zero": some(slice(0, 5), 0.0),
    "constant": some(slice(0, 5), -2.5),
    "huge": MAPS * 1e11,
}


def test_each_kind_is_found_and_counted():
    for kind, wrong in WRONG.items():
        expected = {kind: (8 if kind == "huge" else 5, 8)}
        assert found(wrong) == found(wrong.reshape(8, 1, 2, 3)) == found(wrong.to(torch.float64)) == expected
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert found(some((3, 4), bad)) == {"not finite": (1, 8)}
        assert found(some((slice(None), slice(None)), bad)) == {"not finite": (8, 8)}


def test_right_maps_of_any_form_are_no_finding():
    for maps in (MAPS, MAPS.abs(), -MAPS.abs(), MAPS * 1e-30, MAPS * 1e4, MAPS.relu(), MAPS.half(), MAPS.bfloat16()):
        assert found(maps) == {}
    assert found(MAPS[:0]) == found() == {}
    assert found(torch.ones(8, 1)) == {}  # one feature is all there is
    assert found(torch.ones(8, 3), grouped=True) == {}  # one group of features is all there is
    assert found(torch.zeros(8, 6, dtype=torch.int64)) == {}
    assert found(MAPS, torch.zeros(8, 4)) == {}  # a map of several tensors is one map
    assert found(torch.zeros(8, 2), torch.zeros(8, 4)) == {"zero": (8, 8)}


def test_maps_that_inputs_explain_are_right():
    zero = torch.zeros(8, 6)
    assert found(zero, inputs=(torch.zeros(8, 6),)) == {}
    assert found(zero, inputs=(X,), baselines=X) == {}
    assert found(zero, inputs=(torch.full((8, 6), 0.5),), baselines=0.5) == {}
    assert found(zero, inputs=(X,), baselines=torch.zeros(1, 6)) == {"zero": (8, 8)}
    assert found(some(0, torch.nan), inputs=(some(0, torch.nan),)) == {}
    assert found(some(0, torch.nan), inputs=(some(1, torch.nan),)) == {"not finite": (1, 8)}


def test_single_maps_of_zeros_are_right():
    assert found(some(0, 0.0)) == {}
    assert found(torch.zeros(1, 6)) == {"zero": (1, 1)}
    assert found(some(slice(0, 2), 0.0)) == {"zero": (2, 8)}
    few = torch.randn(40, 6, generator=GENERATOR)
    few[:3] = 0
    assert found(few) == {}


def test_large_is_what_neither_outputs_nor_units_explain():
    large = MAPS * 1e8
    assert "huge" in found(large, inputs=(X,), outputs=lambda: torch.ones(8))
    assert found(large, inputs=(X,), outputs=lambda: torch.full((8,), 1e9)) == {}  # a price
    assert found(large, inputs=(X * 1e-9,), outputs=lambda: torch.ones(8)) == {}  # metres, of what is nanometres long
    assert found(large, inputs=(X,), outputs=lambda: torch.full((8,), 30.0), squared=True) == {}


def test_outputs_are_asked_for_large_numbers_only_and_not_for_ever():
    asked = []

    def outputs():
        asked.append(1)
        return torch.full((8,), 1e9)

    told, model = Watch(logs=False), network()
    told.add(model, "IG", (MAPS,), outputs=outputs)
    assert not asked
    for _ in range(COMPARISONS + 5):
        told.add(model, "IG", (MAPS * 1e8,), outputs=outputs)
    assert len(asked) == COMPARISONS
    assert told.findings(model) == ()


def test_a_look_never_raises():
    def outputs():
        raise RuntimeError("out of memory")

    assert found(MAPS * 1e8, outputs=outputs) == {}
    assert found("no map") == {}


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, logger="safexplain")
    return caplog


def test_a_finding_is_logged_once_and_again_when_there_are_ten_times_as_many(log):
    told, model = Watch(), network()
    for _ in range(40):
        told.add(model, "Saliency", (WRONG["huge"],))
    assert [(r.name, r.levelname) for r in log.records] == [("safexplain.native_maps", "WARNING")] * 2
    assert [r.getMessage().split(" native")[0] for r in log.records] == ["Sequential: 8 of 8", "Sequential: 80 of 80"]


def test_each_model_method_and_finding_is_logged_by_itself(log):
    told, one, other = Watch(), network(), network()
    for model in (one, Probability(one), one.forward, lambda x: one(x), other):
        for method in ("Saliency", "IG"):
            for kind in ("huge", "not finite"):
                told.add(model, method, (WRONG[kind],))
    assert len(log.records) == 2 * 2 * 2


@pytest.mark.parametrize("kind", list(FINDINGS))
def test_planted_errors_are_logged_and_the_client_gets_the_same(kind, log, recwarn):
    wrong, model = WRONG[kind], network()
    explainer = harden(broken(lambda maps: wrong.clone())(model))
    released = explainer.attribute(X, target=1)
    assert bool(released.isfinite().all())
    assert torch.equal(released, Hardening.recommended()(wrong, inputs=X, target=1))
    (record,) = (r for r in log.records if r.levelno >= logging.WARNING)
    assert "Sequential" in record.getMessage()
    assert FINDINGS[kind][0] in record.getMessage()
    explainer.attribute(X, target=1)
    assert len([r for r in log.records if r.levelno >= logging.WARNING]) == 1
    assert not [w for w in recwarn if "native" in str(w.message)]


class Steep(nn.Module):
    """Outputs of 30 whose gradients are as large as is asked for."""

    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return 30 + self.slope * (x - x.detach()) @ MAPS[:6, :3]


def test_squares_are_compared_with_squares_of_outputs(log):
    tunnel = harden(captum.attr.NoiseTunnel(captum.attr.Saliency(Steep(1e4).eval())), Hardening.none())
    tunnel.attribute(X, target=1, nt_type="smoothgrad_sq", nt_samples=2)
    assert log.records == []
    harden(captum.attr.Saliency(Steep(1e8).eval()), Hardening.none()).attribute(X, target=1)
    assert len(log.records) == 1


def test_the_log_holds_no_number_of_a_map_or_an_input(log):
    x = torch.full((8, 6), 7.654321)
    huge = harden(broken(lambda maps: MAPS * 1.234567e11)(network()))
    huge.attribute(x, target=1)
    text = " ".join(r.getMessage() for r in log.records)
    assert text
    assert not any(number in text for number in ("1.23", "7.65", "e+"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_right_explainers_are_not_logged(log):
    model = network(nn.ReLU)
    for name in ("IG", "Saliency", "InputXGradient", "GuidedBackprop", "DeepLift", "FeatureAblation", "KernelShap"):
        options = {"feature_mask": torch.arange(6)[None]} if name in ("FeatureAblation", "KernelShap") else {}
        HARDENED[name](model, hardening=Hardening.none()).attribute(X, target=1, **options)
    one_group = {"feature_mask": torch.zeros(1, 6, dtype=torch.long)}
    HARDENED["FeatureAblation"](model, hardening=Hardening.none()).attribute(X, target=1, **one_group)
    assert [r.getMessage() for r in log.records] == []


def test_what_an_audit_collects_is_not_logged(log):
    model = network()
    with collecting() as told:
        harden(broken(lambda maps: maps * 1e12)(model)).attribute(X, target=1)
    assert [f.kind for f in told.findings(model)] == ["huge"]
    assert told.findings(network()) == ()
    assert log.records == []
    assert watch() is not told


def test_findings_are_plain_json():
    told, model = Watch(logs=False), network()
    told.add(model, "LRP", (WRONG["huge"],))
    (finding,) = told.findings(model)
    assert finding.to_dict() == {"kind": "huge", "method": "LRP", "maps": 8, "of": 8}
    assert str(finding).startswith("8 of 8 native LRP maps are over a million times as large")
