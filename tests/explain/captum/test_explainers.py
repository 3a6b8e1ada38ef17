"""Grad-CAM is Captum's, Grad-CAM++ is the paper's, and maps are enlarged after they are hardened."""

import itertools

import pytest
import torch
from captum.attr import LayerAttribution, LayerGradCam
from explain_nets import NOISY, hardened_class, image_net, images, quiet
from torch import nn

from safexplain import HardenedGradCAM, HardenedGradCAMPlusPlus
from safexplain.errors import InputError
from safexplain.explain import CATALOG, GradCAM, GradCAMPlusPlus, default_layer
from safexplain.explain.captum import as_map
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


@pytest.mark.parametrize(("kind", "mode"), list(zip(itertools.cycle(HARDENED), MODES)))
def test_what_is_enlarged_is_the_released_map(kind, mode):
    explainer, x = kind(image_net(), hardening=NOISY), images()
    small = explainer.attribute(x, target=1)
    large = explainer.attribute(x, target=1, interpolate_mode=mode)
    assert small.shape == (4, 1, 4, 4)
    assert torch.equal(large, nn.functional.interpolate(small, (8, 8), mode=mode))
    assert not large.requires_grad


def test_a_mode_that_does_not_fit_is_refused_by_name():
    explainer = HardenedGradCAM(image_net(), hardening=NOISY)
    for mode in ("linear", "sharp"):
        with pytest.raises(InputError, match=f"interpolate_mode='{mode}' cannot enlarge"):
            explainer.attribute(images(), target=1, interpolate_mode=mode)


class Tokens(nn.Module):
    """A map cut into tokens, mixed, and read out: with some tokens in front that stand for no place."""

    def __init__(self, front=1, height=4, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.front = front
        self.patches, self.norm = nn.Conv2d(3, 6, 2, stride=2), nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)
        self.place = nn.Parameter(torch.randn(height * width, 6))

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        tokens = torch.cat([tokens.mean(1, keepdim=True).expand(-1, self.front, -1), tokens], 1)
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


def test_a_layer_without_places_has_no_grad_cam_plus_plus():
    model = image_net()
    for kind, options in ((GradCAMPlusPlus, {}), (HardenedGradCAMPlusPlus, {"hardening": NOISY})):
        with pytest.raises(InputError, match=r"expected a layer with spatial axes for Grad-CAM\+\+, got \(4, 5\)"):
            kind(model, model[6], **options).attribute(images(), target=1)


def test_the_default_layer_is_the_last_convolution():
    model = image_net()
    assert default_layer(model) is model[3]
    assert default_layer(lambda x: model(x).softmax(1)) is model[3]
    assert default_layer(nn.Sequential(nn.Conv1d(2, 3, 3), nn.Conv1d(3, 4, 3), nn.Flatten())).out_channels == 4


def test_of_an_mlp_it_is_the_second_to_last_linear_layer():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    assert default_layer(model) is model[2]
    assert default_layer(model.forward) is model[2]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), nn.Linear(4, 4), nn.Linear(4, 2)),
        lambda x: x,
    ],
    ids=["one linear layer", "patches", "no module"],
)
def test_where_there_is_no_layer_to_choose_one_is_asked_for(model):
    with pytest.raises(InputError, match=r"Give layer=, for a vision transformer.*blocks\[-1\]\.norm1"):
        default_layer(model)


def test_a_convolution_of_single_pixels_or_with_overlap_cuts_no_patches():
    for convolution in (nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(3, 4, (1, 3))):
        assert default_layer(nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 2))) is convolution


def square(channels=2, side=3):
    """A map whose number at channel c, row i and column j is 100 c + 10 i + j."""
    c, i, j = torch.meshgrid(torch.arange(channels), torch.arange(side), torch.arange(side), indexing="ij")
    return (100 * c + 10 * i + j)[None].float()


