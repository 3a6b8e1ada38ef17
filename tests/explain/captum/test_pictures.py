"""A set drawn over its image, by us and by Captum: compared as the arrays that are drawn."""

import numpy as np
import pytest
import torch
from captum.attr import visualization
from explain_nets import image_net, images
from matplotlib import colors, pyplot
from matplotlib.figure import Figure

from safexplain import HardenedIG, Hardening, TopKSet
from safexplain.errors import InputError
from safexplain.explain import show_set

ORANGE = colors.to_rgb("tab:orange")
SETS = {"few": TopKSet(k=2), "many": TopKSet(fraction=0.3), "ordered": TopKSet(k=5, ordered=True)}
FITTING = [("original_image", "all"), *((m, s) for m in ("heat_map", "blended_heat_map") for s in ("all", "positive"))]
FITTING += [(m, s) for m in ("masked_image", "alpha_scaling") for s in ("positive", "absolute_value")]


def drawn(*args, **more):
    return show_set(*args, Figure().subplots(), **more).images[0].get_array()


def test_named_pixels_are_in_colour_and_all_others_in_grey():
    image, released = torch.rand(3, 8, 8), torch.zeros(3, 8, 8)
    image[:, 0, 0], image[:, 7, 7] = 0, 1
    released[1, 2, 3] = released[:, 4, 4] = 1  # one channel, and all
    found, grey = drawn(image, released), image.mean(0)
    for i in range(8):
        for j in range(8):
            expected = ORANGE if (i, j) in ((2, 3), (4, 4)) else (grey[i, j],) * 3
            np.testing.assert_allclose(found[i, j], expected, atol=1e-6)


def test_images_are_taken_on_any_scale_as_arrays_and_without_channels():
    image, released = np.random.default_rng(0).random((6, 5)), np.zeros((6, 5))
    released[0, 0] = 1
    found = drawn(image, released, color="blue")
    np.testing.assert_allclose(drawn(255 * image[None] - 9, released[None], color="blue"), found)
    assert found[0, 0].tolist() == [0, 0, 1]
    np.testing.assert_array_equal(drawn(np.full((1, 6, 5), 3.0), np.zeros((6, 5))), np.zeros((6, 5, 3)))


def test_stronger_pixels_of_an_ordered_set_have_more_colour():
    released = torch.zeros(4, 4)
    released[0, :2] = torch.tensor([2.0, 1.0])
    found = drawn(torch.zeros(1, 4, 4), released)
    np.testing.assert_allclose(found[0, :2], [ORANGE, np.divide(ORANGE, 2)])


def test_without_axes_the_current_ones_are_drawn_on():
    axes = pyplot.figure().subplots()
    assert show_set(torch.zeros(4, 4), torch.zeros(4, 4)) is axes
    assert (len(axes.get_xticks()), len(axes.get_yticks())) == (0, 0)
    pyplot.close()


OTHER_SHAPES = [
    ((2, 3, 8, 8), (3, 8, 8), "one image of a batch"),
    ((3, 8, 8), (1, 4, 4), "enlarge layer maps by interpolate_mode="),
    ((3, 8, 8), (8,), "got .3, 8, 8. and .8,."),
]


def test_other_shapes_are_refused():
    for image, released, said in OTHER_SHAPES:
        with pytest.raises(InputError, match=said):
            drawn(torch.zeros(image), torch.zeros(released))


def test_what_is_no_set_is_refused():
    with pytest.raises(InputError, match="expected a set"):
        drawn(torch.zeros(4, 4), torch.full((4, 4), -0.5))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.filterwarnings("error")
def test_captum_draws_a_set_by_every_method_with_every_sign_that_a_set_has(name):
    x, model = images(1), image_net()
    released = HardenedIG(model, hardening=Hardening(clip=SETS[name])).attribute(x, target=1, n_steps=5)
    pixels, picture = (t[0].movedim(0, -1).numpy() for t in (released, x.sigmoid()))
    for method, sign in FITTING:
        _, axes = visualization.visualize_image_attr(pixels, picture, method, sign, use_pyplot=False)
        shown = axes.images[-1].get_array()
        if method == "heat_map":
            assert ((shown > 0) == (pixels.sum(2) > 0)).all()
    methods, signs = zip(*FITTING, strict=True)
    figure, _ = visualization.visualize_image_attr_multiple(pixels, picture, methods, signs, use_pyplot=False)
    assert len(figure.axes) == len(FITTING)


def test_captum_says_why_it_draws_nothing_that_is_not_there():
    """Should this fail, docs/explainers.md need not say it."""
    with pytest.raises(AssertionError, match="scale factor = 0"):
        visualization.visualize_image_attr(np.ones((4, 4)), sign="negative", use_pyplot=False)
