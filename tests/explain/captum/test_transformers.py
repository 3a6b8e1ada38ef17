"""Transformers and other nets of today, from timm with random weights: what works, and what says why it does not."""

import functools
import itertools

import captum.attr
import pytest
import torch
from explain_nets import KEY, NOISY, quiet
from torch import nn

from safexplain import HardenedGradCAM, HardenedSaliency
from safexplain.errors import InputError, RefusedError
from safexplain.explain import CATALOG, GradCAM, GradCAMPlusPlus, default_layer, harden
from safexplain.explain.hardened import HARDENED
from safexplain.hardening.hardening import Hardening
from safexplain.hardening.noise import GaussianNoise

timm = pytest.importorskip("timm")
pytestmark = [
    quiet,
    pytest.mark.filterwarnings("ignore::FutureWarning:timm.*"),
]

CAM_LAYERS = {
    "vit with registers": lambda m: m.blocks[-1].norm1,
    "swin": lambda m: m.layers[2].blocks[-1].norm1,
    "pvt": lambda m: m.stages[2].blocks[-1].norm1,
    "convnext": lambda m: m.stages[2].blocks[-1].norm,
}
NAMES = {
    "vit with registers": ("vit_tiny_patch16_224", {"img_size": 64, "reg_tokens": 4}),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 64}),
    "pvt": ("pvt_v2_b0", {}),
    "convnext": ("convnext_atto", {}),
}
nets = pytest.mark.parametrize("name", NAMES)
two_nets = pytest.mark.parametrize("name", ["vit with registers", "convnext"])
OPTIONS = {
    "Saliency": {},
    "IG": {"n_steps": 3},
    "SmoothGrad": {"nt_samples": 2},
    "Occlusion": {"sliding_window_shapes": (3, 32, 32), "strides": (3, 32, 32)},
    "KernelShap": {"n_samples": 8},
}


@functools.cache
def net(name):
    """A net with random weights, for images of 64 x 64 pixels."""
    torch.manual_seed(0)
    kind, options = NAMES[name]
    model = timm.create_model(kind, pretrained=False, num_classes=10, **options).eval()
    for part in model.modules():  # new blocks are close to the identity
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        if hasattr(part, "gamma") and isinstance(part.gamma, nn.Parameter):
            nn.init.ones_(part.gamma)
    return model


def pictures(batch=2, size=64):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def ask(explainer, method, x, **options):
    torch.manual_seed(0)
    import numpy as np

    np.random.seed(0)  # noqa: NPY002 - captum's GradientShap draws from it
    return explainer.attribute(x, **{"target": 1, **CATALOG[method].options(x), **options})


@pytest.mark.parametrize(("name", "method"), list(zip(itertools.cycle(NAMES), OPTIONS)))
def test_maps_of_the_input_are_the_native_ones_and_hardened(name, method):
    model, x, row = net(name), pictures(), CATALOG[method]
    native = ask(row.explainer(model), method, x, **OPTIONS[method]).detach()
    kind = HARDENED[row.name]
    assert torch.equal(ask(kind(model, hardening=Hardening.none()), method, x, **OPTIONS[method]), native)
    released = ask(kind(model, hardening=NOISY), method, x, **OPTIONS[method])
    assert released.shape == x.shape
    assert released.isfinite().all()
    assert 0.02 < (released - native).std() < 0.07  # of a few windows, it can be
    ranked = ask(kind(model, hardening=Hardening.ranked(KEY)), method, x, **OPTIONS[method])
    assert ranked.isfinite().all()
    assert native.abs().max() > 0


def slow_map(name, model, x, target):
    """Grad-CAM of a layer of tokens, token by token: mean gradients times activations, rows of the grid in order."""
    kept = []
    handle = CAM_LAYERS[name](model).register_forward_hook(lambda *hook: kept.append(hook[2]))
    score = model(x)[:, target].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[0])
    activation = kept[0].detach()
    if activation.dim() == 4 and name == "convnext":
        gradient, activation = gradient.permute(0, 2, 3, 1), activation.permute(0, 2, 3, 1)
    if activation.dim() == 4:
        gradient, activation = gradient.flatten(1, 2), activation.flatten(1, 2)
    front = getattr(model, "num_prefix_tokens", 0)
    gradient, activation = gradient[:, front:], activation[:, front:]
    side = round(activation.shape[1] ** 0.5)
    cam = torch.zeros(len(x), 1, side, side)
    for i in range(side):
        for j in range(side):
            cam[:, 0, i, j] = (gradient.mean(1) * activation[:, i * side + j]).sum(1)
    return cam


