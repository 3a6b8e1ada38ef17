"""Grad-CAM is Captum's, Grad-CAM++ is the paper's, and maps are enlarged after they are hardened."""

import itertools

import pytest
import torch
from captum.attr import LayerAttribution, LayerGradCam
from explain_nets import NOISY, image_net, images, quiet
from torch import nn

from safexplain import HardenedGradCAM, HardenedGradCAMPlusPlus
from safexplain.errors import InputError
from safexplain.explain import CATALOG, GradCAM, GradCAMPlusPlus, harden
from safexplain.hardening.hardening import Hardening

pytestmark = quiet
HARDENED = [HardenedGradCAM, HardenedGradCAMPlusPlus]
MODES = ["nearest", "area", "bilinear", "bicubic", "nearest-exact"]


def conv_net(*shape, channels=5, dimensions=2):
    """A net of any number of dimensions whose last layer sees the whole map."""
    torch.manual_seed(0)
    convolution = getattr(nn, f"Conv{dimensions}d")
    features = nn.Sequential(convolution(3, 6, 3), nn.Softplus(), convolution(6, channels, 3), nn.Softplus())
    with torch.no_grad():
        width = features(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(width, 4)).eval()


@pytest.mark.parametrize("layer", [0, 6])
def test_the_numbers_are_captums_bit_for_bit(layer):
    model, x = image_net(), images()
    for to_input, relu, summation in itertools.product([False, True], repeat=3):
        options = {
            "target": torch.tensor([0, 1, 2, 3]),
            "attribute_to_layer_input": to_input,
            "relu_attributions": relu,
            "attr_dim_summation": summation,
        }
        expected = LayerGradCam(model, model[layer]).attribute(x, **options)
        assert torch.equal(GradCAM(model, model[layer]).attribute(x, **options), expected)
        released = HardenedGradCAM(model, model[layer], hardening=Hardening.none()).attribute(x, **options)
        assert torch.equal(released, expected)
        assert not relu or (expected >= 0).all()


@pytest.mark.parametrize(("dimensions", "shape"), [(1, (3, 20)), (2, (3, 9, 14)), (3, (3, 7, 8, 6))])
def test_nets_of_one_to_three_dimensions_have_captums_map(dimensions, shape):
    model = conv_net(*shape, dimensions=dimensions)
    x = torch.randn(2, *shape)
    expected = LayerGradCam(model, model[2]).attribute(x, target=1)
    assert torch.equal(GradCAM(model).attribute(x, target=1), expected)
    assert expected.shape == (2, 1, *(n - 4 for n in shape[1:]))
    assert GradCAMPlusPlus(model).attribute(x, target=1).shape == expected.shape
    noise = HardenedGradCAM(model, hardening=NOISY).attribute(x, target=1) - expected
    assert 0.01 < noise.std() < 0.1


def test_without_a_layer_it_is_the_last_convolution():
    model, x = image_net(), images()
    expected = LayerGradCam(model, model[3]).attribute(x, target=1)
    for released in (
        GradCAM(model).attribute(x, target=1),
        HardenedGradCAM(model, hardening=Hardening.none()).attribute(x, target=1),
        CATALOG["GradCAM"].explainer(model).attribute(x, target=1),
        harden(GradCAM(model), Hardening.none()).attribute(x, target=1),
    ):
        assert torch.equal(released, expected)