def tokens_of(features, front=0):
    flat = features.flatten(2).transpose(1, 2)
    return torch.cat([torch.full((len(flat), front, flat.shape[2]), -1.0), flat], 1)


@pytest.mark.parametrize(("layout", "front"), [("auto", 0), ("tokens", 1), ("auto", 4)])
def test_tokens_become_rows_and_columns(layout, front):
    features = square()
    model = nn.Module()
    model.num_prefix_tokens = front
    assert torch.equal(as_map(tokens_of(features, front), layout, model), features)
    assert torch.equal(as_map(tokens_of(features, front), layout), features)  # 9 is the largest square in up to 15


def test_the_model_says_how_many_tokens_stand_for_no_place():
    """With 7 of them before 9 places the 16 tokens look like a square of 4 x 4."""
    features, inner, outer = square(), nn.Module(), nn.Module()
    inner.num_prefix_tokens, outer.vit = 7, inner
    assert torch.equal(as_map(tokens_of(features, 7), "tokens", outer), features)
    assert torch.equal(as_map(tokens_of(features, 7), "tokens", lambda x: outer(x)), features)
    assert as_map(tokens_of(features, 7), "tokens").shape == (1, 2, 4, 4)


def test_tokens_that_are_no_square_are_refused():
    for count, front in ((12, 0), (3, 5)):
        model = nn.Module()
        model.num_prefix_tokens = front
        with pytest.raises(InputError, match=f"after {front} prefix tokens, got {count} tokens: give reshape_tr"):
            as_map(torch.zeros(1, count, 5), "auto", model)


def test_channels_last_is_moved_and_channels_first_is_left():
    features = square(channels=5)
    last = features.permute(0, 2, 3, 1)
    assert torch.equal(as_map(last, "channels_last"), features)
    assert torch.equal(as_map(features, "channels_first"), features)
    assert torch.equal(as_map(features, "auto"), features)


@pytest.mark.parametrize(("height", "width"), [(7, 7), (4, 8)])
def test_channels_last_is_seen_by_the_normalisation_and_the_image(height, width):
    normalised, plain = nn.Sequential(nn.LayerNorm(5)), nn.Sequential(nn.BatchNorm2d(5))
    last, size = torch.zeros(1, height, width, 5), (32 * height, 32 * width)
    first = last.permute(0, 3, 1, 2)
    assert as_map(last, "auto", normalised, size).shape == first.shape
    assert as_map(first, "auto", normalised, size).shape == first.shape
    assert as_map(last, "auto", plain, size).shape == last.shape  # nothing says that the channels are at the end


def test_what_is_no_map_is_refused():
    for shape, layout in (
        ((2, 5), "channels_last"),
        ((2, 3, 4, 4), "tokens"),
        ((2, 3, 4, 4), "BHWC"),
        ((2, 9, 5), "map"),
    ):
        with pytest.raises(
            InputError, match=r"a map in the layout '.*channels_first, channels_last, tokens or a function"
        ):
            as_map(torch.zeros(shape), layout)


# Beyond the contract that `tests/testing/test_check_explainer.py` runs over every row.


@pytest.mark.parametrize("name", ["LayerActivation", "LayerFeatureAblation"])
def test_another_layer_has_other_noise(name):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(6, 6), nn.Tanh()] * 2, nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    model[2], row, x = nn.Linear(6, 6), CATALOG[name], torch.randn(32, 6)
    kind = hardened_class(row).kind

    def noise(explained, layer):
        options = {"target": 1} if row.target else {}
        found = [kind(explained, layer, hardening=h).attribute(x, **options) for h in (NOISY, Hardening.none())]
        return (found[0] - found[1]).flatten()

    for explained in (model, lambda inputs: model(inputs) * 2):
        one, other = noise(explained, model[0]), noise(explained, model[2])
        assert one.std() > 0.03
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.4
        torch.testing.assert_close(noise(explained, model[0]), one, atol=1e-6, rtol=0)
