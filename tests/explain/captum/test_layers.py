"""Methods of layers and neurons: which layer, which layout, and the promises of every hardened explainer."""

import pytest
import torch
from explain_nets import (
    NOISY,
    hardened_class,
    image_net,
    quiet,
)
from torch import nn

from safexplain.errors import InputError
from safexplain.explain import CATALOG, default_layer
from safexplain.explain.captum.explainers import as_map
from safexplain.hardening.hardening import Hardening

pytestmark = quiet


# Which layer


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
    with pytest.raises(
        InputError, match=r"found no layer\. Give layer=, for a vision transformer.*blocks\[-1\]\.norm1"
    ):
        default_layer(model)


def test_a_convolution_of_single_pixels_or_with_overlap_cuts_no_patches():
    for convolution in (nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(3, 4, (1, 3))):
        assert default_layer(nn.Sequential(convolution, nn.Flatten(), nn.Linear(4, 2))) is convolution


# Which layout


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