class Siamese(nn.Module):
    """Two branches of one convolution, which therefore has a tuple of outputs."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.convolution(x), self.convolution(-2 * x)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.both, self.head = Siamese.Both(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.cat([y.tanh().mean((2, 3)) for y in self.both(x)], 1))


def test_a_layer_with_several_outputs_gives_a_map_for_each():
    mode = "nearest"
    model, x = Siamese().eval(), images()
    expected = LayerGradCam(model, model.both).attribute(x, target=1)
    assert isinstance(expected, tuple)
    expected = tuple(LayerAttribution.interpolate(m, (8, 8), mode) for m in expected)
    released = HardenedGradCAM(model, model.both, hardening=Hardening.none()).attribute(
        x, target=1, interpolate_mode=mode
    )
    assert all(torch.equal(a, b) for a, b in zip(released, expected, strict=True))
    noisy = HardenedGradCAM(model, model.both, hardening=NOISY).attribute(x, target=1, interpolate_mode=mode)
    noise = [(a - b).flatten() for a, b in zip(noisy, expected, strict=True)]
    assert all(0.03 < n.std() < 0.08 for n in noise)
    assert abs(torch.corrcoef(torch.stack(noise))[0, 1]) < 0.4


# Grad-CAM++


def slow_plus_plus(gradients, activations):
    """Equations 10 and 19 of arXiv 1710.11063, channel by channel and place by place.

    With Y = exp(S) the derivatives of Y by A are Y g, Y g^2 and Y g^3 where S is piecewise linear in A; the common Y
    is left out of the weight, and cancels in alpha.
    """
    batch, channels, height, width = activations.shape
    maps = torch.zeros(batch, 1, height, width, dtype=activations.dtype)
    for n in range(batch):
        for k in range(channels):
            total = sum(float(activations[n, k, a, b]) for a in range(height) for b in range(width))
            weight = 0.0
            for i in range(height):
                for j in range(width):
                    g = float(gradients[n, k, i, j])
                    below = 2 * g**2 + total * g**3
                    alpha = g**2 / below if below != 0 else 0.0
                    weight += alpha * max(g, 0.0)
            maps[n, 0] += weight * activations[n, k]
    return maps


def gradients_and_activations(model, layer, x, target):
    kept = []
    handle = model[layer].register_forward_hook(lambda *hook: kept.append(hook[2]))
    score = model(x)[:, target].sum()
    handle.remove()
    return torch.autograd.grad(score, kept[0])[0], kept[0].detach()


@pytest.mark.parametrize(("layer", "target"), [(2, 0), (3, 3)])
def test_grad_cam_plus_plus_is_the_papers(layer, target):
    model, x = image_net().double(), images(2).double()
    expected = slow_plus_plus(*gradients_and_activations(model, layer, x, target))
    released = GradCAMPlusPlus(model, model[layer]).attribute(x, target=target)
    torch.testing.assert_close(released, expected, rtol=1e-9, atol=1e-12)
    positive = GradCAMPlusPlus(model, model[layer]).attribute(x, target=target, relu_attributions=True)
    torch.testing.assert_close(positive, expected.relu(), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(released, GradCAM(model, model[layer]).attribute(x, target=target))


def test_places_without_gradient_or_with_a_vanishing_denominator_have_no_weight():
    cam = GradCAMPlusPlus(nn.Identity(), nn.Identity())
    gradients = torch.tensor([[[[0.0, 1.0], [-1.0, 2.0]]]])
    activations = torch.tensor([[[[1.0, 1.0], [-5.0, 1.0]]]])  # sum -2: below is 2 - 2 = 0 where g = 1
    weight = cam.weights(gradients, activations)
    assert weight.shape == (1, 1, 1, 1)
    assert weight.item() == pytest.approx(2.0 / (2 + 2 * -2.0))
    assert cam.weights(torch.zeros(1, 1, 2, 2), activations).item() == 0


# Enlarging, after hardening


@pytest.mark.parametrize(("kind", "mode"), list(zip(itertools.cycle(HARDENED), MODES)))
def test_what_is_enlarged_is_the_released_map(kind, mode):
    explainer, x = kind(image_net(), hardening=NOISY), images()
    small = explainer.attribute(x, target=1)
    large = explainer.attribute(x, target=1, interpolate_mode=mode)
    assert small.shape == (4, 1, 4, 4)
    assert torch.equal(large, nn.functional.interpolate(small, (8, 8), mode=mode))
    assert not large.requires_grad


def test_enlarging_first_and_hardening_the_large_map_would_average_noise_away():
    """The wrong order: noise on each of the enlarged pixels is averaged by whoever shrinks the map again."""
    model, x, kind = image_net(), images(32), HardenedGradCAM
    native = kind(model, hardening=Hardening.none())
    shrink = nn.AvgPool2d(2)
    exact = native.attribute(x, target=1)
    wrong = shrink(NOISY(native.attribute(x, target=1, interpolate_mode="nearest"), inputs=x)) - exact
    right = shrink(kind(model, hardening=NOISY).attribute(x, target=1, interpolate_mode="nearest")) - exact
    assert wrong.std().item() == pytest.approx(0.025, rel=0.15)
    assert right.std().item() == pytest.approx(0.05, rel=0.15)


def test_all_modes_share_one_draw_of_noise():
    explainer, x = HardenedGradCAM(image_net(), hardening=NOISY), images()
    corners = [explainer.attribute(x, target=1, interpolate_mode=mode)[..., ::2, ::2] for mode in ("nearest", "area")]
    assert torch.equal(corners[0], corners[1])
    assert torch.equal(corners[0], explainer.attribute(x, target=1))


def test_an_empty_batch_gives_empty_maps():
    empty = HardenedGradCAM(image_net(), hardening=NOISY).attribute(
        torch.empty(0, 3, 8, 8), target=torch.empty(0, dtype=torch.long), interpolate_mode="bilinear"
    )
    assert empty.shape == (0, 1, 8, 8)


def test_a_mode_that_does_not_fit_is_refused_by_name():
    explainer = HardenedGradCAM(image_net(), hardening=NOISY)
    for mode in ("linear", "sharp"):
        with pytest.raises(InputError, match=f"interpolate_mode='{mode}' cannot enlarge"):
            explainer.attribute(images(), target=1, interpolate_mode=mode)


# Layouts


class Tokens(nn.Module):
    """A map cut into tokens, mixed, and read out: with some tokens in front that stand for no place."""

    def __init__(self, front=1, height=4, width=4, channels_last=False):
        super().__init__()
        torch.manual_seed(0)
        self.front, self.size, self.last = front, (height, width), channels_last
        self.patches, self.norm = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)
        self.place = nn.Parameter(torch.randn(height * width, 6))

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        tokens = torch.cat([tokens.mean(1, keepdim=True).expand(-1, self.front, -1), tokens], 1)
        if self.last:
            tokens = tokens.view(-1, *self.size, 6)
        out = self.norm(tokens).tanh()
        return self.head((out * torch.linspace(0.2, 1, 6)).pow(2).flatten(1, -2).mean(1))


def to_map(front, height=4, width=4):
    """The reshape_transform that people write for transformers."""
    return lambda tokens: tokens[:, front:].transpose(1, 2).reshape(len(tokens), -1, height, width)


def slow_cam(model, x, target, as_map):
    """Equations 1 and 2 of arXiv 1610.02391 on the map that a layer's output is."""
    kept = []
    handle = model.norm.register_forward_hook(lambda *hook: kept.append(hook[2]))
    score = model(x)[:, target].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[0])
    gradient, activation = as_map(gradient), as_map(kept[0].detach())
    cam = torch.zeros(len(x), 1, *activation.shape[2:])
    for k in range(activation.shape[1]):
        cam[:, 0] += gradient[:, k].mean((1, 2))[:, None, None] * activation[:, k]
    return cam


