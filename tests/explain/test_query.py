"""Another question has other noise, whatever it differs in; the same question has the same."""

import numpy as np
import pytest
import torch
from captum.attr import LayerFeatureAblation, NoiseTunnel
from explain_nets import NOISY, image_net, images, quiet

from safexplain.explain import CATALOG, grid_segments, harden
from safexplain.explain.hardened import HARDENED
from safexplain.explain.query import _rows_of
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
X = images(4)
SQUARES = grid_segments(X, 4)
SAMPLING = {"Lime": {"n_samples": 20}, "ShapleyValueSampling": {"n_samples": 2}}


def seed():
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it


def noise(make, x=X, **options):
    seed()
    native = make(Hardening.none()).attribute(x, **options)
    seed()
    return make(NOISY).attribute(x, **options) - native


@pytest.mark.parametrize("name", SAMPLING)
def test_a_baseline_for_which_the_map_is_known_does_not_show_the_noise_of_another(name):
    """With the input as its baseline the native map is zero, so that the released one is the noise."""
    model, kind = image_net(), HARDENED[name]
    options = {"target": 1, "feature_mask": SQUARES, **SAMPLING[name]}

    def make(hardening):
        return kind(model, hardening=hardening)

    usual = noise(make, **options)
    shown = make(NOISY).attribute(X, baselines=X.clone(), **options)
    assert usual.std() > 0.02
    correlation = torch.corrcoef(torch.stack([usual.flatten(), shown.flatten()]))[0, 1]
    assert abs(correlation) < 0.6  # 64 numbers; 1 if the noise were shared


@pytest.mark.parametrize("name", ["GradientShap", "DeepLiftShap"])
def test_a_set_of_baselines_is_part_of_the_query_whatever_its_order(name):
    model, baselines = image_net(), torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(7))

    def make(hardening):
        return HARDENED[name](model, hardening=hardening)

    one = noise(make, target=1, baselines=baselines)
    for same in (baselines[[2, 0, 1]], baselines.repeat(2, 1, 1, 1)):
        torch.testing.assert_close(noise(make, target=1, baselines=same), one, atol=1e-5, rtol=0)
    for other in (baselines[:2], baselines[[0, 0, 1, 2]], baselines + 1e-3, X[:3]):
        other_noise = noise(make, target=1, baselines=other)
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other_noise.flatten()]))[0, 1]) < 0.15


def test_baselines_of_a_layer_are_part_of_the_query():
    model = image_net()

    def make(hardening):
        return harden(LayerFeatureAblation(model, model[3]), hardening)

    mask = torch.arange(64).view(1, 4, 4, 4)
    zero, one = (noise(make, target=1, layer_mask=mask, layer_baselines=b) for b in (0.0, 1.0))
    assert abs(torch.corrcoef(torch.stack([zero.flatten(), one.flatten()]))[0, 1]) < 0.25


def test_every_aggregate_of_a_tunnel_has_its_own_noise():
    model, noises = image_net(), []
    for nt_type in ("smoothgrad", "smoothgrad_sq", "vargrad"):

        def make(hardening):
            return harden(NoiseTunnel(CATALOG["Saliency"].explainer(model)), hardening)

        noises.append(noise(make, target=1, nt_samples=2, nt_type=nt_type).flatten())
    assert torch.corrcoef(torch.stack(noises)).fill_diagonal_(0).abs().max() < 0.15


def test_arguments_in_tables_and_lists_are_part_of_the_query():
    net = image_net()

    def scaled(x, options):
        return net(x * options["scale"] * sum(options["more"]))

    def make(hardening):
        return HARDENED["InputXGradient"](scaled, hardening=hardening)

    asked = {"scale": 1.0, "more": [0.5, 0.5]}
    one = noise(make, target=1, additional_forward_args=(asked,))
    again = noise(make, target=1, additional_forward_args=({"more": [0.5, 0.5], "scale": 1.0},))
    torch.testing.assert_close(again, one, atol=1e-5, rtol=0)
    for other in (asked | {"scale": 1.5}, {"scale": 1.0, "more": [0.5, 1.0]}):
        unlike = noise(make, target=1, additional_forward_args=(other,))
        assert abs(torch.corrcoef(torch.stack([one.flatten(), unlike.flatten()]))[0, 1]) < 0.15
    assert _rows_of(({"b": "word", "a": None},), 4)[1] == ["{'a': None, 'b': 'word'}"]
