"""Transformers and other nets of today, from timm with random weights: what works, and what says why it does not."""

import functools

import captum.attr
import pytest
import torch
from explain_nets import KEY, NOISY, quiet
from torch import nn

from safexplain import HardenedGradCAM
from safexplain.errors import InputError, RefusedError
from safexplain.explain import GradCAM, GradCAMPlusPlus, default_layer, harden
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


@two_nets
def test_deeplift_is_refused_with_its_reason(name):
    with pytest.raises(RefusedError, match=r"DeepLift has no rule for .*LayerNorm.*Use HardenedIG"):
        HARDENED["DeepLift"](net(name), hardening=NOISY)
    for native in (captum.attr.DeepLiftShap(net(name)), captum.attr.NoiseTunnel(captum.attr.DeepLift(net(name)))):
        with pytest.raises(RefusedError, match=r"no rule for .*LayerNorm"):
            harden(native, NOISY)


@two_nets
def test_lrp_names_the_module_that_it_has_no_rule_for(name):
    explainer = HARDENED["LRP"](net(name), hardening=NOISY)
    with pytest.raises(RefusedError, match=r"LRP has no rule for \w+\. Give the module one"):
        explainer.attribute(pictures(), target=1)