@pytest.mark.parametrize(("front", "layout"), [(0, "auto"), (1, "function"), (5, "tokens"), (1, "auto")])
def test_tokens_are_a_map_after_those_in_front(front, layout):
    model, x = Tokens(front).eval(), images()
    model.num_prefix_tokens = front
    expected = slow_cam(model, x, 1, to_map(front))
    reshape = to_map(front) if layout == "function" else layout
    found = GradCAM(model, model.norm, reshape_transform=reshape).attribute(x, target=1)
    torch.testing.assert_close(found, expected)
    assert found.std((2, 3)).min() > 0
    for kind in HARDENED:
        explainer = kind(model, model.norm, reshape_transform=reshape, hardening=NOISY)
        assert explainer.attribute(x, target=1, interpolate_mode="bilinear").shape == (4, 1, 8, 8)


@pytest.mark.parametrize("layout", ["auto", "function"])
def test_channels_may_come_last(layout):
    model, x = Tokens(front=0, channels_last=True).eval(), images()

    def move(features):
        return features.permute(0, 3, 1, 2)

    expected = slow_cam(model, x, 1, move)
    reshape = move if layout == "function" else layout
    found = GradCAM(model, model.norm, reshape_transform=reshape).attribute(x, target=1)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layout", ["tokens", "BHWC"])
def test_a_layout_that_does_not_fit_is_refused(layout):
    model = image_net()
    with pytest.raises(InputError, match=r"a map in the layout '.*choose another layer, or give reshape_transform="):
        HardenedGradCAM(model, hardening=NOISY, reshape_transform=layout).attribute(images(), target=1)


def test_a_layer_without_places_has_no_grad_cam_plus_plus():
    model = image_net()
    for kind, options in ((GradCAMPlusPlus, {}), (HardenedGradCAMPlusPlus, {"hardening": NOISY})):
        with pytest.raises(InputError, match=r"expected a layer with spatial axes for Grad-CAM\+\+, got \(4, 5\)"):
            kind(model, model[6], **options).attribute(images(), target=1)