@nets
def test_grad_cam_is_a_map_of_the_grid_of_tokens(name):
    model, x = net(name), pictures()
    layer, expected = CAM_LAYERS[name](model), slow_map(name, model, x, 1)
    assert expected.shape == (2, 1, 4, 4)
    for explainer in (GradCAM(model, layer), HardenedGradCAM(model, layer, hardening=Hardening.none())):
        found = explainer.attribute(x, target=1).detach()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert (found.std((2, 3)) > 1e-3 * found.abs().mean((2, 3))).all()
    for kind in ("HardenedGradCAM", "HardenedGradCAMPlusPlus"):
        hardened = HARDENED[kind.removeprefix("Hardened")](model, layer, hardening=NOISY)
        small = hardened.attribute(x, target=1)
        assert small.shape == (2, 1, 4, 4)
        assert small.isfinite().all()
        large = hardened.attribute(x, target=1, interpolate_mode="bilinear")
        assert torch.equal(large, nn.functional.interpolate(small, (64, 64), mode="bilinear"))
    noise = HardenedGradCAM(model, layer, hardening=Hardening(noise=GaussianNoise(3.0, key=KEY))).attribute(x, target=1)
    assert 1.5 < (noise - expected).std() < 5
    assert GradCAMPlusPlus(model, layer).attribute(x, target=1).std((2, 3)).min() > 0


@pytest.mark.parametrize("name", ["vit with registers", "swin"])
def test_without_a_layer_a_transformer_asks_for_one(name):
    for make in (default_layer, GradCAM, HardenedGradCAM):
        with pytest.raises(InputError, match=r"layer=model\.blocks\[-1\]\.norm1"):
            make(net(name))


@pytest.mark.parametrize("name", ["pvt", "convnext"])
def test_nets_with_convolutions_in_their_last_blocks_have_a_default_layer(name):
    model, x = net(name), pictures(size=96)
    assert isinstance(default_layer(model), nn.Conv2d)
    found = HardenedGradCAM(model, hardening=Hardening.none()).attribute(x, target=1)
    assert found.shape == (2, 1, 3, 3)
    assert torch.equal(found, captum.attr.LayerGradCam(model, default_layer(model)).attribute(x, target=1))


@two_nets
def test_deeplift_is_refused_with_its_reason(name):
    with pytest.raises(RefusedError, match=r"DeepLift has no rule for .*LayerNorm.*Use HardenedIG"):
        HARDENED["DeepLift"](net(name), hardening=NOISY)
    for native in (captum.attr.DeepLiftShap(net(name)), captum.attr.NoiseTunnel(captum.attr.DeepLift(net(name)))):
        with pytest.raises(RefusedError, match=r"no rule for .*LayerNorm"):
            harden(native, NOISY)


@pytest.mark.parametrize(("name", "method"), [("swin", "GuidedBackprop"), ("convnext", "Deconvolution")])
def test_methods_of_relus_are_refused_with_their_reason(name, method):
    with pytest.raises(RefusedError, match=rf"{method} changes the gradient of nn\.ReLU modules.*has none:"):
        HARDENED[method](net(name), hardening=NOISY)


@two_nets
def test_lrp_names_the_module_that_it_has_no_rule_for(name):
    explainer = HARDENED["LRP"](net(name), hardening=NOISY)
    with pytest.raises(RefusedError, match=r"LRP has no rule for \w+\. Give the module one"):
        explainer.attribute(pictures(), target=1)


@two_nets
def test_methods_of_layers_work_on_blocks(name):
    model, x = net(name), pictures()
    layer = CAM_LAYERS[name](model)
    for native in (captum.attr.LayerActivation(model, layer), captum.attr.LayerGradientXActivation(model, layer)):
        options = {} if isinstance(native, captum.attr.LayerActivation) else {"target": 1}
        expected = native.attribute(x, **options).detach()
        assert torch.equal(harden(native, Hardening.none()).attribute(x, **options), expected)
        noise = harden(native, NOISY).attribute(x, **options) - expected
        assert 0.04 < noise.std() < 0.06


@two_nets
def test_nothing_stays_on_the_model(name):
    model, x = net(name), pictures()
    before = [{k: len(v) for k, v in vars(m).items() if k.endswith("_hooks")} for m in model.modules()]
    with torch.no_grad():
        expected = model(x)
        HardenedGradCAM(model, CAM_LAYERS[name](model), hardening=NOISY).attribute(x, target=1)
        HardenedSaliency(model, hardening=NOISY).attribute(x, target=1)
        assert torch.equal(model(x), expected)
    assert [{k: len(v) for k, v in vars(m).items() if k.endswith("_hooks")} for m in model.modules()] == before


@pytest.mark.slow
@pytest.mark.parametrize("method", ["IG", "Occlusion", "KernelShap"])
def test_a_vision_transformer_at_its_full_size(method):
    torch.manual_seed(0)
    model, x = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval(), pictures(1, 224)
    row = CATALOG[method]
    options = dict(OPTIONS[method])
    if method == "Occlusion":
        options = {"sliding_window_shapes": (3, 56, 56), "strides": (3, 56, 56)}
    native = ask(row.explainer(model), method, x, **options)
    kind = HARDENED[row.name]
    assert torch.equal(ask(kind(model, hardening=Hardening.none()), method, x, **options), native)
    layer = model.blocks[-1].norm1
    found = HardenedGradCAM(model, layer, hardening=NOISY).attribute(x, target=1, interpolate_mode="bicubic")
    assert found.shape == (1, 1, 224, 224)
    assert GradCAM(model, layer).attribute(x, target=1).shape == (1, 1, 14, 14)
