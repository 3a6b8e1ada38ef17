"""A set drawn over its image, by us and by Captum: compared as the arrays that are drawn."""

import numpy as np
import pytest
import torch
from matplotlib import colors
from matplotlib.figure import Figure

from safexplain.errors import InputError
from safexplain.explain import show_set

ORANGE = colors.to_rgb("tab:orange")


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


OTHER_SHAPES = [
    ((2, 3, 8, 8), (3, 8, 8), "expected one image"),
    ((3, 8, 8), (8,), "got .3, 8, 8. and .8,."),
]


def test_other_shapes_are_refused():
    for image, released, said in OTHER_SHAPES:
        with pytest.raises(InputError, match=said):
            drawn(torch.zeros(image), torch.zeros(released))


def test_what_is_no_set_is_refused():
    with pytest.raises(InputError, match="expected a set"):
        drawn(torch.zeros(4, 4), torch.full((4, 4), -0.5))
